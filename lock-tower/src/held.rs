//! The view that a handler has of its lock.

use std::sync::Arc;

use distlock_api::{FencingToken, HasFencingToken, LockKey, Loss, LostSignal, Mode};

use crate::gate::{Gate, Hold, Slot};

/// The lock under which a request is served: its key, its fencing token, and whether it is lost.
///
/// [`LockLayer`](crate::LockLayer) adds it to the extensions of each request that it serves under a
/// lock, exclusive or shared. With the feature `axum` it is an extractor, too: `Option<HeldLock>`
/// for routes where requests may pass without a lock. Keeping this view does not prolong the hold.
///
/// Write the [`fencing_token`](Self::fencing_token) with the data, and have the resource refuse
/// smaller ones. Only this protects against a process that was paused for longer than its lease.
#[derive(Clone, Debug)]
pub struct HeldLock {
    slot: Arc<Slot>,
    /// What further layers of the request hold.
    further: Option<Arc<HeldLock>>,
}

impl HeldLock {
    /// The view of this hold.
    pub(crate) fn of(hold: &Hold) -> Self {
        Self { slot: hold.slot().clone(), further: None }
    }

    /// The view of a request that also holds this.
    pub(crate) fn beside(self, other: Self) -> Self {
        let further = match self.further {
            None => other,
            Some(further) => other.beside(Self::clone(&further)),
        };
        Self { slot: self.slot, further: Some(Arc::new(further)) }
    }

    /// Returns those of the keys that the request holds in modes that exclude this one, each with
    /// the gate of the layer that holds it.
    pub(crate) fn excluding(&self, keys: &[LockKey], mode: Mode) -> Vec<(LockKey, Arc<Gate>)> {
        let mut found = Vec::new();
        let mut next = Some(self);
        while let Some(held) = next {
            if !mode.fits([held.slot.mode()]) {
                let keys = held.grants().iter().map(|(key, _)| key).filter(|key| keys.contains(key));
                found.extend(keys.map(|key| (key.clone(), held.slot.gate().clone())));
            }
            next = held.further.as_deref();
        }
        found
    }

    /// Returns the key. Of several, the first.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        &self.grants()[0].0
    }

    /// Returns the fencing token of the [`key`](Self::key).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.grants()[0].1
    }

    /// Returns all keys with their fencing tokens, in the order of the keys. There is at least one.
    #[must_use]
    pub fn grants(&self) -> &[(LockKey, FencingToken)] {
        self.slot.grants()
    }

    /// Returns the fencing token of one of the keys.
    #[must_use]
    pub fn token_of(&self, key: &LockKey) -> Option<FencingToken> {
        self.grants().iter().find(|(granted, _)| granted == key).map(|(_, token)| *token)
    }

    /// Returns whether the lock was lost while the request was served. Reads the monotonic clock,
    /// and never uses the network.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns how the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.slot.loss()
    }

    /// Resolves when the lock is lost. After a release it never resolves.
    ///
    /// # Cancel safety
    /// Dropping the signal has no effect. There may be any number of signals.
    pub fn lost(&self) -> LostSignal {
        self.slot.lost()
    }
}

/// With several keys, the key and the token are those of the first.
impl HasFencingToken for HeldLock {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;
    use std::fmt;

    use axum::body::Body;
    use axum::extract::{FromRequestParts, OptionalFromRequestParts};
    use axum::response::{IntoResponse, Response};
    use http::request::Parts;

    use super::HeldLock;
    use crate::refusal::{Reason, Refusal};

    /// The rejection of a handler that needs a [`HeldLock`] and got a request without a lock. This
    /// is a mistake in the set-up, and is answered with 500 and the problem document of
    /// [`Reason::Misconfigured`]. What to do is in the log.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct NotLocked;

    impl fmt::Display for NotLocked {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the handler needs a `HeldLock`, but no `LockLayer` has locked the request: add the layer to this route, or take `Option<HeldLock>` if it lets requests pass")
        }
    }

    impl std::error::Error for NotLocked {}

    impl IntoResponse for NotLocked {
        fn into_response(self) -> Response {
            tracing::error!("{self}");
            Refusal::new(Reason::Misconfigured).to_response().map(Body::from).into_response()
        }
    }

    impl<S: Sync> FromRequestParts<S> for HeldLock {
        type Rejection = NotLocked;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotLocked> {
            parts.extensions.get::<Self>().cloned().ok_or(NotLocked)
        }
    }

    impl<S: Sync> OptionalFromRequestParts<S> for HeldLock {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
            Ok(parts.extensions.get::<Self>().cloned())
        }
    }
}

#[cfg(feature = "axum")]
pub use extract::NotLocked;
