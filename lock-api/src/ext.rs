//! The fluent calls that every provider and every lock has.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::all::{self, AcquireAll, TryAcquireAll};
use crate::error::{LockError, Result};
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::options::{AcquireOptions, Wait};
use crate::parse::IntoLockKey;
use crate::provider::{Acquired, DistributedLock, Lock, LockProvider};
use crate::style::{finish_run, yield_on_error};
use crate::token::FencingToken;
use crate::{acquire_setters, mode_setters, try_setters, wait_setters};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Fluent calls on every [`LockProvider`], `dyn LockProvider` included.
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{FencingToken, LockProvider, LockProviderExt, LockError};
/// # async fn ship_order(_: FencingToken) {}
/// async fn ship(locks: &dyn LockProvider) -> Result<(), LockError> {
///     // Acquires, works, releases. Waits up to 5 s.
///     let order = locks.acquire("orders/4711").timeout(Duration::from_secs(5));
///     order.run(async |token| ship_order(token).await).await?;
///
///     // With a guard, where the work is not one future.
///     let guard = locks.acquire("orders/4711").await?;
///     guard.release().await?;
///
///     // Without a wait.
///     if let Some(guard) = locks.try_acquire("orders/4711").await? {
///         println!("held, token {}", guard.fencing_token());
///     }
///     Ok(())
/// }
/// ```
pub trait LockProviderExt: LockProvider {
    /// Acquires a lock, and waits for it without a limit unless a
    /// [`timeout`](Acquire::timeout) is set.
    ///
    /// Await it to get the [`LockGuard`], or call [`run`](Acquire::run). See [`Acquire`] for the
    /// options and errors.
    #[inline]
    fn acquire(&self, key: impl IntoLockKey) -> Acquire<KeyTarget<'_, Self>> {
        Acquire { target: KeyTarget { provider: self, key: key.into_lock_key() }, options: AcquireOptions::new() }
    }

    /// Acquires a lock if it is free now.
    ///
    /// Await it to get the [`LockGuard`], or `None` if the lock is busy; or call
    /// [`run`](TryAcquire::run). See [`TryAcquire`] for the options and errors.
    #[inline]
    fn try_acquire(&self, key: impl IntoLockKey) -> TryAcquire<KeyTarget<'_, Self>> {
        TryAcquire {
            target: KeyTarget { provider: self, key: key.into_lock_key() },
            options: AcquireOptions::try_once(),
        }
    }

    /// Acquires several locks, all or nothing, in an order that cannot deadlock ([C21]).
    ///
    /// Await it to get the [`AllGuard`](crate::AllGuard), or call [`run`](AcquireAll::run). See
    /// [`AcquireAll`] for the options and errors.
    ///
    /// [C21]: distlock_api::contract#c21
    fn acquire_all<K: IntoLockKey>(&self, keys: impl IntoIterator<Item = K>) -> AcquireAll<'_, Self> {
        AcquireAll::new(self, all::keys(keys))
    }

    /// Acquires several locks, all or nothing, if all are free now ([C21]).
    ///
    /// Await it to get the [`AllGuard`](crate::AllGuard), or `None` if one of them is busy; or call
    /// [`run`](TryAcquireAll::run). See [`TryAcquireAll`] for the options and errors.
    ///
    /// ```
    /// # use distlock_api::{LockError, LockProviderExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = distlock_memory::MemoryProvider::new();
    /// let Some(both) = locks.try_acquire_all(["accounts/3", "accounts/7"]).await? else {
    ///     return Ok(()); // one of them is busy, and the other one is not held either
    /// };
    /// println!("accounts/7: token {}", both.fencing_tokens()["accounts/7"]);
    ///
    /// // If one key is busy, none of them is acquired.
    /// assert!(locks.try_acquire_all(["accounts/7", "accounts/9"]).await?.is_none());
    /// assert!(locks.try_acquire("accounts/9").await?.is_some());
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [C21]: distlock_api::contract#c21
    fn try_acquire_all<K: IntoLockKey>(&self, keys: impl IntoIterator<Item = K>) -> TryAcquireAll<'_, Self> {
        TryAcquireAll::new(self, all::keys(keys))
    }

    /// Returns one key of this provider as a value, which coerces to `Arc<dyn DistributedLock>`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use distlock_api::{DistributedLock, LockError, LockProvider, LockProviderExt};
    /// fn report_lock(locks: Arc<dyn LockProvider>) -> Result<Arc<dyn DistributedLock>, LockError> {
    ///     Ok(Arc::new(locks.lock("reports/daily")?))
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`LockKey::new`].
    fn lock(&self, key: impl IntoLockKey) -> Result<Lock<Self>>
    where
        Self: Clone,
    {
        Ok(Lock::new(self.clone(), key.into_lock_key()?))
    }
}

impl<P: LockProvider + ?Sized> LockProviderExt for P {}

/// Fluent calls on every [`DistributedLock`], `dyn DistributedLock` included.
pub trait DistributedLockExt: DistributedLock {
    /// Acquires the lock, and waits for it without a limit unless a
    /// [`timeout`](Acquire::timeout) is set. See [`Acquire`].
    fn acquire(&self) -> Acquire<LockTarget<'_, Self>> {
        Acquire { target: LockTarget { lock: self }, options: AcquireOptions::new() }
    }

    /// Acquires the lock if it is free now. See [`TryAcquire`].
    fn try_acquire(&self) -> TryAcquire<LockTarget<'_, Self>> {
        TryAcquire { target: LockTarget { lock: self }, options: AcquireOptions::try_once() }
    }
}

impl<L: DistributedLock + ?Sized> DistributedLockExt for L {}

mod sealed {
    use super::{AcquireOptions, Acquired, Future, LockKey, Result};

    /// What can be acquired.
    pub trait Target {
        type Acquiring: Future<Output = Result<Acquired>> + Send + Unpin;

        fn key(&self) -> Option<&LockKey>;

        fn start(self, options: AcquireOptions) -> Self::Acquiring;
    }
}

/// A key of a provider, as the target of an [`Acquire`] or a [`TryAcquire`].
pub struct KeyTarget<'a, P: ?Sized> {
    provider: &'a P,
    key: Result<LockKey>,
}

impl<P: ?Sized> fmt::Debug for KeyTarget<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Ok(key) => fmt::Debug::fmt(key, f),
            Err(error) => fmt::Debug::fmt(error, f),
        }
    }
}

impl<'a, P: LockProvider + ?Sized> sealed::Target for KeyTarget<'a, P> {
    type Acquiring = BoxFuture<'a, Result<Acquired>>;

    #[inline]
    fn key(&self) -> Option<&LockKey> {
        self.key.as_ref().ok()
    }

    #[inline]
    fn start(self, options: AcquireOptions) -> Self::Acquiring {
        match self.key {
            Ok(key) => self.provider.acquire_with(key, options),
            Err(error) => Box::pin(yield_on_error(std::future::ready(Err(error)))),
        }
    }
}

/// A [`DistributedLock`], as the target of an [`Acquire`] or a [`TryAcquire`].
pub struct LockTarget<'a, L: ?Sized> {
    lock: &'a L,
}

impl<L: DistributedLock + ?Sized> fmt::Debug for LockTarget<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.lock.key(), f)
    }
}

impl<'a, L: DistributedLock + ?Sized> sealed::Target for LockTarget<'a, L> {
    type Acquiring = BoxFuture<'a, Result<Acquired>>;

    #[inline]
    fn key(&self) -> Option<&LockKey> {
        Some(self.lock.key())
    }

    #[inline]
    fn start(self, options: AcquireOptions) -> Self::Acquiring {
        self.lock.acquire_with(options)
    }
}

/// The acquisition of a lock; await it to get the [`LockGuard`], or call [`run`](Self::run). Made
/// by [`LockProviderExt::acquire`] and [`DistributedLockExt::acquire`].
///
/// Errors are those of [`LockProvider::acquire_with`]. In addition, a wait that ended without the
/// lock is [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) with
/// [`Phase::Wait`](crate::Phase::Wait): see
/// [`LockError::is_not_granted`](crate::LockError::is_not_granted). Cancel safe ([C11]).
///
/// A mode that is chosen at run time:
///
/// ```
/// # use distlock_api::{LockError, LockGuard, LockProvider, LockProviderExt, Mode};
/// async fn open(locks: &dyn LockProvider, report: u64, rebuild: bool) -> Result<LockGuard, LockError> {
///     let mode = if rebuild { Mode::Exclusive } else { Mode::Shared };
///     locks.acquire(("reports", report)).mode(mode).await
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let locks = distlock_memory::MemoryProvider::new();
/// # let _readers = [open(&locks, 7, false).await?, open(&locks, 7, false).await?];
/// # let _writer = open(&locks, 8, true).await?;
/// # Ok(())
/// # }
/// ```
///
/// A lease that lingers, for a key that one process uses again and again. Only the first of these
/// acquisitions sends a request:
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{LockError, LockProviderExt};
/// # use distlock_memory::{MemoryStore, Operation};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), LockError> {
/// # let store = MemoryStore::new();
/// # let locks = store.provider();
/// for item in 1..=3 {
///     let order = locks.acquire("orders/4711").linger(Duration::from_millis(200)).await?;
///     println!("item {item}, token {}", order.fencing_token());
///     order.release().await?;
/// }
/// # assert_eq!(store.calls(Operation::TryAcquire), 1);
/// # Ok(())
/// # }
/// ```
///
/// [C11]: distlock_api::contract#c11
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct Acquire<T> {
    target: T,
    options: AcquireOptions,
}

impl<T> Acquire<T> {
    acquire_setters!();
    mode_setters!();
    wait_setters!();
}

impl<T: sealed::Target> Acquire<T> {
    /// Acquires, runs what `work` returns while the lock is held, and releases. `work` gets the
    /// [`FencingToken`] of the grant.
    ///
    /// # Errors
    /// Those of the acquisition; [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost
    /// before the work had ended, or the release found it lost. A release that could not be
    /// confirmed is logged, not returned: the work was done under the lock.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use distlock_api::{FencingToken, LockProvider, LockProviderExt, LockError};
    /// # async fn ship_order(_: u64, _: FencingToken) -> u32 { 1 }
    /// async fn ship(locks: &dyn LockProvider) -> Result<(), LockError> {
    ///     let parcels = locks
    ///         .acquire(("orders", 4711))
    ///         .timeout(Duration::from_secs(5))
    ///         .run(async |token| ship_order(4711, token).await)
    ///         .await?;
    ///     println!("{parcels} parcels");
    ///     Ok(())
    /// }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(FencingToken) -> F) -> Result<F::Output> {
        run(self.await?, work).await
    }
}

async fn run<F: Future>(guard: LockGuard, work: impl FnOnce(FencingToken) -> F) -> Result<F::Output> {
    let output = guard.run(work(guard.fencing_token())).await?;
    let key = guard.key().clone();
    finish_run(output, Some(&key), guard.release().await)
}

impl<T: sealed::Target> IntoFuture for Acquire<T> {
    type Output = Result<LockGuard>;
    type IntoFuture = AcquireFuture<T::Acquiring>;

    #[inline]
    fn into_future(self) -> AcquireFuture<T::Acquiring> {
        // For the error of a wait that ends without the lock, so only if the wait has an end. A
        // clone writes to memory that threads with the same key share.
        let key = match self.options.wait() {
            Wait::Forever => None,
            Wait::Try | Wait::UpTo(_) => self.target.key().cloned(),
        };
        AcquireFuture { key, inner: self.target.start(self.options) }
    }
}

/// The future of an [`Acquire`].
#[must_use = "futures do nothing unless polled"]
pub struct AcquireFuture<F> {
    key: Option<LockKey>,
    inner: F,
}

impl<F> fmt::Debug for AcquireFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireFuture").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<F: Future<Output = Result<Acquired>> + Unpin> Future for AcquireFuture<F> {
    type Output = Result<LockGuard>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.inner).poll(cx))? {
            Acquired::Held(guard) => Ok(guard),
            Acquired::Busy(_) => {
                let error = LockError::not_granted();
                Err(match self.key.take() {
                    Some(key) => error.with_key(key),
                    None => error,
                })
            }
        })
    }
}

/// The acquisition of a lock without a wait; await it to get the [`LockGuard`], or `None` if the
/// lock is busy; or call [`run`](Self::run). Made by [`LockProviderExt::try_acquire`] and
/// [`DistributedLockExt::try_acquire`].
///
/// Errors are those of [`LockProvider::acquire_with`]. Cancel safe ([C11]).
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{LockError, LockProvider, LockProviderExt};
/// # async fn remove_old_reports() {}
/// async fn clean_up(locks: &dyn LockProvider) -> Result<(), LockError> {
///     // Waits up to 2 s for another server.
///     let attempt = locks.try_acquire("jobs/clean-up").within(Duration::from_secs(2));
///     let Some(guard) = attempt.await? else {
///         println!("another server does it");
///         return Ok(());
///     };
///     guard.run(remove_old_reports()).await?;
///     guard.release().await?;
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), LockError> {
/// # let locks = distlock_memory::MemoryProvider::new();
/// # clean_up(&locks).await?;
/// # let _elsewhere = locks.acquire("jobs/clean-up").await?;
/// # clean_up(&locks).await
/// # }
/// ```
///
/// [C11]: distlock_api::contract#c11
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct TryAcquire<T> {
    target: T,
    options: AcquireOptions,
}

impl<T> TryAcquire<T> {
    acquire_setters!();
    mode_setters!();
    try_setters!();
}

impl<T: sealed::Target> TryAcquire<T> {
    /// Acquires, runs what `work` returns while the lock is held, and releases. Returns `None`,
    /// without a call of `work`, if the lock is busy.
    ///
    /// # Errors
    /// As [`Acquire::run`], except that a busy lock is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    ///
    /// ```
    /// # use distlock_api::{LockProvider, LockProviderExt, LockError};
    /// # async fn clean_up() {}
    /// async fn nightly(locks: &dyn LockProvider) -> Result<(), LockError> {
    ///     if locks.try_acquire("jobs/clean-up").run(async |_| clean_up().await).await?.is_none() {
    ///         println!("another server does it");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(FencingToken) -> F) -> Result<Option<F::Output>> {
        match self.await? {
            Some(guard) => run(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl<T: sealed::Target> IntoFuture for TryAcquire<T> {
    type Output = Result<Option<LockGuard>>;
    type IntoFuture = TryAcquireFuture<T::Acquiring>;

    #[inline]
    fn into_future(self) -> TryAcquireFuture<T::Acquiring> {
        TryAcquireFuture { inner: self.target.start(self.options) }
    }
}

/// The future of a [`TryAcquire`].
#[must_use = "futures do nothing unless polled"]
pub struct TryAcquireFuture<F> {
    inner: F,
}

impl<F> fmt::Debug for TryAcquireFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryAcquireFuture").finish_non_exhaustive()
    }
}

impl<F: Future<Output = Result<Acquired>> + Unpin> Future for TryAcquireFuture<F> {
    type Output = Result<Option<LockGuard>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(cx).map_ok(Acquired::held)
    }
}
