//! The fluent calls.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::style::yield_on_error;
use distlock_api::{AcquireOptions, IntoLockKey, LockKey, Result, Wait, acquire_setters};

use super::{Fingerprint, Once, OnceOptions, OnceProvider};

/// Fluent calls on every [`OnceProvider`], `dyn OnceProvider` included.
pub trait OnceProviderExt: OnceProvider {
    /// Begins the work of a key, or answers what is known of it. Waits for work that is under way,
    /// without a limit unless a [`timeout`](BeginOnce::timeout) is set.
    ///
    /// Await it to get the answer, [`Once`]. See [`BeginOnce`] for the options and errors.
    fn once(&self, key: impl IntoLockKey) -> BeginOnce<'_, Self> {
        BeginOnce::new(self, key.into_lock_key(), AcquireOptions::new())
    }

    /// As [`once`](Self::once), but does not wait for work that is under way.
    fn try_once(&self, key: impl IntoLockKey) -> BeginOnce<'_, Self> {
        BeginOnce::new(self, key.into_lock_key(), AcquireOptions::try_once())
    }
}

impl<P: OnceProvider + ?Sized> OnceProviderExt for P {}

/// The beginning of a key's work; await it to get the answer, [`Once`]. Made by
/// [`OnceProviderExt::once`] and [`OnceProviderExt::try_once`].
///
/// Errors are those of [`OnceProvider::once_with`]. Work that does not end within the wait is no
/// error, but [`Once::Busy`]. Cancel safe.
#[must_use = "nothing is begun until this is awaited"]
pub struct BeginOnce<'a, P: ?Sized> {
    provider: &'a P,
    key: Result<LockKey>,
    once: OnceOptions,
    options: AcquireOptions,
}

impl<'a, P: ?Sized> BeginOnce<'a, P> {
    fn new(provider: &'a P, key: Result<LockKey>, options: AcquireOptions) -> Self {
        Self { provider, key, once: OnceOptions::new(), options }
    }

    acquire_setters!();

    /// Replaces the lease terms, the holder and the wait.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets how long to wait for work that is under way, measured from the call.
    #[doc(alias = "within")]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
    }

    /// Sets how long the outcome is kept, in whole milliseconds. Defaults to a day.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.once = self.once.with_keep(keep);
        self
    }

    /// Sets the fingerprint of the request: some bytes or a text, at most 1,024 bytes. If the key
    /// was begun with another one, the answer is [`Once::Mismatch`]. Defaults to none, which is
    /// equal to every other.
    pub fn fingerprint(mut self, fingerprint: impl AsRef<[u8]>) -> Self {
        self.once = self.once.with_fingerprint(Fingerprint::new(fingerprint));
        self
    }

    /// Never begins work that was interrupted: the answer is then [`Once::Interrupted`]. Defaults
    /// to beginning it again.
    ///
    /// ```
    /// # use distlock_api::LockError;
    /// # use distlock_recipes::once::{Once, OnceProviderExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let payments = distlock_memory::MemoryOnce::new();
    /// # drop(payments.once(("payments", 7)).await?); // a run that is interrupted
    /// match payments.once(("payments", 7)).at_most_once().await? {
    ///     Once::Begun(mut work) => work.complete("receipt 1").await?,
    ///     Once::Done(outcome) => println!("paid at {:?}", outcome.at()),
    ///     Once::Interrupted(run) => println!("ask the bank: a payment was begun at {:?}", run.since),
    ///     _ => println!("another server is paying"),
    /// }
    /// # assert!(matches!(payments.once(("payments", 7)).at_most_once().await?, Once::Interrupted(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_most_once(mut self) -> Self {
        self.once = self.once.at_most_once();
        self
    }
}

impl<'a, P: OnceProvider + ?Sized> IntoFuture for BeginOnce<'a, P> {
    type Output = Result<Once>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { provider, key, once, options } = self;
        match key {
            Ok(key) => provider.once_with(key, once.with_acquire(options)),
            Err(error) => Box::pin(yield_on_error(std::future::ready(Err(error)))),
        }
    }
}

impl<P: ?Sized> fmt::Debug for BeginOnce<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("BeginOnce");
        match &self.key {
            Ok(key) => shown.field("key", key),
            Err(error) => shown.field("error", error),
        };
        shown.field("once", &self.once).field("options", &self.options).finish_non_exhaustive()
    }
}
