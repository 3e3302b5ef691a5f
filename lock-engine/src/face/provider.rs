//! The provider and its builder.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::style::{report_acquisition, yield_on_error};
use distlock_api::{
    Accounting, AcquireOptions, Acquired, Busy, Capabilities, Holder, LockAdmin, LockKey, LockProvider, Result, Wait,
};
use tokio::task::coop::consume_budget;
use tokio::task::yield_now;

use crate::engine_setters;
use crate::face::guard::{AcquiredLease, LeaseGuard};
use crate::options::EngineOptions;
use crate::run::acquire::{Obtained, Via};
use crate::run::core::Engine;
use crate::state::recent_keys::RecentKeys;
use crate::store::{AcquireOp, LeaseStore};

/// A [`LockProvider`] over any [`LeaseStore`]: waiting, renewal, loss detection and clean-up.
///
/// Clones share everything. Two providers over one store are independent, like two processes.
///
/// # Runtime
/// A provider needs a tokio runtime with time enabled. One task renews all leases of the provider;
/// another one reads the store's events, if it pushes. Outside of a runtime,
/// [`acquire_with`](LockProvider::acquire_with) and [`close`](LockProvider::close) return
/// [`Unsupported`](distlock_api::ErrorKind::Unsupported). In a runtime that was built without
/// [`enable_time`](tokio::runtime::Builder::enable_time) they panic: tokio has no way to query that
/// beforehand.
///
/// When the last clone and the last guard are dropped, the tasks end.
/// [`close`](LockProvider::close) ends them in order.
///
/// # Metrics
/// With the feature `metrics`, through the `metrics` facade. `Debug` shows the same, summed up.
///
/// | metric | kind | labels | what |
/// |---|---|---|---|
/// | `distlock_batch_size` | histogram | `store`, `requests` | requests that went to the store in one call |
/// | `distlock_gather_seconds` | histogram | `store`, `requests` | how long each of them waited to be sent |
/// | `distlock_calls_in_line` | gauge | `lane` | requests that wait to be sent |
///
/// `requests` is `acquisitions`, `releases` or `withdrawals`. Those that went alone are not
/// counted. A request waits until the store has room for a call, or for the others of its batch.
/// The lines are those of all providers.
///
/// A provider with a [name for reports](LeaseProviderBuilder::instrumented) also has the spans and
/// metrics of [`Instrumented`](distlock_api::Instrumented), for plain locks and for typed styles.
#[derive(Clone)]
pub struct LeaseProvider {
    engine: Arc<Engine>,
}

impl LeaseProvider {
    /// Creates a provider with the defaults of [`builder`](Self::builder).
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        Self { engine: Engine::new(store, EngineOptions::new()) }
    }

    /// Creates a builder.
    pub fn builder(store: Arc<dyn LeaseStore>) -> LeaseProviderBuilder {
        LeaseProviderBuilder { store, options: EngineOptions::new() }
    }

    /// Acquires by an operation of a typed style instead of the store's own. Turns, waiting,
    /// renewal, loss detection, clean-up and everything else are as with
    /// [`acquire_with`](LockProvider::acquire_with). For authors of such styles.
    ///
    /// The operation must act on leases of this provider's store, which renews and releases them.
    ///
    /// Each grant comes with an answer of the operation, so that it brings everything that the
    /// style requires. Such an acquisition therefore never takes a lease that is handed on within
    /// the process. When a release has granted it a lease, it makes one more attempt. Its own lease
    /// is not handed on.
    ///
    /// # Errors
    /// As [`acquire_with`](LockProvider::acquire_with), and the operation's own permanent ones.
    ///
    /// # Cancel safety
    /// As [`acquire_with`](LockProvider::acquire_with).
    pub async fn acquire_via(
        &self,
        key: LockKey,
        options: AcquireOptions,
        op: Arc<dyn AcquireOp>,
    ) -> Result<AcquiredLease> {
        let options = options.with_default_metadata(&self.engine.options.holder);
        Ok(match self.acquire(key, options, Some(&op)).await? {
            Obtained::Held(held) => AcquiredLease::Held(LeaseGuard::new(held)),
            Obtained::Busy(busy) => AcquiredLease::Busy(busy),
        })
    }

    /// Acquires, and lets other tasks run where the answer may have come without a wait. A caller
    /// that asks again and again would otherwise stop the timers of its runtime, and with them the
    /// renewals.
    async fn acquire(&self, key: LockKey, options: AcquireOptions, via: Via<'_>) -> Result<Obtained> {
        // A lease that is handed on, joined or parked.
        consume_budget().await;
        let Some(name) = &self.engine.options.instrumented else {
            return self.acquire_unreported(key, options, via).await;
        };
        let acquire = self.acquire_unreported(key.clone(), options, via);
        let token = |obtained: &Obtained| match obtained {
            Obtained::Held(held) => Some(held.token()),
            Obtained::Busy(_) => None,
        };
        // Boxed: it is large, and most providers do without it.
        let (mut obtained, hold) = Box::pin(report_acquisition(name, &key, acquire, token)).await?;
        if let Obtained::Held(held) = &mut obtained {
            held.set_hold(hold);
        }
        Ok(obtained)
    }

    async fn acquire_unreported(&self, key: LockKey, options: AcquireOptions, via: Via<'_>) -> Result<Obtained> {
        let tried = is_batched_try(&options).then(|| key.clone());
        let obtained = self.engine.acquire(key, options, via).await;
        if let (Some(key), Ok(Obtained::Busy(_))) = (tried, &obtained) {
            self.contended().set(&key, Some(REFUSED_TRIES));
        }
        // A refusal. It is rare, or its caller should be slower.
        if !matches!(obtained, Ok(Obtained::Held(_))) {
            yield_now().await;
        }
        obtained
    }

    fn contended(&self) -> MutexGuard<'_, RecentKeys<u8>> {
        self.engine.contended.lock().expect("no code in here panics")
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn LeaseStore> {
        &self.engine.outbox.store
    }
}

/// After a [batched](AcquireOptions::batched) try has found a key busy, so many more of them are
/// refused without a request. Their callers then ask for the key by itself, and take no keys behind
/// it only to give them back.
const REFUSED_TRIES: u8 = 32;

fn is_batched_try(options: &AcquireOptions) -> bool {
    options.is_batched() && matches!(options.wait(), Wait::Try | Wait::UpTo(Duration::ZERO))
}

/// Configures a [`LeaseProvider`]. Returned by [`LeaseProvider::builder`].
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use distlock_engine::{HandOff, LeaseProvider, LeaseStore, QueueOptions, WhenFull};
///
/// fn locks(store: Arc<dyn LeaseStore>) -> distlock_api::Result<LeaseProvider> {
///     LeaseProvider::builder(store)
///         .request_timeout(Duration::from_secs(2))
///         .queue(QueueOptions::new().capacity(100).when_full(WhenFull::Refuse)) // with `QueueFull`
///         .hand_off(HandOff::new().max_count(8).max_time(Duration::from_millis(20)))
///         .build()
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> distlock_api::Result<()> {
/// # use distlock_api::LockProviderExt;
/// # let locks = locks(Arc::new(distlock_memory::MemoryStore::new()))?;
/// # assert!(locks.acquire("orders/4711").await?.release().await?.is_released());
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is made until `build` is called"]
pub struct LeaseProviderBuilder {
    store: Arc<dyn LeaseStore>,
    options: EngineOptions,
}

impl LeaseProviderBuilder {
    engine_setters!(options);

    /// Sets the owner and all remarks of this provider's locks, for people. Replaces earlier values
    /// and the defaults.
    pub fn holder(mut self, holder: Holder) -> Self {
        self.options = self.options.holder(holder);
        self
    }

    /// Replaces all options.
    pub fn options(mut self, options: EngineOptions) -> Self {
        self.options = options;
        self
    }

    /// Creates the provider.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for:
    ///
    /// * queue options or a linger out of range;
    /// * lease terms, an owner or metadata that no acquisition could use;
    /// * times that are too short for the store: see
    ///   [`min_ttl`](crate::store::StoreCapabilities::min_ttl);
    /// * a request timeout below one millisecond or above a day;
    /// * a poll interval that is below one millisecond, above a day, or shrinks.
    pub fn build(self) -> Result<LeaseProvider> {
        let Self { store, options } = self;
        options.validate(store.name(), &store.capabilities())?;
        Ok(LeaseProvider { engine: Engine::new(store, options) })
    }
}

impl fmt::Debug for LeaseProviderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseProviderBuilder").field("store", &self.store.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for LeaseProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.engine, f)
    }
}

impl fmt::Display for LeaseProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine.outbox.store.name())
    }
}

#[async_trait]
impl LockProvider for LeaseProvider {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let options = options.with_default_metadata(&self.engine.options.holder);
        Ok(match self.acquire(key, options, None).await? {
            Obtained::Held(held) => Acquired::Held(held.into_guard()),
            Obtained::Busy(busy) => Acquired::Busy(busy),
        })
    }

    /// Refuses batched tries of a key that was busy lately, and has no other answer. A provider
    /// that reports its acquisitions has none.
    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        let is_reported = self.engine.options.instrumented.is_some();
        if !is_batched_try(options) || is_reported || self.engine.closed.is_cancelled() {
            return None;
        }
        let mut contended = self.contended();
        let left = contended.get(key)?;
        contended.set(key, left.checked_sub(1).filter(|left| *left > 0));
        Some(Ok(Acquired::Busy(Busy::new())))
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.engine.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.engine.outbox.store.extras().admin
    }

    async fn close(&self) -> Result<()> {
        yield_on_error(self.engine.close()).await
    }
}
