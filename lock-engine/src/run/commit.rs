//! Writes under a lease: one that also releases it, and one that does not.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, FencingToken, LockError, Loss, Phase, ReleaseOutcome, Result};
use tokio::time::{Instant, sleep};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::run::call::Call;
use crate::run::core::Engine;
use crate::run::transit::Lease;
use crate::state::backoff;
use crate::state::ledger::End;
use crate::store::{Lane, Write, WriteOp, Written};

/// One write, asked again until it is known what became of it.
struct WriteRequest {
    engine: Arc<Engine>,
    op: Arc<dyn WriteOp>,
    write: Write,
    /// The call in flight. It is finished, not repeated beside itself (R11).
    call: Option<Call<Written>>,
    /// Whether some call may have been carried out without anybody having heard of it.
    unknown: bool,
}

/// A lease whose commit was refused: a guard has it again.
pub(crate) struct PutBack {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) token: FencingToken,
}

/// How a write ended.
enum Answer {
    Written(Written),
    /// Nothing was changed, and nothing will be.
    NotWritten(LockError),
    Unknown(LockError),
}

impl WriteRequest {
    fn new(engine: &Arc<Engine>, lease: &Lease, op: Arc<dyn WriteOp>, hold_at_least: Option<Duration>) -> Self {
        let mut write = Write::new(lease.claim().clone(), engine.config.store_timeout());
        write.hold_at_least = hold_at_least;
        Self { engine: engine.clone(), op, write, call: None, unknown: false }
    }

    /// For one request timeout, errors retried.
    async fn ask(&mut self) -> Answer {
        let until = Instant::now() + self.engine.config.request_timeout;
        let mut failed = 0;
        loop {
            let error = match self.attempt(until).await {
                Ok(written) => return Answer::Written(written),
                Err(error) => error,
            };
            match error.disposition() {
                // The resource has looked whether an earlier call was carried out, and then refused.
                Disposition::Permanent if !self.unknown || error.kind() == ErrorKind::Rejected => {
                    return Answer::NotWritten(error);
                }
                Disposition::Permanent => return Answer::Unknown(error),
                Disposition::Retryable => {}
                // A disposition that this version does not know says as little.
                _ => self.unknown = true,
            }
            let pause = backoff::after_error(failed, fastrand::f64());
            if self.call.is_some() || Instant::now() + pause >= until {
                return if self.unknown { Answer::Unknown(error) } else { Answer::NotWritten(error) };
            }
            sleep(pause).await;
            failed += 1;
        }
    }

    /// One call, or what is left of the one under way.
    async fn attempt(&mut self, until: Instant) -> Result<Written> {
        let unanswered = || LockError::timeout(Phase::Request, "the store has not answered").outcome_unknown();
        if self.call.is_none() {
            let (op, write) = (self.op.clone(), self.write.clone());
            let request = async move { op.write(&write).await };
            self.call = Some(Call::new(self.engine.store.lanes(), Lane::Release, Some(until), false, request)?);
        }
        let Some(call) = &mut self.call else { return Err(unanswered()) };
        match call.answer(Some(until), self.engine.config.request_timeout).await {
            Some(answer) => {
                self.call = None;
                answer
            }
            None => match call.leave() {
                Some(not_sent) => {
                    self.call = None;
                    Err(not_sent)
                }
                None => Err(unanswered()),
            },
        }
    }

    fn error(&self, error: LockError) -> LockError {
        error.with_key(self.write.claim.key().clone())
    }
}

/// A commit that has begun and must come to an end: dropped in the foreground, or left without an answer, its call is finished in the background of the runtime
/// that acquired the lease, and then nothing is left of the lease either way (C11).
pub(crate) struct CommitJob(Option<Job>);

struct Job {
    lease: Arc<Lease>,
    token: FencingToken,
    request: WriteRequest,
    in_background: bool,
    /// Keeps `close` waiting.
    _open: TaskTrackerToken,
}

impl CommitJob {
    /// The commit of a lease that has been told to [`begin_commit`](Lease::begin_commit).
    pub(crate) fn new(engine: Arc<Engine>, lease: Arc<Lease>, token: FencingToken, op: Arc<dyn WriteOp>) -> Self {
        let _open = engine.tasks.token();
        let request = WriteRequest::new(&engine, &lease, op, lease.terms().hold_at_least);
        Self(Some(Job { lease, token, request, in_background: false, _open }))
    }

    /// In the foreground: for one request timeout, errors retried. Refused, the lease comes back as it was.
    pub(crate) async fn run(mut self) -> std::result::Result<ReleaseOutcome, (LockError, Option<PutBack>)> {
        let answer = self.job().request.ask().await;
        match answer {
            Answer::Written(written) => {
                let Some(job) = self.0.take() else { unreachable!("taken only at the end") };
                Ok(job.settle(written))
            }
            Answer::NotWritten(error) => {
                let Some(job) = self.0.take() else { unreachable!("taken only at the end") };
                let error = job.request.error(error);
                Err((error, Some(job.put_back())))
            }
            // The drop sees to the rest.
            Answer::Unknown(error) => Err((self.job().request.error(error).outcome_unknown(), None)),
        }
    }

    fn job(&mut self) -> &mut Job {
        self.0.as_mut().expect("taken only at the end")
    }

    async fn background(mut self) {
        let job = self.job();
        let engine = job.request.engine.clone();
        let bound = 2 * engine.config.request_timeout;
        if let Some(call) = &mut job.request.call
            // Stores end their calls by themselves; one that does not is given up here, or by `close`.
            && let Some(Some(answer)) = engine.gone.run_until_cancelled(call.ended_within(bound)).await
        {
            job.request.call = None;
            // Without an answer the drop sees to the rest.
            if let Ok(written) = answer
                && let Some(job) = self.0.take()
            {
                let _ = job.settle(written);
            }
        }
    }
}

impl Drop for CommitJob {
    fn drop(&mut self) {
        let Some(mut job) = self.0.take() else { return };
        if !std::mem::replace(&mut job.in_background, true) && job.request.call.is_some() {
            let home = job.lease.home().clone();
            // A runtime that has ended drops the work at once: then it goes on from there.
            drop(home.spawn(Self(Some(job)).background()));
            return;
        }
        let Job { lease, request, .. } = job;
        let hold = lease.terms().hold_at_least;
        drop(request.call);
        if let Some(release) = request.engine.begin_release(&lease, hold) {
            release.run_in_background();
        }
    }
}

impl Job {
    fn settle(self, written: Written) -> ReleaseOutcome {
        let Self { lease, request: WriteRequest { engine, .. }, .. } = self;
        match written {
            Written::Applied => {
                lease.end();
                engine.ledger().end(&lease, End::Released);
                engine.turns.nudge(lease.key());
                lease.pass_turn();
                ReleaseOutcome::Released
            }
            Written::AlreadyLost => {
                if let Some(loss) = lease.end_commit(Some(Loss::Gone)) {
                    engine.record_loss(&lease, loss);
                }
                ReleaseOutcome::AlreadyLost
            }
        }
    }

    fn put_back(self) -> PutBack {
        let Self { lease, token, request: WriteRequest { engine, .. }, .. } = self;
        if let Some(loss) = lease.end_commit(None) {
            engine.record_loss(&lease, loss);
        }
        // Those that were held when the provider was closed have been released by that; this one was not.
        if engine.closed.is_cancelled() {
            engine.release_closed(&lease);
        }
        PutBack { engine, lease, token }
    }
}

/// A write that keeps the lease. It is a task of its own, so that its call is finished also if nobody waits for it any more.
pub(crate) async fn write(engine: Arc<Engine>, lease: Arc<Lease>, op: Arc<dyn WriteOp>) -> Result<Written> {
    let mut request = WriteRequest::new(&engine, &lease, op, None);
    let open = engine.tasks.token();
    let task = lease.home().spawn(async move {
        let answer = request.ask().await;
        drop(open);
        match answer {
            Answer::Written(written) => Ok(written),
            Answer::NotWritten(error) => Err(request.error(error)),
            Answer::Unknown(error) => Err(request.error(error).outcome_unknown()),
        }
    });
    let written = match task.await {
        Ok(written) => written?,
        Err(ended) => {
            let error = LockError::new(ErrorKind::Other, "a write ended with its runtime").with_source(ended);
            return Err(error.outcome_unknown().with_key(lease.key().clone()));
        }
    };
    if written == Written::AlreadyLost && lease.lose(Loss::Gone) {
        engine.record_loss(&lease, Loss::Gone);
    }
    Ok(written)
}
