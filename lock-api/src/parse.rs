//! Keys from text.

use std::sync::Arc;

use crate::error::LockError;
use crate::key::LockKey;

impl LockKey {
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
