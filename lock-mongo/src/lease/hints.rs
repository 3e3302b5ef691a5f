//! What one provider hears of (R18, R20): that a releaser granted to it, that it lost a lease, that a key opened for a reason that its waiters cannot foresee.
//!
//! The server filters, and sends of each change only what is read here: renewals, tickets, others' grants and ordinary releases stay there.
//! *Not* told is a release that finds nobody to grant to: whoever waits without a ticket polls anyway, and every unlocking of every process would be told to all others.
//! Told to all are releases by force and the beginning of a minimum hold, since neither grants; removed records, which may have held a queue; and what is no record any more.

use distlock_api::store::{AcquisitionId, Grant, ProviderId, StoreEvent, StoreTime};
use distlock_api::{FencingToken, LockKey, Loss};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde::Deserialize;

use super::{AUDIT, CLOSED_UNTIL, EXPIRED, EXPIRES_AT, ID, LAST_RELEASED, LOCK_ID, Layout, PASSED, REVOKED, TOKEN};

const UPDATE: &str = "update";
const REPLACE: &str = "replace";
const DELETE: &str = "delete";
/// After these the records are not where they were.
const ENDS: [&str; 4] = ["drop", "rename", "dropDatabase", "invalidate"];

impl Layout {
    /// The stages after `$changeStream` for one provider.
    pub(crate) fn hints(&self, provider: ProviderId) -> Vec<Document> {
        let known = [UPDATE, REPLACE, DELETE].into_iter().chain(ENDS).collect::<Vec<_>>();
        let mut stages = vec![doc! { "$match": { "operationType": { "$in": known } } }];
        // First of all what needs no calculation: who holds the lease has changed, or the whole record.
        stages.extend(self.changes());
        let last_forced = doc! { "$let": {
            "vars": { "last": { "$cond": [{ "$isArray": self.told(AUDIT) }, { "$last": self.told(AUDIT) }, Bson::Null] } },
            "in": "$$last.token",
        } };
        stages.push(doc! { "$project": {
            "operationType": 1,
            "documentKey": 1,
            "lease": {
                "holder": self.told(LOCK_ID),
                "token": self.told(TOKEN),
                "passed": self.told(PASSED),
                "expiresAt": self.told(EXPIRES_AT),
                "released": self.told(LAST_RELEASED),
                "revoked": self.told(REVOKED),
                "expired": self.told(EXPIRED),
                "closed": self.told(CLOSED_UNTIL),
                "lastForced": last_forced,
            },
        } });
        let own = doc! { "$regex": format!("^{}", own_prefix(provider)) };
        let (exists, missing) = (doc! { "$exists": true }, doc! { "$exists": false });
        let nobody = |and: Document| {
            let mut condition = doc! { "lease.holder": &missing };
            condition.extend(and);
            condition
        };
        let by_force = doc! { "$eq": ["$lease.token", { "$add": ["$lease.lastForced", 1_i64] }] };
        stages.push(doc! { "$match": { "$or": [
            { "operationType": { "$nin": [UPDATE, REPLACE] } },
            { "operationType": REPLACE, "lease.token": { "$not": { "$type": "long" } } },
            { "lease.holder": &own, "lease.passed": &exists },
            { "lease.holder": &exists, "lease.expired": &own },
            // By force, if the change tells only what is new; or by hand.
            nobody(doc! { "lease.released": &missing }),
            nobody(doc! { "lease.closed": &exists }),
            nobody(doc! { "lease.revoked": &exists, "$expr": by_force }),
        ] } });
        stages
    }

    /// A field as a change tells it: of the whole document, by its literal path, or in the whole sub-document. What an update leaves as it was is missing.
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

/// What acquisition ids of a provider begin with; hexadecimal, so that it is also a regular expression.
fn own_prefix(provider: ProviderId) -> String {
    format!("{provider}-")
}

/// A change, as [`Layout::hints`] sends it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    operation_type: String,
    #[serde(default)]
    document_key: Document,
    #[serde(default)]
    lease: Traces,
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

    /// The block and its end, if the change tells all of it: an end that happens to be the one before is not told.
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
    prefix: String,
}

impl Hints {
    pub(crate) fn new(layout: Layout, provider: ProviderId) -> Self {
        Self { layout, prefix: own_prefix(provider) }
    }

    /// What a change means to the provider.
    pub(crate) fn read(&self, change: &Told) -> Vec<StoreEvent> {
        if ENDS.contains(&&*change.operation_type) {
            return vec![StoreEvent::Gap];
        }
        // A document that cannot be a record.
        let key = change.document_key.get(ID).and_then(|id| self.layout.key(id));
        let Some(key) = key else { return Vec::new() };
        if change.operation_type == DELETE {
            return vec![StoreEvent::Freed { key }];
        }
        self.changed(key, &change.lease, change.operation_type == REPLACE)
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

    /// Every loss moves the token; a change that does not tell it was made by hand, and everybody asks.
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
