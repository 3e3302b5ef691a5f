//! The commands of administration.

use std::time::Duration;

use distlock_api::{AcquisitionId, LockFilter, LockKey, Result};
use mongodb::bson::{Bson, Document, doc};

use super::bound::is_in_time;
use super::holders::{GRANTS, HELD, HOLDERS, ID_OF, MARKER, ids_of, latest, unless_blank};
use super::{
    AUDIT, AUDIT_LEN, CLOSED_UNTIL, EXPIRED, EXPIRES_AT, ID, LEAVE, LOCK_ID, Layout, MAX_REASON_LEN, META, OWNER,
    REVOKED, TAKE, TOKEN, TOKENS, answer, cut, last_token, literal, removed, time_of, time_of_stored,
};

/// The holders that lose their leases, computed by the first stages.
const VICTIMS: &str = "step.victims";
/// The others.
const STAY: &str = "step.stay";

/// Whose leases a forced release ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victims<'a> {
    All,
    /// This acquisition alone.
    One(&'a AcquisitionId),
    /// All that name this owner.
    Owner(&'a str),
}

impl Victims<'_> {
    /// Returns whether a holder with this id and this owner loses its lease.
    fn is(self, id: &str, owner: &str) -> Bson {
        match self {
            Self::All => true.into(),
            Self::One(victim) => doc! { "$eq": [id, literal(victim.as_str())] }.into(),
            Self::Owner(victim) => doc! { "$eq": [owner, literal(victim)] }.into(),
        }
    }
}

impl Layout {
    /// Makes the pipeline of a forced release: it takes the lease from these holders, or ends a
    /// minimum hold (R16). If others stay, the key stays held by them.
    pub(crate) fn force_release(&self, reason: &str, victims: Victims<'_>) -> Vec<Document> {
        let (held, taken) = (self.value(HELD), self.value(VICTIMS));
        let is_victim = |one: &str| victims.is(&format!("{one}.{ID_OF}"), &format!("{one}.{OWNER}"));
        let stays = doc! { "$filter": { "input": &held, "cond": { "$not": is_victim("$$this") } } };
        let is_among = doc! { "$filter": { "input": &held, "cond": is_victim("$$this") } };
        // After the greatest possible token an error, and nothing is written.
        let token = last_token(self.value(TOKEN), 2);
        // R6: not before the time of the token.
        let end = doc! { "$max": ["$$NOW", time_of_stored(token.clone())] };
        let entry = |id: Bson, owner: String| {
            doc! {
                "lockId": id,
                "owner": { "$ifNull": [owner, Bson::Null] },
                "token": self.value(TOKEN),
                "at": "$$NOW",
                "why": literal(cut(reason, MAX_REASON_LEN)),
            }
        };
        let of_several = doc! { "$map": {
            "input": &taken,
            "in": entry(format!("$$this.{ID_OF}").into(), format!("$$this.{OWNER}")),
        } };
        let of_one = entry(self.value(LOCK_ID).into(), self.value(OWNER));
        let entries = doc! { "$cond": [{ "$eq": [&taken, []] }, [of_one], of_several] };
        let past = doc! { "$slice": [self.value(AUDIT), -AUDIT_LEN] };
        let past = doc! { "$cond": [{ "$isArray": self.value(AUDIT) }, past, []] };
        let audit = Bson::from(doc! { "$slice": [{ "$concatArrays": [past, entries] }, -AUDIT_LEN] });
        // Without a holder no acquisition loses a lease.
        let of_one = doc! { "$ifNull": [self.value(LOCK_ID), self.value(REVOKED)] };
        let revoked = unless_blank(ids_of(taken.clone()), of_one.into());
        let stay = Bson::from(self.value(STAY));
        let rows: [(&str, Vec<(&str, Bson)>); 11] = [
            (LOCK_ID, vec![(TAKE, removed())]),
            (HOLDERS, vec![(TAKE, removed()), (LEAVE, stay)]),
            (GRANTS, vec![(TAKE, removed()), (LEAVE, removed())]),
            (TOKEN, vec![(TAKE, token.clone()), (LEAVE, token)]),
            (TOKENS, vec![(TAKE, 1.into()), (LEAVE, 1.into())]),
            // R26.
            (EXPIRES_AT, vec![(TAKE, end.into()), (LEAVE, latest(&self.value(STAY)).into())]),
            (CLOSED_UNTIL, vec![(TAKE, removed())]),
            (REVOKED, vec![(TAKE, revoked.clone()), (LEAVE, revoked)]),
            (OWNER, vec![(TAKE, removed())]),
            (META, vec![(TAKE, removed())]),
            (AUDIT, vec![(TAKE, audit.clone()), (LEAVE, audit)]),
        ];
        let change: Document = rows
            .into_iter()
            .map(|(field, steps)| (self.path(field), self.when(&steps, self.value(field).into())))
            .collect();
        let findings = [(HELD, self.live_holders()), (VICTIMS, is_among), (STAY, stays)];
        let (is_left, has_victim) = (doc! { "$ne": [self.value(STAY), []] }, doc! { "$ne": [taken, []] });
        let alone = doc! { "$and": [self.is_held(), victims.is(&self.value(LOCK_ID), &self.value(OWNER))] };
        let whole = match victims {
            // A record whose end cannot be read is also freed (R32).
            Victims::All => doc! { "$not": self.is_free() },
            Victims::One(_) | Victims::Owner(_) => {
                doc! { "$cond": [self.has_marker(), { "$and": [&has_victim, { "$not": &is_left }] }, alone] }
            }
        };
        self.in_steps(findings, [(TAKE, whole), (LEAVE, doc! { "$and": [has_victim, is_left] })], change)
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
        let mut stages = self.force_release(reason, Victims::All);
        let several = unless_blank(ids_of(self.holders()), self.value(EXPIRED).into());
        let one = doc! { "$ifNull": [self.value(LOCK_ID), self.value(EXPIRED)] };
        stages.push(doc! { "$set": {
            // The later end must not revive an expired lease.
            self.path(EXPIRED): { "$cond": [self.has_marker(), several, one] },
            self.path(LOCK_ID): removed(),
            self.path(HOLDERS): removed(),
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
        let mut conditions = vec![doc! { "$not": self.is_free() }];
        conditions.extend(filter.owner.as_deref().map(|owner| self.is_held_by_owner(owner)));
        listed.insert("$expr", doc! { "$and": conditions });
        let after = after.map(|after| self.identity(after)).transpose()?;
        Ok(Self::beyond(&listed, after))
    }

    /// Returns the filter of the records that match and are held.
    pub(crate) fn held(&self, filter: &LockFilter) -> Result<Document> {
        let mut held = self.if_record(doc! {});
        self.add_matching(&mut held, filter)?;
        let mut conditions = vec![self.is_held()];
        conditions.extend(filter.owner.as_deref().map(|owner| self.is_held_by_owner(owner)));
        held.insert("$expr", doc! { "$and": conditions });
        Ok(held)
    }

    /// Returns whether the lease is exclusive, or one of several live holders has this owner. The
    /// filter also matches expired ones.
    fn is_held_by_owner(&self, owner: &str) -> Document {
        let owners = doc! { "$map": { "input": self.live_holders(), "in": format!("$$this.{OWNER}") } };
        doc! { "$or": [{ "$not": self.has_marker() }, { "$in": [literal(owner), owners] }] }
    }

    /// Returns the keys and the partial filter of the owner index: records that name an owner.
    pub(crate) fn owner_index(&self) -> (Document, Document) {
        Self::index_of_owners(&self.path(OWNER))
    }

    /// The same of records with several holders: one entry for each owner.
    pub(crate) fn owners_index(&self) -> (Document, Document) {
        Self::index_of_owners(&self.owners())
    }

    fn index_of_owners(path: &str) -> (Document, Document) {
        (doc! { path: 1, ID: 1 }, doc! { path: { "$exists": true } })
    }

    fn owners(&self) -> String {
        self.path(&format!("{HOLDERS}.{OWNER}"))
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

    /// Returns a filter without the conditions that are computed, which matches more.
    pub(crate) fn without_computation(matching: &Document) -> Document {
        let plain = |(name, value): (&String, &Bson)| match value {
            _ if name == "$expr" => None,
            Bson::Array(all) if name == "$and" => {
                let all = all.iter().filter_map(Bson::as_document).map(Self::without_computation);
                Some((name.clone(), all.collect::<Vec<_>>().into()))
            }
            value => Some((name.clone(), value.clone())),
        };
        matching.iter().filter_map(plain).collect()
    }

    /// Returns the filter of those of these records that match.
    pub(crate) fn among(matching: &Document, identities: Vec<Bson>) -> Document {
        doc! { "$and": [{ ID: { "$in": identities } }, matching.clone()] }
    }

    /// The same, for a command that must begin before its bound (R31).
    pub(crate) fn among_until(matching: &Document, identities: Vec<Bson>, bound: Duration) -> Document {
        doc! { "$and": [Self::among(matching, identities), { "$expr": is_in_time(bound) }] }
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
            // Either is found by an index. A record with several holders has no owner of its own,
            // and holders without the marker mean nothing (R25).
            let of_one = doc! { self.path(OWNER): { "$eq": owner } };
            let of_several = doc! { self.path(LOCK_ID): MARKER, self.owners(): { "$eq": owner } };
            matching.insert("$and", vec![doc! { "$or": [of_one, of_several] }]);
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
        let held = layout.held(&LockFilter::new()).unwrap();
        assert_eq!(held.keys().collect::<Vec<_>>(), [TOKEN, "holders.256", "queue.20000", "$expr"]);
        assert_eq!(layout.listed(&LockFilter::new(), None).unwrap().keys().collect::<Vec<_>>(), ["$expr"]);
        let filter = LockFilter::new().prefix("a").owner("$o");
        let listed = layout.listed(&filter, None).unwrap();
        assert_eq!(listed.get_document(ID).unwrap(), &doc! { "$gte": "a", "$lt": "b" });
        let of_one = doc! { OWNER: { "$eq": "$o" } };
        let of_several = doc! { LOCK_ID: MARKER, "holders.owner": { "$eq": "$o" } };
        assert_eq!(listed.get_array("$and").unwrap(), &[Bson::from(doc! { "$or": [of_one, of_several] })]);
        let after = layout.listed(&filter, Some(&LockKey::new("ab").unwrap())).unwrap();
        assert_eq!(after, Layout::beyond(&listed, Some("ab".into())));
    }
}
