//! One client of a backend, and what checks do with it.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Accounting, AcquireOptions, Acquired, LockGuard, LockKey, LockProvider, LockProviderExt, Wait};
use distlock_engine::{LeaseProvider, LeaseProviderBuilder, LeaseStore};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::bounded::{LIVENESS, SOON, eventually, within};
use crate::disturbed::{DisturbedStore, SeenRenewal};
use crate::failure::{Failure, FailureKind, FixtureError, Verdict, located_at_caller};
use crate::leases::{LONG, renewed};
use crate::recorder::{RecordedProvider, Recorder};

/// One client of a backend: a provider and, optionally, what makes its faults.
#[derive(Clone)]
pub struct Client {
    provider: Arc<dyn LockProvider>,
    disturbed: Option<DisturbedStore>,
    acquire_all: Option<Arc<AcquireAll>>,
    number: usize,
}

/// The locks of all keys, or none of them.
type AllOrNone = distlock_api::Result<Option<Vec<LockGuard>>>;
type AcquireAll =
    dyn Fn(Arc<dyn LockProvider>, Vec<LockKey>, AcquireOptions) -> BoxFuture<'static, AllOrNone> + Send + Sync;

impl Client {
    /// Makes a client without faults.
    pub fn new(provider: Arc<dyn LockProvider>) -> Self {
        Self { provider, disturbed: None, acquire_all: None, number: 0 }
    }

    /// Makes a client of a store: the lease engine with its defaults over a [`DisturbedStore`].
    /// Clients that are to share a state get clones or connections of one store.
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

    /// Makes a client of a [`DisturbedStore`] with an engine that `configure` sets up.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use distlock_conformance::{Client, DisturbedStore};
    /// use distlock_engine::QueueOptions;
    ///
    /// # let my_store = distlock_memory::MemoryStore::new();
    /// let store = DisturbedStore::new(Arc::new(my_store));
    /// let queue = QueueOptions::new().claim(Duration::from_secs(3));
    /// let client = Client::of_disturbed(store, |engine| engine.queue(queue))?;
    /// # drop(client);
    /// # Ok::<(), distlock_conformance::FixtureError>(())
    /// ```
    ///
    /// # Errors
    /// The engine rejects its configuration.
    pub fn of_disturbed(
        store: DisturbedStore,
        configure: impl FnOnce(LeaseProviderBuilder) -> LeaseProviderBuilder,
    ) -> Result<Self, FixtureError> {
        let provider = configure(LeaseProvider::builder(Arc::new(store.clone()))).build()?;
        Ok(Self::new(Arc::new(provider)).disturbed_by(store))
    }

    /// Sets how the client acquires several locks, all of them or none (C21). `acquire` receives a
    /// provider whose calls are recorded, and the keys as the caller named them. Defaults to
    /// [`acquire_all`](LockProviderExt::acquire_all).
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

    /// Acquires several locks, in the client's own way if it has one.
    pub(crate) async fn take_all(&self, keys: &[LockKey], options: AcquireOptions) -> AllOrNone {
        match &self.acquire_all {
            Some(acquire) => acquire(Arc::clone(&self.provider), keys.to_vec(), options).await,
            None => match self.provider.acquire_all(keys).options(options).await {
                Ok(all) => Ok(Some(all.into_guards())),
                Err(error) if error.is_not_granted() => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Sets the store through which its provider reaches the backend, and which makes its faults.
    #[must_use]
    pub fn disturbed_by(mut self, store: DisturbedStore) -> Self {
        self.disturbed = Some(store);
        self
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn LockProvider> {
        &self.provider
    }

    /// Returns the client with all its calls recorded.
    pub(crate) fn recorded(self, recorder: &Recorder) -> Self {
        let number = recorder.client();
        let provider = RecordedProvider { inner: self.provider, client: number, recorder: recorder.clone() };
        Self { provider: Arc::new(provider), number, ..self }
    }

    /// Returns its number in the history.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns the latest renewals of its leases, as far as they are known.
    pub(crate) fn renewals(&self) -> Vec<SeenRenewal> {
        self.disturbed.as_ref().map(DisturbedStore::renewals).unwrap_or_default()
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

/// What checks do with a client.
impl Client {
    /// Acquires within the liveness bound.
    #[track_caller]
    pub(crate) fn take(
        &self,
        key: &LockKey,
        options: AcquireOptions,
    ) -> impl Future<Output = Result<LockGuard, Failure>> {
        located_at_caller(async move { self.take_within(LIVENESS, key, options).await })
    }

    /// Acquires within a bound.
    #[track_caller]
    pub(crate) fn take_within(
        &self,
        bound: Duration,
        key: &LockKey,
        options: AcquireOptions,
    ) -> impl Future<Output = Result<LockGuard, Failure>> {
        located_at_caller(async move {
            let acquiring = self.acquire_with(key.clone(), options.with_wait(Wait::UpTo(bound)));
            match within(bound + SOON, "an acquisition to return", acquiring).await?? {
                Acquired::Held(guard) => Ok(guard),
                Acquired::Busy(busy) => {
                    let message = format!("{key:?} was not granted within {bound:?}, the store says {busy:?}");
                    Err(Failure::of(FailureKind::Overdue, message))
                }
            }
        })
    }

    /// One attempt.
    #[track_caller]
    pub(crate) fn attempt(
        &self,
        key: &LockKey,
        options: AcquireOptions,
    ) -> impl Future<Output = Result<Option<LockGuard>, Failure>> {
        located_at_caller(async move {
            let acquiring = self.acquire_with(key.clone(), options.with_wait(Wait::Try));
            Ok(within(LIVENESS, "a single attempt to return", acquiring).await??.held())
        })
    }

    /// Fails unless another acquisition holds the key.
    #[track_caller]
    pub(crate) fn ensure_busy(&self, key: &LockKey, why: &str) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            match self.attempt(key, renewed(LONG)).await? {
                None => Ok(()),
                Some(guard) => {
                    Err(Failure::new(format!("{key:?} was granted, token {}: {why}", guard.fencing_token())))
                }
            }
        })
    }

    /// Returns what makes its faults, as the profile promises.
    pub(crate) fn disturbed(&self) -> Result<&DisturbedStore, Failure> {
        let message = "the profile declares faults, but the client has no `DisturbedStore`";
        self.disturbed.as_ref().ok_or_else(|| Failure::of(FailureKind::Fixture, message))
    }

    /// Acquires in a separate task.
    pub(crate) fn spawn_take(&self, key: &LockKey, options: AcquireOptions) -> Waiter {
        self.spawn_take_within(LIVENESS, key, options)
    }

    /// Acquires within a bound, in a separate task.
    pub(crate) fn spawn_take_within(&self, bound: Duration, key: &LockKey, options: AcquireOptions) -> Waiter {
        let (client, key) = (self.clone(), key.clone());
        Waiter(tokio::spawn(async move {
            let guard = client.take_within(bound, &key, options).await?;
            Ok((guard, Instant::now()))
        }))
    }

    /// Returns the accounting without the clean-up that is still running in the background.
    pub(crate) fn counts(&self) -> Accounting {
        let mut now = self.accounting();
        now.unsettled = 0;
        now
    }

    /// Polls until `count` callers wait.
    #[track_caller]
    pub(crate) fn until_waiting(&self, count: u64) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let what = format!("accounting().waiting to be {count}");
            eventually(SOON, &what, async || Ok(self.accounting().waiting == count)).await
        })
    }

    /// Polls until no lock is held, no caller waits, and the accounting balances.
    #[track_caller]
    pub(crate) fn until_idle(&self) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let idle = eventually(SOON, "the accounting to be idle", async || Ok(is_idle(&self.accounting())));
            idle.await.map_err(|failure| failure.reworded(|said| format!("{said}: {:?}", self.accounting())))
        })
    }

    /// Polls until no clean-up is running in the background. What an acquisition whose outcome was
    /// unknown has left in the store may be taken until then.
    #[track_caller]
    pub(crate) fn until_cleaned_up(&self) -> impl Future<Output = Verdict> {
        located_at_caller(async move {
            let ended = async || Ok(self.accounting().unsettled == 0);
            eventually(SOON, "the clean-up in the background to end", ended).await
        })
    }
}

/// Whether no lock is held, no caller waits, and the accounting balances.
pub(crate) fn is_idle(now: &Accounting) -> bool {
    now.held == 0 && now.waiting == 0 && now.balances()
}

/// Whether, in addition, no clean-up is running in the background.
pub(crate) fn is_settled(now: &Accounting) -> bool {
    is_idle(now) && now.unsettled == 0
}

/// An acquisition in a separate task, which ends when this is dropped.
pub(crate) struct Waiter(tokio::task::JoinHandle<Result<(LockGuard, Instant), Failure>>);

impl Waiter {
    /// Returns the guard, and the moment of the grant.
    #[track_caller]
    pub(crate) fn guard(mut self) -> impl Future<Output = Result<(LockGuard, Instant), Failure>> {
        located_at_caller(async move {
            match (&mut self.0).await {
                Ok(result) => result,
                Err(error) => Err(Failure::of_task("a waiter", &error)),
            }
        })
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.abort();
    }
}
