//! The layer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::LockProvider;
use tower_layer::Layer;

use super::service::KeyedLock;
use crate::gate::{Config, Gate, Tally, common_setters};
use crate::held::HeldLock;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Names the locks of a request that is not HTTP.
///
/// Implemented by every closure `Fn(&Req) -> Result<Option<K>, E>` whose `K` is a [`LockKey`](distlock_api::LockKey), several of them, or a [`KeySet`], and
/// whose `E` is a [`KeyRejection`] or a [`LockError`](distlock_api::LockError). Implement it for a type of your own to hand the [`HeldLock`] to the
/// service, or to tell how long the caller is going to wait.
pub trait KeyOf<Req> {
    /// The keys of a request; none, or an empty set, lets it pass without a lock.
    ///
    /// # Errors
    /// When the request does not name a valid key.
    fn keys(&self, request: &Req) -> Result<Option<KeySet>, KeyRejection>;

    /// How much longer the caller is going to wait, if that is known: a shorter wait than the layer's counts. Defaults to unknown.
    fn deadline(&self, request: &Req) -> Option<Duration> {
        let _ = request;
        None
    }

    /// The request has got its locks and is about to be served. Defaults to nothing.
    fn granted(&self, request: &mut Req, held: HeldLock) {
        let _ = (request, held);
    }

    /// What these keys are called in spans and metrics. Defaults to `custom`.
    fn class(&self) -> &str {
        "custom"
    }
}

impl<F, Req, K, E> KeyOf<Req> for F
where
    F: Fn(&Req) -> Result<Option<K>, E>,
    K: Into<KeySet>,
    E: Into<KeyRejection>,
{
    fn keys(&self, request: &Req) -> Result<Option<KeySet>, KeyRejection> {
        Ok(self(request).map_err(Into::into)?.map(Into::into))
    }
}

/// Puts a [`KeyedLock`] around services. See the [module](crate::keyed).
///
/// All services that one layer and its clones make share their bounds, averages and counters.
pub struct KeyedLockLayer<K> {
    provider: Arc<dyn LockProvider>,
    key: Arc<K>,
    class: Arc<str>,
    config: Config,
    tally: Arc<Tally>,
}

impl<K> KeyedLockLayer<K> {
    /// Locks of this provider, with keys from this function.
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
