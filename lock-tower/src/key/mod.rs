//! From a request to its keys.
//!
//! | extractor | two requests exclude each other when |
//! |---|---|
//! | a closure | it names the same key for both |
//! | [`FixedKey`] | always |
//! | [`HeaderKey`] | they have the same value in a header |
//! | `ParamKey` (feature `axum`) | they have the same values for named path parameters, whatever their routes |
//! | `RouteKey` (feature `axum`) | they match the same route, by choice with the same method, with the same values for all path parameters |
//!
//! The ready extractors put their keys into a namespace of their own, so that order `1` and user
//! `1` are different locks. What comes from the request is escaped: no value, however crafted,
//! makes the key of another namespace or of another combination of values.
//!
//! # What a value means
//! `/orders/7`, `/orders/07` and `/orders/+7` are the same order to a handler that takes a
//! `Path<u64>`. If they were three keys, three requests could change that order at the same time.
//! So the ready extractors take the type by which the handler reads the value: the text is parsed,
//! and the key is made of what the type writes. What the type cannot read is a bad key (400), as it
//! is to the handler. Every `FromStr + Display` will do: integers, `Uuid`, addresses, a type of
//! your own that folds case.
//!
//! *Text* is for values that the handler compares byte by byte, such as a `Path<String>` that is
//! looked up in a database with a binary collation. Percent-encoding is resolved, as it is for the
//! handler; case and the Unicode form are left as they are: `Ä` in one character and in two are two
//! keys, as they are two strings.
//!
//! [`and`](ExtractKey::and) puts two extractors together: the request takes the keys of both.

mod and;
mod fixed;
mod header;
mod names;
#[cfg(feature = "axum")]
mod param;
#[cfg(feature = "axum")]
mod route;
mod value;

use std::fmt;

use http::request::Parts;

pub use and::And;
pub use fixed::FixedKey;
pub use header::HeaderKey;
#[cfg(feature = "axum")]
pub use param::ParamKey;
#[cfg(feature = "axum")]
pub use route::RouteKey;

use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// Names the locks of an HTTP request, from its head.
///
/// Implemented by every closure `Fn(&mut Parts) -> Result<Option<K>, E>` whose `K` is a
/// [`LockKey`](distlock_api::LockKey), several of them, or a [`KeySet`], and whose `E` is a
/// [`KeyRejection`] or a [`LockError`](distlock_api::LockError).
///
/// A closure parses the value as the service does, and makes the key of what it parsed. A key of
/// the path's own text would be [another one for each spelling](self#what-a-value-means).
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
    /// The keys of a request; none, or an empty set, lets it pass without a lock.
    ///
    /// The head is mutable because axum's extractors want it so; leave it as it is.
    ///
    /// # Errors
    /// When the request does not name a valid key (the caller is answered 400), or when the
    /// extractor cannot work where it was put (500).
    fn extract(&self, parts: &mut Parts) -> Result<Option<KeySet>, KeyRejection>;

    /// What these keys are called in spans and metrics: a name for all of them, never one of them.
    /// Defaults to `custom`.
    fn class(&self) -> &str {
        "custom"
    }

    /// The keys of this extractor and of that one, taken together.
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

/// A ready extractor was described in a way that cannot work. Found when it is made, not when the
/// first request comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidExtractor(String);

impl InvalidExtractor {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for InvalidExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidExtractor {}
