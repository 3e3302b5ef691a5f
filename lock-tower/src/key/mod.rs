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

mod extract;
mod fixed;
mod header;
mod names;
#[cfg(feature = "axum")]
mod param;
#[cfg(feature = "axum")]
mod route;
mod value;

use std::fmt;

pub use extract::{And, ExtractKey};
pub use fixed::FixedKey;
pub use header::HeaderKey;
#[cfg(feature = "axum")]
pub use param::ParamKey;
#[cfg(feature = "axum")]
pub use route::RouteKey;

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
