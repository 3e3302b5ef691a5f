//! The provider and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{
    Accounting, AcquireOptions, Acquired, Capabilities, Holder, LeaseOptions, LockAdmin, LockError, LockKey,
    LockProvider, Result,
};

use crate::face::guard::{AcquiredLease, LeaseGuard};
use crate::options::{HandOff, QueueOptions};
use crate::run::acquire::Obtained;
use crate::run::core::{Config, Engine};
use crate::state::backoff;
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
/// | `distlock_gather_seconds` | histogram | `store`, `requests` | how long each of them waited for the others |
/// | `distlock_calls_in_line` | gauge | `lane` | calls that wait because the store has as many as it takes at once |
///
/// `requests` is `acquisitions` or `releases`. Those that went alone are not counted.
#[derive(Clone)]
pub struct LeaseProvider {
    engine: Arc<Engine>,
}

impl LeaseProvider {
    /// Creates a provider with the defaults of [`builder`](Self::builder).
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        let LeaseProviderBuilder { store, config } = Self::builder(store);
        Self { engine: Engine::new(store, config) }
    }

    /// Creates a builder.
    pub fn builder(store: Arc<dyn LeaseStore>) -> LeaseProviderBuilder {
        LeaseProviderBuilder {
            store,
            config: Config {
                defaults: LeaseOptions::new(),
                holder: Holder::this_process(),
                request_timeout: Duration::from_secs(5),
                poll: backoff::Poll { first: Duration::from_millis(10), longest: Duration::from_millis(250) },
                queue: Some(QueueOptions::new()),
                hand_off: Some(HandOff::new()),
            },
        }
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
        let options = options.with_default_metadata(&self.engine.config.holder);
        Ok(match self.engine.acquire(&key, options, Some(&op)).await? {
            Obtained::Held(held) => AcquiredLease::Held(LeaseGuard::new(held)),
            Obtained::Busy(busy) => AcquiredLease::Busy(busy),
        })
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn LeaseStore> {
        &self.engine.store
    }
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
    config: Config,
}

impl LeaseProviderBuilder {
    /// Sets the lease terms for acquisitions that set none of their own. Defaults to those of
    /// [`LeaseOptions`].
    pub fn lease(mut self, defaults: LeaseOptions) -> Self {
        self.config.defaults = defaults;
        self
    }

    /// Sets the owner of this provider's locks, for people. Defaults to host name and process id.
    pub fn owner(mut self, owner: impl Into<Arc<str>>) -> Self {
        self.config.holder.owner = Some(owner.into());
        self
    }

    /// Adds one metadata entry to all locks of this provider, for people, such as the program's
    /// version. It is added to those of [`Holder::this_process`]; an acquisition adds [its
    /// own](AcquireOptions::with_metadata).
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.holder = self.config.holder.with_metadata(name, value);
        self
    }

    /// Sets the owner and all metadata of this provider's locks, for people. Replaces earlier
    /// values and the defaults.
    pub fn holder(mut self, holder: Holder) -> Self {
        self.config.holder = holder;
        self
    }

    /// Sets how long one request to the store may take: the bound of
    /// [`Wait::Try`](distlock_api::Wait::Try), of a release, and of all background work. Defaults
    /// to 5 s. An acquisition is also bounded by its ttl less the safety margin: a later answer
    /// would be of no use.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.config.request_timeout = timeout;
        self
    }

    /// Sets how often a waiter polls a store that reports neither events nor a holder's expiry:
    /// first after `first`, then doubling up to `longest`, with jitter. Defaults to 10 ms and 250
    /// ms.
    pub fn poll_interval(mut self, first: Duration, longest: Duration) -> Self {
        self.config.poll = backoff::Poll { first, longest };
        self
    }

    /// Sets how waiters queue with the waiters of other processes. Defaults to
    /// [`QueueOptions::new`].
    pub fn queue(mut self, options: QueueOptions) -> Self {
        self.config.queue = Some(options);
        self
    }

    /// Switches the store's queue off: waiters poll without a ticket, behind those that have one.
    /// Defaults to queueing.
    pub fn without_queue(mut self) -> Self {
        self.config.queue = None;
        self
    }

    /// Sets how long a lease is handed on within the process while other processes wait for it.
    /// Defaults to [`HandOff::new`].
    pub fn hand_off(mut self, limits: HandOff) -> Self {
        self.config.hand_off = Some(limits);
        self
    }

    /// Switches hand-off off: every guard has a lease of its own, and every release goes to the
    /// store. Defaults to hand-off.
    pub fn without_hand_off(mut self) -> Self {
        self.config.hand_off = None;
        self
    }

    /// Creates the provider.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for:
    ///
    /// * queue options or a linger out of range;
    /// * lease terms, an owner or metadata that no acquisition could use;
    /// * a request timeout below one millisecond or above a day;
    /// * a poll interval that is below one millisecond, above a day, or shrinks.
    pub fn build(self) -> Result<LeaseProvider> {
        let Self { store, config } = self;
        config.defaults.terms()?;
        config.holder.validate()?;
        config.queue.as_ref().map_or(Ok(()), QueueOptions::validate)?;
        config.hand_off.as_ref().map_or(Ok(()), HandOff::validate)?;
        let millisecond = Duration::from_millis(1);
        if config.request_timeout < millisecond || config.request_timeout > Duration::from_secs(86_400) {
            return Err(LockError::invalid_options(format!(
                "a request timeout of {:?} is not between 1 ms and a day",
                config.request_timeout
            )));
        }
        let backoff::Poll { first, longest } = config.poll;
        if first < millisecond || longest < first || longest > Duration::from_secs(86_400) {
            return Err(LockError::invalid_options(format!(
                "a poll interval from {first:?} to {longest:?} is below 1 ms, above a day, or shrinks: give two times \
                 from 1 ms to a day, the shorter one first"
            )));
        }
        Ok(LeaseProvider { engine: Engine::new(store, config) })
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
        f.write_str(self.engine.store.name())
    }
}

#[async_trait]
impl LockProvider for LeaseProvider {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        let options = options.with_default_metadata(&self.engine.config.holder);
        Ok(match self.engine.acquire(&key, options, None).await? {
            Obtained::Held(held) => Acquired::Held(held.into_guard()),
            Obtained::Busy(busy) => Acquired::Busy(busy),
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn accounting(&self) -> Accounting {
        self.engine.accounting()
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.engine.store.admin()
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
