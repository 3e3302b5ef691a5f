//! The reports of acquisitions and of holds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::{contained, record_error, record_failure, record_key};
use crate::error::Result;
use crate::guard::{ReleaseFuture, ReleaseOutcome};
use crate::key::LockKey;
use crate::token::FencingToken;

/// Makes an acquisition, and reports it under a name as [`Instrumented`](crate::Instrumented) does.
/// Returns the hold with the answer if that has a `token`.
///
/// # Errors
/// Those of `acquire`.
///
/// # Cancel safety
/// As cancel safe as `acquire`. One that is dropped is not reported.
pub async fn report_acquisition<T>(
    name: &Arc<str>,
    key: &LockKey,
    acquire: impl Future<Output = Result<T>>,
    token: impl FnOnce(&T) -> Option<FencingToken>,
) -> Result<(T, Option<ReportedHold>)> {
    let span = tracing::info_span!(
        "distlock.acquire",
        lock.provider = %name,
        lock.key = Empty,
        lock.outcome = Empty,
        lock.wait_ms = Empty,
        lock.token = Empty,
        otel.status_code = Empty,
        error = Empty,
    );
    record_key(&span, key);
    let started = Instant::now();
    let result = acquire.instrument(span.clone()).await;
    let wait = started.elapsed();
    let token = result.as_ref().ok().and_then(token);
    let outcome = match (&result, token) {
        (Ok(_), Some(token)) => {
            span.record("lock.token", token.get());
            "held"
        }
        (Ok(_), None) => "busy",
        (Err(error), _) => {
            record_error(&span, error);
            error.kind().as_str()
        }
    };
    span.record("lock.outcome", outcome);
    span.record("lock.wait_ms", millis(wait));
    {
        let _entered = span.enter();
        tracing::debug!(lock.key = %key, lock.outcome = outcome, lock.wait_ms = millis(wait), "lock acquisition ended");
    }
    contained(|| record::acquisition(name, outcome, wait));
    result.map(|answer| (answer, token.map(|token| ReportedHold::start(name.clone(), key.clone(), token))))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A hold that is reported once, when this is dropped. Its outcome is `dropped` unless another one
/// is set. Returned by [`report_acquisition`].
pub struct ReportedHold {
    provider: Arc<str>,
    key: LockKey,
    token: FencingToken,
    since: Instant,
    outcome: &'static str,
    /// A child of the span in which the lock was acquired.
    span: Span,
}

impl ReportedHold {
    fn start(provider: Arc<str>, key: LockKey, token: FencingToken) -> Self {
        contained(|| record::held(&provider, 1.0));
        let span = tracing::info_span!(
            "distlock.hold",
            lock.provider = %provider,
            lock.key = Empty,
            lock.token = token.get(),
            lock.outcome = Empty,
            lock.hold_ms = Empty,
            otel.status_code = Empty,
            error = Empty,
        );
        record_key(&span, &key);
        Self { provider, key, token, since: Instant::now(), outcome: "dropped", span }
    }

    /// Sets the outcome: a short lower-case word.
    pub fn set_outcome(&mut self, outcome: &'static str) {
        self.outcome = outcome;
    }

    /// Sets the outcome of a release that has an answer.
    pub fn set_released(&mut self, answer: &Result<ReleaseOutcome>) {
        self.outcome = match answer {
            Ok(ReleaseOutcome::Released) => "released",
            Ok(ReleaseOutcome::AlreadyLost) => "already_lost",
            Err(error) => {
                record_error(&self.span, error);
                error.kind().as_str()
            }
        };
    }

    /// Returns the release of the hold, whose answer is its outcome. If the returned future is
    /// dropped before, the outcome is the one that was set.
    pub fn until(self, release: ReleaseFuture) -> ReleaseFuture {
        ReleaseFuture::running(ReportedRelease { release, hold: self })
    }
}

impl Drop for ReportedHold {
    fn drop(&mut self) {
        let hold = self.since.elapsed();
        // The guard may be dropped by a panic, and a second panic would end the process.
        contained(|| {
            // It ends in here, too.
            let span = std::mem::replace(&mut self.span, Span::none());
            span.record("lock.outcome", self.outcome);
            span.record("lock.hold_ms", millis(hold));
            if ["lost", "already_lost"].contains(&self.outcome) {
                record_failure(&span, &"the lock was lost before its release");
            }
            let _entered = span.enter();
            tracing::debug!(
                lock.provider = %self.provider,
                lock.key = %self.key,
                lock.token = self.token.get(),
                lock.outcome = self.outcome,
                lock.hold_ms = millis(hold),
                "lock hold ended"
            );
        });
        contained(|| record::held(&self.provider, -1.0));
        contained(|| record::hold(&self.provider, self.outcome, hold));
    }
}

impl fmt::Debug for ReportedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportedHold")
            .field("provider", &self.provider)
            .field("key", &self.key)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

struct ReportedRelease {
    release: ReleaseFuture,
    hold: ReportedHold,
}

impl Future for ReportedRelease {
    type Output = Result<ReleaseOutcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.release).poll(cx));
        self.hold.set_released(&answer);
        Poll::Ready(answer)
    }
}

#[cfg(feature = "metrics")]
mod record {
    use std::sync::Arc;
    use std::time::Duration;

    pub(super) fn acquisition(provider: &Arc<str>, outcome: &'static str, wait: Duration) {
        metrics::counter!("distlock_acquisitions_total", "provider" => provider.clone(), "outcome" => outcome)
            .increment(1);
        metrics::histogram!("distlock_wait_seconds", "provider" => provider.clone(), "outcome" => outcome).record(wait);
    }

    pub(super) fn held(provider: &Arc<str>, change: f64) {
        metrics::gauge!("distlock_held", "provider" => provider.clone()).increment(change);
    }

    pub(super) fn hold(provider: &Arc<str>, outcome: &'static str, hold: Duration) {
        metrics::counter!("distlock_holds_total", "provider" => provider.clone(), "outcome" => outcome).increment(1);
        metrics::histogram!("distlock_hold_seconds", "provider" => provider.clone(), "outcome" => outcome).record(hold);
    }
}

#[cfg(not(feature = "metrics"))]
mod record {
    use std::sync::Arc;
    use std::time::Duration;

    pub(super) fn acquisition(_: &Arc<str>, _: &'static str, _: Duration) {}
    pub(super) fn held(_: &Arc<str>, _: f64) {}
    pub(super) fn hold(_: &Arc<str>, _: &'static str, _: Duration) {}
}
