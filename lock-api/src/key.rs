//! The name of a lock.

use std::fmt;
use std::sync::Arc;

use crate::printable::Printable;

/// The name of a lock: a validated, immutable UTF-8 string, cheap to clone.
///
/// Any text of 1 to [`LockKey::MAX_LEN`] bytes is allowed. Two keys are the same lock exactly when
/// their bytes are equal: case, Unicode normalization, NUL, `.`, `$`, `/` and white space are all
/// significant (contract clause [C20]). Nothing is trimmed, folded or escaped.
///
/// Methods that take a key accept text, numbers, `Uuid`s and pairs as well: see
/// [`IntoLockKey`](crate::IntoLockKey).
///
/// Keys order by their bytes. [`acquire_all`](crate::LockProviderExt::acquire_all) acquires several
/// locks in that order, so callers that name the same keys in different orders cannot deadlock
/// ([C21]).
///
/// ```
/// use distlock_api::LockKey;
///
/// let key = LockKey::new("orders/4711")?;
/// assert_eq!(key.as_str(), "orders/4711");
/// assert_ne!(key, LockKey::new("Orders/4711")?);
/// assert!(LockKey::new("").is_err());
/// # Ok::<(), distlock_api::LockError>(())
/// ```
///
/// [C20]: distlock_api::contract#c20
/// [C21]: distlock_api::contract#c21
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(pub(crate) Arc<str>);

impl LockKey {
    /// The length of the longest key, in bytes of UTF-8: 1,024.
    ///
    /// It is long enough for a URL path with an identifier or two, and short enough for every
    /// store's index.
    pub const MAX_LEN: usize = 1024;

    /// Returns the key as text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockKey {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for LockKey {
    /// Shows the key as [`Printable`] text. [`as_str`](Self::as_str) is the key itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
