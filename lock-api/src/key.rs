//! What a lock is named by.

use std::fmt;
use std::sync::Arc;

/// The name of a lock: a validated, immutable UTF-8 string, cheap to clone.
///
/// Any text of 1 to [`LockKey::MAX_LEN`] bytes is allowed, and two keys are the same lock exactly
/// when their bytes are equal: case, Unicode normalization, NUL, `.`, `$`, `/` and white space are all
/// significant (contract clause C20). Nothing is trimmed, folded or escaped.
///
/// Keys order by their bytes. [`acquire_all`](crate::LockProviderExt::acquire_all) takes several locks in
/// that order, which is why callers that name the same keys in another order cannot deadlock (C21).
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
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockKey(pub(crate) Arc<str>);

impl LockKey {
    /// The longest key, in bytes of UTF-8.
    ///
    /// Long enough for a URL path with an identifier or two; short enough for every store's index.
    pub const MAX_LEN: usize = 1024;

    /// The key as text.
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
