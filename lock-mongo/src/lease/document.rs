//! Leases in an application's own documents (R8, R9).

use mongodb::bson::{Bson, Document, doc};

use super::{ID, Layout, TOKEN, literal};

/// The text of the server's error when the field is no lock.
pub(crate) const NOT_A_LOCK: &str = "distlock: not a lock but ";

impl Layout {
    /// Makes the stages before those of an acquisition. A missing document becomes the given one.
    /// If the field is no lock, the whole command fails, so that the document stays as it is.
    ///
    /// A document with nothing but its `_id` looks the same as a missing one.
    pub(crate) fn preparation(&self, default: Option<&Document>) -> Vec<Document> {
        let Some(whole) = self.sub_document() else { return Vec::new() };
        let mut stages = Vec::new();
        if let Some(default) = default {
            let bare = doc! { "$eq": ["$$ROOT", { ID: format!("${ID}") }] };
            let made = doc! { "$mergeObjects": ["$$ROOT", literal(default.clone()), "$$ROOT"] };
            stages.push(doc! { "$replaceWith": { "$cond": [bare, made, "$$ROOT"] } });
        }
        let found = doc! { "$type": format!("${whole}") };
        // Every record has had a token since its first grant, and a lock that was never granted has
        // no waiter.
        let record = doc! { "$or": [
            { "$eq": [&found, "missing"] },
            { "$and": [
                { "$eq": [&found, "object"] },
                { "$eq": [{ "$type": self.value(TOKEN) }, "long"] },
                { "$eq": [self.too_long(), Bson::Null] },
            ] },
        ] };
        // A pipeline can only fail by a conversion. That of a constant would always fail.
        let refusal = doc! { "$toLong": { "$concat": [NOT_A_LOCK, found] } };
        stages.push(doc! { "$set": { whole: { "$cond": [record, format!("${whole}"), refusal] } } });
        stages
    }

    /// Returns the field of the sub-document that contains the lease; empty in a lock collection.
    pub(crate) fn field(&self) -> &str {
        self.sub_document().unwrap_or_default()
    }

    /// Returns whether leases are in an application's own documents.
    pub(crate) fn is_within(&self) -> bool {
        self.sub_document().is_some()
    }

    /// The document without the lease.
    pub(super) fn without_lease(&self) -> Bson {
        match self.sub_document() {
            Some(whole) => without_field(whole, "$$ROOT"),
            None => "$$ROOT".into(),
        }
    }
}

/// The document of an expression, without the field of this name, which is taken literally.
///
/// `$unsetField` is the same, but the Stable API in its strict mode refuses it.
pub(super) fn without_field(name: &str, input: &str) -> Bson {
    doc! { "$setField": { "field": literal(name), "input": input, "value": "$$REMOVE" } }.into()
}
