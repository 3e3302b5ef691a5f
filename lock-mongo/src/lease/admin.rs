//! The commands of administration.

use distlock_api::{LockFilter, LockKey, Result};
use mongodb::bson::{Bson, Document, doc};

use super::{
    AUDIT, AUDIT_LEN, CLOSED_UNTIL, EXPIRED, EXPIRES_AT, ID, LOCK_ID, Layout, MAX_REASON_LEN, META, OWNER, REVOKED,
    TAKE, TOKEN, TOKENS, answer, cut, literal, removed, time_of,
};

impl Layout {
    /// Makes the pipeline of a forced release: it takes the lease from its holder, or ends a
    /// minimum hold (R16).
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
            (CLOSED_UNTIL, removed()),
            // Without a holder no acquisition loses a lease.
            (REVOKED, doc! { "$ifNull": [self.value(LOCK_ID), self.value(REVOKED)] }.into()),
            (OWNER, removed()),
            (META, removed()),
            (AUDIT, audit.into()),
        ] {
            change.insert(self.path(field), self.when(&[(TAKE, new)], self.value(field).into()));
        }
        let is_closed = doc! { "$gt": [self.value(CLOSED_UNTIL), "$$NOW"] };
        self.in_steps([], [(TAKE, doc! { "$or": [self.is_held(), is_closed] })], change)
    }

    /// Returns the filter of the records whose tokens are below a floor.
    pub(crate) fn below(&self, floor: i64) -> Document {
        let mut below = self.if_record(doc! {});
        let token = self.path(TOKEN);
        if let Ok(conditions) = below.get_document_mut(&token) {
            conditions.insert("$lt", floor);
        }
        below
    }

    /// Makes the pipeline that raises the token to a floor, and takes the lease from its holder,
    /// whose tokens are below. The record stays until the clock has reached the floor (R6).
    pub(crate) fn raise(&self, floor: i64, reason: &str) -> Vec<Document> {
        let mut stages = self.force_release(reason);
        stages.push(doc! { "$set": {
            // The later end must not revive an expired lease.
            self.path(EXPIRED): { "$ifNull": [self.value(LOCK_ID), self.value(EXPIRED)] },
            self.path(LOCK_ID): removed(),
            self.path(TOKEN): floor,
            self.path(TOKENS): 1,
            self.path(EXPIRES_AT): { "$max": [self.value(EXPIRES_AT), "$$NOW", time_of(floor)] },
        } });
        stages
    }

    /// Projects a record to its [`Forced`](super::Forced) releases.
    pub(crate) fn history(&self) -> Document {
        answer(doc! { "entries": self.value(AUDIT) })
    }

    /// Returns the filter of the documents that match and are not free, after a key. In a lock
    /// collection these include documents that are no records.
    pub(crate) fn listed(&self, filter: &LockFilter, after: Option<&LockKey>) -> Result<Document> {
        let mut listed = if self.is_within() {
            self.if_record(doc! {})
        } else {
            doc! {}
        };
        self.add_matching(&mut listed, filter)?;
        // Values of types that sort after dates have no remaining time.
        let is_date = |field| doc! { "$in": [{ "$type": self.value(field) }, ["date", "missing", "null"]] };
        listed.insert(
            "$expr",
            doc! { "$and": [is_date(EXPIRES_AT), is_date(CLOSED_UNTIL), { "$gt": [self.remaining(), 0] }] },
        );
        let after = after.map(|after| self.identity(after)).transpose()?;
        Ok(Self::beyond(&listed, after))
    }

    /// Returns the filter of the records that match and are held.
    pub(crate) fn held(&self, filter: &LockFilter) -> Result<Document> {
        let mut held = self.if_record(doc! {});
        self.add_matching(&mut held, filter)?;
        held.insert("$expr", self.is_held());
        Ok(held)
    }

    /// Returns the keys and the partial filter of the owner index: records that name an owner.
    pub(crate) fn owner_index(&self) -> (Document, Document) {
        (doc! { self.path(OWNER): 1, ID: 1 }, doc! { self.path(OWNER): { "$exists": true } })
    }

    /// Returns the order of the identities. Where keys are the identities it is also that of the
    /// keys: both compare by bytes, because the collection has no collation.
    pub(crate) fn by_identity() -> Document {
        doc! { ID: 1 }
    }

    /// Returns the filter of the records that match, after an identity. A plain `$gt` would leave
    /// out identities of all types but that of `last`.
    pub(crate) fn beyond(matching: &Document, last: Option<Bson>) -> Document {
        match last {
            Some(last) => {
                doc! { "$and": [matching.clone(), { "$expr": { "$gt": ["$_id", literal(last)] } }] }
            }
            None => matching.clone(),
        }
    }

    /// Returns the filter of those of these records that match.
    pub(crate) fn among(matching: &Document, identities: Vec<Bson>) -> Document {
        doc! { "$and": [{ ID: { "$in": identities } }, matching.clone()] }
    }

    /// Projects to the identity alone, which [`identity_of`](Self::identity_of) reads.
    pub(crate) fn only_identity() -> Document {
        doc! { ID: 1 }
    }

    pub(crate) fn identity_of(mut found: Document) -> Option<Bson> {
        found.remove(ID)
    }

    fn add_matching(&self, matching: &mut Document, filter: &LockFilter) -> Result<()> {
        let mut ranges = if filter.prefix.is_empty() { Vec::new() } else { self.ids.beginning_with(&filter.prefix)? };
        if let [range] = &mut *ranges {
            matching.insert(ID, std::mem::take(range));
        } else if !ranges.is_empty() {
            matching.insert("$or", ranges.into_iter().map(|range| doc! { ID: range }).collect::<Vec<_>>());
        }
        if let Some(owner) = &filter.owner {
            matching.insert(self.path(OWNER), doc! { "$eq": owner });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_has_no_condition_on_keys_and_owners() {
        let layout = Layout::new("");
        assert_eq!(layout.held(&LockFilter::new()).unwrap().keys().collect::<Vec<_>>(), [TOKEN, "$expr"]);
        assert_eq!(layout.listed(&LockFilter::new(), None).unwrap().keys().collect::<Vec<_>>(), ["$expr"]);
        let filter = LockFilter::new().prefix("a").owner("$o");
        let listed = layout.listed(&filter, None).unwrap();
        assert_eq!(listed.get_document(ID).unwrap(), &doc! { "$gte": "a", "$lt": "b" });
        assert_eq!(listed.get_document(OWNER).unwrap(), &doc! { "$eq": "$o" });
        let after = layout.listed(&filter, Some(&LockKey::new("ab").unwrap())).unwrap();
        assert_eq!(after, Layout::beyond(&listed, Some("ab".into())));
    }
}
