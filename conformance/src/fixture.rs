//! What a backend author writes: how to get clients of the backend, and what it promises.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::{AcquireOptions, LockGuard, LockKey, LockProvider, LockProviderExt};
use distlock_engine::{LeaseProvider, LeaseProviderBuilder, LeaseStore};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::arena::Arena;
use crate::controls::Controls;
use crate::disturbed::DisturbedStore;
use crate::profile::Profile;
use crate::recorder::{RecordedProvider, Recorder};

/// Any error of a fixture.
pub type FixtureError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// A backend under test.
///
/// Three methods are required. Everything is lazy: nothing may be started before [`start`](Self::start), so that listing the checks, and running
/// those of another fixture, costs nothing.
///
/// The state behind a fixture must be private to this process and this run (a database with a random name): the checks use
/// keys such as `$$NOW` literally.
///
/// ```no_run
/// use std::process::ExitCode;
/// use std::sync::Arc;
/// use distlock_api::{Capabilities, LockProvider};
/// use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait, run_one};
/// # fn my_backend() -> Arc<dyn LockProvider> { Arc::new(distlock_memory::MemoryStore::new().provider()) }
///
/// struct MyFixture;
///
/// #[async_trait]
/// impl Fixture for MyFixture {
///     fn name(&self) -> &str {
///         "my-backend"
///     }
///
///     fn profile(&self) -> Profile {
///         let mut promised = Capabilities::default();
///         promised.expiry = true;
///         Profile::new(promised)
///     }
///
///     async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
///         Ok((0..count).map(|_| Client::new(my_backend())).collect())
///     }
/// }
///
/// fn main() -> ExitCode {
///     run_one(MyFixture)
/// }
/// ```
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The first part of the names of its checks, such as `mongo-upsert-replica-set`.
    fn name(&self) -> &str;

    /// What the backend promises. Asked before anything is started.
    fn profile(&self) -> Profile;

    /// Starts what the backend needs. Called once, before the first check that runs. Defaults to nothing.
    ///
    /// # Errors
    /// Whatever went wrong; every check of the fixture then fails with it.
    async fn start(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    /// New clients of one shared state, independent of each other, as so many processes would have. Called once or twice per check.
    ///
    /// Clients of different calls may share their state or not. A backend whose state lives inside one provider returns so many
    /// clones of a new provider, and declares [`Profile::one_provider`].
    ///
    /// # Errors
    /// Whatever went wrong; the check fails with it.
    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError>;

    /// The bare store, without the lease engine, as another process would open it. All stores share one
    /// state. Called a few times per check that looks below the engine. Every lease and ticket that a
    /// check has taken is given up after it.
    /// Declared by [`Profile::store`](crate::Profile::store).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err("this fixture opens no bare store".into())
    }

    /// Where another process finds the shared state; none if no process can. Asked after [`start`](Self::start). A fixture that
    /// has one declares [`Profile::processes`]. Defaults to none.
    fn address(&self) -> Option<String> {
        None
    }

    /// A client of the state at an [`address`](Self::address), in a child process in which nothing was started.
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        Err(format!("this fixture cannot connect to {address:?}").into())
    }

    /// The bare store at an [`Arena::address`], as another process would open it. All stores of an
    /// address share one state. Declared by [`Profile::hooks`](crate::Profile::hooks).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn store_at(&self, address: &str) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Err(format!("this fixture opens no bare store at {address:?}").into())
    }

    /// A deployment of its own that may be damaged by all means. Called once for each check that needs
    /// one; those that use [hooks](crate::Hook) share one. Declared by [`Profile::arena`](crate::Profile::arena).
    ///
    /// # Errors
    /// Whatever went wrong. By default always.
    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Err("this fixture has no deployment that may be damaged".into())
    }

    /// Stops what was started. Called once, after the last check, whether checks failed or not. Defaults to nothing.
    async fn stop(&self) {}
}

/// One client of a backend: a provider, and perhaps a hand behind the stage.
#[derive(Clone)]
pub struct Client {
    provider: Arc<dyn LockProvider>,
    controls: Option<Arc<dyn Controls>>,
    acquire_all: Option<Arc<AcquireAll>>,
    number: usize,
}

/// The locks of all keys, or none of them.
type AllOrNone = distlock_api::Result<Option<Vec<LockGuard>>>;
type AcquireAll =
    dyn Fn(Arc<dyn LockProvider>, Vec<LockKey>, AcquireOptions) -> BoxFuture<'static, AllOrNone> + Send + Sync;

impl Client {
    /// A client without controls.
    pub fn new(provider: Arc<dyn LockProvider>) -> Self {
        Self { provider, controls: None, acquire_all: None, number: 0 }
    }

    /// A client of a store: the lease engine with its defaults over a [`DisturbedStore`], which is its controls.
    ///
    /// ```
    /// use distlock_conformance::Client;
    ///
    /// # let my_store = distlock_memory::MemoryStore::new();
    /// let client = Client::of_store(my_store);
    /// # drop(client);
    /// ```
    ///
    /// # Panics
    /// Never: the defaults are valid.
    pub fn of_store(store: impl LeaseStore) -> Self {
        Self::of_disturbed(DisturbedStore::new(Arc::new(store)), |builder| builder)
            .expect("the engine's defaults are valid")
    }

    /// A client of a store that is disturbed already, by the lease engine as you configure it.
    ///
    /// # Errors
    /// When the engine refuses its configuration.
    pub fn of_disturbed(
        store: DisturbedStore,
        configure: impl FnOnce(LeaseProviderBuilder) -> LeaseProviderBuilder,
    ) -> Result<Self, FixtureError> {
        let provider = configure(LeaseProvider::builder(Arc::new(store.clone()))).build()?;
        Ok(Self::new(Arc::new(provider)).with_controls(store))
    }

    /// With a way of its own to take several locks at once, all of them or none (C21). It is given a provider whose calls are recorded, and the keys as the caller
    /// named them. Defaults to [`acquire_all`](LockProviderExt::acquire_all), which takes them one by one.
    #[must_use]
    pub fn with_acquire_all<F>(
        mut self,
        acquire: impl Fn(Arc<dyn LockProvider>, Vec<LockKey>, AcquireOptions) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = distlock_api::Result<Option<Vec<LockGuard>>>> + Send + 'static,
    {
        self.acquire_all = Some(Arc::new(move |provider, keys, options| acquire(provider, keys, options).boxed()));
        self
    }

    /// Takes several locks at once, by the client's own way if it has one.
    pub(crate) async fn take_all(&self, keys: &[LockKey], options: AcquireOptions) -> AllOrNone {
        match &self.acquire_all {
            Some(acquire) => acquire(Arc::clone(&self.provider), keys.to_vec(), options).await,
            None => {
                Ok(self.provider.acquire_all(keys).options(options).await?.map(distlock_api::AllGuard::into_guards))
            }
        }
    }

    /// With means to make its requests fail or its store's record vanish.
    #[must_use]
    pub fn with_controls(mut self, controls: impl Controls) -> Self {
        self.controls = Some(Arc::new(controls));
        self
    }

    /// The provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn LockProvider> {
        &self.provider
    }

    /// The same client, with all its calls recorded.
    pub(crate) fn recorded(self, recorder: &Recorder) -> Self {
        let number = recorder.client();
        let provider = RecordedProvider { inner: self.provider, client: number, recorder: recorder.clone() };
        Self { provider: Arc::new(provider), number, ..self }
    }

    /// Its number in the history.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn controls(&self) -> Option<&dyn Controls> {
        self.controls.as_deref()
    }
}

impl Deref for Client {
    type Target = dyn LockProvider;

    fn deref(&self) -> &Self::Target {
        &*self.provider
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("provider", &self.provider).finish_non_exhaustive()
    }
}
