//! Names and texts that PostgreSQL must accept, checked before anything is sent.

use std::fmt;

use distlock_api::{AcquisitionId, LockError, Result};
use distlock_engine::store::ProviderId;

/// The name of the store's schema. It is short enough for the names of the channels, which have at
/// most 63 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaName(String);

impl SchemaName {
    pub(crate) const MAX_LEN: usize = 32;

    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut bytes = name.bytes();
        let is_first_valid = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let are_others_valid = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_first_valid || !are_others_valid || name.len() > Self::MAX_LEN || name.starts_with("pg_") {
            return Err(LockError::invalid_options(format!(
                "{name:?} is not a valid name for the schema: use 1 to {} characters of a-z, 0-9 and _, without a \
                 digit or pg_ at the beginning",
                Self::MAX_LEN
            )));
        }
        Ok(Self(name.to_owned()))
    }

    /// SQL text with the schema's name and channel in their places.
    pub(crate) fn fill_in(&self, sql: &str) -> String {
        // Quoted, because a keyword such as `user` is a possible name.
        sql.replace("{schema}", &format!("\"{self}\"")).replace("{channel}", &format!("'{}'", self.channel()))
    }

    /// The channel of the events for every watcher.
    pub(crate) fn channel(&self) -> String {
        format!("distlock:{self}")
    }

    /// The channel of the lock events.
    pub(crate) fn channel_of_locks(&self) -> String {
        format!("{}:locks", self.channel())
    }

    /// The channel of the events for one provider.
    pub(crate) fn channel_of(&self, provider: ProviderId) -> String {
        format!("{}:{provider}", self.channel())
    }
}

impl fmt::Display for SchemaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The longest id that is accepted. Those of the engine have 25 bytes.
const MAX_ID_LEN: usize = 128;

/// The text of an id, if the store can keep it and push it.
pub(crate) fn id_text(id: &AcquisitionId) -> Result<&str> {
    let text = id.as_str();
    if text.is_empty() || text.len() > MAX_ID_LEN || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("{text:?} is not an acquisition id: use 1 to {MAX_ID_LEN} printable ASCII characters");
        return Err(LockError::invalid_options(message));
    }
    Ok(text)
}

/// The least byte string above all that begin with this prefix; `None` if there is none.
pub(crate) fn end_of_prefix(prefix: &str) -> Option<Vec<u8>> {
    // UTF-8 has no byte 0xff, so the last byte can always be increased.
    let (last, before) = prefix.as_bytes().split_last()?;
    Some([before, &[last + 1]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_cannot_leave_its_quotes() {
        for name in ["locks", "_a1", "user", &"a".repeat(32)] {
            assert!(SchemaName::new(name).is_ok(), "{name}");
        }
        for name in ["", "1a", "A", "a b", "a\"b", "a'b", "a\0", "pg_locks", "é", &"a".repeat(33)] {
            assert!(SchemaName::new(name).is_err(), "{name}");
        }
        let channel = SchemaName::new(&"a".repeat(32)).unwrap().channel_of(ProviderId::random());
        assert!(channel.len() < 64, "{channel}");
    }

    #[test]
    fn ids_are_printable() {
        assert!(id_text(&ProviderId::random().acquisition_id()).is_ok());
        for id in ["", "a b", "a\0", "é", &"a".repeat(129)] {
            assert!(id_text(&AcquisitionId::new(id)).is_err(), "{id:?}");
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_beyond_all_its_keys() {
        assert_eq!(end_of_prefix(""), None);
        assert_eq!(end_of_prefix("ab").unwrap(), b"ac");
        for key in ["é", "é\u{10ffff}", "éz"] {
            assert!(key.as_bytes() < &*end_of_prefix("é").unwrap(), "{key}");
        }
        assert!("ê".as_bytes() >= &*end_of_prefix("é").unwrap());
    }
}
