//! The mapping between lock keys and the `_id`s of documents.

use std::fmt::Debug;
use std::str::FromStr;

use distlock_api::{ErrorKind, LockError, LockKey, Result};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Bson, Document, Uuid, doc};

/// A one-to-one mapping between lock keys and the `_id`s of a collection.
///
/// The crate has [`TextIds`], [`ObjectIds`], [`UuidIds`] and [`IntegerIds`]. An implementation must
/// keep these rules:
/// * [`key`](Self::key) of the [`id`](Self::id) of a key is that key. If it is another one, as for
///   `007` and the number 7, the key is refused before anything is sent: two keys must never be one
///   lock ([C20]).
/// * Both are pure functions, and the same in all processes.
///
/// ```
/// use distlock_api::{LockError, LockKey};
/// use distlock_mongo::KeyMap;
/// use distlock_mongo::mongodb::bson::{Bson, doc};
///
/// /// The `_id` is `{ tenant, name }`; the key is `tenant/name`.
/// #[derive(Debug)]
/// struct TenantIds;
///
/// impl KeyMap for TenantIds {
///     fn id(&self, key: &LockKey) -> Result<Bson, LockError> {
///         let parts = key.as_str().split_once('/');
///         let (tenant, name) = parts.ok_or_else(|| LockError::invalid_key("a key is `tenant/name`"))?;
///         Ok(doc! { "tenant": tenant, "name": name }.into())
///     }
///
///     fn key(&self, id: &Bson) -> Option<LockKey> {
///         let id = id.as_document()?;
///         let (tenant, name) = (id.get_str("tenant").ok()?, id.get_str("name").ok()?);
///         LockKey::new(format!("{tenant}/{name}")).ok()
///     }
/// }
/// # let key = LockKey::new("a/b").unwrap();
/// # assert_eq!(TenantIds.key(&TenantIds.id(&key).unwrap()), Some(key));
/// ```
///
/// [C20]: distlock_api::contract#c20
pub trait KeyMap: Debug + Send + Sync + 'static {
    /// Returns the `_id` of a key.
    ///
    /// # Errors
    /// [`InvalidKey`](ErrorKind::InvalidKey) for a key that names no `_id`.
    fn id(&self, key: &LockKey) -> Result<Bson>;

    /// Returns the key of an `_id`; `None` if no key names it. Such documents cannot be locked, and
    /// are left out of lists.
    fn key(&self, id: &Bson) -> Option<LockKey>;

    /// Returns the filter of the `_id`s whose keys begin with a text that is not empty, for
    /// administration: query conditions on `_id`, one of which must hold. Defaults to an error.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if no such conditions exist.
    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        let message = format!(
            "the locks of these documents cannot be listed by the prefix {prefix:?} of their keys: {self:?} does not \
             implement `KeyMap::beginning_with`"
        );
        Err(LockError::new(ErrorKind::Unsupported, message))
    }
}

/// The `_id` is a string: the key itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextIds;

/// The `_id` is an `ObjectId`: the key is its 24 hexadecimal digits, in lower case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectIds;

/// The `_id` is a UUID (binary data of subtype 4): the key is its text with hyphens, in lower case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UuidIds;

/// The `_id` is a whole number of any numeric type: the key is its decimal digits. To MongoDB 7,
/// 7.0 and `NumberLong(7)` are the same `_id`.
///
/// A document that is inserted from a default has a 64-bit `_id`. Lists are in the order of the
/// numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntegerIds;

impl KeyMap for TextIds {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        Ok(key.as_str().into())
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        LockKey::new(id.as_str()?).ok()
    }

    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        let mut range = doc! { "$gte": prefix };
        if let Some(end) = beyond(prefix) {
            range.insert("$lt", end);
        }
        Ok(vec![range])
    }
}

impl KeyMap for ObjectIds {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        let id = ObjectId::from_str(key.as_str());
        id.map(Bson::from).map_err(|_| refused(key, "24 hexadecimal digits"))
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        LockKey::new(id.as_object_id()?.to_hex()).ok()
    }

    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        let end = |digit| ObjectId::from_str(&completed(prefix, "........................", digit)).ok();
        let range = end('0').zip(end('f')).filter(|_| is_lower(prefix));
        Ok(vec![range.map_or_else(nothing, |(first, last)| doc! { "$gte": first, "$lte": last })])
    }
}

impl KeyMap for UuidIds {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        Uuid::parse_str(key.as_str()).map(Bson::from).map_err(|_| refused(key, "a UUID"))
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        let Bson::Binary(binary) = id else { return None };
        let uuid = (binary.subtype == BinarySubtype::Uuid).then(|| binary.to_uuid().ok()).flatten()?;
        LockKey::new(uuid.to_string()).ok()
    }

    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        const FORM: &str = "........-....-....-....-............";
        let in_form = prefix.chars().zip(FORM.chars()).all(|(one, other)| (one == '-') == (other == '-'));
        let end = |digit| Uuid::parse_str(completed(prefix, FORM, digit)).ok();
        let range = end('0').zip(end('f')).filter(|_| in_form && is_lower(prefix));
        Ok(vec![range.map_or_else(nothing, |(first, last)| doc! { "$gte": first, "$lte": last })])
    }
}

impl KeyMap for IntegerIds {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        key.as_str().parse::<i64>().map(Bson::from).map_err(|_| refused(key, "a whole number"))
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        let number = match id {
            Bson::Int64(number) => *number,
            Bson::Int32(number) => i64::from(*number),
            #[expect(clippy::cast_possible_truncation, reason = "whole, and in the range in which doubles are exact")]
            Bson::Double(number) if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => *number as i64,
            _ => return None,
        };
        LockKey::new(number.to_string()).ok()
    }

    /// Returns the ranges of the number itself, and of those with one, two … more digits.
    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        if prefix == "-" {
            return Ok(vec![doc! { "$lt": 0_i64 }]);
        }
        let Some(number) = prefix.parse::<i64>().ok().filter(|number| number.to_string() == prefix) else {
            return Ok(vec![nothing()]);
        };
        if number == 0 {
            return Ok(vec![doc! { "$eq": 0_i64 }]);
        }
        let mut ranges = Vec::new();
        let (mut first, mut more) = (i128::from(number.unsigned_abs()), 1_i128);
        let most = if number < 0 { 1_i128 << 63 } else { i128::from(i64::MAX) };
        while first <= most {
            let last = (first + more - 1).min(most);
            let (low, high) = if number < 0 { (-last, -first) } else { (first, last) };
            let bound = |number: i128| i64::try_from(number).expect("bounded above");
            ranges.push(doc! { "$gte": bound(low), "$lte": bound(high) });
            (first, more) = (first * 10, more * 10);
        }
        Ok(ranges)
    }
}

fn refused(key: &LockKey, form: &str) -> LockError {
    let message = format!("a key of this collection is {form}, as its `_id`s: see `DocumentLocksBuilder::ids`");
    LockError::invalid_key(message).with_key(key.clone())
}

/// Returns a condition that no `_id` meets, for a text with which no key can begin.
fn nothing() -> Document {
    doc! { "$in": [] }
}

fn is_lower(text: &str) -> bool {
    !text.contains(|letter: char| letter.is_ascii_uppercase())
}

/// Extends a text to the length of `form`, by one digit and by the hyphens of the form. A text that
/// is too long is returned unchanged.
fn completed(text: &str, form: &str, digit: char) -> String {
    let missing = form.chars().skip(text.chars().count());
    text.chars().chain(missing.map(|part| if part == '-' { '-' } else { digit })).collect()
}

/// Returns the first text that is greater, byte by byte, than all that begin with `prefix`; `None`
/// if there is none.
fn beyond(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        // The next scalar value: the range skips the surrogates.
        if let Some(next) = (last..=char::MAX).nth(1) {
            text.push(next);
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> LockKey {
        LockKey::new(text).unwrap()
    }

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(beyond("a").as_deref(), Some("b"));
        assert_eq!(beyond("a/").as_deref(), Some("a0"));
        assert_eq!(beyond("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(beyond("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(beyond("\u{10ffff}\u{10ffff}"), None);
        assert_eq!(beyond("\u{7f}").as_deref(), Some("\u{80}"));
        for (prefix, inside) in [("a", "a\u{10ffff}"), ("ä", "ä\u{0}"), ("\u{7f}", "\u{7f}z")] {
            assert!(prefix <= inside && inside < &*beyond(prefix).unwrap());
        }
    }

    #[test]
    fn the_mapping_is_one_to_one() {
        let keys = |ids: &dyn KeyMap, texts: &[&str]| {
            for text in texts {
                let id = ids.id(&key(text)).unwrap();
                assert_eq!(ids.key(&id), Some(key(text)), "{ids:?}");
            }
        };
        keys(&TextIds, &["a", "$a.b\0", "Ä"]);
        keys(&ObjectIds, &["0123456789abcdef01234567"]);
        keys(&UuidIds, &["00112233-4455-6677-8899-aabbccddeeff"]);
        keys(&IntegerIds, &["0", "7", "-7", "9223372036854775807", "-9223372036854775808"]);
        for (ids, text) in [
            (&ObjectIds as &dyn KeyMap, "xyz"),
            (&UuidIds, "0011"),
            (&IntegerIds, "1.5"),
            (&IntegerIds, "9223372036854775808"),
        ] {
            assert_eq!(ids.id(&key(text)).unwrap_err().kind(), ErrorKind::InvalidKey, "{text}");
        }
    }

    #[test]
    fn identities_of_other_types_have_no_key() {
        let others = [Bson::Null, Bson::Boolean(true), doc! { "a": 1 }.into(), Bson::Double(1.5)];
        for ids in [&TextIds as &dyn KeyMap, &ObjectIds, &UuidIds, &IntegerIds] {
            assert!(others.iter().all(|id| ids.key(id).is_none()), "{ids:?}");
        }
        assert_eq!(TextIds.key(&"".into()), None);
        assert_eq!(IntegerIds.key(&7_i32.into()), IntegerIds.key(&Bson::Double(7.0)));
    }

    #[test]
    fn prefixes_become_ranges() {
        let hex = |text: &str| ObjectId::from_str(text).unwrap();
        assert_eq!(
            ObjectIds.beginning_with("ab").unwrap(),
            [doc! { "$gte": hex("ab0000000000000000000000"), "$lte": hex("abffffffffffffffffffffff") }]
        );
        for prefix in ["AB", "xy", "0123456789abcdef012345678"] {
            assert_eq!(ObjectIds.beginning_with(prefix).unwrap(), [nothing()], "{prefix}");
        }
        let uuid = |text: &str| Uuid::parse_str(text).unwrap();
        assert_eq!(
            UuidIds.beginning_with("00112233-4").unwrap(),
            [doc! {
                "$gte": uuid("00112233-4000-0000-0000-000000000000"),
                "$lte": uuid("00112233-4fff-ffff-ffff-ffffffffffff"),
            }]
        );
        for prefix in ["001122334", "00-", "ZZ"] {
            assert_eq!(UuidIds.beginning_with(prefix).unwrap(), [nothing()], "{prefix}");
        }
        let ranges = IntegerIds.beginning_with("92").unwrap();
        assert_eq!(ranges[..2], [doc! { "$gte": 92_i64, "$lte": 92_i64 }, doc! { "$gte": 920_i64, "$lte": 929_i64 }]);
        assert_eq!(ranges.last().unwrap().get_i64("$lte").unwrap(), i64::MAX);
        let ranges = IntegerIds.beginning_with("-92").unwrap();
        assert_eq!(ranges[1], doc! { "$gte": -929_i64, "$lte": -920_i64 });
        assert_eq!(ranges.last().unwrap().get_i64("$gte").unwrap(), i64::MIN);
        for prefix in ["a", "00", "+1", "--"] {
            assert_eq!(IntegerIds.beginning_with(prefix).unwrap(), [nothing()], "{prefix}");
        }
    }
}
