//! A key from a header.

use std::fmt::Display;
use std::str::FromStr;

use http::HeaderName;
use http::request::Parts;

use super::names::{namespace, written};
use super::value::Canonical;
use super::{ExtractKey, InvalidExtractor};
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The value of a header, within a namespace: value `acme` in namespace `tenant` is the key
/// `tenant/acme`.
///
/// A request without the header is refused as a bad key (400), unless it is
/// [`optional`](Self::optional). So are an empty value, one that is not UTF-8, and several values.
///
/// ```
/// use distlock_tower::key::HeaderKey;
/// use http::HeaderName;
///
/// let by_tenant = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant"))?;
/// # Ok::<(), distlock_tower::key::InvalidExtractor>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeaderKey {
    namespace: String,
    name: HeaderName,
    value: Canonical,
    optional: bool,
}

impl HeaderKey {
    /// Makes keys from this header, read as the service reads it: `7` and `07` are one `u32`, and
    /// one key. See [the module](super#what-a-value-means).
    ///
    /// # Errors
    /// When the namespace is empty or contains `/`, `%` or control characters.
    pub fn typed<T: FromStr + Display>(in_namespace: &str, name: HeaderName) -> Result<Self, InvalidExtractor> {
        Self::new(in_namespace, name, Canonical::of::<T>())
    }

    /// Makes keys from the text of this header, byte for byte.
    ///
    /// # Errors
    /// As [`typed`](Self::typed).
    pub fn text(in_namespace: &str, name: HeaderName) -> Result<Self, InvalidExtractor> {
        Self::new(in_namespace, name, Canonical::TEXT)
    }

    fn new(in_namespace: &str, name: HeaderName, value: Canonical) -> Result<Self, InvalidExtractor> {
        Ok(Self { namespace: namespace(in_namespace)?, name, value, optional: false })
    }

    /// Lets requests without the header pass **without a lock**. Any client can leave a header out.
    /// Defaults to rejecting them as bad keys (400).
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl ExtractKey for HeaderKey {
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        let mut values = parts.headers.get_all(&self.name).iter();
        let value = match (values.next(), values.next()) {
            (Some(value), None) => value,
            (None, _) if self.optional => return Ok(None),
            (None, _) => return Err(KeyRejection::bad_key(format!("header {} is missing", self.name))),
            (Some(_), Some(_)) => return Err(KeyRejection::bad_key(format!("header {} is repeated", self.name))),
        };
        let value = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
        if value.is_empty() {
            return Err(KeyRejection::bad_key(format!("header {} is empty or not UTF-8", self.name)));
        }
        let mut outcome = Ok(());
        let key = written(|key| {
            key.push_str(&self.namespace);
            key.push('/');
            outcome = self.value.push(key, value);
        });
        if let Err(of_type) = outcome {
            return Err(KeyRejection::bad_key(format!("the value of header {} is not a valid {of_type}", self.name)));
        }
        Ok(Some(key?.into()))
    }

    /// Returns the namespace.
    fn class(&self) -> &str {
        &self.namespace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(key: &HeaderKey, values: &[&[u8]]) -> Result<Option<String>, bool> {
        let mut request = http::Request::post("/");
        for value in values {
            request = request.header("x-tenant", *value);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let keys = key.extract(&mut parts).map_err(|rejection| rejection.is_misconfigured())?;
        Ok(keys.map(|keys| keys.as_slice()[0].to_string()))
    }

    #[test]
    fn one_value_or_none() {
        let key = HeaderKey::text("tenant", HeaderName::from_static("x-tenant")).unwrap();
        assert_eq!(extract(&key, &[b"acme"]), Ok(Some("tenant/acme".into())));
        assert_eq!(extract(&key, &[b"a/b"]), Ok(Some("tenant/a%2Fb".into())));
        assert_eq!(extract(&key, &[]), Err(false));
        for bad in [&[b"a" as &[u8], b"b"] as &[&[u8]], &[b""], &[b"\xff"], &[&[b'x'; 1100]]] {
            assert_eq!(extract(&key, bad), Err(false), "{bad:?}");
        }
        assert_eq!(extract(&key.optional(), &[]), Ok(None));
        let number = HeaderKey::typed::<u32>("tenant", HeaderName::from_static("x-tenant")).unwrap();
        assert_eq!(extract(&number, &[b"+07"]), Ok(Some("tenant/7".into())));
        assert_eq!(extract(&number, &[b"seven"]), Err(false));
        assert!(HeaderKey::text("a/b", HeaderName::from_static("x-tenant")).is_err());
    }
}
