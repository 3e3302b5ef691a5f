//! One acquisition, from the call to the guard.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use distlock_api::{
    AcquireOptions, Busy, ErrorKind, FencingToken, Holder, LeaseOptions, LeaseTerms, LockError, LockKey, Mode, Result,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::log::log;
use crate::options::WhenFull;
use crate::run::attempt::{Acquisition, Patience};
use crate::run::clock;
use crate::run::core::{Engine, current_home};
use crate::run::held::HeldLease;
use crate::run::transit::{Delivery, Lease, Requirements, Turn};
use crate::simulation::defect;
use crate::state::backoff::Poll;
use crate::state::claim::QueuedTicket;
use crate::state::gather::Company;
use crate::state::lease::Origin;
use crate::state::ledger;
use crate::state::line::Found;
use crate::state::time::Now;
use crate::state::wait::{Circumstances, Limit, Next, Settings, Start, Wait};
use crate::store::{AcquireOp, Attempt, BusyReply, Claim, QueueStanding, Reply, Ticket};

/// Waits until the caller's limit.
async fn passed(limit: Limit) {
    match limit.instant() {
        Some(limit) => sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

/// The result of an acquisition.
pub(crate) enum Obtained {
    Held(HeldLease),
    Busy(Busy),
}

/// The operation of a typed style that replaces the store's own.
pub(crate) type Via<'a> = Option<&'a Arc<dyn AcquireOp>>;

impl Engine {
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        key: &LockKey,
        options: AcquireOptions,
        via: Via<'_>,
    ) -> Result<Obtained> {
        let lease = options.lease().or(self.options.lease);
        let obtained = self
            .check(lease, options.holder(), options.mode())
            .map(|(terms, holder)| {
                let limit = Limit::new(options.wait(), options.is_batched(), Instant::now);
                self.acquire_checked(key, limit, (options.mode(), terms, holder), via)
            })?
            .await
            .map_err(|error| error.with_key(key.clone()));
        obtained.map(|mut obtained| {
            if let Obtained::Held(held) = &mut obtained {
                held.set_linger(lease.get_linger());
            }
            obtained
        })
    }

    /// Checks the options before any I/O.
    fn check(&self, lease: LeaseOptions, holder: &Holder, mode: Mode) -> Result<(LeaseTerms, Holder)> {
        let terms = lease.terms()?;
        self.store.capabilities().check_terms(self.store.name(), &terms)?;
        if !mode.is_exclusive() {
            mode.ensure_supported(self.store.name(), &self.capabilities())?;
        }
        if terms.hold_at_least.is_some() && !self.store.capabilities().minimum_hold {
            let name = self.store.name();
            let message =
                format!("the store {name} does not support a minimum hold: acquire without one, or use another store");
            return Err(LockError::new(ErrorKind::Unsupported, message));
        }
        let mut holder = holder.clone();
        holder.validate()?;
        holder.owner = holder.owner.or_else(|| self.options.holder.owner.clone());
        holder.metadata = holder.metadata.or_else(|| self.options.holder.metadata.clone());
        Ok((terms, holder))
    }

    async fn acquire_checked(
        self: &Arc<Self>,
        key: &LockKey,
        limit: Limit,
        (mode, terms, holder): (Mode, LeaseTerms, Holder),
        via: Via<'_>,
    ) -> Result<Obtained> {
        let wanted = Requirements { mode, terms, holder, home: current_home()?, via: via.is_some() };
        if self.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        // A caller that was in the local queue knows that the lock is busy, even if no time is left
        // for an attempt.
        let mut busy = None;
        let found = self.local_queues.try_take(key, &wanted);
        if let Found::AcquiringBeside = found
            && let Some((lease, token)) = self.join(key, &wanted)
        {
            return Ok(Obtained::Held(self.guard(&lease, token)));
        }
        let turn = match limit {
            Limit::Once { .. } => match found {
                Found::Turn(turn) => Some(turn),
                Found::Held if self.may_hold(key) => return Ok(Obtained::Busy(Busy::new())),
                // It does not overtake a caller that waits (C15).
                _ if limit == Limit::Once { batched: true } => return Ok(Obtained::Busy(Busy::new())),
                // The lease of this process has ended, or a caller waits for a holder elsewhere,
                // which may have released by now: only the store knows.
                Found::Held | Found::Acquiring | Found::AcquiringBeside => None,
            },
            Limit::Until(_) | Limit::Never => match found {
                Found::Turn(turn) => Some(turn),
                Found::Held | Found::Acquiring | Found::AcquiringBeside => {
                    busy = Some(Busy::new());
                    let _waiting = Waiting::new(&self.waiting);
                    let delivery = tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return Err(LockError::closed()),
                        delivery = self.local_queues.take(key, wanted.clone()) => delivery,
                        () = passed(limit) => return Ok(Obtained::Busy(Busy::new())),
                    };
                    match delivery {
                        Delivery::Turn(turn) => Some(turn),
                        Delivery::Joined(joined) => match joined.arrive(&clock::now()) {
                            Some((lease, token)) => return Ok(Obtained::Held(self.guard(&lease, token))),
                            // It was lost on the way. Without the turn, like a caller that does
                            // not wait.
                            None => None,
                        },
                    }
                }
            },
        };
        // Before the limit is checked: a lease that has been handed to this caller is held.
        let turn = match self.receive(turn, limit, &wanted).await {
            Ok(guard) => return Ok(Obtained::Held(guard)),
            Err(turn) => turn,
        };
        let turn = match self.join_with(key, turn, &wanted) {
            Ok(guard) => return Ok(Obtained::Held(guard)),
            Err(turn) => turn,
        };
        let now = clock::now();
        if limit.has_passed(&now) {
            return Ok(Obtained::Busy(Busy::new()));
        }
        // Boxed: it is large, and a caller that gets a lease from another one does without it.
        Box::pin(self.attempt_until_granted(key, (limit, now), wanted, (turn, busy), via)).await
    }

    /// Joins the shared lease of this process, if the caller is a reader and has the turn.
    /// Otherwise returns the turn.
    fn join_with(
        self: &Arc<Self>,
        key: &LockKey,
        turn: Option<Turn>,
        wanted: &Requirements,
    ) -> std::result::Result<HeldLease, Option<Turn>> {
        if wanted.mode.is_exclusive() {
            return Err(turn);
        }
        let Some(turn) = turn else { return Err(None) };
        match self.join(key, wanted) {
            Some((lease, token)) => {
                self.pass_turn_of_shared(turn, &lease);
                Ok(self.guard(&lease, token))
            }
            None => Err(Some(turn)),
        }
    }

    /// Returns whether a lease of this process may hold the key. Not if its deadline has passed,
    /// even if the keeper has not noticed that yet (C10).
    fn may_hold(&self, key: &LockKey) -> bool {
        let Some(id) = self.local_queues.holder(key) else { return false };
        let lease = self.ledger().lease(&id);
        lease.is_some_and(|lease| lease.may_be_held(&clock::now()))
    }

    /// Takes the lease that the previous guard has handed on (rule R21 of distlock-mongo's
    /// PROTOCOL). Without one, returns the turn.
    async fn receive(
        self: &Arc<Self>,
        mut turn: Option<Turn>,
        limit: Limit,
        wanted: &Requirements,
    ) -> std::result::Result<HeldLease, Option<Turn>> {
        let (handed_on, turn) = match turn.as_mut().and_then(Turn::take_lease) {
            Some(handed_on) => (handed_on, turn.expect("it had a lease with it")),
            None => return Err(turn),
        };
        let lease = handed_on.lease();
        // A lease that is handed on brings nothing else with it.
        if wanted.met_by(lease) {
            return match lease.receive(turn, &clock::now()) {
                Ok((token, was_parked)) => {
                    self.ledger().count_hand_over();
                    // A lease that was parked was not queried about when it was given up.
                    if let Some(limits) = self.options.hand_off.as_ref().filter(|_| was_parked)
                        && lease.should_query_waiters(Instant::now(), limits)
                    {
                        self.query_waiters(lease);
                    }
                    Ok(self.guard(lease, token))
                }
                Err(turn) => Err(Some(turn)),
            };
        }
        // Once its release has been sent, the lease has no holder. If the caller leaves meanwhile,
        // the release continues in the background.
        if !defect!(NotReleasedBeforeHandOn)
            && let Some(job) = self.release_handed_on(lease, &clock::now())
        {
            tokio::select! {
                biased;
                _ = Box::pin(job.run()) => {}
                () = passed(limit) => {}
                () = self.closed.cancelled() => {}
            }
        }
        Err(Some(turn))
    }

    fn guard(self: &Arc<Self>, lease: &Arc<Lease>, token: FencingToken) -> HeldLease {
        HeldLease::new(self.clone(), lease.clone(), token)
    }

    /// Returns the request for a lease, with a ticket if the caller waits and the store keeps a
    /// queue.
    fn attempt(&self, claim: &Claim, limit: Limit, wanted: &Requirements, block: NonZeroU32) -> Attempt {
        let Requirements { mode, terms, holder, via, .. } = wanted;
        let can = self.store.capabilities();
        // The caller leaves at its limit, the call continues: cutting it off would cost the store a
        // connection, and leave an unknown outcome.
        let mut attempt = Attempt::new(claim.clone(), terms.ttl)
            .with_margin(terms.margin)
            .with_holder(holder.clone())
            .with_timeout(self.options.store_timeout());
        if let Some(queue) = self.options.queue.filter(|_| can.queue) {
            attempt = attempt.with_turn_window(queue.turn_window);
            attempt.ticket = (!matches!(limit, Limit::Once { .. })).then(|| queue.ticket(terms));
        }
        // What a typed style brings is for one guard, and so is its lease.
        let for_several = *mode == Mode::Exclusive || (*mode == Mode::Shared && terms.renew_every.is_some());
        if for_several && self.options.hand_off.is_some() && can.token_blocks && !terms.is_for_one_guard() && !via {
            attempt = attempt.with_tokens(block);
        }
        attempt
    }

    /// Carries out what [`Wait`] decides. The clocks are read once after each await, because
    /// nothing between two of them takes time.
    async fn attempt_until_granted(
        self: &Arc<Self>,
        key: &LockKey,
        (limit, mut now): (Limit, Now),
        wanted: Requirements,
        (mut turn, busy): (Option<Turn>, Option<Busy>),
        via: Via<'_>,
    ) -> Result<Obtained> {
        let (terms, mode) = (wanted.terms, wanted.mode);
        let (first, longest) = self.options.poll_interval;
        // The same for each attempt of the claim.
        let block = self.ledger().next_block(key, mode);
        let mut acquisition = Acquisition::new(self, (key, mode), terms.ttl, via.cloned());
        let settings = Settings {
            limit,
            terms,
            poll: Poll { first, longest },
            refuses_when_full: self.options.queue.is_some_and(|queue| queue.when_full == WhenFull::Refuse),
            needs_answer: via.is_some(),
        };
        let mut wait = Wait::new(settings, busy, &now);
        // An answer after ttl - margin could only bring a lease that is lost already (C3).
        let answer = self.options.request_timeout.min(terms.ttl - terms.margin);
        let leaves = match limit {
            Limit::Once { .. } => Some(now.instant() + answer),
            Limit::Until(_) | Limit::Never => limit.instant(),
        };
        let (mut waiting, mut warned) = (None, false);
        let mut next = Next::Attempt;
        loop {
            next = match next {
                Next::Attempt => {
                    let attempt = self.attempt(acquisition.claim(), limit, &wanted, block);
                    let ticket = attempt.ticket;
                    // C18: a caller that does not wait gets one round trip, unless it has others.
                    let batched = match limit {
                        Limit::Once { batched: true } => Some(Company::Certain),
                        _ => ticket.map(|_| Company::Unknown),
                    };
                    let patience = Patience { limit: leaves, answer, admission: wait.admission(), batched };
                    let answer = acquisition.attempt(attempt, patience).await;
                    now = clock::now();
                    if let (Ok((_, Reply::Busy(_))), Some(turn)) = (&answer, &turn) {
                        turn.mark_waiting();
                    }
                    if let (Ok((sent, Reply::Busy(reply))), Some(ticket)) = (&answer, ticket) {
                        self.refresh_ticket(&acquisition, (ticket, limit), *sent, reply);
                    }
                    let circumstances = Circumstances {
                        ticket,
                        stream_open: self.stream_open.load(Ordering::Relaxed),
                        can_resolve: acquisition.can_resolve(),
                        cut_off: acquisition.is_cut_off(),
                    };
                    let failed = wait.failed();
                    let next = wait.on_answer(&now, answer, circumstances, fastrand::f64());
                    log_failure(key, failed, &wait, &mut warned);
                    next
                }
                Next::AttemptUnderNewClaim => {
                    acquisition.start_new_claim();
                    Next::Attempt
                }
                Next::Sleep(until) => {
                    waiting.get_or_insert_with(|| Waiting::new(&self.waiting));
                    self.ledger().claim_waits(acquisition.claim().id(), now.instant());
                    self.open_stream();
                    let updated = acquisition.updates();
                    let nudge = turn.as_ref().map(Turn::nudged).unwrap_or_default();
                    let is_updated = tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return Err(LockError::closed()),
                        () = updated.notified() => true,
                        () = nudge.notified() => false,
                        () = sleep_until(until) => false,
                    };
                    now = clock::now();
                    if is_updated {
                        let updates = self.ledger().take_updates(acquisition.claim().id());
                        let stream_open = self.stream_open.load(Ordering::Relaxed);
                        wait.on_updates(&now, updates, stream_open, fastrand::f64())
                    } else {
                        wait.on_timer(&now)
                    }
                }
                Next::Start(start) => match self.enter(&acquisition, &start, &now, &wanted, turn) {
                    NewGuard::Held(guard) => {
                        acquisition.complete();
                        return Ok(Obtained::Held(guard));
                    }
                    NewGuard::Closed => return Err(LockError::closed()),
                    NewGuard::Late(returned) => {
                        turn = returned;
                        if start.answered {
                            // R10: it is withdrawn.
                            acquisition.start_new_claim();
                        }
                        let failed = wait.failed();
                        let next = wait.on_late(&now, start.answered, fastrand::f64());
                        log_failure(key, failed, &wait, &mut warned);
                        next
                    }
                },
                Next::Return(outcome) => return outcome.map(Obtained::Busy),
            };
        }
    }

    /// Has the ticket refreshed from now on, if the claim is in the store's queue.
    fn refresh_ticket(
        self: &Arc<Self>,
        acquisition: &Acquisition<'_>,
        (ticket, limit): (Ticket, Limit),
        sent: Instant,
        reply: &BusyReply,
    ) {
        let QueueStanding::Queued { ahead } = reply.standing else {
            return self.ledger().remove_ticket(acquisition.claim().id());
        };
        let home = Handle::current();
        let (claim, leaves) = (acquisition.claim().clone(), limit.instant());
        let queued = QueuedTicket { claim, ticket, home: home.id(), leaves };
        let entered = self.ledger().add_ticket(&queued, sent, ahead);
        if let ledger::Registration::NeedsKeeper(wake) = entered {
            self.start_keeper(&home, wake);
        }
    }

    /// Creates the guard of a grant, if it came in time and the provider is still open.
    fn enter(
        self: &Arc<Self>,
        acquisition: &Acquisition<'_>,
        start: &Start,
        now: &Now,
        wanted: &Requirements,
        turn: Option<Turn>,
    ) -> NewGuard {
        let Start { grant, sent, deadline, .. } = start;
        let claim = acquisition.claim().clone();
        let home = Handle::current();
        let origin = Origin { home_id: home.id(), home, company: acquisition.company() };
        let terms = (wanted.terms, wanted.holder.clone());
        // Only an exclusive lease keeps the turn: others may hold the key together with it.
        let (keeps, passes) = if wanted.mode.is_exclusive() { (turn, None) } else { (None, turn) };
        let lease = match Lease::granted(claim, grant, terms, (*sent, *deadline), now, origin, keeps) {
            Ok(lease) => lease,
            Err(turn) => return NewGuard::Late(turn.or(passes)),
        };
        let entered = self.ledger().enter(&lease, *sent, now);
        match entered {
            ledger::Registration::Registered => {}
            ledger::Registration::NeedsKeeper(wake) => self.start_keeper(lease.home(), wake),
            ledger::Registration::Closed => return NewGuard::Closed,
            ledger::Registration::Refused => {
                self.local_queues.mark_unheld(lease.key(), lease.claim().id());
                return NewGuard::Late(lease.take_turn().or(passes));
            }
        }
        self.open_stream_soon();
        if let Some(turn) = passes {
            self.pass_turn_of_shared(turn, &lease);
        }
        NewGuard::Held(self.guard(&lease, grant.token))
    }
}

enum NewGuard {
    Held(HeldLease),
    Late(Option<Turn>),
    Closed,
}

/// Logs a failed attempt; the first one in a row is a warning. One that is only sent again is not
/// logged.
fn log_failure(key: &LockKey, failed_before: u32, wait: &Wait, warned: &mut bool) {
    *warned &= wait.failed() > 0;
    let Some(error) = wait.last_error().filter(|_| wait.failed() > failed_before) else { return };
    if !std::mem::replace(warned, true) {
        log!(warn, lock.key = %key, %error, "attempt to acquire failed; retrying while time is left");
    } else {
        log!(debug, lock.key = %key, %error, "attempt failed");
    }
}

/// Counts a waiting caller while it exists.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
