//! Leases in documents that are about something else (R8, R9).

use mongodb::bson::{Bson, Document, doc};

use super::{ID, Layout, TOKEN, literal};

/// What the server's error says when the field is something else than a lock.
pub(crate) const NOT_A_LOCK: &str = "distlock: not a lock but ";

impl Layout {
    /// What comes before the stages of an acquisition: a document that was missing becomes the
    /// given one, and a field that is something else than a lock lets the whole command fail, so
    /// that it stays what it is.
    ///
    /// A document with nothing but its `_id` looks the same as a missing one.
    pub(crate) fn beginning(&self, default: Option<&Document>) -> Vec<Document> {
        let Some(whole) = self.whole() else { return Vec::new() };
        let mut stages = Vec::new();
        if let Some(default) = default {
            let bare = doc! { "$eq": ["$$ROOT", { ID: format!("${ID}") }] };
            let made = doc! { "$mergeObjects": ["$$ROOT", literal(default.clone()), "$$ROOT"] };
            stages.push(doc! { "$replaceWith": { "$cond": [bare, made, "$$ROOT"] } });
        }
        let found = doc! { "$type": format!("${whole}") };
        // Every record has had a token since its first grant, and nobody waits for a lock that was
        // never granted.
        let record = doc! { "$or": [
            { "$eq": [&found, "missing"] },
            { "$and": [{ "$eq": [&found, "object"] }, { "$eq": [{ "$type": self.value(TOKEN) }, "long"] }] },
        ] };
        // The one way for a pipeline to refuse: a conversion that fails. Not of a constant, which
        // would fail always.
        let refusal = doc! { "$toLong": { "$concat": [NOT_A_LOCK, found] } };
        stages.push(doc! { "$set": { whole: { "$cond": [record, format!("${whole}"), refusal] } } });
        stages
    }

    /// The field of the sub-document that holds the lease; empty in a lock collection.
    pub(crate) fn field(&self) -> &str {
        self.whole().unwrap_or_default()
    }

    /// Whether the documents are about something else.
    pub(crate) fn is_within(&self) -> bool {
        self.whole().is_some()
    }

    /// The document without the lease.
    pub(super) fn rest(&self) -> Bson {
        match self.whole() {
            Some(whole) => doc! { "$unsetField": { "field": literal(whole), "input": "$$ROOT" } }.into(),
            None => "$$ROOT".into(),
        }
    }
}
