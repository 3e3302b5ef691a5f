//! The events of one provider, read from changes of records (R18, R20). A release granted it a
//! lease, it lost a lease, or a key opened for a reason that its waiters cannot foresee.
//!
//! The server filters the changes, and sends only the fields that are read here. Renewals, tickets,
//! grants to others and ordinary releases are not sent.
//!
//! * *Not reported* is a release without a waiter to grant to. Waiters without a ticket poll, and
//!   otherwise every release of every process would be sent to all others.
//! * *Reported to all* are forced releases and the beginning of a minimum hold, because neither
//!   grants, also if other holders stay. The same holds for removed records, which may have had a
//!   queue, and for documents that are no longer records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use distlock_api::{AcquisitionId, FencingToken, LockKey, Loss};
use distlock_engine::store::{Grant, ProviderId, StoreEvent, StoreTime};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde::Deserialize;

use super::grants::{Part, parts};
use super::holders::{BETWEEN, GRANTS, MARKER};
use super::{AUDIT, CLOSED_UNTIL, EXPIRED, EXPIRES_AT, ID, LAST_RELEASED, LOCK_ID, Layout, PASSED, REVOKED, TOKEN};
use crate::bson::regex;

const UPDATE: &str = "update";
const REPLACE: &str = "replace";
const DELETE: &str = "delete";
const DROP: &str = "drop";
const RENAME: &str = "rename";
/// After these changes all records of the database are gone.
const ENDS_ALL: [&str; 2] = ["dropDatabase", "invalidate"];

/// How many ids of providers one regular expression contains: the server limits its length.
const IDS_IN_REGEX: usize = 256;

/// The changes that one subscriber of a change stream needs.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    collection: String,
    layout: Layout,
    provider: ProviderId,
}

impl PartialEq for Subject {
    /// Returns whether both need the same changes.
    fn eq(&self, other: &Self) -> bool {
        (&self.collection, &self.layout.prefix, self.provider)
            == (&other.collection, &other.layout.prefix, other.provider)
    }
}

impl Subject {
    pub(crate) fn new(collection: &str, layout: Layout, provider: ProviderId) -> Self {
        Self { collection: collection.to_owned(), layout, provider }
    }

    pub(crate) fn collection(&self) -> &str {
        &self.collection
    }

    pub(crate) fn decoder(&self) -> EventDecoder {
        EventDecoder::new(self.layout.clone(), self.provider)
    }

    /// Makes the stages after `$changeStream` for all these subjects.
    pub(crate) fn pipeline(subjects: &[Self]) -> Vec<Document> {
        let mut layouts = BTreeMap::<String, (&Layout, BTreeSet<&str>)>::new();
        for Self { collection, layout, .. } in subjects {
            layouts.entry(layout.slot()).or_insert_with(|| (layout, BTreeSet::new())).1.insert(collection);
        }
        let among = |collections: &BTreeSet<&str>| doc! { "$in": collections.iter().copied().collect::<Vec<_>>() };
        let all = among(&subjects.iter().map(Self::collection).collect());
        let others = [REPLACE, DELETE, DROP, RENAME].as_slice();
        let mut concerns = vec![
            doc! { "operationType": { "$in": others }, "ns.coll": &all },
            doc! { "operationType": RENAME, "to.coll": &all },
            doc! { "operationType": { "$in": ENDS_ALL.as_slice() } },
        ];
        // The first condition needs no computation: the holder has changed, or the whole record.
        let mut may_change_holder = vec![doc! { "operationType": { "$ne": UPDATE } }];
        let mut leases = Document::new();
        let mut reported = vec![doc! { "operationType": { "$nin": [UPDATE, REPLACE] } }];
        let providers = subjects.iter().map(|subject| subject.provider.to_string()).collect();
        let own = Own { one: own(&providers, "^"), among: own(&providers, "(?:^|;)") };
        for (slot, (layout, collections)) in layouts {
            let collections = among(&collections);
            let mut updates = doc! { "operationType": UPDATE, "ns.coll": &collections };
            updates.extend(layout.may_be_reported(&own));
            concerns.push(updates);
            may_change_holder
                .push(doc! { "$and": [{ "ns.coll": &collections }, layout.may_change_holder(&[GRANTS, REVOKED])] });
            let is_reported = is_reported(&format!("lease.{slot}"), &own);
            reported.push(doc! { "$and": [{ "ns.coll": collections }, is_reported] });
            leases.insert(slot, layout.changed_lease());
        }
        let project = doc! {
            "operationType": 1,
            "ns.coll": 1,
            "to.coll": 1,
            "documentKey": 1,
            "lease": leases,
        };
        vec![
            doc! { "$match": { "$or": concerns } },
            doc! { "$match": { "$or": may_change_holder } },
            doc! { "$project": project },
            doc! { "$match": { "$or": reported } },
        ]
    }
}

/// The conditions that a text is the id of an acquisition of one of some providers, and that one of
/// the ids in it is.
struct Own {
    one: Document,
    among: Document,
}

/// The condition that an acquisition id behind `before` belongs to one of these providers.
fn own(providers: &BTreeSet<String>, before: &str) -> Document {
    let providers: Vec<&str> = providers.iter().map(String::as_str).collect();
    let patterns = providers.chunks(IDS_IN_REGEX).map(|some| regex(format!("{before}(?:{})-", some.join("|"))));
    doc! { "$in": patterns.collect::<Vec<_>>() }
}

/// The condition that grants begin with the mark of a minimum hold.
fn begins_hold() -> Bson {
    regex("^~".to_owned())
}

/// The condition that the change of a record, whose fields are under this path, is reported.
fn is_reported(lease: &str, own: &Own) -> Document {
    let at = |field: &str| format!("{lease}.{field}");
    let (exists, missing) = (doc! { "$exists": true }, doc! { "$exists": false });
    let without_holder = |and: Document| {
        let mut condition = doc! { at("holder"): &missing };
        condition.extend(and);
        condition
    };
    let last_forced = format!("${}", at("lastForced"));
    // A sum with anything but a number would end the stream, which all stores of the client share.
    let next = doc! { "$cond": [{ "$isNumber": &last_forced }, { "$add": [&last_forced, 1_i64] }, Bson::Null] };
    let by_force = doc! { "$eq": [format!("${}", at("token")), next] };
    doc! { "$or": [
        { "operationType": REPLACE, at("token"): { "$not": { "$type": "long" } } },
        { at("holder"): &own.one, at("passed"): &exists },
        { at("holder"): &exists, at("expired"): &own.among },
        { at("grants"): &exists, at("expired"): &own.among },
        { at("grants"): &own.among },
        { at("grants"): begins_hold() },
        // By force, if the change has only the changed fields; or by hand.
        without_holder(doc! { at("released"): &missing, at("grants"): &missing }),
        without_holder(doc! { at("closed"): &exists }),
        { at("revoked"): &exists, "$expr": by_force },
    ] }
}

impl Layout {
    /// A condition of all updates that are reported, in a form that the server applies to its log,
    /// before it makes an event of an entry. It has no such form for fields of a sub-document.
    ///
    /// It leaves out what is most frequent: the grants to others, those that an acquisition makes
    /// itself, and the releases without a waiter. *(Measured: with two streams, each update of a
    /// lease took the primary 0.19 ms more, and takes 0.13 ms more. 100 processes that wait for one
    /// key acquired 55 times per second when each grant became an event of every stream, and do so
    /// 70 times.)*
    fn may_be_reported(&self, own: &Own) -> Document {
        if self.sub_document().is_some() {
            return Document::new();
        }
        let set = |field: &str| format!("updateDescription.updatedFields.{field}");
        let sets = |field: &str, exists: bool| doc! { set(field): { "$exists": exists } };
        let mut by_hand = sets(LAST_RELEASED, false);
        by_hand.insert("updateDescription.removedFields", LOCK_ID);
        let mut granted = sets(PASSED, true);
        granted.insert(set(LOCK_ID), own.one.clone());
        let mut reported =
            vec![by_hand, granted, doc! { set(GRANTS): own.among.clone() }, doc! { set(GRANTS): begins_hold() }];
        reported.extend([EXPIRED, REVOKED, CLOSED_UNTIL].map(|field| sets(field, true)));
        doc! { "$or": reported }
    }

    /// The fields that are read, as the `$project` stage computes them: a [`ChangedLease`].
    fn changed_lease(&self) -> Document {
        let audit = self.in_change(AUDIT);
        let last_forced = doc! { "$let": {
            "vars": { "last": { "$cond": [{ "$isArray": &audit }, { "$last": &audit }, Bson::Null] } },
            "in": "$$last.token",
        } };
        doc! {
            "holder": self.in_change(LOCK_ID),
            "token": self.in_change(TOKEN),
            "passed": self.in_change(PASSED),
            "expiresAt": self.in_change(EXPIRES_AT),
            "released": self.in_change(LAST_RELEASED),
            "revoked": self.in_change(REVOKED),
            "expired": self.in_change(EXPIRED),
            "grants": self.in_change(GRANTS),
            "closed": self.in_change(CLOSED_UNTIL),
            "lastForced": last_forced,
        }
    }

    /// Returns the name under which the fields of such records are sent. Each layout has its own,
    /// without dots.
    fn slot(&self) -> String {
        let mut slot = String::from("at");
        for byte in self.prefix.bytes() {
            slot.push_str(&format!("{byte:02x}"));
        }
        slot
    }

    /// The value of a field in a change: in the whole document, by its literal path, or in the
    /// whole sub-document. A field that an update has not changed is missing.
    fn in_change(&self, field: &str) -> Document {
        let path = self.path(field);
        let changed = "$updateDescription.updatedFields";
        doc! { "$ifNull": [
            format!("$fullDocument.{path}"),
            { "$getField": { "field": &path, "input": changed } },
            format!("{changed}.{path}"),
        ] }
    }
}

/// Returns the prefix of all acquisition ids of a provider.
fn own_prefix(provider: ProviderId) -> String {
    format!("{provider}-")
}

/// A change, in the form that [`Subject::pipeline`] makes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReportedChange {
    operation_type: String,
    #[serde(default)]
    document_key: Document,
    ns: Option<Namespace>,
    /// The new name of a collection.
    to: Option<Namespace>,
    /// The changed fields, by the slot of their layout.
    #[serde(default)]
    lease: HashMap<String, ChangedLease>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    coll: Option<String>,
}

impl ReportedChange {
    /// Returns whether the change concerns the collection of this subject.
    pub(crate) fn concerns(&self, subject: &Subject) -> bool {
        let is_it =
            |name: &Option<Namespace>| name.as_ref().and_then(|name| name.coll.as_ref()) == Some(&subject.collection);
        ENDS_ALL.contains(&&*self.operation_type) || is_it(&self.ns) || is_it(&self.to)
    }

    /// Returns whether the records of the collection are gone.
    pub(crate) fn ends(&self) -> bool {
        [DROP, RENAME].contains(&&*self.operation_type) || ENDS_ALL.contains(&&*self.operation_type)
    }
}

/// The changed fields of a record. They can have any type, because any program can write them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ChangedLease {
    holder: Option<Bson>,
    token: Option<Bson>,
    passed: Option<Bson>,
    expires_at: Option<Bson>,
    released: Option<Bson>,
    revoked: Option<Bson>,
    expired: Option<Bson>,
    grants: Option<Bson>,
    last_forced: Option<Bson>,
}

impl ChangedLease {
    fn is_by_force(&self) -> bool {
        // A change with a revoked acquisition and no release has only the changed fields.
        self.revoked.is_some() && (self.released.is_none() || self.has_moved_token())
    }

    /// Returns whether the last change of the token was a forced release.
    fn has_moved_token(&self) -> bool {
        let moved = |last: &Bson| {
            last.as_i64().and_then(|last| last.checked_add(1)) == self.token.as_ref().and_then(Bson::as_i64)
        };
        self.last_forced.as_ref().is_some_and(moved)
    }

    /// Returns the block and its end, if the change contains all of it. An end that equals the
    /// previous one is missing.
    fn grant(&self) -> Option<(Grant, DateTime)> {
        let number = |value: &Option<Bson>| value.as_ref().and_then(Bson::as_i64);
        let (first, last) = (number(&self.passed)?, number(&self.token)?);
        let tokens = u32::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?.try_into().ok()?;
        let first = FencingToken::new(u64::try_from(first).ok()?);
        let grant = Grant::new(first, std::time::Duration::ZERO).with_tokens(tokens);
        Some((grant, *self.expires_at.as_ref()?.as_datetime()?))
    }
}

/// The reader of the changes for one provider.
#[derive(Debug)]
pub(crate) struct EventDecoder {
    layout: Layout,
    slot: String,
    prefix: String,
}

impl EventDecoder {
    pub(crate) fn new(layout: Layout, provider: ProviderId) -> Self {
        Self { slot: layout.slot(), layout, prefix: own_prefix(provider) }
    }

    /// Reads the events of a change.
    pub(crate) fn read(&self, change: &ReportedChange) -> Vec<StoreEvent> {
        if change.ends() {
            return vec![StoreEvent::Gap];
        }
        // A document without a key cannot be a record.
        let key = change.document_key.get(ID).and_then(|id| self.layout.key(id));
        let Some(key) = key else { return Vec::new() };
        if change.operation_type == DELETE {
            return vec![StoreEvent::Freed { key }];
        }
        let nothing = ChangedLease::default();
        let lease = change.lease.get(&self.slot).unwrap_or(&nothing);
        self.changed(key, lease, change.operation_type == REPLACE)
    }

    fn changed(&self, key: LockKey, lease: &ChangedLease, is_whole: bool) -> Vec<StoreEvent> {
        match &lease.token {
            // The record was replaced by another document, or there never was one.
            None if is_whole => return vec![StoreEvent::Freed { key }],
            Some(token) if token.as_i64().is_none() => return vec![StoreEvent::Gap],
            _ => {}
        }
        let mut events = Vec::new();
        // A grant may have taken an expired lease over. Beside the marker `lockId` stays as it is.
        if lease.holder.is_some() || (lease.grants.is_some() && !is_whole) {
            let lost = self.own_among(&lease.expired);
            events.extend(lost.into_iter().map(|id| self.gone(&key, id, lease, Loss::Gone)));
        }
        events.extend(self.granted_beside_others(&key, lease));
        let Some(holder) = &lease.holder else {
            if lease.is_by_force() {
                events.extend(self.revoked(&key, lease));
            }
            // Without the marker, grants are of an earlier time.
            if lease.grants.is_none() || is_whole {
                events.push(StoreEvent::Freed { key });
            }
            return events;
        };
        // Some of several holders, in a change that contains the whole record.
        if holder.as_str() == Some(MARKER) && lease.revoked.is_some() && lease.has_moved_token() {
            events.extend(self.revoked(&key, lease));
            events.push(StoreEvent::Freed { key: key.clone() });
        }
        if lease.passed.is_some()
            && let Some(id) = self.own(&Some(holder.clone()))
        {
            events.push(match lease.grant() {
                Some((grant, end)) => {
                    let end = std::time::Duration::from_millis(u64::try_from(end.timestamp_millis()).unwrap_or(0));
                    StoreEvent::Granted { key, id, grant, expires_at: StoreTime::since_origin(end) }
                }
                // The waiter queries the store, which has the grant.
                None => StoreEvent::Freed { key },
            });
        }
        events
    }

    /// Reads the grants of a release beside the marker, and the beginning of a minimum hold there.
    fn granted_beside_others(&self, key: &LockKey, lease: &ChangedLease) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        for part in parts(lease.grants.as_ref().and_then(Bson::as_str).unwrap_or_default()) {
            match part {
                Part::Kept(_) => events.push(StoreEvent::Freed { key: key.clone() }),
                Part::Granted(granted) if granted.by_release && granted.id.starts_with(&self.prefix) => {
                    let Some(tokens) = std::num::NonZeroU32::new(granted.tokens) else { continue };
                    let first = FencingToken::new(granted.first);
                    let end = std::time::Duration::from_millis(granted.expires_at);
                    events.push(StoreEvent::Granted {
                        key: key.clone(),
                        id: AcquisitionId::new(granted.id),
                        grant: Grant::new(first, std::time::Duration::ZERO).with_tokens(tokens),
                        expires_at: StoreTime::since_origin(end),
                    });
                }
                Part::Granted(_) => {}
            }
        }
        events
    }

    /// Makes the events of leases that were released by force.
    fn revoked(&self, key: &LockKey, lease: &ChangedLease) -> Vec<StoreEvent> {
        let own = self.own_among(&lease.revoked);
        own.into_iter().map(|id| self.gone(key, id, lease, Loss::ForceReleased)).collect()
    }

    /// Makes the event of a lost lease. Every loss moves the token. A change without it was made by
    /// hand; then all waiters must query the store.
    fn gone(&self, key: &LockKey, id: AcquisitionId, lease: &ChangedLease, loss: Loss) -> StoreEvent {
        match lease.token.as_ref().and_then(Bson::as_i64).and_then(|token| u64::try_from(token).ok()) {
            Some(token) => StoreEvent::Gone { key: key.clone(), id, token: FencingToken::new(token), loss },
            None => StoreEvent::Gap,
        }
    }

    /// Returns the own ones of some acquisitions.
    fn own_among(&self, ids: &Option<Bson>) -> Vec<AcquisitionId> {
        let ids = ids.as_ref().and_then(Bson::as_str).unwrap_or_default();
        ids.split(BETWEEN).filter(|id| id.starts_with(&self.prefix)).map(AcquisitionId::new).collect()
    }

    fn own(&self, id: &Option<Bson>) -> Option<AcquisitionId> {
        let id = id.as_ref()?.as_str()?;
        id.starts_with(&self.prefix).then(|| AcquisitionId::new(id))
    }
}

#[cfg(test)]
mod tests;
