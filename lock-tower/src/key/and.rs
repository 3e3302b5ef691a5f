//! Combines two extractors.

use http::request::Parts;

use super::ExtractKey;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The keys of two extractors, taken together, all or nothing. Made by [`ExtractKey::and`].
///
/// If only one of them names keys, those are taken. If neither does, the request passes.
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A, B> And<A, B> {
    pub(crate) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: ExtractKey, B: ExtractKey> ExtractKey for And<A, B> {
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        let (first, second) = (self.first.extract(parts)?, self.second.extract(parts)?);
        Ok(match (first, second) {
            (Some(first), Some(second)) => Some(first.union(second)),
            (first, second) => first.or(second),
        })
    }

    /// Returns the class of the first extractor.
    fn class(&self) -> &str {
        self.first.class()
    }
}

#[cfg(test)]
mod tests {
    use distlock_api::{LockError, LockKey};

    use super::*;

    #[test]
    fn takes_what_there_is() {
        let query = |parts: &mut Parts| -> Result<Option<LockKey>, LockError> {
            parts.uri.query().map(LockKey::new).transpose()
        };
        let path = |parts: &mut Parts| -> Result<Option<LockKey>, LockError> {
            Some(parts.uri.path()).filter(|path| path.len() > 1).map(LockKey::new).transpose()
        };
        let both = path.and(query);
        let keys = |uri: &str| {
            let (mut parts, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
            both.extract(&mut parts).unwrap().map(|keys| keys.as_slice().iter().map(ToString::to_string).collect())
        };
        assert_eq!(keys("/z?a"), Some(vec!["/z".to_owned(), "a".to_owned()]));
        assert_eq!(keys("/?a"), Some(vec!["a".to_owned()]));
        assert_eq!(keys("/"), None);
    }
}
