//! Releasing a lease in the store.
//!
//! A release that has begun must come to an end (C11, C23): its lease leaves the ledger once, as
//! released, lost or abandoned. It runs in up to three places, one after the other:
//!
//! | place | runs until | then |
//! |---|---|---|
//! | the caller's future | the store answers, or one request timeout | an error of unknown outcome; continues |
//! | the runtime that acquired the lease | the store answers, the lease expires, or `close` gives up | abandoned |
//! | the runtime current when that one ends | the same | abandoned |
//!
//! Each of them may be dropped at any time, by a caller that leaves or a runtime that ends. So the
//! job is always in a [`ScopeGuard`], which then moves it to the next one.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LockError, Loss, Phase, ReleaseOutcome, Result};
use scopeguard::{ScopeGuard, guard};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::log::log;
use crate::run::call::{Answered, InFlight};
use crate::run::clock;
use crate::run::core::Engine;
use crate::run::outbox::{CallLimits, Together};
use crate::run::transit::Lease;
use crate::state::backoff;
use crate::state::ledger::End;
use crate::store::Release;

/// A release that has begun. If it is dropped, it continues in the next place.
pub(crate) struct ReleaseJob(ScopeGuard<ReleaseState, fn(ReleaseState)>);

struct ReleaseState {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    hold: Option<Duration>,
    request: InFlight<ReleaseOutcome>,
    /// Whether a batch has left it: its key has a waiter, or another holder.
    alone: bool,
    runs_on: RunsOn,
    /// Keeps `close` waiting.
    _open: TaskTrackerToken,
}

#[derive(Clone, Copy)]
enum RunsOn {
    Caller,
    /// The runtime that acquired the lease.
    Home,
    AnotherRuntime,
}

impl ReleaseJob {
    /// Creates the release of a lease that no other one releases: its
    /// [`begin_release`](Lease::begin_release) was successful, or it was lost by a close.
    pub(crate) fn new(engine: Arc<Engine>, lease: Arc<Lease>, hold: Option<Duration>) -> Self {
        let _open = engine.tasks.token();
        ReleaseState { engine, lease, hold, request: InFlight::none(), alone: false, runs_on: RunsOn::Caller, _open }
            .guarded()
    }

    /// Creates the release of a lease that is taken from its guard because the provider is closed;
    /// `None` if it is being released already, or lost.
    pub(crate) fn of_closed(engine: &Arc<Engine>, lease: &Arc<Lease>) -> Option<Self> {
        let now = clock::now();
        if engine.check_loss(lease, &now).is_some() || !lease.lose(Loss::Closed) {
            return None;
        }
        engine.ledger().release_begun(lease, &now);
        Some(Self::new(engine.clone(), lease.clone(), lease.terms().hold_at_least))
    }

    /// Runs in the caller's future for one request timeout, and retries errors. Without an answer
    /// by then the outcome is unknown (C9), and the release continues in the background. It also
    /// continues there if the caller leaves.
    pub(crate) async fn run(mut self) -> Result<ReleaseOutcome> {
        let until = Instant::now() + self.0.engine.options.request_timeout;
        let answer = self.0.release_until(until).await;
        let job = self.into_job();
        match answer {
            Ok(outcome) => {
                job.end(outcome.into());
                Ok(outcome)
            }
            Err(error) => {
                let error = error.outcome_unknown().with_key(job.lease.key().clone());
                job.run_in_next_place();
                Err(error)
            }
        }
    }

    /// Runs during shutdown, until `until`, and retries errors. Returns whether the store has
    /// answered.
    pub(crate) async fn run_until(mut self, until: Instant) -> bool {
        let answer = self.0.release_until(until).await;
        let job = self.into_job();
        match answer {
            Ok(outcome) => {
                job.end(outcome.into());
                true
            }
            Err(error) => {
                log!(warn, lock.key = %job.lease.key(), %error, "lease not released while shutting down");
                job.end(End::Abandoned);
                false
            }
        }
    }

    pub(crate) fn run_in_background(self) {
        self.into_job().run_in_next_place();
    }

    /// Sends nothing; the lease ends by its ttl.
    pub(crate) fn abandon(self) {
        self.into_job().end(End::Abandoned);
    }

    async fn background(mut self) {
        let gone = self.0.engine.gone.clone();
        let end = gone.run_until_cancelled(self.0.release_until_expired()).await;
        self.into_job().end(end.unwrap_or(End::Abandoned));
    }

    fn into_job(self) -> ReleaseState {
        ScopeGuard::into_inner(self.0)
    }
}

impl ReleaseState {
    fn guarded(self) -> ReleaseJob {
        ReleaseJob(guard(self, Self::run_in_next_place))
    }

    /// Moves from the caller's future to the background, or from a runtime that has ended to the
    /// one that is current. With neither, the lease is left to its ttl.
    fn run_in_next_place(mut self) {
        let home = self.lease.home();
        let next = match self.runs_on {
            RunsOn::Caller => Some((RunsOn::Home, home.clone())),
            RunsOn::Home => {
                let current = Handle::try_current().ok().filter(|current| current.id() != home.id());
                current.map(|current| (RunsOn::AnotherRuntime, current))
            }
            RunsOn::AnotherRuntime => None,
        };
        match next {
            Some((runs_on, runtime)) => {
                self.runs_on = runs_on;
                if Handle::try_current().ok().is_none_or(|current| current.id() != runtime.id()) {
                    // What waits on this runtime, which may be ending, is sent again from the next.
                    self.request.leave_line();
                }
                // A runtime that has ended drops the task at once, and so moves it again.
                drop(runtime.spawn(self.guarded().background()));
            }
            None => self.end(End::Abandoned),
        }
    }

    /// Sends the release until the store has answered, `until` has passed, or an error is final.
    async fn release_until(&mut self, until: Instant) -> Result<ReleaseOutcome> {
        let mut failed = 0;
        loop {
            let error = match self.attempt(until).await {
                Ok(outcome) => return Ok(outcome),
                Err(error) => error,
            };
            let pause = backoff::after_error(failed, fastrand::f64());
            let again = error.is_retryable() || error.is_outcome_unknown();
            if !again || self.request.is_under_way() || Instant::now() + pause >= until {
                return Err(error);
            }
            sleep(pause).await;
            failed += 1;
        }
    }

    /// Sends the release until the store has answered or the lease has expired by itself.
    async fn release_until_expired(&mut self) -> End {
        let (clean_ups, request_timeout) = (self.engine.clean_ups.clone(), self.engine.options.request_timeout);
        let expiry = self.lease.expiry(&clock::now());
        let mut failed = 0;
        loop {
            // The first attempt needs no permit, and a batch has one of the lanes. The others are
            // bounded in number by permits, and in time by the expiry.
            let needs_permit = failed > 0 && self.together(&self.request()) == Together::No;
            let permit = if needs_permit { timeout_at(expiry, clean_ups.acquire()).await.ok() } else { None };
            let answer = self.attempt(Instant::now() + request_timeout).await;
            drop(permit);
            let error = match answer {
                Ok(outcome) => return outcome.into(),
                Err(error) => error,
            };
            // Local callers do not wait for a store that does not answer.
            self.lease.pass_turn();
            log!(debug, lock.key = %self.lease.key(), %error, "release not confirmed yet");
            if Instant::now() >= expiry {
                return End::Abandoned;
            }
            // If the store does not end its call, the next one has the same id.
            self.request.give_up_sent();
            sleep(backoff::after_error(failed, fastrand::f64())).await;
            failed += 1;
        }
    }

    /// Makes one call, or continues the one under way. What a batch has not released is released at
    /// once, alone.
    async fn attempt(&mut self, until: Instant) -> Result<ReleaseOutcome> {
        loop {
            if !self.request.is_under_way() {
                self.send(until);
            }
            let Some(Answered { sent, answer }) =
                self.request.answer(Some(until), self.engine.options.request_timeout).await
            else {
                let message = "the store did not answer in time: the release is repeated until the lease has expired";
                return Err(LockError::timeout(Phase::Release, message));
            };
            let is_left = |error: &LockError| error.is_retryable() && !error.is_outcome_unknown();
            if !sent.is_batch || !answer.as_ref().is_err_and(is_left) {
                return answer;
            }
            self.alone = true;
        }
    }

    /// Sends the release. It stays in line until the lease expires by itself. A batch whose answer
    /// was lost is repeated as a batch.
    fn send(&mut self, until: Instant) {
        let release = self.request();
        let together = self.together(&release);
        let expiry = self.lease.expiry(&clock::now()).max(until);
        self.request.begin(self.engine.outbox.send(release, CallLimits::until(expiry, together)));
    }

    fn request(&self) -> Release {
        let bound = self.engine.options.store_timeout();
        let mut release = Release::new(self.lease.claim().clone()).with_timeout(bound);
        release.hold_at_least = self.hold;
        release
    }

    fn together(&self, release: &Release) -> Together {
        let batch = self.engine.outbox.batch().filter(|_| !self.alone && self.hold.is_none());
        if !batch.is_some_and(|batch| batch.may_gather_release(release)) {
            return Together::No;
        }
        if self.lease.in_group() { Together::InGroup } else { Together::Perhaps }
    }

    fn end(self, end: End) {
        let Self { engine, lease, request, _open, .. } = self;
        drop(request);
        match end {
            End::Released => {}
            // The guard had not noticed it, and its caller may ignore the answer.
            End::Lost => {
                let loss = Loss::Gone.as_str();
                log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), lock.loss = loss, "lock lost");
            }
            End::Abandoned => {
                log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), "lease left to its ttl");
            }
        }
        lease.end();
        engine.ledger().end(&lease, end);
        // A local caller that got the turn meanwhile may have found the key busy.
        engine.local_queues.nudge(lease.key());
        lease.pass_turn();
    }
}

impl Engine {
    /// Releases a lease in the background that is held now but was not when the provider was
    /// closed.
    pub(crate) fn release_closed(self: &Arc<Self>, lease: &Arc<Lease>) {
        if let Some(job) = ReleaseJob::of_closed(self, lease) {
            job.run_in_background();
        }
    }
}
