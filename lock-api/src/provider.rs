//! The two object-safe traits of the crate.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin::LockAdmin;
use crate::capabilities::Capabilities;
use crate::delegate_provider;
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::options::AcquireOptions;

/// Grants locks by key. Applications hold an `Arc<dyn LockProvider>` and choose the backend in
/// `main`.
///
/// The fluent calls are in [`LockProviderExt`](crate::LockProviderExt), which every provider has:
/// `acquire(key)`, `try_acquire(key)`, `acquire_all(keys)`, `try_acquire_all(keys)` and
/// `lock(key)`.
///
/// # Contract
/// A provider keeps the clauses C1–C31 of the [`contract`](crate::contract); the conformance suite
/// checks them. The most important ones: locks are exclusive per key ([C1]) and not re-entrant
/// ([C7]). Calls are bounded in time by the caller ([C18]) and cancel safe ([C11]). Locks are
/// independent of each other ([C20]).
///
/// # Wrappers
/// A wrapper is a provider around a provider. [`acquire_with`](Self::acquire_with) is the one
/// method that it must wrap. [`acquire_now`](Self::acquire_now) is a short cut, which answers
/// `None` unless it is wrapped, too. The other methods can be
/// [delegated](crate::delegate_provider). See [`Namespaced`](crate::Namespaced) and
/// [`Instrumented`](crate::Instrumented) for examples. The [`Display`](fmt::Display) of a wrapper
/// names the provider inside.
///
/// [C1]: distlock_api::contract#c1
/// [C7]: distlock_api::contract#c7
/// [C11]: distlock_api::contract#c11
/// [C18]: distlock_api::contract#c18
/// [C20]: distlock_api::contract#c20
#[async_trait]
pub trait LockProvider: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Acquires the lock of a key, with the given options.
    ///
    /// Contention is an answer, not an error: [`Acquired::Busy`] when the lock was not granted
    /// within the wait.
    ///
    /// # Errors
    /// * [`InvalidOptions`](crate::ErrorKind::InvalidOptions) before any I/O;
    /// * [`Unsupported`](crate::ErrorKind::Unsupported) before any I/O, for an option that
    ///   [`capabilities`](Self::capabilities) does not promise;
    /// * [`Timeout`](crate::ErrorKind::Timeout) with [`Phase::Request`](crate::Phase::Request) when
    ///   the store did not answer until the time was up;
    /// * [`Closed`](crate::ErrorKind::Closed) after or during [`close`](Self::close);
    /// * any other error of the store. While time is left, retryable errors are retried ([C13]);
    ///   with [`Wait::Try`](crate::Wait::Try) they are returned.
    ///
    /// After an error the caller holds nothing: an attempt whose outcome is unknown is withdrawn in
    /// the background.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future at any await leaves neither lease nor waiter behind, after
    /// a bounded clean-up ([C11]).
    ///
    /// As with any fair lock, a future that is kept but not polled keeps its position in the queue.
    /// Drop an acquisition that is no longer polled, such as the loser of a `select!`.
    ///
    /// # Cooperation
    /// A call that is answered without I/O lets other tasks run, above all where it is refused
    /// ([C18]): its caller may repeat it at once. See
    /// [`yield_on_error`](crate::style::yield_on_error).
    ///
    /// [C11]: distlock_api::contract#c11
    /// [C13]: distlock_api::contract#c13
    /// [C18]: distlock_api::contract#c18
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired>;

    /// Acquires the lock of a key if that takes neither a wait nor I/O. Returns the answer that
    /// [`acquire_with`](Self::acquire_with) would give without either. After `None`, which means
    /// that there is no such answer and that nothing was changed, call `acquire_with`.
    ///
    /// A short cut for callers with many keys that are mostly free, such as middleware: it makes no
    /// future, and allocates nothing for one. Defaults to `None`, which is right for every provider
    /// that has to query a store.
    ///
    /// # Examples
    /// A wrapper that counts calls. After `None` the caller continues with `acquire_with`, which
    /// counts the call:
    ///
    /// ```
    /// # use std::fmt;
    /// # use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// #
    /// # use distlock_api::{AcquireOptions, Acquired, LockKey, LockProvider, Result, async_trait, delegate_provider};
    /// #
    /// # #[derive(Debug)]
    /// # struct Counted<P> { inner: P, calls: AtomicU64 }
    /// #
    /// # impl<P: LockProvider> fmt::Display for Counted<P> {
    /// #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    /// #         write!(f, "Counted({})", self.inner)
    /// #     }
    /// # }
    /// #
    /// # #[async_trait]
    /// impl<P: LockProvider> LockProvider for Counted<P> {
    ///     fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
    ///         let answer = self.inner.acquire_now(key, options)?;
    ///         self.calls.fetch_add(1, Relaxed);
    ///         Some(answer)
    ///     }
    ///     async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
    ///         self.calls.fetch_add(1, Relaxed);
    ///         self.inner.acquire_with(key, options).await
    ///     }
    ///     delegate_provider!(this => this.inner; capabilities, accounting, admin, close);
    /// }
    /// ```
    ///
    /// A caller:
    ///
    /// ```
    /// # use distlock_api::{AcquireOptions, Acquired, LockError, LockKey, LockProvider};
    /// async fn acquire(locks: &dyn LockProvider, key: LockKey) -> Result<Acquired, LockError> {
    ///     let options = AcquireOptions::new();
    ///     match locks.acquire_now(&key, &options) {
    ///         Some(answer) => answer,
    ///         None => locks.acquire_with(key, options).await,
    ///     }
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = distlock_memory::MemoryProvider::new();
    /// # assert!(acquire(&locks, LockKey::new("orders/4711")?).await?.held().is_some());
    /// # let store = distlock_memory::MemoryStore::new();
    /// # assert!(acquire(&store.provider(), LockKey::new("orders/4711")?).await?.held().is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire_with`](Self::acquire_with).
    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        let _ = (key, options);
        None
    }

    /// Returns what this provider promises beyond what is required. It may grow after the first
    /// answer of the server: only then a MongoDB provider can tell whether there are pushes.
    ///
    /// A library that shares locks where the provider can:
    ///
    /// ```
    /// # use distlock_api::{LockError, LockGuard, LockProvider, LockProviderExt, Mode};
    /// async fn read_prices(locks: &dyn LockProvider) -> Result<LockGuard, LockError> {
    ///     // A mode that the provider does not have would be refused with `Unsupported`.
    ///     let mode = if locks.capabilities().shared { Mode::Shared } else { Mode::Exclusive };
    ///     locks.acquire("prices").mode(mode).await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = distlock_memory::MemoryProvider::new();
    /// # let _readers = [read_prices(&locks).await?, read_prices(&locks).await?];
    /// # Ok(())
    /// # }
    /// ```
    fn capabilities(&self) -> Capabilities;

    /// Returns how many acquisitions there were, and how they ended ([C23]).
    ///
    /// [C23]: distlock_api::contract#c23
    fn accounting(&self) -> Accounting;

    /// Returns the administration, if the backend offers it.
    fn admin(&self) -> Option<&dyn LockAdmin>;

    /// Shuts down ([C24]): refuses new acquisitions, wakes waiters with
    /// [`Closed`](crate::ErrorKind::Closed), and releases every lease, whose guard is lost then.
    ///
    /// Returns when all of this is settled, or after a bounded time. With the lease engine it is
    /// two request timeouts (10 s by default), and half a millisecond more for each lease while
    /// leases are being released. After that no task of the provider runs any longer, and unsettled
    /// calls are given up. Further calls wait for the same end.
    ///
    /// # Errors
    /// When leases could not be released, or clean-ups of earlier calls have not ended. Each
    /// release was tried independently. Leases that are left in the store end with their ttl.
    ///
    /// # Cancel safety
    /// The provider stays closed; call again to wait for the rest.
    ///
    /// [C24]: distlock_api::contract#c24
    async fn close(&self) -> Result<()>;
}

/// One lock: one key of one provider. For code that needs a lock but must not choose its name.
///
/// The fluent calls are in [`DistributedLockExt`](crate::DistributedLockExt).
#[async_trait]
pub trait DistributedLock: fmt::Debug + Send + Sync + 'static {
    /// Returns the key.
    fn key(&self) -> &LockKey;

    /// Acquires this lock, with the given options: as [`LockProvider::acquire_with`] with its key.
    ///
    /// # Errors
    /// As [`LockProvider::acquire_with`].
    async fn acquire_with(&self, options: AcquireOptions) -> Result<Acquired>;
}

/// The answer to an acquisition.
#[derive(Debug)]
#[must_use]
pub enum Acquired {
    /// The lock is held by the caller.
    Held(LockGuard),
    /// The lock was not granted within the wait.
    Busy(Busy),
}

impl Acquired {
    /// Returns the guard, or `None` if the lock is busy.
    #[must_use]
    #[inline]
    pub fn held(self) -> Option<LockGuard> {
        match self {
            Self::Held(guard) => Some(guard),
            Self::Busy(_) => None,
        }
    }
}

/// Details about a lock that was not granted, as far as the backend has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The time until the lock is free at the latest, if its holder neither renews nor releases it.
    /// Of several holders, the time until the first one's lease ends.
    pub retry_after: Option<Duration>,
    /// The number of waiters ahead.
    pub ahead: Option<u32>,
}

impl Busy {
    /// Makes an answer without details.
    #[must_use]
    pub const fn new() -> Self {
        Self { retry_after: None, ahead: None }
    }

    /// Sets the time until the lock is free at the latest.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Sets the number of waiters ahead.
    #[must_use]
    pub const fn with_ahead(mut self, ahead: Option<u32>) -> Self {
        self.ahead = ahead;
        self
    }
}

/// Counters since the provider was made. At every moment
/// `acquired = released + lost + abandoned + held` ([C23]).
///
/// [C23]: distlock_api::contract#c23
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accounting {
    /// Guards that were granted.
    pub acquired: u64,
    /// Leases that the store confirmed as released.
    pub released: u64,
    /// Leases lost before they were released. Leases that [`close`](LockProvider::close) released
    /// count as released, although their guards are lost.
    pub lost: u64,
    /// Leases left to their ttl: the release could not be sent or was never confirmed.
    pub abandoned: u64,
    /// Leases held now, including those whose release has not ended.
    pub held: u64,
    /// Callers that wait now.
    pub waiting: u64,
    /// Requests that the store has not answered yet, and clean-ups that it has not confirmed,
    /// including those in the background. While there are any, a key without a holder may be busy
    /// for a moment: an acquisition whose caller has left is granted first and then withdrawn
    /// ([C11]).
    ///
    /// [C11]: distlock_api::contract#c11
    pub unsettled: u64,
}

impl Accounting {
    /// Makes counters that are all zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { acquired: 0, released: 0, lost: 0, abandoned: 0, held: 0, waiting: 0, unsettled: 0 }
    }

    /// Returns whether the equation above holds.
    #[must_use]
    pub const fn balances(&self) -> bool {
        self.acquired == self.released + self.lost + self.abandoned + self.held
    }
}

impl std::ops::AddAssign for Accounting {
    fn add_assign(&mut self, other: Self) {
        self.acquired += other.acquired;
        self.released += other.released;
        self.lost += other.lost;
        self.abandoned += other.abandoned;
        self.held += other.held;
        self.waiting += other.waiting;
        self.unsettled += other.unsettled;
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

macro_rules! forward_provider {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<P: LockProvider + ?Sized> LockProvider for $pointer<P> {
            // Written out, so that the future inside is not boxed a second time.
            fn acquire_with<'a, 'f>(&'a self, key: LockKey, options: AcquireOptions) -> BoxFuture<'f, Result<Acquired>>
            where
                'a: 'f,
                Self: 'f,
            {
                (**self).acquire_with(key, options)
            }

            delegate_provider!(this => **this; acquire_now, capabilities, accounting, admin, close);
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: DistributedLock + ?Sized> DistributedLock for $pointer<L> {
            fn key(&self) -> &LockKey {
                (**self).key()
            }

            fn acquire_with<'a, 'f>(&'a self, options: AcquireOptions) -> BoxFuture<'f, Result<Acquired>>
            where
                'a: 'f,
                Self: 'f,
            {
                (**self).acquire_with(options)
            }
        }
    )*};
}

forward_provider!(Arc, Box);

/// One key of a provider, as a [`DistributedLock`]. Made by
/// [`LockProviderExt::lock`](crate::LockProviderExt::lock).
#[derive(Clone, Debug)]
pub struct Lock<P> {
    provider: P,
    key: LockKey,
}

impl<P: LockProvider> Lock<P> {
    /// Makes the lock of a key.
    pub fn new(provider: P, key: LockKey) -> Self {
        Self { provider, key }
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.provider
    }
}

#[async_trait]
impl<P: LockProvider> DistributedLock for Lock<P> {
    fn key(&self) -> &LockKey {
        &self.key
    }

    async fn acquire_with(&self, options: AcquireOptions) -> Result<Acquired> {
        self.provider.acquire_with(self.key.clone(), options).await
    }
}
