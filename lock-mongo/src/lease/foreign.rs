//! Documents in a lock collection that are no records (R22).

use std::time::Duration;

use distlock_engine::store::Attempt;
use mongodb::bson::{Bson, Document, doc};
use serde::Deserialize;

use super::{Clock, EXPIRES_AT, ID, Layout, TOKEN, answer};

/// What stands where a record was to be inserted.
#[derive(Debug, Deserialize)]
pub(crate) struct Found {
    /// The type of its token.
    token: String,
    /// Milliseconds until its `expiresAt`, less than zero if that was before; none if that is no
    /// date.
    remaining: Option<i64>,
}

impl Found {
    pub(crate) fn is_record(&self) -> bool {
        self.token == "long"
    }

    /// How long a lock of another program's is still to be respected. None of a document that is no
    /// such lock, or that was a record once: its tokens would start afresh.
    pub(crate) fn respected_for(&self) -> Option<Duration> {
        let millis = self.remaining.filter(|_| self.token == "missing")?;
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }
}

impl Layout {
    /// The [`Found`] of a document.
    pub(crate) fn found(&self) -> Document {
        answer(doc! {
            "token": { "$type": self.value(TOKEN) },
            "remaining": { "$cond": [self.has_expiry(), { "$subtract": [self.value(EXPIRES_AT), "$$NOW"] }, Bson::Null] },
        })
    }

    /// The document, if it is a lock of another program's that has expired.
    pub(crate) fn expired_foreign(&self, identity: Bson) -> Document {
        let mut filter = Self::document(identity);
        filter.insert(self.path(TOKEN), doc! { "$exists": false });
        let has_expired = doc! { "$lte": [self.value(EXPIRES_AT), "$$NOW"] };
        filter.insert("$expr", doc! { "$and": [self.has_expiry(), has_expired] });
        filter
    }

    /// Makes the document a record, and acquires it.
    pub(crate) fn adopt(&self, attempt: &Attempt, clock: Clock) -> Vec<Document> {
        let mut stages = vec![doc! { "$replaceWith": { ID: format!("${ID}") } }];
        stages.extend(self.acquire(attempt, clock));
        stages
    }

    fn has_expiry(&self) -> Document {
        doc! { "$eq": [{ "$type": self.value(EXPIRES_AT) }, "date"] }
    }
}
