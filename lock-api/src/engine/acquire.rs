//! One acquisition, from the call to the guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::error::{Disposition, ErrorKind, LockError, Phase, Result};
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::options::{AcquireOptions, Holder, LeaseTerms, Wait};
use crate::provider::{Acquired, Busy};
use crate::store::{Attempt, BusyReply, Grant, QueueStanding, Reply};

use super::lease::{HeldLease, Lease};
use super::pace;
use super::settle::Attempting;
use super::turns::{Found, Turn};
use super::{Engine, registry};

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

    fn cap(self, instant: Instant) -> Instant {
        match self {
            Self::Until(limit) => instant.min(limit),
            Self::Once | Self::Never => instant,
        }
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

impl Engine {
    pub(super) async fn acquire(self: &Arc<Self>, key: &LockKey, options: AcquireOptions) -> Result<Acquired> {
        self.check(&options)
            .map(|(terms, holder)| self.acquire_checked(key, Limit::new(options.wait()), terms, holder))?
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
    ) -> Result<Acquired> {
        if self.closed.is_cancelled() {
            return Err(LockError::closed());
        }
        let turn = match limit {
            Limit::Once => match self.turns.try_take(key) {
                Found::Turn(turn) => Some(turn),
                Found::Held => return Ok(Acquired::Busy(Busy::new())),
                // Somebody here waits for a holder elsewhere, who may have left by now: only the store knows.
                Found::Asking => None,
            },
            Limit::Until(_) | Limit::Never => {
                let _waiting = Waiting::new(&self.waiting);
                tokio::select! {
                    biased;
                    () = self.closed.cancelled() => return Err(LockError::closed()),
                    turn = self.turns.take(key) => Some(turn),
                    () = limit.passed() => return Ok(Acquired::Busy(Busy::new())),
                }
            }
        };
        if limit.has_passed() {
            return Ok(Acquired::Busy(Busy::new()));
        }
        self.ask_until_granted(key, limit, terms, holder, turn).await
    }

    async fn ask_until_granted(
        self: &Arc<Self>,
        key: &LockKey,
        limit: Limit,
        terms: LeaseTerms,
        holder: Holder,
        mut turn: Option<Turn>,
    ) -> Result<Acquired> {
        let mut attempting = Attempting::new(self, key, terms.ttl);
        let mut waiting = None;
        let (mut asked, mut failed) = (0, 0);
        let mut busy = None;
        let mut last_error = None;
        // An answer after ttl - margin could only bring a lease that is lost already (C3).
        let patience = self.config.request_timeout.min(terms.ttl - terms.margin);
        let once = Instant::now() + patience;
        loop {
            let now = Instant::now();
            let bound = if matches!(limit, Limit::Once) { once } else { limit.cap(now + patience) };
            // The caller leaves at its bound, the call does not: one that is cut off costs a store its connection, and
            // leaves an outcome that nobody knows.
            let attempt = Attempt::new(attempting.claim().clone(), terms.ttl)
                .with_holder(holder.clone())
                .with_timeout(self.config.store_timeout());
            let answer = attempting.ask(attempt, bound).await;
            let (pause, so_far) = match answer {
                Ok((sent, Reply::Granted(grant))) => {
                    match self.enter(&attempting, &grant, terms, sent, turn) {
                        Entered::Held(guard) => {
                            attempting.keep();
                            return Ok(Acquired::Held(guard));
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
                Ok((_, Reply::Busy(reply))) => {
                    failed = 0;
                    asked += 1;
                    let pause = self.config.poll.pause(asked - 1, reply.holder_remaining, fastrand::f64());
                    (pause, Ok(Acquired::Busy(*busy.insert(told(&reply)))))
                }
                Err(error) if error.disposition() == Disposition::Permanent => return Err(error),
                // C10: the second question says what became of the first one.
                Err(_) if failed == 0 && attempting.can_resolve() => {
                    failed = 1;
                    continue;
                }
                // Cut off by the caller's own limit, soon after the store has said "busy": that is the better answer.
                Err(_) if failed == 0 && limit.has_passed() && busy.is_some() => {
                    return Ok(Acquired::Busy(busy.unwrap_or_default()));
                }
                Err(error) => {
                    failed += 1;
                    if failed == 1 {
                        tracing::warn!(lock.key = %key, %error, "attempt to acquire failed; trying again while time is left");
                    } else {
                        tracing::debug!(lock.key = %key, %error, "attempt failed");
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
            let wake = limit.cap(Instant::now() + pause);
            let nudge = turn.as_ref().map(Turn::nudged).unwrap_or_default();
            tokio::select! {
                () = nudge.notified() => {}
                () = sleep_until(wake) => {}
                () = self.closed.cancelled() => return Err(LockError::closed()),
            }
            if limit.has_passed() {
                return so_far;
            }
        }
    }

    /// Makes a guard of a grant, if it came in time and the provider is still open.
    fn enter(
        self: &Arc<Self>,
        attempting: &Attempting<'_>,
        grant: &Grant,
        terms: LeaseTerms,
        sent: Instant,
        turn: Option<Turn>,
    ) -> Entered {
        let claim = attempting.claim().clone();
        let lease = match Lease::granted(claim, grant, terms, sent, Instant::now(), turn) {
            Ok(lease) => lease,
            Err(turn) => return Entered::Late(turn),
        };
        let entered = self.registry().enter(&lease, sent);
        match entered {
            registry::Entered::Kept => {}
            registry::Entered::Unkept(wake) => self.keep(&lease, wake),
            registry::Entered::Refused if self.closed.is_cancelled() => return Entered::Closed,
            registry::Entered::Refused => return Entered::Late(lease.take_turn()),
        }
        self.watch();
        let held = HeldLease::new(self.clone(), lease.clone());
        Entered::Held(LockGuard::new(lease.key().clone(), lease.token(), Box::new(held)))
    }
}

enum Entered {
    Held(LockGuard),
    Late(Option<Turn>),
    Closed,
}

fn told(busy: &BusyReply) -> Busy {
    let ahead = match busy.standing {
        QueueStanding::Queued { ahead } => Some(ahead),
        QueueStanding::NotQueued | QueueStanding::Full => None,
    };
    Busy::new().with_retry_after(busy.holder_remaining).with_ahead(ahead)
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
