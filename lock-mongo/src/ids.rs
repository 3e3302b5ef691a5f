//! Lock keys and the identities of documents.

use std::fmt::Debug;
use std::str::FromStr;

use distlock_api::{ErrorKind, LockError, LockKey, Result};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Bson, Document, Uuid, doc};

/// How lock keys and the `_id`s of a collection stand for each other, one to one.
///
/// Ready ones: [`TextIds`], [`ObjectIds`], [`UuidIds`], [`IntegerIds`]. An own one keeps this:
/// * [`key`](Self::key) of [`id`](Self::id) of a key is that key. A key for which it is not – `007`
///   for the number 7 – is refused before anything is sent: two keys must never be one lock
///   ([C20]).
/// * Both are pure functions, and the same in all processes.
///
/// [C20]: distlock_api::contract#c20
pub trait KeyMap: Debug + Send + Sync + 'static {
    /// The `_id` of a key.
    ///
    /// # Errors
    /// [`InvalidKey`](ErrorKind::InvalidKey) for a key that names no `_id`.
    fn id(&self, key: &LockKey) -> Result<Bson>;

    /// The key of an `_id`; none for one that no key names. Such documents cannot be locked, and
    /// are left out of lists.
    fn key(&self, id: &Bson) -> Option<LockKey>;

    /// The `_id`s whose keys begin with some text that is not empty, for administration: conditions
    /// on `_id` in the language of queries, of which one must hold. Defaults to an error.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if they cannot be told in this way.
    fn beginning_with(&self, prefix: &str) -> Result<Vec<Document>> {
        let message = format!("keys of these documents cannot be found by what they begin with ({prefix:?})");
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

/// The `_id` is a whole number, of whatever numeric type – MongoDB takes 7, 7.0 and `NumberLong(7)`
/// for the same `_id`: the key is its decimal digits.
///
/// A document that is made from a default has a 64-bit one. Lists are in the order of the numbers.
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

    /// The number itself, and those with one, two … digits more.
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
    LockError::invalid_key(format!("the `_id`s here are {form}")).with_key(key.clone())
}

/// A condition that no `_id` meets: what is no beginning of one begins none.
fn nothing() -> Document {
    doc! { "$in": [] }
}

fn is_lower(text: &str) -> bool {
    !text.contains(|letter: char| letter.is_ascii_uppercase())
}

/// The text, filled up to the length of the form by one digit, and by the hyphens of the form. Too
/// long, it stays what it is.
fn completed(text: &str, form: &str, digit: char) -> String {
    let rest = form.chars().skip(text.chars().count());
    text.chars().chain(rest.map(|place| if place == '-' { '-' } else { digit })).collect()
}

/// The first text that is greater, byte by byte, than all that begin with `prefix`; none if there
/// is no such text.
fn beyond(prefix: &str) -> Option<String> {
    let mut text = prefix.to_owned();
    while let Some(last) = text.pop() {
        // The next scalar value: the range steps over the surrogates.
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
    fn there_and_back() {
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
    fn other_identities_have_no_key() {
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
