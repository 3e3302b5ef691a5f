//! Waiting for a bounded time, so that each check ends and says what it waited for.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use tokio::time::Instant;

use crate::failure::{Failure, FailureKind, Verdict, said_by_caller};

/// How long anything that must happen may take before the check gives up on it.
pub(crate) const LIVENESS: Duration = Duration::from_secs(30);
/// How long anything may take that must happen soon: far below the ttl of the leases in such checks, far above what a busy machine needs.
pub(crate) const SOON: Duration = Duration::from_secs(8);
/// The resolution that lower bounds allow for: stores and options count whole milliseconds, on another clock than ours.
pub(crate) const GRAIN: Duration = Duration::from_millis(2);

/// Awaits something that must happen, for a bounded time.
#[track_caller]
pub(crate) fn within<F: IntoFuture>(
    bound: Duration,
    what: &str,
    future: F,
) -> impl Future<Output = Result<F::Output, Failure>> {
    let failure = Failure::of(FailureKind::Overdue, format!("waited {bound:?} in vain for {what}"));
    let future = future.into_future();
    async move { tokio::time::timeout(bound, future).await.map_err(|_| failure) }
}

/// Polls a state that must come, for a bounded time.
#[track_caller]
pub(crate) fn eventually<'a>(
    bound: Duration,
    what: &'a str,
    mut state: impl AsyncFnMut() -> Result<bool, Failure> + 'a,
) -> impl Future<Output = Verdict> + 'a {
    let failure = Failure::of(FailureKind::Overdue, format!("waited {bound:?} in vain for {what}"));
    async move {
        let deadline = Instant::now() + bound;
        while !state().await? {
            if Instant::now() >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// Watches a state that must last, until a moment.
#[track_caller]
pub(crate) fn throughout(until: Instant, mut state: impl AsyncFnMut() -> Verdict) -> impl Future<Output = Verdict> {
    said_by_caller(async move {
        while Instant::now() < until {
            state().await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
}
