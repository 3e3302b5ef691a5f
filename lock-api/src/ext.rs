//! The fluent calls that every provider and every lock has.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::all::AcquireAll;
use crate::error::{LockError, Phase, Result};
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::options::{AcquireOptions, Wait};
use crate::parse::IntoLockKey;
use crate::provider::{Acquired, DistributedLock, Lock, LockProvider};
use crate::setters::acquire_setters;
use crate::token::FencingToken;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Fluent calls on every [`LockProvider`], `dyn LockProvider` included.
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{LockProvider, LockProviderExt, LockError};
/// async fn ship(locks: &dyn LockProvider) -> Result<(), LockError> {
///     // wait up to 5 s
///     let guard = locks.acquire("orders/4711").timeout(Duration::from_secs(5)).await?;
///     let _ = guard.release().await?;
///
///     // do not wait
///     if let Some(guard) = locks.try_acquire("orders/4711").await? {
///         println!("ours, token {}", guard.fencing_token());
///     }
///     Ok(())
/// }
/// ```
pub trait LockProviderExt: LockProvider {
    /// Acquires a lock; waits for ever unless told otherwise. See [`Acquire`] for what can be set, and await it.
    #[inline]
    fn acquire(&self, key: impl IntoLockKey) -> Acquire<OfProvider<'_, Self>> {
        Acquire { target: OfProvider { provider: self, key: key.into_lock_key() }, options: AcquireOptions::new() }
    }

    /// Acquires a lock if that can be done at once. See [`TryAcquire`] for what can be set, and await it.
    #[inline]
    fn try_acquire(&self, key: impl IntoLockKey) -> TryAcquire<OfProvider<'_, Self>> {
        TryAcquire {
            target: OfProvider { provider: self, key: key.into_lock_key() },
            options: AcquireOptions::try_once(),
        }
    }

    /// Acquires several locks, all or nothing, in an order that cannot deadlock (C21). See [`AcquireAll`].
    fn acquire_all<K: IntoLockKey>(&self, keys: impl IntoIterator<Item = K>) -> AcquireAll<'_, Self> {
        AcquireAll::new(self, keys.into_iter().map(IntoLockKey::into_lock_key).collect())
    }

    /// One key of this provider as a value of its own, which coerces to `Arc<dyn DistributedLock>`.
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
    /// Acquires the lock; waits for ever unless told otherwise. See [`Acquire`] for what can be set, and await it.
    fn acquire(&self) -> Acquire<OfLock<'_, Self>> {
        Acquire { target: OfLock { lock: self }, options: AcquireOptions::new() }
    }

    /// Acquires the lock if that can be done at once. See [`TryAcquire`] for what can be set, and await it.
    fn try_acquire(&self) -> TryAcquire<OfLock<'_, Self>> {
        TryAcquire { target: OfLock { lock: self }, options: AcquireOptions::try_once() }
    }
}

impl<L: DistributedLock + ?Sized> DistributedLockExt for L {}

mod sealed {
    use super::{AcquireOptions, Acquired, Future, LockKey, Result};

    /// What an acquisition is made on.
    pub trait Target {
        type Acquiring: Future<Output = Result<Acquired>> + Send + Unpin;

        fn key(&self) -> Option<&LockKey>;

        fn start(self, options: AcquireOptions) -> Self::Acquiring;
    }
}

/// A key of a provider. See [`LockProviderExt::acquire`].
pub struct OfProvider<'a, P: ?Sized> {
    provider: &'a P,
    key: Result<LockKey>,
}

impl<P: ?Sized> fmt::Debug for OfProvider<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfProvider").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<'a, P: LockProvider + ?Sized> sealed::Target for OfProvider<'a, P> {
    type Acquiring = BoxFuture<'a, Result<Acquired>>;

    #[inline]
    fn key(&self) -> Option<&LockKey> {
        self.key.as_ref().ok()
    }

    #[inline]
    fn start(self, options: AcquireOptions) -> Self::Acquiring {
        match self.key {
            Ok(key) => self.provider.acquire_with(key, options),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// A lock. See [`DistributedLockExt::acquire`].
pub struct OfLock<'a, L: ?Sized> {
    lock: &'a L,
}

impl<L: ?Sized> fmt::Debug for OfLock<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfLock").finish_non_exhaustive()
    }
}

impl<'a, L: DistributedLock + ?Sized> sealed::Target for OfLock<'a, L> {
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

/// An acquisition being described; await it to get the [`LockGuard`].
///
/// Errors, besides those of [`LockProvider::acquire_with`]: a wait that ended without the lock is
/// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) with [`Phase::Wait`]. Cancel safe (C11).
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct Acquire<T> {
    target: T,
    options: AcquireOptions,
}

impl<T> Acquire<T> {
    acquire_setters!();

    /// All options at once, the wait included.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = options;
        self
    }

    /// Wait at most this long. Defaults to waiting for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
    }
}

impl<T: sealed::Target> Acquire<T> {
    /// Acquires, runs what `work` returns while the lock is held, and releases.
    ///
    /// # Errors
    /// Those of the acquisition; [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost before the work had ended, or the release found it lost.
    /// A release that could not be confirmed is logged, not returned: the work was done under the lock.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases in the background.
    pub async fn run<F: Future>(self, work: impl FnOnce(FencingToken) -> F) -> Result<F::Output> {
        let guard = self.await?;
        let output = guard.run(work(guard.fencing_token())).await?;
        let key = guard.key().clone();
        match guard.release().await {
            Ok(outcome) if outcome.is_released() => Ok(output),
            Ok(_) => Err(crate::guard::lost_error(crate::Loss::Gone).with_key(key)),
            Err(error) => {
                tracing::warn!(lock.key = %key, %error, "release not confirmed");
                Ok(output)
            }
        }
    }
}

impl<T: sealed::Target> IntoFuture for Acquire<T> {
    type Output = Result<LockGuard>;
    type IntoFuture = AcquireFuture<T::Acquiring>;

    #[inline]
    fn into_future(self) -> AcquireFuture<T::Acquiring> {
        // For the error of a wait that ends without the lock, so only if the wait has an end: a clone writes to memory that threads with the same key share.
        let key = match self.options.wait() {
            Wait::Forever => None,
            Wait::Try | Wait::UpTo(_) => self.target.key().cloned(),
        };
        AcquireFuture { key, inner: self.target.start(self.options) }
    }
}

/// A running [`Acquire`].
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
                let error = LockError::timeout(Phase::Wait, "the lock is held by somebody else");
                Err(match self.key.take() {
                    Some(key) => error.with_key(key),
                    None => error,
                })
            }
        })
    }
}

/// An acquisition without waiting being described; await it to get the [`LockGuard`], or none if somebody else
/// holds the lock. Errors are those of [`LockProvider::acquire_with`]. Cancel safe (C11).
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct TryAcquire<T> {
    target: T,
    options: AcquireOptions,
}

impl<T> TryAcquire<T> {
    acquire_setters!();

    /// All options at once. The wait counts only if it has an end: without one this is still a try.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = match options.wait() {
            Wait::Forever => options.with_wait(Wait::Try),
            Wait::Try | Wait::UpTo(_) => options,
        };
        self
    }

    /// Wait at most this long before answering none. Defaults to not at all.
    #[doc(alias = "timeout")]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
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

/// A running [`TryAcquire`].
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
