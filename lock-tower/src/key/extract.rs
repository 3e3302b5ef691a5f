//! Extractors: closures, and two extractors combined.

use http::request::Parts;

use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Names the locks of an HTTP request, from its head.
///
/// Implemented by every closure `Fn(&mut Parts) -> Result<Option<K>, E>` whose `K` is a
/// [`LockKey`](distlock_api::LockKey), several of them, or a [`KeySet`], and whose `E` is a
/// [`KeyRejection`] or a [`LockError`](distlock_api::LockError).
///
/// In a closure, parse the value as the service does, and make the key of the parsed value. The
/// text of the path would give [another key for each spelling](super#what-a-value-means).
///
/// ```
/// use distlock_api::LockKey;
/// use distlock_tower::{KeyRejection, key::ExtractKey};
/// use http::request::Parts;
///
/// let order = |parts: &mut Parts| {
///     let number = parts.uri.path().strip_prefix("/orders/").and_then(|number| number.parse::<u64>().ok());
///     let number = number.ok_or_else(|| KeyRejection::bad_key("the path names no order"))?;
///     Ok::<_, KeyRejection>(Some(LockKey::new(format!("order/{number}"))?))
/// };
///
/// for spelling in ["/orders/7", "/orders/07", "/orders/+7"] {
///     let (mut parts, ()) = http::Request::post(spelling).body(()).unwrap().into_parts();
///     let keys = order.extract(&mut parts).unwrap().unwrap();
///     assert_eq!(keys.as_slice()[0].as_str(), "order/7");
/// }
/// ```
pub trait ExtractKey {
    /// Returns the keys of a request. With `None` or an empty set it passes without a lock.
    ///
    /// The head is mutable because axum's extractors need that. Do not change it.
    ///
    /// # Errors
    /// When the request does not name a valid key (the caller gets 400), or when the extractor is
    /// in the wrong place (500).
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection>;

    /// Returns the name of these keys in spans and metrics: one name for all, never a key. Defaults
    /// to `custom`.
    fn class(&self) -> &str {
        "custom"
    }

    /// Combines two extractors. The keys of both are taken together.
    fn and<O>(self, other: O) -> And<Self, O>
    where
        Self: Sized,
    {
        And::new(self, other)
    }
}

impl<F, K, E> ExtractKey for F
where
    F: Fn(&mut Parts) -> Result<Option<K>, E>,
    K: Into<KeySet>,
    E: Into<KeyRejection>,
{
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        Ok(self(parts).map_err(Into::into)?.map(Into::into))
    }
}

/// The keys of two extractors, taken together, all or nothing. Made by [`ExtractKey::and`].
///
/// If only one of them names keys, those are taken. If neither does, the request passes.
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A, B> And<A, B> {
    fn new(first: A, second: B) -> Self {
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
