//! What changes of a record mean.

use distlock_api::{AcquisitionId, FencingToken, LockEvent, LockKey};
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use std::collections::HashMap;

use super::{AUDIT, EXPIRED, ID, LAST_RELEASED, LOCK_ID, Layout, OWNER, PASSED, REVOKED, TOKEN};

impl Layout {
    /// The changes that may concern who holds a lease. Renewals are not among them.
    pub(crate) fn changes(&self) -> Vec<Document> {
        vec![doc! { "$match": self.of_interest() }]
    }

    /// The condition of [`changes`](Self::changes).
    pub(super) fn of_interest(&self) -> Document {
        let holder = self.path(LOCK_ID);
        let set = doc! { "$getField": { "field": &holder, "input": "$updateDescription.updatedFields" } };
        let mut removed = vec![Bson::from(&holder)];
        let mut of_interest = vec![
            doc! { "operationType": { "$ne": "update" } },
            doc! { "$expr": { "$ne": [{ "$type": set }, "missing"] } },
        ];
        if let Some(whole) = self.whole() {
            of_interest.push(doc! { format!("updateDescription.updatedFields.{whole}"): { "$exists": true } });
            removed.push(whole.into());
        }
        of_interest.push(doc! { "updateDescription.removedFields": { "$in": removed } });
        doc! { "$or": of_interest }
    }

    /// The sub-document that holds all fields, if they are in one.
    pub(super) fn whole(&self) -> Option<&str> {
        self.prefix.strip_suffix('.')
    }

    /// A field of a whole document.
    fn get<'d>(&self, document: &'d Document, field: &str) -> Option<&'d Bson> {
        match self.whole() {
            Some(whole) => document.get_document(whole).ok()?.get(field),
            None => document.get(field),
        }
    }

    /// A field of the changed ones, which stand there by their literal paths, or in the whole
    /// sub-document.
    fn changed<'d>(&self, changed: &'d Document, field: &str) -> Option<&'d Bson> {
        changed.get(self.path(field)).or_else(|| self.get(changed, field))
    }
}

/// Who holds what, as far as the changes told.
#[derive(Debug)]
pub(crate) struct Watcher {
    layout: Layout,
    /// Bounded by the number of records: it is forgotten with the end of the lease or the removal
    /// of the record.
    held: HashMap<LockKey, Held>,
}

#[derive(Clone, Debug)]
struct Held {
    id: String,
    owner: Option<String>,
}

/// The last transitions, as a document tells them.
struct Traces<'d> {
    holder: Option<&'d str>,
    released: Option<&'d str>,
    revoked: Option<&'d str>,
    expired: Option<&'d str>,
}

impl Watcher {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout, held: HashMap::new() }
    }

    /// What a change means: nothing, one thing, or a take-over with what went before.
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
            // The collection is dropped or renamed, or something newer than this code has happened.
            _ => {
                self.held.clear();
                vec![LockEvent::Gap]
            }
        }
    }

    /// The whole record is known, and nothing of what it was before.
    fn written(&mut self, key: LockKey, document: &Document) -> Vec<LockEvent> {
        let layout = self.layout.clone();
        let text = |field| layout.get(document, field).and_then(Bson::as_str);
        let token = layout.get(document, TOKEN).and_then(Bson::as_i64);
        let traces = Traces {
            holder: text(LOCK_ID),
            released: text(LAST_RELEASED),
            revoked: text(REVOKED),
            expired: text(EXPIRED),
        };
        let before = self.held.remove(&key);
        if let (Some(before), Some(holder)) = (&before, traces.holder)
            && before.id == holder
        {
            self.held.insert(key, before.clone());
            return Vec::new();
        }
        let mut events = Vec::new();
        match (&before, traces.holder) {
            // How a known lease ended stands under its id.
            (Some(Held { id, .. }), _) => {
                events.push(if traces.released == Some(id) {
                    released(&key, id)
                } else if traces.revoked == Some(id) {
                    force_released(&key, id)
                } else if traces.expired == Some(id) {
                    expired(&key, id)
                } else {
                    LockEvent::Gap
                });
            }
            (None, Some(_)) => {
                events.extend(traces.expired.map(|id| expired(&key, id)));
                // A releaser granted it, and that was its release.
                let passed = layout.get(document, PASSED).and(traces.released);
                events.extend(passed.map(|id| released(&key, id)));
            }
            // Only a release by force moves the token without a grant.
            (None, None) => {
                let last_forced = layout.get(document, AUDIT).and_then(Bson::as_array).and_then(|audit| {
                    let last = audit.last()?.as_document()?;
                    last.get_i64("token").ok()
                });
                if last_forced.is_some() && last_forced.and_then(|last| last.checked_add(1)) == token {
                    events.extend(traces.revoked.map(|id| force_released(&key, id)));
                } else {
                    events.extend(traces.released.map(|id| released(&key, id)));
                }
            }
        }
        if let Some(holder) = traces.holder {
            let owner = text(OWNER).map(str::to_owned);
            events.push(self.granted(key, holder, token, owner));
        }
        events
    }

    /// Only what has changed is known.
    fn updated(&mut self, key: LockKey, changed: &Document, removed: &[String]) -> Vec<LockEvent> {
        let layout = self.layout.clone();
        let text = |field| layout.changed(changed, field).and_then(Bson::as_str);
        let is_removed = |field| {
            let path = layout.path(field);
            removed.iter().any(|removed| *removed == path || layout.whole() == Some(removed))
        };
        let mut events = Vec::new();
        events.extend(text(LAST_RELEASED).map(|id| released(&key, id)));
        events.extend(text(REVOKED).map(|id| force_released(&key, id)));
        events.extend(text(EXPIRED).map(|id| expired(&key, id)));
        let before = self.held.remove(&key);
        match text(LOCK_ID) {
            Some(holder) => {
                // An owner that is the same as before is not told.
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

    /// The TTL index removes records whose lease ended long ago.
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
