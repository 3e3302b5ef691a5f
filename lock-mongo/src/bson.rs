//! Conversions that hold for every version of `bson` that the driver may have.
//!
//! The driver re-exports `bson` 2, or `bson` 3 as soon as any crate of the application switches the
//! driver's feature `bson-3` on. This crate cannot see which one it is compiled with. Several
//! functions have other names in the two, so the rest of the crate calls those of this file.

use std::error::Error;
use std::fmt::Debug;

use mongodb::bson::{Bson, Deserializer, Document, Regex, Serializer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) fn from_document<T: DeserializeOwned>(document: Document) -> Result<T, impl Error + Send + Sync + 'static> {
    T::deserialize(Deserializer::new(Bson::Document(document)))
}

pub(crate) fn to_bson<T: Serialize + ?Sized>(value: &T) -> Result<Bson, impl Error + Send + Sync + 'static> {
    value.serialize(Serializer::new())
}

/// Reads a value from BSON, as the driver itself does.
pub(crate) fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, impl Error + Send + Sync + 'static> {
    renamed::from_slice(bytes)
}

/// Makes a regular expression without options.
///
/// # Panics
/// With `bson` 3 if the pattern contains NUL.
pub(crate) fn regex(pattern: String) -> Bson {
    Bson::RegularExpression(Regex { pattern: text(pattern), options: text(String::new()) })
}

/// Makes the texts of a [`Regex`], which are strings or texts without NUL.
fn text<T: TryFrom<String, Error: Debug>>(text: String) -> T {
    T::try_from(text).expect("a text without NUL")
}

/// The deserializer of raw BSON is reached by this function alone, whose name differs. What the
/// glob import brings takes precedence over the function of this module; what it lacks does not.
mod renamed {
    use super::{Deserialize, Error};

    pub(super) fn from_slice<'de, T: Deserialize<'de>>(
        bytes: &'de [u8],
    ) -> Result<T, impl Error + Send + Sync + 'static> {
        // Of bson 3, or else the function below.
        #[allow(unused_imports, reason = "bson 2 has no such function")]
        use mongodb::bson::*;
        deserialize_from_slice(bytes)
    }

    #[allow(dead_code, reason = "bson 3 has such a function")]
    fn deserialize_from_slice<'de, T: Deserialize<'de>>(
        bytes: &'de [u8],
    ) -> Result<T, impl Error + Send + Sync + 'static> {
        // Of bson 2.
        #[allow(unused_imports, reason = "bson 3 has no such function")]
        use mongodb::bson::*;
        from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        number: i64,
        by: Option<String>,
    }

    #[test]
    fn values_pass_through_each_conversion() {
        let order = Order { number: 7, by: Some("me".into()) };
        let stored = doc! { "number": 7_i64, "by": "me" };
        assert_eq!(to_bson(&order).unwrap(), Bson::Document(stored.clone()));
        assert_eq!(from_document::<Order>(stored.clone()).unwrap(), order);
        let mut bytes = Vec::new();
        stored.to_writer(&mut bytes).unwrap();
        assert_eq!(from_slice::<Order>(&bytes).unwrap(), order);
        assert!(from_slice::<Order>(&bytes[1..]).is_err() && from_document::<Order>(doc! {}).is_err());
        assert_eq!(regex("^a".into()).to_string(), "/^a/");
    }
}
