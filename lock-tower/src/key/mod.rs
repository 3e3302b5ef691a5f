//! Extractors: which keys a request locks.
//!
//! | extractor | two requests exclude each other when |
//! |---|---|
//! | a closure | it names the same key for both |
//! | [`FixedKey`] | always |
//! | [`HeaderKey`] | they have the same value in a header |
//! | `ParamKey` (feature `axum`) | they have the same values for named path parameters, on any routes |
//! | `RouteKey` (feature `axum`) | they match the same route, by choice with the same method, with the same values for all path parameters |
//!
//! The extractors of this module put their keys into a namespace, so that order `1` and user `1`
//! are different locks. Values from the request are escaped: no value can produce the key of
//! another namespace or of another combination of values.
//!
//! # What a value means
//! `/orders/7`, `/orders/07` and `/orders/+7` are the same order to a handler that takes a
//! `Path<u64>`. If they were three keys, three requests could change that order at the same time.
//! So the extractors take the type with which the handler reads the value. They parse the text, and
//! make the key of the parsed value as the type displays it. A value that cannot be parsed is a bad
//! key (400), as it is for the handler. Any type with `FromStr + Display` works: integers, `Uuid`,
//! addresses, a type of your own that folds case.
//!
//! *Text* is for values that the handler compares byte by byte: a `Path<String>` for a lookup in a
//! database with a binary collation, for example. Percent-encoding is decoded, as it is for the
//! handler. Case and Unicode form are kept: `Ä` in one character and in two are different keys, as
//! they are different strings.
//!
//! [`and`](ExtractKey::and) combines two extractors: the request takes the keys of both.

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
pub(crate) use names::push_escaped;
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
/// In a closure, parse the value as the service does, and make the key of the parsed value. The
/// text of the path would give [another key for each spelling](self#what-a-value-means).
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

/// The error of an extractor that cannot work. It is found at start-up, not at the first request.
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
