//! Tracing and metrics around a provider.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::delegate_provider;
use crate::error::Result;
use crate::guard::{LeaseHandle, ReleaseFuture};
use crate::key::LockKey;
use crate::loss::{Loss, LostSignal};
use crate::options::AcquireOptions;
use crate::provider::{Acquired, LockProvider};
use crate::style::{ReportedHold, report_acquisition};

/// A provider that reports the acquisitions and holds of the provider inside.
///
/// # Tracing
/// Each acquisition is a span `distlock.acquire` at level `INFO`, and each hold a span
/// `distlock.hold`, both as children of the span in which the lock was requested. Their ends are
/// events at level `DEBUG`.
///
/// | field | where | meaning |
/// |---|---|---|
/// | `lock.provider` | all | the inner provider's `Display` |
/// | `lock.outcome` | all | acquisition: `held`, `busy`, or an error kind; hold: `released`, `already_lost`, `dropped`, `lost`, `abandoned` or an error kind |
/// | `lock.wait_ms` | acquisition | milliseconds from the call to the answer |
/// | `lock.token` | held | the fencing token |
/// | `lock.hold_ms` | hold | milliseconds from the grant to the end |
/// | `lock.key` | events, and spans if the target `distlock::keys` is enabled at level `TRACE` | the key, which may name a person |
/// | `otel.status_code`, `error` | failed | `ERROR`, and the error; for a lost lock, too |
///
/// With `tracing-opentelemetry` they are spans of OpenTelemetry, and `otel.status_code` is their
/// status.
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
/// | `distlock_hold_seconds` | histogram | `provider`, `outcome` |
/// | `distlock_held` | gauge | `provider` |
///
/// A recorder that panics costs the sample, never the lock.
///
/// # Typed styles
/// A guard that carries more than a lock, such as a locked document, passes through no
/// wrapper. A provider of the lease engine reports all its styles by itself, in the same way, if
/// its builder has a name for the reports: see `instrumented` on the builders of `distlock-mongo`.
/// Do not wrap such a provider, too: its locks would be counted twice.
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
    pub fn named(mut self, name: impl AsRef<str>) -> Self {
        self.name = name.as_ref().into();
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
        let acquire = self.inner.acquire_with(key.clone(), options);
        let token = |acquired: &Acquired| match acquired {
            Acquired::Held(guard) => Some(guard.fencing_token()),
            Acquired::Busy(_) => None,
        };
        Ok(match report_acquisition(&self.name, &key, acquire, token).await? {
            (Acquired::Held(guard), Some(hold)) => {
                let hold = Some(hold);
                Acquired::Held(guard.map_handle(|handle| Box::new(Observed { handle: Some(handle), hold })))
            }
            (other, _) => other,
        })
    }

    /// Always `None`, so that every acquisition goes through `acquire_with` and is reported.
    fn acquire_now(&self, _: &LockKey, _: &AcquireOptions) -> Option<Result<Acquired>> {
        None
    }

    delegate_provider!(this => this.inner; capabilities, accounting, admin, close);
}

struct Observed {
    handle: Option<Box<dyn LeaseHandle>>,
    hold: Option<ReportedHold>,
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
            hold.set_outcome("lost");
        }
        hold.until(end(handle))
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
            hold.set_outcome(if handle.loss().is_some() { "lost" } else { "abandoned" });
        }
        handle.abandon();
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        if let (Some(handle), Some(hold)) = (&self.handle, &mut self.hold)
            && handle.loss().is_some()
        {
            hold.set_outcome("lost");
        }
    }
}
