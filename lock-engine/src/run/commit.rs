//! Writes under a lease: a commit, which also releases it, and a write that keeps it.
//!
//! A commit that has begun must come to an end (C11):
//!
//! | the caller's future ends with | the lease |
//! |---|---|
//! | an answer: applied, or already lost | has left the ledger |
//! | an error, and surely nothing was written | is returned to a guard |
//! | an error of unknown outcome | the write is repeated in the background until the lease expires |
//! | nothing: the caller leaves | a call under way is finished in the background |
//!
//! In the background an answer settles the commit. Without one the lease is released, which ends it
//! whether or not the write was applied. The job is always in a [`ScopeGuard`], so that this
//! happens wherever it is dropped.
//!
//! A caller that is told of an unknown outcome asks what has become of it. So a request that was
//! lost costs it no outcome while its lease lasts. A caller that leaves has changed its mind.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::style::ReportedHold;
use distlock_api::{Disposition, ErrorKind, FencingToken, LockError, Loss, ReleaseOutcome, Result};
use scopeguard::{ScopeGuard, guard};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::Instrument;

use crate::run::call::InFlight;
use crate::run::clock;
use crate::run::core::Engine;
use crate::run::outbox::{CallLimits, Together, WriteUnder};
use crate::run::transit::Lease;
use crate::simulation::defect;
use crate::state::backoff;
use crate::state::ledger::End;
use crate::store::{Write, WriteOp, Written};

/// One write, sent until its outcome is known.
struct WriteRequest {
    engine: Arc<Engine>,
    op: Arc<dyn WriteOp>,
    write: Write,
    call: InFlight<Written>,
    /// Whether an earlier call may have been applied without an answer.
    unknown: bool,
}

/// A lease whose commit was refused, for its guard.
pub(crate) struct RefusedCommit {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) token: FencingToken,
    pub(crate) hold: Option<Box<ReportedHold>>,
}

/// How a write ended.
enum WriteOutcome {
    Written(Written),
    /// Nothing was changed, and nothing will be.
    NotWritten(LockError),
    Unknown(LockError),
}

impl WriteRequest {
    fn new(engine: &Arc<Engine>, lease: &Lease, op: Arc<dyn WriteOp>, hold_at_least: Option<Duration>) -> Self {
        let mut write = Write::new(lease.claim().clone(), engine.options.store_timeout());
        write.hold_at_least = hold_at_least;
        Self { engine: engine.clone(), op, write, call: InFlight::none(), unknown: false }
    }

    /// Sends the write for one request timeout, and retries errors.
    async fn run(&mut self) -> WriteOutcome {
        let until = Instant::now() + self.engine.options.request_timeout;
        let mut failed = 0;
        loop {
            let error = match self.attempt(until).await {
                Ok(written) => return WriteOutcome::Written(written),
                Err(error) => error,
            };
            match error.disposition() {
                // The resource refuses only after checking that no earlier call was carried out.
                Disposition::Permanent if !self.unknown || error.kind() == ErrorKind::Rejected => {
                    return WriteOutcome::NotWritten(error);
                }
                Disposition::Permanent => return WriteOutcome::Unknown(error),
                Disposition::Retryable => {}
                // A disposition that this version does not know is treated as an unknown outcome.
                _ => self.unknown = !defect!(UnknownCommitNotMade),
            }
            let pause = backoff::after_error(failed, fastrand::f64());
            if self.call.is_under_way() || Instant::now() + pause >= until {
                return if self.unknown { WriteOutcome::Unknown(error) } else { WriteOutcome::NotWritten(error) };
            }
            sleep(pause).await;
            failed += 1;
        }
    }

    /// Waits for the call under way, and sends the write until it is answered, it is refused, or
    /// `until` has passed. `None` without an answer.
    async fn repeat(&mut self, until: Instant) -> Option<Written> {
        let (clean_ups, request_timeout) = (self.engine.clean_ups.clone(), self.engine.options.request_timeout);
        let (mut failed, mut permit) = (0, None);
        loop {
            if !self.call.is_under_way() {
                // Bounded in number by permits, and in time by the expiry.
                permit = Some(timeout_at(until, clean_ups.acquire()).await.ok()?);
                self.send(until);
            }
            // Stores end their calls themselves. A call that does not end is given up here, or by
            // `close`.
            let bound = 2 * request_timeout;
            let answered = self.call.answer(Some(Instant::now() + bound), bound).await;
            drop(permit.take());
            self.call = InFlight::none();
            match answered.map(|answered| answered.answer) {
                Some(Ok(written)) => return Some(written),
                Some(Err(error)) if error.disposition() == Disposition::Permanent => return None,
                _ if Instant::now() >= until => return None,
                _ => sleep(backoff::after_error(failed, fastrand::f64())).await,
            }
            failed += 1;
        }
    }

    /// Makes one call, or continues the one under way. A call that has not been sent by `until` is
    /// not sent.
    async fn attempt(&mut self, until: Instant) -> Result<Written> {
        if !self.call.is_under_way() {
            self.send(until);
        }
        match self.call.answer(Some(until), self.engine.options.request_timeout).await {
            Some(answered) => answered.answer,
            None => Err(self.call.leave_unanswered(&*self.engine.outbox.store)),
        }
    }

    fn send(&mut self, until: Instant) {
        let request = WriteUnder { op: self.op.clone(), write: self.write.clone() };
        self.call.begin(self.engine.outbox.send(request, CallLimits::until(until, Together::No)));
    }

    fn error(&self, error: LockError) -> LockError {
        error.with_key(self.write.claim.key().clone())
    }
}

/// A commit that has begun. If it is dropped, it is finished in the background.
pub(crate) struct CommitJob(ScopeGuard<CommitState, fn(CommitState)>);

struct CommitState {
    lease: Arc<Lease>,
    token: FencingToken,
    request: WriteRequest,
    /// What reports the hold, until the outcome is known or the caller gets an error.
    hold: Option<Box<ReportedHold>>,
    /// Keeps `close` waiting.
    _open: TaskTrackerToken,
}

impl CommitJob {
    /// Creates the commit of a lease whose [`begin_commit`](Lease::begin_commit) was successful.
    pub(crate) fn new(
        engine: Arc<Engine>,
        lease: Arc<Lease>,
        token: FencingToken,
        op: Arc<dyn WriteOp>,
        hold_at_least: Option<Duration>,
        hold: Option<Box<ReportedHold>>,
    ) -> Self {
        let _open = engine.tasks.token();
        let request = WriteRequest::new(&engine, &lease, op, hold_at_least);
        Self(guard(CommitState { lease, token, request, hold, _open }, CommitState::finish_in_background))
    }

    /// Runs in the caller's future for one request timeout, and retries errors. If the write is
    /// refused, the lease is returned as it was.
    pub(crate) async fn run(mut self) -> std::result::Result<ReleaseOutcome, (LockError, Option<RefusedCommit>)> {
        let answer = self.0.request.run().await;
        let mut job = ScopeGuard::into_inner(self.0);
        match answer {
            WriteOutcome::Written(written) => Ok(job.settle(written)),
            WriteOutcome::NotWritten(error) => Err((job.request.error(error), Some(job.return_lease()))),
            WriteOutcome::Unknown(error) => {
                let error = job.request.error(error).outcome_unknown();
                if let Some(mut hold) = job.hold.take() {
                    hold.set_outcome(error.kind().as_str());
                }
                let expiry = job.lease.expiry(&clock::now());
                job.go_on_in_background(expiry);
                Err((error, None))
            }
        }
    }
}

impl CommitState {
    /// Finishes the call under way. Without one, releases the lease.
    fn finish_in_background(self) {
        match self.request.call.is_under_way() {
            true => self.go_on_in_background(Instant::now()),
            false => self.release(),
        }
    }

    /// Waits, on the runtime that acquired the lease, for the answer to the call under way, and
    /// repeats it until then. Without an answer, releases the lease.
    fn go_on_in_background(self, until: Instant) {
        let home = self.lease.home().clone();
        let job = guard(self, Self::release as fn(Self));
        // A runtime that has ended drops the task at once, and so releases the lease.
        drop(home.spawn(Self::background(job, until)));
    }

    async fn background(mut job: ScopeGuard<Self, fn(Self)>, until: Instant) {
        let gone = job.request.engine.gone.clone();
        let written = gone.run_until_cancelled(job.request.repeat(until)).await;
        let job = ScopeGuard::into_inner(job);
        match written.flatten() {
            // The caller has left, or has got an error of unknown outcome.
            Some(written) => drop(job.settle(written)),
            None => job.release(),
        }
    }

    /// Gives the commit up, and releases the lease in the background.
    fn release(self) {
        let Self { lease, request, _open, .. } = self;
        let hold = request.write.hold_at_least;
        drop(request.call);
        if let Some(release) = request.engine.begin_release(&lease, hold, &clock::now()) {
            release.run_in_background();
        }
    }

    fn settle(self, written: Written) -> ReleaseOutcome {
        let Self { lease, request: WriteRequest { engine, .. }, hold, .. } = self;
        let outcome = match written {
            Written::Applied => {
                lease.end();
                engine.ledger().end(&lease, End::Released);
                engine.local_queues.nudge(lease.key());
                lease.pass_turn();
                ReleaseOutcome::Released
            }
            Written::AlreadyLost => {
                if let Some(loss) = lease.end_commit(Some(Loss::Gone)) {
                    engine.record_loss(&lease, loss);
                }
                ReleaseOutcome::AlreadyLost
            }
        };
        if let Some(mut hold) = hold {
            hold.set_released(&Ok(outcome));
        }
        outcome
    }

    fn return_lease(self) -> RefusedCommit {
        let Self { lease, token, request: WriteRequest { engine, .. }, hold, .. } = self;
        if let Some(loss) = lease.end_commit(None) {
            engine.record_loss(&lease, loss);
        } else {
            // The keeper does not look at a lease that ended during its commit.
            engine.check_loss(&lease, &clock::now());
        }
        // When the provider was closed, the leases held then were released; this one was not held.
        if engine.closed.is_cancelled() {
            engine.release_closed(&lease);
        }
        RefusedCommit { engine, lease, token, hold }
    }
}

/// Makes a write that keeps the lease. It is a task of its own, so that its call is finished even
/// if the caller leaves.
pub(crate) async fn write(engine: Arc<Engine>, lease: Arc<Lease>, op: Arc<dyn WriteOp>) -> Result<Written> {
    let mut request = WriteRequest::new(&engine, &lease, op, None);
    let open = engine.tasks.token();
    let work = async move {
        let answer = request.run().await;
        drop(open);
        match answer {
            WriteOutcome::Written(written) => Ok(written),
            WriteOutcome::NotWritten(error) => Err(request.error(error)),
            WriteOutcome::Unknown(error) => Err(request.error(error).outcome_unknown()),
        }
    };
    let task = lease.home().spawn(work.in_current_span());
    let written = match task.await {
        Ok(written) => written?,
        Err(ended) => {
            let message = "a write ended with its runtime: close the provider before the runtime ends";
            let error = LockError::new(ErrorKind::Other, message).with_source(ended);
            return Err(error.outcome_unknown().with_key(lease.key().clone()));
        }
    };
    if written == Written::AlreadyLost && lease.lose(Loss::Gone) {
        engine.record_loss(&lease, Loss::Gone);
    }
    Ok(written)
}
