//! Documents in a lock collection that are no lock records (R22).

use std::time::Duration;

use distlock_engine::store::Attempt;
use mongodb::bson::{Bson, Document, doc};
use serde::Deserialize;

use super::{Clock, EXPIRES_AT, ID, LISTS, Layout, TOKEN, answer, millis_until};

/// The document in the place of a record.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    /// The type of its token.
    token: String,
    /// Milliseconds until its `expiresAt`, negative in the past; `None` if that is no date.
    remaining: Option<i64>,
    /// The list of the record that is longer than any operation makes it (R32).
    too_long: Option<String>,
}

impl Found {
    pub(crate) fn is_record(&self) -> bool {
        self.token == "long" && self.too_long.is_none()
    }

    /// Returns the list that is longer than any operation makes it.
    pub(crate) fn too_long(&self) -> Option<&str> {
        self.too_long.as_deref()
    }

    /// Returns how long a lock of another program must still be respected. `None` if the document
    /// is no such lock, or was a record once, whose tokens would repeat.
    pub(crate) fn respected_for(&self) -> Option<Duration> {
        let millis = self.remaining.filter(|_| self.token == "missing")?;
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }
}

impl Layout {
    /// Projects a document to a [`Found`].
    pub(crate) fn found(&self) -> Document {
        answer(doc! {
            "token": { "$type": self.value(TOKEN) },
            "remaining": { "$cond": [self.has_expiry(), millis_until(self.value(EXPIRES_AT)), Bson::Null] },
            "too_long": self.too_long(),
        })
    }

    /// Returns the filter of the document, if it is an expired lock of another program.
    pub(crate) fn expired_foreign(&self, identity: Bson) -> Document {
        let mut filter = Self::document(identity);
        filter.insert(self.path(TOKEN), doc! { "$exists": false });
        let has_expired = doc! { "$lte": [self.value(EXPIRES_AT), "$$NOW"] };
        filter.insert("$expr", doc! { "$and": [self.has_expiry(), has_expired] });
        filter
    }

    /// Makes the pipeline that turns the document into a record, and acquires it.
    pub(crate) fn adopt(&self, attempt: &Attempt, clock: Clock) -> Vec<Document> {
        let mut stages = vec![doc! { "$replaceWith": { ID: format!("${ID}") } }];
        stages.extend(self.acquire(attempt, clock));
        stages
    }

    /// The first list that is too long, or null.
    pub(super) fn too_long(&self) -> Document {
        let branches: Vec<Document> = LISTS
            .iter()
            .map(|(list, longest)| {
                let len = doc! { "$size": { "$cond": [{ "$isArray": self.value(list) }, self.value(list), []] } };
                doc! { "case": { "$gt": [len, i64::try_from(*longest).unwrap_or(i64::MAX)] }, "then": list }
            })
            .collect();
        doc! { "$switch": { "branches": branches, "default": Bson::Null } }
    }

    fn has_expiry(&self) -> Document {
        doc! { "$eq": [{ "$type": self.value(EXPIRES_AT) }, "date"] }
    }
}
