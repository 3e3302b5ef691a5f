//! The guard of work that was begun, and the error of a completion.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::style::{until_lost, yield_on_error};
use distlock_api::{FencingToken, HasFencingToken, LockError, LockKey, Loss, LostSignal, Result};
use tokio::time::Instant;

use super::{OnceOptions, OnceRun};

/// What a backend has to offer for a guard. Dropping it ends the lease in the background, and
/// leaves the work interrupted.
#[async_trait]
pub trait OnceHandle: Send + Sync + 'static {
    /// How the lease was lost, if it was. Once `Some`, always `Some`.
    fn loss(&self) -> Option<Loss>;

    /// Returns a future that resolves when the lease is lost.
    fn lost(&self) -> LostSignal;

    /// Returns the monotonic instant until which the lease is held unless a renewal moves it.
    /// `None` if it never expires.
    fn valid_until(&self) -> Option<Instant>;

    /// Remembers the value and ends the lease in one step, if the lease is held at that moment. A
    /// repeated call returns what has become of the first one, also if that was dropped.
    async fn complete(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted>;

    /// Ends the lease and restores what was known before the work was begun, in one step, if the
    /// lease is held at that moment.
    async fn discard(&mut self) -> Result<(), NotCompleted>;
}

/// Work that was begun. It ends with [`complete`](Self::complete), which remembers an outcome, or
/// with [`discard`](Self::discard), which leaves no trace.
///
/// Dropping it does neither: the lease ends in the background, and the next caller is told that the
/// work was [interrupted](super::OnceState::Interrupted). So does a crash, after the ttl.
///
/// The lease is renewed while the guard lives. Validity and loss are those of
/// [`LockGuard`](distlock_api::LockGuard).
#[must_use = "the work is interrupted as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct OnceGuard {
    key: LockKey,
    token: FencingToken,
    interrupted: Option<OnceRun>,
    handle: Box<dyn OnceHandle>,
}

impl OnceGuard {
    /// Makes a guard of a backend's handle. For backends.
    pub fn new(key: LockKey, token: FencingToken, interrupted: Option<OnceRun>, handle: Box<dyn OnceHandle>) -> Self {
        Self { key, token, interrupted, handle }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the token of this run, for the resources that the work writes to. Later runs of the
    /// key have greater ones.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the earlier run that was begun and neither completed nor discarded, if there was
    /// one. It may have done a part of the work.
    ///
    /// Always `None` with [`at_most_once`](super::BeginOnce::at_most_once), which never begins such
    /// work again.
    ///
    /// ```
    /// # use distlock_api::{FencingToken, LockError};
    /// # use distlock_recipes::once::{Once, OnceProviderExt};
    /// # async fn remove_pages(_: FencingToken) {}
    /// # async fn write_pages(_: FencingToken) {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let reports = distlock_memory::MemoryOnce::new();
    /// # drop(reports.once("reports/november").await?); // a run that is interrupted
    /// let Once::Begun(mut work) = reports.once("reports/november").await? else { return Ok(()) };
    /// # assert!(work.interrupted().is_some());
    /// if let Some(earlier) = work.interrupted() {
    ///     // It may have written some pages.
    ///     remove_pages(earlier.token).await;
    /// }
    /// write_pages(work.fencing_token()).await;
    /// work.complete("12 pages").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn interrupted(&self) -> Option<&OnceRun> {
        self.interrupted.as_ref()
    }

    /// Whether the lease is lost. Once true, always true, and [`complete`](Self::complete) is
    /// refused.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.handle.loss().is_some()
    }

    /// How the lease was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.handle.loss()
    }

    /// Returns a future that resolves when the lease is lost. See
    /// [`LockGuard::lost`](distlock_api::LockGuard::lost).
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub fn lost(&self) -> LostSignal {
        self.handle.lost()
    }

    /// Returns the monotonic instant until which the lease is held unless a renewal moves it.
    /// `None` if it never expires.
    #[must_use]
    pub fn valid_until(&self) -> Option<Instant> {
        self.handle.valid_until()
    }

    /// Returns how much longer the lease is held unless a renewal extends it: zero when it is lost,
    /// `None` if it never expires.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        if self.is_lost() {
            return Some(Duration::ZERO);
        }
        self.valid_until().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Runs a part of the work: drops it and fails as soon as the lease is lost. The work stays
    /// begun.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](distlock_api::ErrorKind::Lost) when the lease was lost before the future
    /// had finished.
    ///
    /// # Cancel safety
    /// As cancel safe as the given future.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        until_lost(self.lost(), future).await.map_err(|loss| LockError::lost(loss).with_key(self.key.clone()))
    }

    /// Completes the work: remembers the value and ends the lease in one step, if the lease is held
    /// at that moment by the store's clock. At most
    /// [`MAX_VALUE_LEN`](OnceOptions::MAX_VALUE_LEN) bytes.
    ///
    /// # Errors
    /// See [`NotCompleted`]. After [`Unknown`](NotCompleted::Unknown) call it again: the answer is
    /// then what has become of the first call, so a completion that was written is never reported
    /// as lost. After [`Rejected`](NotCompleted::Rejected) the work is still begun, and another
    /// value can be given.
    ///
    /// # Cancel safety
    /// When the future is dropped, the completion may or may not be made; call it again to learn
    /// which. The lease ends in both cases.
    pub async fn complete(&mut self, value: impl AsRef<[u8]> + Send) -> Result<(), NotCompleted> {
        let value = value.as_ref();
        let valid = OnceOptions::validate_value(value);
        let completed = async {
            valid.map_err(|error| NotCompleted::Rejected(error.with_key(self.key.clone())))?;
            self.handle.complete(Arc::from(value)).await
        };
        yield_on_error(completed).await
    }

    /// Gives the work back without a trace: the next caller begins it as if this run had not been.
    /// What was known before, such as an interrupted run, is known again. For work that has had no
    /// effect.
    ///
    /// ```
    /// # use distlock_api::LockError;
    /// # use distlock_recipes::once::{Once, OnceProviderExt};
    /// # async fn sales_of_november() -> Option<u64> { None }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let reports = distlock_memory::MemoryOnce::new();
    /// let Once::Begun(mut work) = reports.once("reports/november").await? else { return Ok(()) };
    /// match sales_of_november().await {
    ///     Some(sales) => work.complete(format!("{sales} EUR")).await?,
    ///     // Nothing was done yet, so a later call may begin it as new.
    ///     None => work.discard().await?,
    /// }
    /// # let again = reports.once("reports/november").await?.begun().unwrap();
    /// # assert!(again.interrupted().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`NotCompleted`]. If the lease had been lost, the run stays interrupted unless another
    /// one has followed it.
    ///
    /// # Cancel safety
    /// When the future is dropped, the work may be left interrupted. The lease ends in any case.
    #[doc(alias = "abandon")]
    pub async fn discard(mut self) -> Result<(), NotCompleted> {
        self.handle.discard().await
    }

    /// Returns the guard under another key. For wrappers that translate keys.
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.key = key;
        self
    }

    /// Returns the guard with its handle wrapped. For wrappers.
    pub fn map_handle(self, wrap: impl FnOnce(Box<dyn OnceHandle>) -> Box<dyn OnceHandle>) -> Self {
        Self { handle: wrap(self.handle), ..self }
    }
}

impl HasFencingToken for OnceGuard {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

impl fmt::Debug for OnceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceGuard")
            .field("key", &self.key)
            .field("token", &self.token.get())
            .field("interrupted", &self.interrupted)
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

/// Why work was not [completed](OnceGuard::complete), or not
/// [discarded](OnceGuard::discard).
///
/// ```
/// use distlock_recipes::once::{NotCompleted, OnceGuard};
///
/// async fn complete(mut work: OnceGuard, receipt: &str) -> &'static str {
///     loop {
///         match work.complete(receipt).await {
///             Ok(()) => return "remembered",
///             Err(NotCompleted::Lost(_)) => return "nothing is remembered: another caller may do the work again",
///             Err(NotCompleted::Rejected(_)) => return "nothing is remembered yet: give another value",
///             Err(error) => println!("{error}: asking again"),
///         }
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum NotCompleted {
    /// The lease had been lost before, and nothing is remembered of this run. The error's kind is
    /// [`Lost`](distlock_api::ErrorKind::Lost).
    Lost(LockError),
    /// Nothing was written, and the work is still begun.
    Rejected(LockError),
    /// It may or may not be remembered. Call [`complete`](OnceGuard::complete) again, or
    /// [`once`](super::OnceProviderExt::once) later.
    Unknown(LockError),
}

impl NotCompleted {
    /// Makes the error of a lease that was lost. For backends.
    pub fn lost(key: LockKey) -> Self {
        let message = "the lease of this run had ended before: nothing of it is remembered. Call `once` again";
        Self::Lost(LockError::new(distlock_api::ErrorKind::Lost, message).with_key(key))
    }

    /// Returns the error alone.
    #[must_use]
    pub fn into_error(self) -> LockError {
        match self {
            Self::Lost(error) | Self::Rejected(error) | Self::Unknown(error) => error,
        }
    }

    /// Returns a reference to the error.
    #[must_use]
    pub fn error(&self) -> &LockError {
        match self {
            Self::Lost(error) | Self::Rejected(error) | Self::Unknown(error) => error,
        }
    }
}

impl From<NotCompleted> for LockError {
    fn from(error: NotCompleted) -> Self {
        error.into_error()
    }
}

impl fmt::Display for NotCompleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl std::error::Error for NotCompleted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}
