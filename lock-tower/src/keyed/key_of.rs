//! Which keys a request of any kind locks.

use std::time::Duration;

use distlock_api::Mode;

use crate::held::HeldLock;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Names the locks of a request that is not HTTP.
///
/// Implemented by every closure `Fn(&Req) -> Result<Option<K>, E>` whose `K` is a
/// [`LockKey`](distlock_api::LockKey), several of them, or a [`KeySet`], and whose `E` is a
/// [`KeyRejection`] or a [`LockError`](distlock_api::LockError). Implement it for a type of your
/// own to pass the [`HeldLock`] to the service, to report how long the caller waits, or to choose
/// the mode.
pub trait KeyOf<Req> {
    /// Returns the keys of a request. With `None` or an empty set it passes without a lock.
    ///
    /// # Errors
    /// When the request does not name a valid key.
    fn keys(&self, request: &Req) -> Result<Option<KeySet>, KeyRejection>;

    /// Returns the mode in which a request acquires its keys. Defaults to [`Mode::Exclusive`].
    fn mode(&self, request: &Req) -> Mode {
        let _ = request;
        Mode::Exclusive
    }

    /// Returns how much longer the caller waits, if that is known. It shortens the layer's wait.
    /// Defaults to unknown.
    fn deadline(&self, request: &Req) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Is called when the request has its locks and is about to be served. Defaults to doing
    /// nothing.
    fn granted(&self, request: &mut Req, held: HeldLock) {
        let _ = (request, held);
    }

    /// Returns the name of these keys in spans and metrics. Defaults to `custom`.
    fn class(&self) -> &str {
        "custom"
    }
}

impl<F, Req, K, E> KeyOf<Req> for F
where
    F: Fn(&Req) -> Result<Option<K>, E>,
    K: Into<KeySet>,
    E: Into<KeyRejection>,
{
    fn keys(&self, request: &Req) -> Result<Option<KeySet>, KeyRejection> {
        Ok(self(request).map_err(Into::into)?.map(Into::into))
    }
}
