//! Keys from text, numbers and pairs.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::LockError;
use crate::key::LockKey;

impl LockKey {
    /// Makes a key of a text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) when the text is empty or longer
    /// than [`MAX_LEN`](Self::MAX_LEN) bytes. No I/O has happened by then.
    pub fn new(text: impl Into<Arc<str>>) -> Result<Self, LockError> {
        let text = text.into();
        if text.is_empty() {
            return Err(LockError::invalid_key("a lock key must not be empty"));
        }
        if text.len() > Self::MAX_LEN {
            return Err(LockError::invalid_key(format!(
                "a lock key has at most {} bytes, this one has {}: use a digest of its longest part",
                Self::MAX_LEN,
                text.len()
            )));
        }
        Ok(Self(text))
    }
}

/// A value that names a lock, where a method takes a key.
///
/// | type | key |
/// |---|---|
/// | [`LockKey`] | itself |
/// | `&str`, `String`, `Cow<str>`, `Arc<str>`, `Box<str>` | the text |
/// | integers | decimal digits, with `-` if negative: `7` and `"7"` name the same lock |
/// | `Uuid`, with the feature `uuid` | hyphenated lower case, 36 bytes |
/// | `(namespace, id)` | the namespace, `/`, and the key of the id |
///
/// References to these are accepted, too, except to a pair. Text is checked when it is used:
/// an invalid key is the error of the call.
///
/// # Pairs
/// The separator is `/`. A namespace must not be empty and must not contain `/`, so the first `/`
/// of the key ends the namespace. Two pairs name the same lock only if their namespaces are equal
/// and their ids name the same key. The id may contain `/`; it may be a pair itself. The key is
/// that of the id in [`Namespaced`](crate::Namespaced) with the same namespace.
///
/// ```
/// use distlock_api::{IntoLockKey, LockKey};
///
/// assert_eq!(("orders", 4711).into_lock_key()?, LockKey::new("orders/4711")?);
/// assert_eq!(("eu", ("orders", 4711)).into_lock_key()?, LockKey::new("eu/orders/4711")?);
/// // `a/b`, `c` would have the key of `a`, `b/c`.
/// assert!(("a/b", "c").into_lock_key().is_err());
/// # Ok::<(), distlock_api::LockError>(())
/// ```
pub trait IntoLockKey {
    /// Returns the key.
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

macro_rules! text_is_a_key {
    ($($text:ty => |$this:ident| $key:expr),* $(,)?) => {$(
        impl IntoLockKey for $text {
            fn into_lock_key(self) -> Result<LockKey, LockError> {
                let $this = self;
                LockKey::new($key)
            }
        }
    )*};
}

text_is_a_key!(
    &str => |text| text,
    &&str => |text| *text,
    String => |text| text,
    &String => |text| text.as_str(),
    Cow<'_, str> => |text| text,
    &Cow<'_, str> => |text| &**text,
    Arc<str> => |text| text,
    &Arc<str> => |text| Arc::clone(text),
    Box<str> => |text| text,
    &Box<str> => |text| &**text,
);

macro_rules! integers_are_keys {
    ($($integer:ty),*) => {$(
        impl IntoLockKey for $integer {
            fn into_lock_key(self) -> Result<LockKey, LockError> {
                LockKey::new(self.to_string())
            }
        }

        impl IntoLockKey for &$integer {
            fn into_lock_key(self) -> Result<LockKey, LockError> {
                (*self).into_lock_key()
            }
        }
    )*};
}

integers_are_keys!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

#[cfg(feature = "uuid")]
impl IntoLockKey for uuid::Uuid {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        LockKey::new(&*self.hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()))
    }
}

#[cfg(feature = "uuid")]
impl IntoLockKey for &uuid::Uuid {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        (*self).into_lock_key()
    }
}

impl<N: AsRef<str>, I: IntoLockKey> IntoLockKey for (N, I) {
    fn into_lock_key(self) -> Result<LockKey, LockError> {
        let (namespace, id) = (self.0.as_ref(), self.1.into_lock_key()?);
        check_namespace(namespace)?;
        LockKey::new(format!("{namespace}/{id}"))
    }
}

/// Refuses a namespace that would not end at the first `/` of a key.
pub(crate) fn check_namespace(namespace: &str) -> Result<(), LockError> {
    if namespace.is_empty() || namespace.contains('/') {
        return Err(LockError::invalid_key(format!(
            "a namespace must not be empty and must not contain '/': {namespace:?}"
        )));
    }
    Ok(())
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
    fn every_kind_of_value_names_the_lock_of_its_text() {
        fn text(key: impl IntoLockKey) -> String {
            key.into_lock_key().unwrap().as_str().to_owned()
        }
        let (twice, owned, shared, cow) = (&"k", "k".to_owned(), Arc::<str>::from("k"), Cow::Borrowed("k"));
        let boxed: Box<str> = "k".into();
        for key in [text("k"), text(twice), text(&owned), text(&shared), text(&cow), text(&boxed)] {
            assert_eq!(key, "k");
        }
        for key in [text(owned), text(shared), text(cow), text(boxed), text(LockKey::new("k").unwrap())] {
            assert_eq!(key, "k");
        }
        let negative = &-7_i8;
        assert_eq!((text(7), text(negative), text(u128::MAX)), ("7".into(), "-7".into(), u128::MAX.to_string()));
    }

    #[cfg(feature = "uuid")]
    #[test]
    fn a_uuid_is_hyphenated_and_lower_case() {
        let uuid = uuid::Uuid::from_u128(0xA1A2_A3A4_B1B2_C1C2_D1D2_D3D4_D5D6_D7D8);
        assert_eq!(uuid.into_lock_key().unwrap().as_str(), "a1a2a3a4-b1b2-c1c2-d1d2-d3d4d5d6d7d8");
    }

    /// Over an alphabet with the separator: all short pairs, compared with each other.
    #[test]
    fn no_two_pairs_have_one_key() {
        let texts: Vec<String> = ["", "a", "/"]
            .iter()
            .flat_map(|a| {
                ["", "a", "/"].iter().flat_map(move |b| ["", "b", "/"].iter().map(move |c| format!("{a}{b}{c}")))
            })
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut pairs = std::collections::BTreeMap::new();
        for namespace in &texts {
            for id in &texts {
                let Ok(key) = (namespace, id).into_lock_key() else {
                    assert!(namespace.is_empty() || namespace.contains('/') || id.is_empty());
                    continue;
                };
                assert_eq!(pairs.insert(key, (namespace, id)), None, "{namespace:?}, {id:?}");
            }
        }
        assert!(pairs.len() > 10);
        assert_eq!(("n", "i".repeat(LockKey::MAX_LEN)).into_lock_key().unwrap_err().kind(), ErrorKind::InvalidKey);
    }

    #[test]
    fn nothing_is_folded() {
        for (a, b) in [("a", "A"), ("é", "e\u{301}"), ("a", "a\0"), ("a", "a "), ("a.b", "a$b")] {
            assert_ne!(LockKey::new(a).unwrap(), LockKey::new(b).unwrap());
        }
    }
}
