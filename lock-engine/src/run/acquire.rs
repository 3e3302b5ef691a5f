//! One acquisition, from the call to the guard.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use distlock_api::{
    AcquireOptions, Busy, ErrorKind, Holder, LeaseOptions, LeaseTerms, LockError, LockKey, Mode, Result,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::log::log;
use crate::options::WhenFull;
use crate::run::attempt::{Acquisition, AttemptLimits};
use crate::run::clock;
use crate::run::core::{Engine, current_home};
use crate::run::held::HeldLease;
use crate::run::local::{Entry, Waiting};
use crate::run::outbox::Together;
use crate::run::transit::{Lease, Turn, Wanted};
use crate::state::backoff::Poll;
use crate::state::claim::QueuedTicket;
use crate::state::lease::Origin;
use crate::state::ledger;
use crate::state::time::Now;
use crate::state::wait::{Circumstances, Limit, Next, Settings, Start, Wait};
use crate::store::{AcquireOp, Attempt, BusyReply, Claim, QueueStanding, Reply, Ticket};

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
        key: LockKey,
        options: AcquireOptions,
        via: Via<'_>,
    ) -> Result<Obtained> {
        let (lease, mode) = (options.lease().or(self.options.lease), options.mode());
        let (terms, holder) = self.check(lease, options.holder(), mode)?;
        let limit = Limit::new(options.wait(), options.is_batched(), Instant::now);
        let home = current_home().map_err(|error| error.with_key(key.clone()))?;
        let wanted = Arc::new(Wanted { key, mode, terms, holder, home, limit, via: via.cloned() });
        let mut obtained = self.acquire_checked(&wanted).await.map_err(|error| error.with_key(wanted.key.clone()))?;
        if let Obtained::Held(held) = &mut obtained {
            held.set_linger(lease.get_linger());
        }
        Ok(obtained)
    }

    /// Checks the options before any I/O.
    fn check(&self, lease: LeaseOptions, holder: &Holder, mode: Mode) -> Result<(LeaseTerms, Holder)> {
        let terms = lease.terms()?;
        self.declared.check_terms(self.outbox.store.name(), &terms)?;
        if !mode.is_exclusive() {
            mode.ensure_supported(self.outbox.store.name(), &self.capabilities())?;
        }
        if terms.hold_at_least.is_some() && !self.declared.minimum_hold {
            let name = self.outbox.store.name();
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

    async fn acquire_checked(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<Obtained> {
        if self.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        match self.enter_local(wanted).await? {
            Entry::Held(guard) => Ok(Obtained::Held(guard)),
            Entry::Busy => Ok(Obtained::Busy(Busy::new())),
            // Boxed: it is large, and a caller that gets a lease from another one does without it.
            Entry::Attempt { turn, has_waited } => Box::pin(self.drive(wanted, turn, has_waited)).await,
        }
    }

    /// Returns the request for a lease, with a ticket if the caller waits and the store keeps a
    /// queue.
    fn attempt(&self, claim: &Claim, wanted: &Wanted, block: NonZeroU32) -> Attempt {
        let Wanted { mode, terms, holder, via, limit, .. } = wanted;
        let (can, extras) = (self.outbox.store.capabilities(), self.outbox.store.extras());
        // The caller leaves at its limit, the call continues: cutting it off would cost the store a
        // connection, and leave an unknown outcome.
        let mut attempt = Attempt::new(claim.clone(), terms.ttl)
            .with_margin(terms.margin)
            .with_holder(holder.clone())
            .with_timeout(self.options.store_timeout());
        if let Some(queue) = self.options.queue.filter(|_| extras.queue.is_some()) {
            attempt = attempt.with_turn_window(queue.turn_window);
            attempt.ticket = (!matches!(limit, Limit::Once { .. })).then(|| queue.ticket(terms));
        }
        // What a typed style brings is for one guard, and so is its lease.
        let for_several = *mode == Mode::Exclusive || (*mode == Mode::Shared && terms.renew_every.is_some());
        if for_several
            && self.options.hand_off.is_some()
            && can.token_blocks
            && !terms.is_for_one_guard()
            && via.is_none()
        {
            attempt = attempt.with_tokens(block);
        }
        attempt
    }

    /// Carries out what [`Wait`] decides. The clocks are read once after each await, because
    /// nothing between two of them takes time.
    async fn drive(self: &Arc<Self>, wanted: &Wanted, mut turn: Option<Turn>, has_waited: bool) -> Result<Obtained> {
        let Wanted { key, mode, terms, limit, .. } = wanted;
        let (limit, mut now) = (*limit, clock::now());
        let (first, longest) = self.options.poll_interval;
        // The same for each attempt of the claim.
        let block = self.ledger().next_block(key, *mode);
        let mut acquisition = Acquisition::new(self, wanted);
        let settings = Settings {
            limit,
            terms: *terms,
            poll: Poll { first, longest },
            refuses_when_full: self.options.queue.is_some_and(|queue| queue.when_full == WhenFull::Refuse),
            needs_answer: wanted.via.is_some(),
        };
        let mut wait = Wait::new(settings, has_waited.then(Busy::new), &now);
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
                    let attempt = self.attempt(acquisition.claim(), wanted, block);
                    let ticket = attempt.ticket;
                    // C18: a caller that does not wait gets one round trip, unless it has others.
                    let together = match limit {
                        Limit::Once { batched: true } => Together::InGroup,
                        _ if ticket.is_some() => Together::Perhaps,
                        _ => Together::No,
                    };
                    let limits = AttemptLimits { leaves, answer, is_refusable: wait.admission(), together };
                    let answer = acquisition.attempt(attempt, limits).await;
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
                    self.log_failure(key, failed, &wait, &mut warned);
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
                Next::Start(start) => match self.enter(&acquisition, &start, &now, wanted, turn) {
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
                        self.log_failure(key, failed, &wait, &mut warned);
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
        wanted: &Wanted,
        turn: Option<Turn>,
    ) -> NewGuard {
        let Start { grant, sent, deadline, .. } = start;
        let claim = acquisition.claim().clone();
        let home = Handle::current();
        let origin = Origin { home_id: home.id(), home, in_group: acquisition.in_group() };
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
            ledger::Registration::Refused => return NewGuard::Late(lease.take_turn().or(passes)),
        }
        self.open_stream_soon();
        if let Some(turn) = passes {
            self.pass_turn_of_shared(turn, &lease);
        }
        NewGuard::Held(HeldLease::new(self.clone(), lease, grant.token))
    }

    /// Logs a failed attempt; the first one in a row is a warning. One that is only sent again is
    /// not logged.
    fn log_failure(&self, key: &LockKey, failed_before: u32, wait: &Wait, warned: &mut bool) {
        *warned &= wait.failed() > 0;
        let Some(error) = wait.last_error().filter(|_| wait.failed() > failed_before) else { return };
        let is_first = !std::mem::replace(warned, true);
        match is_first.then(|| self.warns("attempt", error, 1)).flatten() {
            Some(attempts) => {
                log!(warn, lock.key = %key, attempts, %error, "attempt to acquire failed; retrying while time is left");
            }
            None => log!(debug, lock.key = %key, %error, "attempt failed"),
        }
    }
}

enum NewGuard {
    Held(HeldLease),
    Late(Option<Turn>),
    Closed,
}
