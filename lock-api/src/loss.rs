//! The loss of a lock: how it happened, and a future that resolves with it.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::task::coop::unconstrained;

use crate::style::yield_on_error;

/// The reason why a lock was lost before its guard was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// No renewal was confirmed before the deadline ([C3]).
    ///
    /// [C3]: distlock_api::contract#c3
    Expired,
    /// The store answered that this lease does not exist any longer.
    Gone,
    /// An operator took it away by [`force_release`](crate::LockAdmin::force_release).
    ForceReleased,
    /// The provider was shut down while the guard was alive.
    Closed,
    /// It was held for as long as its [`max_hold`](crate::LeaseOptions::max_hold) allows.
    HeldTooLong,
}

impl Loss {
    /// Returns the loss as a short lower-case word, for logs and metric labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::ForceReleased => "force_released",
            Self::Closed => "closed",
            Self::HeldTooLong => "held_too_long",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was confirmed before the lease's deadline",
            Self::Gone => "the store answered that the lease is no longer held",
            Self::ForceReleased => "the lock was force-released",
            Self::Closed => "the lock provider was shut down",
            Self::HeldTooLong => "the lock was held for as long as its max_hold allows",
        })
    }
}

/// A future that resolves when a lock is lost. Made by [`LockGuard::lost`](crate::LockGuard::lost).
// The mutex is never locked: it makes the signal `Sync`.
#[must_use = "futures do nothing unless polled"]
pub struct LostSignal(Option<Mutex<Pin<Box<dyn Future<Output = Loss> + Send>>>>);

impl LostSignal {
    /// Makes a signal that resolves with the given future. For backends.
    ///
    /// The future is not subject to tokio's cooperative budget. Else a task that has used its
    /// budget up in other futures would not see the loss, and would continue with its work.
    pub fn new(signal: impl Future<Output = Loss> + Send + 'static) -> Self {
        Self(Some(Mutex::new(Box::pin(unconstrained(signal)))))
    }

    /// Makes a signal that never resolves, for locks that cannot be lost.
    pub const fn never() -> Self {
        Self(None)
    }
}

impl Future for LostSignal {
    type Output = Loss;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Loss> {
        match &mut self.0 {
            Some(signal) => signal.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal").finish_non_exhaustive()
    }
}

/// Drives `future` until it ends or the lock is lost.
///
/// A loss that has happened already wins, and the future is not polled.
///
/// # Errors
/// How the lock was lost. The future has been dropped then.
///
/// # Cancel safety
/// As cancel safe as the future.
pub async fn until_lost<F: Future>(mut lost: LostSignal, future: F) -> Result<F::Output, Loss> {
    let ended = async {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(loss) = Pin::new(&mut lost).poll(cx) {
                return Poll::Ready(Err(loss));
            }
            future.as_mut().poll(cx).map(Ok)
        })
        .await
    };
    // A loss is final: each further call would fail at once.
    yield_on_error(ended).await
}
