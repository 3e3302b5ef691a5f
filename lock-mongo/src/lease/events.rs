//! The events that an operator watches, read from changes of records.

use distlock_api::{AcquisitionId, FencingToken, LockEvent, LockKey};
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use std::collections::HashMap;

use super::{AUDIT, EXPIRED, ID, LAST_RELEASED, LOCK_ID, Layout, OWNER, PASSED, REVOKED, TOKEN};

impl Layout {
    /// Makes the pipeline for changes that may concern the holder of a lease. Renewals are not
    /// among them.
    pub(crate) fn changes(&self) -> Vec<Document> {
        vec![doc! { "$match": self.may_change_holder() }]
    }

    /// The condition of [`changes`](Self::changes).
    pub(super) fn may_change_holder(&self) -> Document {
        let holder = self.path(LOCK_ID);
        let set = doc! { "$getField": { "field": &holder, "input": "$updateDescription.updatedFields" } };
        let mut removed = vec![Bson::from(&holder)];
        let mut of_interest = vec![
            doc! { "operationType": { "$ne": "update" } },
            doc! { "$expr": { "$ne": [{ "$type": set }, "missing"] } },
        ];
        if let Some(whole) = self.sub_document() {
            of_interest.push(doc! { format!("updateDescription.updatedFields.{whole}"): { "$exists": true } });
            removed.push(whole.into());
        }
        of_interest.push(doc! { "updateDescription.removedFields": { "$in": removed } });
        doc! { "$or": of_interest }
    }

    /// Returns the name of the sub-document that contains all fields, if they are in one.
    pub(super) fn sub_document(&self) -> Option<&str> {
        self.prefix.strip_suffix('.')
    }

    /// Returns a field of a whole document.
    fn get<'d>(&self, document: &'d Document, field: &str) -> Option<&'d Bson> {
        match self.sub_document() {
            Some(whole) => document.get_document(whole).ok()?.get(field),
            None => document.get(field),
        }
    }

    /// Returns a field of the changed ones. These have their paths as names, or are in the whole
    /// sub-document.
    fn changed<'d>(&self, changed: &'d Document, field: &str) -> Option<&'d Bson> {
        changed.get(self.path(field)).or_else(|| self.get(changed, field))
    }
}

/// The reader of an operator's change stream, with the holders that it has reported.
#[derive(Debug)]
pub(crate) struct Watcher {
    layout: Layout,
    /// Bounded by the number of records: an entry is removed with the end of the lease or the
    /// removal of the record.
    held: HashMap<LockKey, Held>,
}

#[derive(Clone, Debug)]
struct Held {
    id: String,
    owner: Option<String>,
}

/// The last transitions, as a document contains them.
struct Transitions<'d> {
    holder: Option<&'d str>,
    released: Option<&'d str>,
    revoked: Option<&'d str>,
    expired: Option<&'d str>,
}

impl Watcher {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout, held: HashMap::new() }
    }

    /// Reads a change: no event, one event, or the end of a lease followed by a grant.
    pub(crate) fn events(&mut self, change: &ChangeStreamEvent<Document>) -> Vec<LockEvent> {
        let key = || self.layout.key(change.document_key.as_ref()?.get(ID)?);
        match (&change.operation_type, &change.update_description, &change.full_document) {
            (OperationType::Insert | OperationType::Replace, _, Some(document)) => {
                key().map(|key| self.written(key, document)).unwrap_or_default()
            }
            (OperationType::Update, Some(update), _) => {
                key().map(|key| self.updated(key, &update.updated_fields, &update.removed_fields)).unwrap_or_default()
            }
            (OperationType::Delete, ..) => key().map(|key| self.removed(key)).unwrap_or_default(),
            // The collection was dropped or renamed, or the kind of change is newer than this code.
            _ => {
                self.held.clear();
                vec![LockEvent::Gap]
            }
        }
    }

    /// Reads a change that contains the whole record, and nothing of its previous state.
    fn written(&mut self, key: LockKey, document: &Document) -> Vec<LockEvent> {
        let layout = self.layout.clone();
        let text = |field| layout.get(document, field).and_then(Bson::as_str);
        let token = layout.get(document, TOKEN).and_then(Bson::as_i64);
        let last = Transitions {
            holder: text(LOCK_ID),
            released: text(LAST_RELEASED),
            revoked: text(REVOKED),
            expired: text(EXPIRED),
        };
        let before = self.held.remove(&key);
        if let (Some(before), Some(holder)) = (&before, last.holder)
            && before.id == holder
        {
            self.held.insert(key, before.clone());
            return Vec::new();
        }
        let mut events = Vec::new();
        match (&before, last.holder) {
            // The field that contains the id of a known lease shows how it ended.
            (Some(Held { id, .. }), _) => {
                events.push(if last.released == Some(id) {
                    released(&key, id)
                } else if last.revoked == Some(id) {
                    force_released(&key, id)
                } else if last.expired == Some(id) {
                    expired(&key, id)
                } else {
                    LockEvent::Gap
                });
            }
            (None, Some(_)) => {
                events.extend(last.expired.map(|id| expired(&key, id)));
                // A release granted it.
                let passed = layout.get(document, PASSED).and(last.released);
                events.extend(passed.map(|id| released(&key, id)));
            }
            // Only a forced release moves the token without a grant.
            (None, None) => {
                let last_forced = layout.get(document, AUDIT).and_then(Bson::as_array).and_then(|audit| {
                    let last = audit.last()?.as_document()?;
                    last.get_i64("token").ok()
                });
                if last_forced.is_some() && last_forced.and_then(|last| last.checked_add(1)) == token {
                    events.extend(last.revoked.map(|id| force_released(&key, id)));
                } else {
                    events.extend(last.released.map(|id| released(&key, id)));
                }
            }
        }
        if let Some(holder) = last.holder {
            let owner = text(OWNER).map(str::to_owned);
            events.push(self.granted(key, holder, token, owner));
        }
        events
    }

    /// Reads a change that contains only the changed fields.
    fn updated(&mut self, key: LockKey, changed: &Document, removed: &[String]) -> Vec<LockEvent> {
        let layout = self.layout.clone();
        let text = |field| layout.changed(changed, field).and_then(Bson::as_str);
        let is_removed = |field| {
            let path = layout.path(field);
            removed.iter().any(|removed| *removed == path || layout.sub_document() == Some(removed))
        };
        let mut events = Vec::new();
        events.extend(text(LAST_RELEASED).map(|id| released(&key, id)));
        events.extend(text(REVOKED).map(|id| force_released(&key, id)));
        events.extend(text(EXPIRED).map(|id| expired(&key, id)));
        let before = self.held.remove(&key);
        match text(LOCK_ID) {
            Some(holder) => {
                // An owner that is the same as before is not reported.
                let same = before.filter(|_| !is_removed(OWNER)).and_then(|before| before.owner);
                let owner = text(OWNER).map(str::to_owned).or(same);
                let token = layout.changed(changed, TOKEN).and_then(Bson::as_i64);
                events.push(self.granted(key, holder, token, owner));
            }
            None if events.is_empty() => events.push(LockEvent::Gap),
            None => {}
        }
        events
    }

    /// Reads the removal of a record, by the TTL index, long after the end of its lease.
    fn removed(&mut self, key: LockKey) -> Vec<LockEvent> {
        self.held.remove(&key).map(|Held { id, .. }| expired(&key, &id)).into_iter().collect()
    }

    fn granted(&mut self, key: LockKey, holder: &str, token: Option<i64>, owner: Option<String>) -> LockEvent {
        self.held.insert(key.clone(), Held { id: holder.to_owned(), owner: owner.clone() });
        let token = FencingToken::new(token.and_then(|token| u64::try_from(token).ok()).unwrap_or_default());
        LockEvent::Granted { key, id: AcquisitionId::new(holder), token, owner }
    }
}

fn released(key: &LockKey, id: &str) -> LockEvent {
    LockEvent::Released { key: key.clone(), id: AcquisitionId::new(id) }
}

fn force_released(key: &LockKey, id: &str) -> LockEvent {
    LockEvent::ForceReleased { key: key.clone(), id: AcquisitionId::new(id) }
}

fn expired(key: &LockKey, id: &str) -> LockEvent {
    LockEvent::Expired { key: key.clone(), id: AcquisitionId::new(id) }
}

#[cfg(test)]
mod tests;
