//! The guard of a held lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{LockError, Result};
use crate::key::LockKey;
use crate::loss::{Loss, LostSignal, until_lost};
use crate::token::FencingToken;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The outcome of a release ([C9]). It can be ignored: a loss is also counted, and the lease engine
/// logs it. Work that must know it calls [`is_released`](Self::is_released), or
/// [`run`](crate::Acquire::run), where a loss is an error.
///
/// [C9]: distlock_api::contract#c9
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The lock was held until now and is free.
    Released,
    /// The lock had been lost before. Nothing was changed for its present holder ([C8]).
    ///
    /// This does not mean that the work overlapped with another holder's. A lease that was handed
    /// over by another process starts with a short claim, by default 1 s plus the margin. The
    /// claim is renewed to the full ttl in the background. If the store stalls at that moment, the
    /// claim can end before a release that was sent in time is carried out. Where it matters, let
    /// the resource decide by the fencing token.
    ///
    /// [C8]: distlock_api::contract#c8
    AlreadyLost,
}

impl ReleaseOutcome {
    /// Returns whether the lock was held until the release.
    #[must_use]
    pub const fn is_released(self) -> bool {
        matches!(self, Self::Released)
    }
}

/// A guard that has a fencing token, for helpers that pass the token to a resource.
///
/// [`LockGuard`] has it, and so have the guards of typed styles, such as a locked document of
/// `distlock-mongo`. Implement it for a guard of your own.
///
/// ```
/// use distlock_api::{FencedRegister, FencedWrite, HasFencingToken};
///
/// fn store(balance: &FencedRegister<i64>, guard: &impl HasFencingToken, value: i64) -> FencedWrite {
///     balance.write(guard.fencing_token(), value)
/// }
/// ```
pub trait HasFencingToken {
    /// Returns the key of the lock.
    fn key(&self) -> &LockKey;

    /// Returns the token of this grant. See [`LockGuard::fencing_token`].
    fn fencing_token(&self) -> FencingToken;
}

impl HasFencingToken for LockGuard {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

/// The backend's side of a [`LockGuard`]: one held lock.
///
/// Dropping it must release in the background ([C11]). `distlock-engine` implements it for every
/// `LeaseStore`. Implement it in a backend that implements [`LockProvider`](crate::LockProvider)
/// itself, and in a wrapper that observes releases.
///
/// [C11]: distlock_api::contract#c11
pub trait LeaseHandle: Send + Sync + 'static {
    /// Returns the monotonic instant until which the lock is held unless a renewal moves it; `None`
    /// if it never expires.
    fn valid_until(&self) -> Option<Instant>;

    /// Returns how the lock was lost, if it was. Once `Some`, always `Some` ([C4]).
    ///
    /// [C4]: distlock_api::contract#c4
    fn loss(&self) -> Option<Loss>;

    /// Returns a future that resolves when the lock is lost, no later than
    /// [`valid_until`](Self::valid_until), which moves with renewals. It never resolves if the lock
    /// is released first.
    fn lost(&self) -> LostSignal;

    /// Releases, and returns the outcome. When the returned future is dropped early, the release
    /// continues in the background.
    fn release(self: Box<Self>) -> ReleaseFuture;

    /// Releases a lock under which no work was done: without the minimum hold. Defaults to
    /// [`release`](Self::release).
    fn discard(self: Box<Self>) -> ReleaseFuture {
        self.release()
    }

    /// Stops renewing the lock without a release, so that it ends with its ttl. Defaults to a drop,
    /// which releases in the background: right for locks that never expire.
    fn abandon(self: Box<Self>) {
        drop(self);
    }
}

/// A held lock. Dropping it releases in the background; [`release`](Self::release) also returns
/// whether the lock was held until then.
///
/// # Validity
/// The guard considers itself lost at a deadline. The deadline is always earlier than the moment at
/// which the store would grant the lock to another caller ([C3]). While the process is alive the
/// lease is renewed, and the deadline moves.
///
/// A process that was paused beyond the deadline finds the guard lost *when it looks*. Between the
/// last look and a write, only the [fencing token](Self::fencing_token) protects, if the resource
/// itself checks it.
///
/// Time is measured by the monotonic clock, which stands still while the machine is suspended. On
/// Linux every look at a lease of the engine also reads `CLOCK_BOOTTIME`, which does not stand
/// still. A laptop or virtual machine that slept beyond the deadline finds the guard lost when it
/// wakes. On other systems the next renewal finds it.
///
/// A virtual machine that was paused by its host, or continues from a snapshot, has no clock that
/// shows it. There, trust the token alone.
///
/// # Drop
/// Dropping starts a background release on the runtime that acquired the lock. If that runtime is
/// gone, and there is no current one, the lease ends with its ttl.
///
/// ```
/// # use distlock_api::{LockProvider, LockProviderExt, LockError};
/// # async fn charge(_: u64) {}
/// async fn settle(locks: &dyn LockProvider) -> Result<(), LockError> {
///     let guard = locks.acquire("invoices/7").await?;
///     // Dropped at once if the lock is lost.
///     guard.run(charge(guard.fencing_token().get())).await?;
///     if !guard.release().await?.is_released() {
///         println!("the lock had been lost before the release");
///     }
///     Ok(())
/// }
/// ```
///
/// [C3]: distlock_api::contract#c3
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    key: LockKey,
    token: FencingToken,
    handle: Box<dyn LeaseHandle>,
}

impl LockGuard {
    /// Makes a guard of a backend's handle. For backends.
    #[inline]
    pub fn new(key: LockKey, token: FencingToken, handle: Box<dyn LeaseHandle>) -> Self {
        Self { key, token, handle }
    }

    /// Returns the key, as the caller named it.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Returns the token of this grant. It never changes and is never read again from the store
    /// ([C6]).
    ///
    /// [C6]: distlock_api::contract#c6
    #[must_use]
    #[inline]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns whether the lock is lost. Once true, always true ([C4]). Reads the clock, and never
    /// the network.
    ///
    /// [C4]: distlock_api::contract#c4
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.handle.loss().is_some()
    }

    /// Returns how the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.handle.loss()
    }

    /// Returns a future that resolves when the lock is lost ([C4]). It resolves no later than the
    /// deadline even if every call to the store hangs, and at once when the store reports the loss.
    /// It does not borrow the guard. After a release it never resolves.
    ///
    /// # Cancel safety
    /// Dropping it has no effect. A guard gives any number of them.
    ///
    /// ```
    /// # use distlock_api::LockGuard;
    /// async fn work(guard: &LockGuard, mut step: impl AsyncFnMut()) {
    ///     let mut lost = guard.lost();
    ///     loop {
    ///         tokio::select! {
    ///             biased;
    ///             loss = &mut lost => return println!("stopped: {loss}"),
    ///             () = step() => {}
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// [C4]: distlock_api::contract#c4
    pub fn lost(&self) -> LostSignal {
        self.handle.lost()
    }

    /// Returns the monotonic instant until which the lock is held unless a renewal moves it ([C3]).
    /// `None` if it never expires.
    ///
    /// [C3]: distlock_api::contract#c3
    #[must_use]
    pub fn valid_until(&self) -> Option<Instant> {
        self.handle.valid_until()
    }

    /// Returns how much longer the lock is held unless a renewal extends it: zero when it is lost,
    /// `None` if it never expires.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        if self.is_lost() {
            return Some(Duration::ZERO);
        }
        self.valid_until().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Releases the lock, and returns whether it was held until now ([C9]).
    ///
    /// # Errors
    /// When the store did not confirm the release, the error's disposition is
    /// [`OutcomeUnknown`](crate::Disposition::OutcomeUnknown): the lock may or may not be free. The
    /// engine repeats the release in the background until the lease has expired.
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, the release continues in the background.
    ///
    /// [C9]: distlock_api::contract#c9
    #[inline]
    pub fn release(self) -> ReleaseFuture {
        self.handle.release()
    }

    /// Gives back a lock under which no work was done: like [`release`](Self::release), but without
    /// the minimum hold ([C25]), so that another caller can do the work.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, it continues in the background.
    ///
    /// [C25]: distlock_api::contract#c25
    pub fn discard(self) -> ReleaseFuture {
        self.handle.discard()
    }

    /// Stops renewing the lock without a release: the key stays closed to all callers, this process
    /// included, until its ttl ends. For work that failed in such a way that others should keep
    /// away for a while. Counted as [abandoned](crate::Accounting::abandoned) ([C23]).
    ///
    /// Sends nothing. A renewal that is in flight can move the end once more. A backend whose locks
    /// never expire releases it.
    ///
    /// [C23]: distlock_api::contract#c23
    pub fn abandon(self) {
        self.handle.abandon();
    }

    /// Runs a future while the lock is held: drops it and fails as soon as the lock is lost.
    ///
    /// The lock stays held, and the guard can be used again. To acquire, run and release in one
    /// call, see [`Acquire::run`](crate::Acquire::run).
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost before the future had
    /// finished. What the future did until its last await is done.
    ///
    /// # Cancel safety
    /// As cancel safe as the given future.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        until_lost(self.lost(), future).await.map_err(|loss| LockError::lost(loss).with_key(self.key.clone()))
    }

    /// Returns the guard under another key. For wrappers that translate keys.
    pub fn with_key(mut self, key: LockKey) -> Self {
        self.key = key;
        self
    }

    /// Returns the guard with its handle wrapped. For wrappers that observe loss and release.
    pub fn map_handle(self, wrap: impl FnOnce(Box<dyn LeaseHandle>) -> Box<dyn LeaseHandle>) -> Self {
        Self { handle: wrap(self.handle), ..self }
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

/// The running or finished release of a lock. Made by [`LockGuard::release`].
#[must_use = "dropping the future releases in the background, and the outcome is lost"]
pub struct ReleaseFuture(ReleaseState);

enum ReleaseState {
    Done(Option<Result<ReleaseOutcome>>),
    Running(BoxFuture<Result<ReleaseOutcome>>),
}

impl ReleaseFuture {
    /// Makes a release that has ended. For backends.
    #[inline]
    pub const fn done(result: Result<ReleaseOutcome>) -> Self {
        Self(ReleaseState::Done(Some(result)))
    }

    /// Makes a release that is in flight. Dropping the future must not stop it. For backends.
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
