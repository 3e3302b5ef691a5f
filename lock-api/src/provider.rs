//! The two object-safe traits of the crate.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin::LockAdmin;
use crate::error::Result;
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::options::AcquireOptions;

/// Makes locks by key. Applications hold an `Arc<dyn LockProvider>` and choose the backend in `main`.
///
/// The fluent calls – `acquire(key)`, `try_acquire(key)`, `acquire_all(keys)`, `lock(key)` – are in
/// [`LockProviderExt`](crate::LockProviderExt), which every provider has.
///
/// # Contract
/// A provider keeps the clauses C1–C25 of the project's design; the conformance suite checks them. The ones to know: locks are exclusive per key (C1), not re-entrant (C7),
/// bounded in time by the caller (C18), cancel safe (C11), and independent of each other (C20).
///
/// # Wrappers
/// A wrapper is a provider around a provider. [`acquire_with`](Self::acquire_with) is the way in, and the one method to wrap; [`acquire_now`](Self::acquire_now) is a short cut that answers none unless
/// it is wrapped, too: see [`Namespaced`](crate::Namespaced) and [`Instrumented`](crate::Instrumented). The [`Display`](fmt::Display) of a wrapper names what it wraps.
#[async_trait]
pub trait LockProvider: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Acquires the lock of a key, as the options say.
    ///
    /// Contention is an answer: [`Acquired::Busy`] when the lock was not granted within the wait.
    ///
    /// # Errors
    /// * [`InvalidOptions`](crate::ErrorKind::InvalidOptions) before any I/O;
    /// * [`Unsupported`](crate::ErrorKind::Unsupported) before any I/O, for an option that [`capabilities`](Self::capabilities) does not promise;
    /// * [`Timeout`](crate::ErrorKind::Timeout) with [`Phase::Request`](crate::Phase::Request) when the store was silent until the time was up;
    /// * [`Closed`](crate::ErrorKind::Closed) after or during [`close`](Self::close);
    /// * whatever else the store answers. While time is left, retryable errors are retried (C13); with [`Wait::Try`](crate::Wait::Try) they are returned.
    ///
    /// After an error nothing is held: an attempt whose outcome is unknown is withdrawn in the background.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future at any await leaves neither lease nor waiter behind, after a bounded clean-up (C11).
    ///
    /// As with any fair lock, a future that is kept but not polled keeps its place: do not hold on to an acquisition that you have stopped
    /// polling, such as the loser of a `select!`; drop it.
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired>;

    /// Acquires the lock of a key if that takes neither waiting nor I/O: the answer that [`acquire_with`](Self::acquire_with) would give when it is first polled. None says that there is no such answer,
    /// that nothing has happened, and that `acquire_with` is to be asked.
    ///
    /// A short cut for callers with many keys that are mostly free, such as middleware: no future is made, and nothing allocated for one. Defaults to none, which is
    /// right for every provider that has to ask a store.
    ///
    /// # Errors
    /// As [`acquire_with`](Self::acquire_with).
    fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
        let _ = (key, options);
        None
    }

    /// What this provider promises beyond the required. It may grow when the provider has met its server: a MongoDB provider knows after its first
    /// answer whether there are pushes.
    fn capabilities(&self) -> Capabilities;

    /// How many acquisitions there were and what became of them (C23).
    fn accounting(&self) -> Accounting;

    /// Administration, if the backend offers it.
    fn admin(&self) -> Option<&dyn LockAdmin>;

    /// Shuts down (C24): refuses new acquisitions, wakes waiters with [`Closed`](crate::ErrorKind::Closed), releases every lease – their guards are lost –
    /// and returns when all that is settled, or after a bounded time. Either way nothing of the provider runs
    /// any more: what it could not settle by then is given up. Further calls wait for the same end.
    ///
    /// # Errors
    /// When leases could not be released, or clean-ups of earlier calls have not ended. Each was tried
    /// independently; what is left in the store ends by its ttl.
    ///
    /// # Cancel safety
    /// The provider stays closed; call again to wait for the rest.
    async fn close(&self) -> Result<()>;
}

/// One lock: one key of one provider. For code that needs a lock but must not choose its name.
///
/// The fluent calls are in [`DistributedLockExt`](crate::DistributedLockExt).
#[async_trait]
pub trait DistributedLock: fmt::Debug + Send + Sync + 'static {
    /// The key.
    fn key(&self) -> &LockKey;

    /// Acquires this lock, as the options say. As [`LockProvider::acquire_with`] in everything.
    ///
    /// # Errors
    /// As [`LockProvider::acquire_with`].
    async fn acquire_with(&self, options: AcquireOptions) -> Result<Acquired>;
}

/// The answer to an acquisition.
#[derive(Debug)]
#[must_use]
pub enum Acquired {
    /// The lock is ours.
    Held(LockGuard),
    /// It was not granted within the wait.
    Busy(Busy),
}

impl Acquired {
    /// The guard, if there is one.
    #[must_use]
    #[inline]
    pub fn held(self) -> Option<LockGuard> {
        match self {
            Self::Held(guard) => Some(guard),
            Self::Busy(_) => None,
        }
    }
}

/// What is known about a lock that was not granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// When the lock opens at the latest if its holder neither renews nor releases it.
    pub retry_after: Option<Duration>,
    /// How many waiters are known to be ahead.
    pub ahead: Option<u32>,
}

impl Busy {
    /// Busy, and nothing else is known.
    #[must_use]
    pub const fn new() -> Self {
        Self { retry_after: None, ahead: None }
    }

    /// With the time until the lock opens at the latest.
    #[must_use]
    pub const fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// With the number of waiters ahead.
    #[must_use]
    pub const fn with_ahead(mut self, ahead: Option<u32>) -> Self {
        self.ahead = ahead;
        self
    }
}

/// What a provider promises beyond the required. A promise that is not made is refused, never broken silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Leases expire: a holder that died loses the lock after its ttl (C19). Without it the lock is held as long as the process lives.
    pub expiry: bool,
    /// The minimum hold (C25).
    pub minimum_hold: bool,
    /// Grants follow the order of the queue (C15): of the calls within a process, and of the places of the processes across them.
    pub fair: bool,
    /// Waiters and holders hear of changes without asking (C16, C17).
    pub push: bool,
}

/// Counters since the provider was made. At every moment `acquired = released + lost + abandoned + held` (C23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accounting {
    /// Guards handed out.
    pub acquired: u64,
    /// Leases that the store confirmed as released.
    pub released: u64,
    /// Leases lost before they were released. Those that [`close`](LockProvider::close) gave back count as released, although their guards
    /// are lost.
    pub lost: u64,
    /// Leases left to their ttl: the release could not be sent or was never confirmed.
    pub abandoned: u64,
    /// Leases held now, those that are being released included.
    pub held: u64,
    /// Callers that wait now.
    pub waiting: u64,
    /// Requests that the store has not answered yet, and clean-ups that it has not confirmed, those
    /// in the background included. While there are any, a key without a holder may be busy for a
    /// moment: an acquisition whose caller has left is granted first and withdrawn then (C11).
    pub unsettled: u64,
}

impl Accounting {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { acquired: 0, released: 0, lost: 0, abandoned: 0, held: 0, waiting: 0, unsettled: 0 }
    }

    /// Whether every acquisition is accounted for.
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
            // Written out, so that the future inside is not boxed once more.
            fn acquire_with<'a, 'f>(&'a self, key: LockKey, options: AcquireOptions) -> BoxFuture<'f, Result<Acquired>>
            where
                'a: 'f,
                Self: 'f,
            {
                (**self).acquire_with(key, options)
            }

            fn acquire_now(&self, key: &LockKey, options: &AcquireOptions) -> Option<Result<Acquired>> {
                (**self).acquire_now(key, options)
            }

            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            fn accounting(&self) -> Accounting {
                (**self).accounting()
            }

            fn admin(&self) -> Option<&dyn LockAdmin> {
                (**self).admin()
            }

            async fn close(&self) -> Result<()> {
                (**self).close().await
            }
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

/// One key of a provider, as a [`DistributedLock`]. Made by [`LockProviderExt::lock`](crate::LockProviderExt::lock).
#[derive(Clone, Debug)]
pub struct Lock<P> {
    provider: P,
    key: LockKey,
}

impl<P: LockProvider> Lock<P> {
    /// The lock of a key.
    pub fn new(provider: P, key: LockKey) -> Self {
        Self { provider, key }
    }

    /// The provider.
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
