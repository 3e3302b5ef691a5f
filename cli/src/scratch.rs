//! Keys of this program's own, which are removed afterwards.

use std::time::Duration;

use distlock::mongodb::mongodb::bson::{Document, doc};
use distlock::mongodb::mongodb::error::Error;
use tokio::time::timeout;

use crate::connect::Connection;

const REMOVE_LIMIT: Duration = Duration::from_secs(10);

/// A prefix of keys that no other run uses.
#[derive(Clone, Debug)]
pub(crate) struct Scratch(String);

impl Scratch {
    pub(crate) fn new(purpose: &str) -> Self {
        Self(format!("distlock-{purpose}/{:016x}", fastrand::u64(..)))
    }

    /// Returns a key below the prefix.
    pub(crate) fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}/{name}", self.0)
    }

    /// Returns the filter of the records of all these keys. `0` follows `/`.
    fn filter(&self) -> Document {
        doc! { "_id": { "$gte": format!("{}/", self.0), "$lt": format!("{}0", self.0) } }
    }
}

/// Removes the records of these keys, whose locks must be free, and returns how many. A record may
/// be removed because its key, and so its tokens, are never used again.
///
/// # Errors
/// The user lacks the privilege `remove`, or the server does not answer. The TTL index removes the
/// records in an hour.
pub(crate) async fn remove(connection: &Connection, scratch: &Scratch) -> Result<u64, Error> {
    let records = connection.client.database(&connection.database).collection::<Document>(&connection.collection);
    match timeout(REMOVE_LIMIT, async { records.delete_many(scratch.filter()).await }).await {
        Ok(removed) => Ok(removed?.deleted_count),
        Err(_) => Err(Error::custom("no answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_matches_the_keys_of_the_prefix_alone() {
        let scratch = Scratch("distlock-bench/00ff".into());
        let filter = scratch.filter();
        let range = filter.get_document("_id").unwrap();
        let (from, to) = (range.get_str("$gte").unwrap(), range.get_str("$lt").unwrap());
        for (key, matches) in [
            (scratch.key("hot").as_str(), true),
            (scratch.key(63).as_str(), true),
            ("distlock-bench/00ff", false),
            ("distlock-bench/00ff0/hot", false),
            ("distlock-bench/00fe/hot", false),
            ("orders/1", false),
        ] {
            assert_eq!((from..to).contains(&key), matches, "{key}");
        }
    }
}
