//! What administration sends.

use distlock_api::{LockFilter, LockKey};
use mongodb::bson::{Bson, Document, doc};

use super::{
    AUDIT, AUDIT_LEN, EXPIRES_AT, ID, LOCK_ID, Layout, MAX_REASON_LEN, META, OWNER, REVOKED, TAKE, TOKEN, TOKENS,
    answer, cut, literal, removed,
};

impl Layout {
    /// Takes the lease away from whoever holds it (R16).
    pub(crate) fn force_release(&self, reason: &str) -> Vec<Document> {
        let token = doc! { "$add": [self.value(TOKEN), 1_i64] };
        let entry = doc! {
            "lockId": self.value(LOCK_ID),
            "owner": { "$ifNull": [self.value(OWNER), Bson::Null] },
            "token": self.value(TOKEN),
            "at": "$$NOW",
            "why": literal(cut(reason, MAX_REASON_LEN)),
        };
        let past = doc! { "$cond": [{ "$isArray": self.value(AUDIT) }, self.value(AUDIT), []] };
        let audit = doc! { "$slice": [{ "$concatArrays": [past, [entry]] }, -AUDIT_LEN] };
        let mut change = doc! {};
        for (field, new) in [
            (LOCK_ID, removed()),
            (TOKEN, token.into()),
            (TOKENS, 1.into()),
            (EXPIRES_AT, "$$NOW".into()),
            (REVOKED, self.value(LOCK_ID).into()),
            (OWNER, removed()),
            (META, removed()),
            (AUDIT, audit.into()),
        ] {
            change.insert(self.path(field), self.when(&[(TAKE, new)], field));
        }
        self.in_steps([], [(TAKE, self.is_held())], change)
    }

    /// The [`Forced`](super::Forced) releases that a record remembers.
    pub(crate) fn history(&self) -> Document {
        answer(doc! { "entries": self.value(AUDIT) })
    }

    /// The records that match and are not free, beyond a key.
    pub(crate) fn listed(&self, filter: &LockFilter, after: Option<&LockKey>) -> Document {
        let mut listed = self.matching(filter, after);
        listed.insert("$expr", doc! { "$gt": [self.remaining(), 0] });
        listed
    }

    /// The records that match and are held.
    pub(crate) fn held(&self, filter: &LockFilter) -> Document {
        let mut held = self.matching(filter, None);
        held.insert("$expr", self.is_held());
        held
    }

    /// The keys of the index by which an owner's records are found, and which records are in it: those that name one.
    pub(crate) fn owner_index(&self) -> (Document, Document) {
        (doc! { self.path(OWNER): 1, ID: 1 }, doc! { self.path(OWNER): { "$exists": true } })
    }

    /// In the order of the keys: both compare by bytes, as the collection has no collation.
    pub(crate) fn by_identity() -> Document {
        doc! { ID: 1 }
    }

    fn matching(&self, filter: &LockFilter, after: Option<&LockKey>) -> Document {
        let mut range = doc! {};
        if !filter.prefix.is_empty() {
            range.insert("$gte", &filter.prefix);
            if let Some(end) = beyond(&filter.prefix) {
                range.insert("$lt", end);
            }
        }
        if let Some(after) = after {
            range.insert("$gt", after.as_str());
        }
        let mut matching = doc! {};
        if !range.is_empty() {
            matching.insert(ID, range);
        }
        if let Some(owner) = &filter.owner {
            matching.insert(self.path(OWNER), doc! { "$eq": owner });
        }
        matching
    }
}

/// The first text that is greater, byte by byte, than all that begin with `prefix`; none if there is no such text.
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
    fn everything_is_no_condition_on_keys_and_owners() {
        let layout = Layout::new("");
        assert_eq!(layout.held(&LockFilter::new()).keys().collect::<Vec<_>>(), ["$expr"]);
        let listed = layout.listed(&LockFilter::new().prefix("a").owner("$o"), Some(&LockKey::new("ab").unwrap()));
        assert_eq!(listed.get_document(ID).unwrap(), &doc! { "$gte": "a", "$lt": "b", "$gt": "ab" });
        assert_eq!(listed.get_document(OWNER).unwrap(), &doc! { "$eq": "$o" });
    }
}
