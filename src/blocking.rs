//! Locks for code without `async`, with the feature `blocking`.
//!
//! [`Provider`] wraps any [`LockProvider`]. Its calls block the thread until the store has
//! answered. Leases are renewed in the background, by a runtime that the wrapper owns or borrows.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock::blocking::Provider;
//! use distlock::memory::MemoryProvider;
//!
//! # fn ship(_order: u32, _token: distlock::FencingToken) {}
//! # fn main() -> Result<(), distlock::LockError> {
//! let locks = Provider::new(MemoryProvider::new())?;
//!
//! // Acquires, works, releases. Waits up to 5 s.
//! locks
//!     .acquire(("orders", 4711))
//!     .timeout(Duration::from_secs(5))
//!     .run(|guard| ship(4711, guard.fencing_token()))?;
//!
//! // With a guard.
//! let guard = locks.acquire("reports/daily").call()?;
//! for _page in 1..=3 {
//!     // Work cannot be stopped from outside here, so it checks between its steps.
//!     guard.ensure_held()?;
//! }
//! guard.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! A provider that needs a runtime when it is made, such as `MongoProvider`, is made by
//! [`Provider::connect`].
//!
//! # In async contexts
//! | where the call is made | result |
//! |---|---|
//! | on a thread without a runtime | it blocks the thread |
//! | in a task of a multi-thread runtime, or in its `spawn_blocking` | it blocks the thread; the other tasks move to other threads |
//! | in a current-thread runtime, its `spawn_blocking` included | an error of kind [`Unsupported`](ErrorKind::Unsupported): the call would stop that runtime |
//! | in a `LocalSet` on a multi-thread runtime | it panics, as `tokio::task::block_in_place` does |
//!
//! Async code should call the wrapped [`LockProvider`] instead.
//!
//! # The end of the program
//! A guard that is dropped is released in the background. Call [`Guard::release`], or
//! [`Provider::close`] before the program ends: a release that has not been sent by then leaves the
//! lock to its ttl.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::time::Duration;

use distlock_api::style::finish_run;
use distlock_api::{
    AcquireOptions, ErrorKind, FencingToken, HasFencingToken, IntoLockKey, LockError, LockGuard, LockKey, LockProvider,
    LockProviderExt, Loss, ReleaseOutcome, acquire_setters, mode_setters, try_setters, wait_setters,
};
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};

/// A [`LockProvider`] whose calls block the thread. Clones share the provider and the runtime.
#[derive(Clone)]
pub struct Provider {
    provider: Arc<dyn LockProvider>,
    runtime: Arc<Background>,
}

/// The runtime on which leases are renewed and guards are released.
enum Background {
    /// Ends with the last clone, and with the last guard. `Some` until then.
    Owned(Option<Runtime>),
    Borrowed(Handle),
}

impl Background {
    fn start() -> Result<Self, LockError> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("distlock").enable_all().build();
        runtime.map(|runtime| Self::Owned(Some(runtime))).map_err(|error| {
            LockError::new(ErrorKind::Other, "the runtime of the blocking interface could not be started")
                .with_source(error)
        })
    }

    fn handle(&self) -> &Handle {
        match self {
            Self::Owned(runtime) => runtime.as_ref().expect("taken only by the drop").handle(),
            Self::Borrowed(handle) => handle,
        }
    }

    fn block_on<F: IntoFuture>(&self, call: F) -> Result<F::Output, LockError> {
        let wait = || self.handle().block_on(async move { call.await });
        match Handle::try_current() {
            Err(_) => Ok(wait()),
            Ok(current) if current.runtime_flavor() == RuntimeFlavor::CurrentThread => Err(LockError::new(
                ErrorKind::Unsupported,
                "a blocking call would stop the current-thread runtime of this thread: use the async interface there",
            )),
            Ok(_) => Ok(tokio::task::block_in_place(wait)),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Self::Owned(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            // Without a wait, because the drop may happen in an async context.
            runtime.shutdown_background();
        }
    }
}

impl Provider {
    /// Wraps a provider, with a runtime of its own: one thread.
    ///
    /// # Errors
    /// When the runtime cannot be started.
    pub fn new(provider: impl LockProvider) -> Result<Self, LockError> {
        Ok(Self { provider: Arc::new(provider), runtime: Arc::new(Background::start()?) })
    }

    /// Wraps the provider that a future makes, with a runtime of its own, on which the future runs.
    ///
    /// # Errors
    /// Those of the future; when the runtime cannot be started; when the call is made in a
    /// current-thread runtime.
    ///
    /// ```
    /// # use distlock::LockError;
    /// # use distlock::blocking::Provider;
    /// # use distlock::memory::MemoryProvider;
    /// # fn main() -> Result<(), LockError> {
    /// // With MongoDB: make the client and the provider, and call its `connect`.
    /// let locks = Provider::connect(async { Ok::<_, LockError>(MemoryProvider::new()) })?;
    /// assert!(locks.try_acquire("a").call()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect<P: LockProvider, E: From<LockError>>(make: impl Future<Output = Result<P, E>>) -> Result<Self, E> {
        let runtime = Background::start()?;
        let provider = runtime.block_on(make)??;
        Ok(Self { provider: Arc::new(provider), runtime: Arc::new(runtime) })
    }

    /// Wraps a provider, with a runtime that exists already. The runtime must run for as long as
    /// the locks are used.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a current-thread runtime: it would renew
    /// leases only while it runs something else.
    pub fn with_handle(provider: impl LockProvider, handle: Handle) -> Result<Self, LockError> {
        if handle.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Err(LockError::invalid_options(
                "a current-thread runtime does not renew leases in the background: use a multi-thread runtime",
            ));
        }
        Ok(Self { provider: Arc::new(provider), runtime: Arc::new(Background::Borrowed(handle)) })
    }

    /// Acquires a lock, and waits for it without a limit unless a [`timeout`](Acquire::timeout) is
    /// set. See [`Acquire`].
    pub fn acquire(&self, key: impl IntoLockKey) -> Acquire<'_> {
        Acquire { locks: self, key: key.into_lock_key(), options: AcquireOptions::new() }
    }

    /// Acquires a lock if it is free now. See [`TryAcquire`].
    pub fn try_acquire(&self, key: impl IntoLockKey) -> TryAcquire<'_> {
        TryAcquire { locks: self, key: key.into_lock_key(), options: AcquireOptions::try_once() }
    }

    /// Blocks the thread until an async call has ended, on the runtime of this provider. For calls
    /// that have no blocking form, such as several keys and administration.
    ///
    /// ```
    /// # use distlock::{LockError, LockProviderExt};
    /// # use distlock::blocking::Provider;
    /// # fn transfer(locks: &Provider) -> Result<(), LockError> {
    /// let both = locks.block_on(locks.provider().acquire_all(["accounts/1", "accounts/2"]))??;
    /// locks.block_on(both.release())??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) in a current-thread runtime.
    pub fn block_on<F: IntoFuture>(&self, call: F) -> Result<F::Output, LockError> {
        self.runtime.block_on(call)
    }

    /// Shuts the provider down: releases every lease, and returns when all are settled, or after a
    /// bounded time. See [`LockProvider::close`].
    ///
    /// # Errors
    /// As [`LockProvider::close`]; [`Unsupported`](ErrorKind::Unsupported) in a current-thread
    /// runtime.
    pub fn close(&self) -> Result<(), LockError> {
        self.block_on(self.provider.close())?
    }

    /// Returns the wrapped provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn LockProvider> {
        &self.provider
    }

    fn guard(&self, guard: LockGuard) -> Guard {
        Guard { guard, runtime: Arc::clone(&self.runtime) }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Provider").field(&self.provider).finish()
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocking {}", self.provider)
    }
}

/// The acquisition of a lock: [`call`](Self::call) it to get the [`Guard`], or [`run`](Self::run)
/// work. Made by [`Provider::acquire`].
#[derive(Debug)]
#[must_use = "nothing is acquired until this is called"]
pub struct Acquire<'a> {
    locks: &'a Provider,
    key: Result<LockKey, LockError>,
    options: AcquireOptions,
}

impl Acquire<'_> {
    acquire_setters!();
    mode_setters!();
    wait_setters!();

    /// Acquires the lock.
    ///
    /// # Errors
    /// As [`distlock::Acquire`](crate::Acquire); [`Unsupported`](ErrorKind::Unsupported) in a
    /// current-thread runtime.
    pub fn call(self) -> Result<Guard, LockError> {
        let locks = self.locks;
        let guard = locks.block_on(locks.provider.acquire(self.key?).options(self.options))??;
        Ok(locks.guard(guard))
    }

    /// Acquires the lock, runs `work`, and releases. Work that takes long should call
    /// [`Guard::ensure_held`] between its steps: unlike async work, it is not stopped when the lock
    /// is lost.
    ///
    /// # Errors
    /// Those of [`call`](Self::call); [`ErrorKind::Lost`] when the release found the lock lost. A
    /// release that could not be confirmed is logged, not returned: the work was done under the
    /// lock.
    pub fn run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<T, LockError> {
        run(self.call()?, work)
    }
}

/// The acquisition of a lock without a wait: [`call`](Self::call) it to get the [`Guard`], or
/// [`run`](Self::run) work. Made by [`Provider::try_acquire`].
#[derive(Debug)]
#[must_use = "nothing is acquired until this is called"]
pub struct TryAcquire<'a> {
    locks: &'a Provider,
    key: Result<LockKey, LockError>,
    options: AcquireOptions,
}

impl TryAcquire<'_> {
    acquire_setters!();
    mode_setters!();
    try_setters!();

    /// Acquires the lock. Returns `None` if it is busy.
    ///
    /// # Errors
    /// As [`distlock::TryAcquire`](crate::TryAcquire); [`Unsupported`](ErrorKind::Unsupported) in a
    /// current-thread runtime.
    pub fn call(self) -> Result<Option<Guard>, LockError> {
        let locks = self.locks;
        let guard = locks.block_on(locks.provider.try_acquire(self.key?).options(self.options))??;
        Ok(guard.map(|guard| locks.guard(guard)))
    }

    /// Acquires the lock, runs `work`, and releases. Returns `None`, without a call of `work`, if
    /// the lock is busy.
    ///
    /// # Errors
    /// As [`Acquire::run`], except that a busy lock is no error.
    pub fn run<T>(self, work: impl FnOnce(&Guard) -> T) -> Result<Option<T>, LockError> {
        self.call()?.map(|guard| run(guard, work)).transpose()
    }
}

fn run<T>(guard: Guard, work: impl FnOnce(&Guard) -> T) -> Result<T, LockError> {
    let output = work(&guard);
    let key = guard.key().clone();
    finish_run(output, Some(&key), guard.release())
}

/// A held lock. Dropping it releases in the background; [`release`](Self::release) also returns
/// whether the lock was held until then.
///
/// What [`LockGuard`] says about validity holds here, too.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct Guard {
    guard: LockGuard,
    // Dropped after the guard, whose release it carries out.
    runtime: Arc<Background>,
}

impl Guard {
    /// Returns the key, as the caller named it.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.guard.key()
    }

    /// Returns the token of this grant. See [`LockGuard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Whether the lock is lost. Once true, always true. Reads the clock, and never the network.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// How the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Returns an error if the lock is lost. For work that checks between its steps.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock is lost.
    pub fn ensure_held(&self) -> Result<(), LockError> {
        match self.loss() {
            None => Ok(()),
            Some(loss) => Err(LockError::lost(loss).with_key(self.key().clone())),
        }
    }

    /// Returns how much longer the lock is held unless a renewal extends it: zero when it is lost,
    /// `None` if it never expires.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guard.remaining()
    }

    /// Releases the lock, and returns whether it was held until now. See [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`]; [`Unsupported`](ErrorKind::Unsupported) in a current-thread
    /// runtime, where the release continues in the background.
    pub fn release(self) -> Result<ReleaseOutcome, LockError> {
        let Self { guard, runtime } = self;
        runtime.block_on(guard.release())?
    }

    /// Returns the guard of the async interface. It is renewed, and released in the background,
    /// only while a clone of the [`Provider`] exists.
    pub fn into_inner(self) -> LockGuard {
        self.guard
    }
}

impl HasFencingToken for Guard {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}
