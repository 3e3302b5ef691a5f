//! What a lock is named by.

use std::fmt;
use std::sync::Arc;

use crate::error::LockError;

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
pub struct LockKey(Arc<str>);

impl LockKey {
    /// The longest key, in bytes of UTF-8.
    ///
    /// Long enough for a URL path with an identifier or two; short enough for every store's index.
    pub const MAX_LEN: usize = 1024;

    /// A key, if it is one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) when the text is empty or longer than
    /// [`MAX_LEN`](Self::MAX_LEN) bytes. No I/O has happened by then.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, LockError> {
        let text = text.into();
        if text.is_empty() {
            return Err(LockError::invalid_key("a lock key must not be empty"));
        }
        if text.len() > Self::MAX_LEN {
            return Err(LockError::invalid_key(format!(
                "a lock key has at most {} bytes, this one has {}",
                Self::MAX_LEN,
                text.len()
            )));
        }
        Ok(Self(text))
    }

    /// The key as text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Anything that can name a lock where a method asks for one: a [`LockKey`], or text that is checked on use.
pub trait IntoLockKey {
    /// The key.
    ///
    /// # Errors
    /// As [`LockKey::new`].
    fn into_lock_key(self) -> Result<LockKey, LockError>;
}

impl IntoLockKey for LockKey {
    #[inline]
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        Ok(self)
    }
}

impl IntoLockKey for &LockKey {
    #[inline]
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        Ok(self.clone())
    }
}

impl IntoLockKey for &str {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        LockKey::new(self)
    }
}

impl IntoLockKey for String {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        LockKey::new(self)
    }
}

impl IntoLockKey for &String {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        LockKey::new(self.as_str())
    }
}

impl TryFrom<&str> for LockKey {
    type Error = LockError;

    fn try_from(text: &str) -> Result<Self, LockError> {
        Self::new(text)
    }
}

impl TryFrom<String> for LockKey {
    type Error = LockError;

    fn try_from(text: String) -> Result<Self, LockError> {
        Self::new(text)
    }
}

impl std::str::FromStr for LockKey {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self, LockError> {
        Self::new(text)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn length_is_counted_in_bytes_and_the_limit_itself_is_allowed() {
        assert!(LockKey::new("k".repeat(LockKey::MAX_LEN)).is_ok());
        let over = LockKey::new("é".repeat(LockKey::MAX_LEN / 2 + 1)).unwrap_err();
        assert_eq!(over.kind(), ErrorKind::InvalidKey);
        assert!(over.to_string().contains("1026"), "{over}");
        assert_eq!(LockKey::new("").unwrap_err().kind(), ErrorKind::InvalidKey);
    }

    #[test]
    fn nothing_is_folded() {
        for (a, b) in [("a", "A"), ("é", "e\u{301}"), ("a", "a\0"), ("a", "a "), ("a.b", "a$b")] {
            assert_ne!(LockKey::new(a).unwrap(), LockKey::new(b).unwrap());
        }
    }
}
