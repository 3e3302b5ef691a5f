//! What happens to one request.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use tokio::sync::watch;
use tokio::task::coop;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// What happens to one request: of a store, or of a write that is sent beside it.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// Applied and answered at once.
    Serve,
    /// Applied and answered at once, with a yield to the scheduler before and after it is applied.
    Yield,
    /// Not applied; the error is the answer.
    Fail(LockError),
    /// Not applied; a retryable error after a while.
    FailAfter(Duration),
    /// Not applied; once the gate is open, the error is the answer.
    HoldThenFail(Gate, LockError),
    /// Not applied, and never answered.
    Never,
    /// Applied and answered after a while.
    After(Duration),
    /// Applied and answered once the gate is open.
    Hold(Gate),
    /// Applied and answered after this duration, which may change meanwhile. If that exceeds the
    /// request's timeout, not applied: the server gives up, and its answer is an error.
    Paced(watch::Receiver<Duration>),
    /// Applied at once, answered after a while.
    Late(Duration),
    /// Applied at once, answered once the gate is open.
    HoldReply(Gate),
    /// Applied; the answer is lost, an error of unknown outcome.
    LoseReply,
    /// Applied at once; after a while the answer is lost, an error of unknown outcome.
    LoseReplyAfter(Duration),
    /// A renewal that is applied, but its answer and those after it are missing from the batch's.
    Forget,
    /// Applied after it has used up its task's budget, like a store that does real work.
    DrainBudget,
    Panic,
}

impl Fate {
    /// Not applied; a retryable error.
    pub(crate) fn fail() -> Self {
        Self::Fail(not_applied())
    }

    /// Carries out a request with this fate; `step` applies it.
    pub(crate) async fn carry_out<T>(&self, limit: Duration, step: impl Future<Output = Result<T>>) -> Result<T> {
        self.before(limit).await?;
        self.after(step.await?).await
    }

    /// Applies the faults on the way to the store.
    pub(super) async fn before(&self, limit: Duration) -> Result<()> {
        match self {
            Self::Serve
            | Self::Late(_)
            | Self::HoldReply(_)
            | Self::LoseReply
            | Self::LoseReplyAfter(_)
            | Self::Forget => {}
            Self::Yield => tokio::task::yield_now().await,
            Self::Fail(error) => return Err(error.clone()),
            Self::FailAfter(pause) => {
                sleep(*pause).await;
                return Err(not_applied());
            }
            Self::HoldThenFail(gate, error) => {
                gate.opened().await;
                return Err(error.clone());
            }
            Self::Never => std::future::pending().await,
            Self::After(pause) => sleep(*pause).await,
            Self::Hold(gate) => gate.opened().await,
            Self::Paced(pace) => {
                let gives_up = |_| LockError::timeout(Phase::Request, "the server gave up").outcome_unknown();
                timeout(limit, paced(pace.clone())).await.map_err(gives_up)?;
            }
            Self::DrainBudget => {
                while coop::has_budget_remaining() {
                    coop::consume_budget().await;
                }
            }
            Self::Panic => panic!("the store panics"),
        }
        Ok(())
    }

    /// Applies the faults on the way back.
    pub(super) async fn after<T>(&self, answer: T) -> Result<T> {
        match self {
            Self::Yield => tokio::task::yield_now().await,
            Self::Late(pause) => sleep(*pause).await,
            Self::HoldReply(gate) => gate.opened().await,
            Self::LoseReply => return Err(lost()),
            Self::LoseReplyAfter(pause) => {
                sleep(*pause).await;
                return Err(lost());
            }
            _ => {}
        }
        Ok(answer)
    }
}

fn lost() -> LockError {
    LockError::new(ErrorKind::Unavailable, "reply lost").outcome_unknown()
}

fn not_applied() -> LockError {
    LockError::new(ErrorKind::Unavailable, "not applied")
}

/// Waits for the pace of the server. When it becomes quick again, it answers the requests under
/// way.
async fn paced(mut pace: watch::Receiver<Duration>) {
    let begun = Instant::now();
    loop {
        let left = pace.borrow_and_update().saturating_sub(begun.elapsed());
        if left.is_zero() || timeout(left, pace.changed()).await.is_err() {
            return;
        }
    }
}

/// Holds requests until it is opened; it stays open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(CancellationToken);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.cancel();
    }

    async fn opened(&self) {
        self.0.cancelled().await;
    }
}
