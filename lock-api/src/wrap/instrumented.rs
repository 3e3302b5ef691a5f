//! Tracing and metrics around a provider.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tracing::Instrument;

use crate::delegate_provider;
use crate::error::Result;
use crate::guard::{LeaseHandle, ReleaseFuture, ReleaseOutcome};
use crate::key::LockKey;
use crate::loss::{Loss, LostSignal};
use crate::options::AcquireOptions;
use crate::provider::{Acquired, LockProvider};
use crate::style::contained;
use crate::token::FencingToken;

/// A provider that reports the acquisitions and holds of the provider inside.
///
/// # Tracing
/// Each acquisition is a span `distlock.acquire` at level `INFO`; its end and the end of each hold
/// are events at level `DEBUG`.
///
/// | field | where | meaning |
/// |---|---|---|
/// | `lock.provider` | all | the inner provider's `Display` |
/// | `lock.key` | all | the key |
/// | `lock.outcome` | all | acquisition: `held`, `busy`, or an error kind; hold: `released`, `already_lost`, `dropped`, `lost`, `abandoned` or an error kind |
/// | `lock.wait_ms` | acquisition | milliseconds from the call to the answer |
/// | `lock.token` | held | the fencing token |
/// | `lock.hold_ms` | hold | milliseconds from the grant to the end |
///
/// # Metrics
/// With the feature `metrics`, through the `metrics` facade. `outcome` has the values above. Keys
/// are never labels.
///
/// | metric | type | labels |
/// |---|---|---|
/// | `distlock_acquisitions_total` | counter | `provider`, `outcome` |
/// | `distlock_wait_seconds` | histogram | `provider`, `outcome` |
/// | `distlock_holds_total` | counter | `provider`, `outcome` |
/// | `distlock_hold_seconds` | histogram | `provider` |
/// | `distlock_held` | gauge | `provider` |
///
/// A recorder that panics costs the sample, never the lock.
///
/// # Order of wrappers
/// Put it outside of [`Namespaced`](crate::Namespaced) to report the keys as the application names
/// them, inside to report those of the store.
///
/// ```
/// use distlock_api::{Instrumented, LockError, LockProvider, Namespaced};
///
/// fn of_tenant<P: LockProvider>(locks: P) -> Result<impl LockProvider, LockError> {
///     Ok(Instrumented::new(Namespaced::new(locks, "tenant-1")?).named("tenant-1"))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Instrumented<P> {
    inner: P,
    name: Arc<str>,
}

impl<P: LockProvider> Instrumented<P> {
    /// Wraps a provider. Its name in reports is its `Display`.
    pub fn new(inner: P) -> Self {
        let name = inner.to_string().into();
        Self { inner, name }
    }

    /// Sets the name in reports.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns the provider inside.
    pub fn get_ref(&self) -> &P {
        &self.inner
    }

    /// Returns the provider inside.
    pub fn into_inner(self) -> P {
        self.inner
    }
}

impl<P: fmt::Display> fmt::Display for Instrumented<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instrumented({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<P: LockProvider> LockProvider for Instrumented<P> {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let span = tracing::info_span!(
            "distlock.acquire",
            lock.provider = %self.name,
            lock.key = %key,
            lock.outcome = tracing::field::Empty,
            lock.wait_ms = tracing::field::Empty,
            lock.token = tracing::field::Empty,
        );
        let started = Instant::now();
        let mut result = self.inner.acquire_with(key.clone(), options).instrument(span.clone()).await;
        let wait = started.elapsed();
        let outcome = match &result {
            Ok(Acquired::Held(guard)) => {
                span.record("lock.token", guard.fencing_token().get());
                "held"
            }
            Ok(Acquired::Busy(_)) => "busy",
            Err(error) => error.kind().as_str(),
        };
        span.record("lock.outcome", outcome);
        span.record("lock.wait_ms", millis(wait));
        {
            let _entered = span.enter();
            tracing::debug!(lock.outcome = outcome, lock.wait_ms = millis(wait), "lock acquisition ended");
        }
        contained(|| record::acquisition(&self.name, outcome, wait));
        if let Ok(Acquired::Held(guard)) = result {
            let hold = Hold::start(self.name.clone(), key, guard.fencing_token());
            result = Ok(Acquired::Held(
                guard.map_handle(|handle| Box::new(Observed { handle: Some(handle), hold: Some(hold) })),
            ));
        }
        result
    }

    /// Always `None`, so that every acquisition goes through `acquire_with` and is reported.
    fn acquire_now(&self, _: &LockKey, _: &AcquireOptions) -> Option<Result<Acquired>> {
        None
    }

    delegate_provider!(this => this.inner; capabilities, accounting, admin, close);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A hold, reported once when it ends: as `dropped` unless another outcome was set.
struct Hold {
    provider: Arc<str>,
    key: LockKey,
    token: FencingToken,
    since: Instant,
    outcome: &'static str,
}

impl Hold {
    fn start(provider: Arc<str>, key: LockKey, token: FencingToken) -> Self {
        contained(|| record::held(&provider, 1.0));
        Self { provider, key, token, since: Instant::now(), outcome: "dropped" }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let hold = self.since.elapsed();
        // The guard may be dropped by a panic, and a second panic would end the process.
        contained(|| {
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

struct Observed {
    handle: Option<Box<dyn LeaseHandle>>,
    hold: Option<Hold>,
}

impl Observed {
    fn handle(&self) -> &dyn LeaseHandle {
        self.handle.as_deref().expect("taken only at the end")
    }

    fn end(mut self, end: impl FnOnce(Box<dyn LeaseHandle>) -> ReleaseFuture) -> ReleaseFuture {
        let handle = self.handle.take().expect("taken only here");
        let mut hold = self.hold.take().expect("taken only here");
        // Reported if the caller does not wait for the answer.
        if handle.loss().is_some() {
            hold.outcome = "lost";
        }
        ReleaseFuture::running(ObservedRelease { release: end(handle), hold })
    }
}

impl LeaseHandle for Observed {
    fn valid_until(&self) -> Option<Instant> {
        self.handle().valid_until()
    }

    fn loss(&self) -> Option<Loss> {
        self.handle().loss()
    }

    fn lost(&self) -> LostSignal {
        self.handle().lost()
    }

    fn release(self: Box<Self>) -> ReleaseFuture {
        self.end(LeaseHandle::release)
    }

    fn discard(self: Box<Self>) -> ReleaseFuture {
        self.end(LeaseHandle::discard)
    }

    fn abandon(mut self: Box<Self>) {
        let handle = self.handle.take().expect("taken only at the end");
        if let Some(hold) = &mut self.hold {
            hold.outcome = if handle.loss().is_some() { "lost" } else { "abandoned" };
        }
        handle.abandon();
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if let (Some(handle), Some(hold)) = (&self.handle, &mut self.hold)
            && handle.loss().is_some()
        {
            hold.outcome = "lost";
        }
    }
}

struct ObservedRelease {
    release: ReleaseFuture,
    hold: Hold,
}

impl Future for ObservedRelease {
    type Output = Result<ReleaseOutcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = std::task::ready!(Pin::new(&mut self.release).poll(cx));
        self.hold.outcome = match &result {
            Ok(ReleaseOutcome::Released) => "released",
            Ok(ReleaseOutcome::AlreadyLost) => "already_lost",
            Err(error) => error.kind().as_str(),
        };
        Poll::Ready(result)
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
        metrics::histogram!("distlock_hold_seconds", "provider" => provider.clone()).record(hold);
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
