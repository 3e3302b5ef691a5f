//! Waits with a time limit, so that each check ends and reports what it waited for.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::failure::{Failure, FailureKind, Verdict, located_at_caller};

/// How long a required event may take before the check gives up.
pub(crate) const LIVENESS: Duration = Duration::from_secs(30);
/// How long an event may take that must happen soon: far below the ttl of the leases in such
/// checks, far above what a busy machine needs.
pub(crate) const SOON: Duration = Duration::from_secs(8);
/// How long a waiter may take that is not told and looks for itself, every five seconds. Below the
/// time in which tickets expire.
pub(crate) const POLLED: Duration = Duration::from_secs(12);
/// How many calls are paused at once, each at another time.
const PAUSED: u32 = 32;
/// The tolerance of lower bounds: stores and options count whole milliseconds, by another clock.
pub(crate) const GRAIN: Duration = Duration::from_millis(2);

/// Awaits an event that must happen within the bound.
#[track_caller]
pub(crate) fn within<F: IntoFuture>(
    bound: Duration,
    what: &str,
    future: F,
) -> impl Future<Output = Result<F::Output, Failure>> {
    let failure = Failure::of(FailureKind::Overdue, format!("timed out after {bound:?} waiting for {what}"));
    let future = future.into_future();
    async move { tokio::time::timeout(bound, future).await.map_err(|_| failure) }
}

/// Whether the time of a bounded call ended before the store was connected, or had answered, or
/// would have. A client connects with its first call, which may take longer than a short wait.
pub(crate) fn is_too_late(error: &LockError) -> bool {
    let is_connecting = error.kind() == ErrorKind::Unavailable && error.phase() == Some(Phase::Connect);
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Overloaded) || is_connecting
}

/// Maps the error of a call that [was too late](is_too_late) to `None`.
pub(crate) fn late_as_none<T>(answer: distlock_api::Result<T>) -> distlock_api::Result<Option<T>> {
    match answer {
        Err(error) if is_too_late(&error) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whether the store was too slow for a call that is long enough for most: it can be repeated, or
/// was not answered in time.
pub(crate) fn is_too_slow(error: &LockError) -> bool {
    error.is_retryable() || (error.kind() == ErrorKind::Timeout && error.is_outcome_unknown())
}

/// Runs each of these calls for another part of the time that they take, then pauses it, and then
/// awaits it. Returns the answers.
///
/// `call` makes a call. Three rounds go before: one connects, and the shorter of the others is how
/// long they take. On a busy machine one round may take so long that all pauses came afterwards.
pub(crate) async fn each_paused<T>(pause: Duration, call: impl AsyncFn() -> T) -> Vec<T> {
    let round = async || {
        let begun = Instant::now();
        join_all((0..PAUSED).map(|_| call())).await;
        begun.elapsed()
    };
    round().await;
    let usual = round().await.min(round().await);
    let paused = (0..PAUSED).map(async |turn| {
        let mut call = pin!(call());
        match tokio::time::timeout(usual * turn / PAUSED, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                tokio::time::sleep(pause).await;
                call.await
            }
        }
    });
    join_all(paused).await
}

/// Polls until a state is reached, which must happen within the bound.
#[track_caller]
pub(crate) fn eventually<'a>(
    bound: Duration,
    what: &'a str,
    mut state: impl AsyncFnMut() -> Result<bool, Failure> + 'a,
) -> impl Future<Output = Verdict> + 'a {
    let failure = Failure::of(FailureKind::Overdue, format!("timed out after {bound:?} waiting for {what}"));
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

/// Polls a state that must last until a moment.
#[track_caller]
pub(crate) fn throughout(until: Instant, mut state: impl AsyncFnMut() -> Verdict) -> impl Future<Output = Verdict> {
    located_at_caller(async move {
        while Instant::now() < until {
            state().await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
}
