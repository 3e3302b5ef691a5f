//! What one provider hears of (R18, R20): that a releaser granted to it, that it lost a lease, that
//! a key opened for a reason that its waiters cannot foresee.
//!
//! The server filters, and sends of each change only what is read here: renewals, tickets, others'
//! grants and ordinary releases stay there. *Not* told is a release that finds nobody to grant to:
//! whoever waits without a ticket polls anyway, and every unlocking of every process would be told
//! to all others. Told to all are releases by force and the beginning of a minimum hold, since
//! neither grants; removed records, which may have held a queue; and what is no record any more.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use distlock_api::{AcquisitionId, FencingToken, LockKey, Loss};
use distlock_engine::store::{Grant, ProviderId, StoreEvent, StoreTime};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde::Deserialize;

use super::{AUDIT, CLOSED_UNTIL, EXPIRED, EXPIRES_AT, ID, LAST_RELEASED, LOCK_ID, Layout, PASSED, REVOKED, TOKEN};

const UPDATE: &str = "update";
const REPLACE: &str = "replace";
const DELETE: &str = "delete";
const DROP: &str = "drop";
const RENAME: &str = "rename";
/// After these all records of the database are not where they were.
const ENDS_ALL: [&str; 2] = ["dropDatabase", "invalidate"];

/// How many providers' ids go into one regular expression: the server bounds their length.
const IDS_IN_REGEX: usize = 256;

/// What one subscriber of a change stream is interested in.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    collection: String,
    layout: Layout,
    provider: ProviderId,
}

impl PartialEq for Subject {
    /// Whether the same changes are sent for both.
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

    pub(crate) fn reader(&self) -> Hints {
        Hints::new(self.layout.clone(), self.provider)
    }

    /// The stages after `$changeStream` for all these subjects.
    pub(crate) fn hints(subjects: &[Self]) -> Vec<Document> {
        let mut layouts = BTreeMap::<String, (&Layout, BTreeSet<&str>)>::new();
        for Self { collection, layout, .. } in subjects {
            layouts.entry(layout.slot()).or_insert_with(|| (layout, BTreeSet::new())).1.insert(collection);
        }
        let among = |collections: &BTreeSet<&str>| doc! { "$in": collections.iter().copied().collect::<Vec<_>>() };
        let all = among(&subjects.iter().map(Self::collection).collect());
        let known = [UPDATE, REPLACE, DELETE, DROP, RENAME].as_slice();
        let concerns = doc! { "$match": { "$or": [
            { "operationType": { "$in": known }, "ns.coll": &all },
            { "operationType": RENAME, "to.coll": &all },
            { "operationType": { "$in": ENDS_ALL.as_slice() } },
        ] } };
        // First of all what needs no calculation: who holds the lease has changed, or the whole
        // record.
        let mut of_interest = vec![doc! { "operationType": { "$ne": UPDATE } }];
        let mut leases = Document::new();
        let mut told = vec![doc! { "operationType": { "$nin": [UPDATE, REPLACE] } }];
        let own = own(&subjects.iter().map(|subject| subject.provider.to_string()).collect());
        for (slot, (layout, collections)) in layouts {
            let collections = among(&collections);
            of_interest.push(doc! { "$and": [{ "ns.coll": &collections }, layout.of_interest()] });
            told.push(doc! { "$and": [{ "ns.coll": collections }, told_in(&format!("lease.{slot}"), &own)] });
            leases.insert(slot, layout.traces());
        }
        let project = doc! {
            "operationType": 1,
            "ns.coll": 1,
            "to.coll": 1,
            "documentKey": 1,
            "lease": leases,
        };
        vec![
            concerns,
            doc! { "$match": { "$or": of_interest } },
            doc! { "$project": project },
            doc! { "$match": { "$or": told } },
        ]
    }
}

/// The acquisition ids of these providers.
fn own(providers: &BTreeSet<String>) -> Document {
    let providers: Vec<&str> = providers.iter().map(String::as_str).collect();
    let patterns = providers.chunks(IDS_IN_REGEX).map(|some| {
        let pattern = format!("^(?:{})-", some.join("|"));
        Bson::RegularExpression(mongodb::bson::Regex { pattern, options: String::new() })
    });
    doc! { "$in": patterns.collect::<Vec<_>>() }
}

/// The condition for a changed record, whose traces are under this path, to be told.
fn told_in(lease: &str, own: &Document) -> Document {
    let at = |field: &str| format!("{lease}.{field}");
    let (exists, missing) = (doc! { "$exists": true }, doc! { "$exists": false });
    let without_holder = |and: Document| {
        let mut condition = doc! { at("holder"): &missing };
        condition.extend(and);
        condition
    };
    let last_forced = format!("${}", at("lastForced"));
    let by_force = doc! { "$eq": [format!("${}", at("token")), { "$add": [last_forced, 1_i64] }] };
    doc! { "$or": [
        { "operationType": REPLACE, at("token"): { "$not": { "$type": "long" } } },
        { at("holder"): own, at("passed"): &exists },
        { at("holder"): &exists, at("expired"): own },
        // By force, if the change tells only what is new; or by hand.
        without_holder(doc! { at("released"): &missing }),
        without_holder(doc! { at("closed"): &exists }),
        without_holder(doc! { at("revoked"): &exists, "$expr": by_force }),
    ] }
}

impl Layout {
    /// The fields that are read, as the `$project` stage computes them.
    fn traces(&self) -> Document {
        let last_forced = doc! { "$let": {
            "vars": { "last": { "$cond": [{ "$isArray": self.told(AUDIT) }, { "$last": self.told(AUDIT) }, Bson::Null] } },
            "in": "$$last.token",
        } };
        doc! {
            "holder": self.told(LOCK_ID),
            "token": self.told(TOKEN),
            "passed": self.told(PASSED),
            "expiresAt": self.told(EXPIRES_AT),
            "released": self.told(LAST_RELEASED),
            "revoked": self.told(REVOKED),
            "expired": self.told(EXPIRED),
            "closed": self.told(CLOSED_UNTIL),
            "lastForced": last_forced,
        }
    }

    /// Under which name the traces of such records are sent: each layout has one of its own,
    /// without dots.
    fn slot(&self) -> String {
        let mut slot = String::from("at");
        for byte in self.prefix.bytes() {
            slot.push_str(&format!("{byte:02x}"));
        }
        slot
    }

    /// A field as a change tells it: of the whole document, by its literal path, or in the whole
    /// sub-document. What an update leaves as it was is missing.
    fn told(&self, field: &str) -> Document {
        let path = self.path(field);
        let changed = "$updateDescription.updatedFields";
        doc! { "$ifNull": [
            format!("$fullDocument.{path}"),
            { "$getField": { "field": &path, "input": changed } },
            format!("{changed}.{path}"),
        ] }
    }
}

/// What acquisition ids of a provider begin with.
fn own_prefix(provider: ProviderId) -> String {
    format!("{provider}-")
}

/// A change, as [`Subject::hints`] sends it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    operation_type: String,
    #[serde(default)]
    document_key: Document,
    ns: Option<Namespace>,
    /// The new name of a collection.
    to: Option<Namespace>,
    /// The traces of each layout.
    #[serde(default)]
    lease: HashMap<String, Traces>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    coll: Option<String>,
}

impl Told {
    /// Whether the change is about the collection of this subject.
    pub(crate) fn concerns(&self, subject: &Subject) -> bool {
        let is_it =
            |name: &Option<Namespace>| name.as_ref().and_then(|name| name.coll.as_ref()) == Some(&subject.collection);
        ENDS_ALL.contains(&&*self.operation_type) || is_it(&self.ns) || is_it(&self.to)
    }

    /// Whether the records are not where they were.
    pub(crate) fn ends(&self) -> bool {
        [DROP, RENAME].contains(&&*self.operation_type) || ENDS_ALL.contains(&&*self.operation_type)
    }
}

/// Values of any type, because anybody may have written them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Traces {
    holder: Option<Bson>,
    token: Option<Bson>,
    passed: Option<Bson>,
    expires_at: Option<Bson>,
    released: Option<Bson>,
    revoked: Option<Bson>,
    expired: Option<Bson>,
    last_forced: Option<Bson>,
}

impl Traces {
    fn is_by_force(&self) -> bool {
        // A change that names who was revoked and no release tells only what is new.
        let moved = |last: &Bson| {
            last.as_i64().and_then(|last| last.checked_add(1)) == self.token.as_ref().and_then(Bson::as_i64)
        };
        self.revoked.is_some() && (self.released.is_none() || self.last_forced.as_ref().is_some_and(moved))
    }

    /// The block and its end, if the change tells all of it: an end that happens to be the one
    /// before is not told.
    fn grant(&self) -> Option<(Grant, DateTime)> {
        let number = |value: &Option<Bson>| value.as_ref().and_then(Bson::as_i64);
        let (first, last) = (number(&self.passed)?, number(&self.token)?);
        let tokens = u32::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?.try_into().ok()?;
        let first = FencingToken::new(u64::try_from(first).ok()?);
        let grant = Grant::new(first, std::time::Duration::ZERO).with_tokens(tokens);
        Some((grant, *self.expires_at.as_ref()?.as_datetime()?))
    }
}

/// Reads the changes of one provider.
#[derive(Debug)]
pub(crate) struct Hints {
    layout: Layout,
    slot: String,
    prefix: String,
}

impl Hints {
    pub(crate) fn new(layout: Layout, provider: ProviderId) -> Self {
        Self { slot: layout.slot(), layout, prefix: own_prefix(provider) }
    }

    /// What a change means to the provider.
    pub(crate) fn read(&self, change: &Told) -> Vec<StoreEvent> {
        if change.ends() {
            return vec![StoreEvent::Gap];
        }
        // A document that cannot be a record.
        let key = change.document_key.get(ID).and_then(|id| self.layout.key(id));
        let Some(key) = key else { return Vec::new() };
        if change.operation_type == DELETE {
            return vec![StoreEvent::Freed { key }];
        }
        let nothing = Traces::default();
        let lease = change.lease.get(&self.slot).unwrap_or(&nothing);
        self.changed(key, lease, change.operation_type == REPLACE)
    }

    fn changed(&self, key: LockKey, lease: &Traces, is_whole: bool) -> Vec<StoreEvent> {
        match &lease.token {
            // It was replaced by something else, or never was a record.
            None if is_whole => return vec![StoreEvent::Freed { key }],
            Some(token) if token.as_i64().is_none() => return vec![StoreEvent::Gap],
            _ => {}
        }
        let Some(holder) = &lease.holder else {
            let mut events = Vec::new();
            if lease.is_by_force()
                && let Some(id) = self.own(&lease.revoked)
            {
                events.push(self.gone(&key, id, lease, Loss::ForceReleased));
            }
            events.push(StoreEvent::Freed { key });
            return events;
        };
        let mut events = Vec::new();
        if let Some(id) = self.own(&lease.expired) {
            events.push(self.gone(&key, id, lease, Loss::Gone));
        }
        if lease.passed.is_some()
            && let Some(id) = self.own(&Some(holder.clone()))
        {
            events.push(match lease.grant() {
                Some((grant, end)) => {
                    let end = std::time::Duration::from_millis(u64::try_from(end.timestamp_millis()).unwrap_or(0));
                    StoreEvent::Granted { key, id, grant, expires_at: StoreTime::since_origin(end) }
                }
                // The waiter asks, and is told.
                None => StoreEvent::Freed { key },
            });
        }
        events
    }

    /// Every loss moves the token; a change that does not tell it was made by hand, and everybody
    /// asks.
    fn gone(&self, key: &LockKey, id: AcquisitionId, lease: &Traces, loss: Loss) -> StoreEvent {
        match lease.token.as_ref().and_then(Bson::as_i64).and_then(|token| u64::try_from(token).ok()) {
            Some(token) => StoreEvent::Gone { key: key.clone(), id, token: FencingToken::new(token), loss },
            None => StoreEvent::Gap,
        }
    }

    fn own(&self, id: &Option<Bson>) -> Option<AcquisitionId> {
        let id = id.as_ref()?.as_str()?;
        id.starts_with(&self.prefix).then(|| AcquisitionId::new(id))
    }
}

#[cfg(test)]
mod tests;
