//! One acquisition, from the call to the guard.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::contention::WhenFull;
use crate::store::{AcquireOp, Attempt, BusyReply, Claim, Grant, QueueStanding, Reply, Standing, Ticket};
use distlock_api::{
    AcquireOptions, Busy, Disposition, ErrorKind, FencingToken, Holder, LeaseOptions, LeaseTerms, LockError, LockKey,
    Phase, Result, Wait,
};

use super::held::HeldLease;
use super::lease::{self, Lease};
use super::log::log;
use super::pace;
use super::places::{Anchor, News, Seat, Told};
use super::settle::{Attempting, Patience};
use super::turns::{Found, Turn};
use super::{Engine, ensure_runtime, registry};

/// How long the caller is willing to wait.
#[derive(Clone, Copy)]
enum Limit {
    Once,
    Until(Instant),
    Never,
}

impl Limit {
    fn new(wait: Wait) -> Self {
        match wait {
            Wait::Try | Wait::UpTo(Duration::ZERO) => Self::Once,
            Wait::UpTo(limit) => Instant::now().checked_add(limit).map_or(Self::Never, Self::Until),
            Wait::Forever => Self::Never,
        }
    }

    fn instant(self) -> Option<Instant> {
        match self {
            Self::Until(limit) => Some(limit),
            Self::Once | Self::Never => None,
        }
    }

    fn cap(self, instant: Instant) -> Instant {
        self.instant().map_or(instant, |limit| instant.min(limit))
    }

    fn has_passed(self) -> bool {
        matches!(self, Self::Until(limit) if Instant::now() >= limit)
    }

    async fn passed(self) {
        match self {
            Self::Until(limit) => sleep_until(limit).await,
            Self::Once | Self::Never => std::future::pending().await,
        }
    }
}

/// The answer to an acquisition.
pub(super) enum Obtained {
    Held(HeldLease),
    Busy(Busy),
}

/// The operation of a typed style that takes the place of the store's.
pub(super) type Via<'a> = Option<&'a Arc<dyn AcquireOp>>;

impl Engine {
    pub(super) async fn acquire(
        self: &Arc<Self>,
        key: &LockKey,
        options: AcquireOptions,
        via: Via<'_>,
    ) -> Result<Obtained> {
        self.check(&options)
            .map(|(terms, holder)| self.acquire_checked(key, Limit::new(options.wait()), terms, holder, via))?
            .await
            .map_err(|error| error.with_key(key.clone()))
    }

    /// Refuses what cannot work, before any I/O.
    fn check(&self, options: &AcquireOptions) -> Result<(LeaseTerms, Holder)> {
        let terms = options.lease().or(self.config.defaults).terms()?;
        if terms.hold_at_least.is_some() && !self.store.capabilities().minimum_hold {
            let message = format!("{} has no minimum hold", self.store.name());
            return Err(LockError::new(ErrorKind::Unsupported, message));
        }
        let mut holder = options.holder().clone();
        holder.validate()?;
        holder.owner = holder.owner.or_else(|| self.config.holder.owner.clone());
        holder.metadata = holder.metadata.or_else(|| self.config.holder.metadata.clone());
        Ok((terms, holder))
    }

    async fn acquire_checked(
        self: &Arc<Self>,
        key: &LockKey,
        limit: Limit,
        terms: LeaseTerms,
        holder: Holder,
        via: Via<'_>,
    ) -> Result<Obtained> {
        ensure_runtime()?;
        if self.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        // Who stood in line knows that the lock is busy, even if there is no time left to ask.
        let mut busy = None;
        let turn = match limit {
            Limit::Once => match self.turns.try_take(key) {
                Found::Turn(turn) => Some(turn),
                Found::Held => return Ok(Obtained::Busy(Busy::new())),
                // Somebody here waits for a holder elsewhere, who may have left by now: only the store knows.
                Found::Asking => None,
            },
            Limit::Until(_) | Limit::Never => match self.turns.try_take(key) {
                Found::Turn(turn) => Some(turn),
                Found::Held | Found::Asking => {
                    busy = Some(Busy::new());
                    let _waiting = Waiting::new(&self.waiting);
                    tokio::select! {
                        biased;
                        () = self.closed.cancelled() => return Err(LockError::closed()),
                        turn = self.turns.take(key) => Some(turn),
                        () = limit.passed() => return Ok(Obtained::Busy(Busy::new())),
                    }
                }
            },
        };
        if limit.has_passed() {
            return Ok(Obtained::Busy(Busy::new()));
        }
        let turn = match self.receive(turn, limit, &terms, &holder, via).await {
            Ok(guard) => return Ok(Obtained::Held(guard)),
            Err(turn) => turn,
        };
        if limit.has_passed() {
            return Ok(Obtained::Busy(Busy::new()));
        }
        self.ask_until_granted(key, limit, (terms, holder), (turn, busy), via).await
    }

    /// Takes the lease that the guard before has handed on (R21), or else comes back with the turn alone.
    async fn receive(
        self: &Arc<Self>,
        mut turn: Option<Turn>,
        limit: Limit,
        terms: &LeaseTerms,
        holder: &Holder,
        via: Via<'_>,
    ) -> std::result::Result<HeldLease, Option<Turn>> {
        let (baton, turn) = match turn.as_mut().and_then(Turn::take_baton) {
            Some(baton) => (baton, turn.expect("it had a lease with it")),
            None => return Err(turn),
        };
        let lease = baton.lease();
        // A lease that is handed on brings nothing else with it.
        if via.is_none() && lease.suits(terms, holder) {
            return match lease.receive(turn, Instant::now()) {
                Ok(token) => {
                    self.registry().handed_on();
                    Ok(self.guard(lease, token))
                }
                Err(turn) => Err(Some(turn)),
            };
        }
        // Once its release has been sent, it is nobody's. A caller that leaves meanwhile leaves it to the background.
        if let Some(job) = baton.release() {
            tokio::select! {
                _ = job.run() => {}
                () = limit.passed() => {}
                () = self.closed.cancelled() => {}
            }
        }
        Err(Some(turn))
    }

    fn guard(self: &Arc<Self>, lease: &Arc<Lease>, token: FencingToken) -> HeldLease {
        HeldLease::new(self.clone(), lease.clone(), token)
    }

    /// The request for a lease, with a ticket if the caller waits and the store keeps a queue.
    fn attempt(&self, claim: &Claim, limit: Limit, terms: &LeaseTerms, holder: &Holder, via: Via<'_>) -> Attempt {
        let can = self.store.capabilities();
        // The caller leaves at its bound, the call does not: one that is cut off costs a store its connection, and
        // leaves an outcome that nobody knows.
        let mut attempt = Attempt::new(claim.clone(), terms.ttl)
            .with_holder(holder.clone())
            .with_timeout(self.config.store_timeout());
        if let Some(queue) = self.config.queue.filter(|_| can.queue) {
            attempt = attempt.with_turn_window(queue.turn_window);
            attempt.ticket = (!matches!(limit, Limit::Once)).then(|| queue.ticket(terms));
        }
        // What a typed style brings is for one guard, and so is the lease.
        if self.config.hand_off.is_some() && can.token_blocks && terms.hold_at_least.is_none() && via.is_none() {
            attempt = attempt.with_tokens(TOKEN_BLOCK);
        }
        attempt
    }

    async fn ask_until_granted(
        self: &Arc<Self>,
        key: &LockKey,
        limit: Limit,
        (terms, holder): (LeaseTerms, Holder),
        (mut turn, mut busy): (Option<Turn>, Option<Busy>),
        via: Via<'_>,
    ) -> Result<Obtained> {
        let mut attempting = Attempting::new(self, key, terms.ttl, via.cloned());
        let mut waiting = None;
        let (mut asked, mut failed) = (0, 0);
        let mut last_error = None;
        // Whether the stream is believed: not any more once a place was lost, because the grant that it went with has not been heard.
        let mut listens = true;
        let mut before = None;
        // An answer after ttl - margin could only bring a lease that is lost already (C3).
        let patience = self.config.request_timeout.min(terms.ttl - terms.margin);
        let once = Instant::now() + patience;
        loop {
            let bounds = Patience {
                limit: if matches!(limit, Limit::Once) { Some(once) } else { limit.instant() },
                answer: patience,
                // A caller that has been told "busy" waits for its turn until it leaves.
                admission: busy.is_none() && last_error.is_none(),
            };
            let attempt = self.attempt(attempting.claim(), limit, &terms, &holder, via);
            let ticket = attempt.ticket;
            let answer = attempting.ask(attempt, bounds).await;
            let mut place = None;
            let (pause, mut so_far) = match answer {
                Ok((sent, Reply::Granted(grant))) => {
                    let deadline = lease::deadline(sent, grant.remaining, &terms);
                    match self.enter(&attempting, &grant, (terms, holder.clone()), (sent, deadline), turn) {
                        Entered::Held(guard) => {
                            attempting.keep();
                            return Ok(Obtained::Held(guard));
                        }
                        Entered::Closed => return Err(LockError::closed()),
                        Entered::Late(given_back) => turn = given_back,
                    }
                    // R10: not handed to the caller; `attempting` withdraws it.
                    attempting.start_afresh();
                    failed += 1;
                    let error = LockError::timeout(Phase::Request, "the grant came after its own deadline")
                        .with_disposition(Disposition::Retryable);
                    (pace::after_error(failed, fastrand::f64()), Err(error))
                }
                Ok((sent, Reply::Busy(reply))) => {
                    failed = 0;
                    asked += 1;
                    if reply.standing == QueueStanding::Full && self.refuses_when_full() {
                        let message = "as many others wait as the queue has room for";
                        return Err(LockError::new(ErrorKind::QueueFull, message));
                    }
                    place = ticket.and_then(|ticket| self.sit(&attempting, ticket, sent, &reply));
                    let ahead = place_in(&reply);
                    listens &= ahead.zip(before).is_none_or(|(ahead, before)| ahead <= before);
                    before = ahead;
                    let pause = self.rest(asked, &reply, listens);
                    (pause, Ok(Obtained::Busy(*busy.insert(told(&reply)))))
                }
                Err(error) if error.disposition() == Disposition::Permanent => return Err(error),
                // Nothing was sent. A caller that the store has told "busy" is better told that.
                Err(error) if error.kind() == ErrorKind::Overloaded => {
                    return busy.map_or(Err(error), |busy| Ok(Obtained::Busy(busy)));
                }
                // C10: the second question says what became of the first one.
                Err(_) if failed == 0 && attempting.can_resolve() => {
                    failed = 1;
                    continue;
                }
                // Cut off by the caller's own limit, soon after the store has said "busy": that is the better answer.
                Err(_) if failed == 0 && limit.has_passed() && busy.is_some() => {
                    return Ok(Obtained::Busy(busy.unwrap_or_default()));
                }
                Err(error) => {
                    failed += 1;
                    if failed == 1 {
                        log!(warn, lock.key = %key, %error, "attempt to acquire failed; trying again while time is left");
                    } else {
                        log!(debug, lock.key = %key, %error, "attempt failed");
                    }
                    // What the store itself has said tells more than that its last answer did not come in time.
                    let error = match last_error.take() {
                        Some(said) if attempting.is_cut_off() => LockError::outcome_unknown(said),
                        _ => error,
                    };
                    last_error = Some(error.clone());
                    (pace::after_error(failed - 1, fastrand::f64()), Err(error))
                }
            };
            if matches!(limit, Limit::Once) || limit.has_passed() {
                return so_far;
            }
            waiting.get_or_insert_with(|| Waiting::new(&self.waiting));
            self.watch();
            let mut wake = Instant::now() + pause;
            let nudge = turn.as_ref().map(Turn::nudged).unwrap_or_default();
            let news = attempting.news();
            loop {
                tokio::select! {
                    () = news.notified() => {}
                    () = nudge.notified() => break,
                    () = sleep_until(limit.cap(wake)) => break,
                    () = self.closed.cancelled() => return Err(LockError::closed()),
                }
                let News { lost, missed, pushed, told: refreshed } = self.registry().news(attempting.claim().id());
                if lost {
                    // It was granted and taken away before anybody heard of it.
                    attempting.start_afresh();
                    break;
                }
                // Without an answer there is nothing to compare it with; the next question brings one (R19).
                let Some(Place { anchor, ticket }) = &mut place else { break };
                // A grant that was pushed brings nothing else with it: asked for, it brings everything.
                if missed || (via.is_some() && pushed.is_some()) {
                    break;
                }
                let is_waiting = match refreshed {
                    Some(Told { sent, standing: Standing::Waiting(reply) }) => {
                        *anchor = Anchor::new(sent, &reply);
                        before = place_in(&reply);
                        wake = Instant::now() + self.rest(asked, &reply, listens);
                        so_far = Ok(Obtained::Busy(*busy.insert(told(&reply))));
                        pushed.is_none() || anchor.is_some()
                    }
                    Some(Told { .. }) => {
                        listens &= pushed.is_some();
                        false
                    }
                    None => pushed.is_none(),
                };
                let now = Instant::now();
                // R18, R19: it starts at once, on its short claim; the keeper renews that to the full ttl.
                let granted = pushed.as_ref().zip(anchor.as_ref()).and_then(|(pushed, anchor)| anchor.end_of(pushed));
                if let (Some(end), Some(pushed)) = (granted, pushed) {
                    let deadline = end.min(now + ticket.claim_ttl).checked_sub(terms.margin).unwrap_or(now);
                    // Too late to be renewed in time: asked for, it comes with its full ttl.
                    let left = deadline.saturating_duration_since(now);
                    if left < ticket.claim_ttl.saturating_sub(terms.margin) / 2 {
                        break;
                    }
                    match self.enter(&attempting, &pushed.grant, (terms, holder.clone()), (now, deadline), turn) {
                        Entered::Held(guard) => {
                            attempting.keep();
                            return Ok(Obtained::Held(guard));
                        }
                        Entered::Closed => return Err(LockError::closed()),
                        Entered::Late(given_back) => turn = given_back,
                    }
                    break;
                }
                if !is_waiting {
                    break;
                }
            }
            if limit.has_passed() {
                return so_far;
            }
        }
    }

    fn refuses_when_full(&self) -> bool {
        self.config.queue.is_some_and(|queue| queue.when_full == WhenFull::Refuse)
    }

    /// Takes note of a place in the store's queue, if the claim has one.
    fn sit(
        self: &Arc<Self>,
        attempting: &Attempting<'_>,
        ticket: Ticket,
        sent: Instant,
        reply: &BusyReply,
    ) -> Option<Place> {
        let QueueStanding::Queued { ahead } = reply.standing else {
            self.registry().leave(attempting.claim().id());
            return None;
        };
        let home = Handle::current();
        let seat = Seat { claim: attempting.claim().clone(), ticket, home: home.id() };
        let entered = self.registry().waits(&seat, sent, ahead);
        if let registry::Entered::Unkept(wake) = entered {
            self.keep(&home, wake);
        }
        Some(Place { anchor: Anchor::new(sent, reply), ticket })
    }

    /// How long to wait for news before asking again: who has a place, and is told when it is granted, asks when its turn has come by itself, because
    /// nobody has handed the lease over. Others poll.
    fn rest(&self, asked: u32, reply: &BusyReply, listens: bool) -> Duration {
        let queued = matches!(reply.standing, QueueStanding::Queued { .. });
        let hears = listens && self.hears.load(Ordering::Relaxed);
        match reply.holder_remaining {
            Some(remaining) if queued && hears && remaining > self.config.poll.first => {
                remaining.min(LeaseOptions::MAX_TTL) + self.config.poll.first.mul_f64(0.1 + fastrand::f64() / 2.0)
            }
            remaining => self.config.poll.pause(asked - 1, remaining, fastrand::f64()),
        }
    }

    /// Makes a guard of a grant, if it came in time and the provider is still open.
    fn enter(
        self: &Arc<Self>,
        attempting: &Attempting<'_>,
        grant: &Grant,
        terms: (LeaseTerms, Holder),
        (sent, deadline): (Instant, Instant),
        turn: Option<Turn>,
    ) -> Entered {
        let claim = attempting.claim().clone();
        let lease = match Lease::granted(claim, grant, terms, (sent, deadline), Instant::now(), turn) {
            Ok(lease) => lease,
            Err(turn) => return Entered::Late(turn),
        };
        let entered = self.registry().enter(&lease, sent);
        match entered {
            registry::Entered::Kept => {}
            registry::Entered::Unkept(wake) => self.keep(lease.home(), wake),
            registry::Entered::Closed => return Entered::Closed,
            registry::Entered::Refused => return Entered::Late(lease.take_turn()),
        }
        self.watch_soon();
        Entered::Held(self.guard(&lease, grant.token))
    }
}

/// A place in the store's queue.
struct Place {
    anchor: Option<Anchor>,
    ticket: Ticket,
}

/// How many tokens a grant brings that may be handed on: so many guards in a row need no round trip.
const TOKEN_BLOCK: NonZeroU32 = NonZeroU32::new(1 << 16).expect("not zero");

enum Entered {
    Held(HeldLease),
    Late(Option<Turn>),
    Closed,
}

fn told(busy: &BusyReply) -> Busy {
    Busy::new().with_retry_after(busy.holder_remaining).with_ahead(place_in(busy))
}

/// The tickets ahead, if there is a place.
fn place_in(busy: &BusyReply) -> Option<u32> {
    match busy.standing {
        QueueStanding::Queued { ahead } => Some(ahead),
        QueueStanding::NotQueued | QueueStanding::Full => None,
    }
}

/// Counts a caller that waits, as long as it exists.
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
