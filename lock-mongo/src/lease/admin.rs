//! What administration sends.

use distlock_api::{LockFilter, LockKey, Result};
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
            change.insert(self.path(field), self.when(&[(TAKE, new)], self.value(field).into()));
        }
        self.in_steps([], [(TAKE, self.is_held())], change)
    }

    /// The [`Forced`](super::Forced) releases that a record remembers.
    pub(crate) fn history(&self) -> Document {
        answer(doc! { "entries": self.value(AUDIT) })
    }

    /// The records that match and are not free, beyond a key.
    pub(crate) fn listed(&self, filter: &LockFilter, after: Option<&LockKey>) -> Result<Document> {
        let mut listed = self.matching(filter, after)?;
        listed.insert("$expr", doc! { "$gt": [self.remaining(), 0] });
        Ok(listed)
    }

    /// The records that match and are held.
    pub(crate) fn held(&self, filter: &LockFilter) -> Result<Document> {
        let mut held = self.matching(filter, None)?;
        held.insert("$expr", self.is_held());
        Ok(held)
    }

    /// The keys of the index by which an owner's records are found, and which records are in it: those that name one.
    pub(crate) fn owner_index(&self) -> (Document, Document) {
        (doc! { self.path(OWNER): 1, ID: 1 }, doc! { self.path(OWNER): { "$exists": true } })
    }

    /// In the order of the keys, if they are the identities themselves: both compare by bytes, as the collection has no collation.
    pub(crate) fn by_identity() -> Document {
        doc! { ID: 1 }
    }

    fn matching(&self, filter: &LockFilter, after: Option<&LockKey>) -> Result<Document> {
        let mut matching = self.if_record(doc! {});
        let mut ranges = if filter.prefix.is_empty() { Vec::new() } else { self.ids.beginning_with(&filter.prefix)? };
        let mut beyond = match after {
            Some(after) => doc! { "$gt": self.identity(after)? },
            None => doc! {},
        };
        if let [range] = &mut *ranges {
            range.extend(std::mem::take(&mut beyond));
            matching.insert(ID, std::mem::take(range));
        } else {
            if !ranges.is_empty() {
                matching.insert("$or", ranges.into_iter().map(|range| doc! { ID: range }).collect::<Vec<_>>());
            }
            if !beyond.is_empty() {
                matching.insert(ID, beyond);
            }
        }
        if let Some(owner) = &filter.owner {
            matching.insert(self.path(OWNER), doc! { "$eq": owner });
        }
        Ok(matching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_no_condition_on_keys_and_owners() {
        let layout = Layout::new("");
        assert_eq!(layout.held(&LockFilter::new()).unwrap().keys().collect::<Vec<_>>(), ["$expr"]);
        let listed =
            layout.listed(&LockFilter::new().prefix("a").owner("$o"), Some(&LockKey::new("ab").unwrap())).unwrap();
        assert_eq!(listed.get_document(ID).unwrap(), &doc! { "$gte": "a", "$lt": "b", "$gt": "ab" });
        assert_eq!(listed.get_document(OWNER).unwrap(), &doc! { "$eq": "$o" });
    }
}
