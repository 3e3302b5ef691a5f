//! The guard of a held lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{ErrorKind, LockError, Result};
use crate::key::LockKey;
use crate::token::FencingToken;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// How a lock was lost before its guard was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the deadline (C3).
    Expired,
    /// The store says that the lease is no longer ours.
    Gone,
    /// Somebody took it away by [`force_release`](crate::LockAdmin::force_release).
    ForceReleased,
    /// The provider was shut down while the guard was alive.
    Closed,
}

impl Loss {
    /// The loss as a short lower-case word, for logs and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::ForceReleased => "force_released",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was confirmed before the lease's deadline",
            Self::Gone => "the store says that the lease is held no more",
            Self::ForceReleased => "the lock was force-released",
            Self::Closed => "the lock provider was shut down",
        })
    }
}

/// What became of a release (C9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "`AlreadyLost` means that somebody else may have held the lock while you worked"]
pub enum ReleaseOutcome {
    /// The lock was ours until now and is free.
    Released,
    /// The lock had been lost before; nothing was changed for its present holder (C8).
    ///
    /// It does not say that the work overlapped with another holder's. A lease that was handed over
    /// by another process starts with a short claim, 1 s plus the margin by default, which is renewed to the
    /// full ttl in the background. If the store stalls at that very moment, the claim can end before
    /// a release that was sent in time is carried out. Where it matters, the resource decides, by
    /// the fencing token.
    AlreadyLost,
}

impl ReleaseOutcome {
    /// Whether the lock was held until the release.
    #[must_use]
    pub const fn is_released(self) -> bool {
        matches!(self, Self::Released)
    }
}

/// What a backend keeps behind a [`LockGuard`].
///
/// Dropping it must release in the background (C11). The engine implements it for every
/// `LeaseStore` of `distlock-engine`; a backend that implements [`LockProvider`](crate::LockProvider) itself, and
/// a wrapper that wants to see releases, implement it too.
pub trait HeldLock: Send + Sync + 'static {
    /// The monotonic instant until which the lock is held if nothing is heard from the store; none if it never expires.
    fn valid_until(&self) -> Option<Instant>;

    /// How the lock was lost, if it was. Once some, always some (C4).
    fn loss(&self) -> Option<Loss>;

    /// Resolves when the lock is lost, no later than [`valid_until`](Self::valid_until) as it moves with renewals;
    /// never, if it is released first.
    fn lost(&self) -> LostSignal;

    /// Releases and says what became of it. When the returned future is dropped early the release goes on in the background.
    fn release(self: Box<Self>) -> ReleaseFuture;

    /// Releases a lock under which nothing was done: without the minimum hold. Defaults to [`release`](Self::release).
    fn discard(self: Box<Self>) -> ReleaseFuture {
        self.release()
    }

    /// Stops keeping the lock without giving it back, so that it ends by its ttl. Defaults to a drop, that is a release in the background: right for locks that never
    /// expire.
    fn abandon(self: Box<Self>) {
        drop(self);
    }
}

/// A held lock. Dropping it releases in the background; [`release`](Self::release) tells whether that was in time.
///
/// # Validity
/// The guard considers itself lost at a deadline that is always earlier than the moment at which the store would give the
/// lock to somebody else (C3). While the process is alive the lease is renewed, and the deadline moves. A process that
/// was paused beyond the deadline finds the guard lost *when it looks*: between the last look and a write there is no
/// protection but the [fencing token](Self::fencing_token), checked by the resource itself.
///
/// Time is measured by the monotonic clock, which stands still while the machine is suspended. On Linux
/// every look at a lease of the engine also reads `CLOCK_BOOTTIME`, which does not: a laptop or virtual
/// machine that slept beyond the deadline finds the guard lost when it wakes. Elsewhere that is found by
/// the next renewal. A virtual machine that was paused by its host, or goes on from a snapshot, has
/// neither clock to tell it: there only the token is to be trusted.
///
/// # Drop
/// Dropping starts a background release on the runtime that acquired the lock. Without a runtime the lease ends by its ttl.
///
/// ```
/// # use distlock_api::{LockProvider, LockProviderExt, LockError};
/// # async fn charge(_: u64) {}
/// async fn settle(locks: &dyn LockProvider) -> Result<(), LockError> {
///     let guard = locks.acquire("invoices/7").await?;
///     guard.run(charge(guard.fencing_token().get())).await?; // dropped at once if the lock is lost
///     let _ = guard.release().await?;
///     Ok(())
/// }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    key: LockKey,
    token: FencingToken,
    held: Box<dyn HeldLock>,
}

impl LockGuard {
    /// A guard around what a backend holds.
    #[inline]
    pub fn new(key: LockKey, token: FencingToken, held: Box<dyn HeldLock>) -> Self {
        Self { key, token, held }
    }

    /// The key, as the caller named it.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// The token of this grant. It never changes and is never read again from the store (C6).
    #[must_use]
    #[inline]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Whether the lock is lost. Once true, always true (C4). Looks at the monotonic clock, never at the network.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.loss().is_some()
    }

    /// How the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.held.loss()
    }

    /// A future that resolves when the lock is lost: no later than the deadline even if every call to the store hangs, and at once
    /// when the store says so (C4). It does not borrow the guard. After a release it never resolves.
    ///
    /// # Cancel safety
    /// Dropping it has no effect; ask for as many as you like.
    pub fn lost(&self) -> LostSignal {
        self.held.lost()
    }

    /// How much longer the lock is held if nothing is heard from the store: zero when it is lost, none if it never expires.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        if self.is_lost() {
            return Some(Duration::ZERO);
        }
        self.held.valid_until().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Releases the lock and says whether it was held until now (C9).
    ///
    /// # Errors
    /// When the store did not confirm the release the error's disposition is
    /// [`OutcomeUnknown`](crate::Disposition::OutcomeUnknown): the lock may or may not be free. The engine goes on trying in the background
    /// until the lease has expired.
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, the release goes on in the background.
    #[inline]
    pub fn release(self) -> ReleaseFuture {
        self.held.release()
    }

    /// Gives back a lock under which nothing was done: like [`release`](Self::release), but without the minimum hold
    /// (C25), so that somebody else can do the work.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, it goes on in the background.
    pub fn discard(self) -> ReleaseFuture {
        self.held.discard()
    }

    /// Stops keeping the lock without giving it back: it is not renewed any more, and everybody else, this process included, gets it when its ttl ends. For work that went wrong in a way that others
    /// should be kept away from for a while. Counted as [abandoned](crate::Accounting::abandoned) (C23).
    ///
    /// Nothing is sent. A renewal that is under way can move the end once more. A backend whose locks never expire releases it.
    pub fn abandon(self) {
        self.held.abandon();
    }

    /// Runs a future while the lock is held: drops it and fails as soon as the lock is lost.
    ///
    /// The lock is neither released nor lost by this; the guard can be used again.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before the future had finished. What the future did until its last
    /// await has been done.
    ///
    /// # Cancel safety
    /// As cancel safe as the given future.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        race_loss(self.lost(), future).await.map_err(|loss| lost_error(loss).with_key(self.key.clone()))
    }

    /// The same guard under another name, for wrappers that translate keys.
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.key = key;
        self
    }

    /// The same guard around a wrapped backend value, for wrappers that observe loss and release.
    pub fn map_held(self, wrap: impl FnOnce(Box<dyn HeldLock>) -> Box<dyn HeldLock>) -> Self {
        Self { key: self.key, token: self.token, held: wrap(self.held) }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key)
            .field("token", &self.token.get())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

/// Drives `future` unless the loss comes first; a loss that is already there wins without polling it.
pub(crate) async fn race_loss<F: Future>(mut lost: LostSignal, future: F) -> std::result::Result<F::Output, Loss> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(loss) = Pin::new(&mut lost).poll(cx) {
            return Poll::Ready(Err(loss));
        }
        future.as_mut().poll(cx).map(Ok)
    })
    .await
}

pub(crate) fn lost_error(loss: Loss) -> LockError {
    LockError::new(ErrorKind::Lost, format!("the lock was lost: {loss}"))
}

/// Resolves when a lock is lost. Made by [`LockGuard::lost`].
#[must_use = "futures do nothing unless polled"]
pub struct LostSignal(Option<BoxFuture<Loss>>);

impl LostSignal {
    /// A signal that resolves with the given future.
    pub fn new(signal: impl Future<Output = Loss> + Send + 'static) -> Self {
        Self(Some(Box::pin(signal)))
    }

    /// A signal that never comes, for locks that cannot be lost.
    pub const fn never() -> Self {
        Self(None)
    }
}

impl Future for LostSignal {
    type Output = Loss;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        match &mut self.0 {
            Some(signal) => signal.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal").finish_non_exhaustive()
    }
}

/// The answer of a release, perhaps still on its way. Made by [`LockGuard::release`].
#[must_use = "dropping the future releases in the background, and nobody hears whether it was in time"]
pub struct ReleaseFuture(ReleaseState);

enum ReleaseState {
    Done(Option<Result<ReleaseOutcome>>),
    Running(BoxFuture<Result<ReleaseOutcome>>),
}

impl ReleaseFuture {
    /// A release that has already ended.
    #[inline]
    pub const fn done(result: Result<ReleaseOutcome>) -> Self {
        Self(ReleaseState::Done(Some(result)))
    }

    /// A release that is on its way. Dropping the future must not stop it.
    pub fn running(release: impl Future<Output = Result<ReleaseOutcome>> + Send + 'static) -> Self {
        Self(ReleaseState::Running(Box::pin(release)))
    }
}

impl Future for ReleaseFuture {
    type Output = Result<ReleaseOutcome>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ReleaseState::Done(result) => Poll::Ready(result.take().expect("polled after completion")),
            ReleaseState::Running(release) => release.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for ReleaseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseFuture").finish_non_exhaustive()
    }
}
