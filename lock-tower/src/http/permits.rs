//! The layer that limits how many requests of a key are served at the same time.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use distlock_api::{LeaseOptions, LockProvider, Mode};
use http::request::Parts;
use http::{HeaderName, Response, StatusCode};
use tower_layer::Layer;

use super::deadline::DeadlineUnit;
use super::layer::LockLayer;
use super::rules::HoldUntil;
use super::run::{Attached, Detached};
use super::service::LockService;
use crate::gate::{Monitor, OnLoss};
use crate::key::ExtractKey;
use crate::refusal::{Reason, Refusal};

/// Serves at most `n` requests of a key at the same time, over all replicas together. Each takes
/// one of `n` [permits](Mode::Permits) of the key and returns it when the response body has ended.
///
/// ```
/// use distlock_memory::MemoryProvider;
/// use distlock_tower::{PermitLayer, key::HeaderKey};
/// use http::HeaderName;
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// // At most ten requests of a tenant at the same time.
/// let tenant = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant"))?;
/// let layer = PermitLayer::new(MemoryProvider::new(), tenant, 10);
/// # let _ = layer;
/// # Ok(())
/// # }
/// # run().unwrap();
/// ```
///
/// A request waits for its permit as in [`LockLayer`], up to 5 s unless
/// [`wait_up_to`](Self::wait_up_to) is set. Then it is refused with [`Reason::NoPermit`]: 429 with
/// `Retry-After`, which is computed from the average time for which this layer's requests have held
/// their permits. Other refusals, spans and metrics are those of `LockLayer`, with its `lock` in
/// their names.
///
/// It differs from `LockLayer` in this:
/// * All requests but OPTIONS need a permit, those with safe methods, too;
///   [`only_if`](Self::only_if) changes that.
/// * The [`HeldLock`](crate::HeldLock) of a layer outside stays in the extensions. Without one, the
///   handler sees its permit there.
/// * Permits and locks of one key exclude each other: give this layer keys of its own.
///
/// All services that one layer and its clones make share their limits, averages and counters.
pub struct PermitLayer<K, M = Attached> {
    locks: LockLayer<K, M>,
}

impl<K: ExtractKey> PermitLayer<K> {
    /// Takes permits from this provider, `n` for each key of this extractor: a closure, or one of
    /// [`key`](crate::key). Every replica must have the same `n`.
    ///
    /// # Panics
    /// If `n` is zero or greater than [`Mode::MAX_HOLDERS`], or if the provider has no
    /// [permits](distlock_api::Capabilities::permits): no request could be served.
    pub fn new(provider: impl LockProvider, key: K, n: u32) -> Self {
        let most = Mode::MAX_HOLDERS;
        assert!(usize::try_from(n).is_ok_and(|n| n <= most), "{n} permits: a key has at most {most} holders");
        Self { locks: LockLayer::new(provider, key).always(Mode::Permits { take: 1, of: n }) }
    }
}

impl<K> PermitLayer<K, Attached> {
    /// Lets a handler that has begun finish although its client has disconnected, and keeps its
    /// permit until then. See [`LockLayer::detach`].
    #[must_use]
    pub fn detach(self) -> PermitLayer<K, Detached> {
        PermitLayer { locks: self.locks.detach() }
    }
}

/// Defines setters that are those of [`LockLayer`].
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty)?);)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self $(, $argument: $type)?) -> Self {
            self.locks = self.locks.$name($($argument)?);
            self
        }
    )*};
}

impl<K, M> PermitLayer<K, M> {
    setters! {
        /// Sets the name of the layer in spans and metrics. Defaults to the class of the key
        /// extractor.
        class(class: impl AsRef<str>);
        /// Waits at most this long for a permit, or less if the caller's deadline is nearer.
        /// Defaults to 5 s.
        wait_up_to(wait: Duration);
        /// Refuses instead of waiting. Defaults to waiting up to 5 s.
        fail_fast();
        /// Limits how many requests of this layer wait for one key. More are refused with
        /// [`Reason::Full`]. See [`LockLayer::max_waiters_per_key`]. Defaults to 64.
        max_waiters_per_key(waiters: usize);
        /// Limits how many requests of this layer wait, for all keys together. See
        /// [`LockLayer::max_waiters`]. Defaults to 1024.
        max_waiters(waiters: usize);
        /// Limits how many requests of this layer hold their permits, for all keys together. See
        /// [`LockLayer::max_held`].
        max_held(holds: usize);
        /// Names the client of a request. See [`LockLayer::client`].
        client(name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static);
        /// Limits how many requests of one client wait or hold at the same time. More are refused
        /// with [`Reason::ClientLimit`]. Defaults to 256.
        max_requests_per_client(requests: usize);
        /// Sets what happens when the permit is lost while the request is served. Defaults to
        /// [`OnLoss::Abort`].
        on_loss(on_loss: OnLoss);
        /// Holds the permit at most this long; then the request is aborted with
        /// [`Reason::HeldTooLong`]. Defaults to one minute. See [`LockLayer::max_hold`].
        max_hold(max_hold: Duration);
        /// Holds the permit as long as the request takes. See [`LockLayer::without_max_hold`].
        without_max_hold();
        /// Sets the lease terms that differ from the provider's, for example the ttl: how long the
        /// permit of a replica that died is missing. Defaults to none.
        lease(lease: LeaseOptions);
        /// Sets the owner of this layer's permits, which operators see. Defaults to the provider's
        /// owner.
        owner(owner: impl AsRef<str>);
        /// Serves requests **without any limit** when the lock service cannot be reached. Defaults
        /// to refusing them. See [`LockLayer::fail_open`].
        fail_open();
        /// Sets until when a request holds its permit. Defaults to [`HoldUntil::Body`].
        hold_until(until: HoldUntil);
        /// Sets which requests need a permit; others pass. Defaults to all but OPTIONS, which
        /// always pass.
        only_if(applies: impl Fn(&Parts) -> bool + Send + Sync + 'static);
        /// Answers refusals with the responses of this function. See [`LockLayer::refuse_with`].
        refuse_with(answer: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static);
    }

    /// Also reads the caller's deadline from this header. See [`LockLayer::deadline_header`].
    #[must_use]
    pub fn deadline_header(mut self, name: HeaderName, unit: DeadlineUnit) -> Self {
        self.locks = self.locks.deadline_header(name, unit);
        self
    }

    /// Answers refusals for this reason with this status. For [`NoPermit`](Reason::NoPermit), 503
    /// is the other usual status.
    #[must_use]
    pub fn status(mut self, reason: Reason, status: StatusCode) -> Self {
        self.locks = self.locks.status(reason, status);
        self
    }

    /// Returns a view of what the layer has done and is doing. Get it before the layer is moved
    /// into a router.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.locks.monitor()
    }
}

impl<S, K, M> Layer<S> for PermitLayer<K, M> {
    type Service = LockService<S, K, M>;

    fn layer(&self, inner: S) -> Self::Service {
        self.locks.layer(inner)
    }
}

impl<K, M> Clone for PermitLayer<K, M> {
    fn clone(&self) -> Self {
        Self { locks: self.locks.clone() }
    }
}

impl<K, M> fmt::Debug for PermitLayer<K, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitLayer").field("locks", &self.locks).finish()
    }
}
