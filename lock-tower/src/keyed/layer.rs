//! The layer for services of any kind: its settings, and the services it makes.

use std::fmt;
use std::sync::Arc;

use distlock_api::{LockProvider, Mode};
use tower_layer::Layer;

use super::key_of::KeyOf;
use super::service::KeyedLock;
use super::with_mode::WithMode;
use crate::gate::{Config, Gate, Tally, common_setters};

/// Takes locks around each request to a service of any kind. See the [module](crate::keyed).
///
/// All services that one layer and its clones make share their limits, averages and counters.
pub struct KeyedLockLayer<K> {
    provider: Arc<dyn LockProvider>,
    key: Arc<K>,
    class: Arc<str>,
    config: Config,
    tally: Arc<Tally>,
}

impl<K> KeyedLockLayer<K> {
    /// Takes locks from this provider, with keys from this function.
    pub fn new<Req>(provider: impl LockProvider, key: K) -> Self
    where
        K: KeyOf<Req>,
    {
        Self {
            provider: Arc::new(provider),
            class: key.class().into(),
            key: Arc::new(key),
            config: Config::default(),
            tally: Arc::default(),
        }
    }

    common_setters!();

    /// Sets the [mode](Mode) in which a request acquires its keys. Defaults to
    /// [`KeyOf::mode`], which defaults to [`Mode::Exclusive`]. A request whose mode the provider
    /// does not have is refused with [`Reason::Misconfigured`](crate::Reason::Misconfigured).
    ///
    /// ```
    /// use distlock_api::{LockKey, Mode};
    /// use distlock_memory::MemoryProvider;
    /// use distlock_tower::KeyedLockLayer;
    /// # use tower::{Layer, ServiceExt, service_fn};
    ///
    /// struct Job {
    ///     report: u64,
    ///     rebuilds: bool,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), distlock_tower::KeyedLockError<std::io::Error>> {
    /// let key = |job: &Job| LockKey::new(format!("reports/{}", job.report)).map(Some);
    /// let layer = KeyedLockLayer::new(MemoryProvider::new(), key)
    ///     .mode(|job: &Job| if job.rebuilds { Mode::Exclusive } else { Mode::Shared });
    /// # let service = layer.layer(service_fn(|_: Job| async { Ok::<_, std::io::Error>("done") }));
    /// # assert_eq!(service.clone().oneshot(Job { report: 7, rebuilds: false }).await?, "done");
    /// # assert_eq!(service.oneshot(Job { report: 7, rebuilds: true }).await?, "done");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode<Req, F>(self, mode: F) -> KeyedLockLayer<WithMode<K, F>>
    where
        K: KeyOf<Req>,
        F: Fn(&Req) -> Mode,
    {
        KeyedLockLayer {
            provider: self.provider,
            key: Arc::new(WithMode::new(self.key, mode)),
            class: self.class,
            config: self.config,
            tally: self.tally,
        }
    }
}

impl<S, K> Layer<S> for KeyedLockLayer<K> {
    type Service = KeyedLock<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        let gate = Gate::new(self.provider.clone(), self.config.clone(), &self.class, self.tally.clone());
        KeyedLock::new(inner, self.key.clone(), Arc::new(gate))
    }
}

impl<K> Clone for KeyedLockLayer<K> {
    fn clone(&self) -> Self {
        Self {
            provider: self.provider.clone(),
            key: self.key.clone(),
            class: self.class.clone(),
            config: self.config.clone(),
            tally: self.tally.clone(),
        }
    }
}

impl<K> fmt::Debug for KeyedLockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLockLayer")
            .field("provider", &self.provider)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
