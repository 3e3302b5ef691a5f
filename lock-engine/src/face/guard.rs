//! The engine for typed styles: guards that carry more than a lock.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;

use distlock_api::style::yield_on_error;
use distlock_api::{
    Busy, ErrorKind, FencingToken, LeaseHandle, LockError, LockGuard, LockKey, Loss, LostSignal, ReleaseFuture,
    ReleaseOutcome, Result,
};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::run::commit::RefusedCommit;
use crate::run::held::{GiveUp, HeldLease};
use crate::store::{Claim, WriteOp, Written};

/// The answer to [`LeaseProvider::acquire_via`](crate::LeaseProvider::acquire_via).
#[derive(Debug)]
#[must_use]
pub enum AcquiredLease {
    /// The caller holds the lease.
    Held(LeaseGuard),
    /// It was not granted within the wait.
    Busy(Busy),
}

/// A held lease, the base for guards of typed styles. It does what a [`LockGuard`] does, and also
/// makes writes that are atomic with the check that the lease is held. Dropping it releases the
/// lease in the background.
///
/// Returned by [`LeaseProvider::acquire_via`](crate::LeaseProvider::acquire_via). The methods that
/// it shares with `LockGuard` do the same.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LeaseGuard(Box<HeldLease>);

impl LeaseGuard {
    pub(crate) fn new(held: HeldLease) -> Self {
        Self(Box::new(held))
    }

    /// Returns the acquisition, with what its operation has [kept in it](Claim::op_state).
    #[must_use]
    pub fn claim(&self) -> &Claim {
        self.0.lease().claim()
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.0.lease().key()
    }

    /// Returns the token of this grant ([C6]).
    ///
    /// [C6]: distlock_api::contract#c6
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.token()
    }

    /// Returns the monotonic instant until which the lease is held if the store does not answer
    /// again.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.0.valid_until()
    }

    /// Returns how the lease was lost, if it was ([C4]).
    ///
    /// [C4]: distlock_api::contract#c4
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss()
    }

    /// Returns a future that resolves when the lease is lost; see [`LockGuard::lost`]. It does not
    /// resolve while a commit is under way. It resolves afterwards if the commit finds the lease
    /// lost.
    pub fn lost(&self) -> LostSignal {
        self.0.lost()
    }

    /// Releases the lease; see [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, the release continues in the background.
    pub fn release(self) -> ReleaseFuture {
        self.0.release()
    }

    /// Releases the lease without the minimum hold; see [`LockGuard::discard`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// As [`release`](Self::release).
    pub fn discard(self) -> ReleaseFuture {
        self.0.discard()
    }

    /// Stops renewing the lease without releasing it; see [`LockGuard::abandon`].
    pub fn abandon(self) {
        self.0.abandon();
    }

    /// Writes and keeps the lease. Nothing is sent if the engine already knows that the lease is
    /// lost. The operation's own condition decides in any case.
    ///
    /// Calls of unknown outcome, and those that certainly did nothing, are repeated within the
    /// request timeout. If the answer is [`AlreadyLost`](Written::AlreadyLost), the lease is lost.
    ///
    /// # Errors
    /// Those of the operation. With an unknown outcome the lease is held as before.
    /// [`Unsupported`](ErrorKind::Unsupported) for a shared lease or permits, before any I/O.
    ///
    /// # Cancel safety
    /// When the future is dropped, the write continues in the background, and may or may not be
    /// applied. A late write must not harm writes that are made after it.
    pub async fn write_via(&self, op: Arc<dyn WriteOp>) -> Result<Written> {
        let refused = self.ensure_exclusive().map(|()| self.loss().is_some());
        match refused {
            Ok(false) => self.0.write(op).await,
            // Nothing was sent: a caller that repeats the call at once must not keep the thread.
            refused => {
                yield_now().await;
                refused.map(|_| Written::AlreadyLost)
            }
        }
    }

    /// Releases the lease by a write that does so in the same atomic step. Returns whether the
    /// lease was held until then ([C9]). Nothing is sent if the engine already knows that the lease
    /// is lost. The operation's own condition decides in any case.
    ///
    /// Calls of unknown outcome, and those that certainly did nothing, are repeated within the
    /// request timeout; after an unknown outcome also in the background, until the lease expires.
    /// Until there is an answer, the lease is renewed, because the write may be refused. Until then
    /// it is not lost either, whatever the store reports, because the write may have been applied.
    ///
    /// # Errors
    /// See [`NotCommitted`]. [`Unsupported`](ErrorKind::Unsupported) for a shared lease or permits,
    /// before any I/O.
    ///
    /// # Cancel safety
    /// When the future is dropped, polled or not, the call in flight is finished in the background;
    /// the write may or may not be applied. What is left of the lease then is released ([C11]).
    ///
    /// [C9]: distlock_api::contract#c9
    /// [C11]: distlock_api::contract#c11
    pub fn release_via(
        self,
        op: Arc<dyn WriteOp>,
    ) -> impl Future<Output = std::result::Result<ReleaseOutcome, NotCommitted>> + Send + 'static {
        self.commit(op, GiveUp::Used)
    }

    /// Releases the lease as [`release_via`](Self::release_via), without the minimum hold. For a
    /// write that takes the work under the lease back; see [`discard`](Self::discard).
    ///
    /// # Errors
    /// As [`release_via`](Self::release_via).
    ///
    /// # Cancel safety
    /// As [`release_via`](Self::release_via).
    pub fn discard_via(
        self,
        op: Arc<dyn WriteOp>,
    ) -> impl Future<Output = std::result::Result<ReleaseOutcome, NotCommitted>> + Send + 'static {
        self.commit(op, GiveUp::Unused)
    }

    fn commit(
        mut self,
        op: Arc<dyn WriteOp>,
        how: GiveUp,
    ) -> impl Future<Output = std::result::Result<ReleaseOutcome, NotCommitted>> + Send + 'static {
        let job = match self.ensure_exclusive() {
            Ok(()) => Ok(self.0.begin_commit(op, how)),
            Err(error) => Err(NotCommitted { error, guard: Some(self) }),
        };
        async move {
            let Some(job) = yield_on_error(ready(job)).await? else { return Ok(ReleaseOutcome::AlreadyLost) };
            let refused = |(error, held): (LockError, Option<RefusedCommit>)| NotCommitted {
                error,
                guard: held.map(|held| Self::new(held.into())),
            };
            job.run().await.map_err(refused)
        }
    }

    /// A write is atomic with the check of an exclusive lease only: others may hold the key too.
    fn ensure_exclusive(&self) -> Result<()> {
        let mode = self.claim().mode();
        if mode.is_exclusive() {
            return Ok(());
        }
        let message =
            format!("a write under the lock needs an exclusive lease, and this one is {mode}: acquire exclusively");
        Err(LockError::new(ErrorKind::Unsupported, message).with_key(self.key().clone()))
    }

    /// Returns the same lease as the guard of a plain lock.
    pub fn into_guard(self) -> LockGuard {
        let (key, token) = (self.key().clone(), self.fencing_token());
        LockGuard::new(key, token, self.0)
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseGuard")
            .field("key", self.key())
            .field("token", &self.fencing_token().get())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}

/// The error of a [commit](LeaseGuard::release_via) that is not known to have been applied.
#[derive(Debug)]
#[non_exhaustive]
pub struct NotCommitted {
    /// The error. With a [permanent](distlock_api::Disposition::Permanent) disposition the write
    /// was refused; with a retryable one it could not be made. In both cases nothing was changed.
    /// Otherwise it may have been applied.
    pub error: LockError,
    /// The lease, held as before. `None` if the outcome is unknown: the write is then repeated in
    /// the background, and ends the lease.
    pub guard: Option<LeaseGuard>,
}
