//! The events that an operator watches, read from changes of records.

use distlock_api::{AcquisitionId, FencingToken, LockEvent, LockKey, Mode};
use mongodb::bson::{Bson, Document, doc};
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use std::collections::HashMap;

use super::grants::{Part, parts};
use super::holders::{BETWEEN, GRANTS, HOLDERS, ID_OF, KEPT, MARKER, OF, TAKES, TOKEN_OF};
use super::{AUDIT, EXPIRED, ID, LAST_RELEASED, LOCK_ID, Layout, OWNER, PASSED, RELEASED, REVOKED, TOKEN};

impl Layout {
    /// Makes the pipeline for changes that may concern the holder of a lease. Renewals are not
    /// among them.
    pub(crate) fn changes(&self) -> Vec<Document> {
        // One of several holders releases without a change of `lockId`.
        vec![doc! { "$match": self.may_change_holder(&[GRANTS, REVOKED, LAST_RELEASED]) }]
    }

    /// The condition that a change sets or removes the holder, or sets one of these fields, or is
    /// no update.
    pub(super) fn may_change_holder(&self, or_sets: &[&str]) -> Document {
        let holder = self.path(LOCK_ID);
        let set = |field: &str| doc! { "$getField": { "field": self.path(field), "input": "$updateDescription.updatedFields" } };
        let set: Vec<Document> = [LOCK_ID].iter().chain(or_sets).map(|field| set(field)).collect();
        let mut removed = vec![Bson::from(&holder)];
        let mut of_interest = vec![
            doc! { "operationType": { "$ne": "update" } },
            doc! { "$expr": { "$ne": [{ "$type": { "$ifNull": set } }, "missing"] } },
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
    held: HashMap<LockKey, Vec<Held>>,
}

/// A holder.
#[derive(Clone, Debug)]
struct Held {
    id: String,
    owner: Option<String>,
    token: Option<i64>,
    mode: Mode,
}

/// The last transitions, as a document contains them: the ids in each field.
struct Transitions<'d> {
    released: Vec<&'d str>,
    revoked: Vec<&'d str>,
    expired: Vec<&'d str>,
}

impl Watcher {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout, held: HashMap::new() }
    }

    /// Reads a change: no event, one event, or the ends of leases followed by grants.
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
        let now = layout.holders_in(document);
        let remembered = layout.get(document, RELEASED).and_then(Bson::as_array);
        let mut released_ids: Vec<&str> = remembered.into_iter().flatten().filter_map(Bson::as_str).collect();
        released_ids.extend(text(LAST_RELEASED));
        let last = Transitions { released: released_ids, revoked: ids(text(REVOKED)), expired: ids(text(EXPIRED)) };

        let before = self.held.remove(&key);
        let was_held = |id: &str| before.iter().flatten().any(|held| held.id == id);
        let mut events = Vec::new();
        match &before {
            Some(before) => {
                let ended = before.iter().filter(|held| now.iter().all(|holder| holder.id != held.id));
                // The field that contains the id of a known lease shows how it ended.
                events.extend(ended.map(|Held { id, .. }| last.end_of(&key, id)));
            }
            None if !now.is_empty() => {
                events.extend(last.expired.iter().map(|id| expired(&key, id)));
                // A release granted it.
                let passed = layout.get(document, PASSED).and(text(LAST_RELEASED));
                events.extend(passed.map(|id| released(&key, id)));
            }
            // Only a forced release moves the token without a grant.
            None => {
                let last_forced = layout.get(document, AUDIT).and_then(Bson::as_array).and_then(|audit| {
                    let last = audit.last()?.as_document()?;
                    last.get_i64("token").ok()
                });
                if last_forced.is_some() && last_forced.and_then(|last| last.checked_add(1)) == token {
                    events.extend(last.revoked.iter().map(|id| force_released(&key, id)));
                } else {
                    events.extend(text(LAST_RELEASED).map(|id| released(&key, id)));
                }
            }
        }
        events.extend(now.iter().filter(|holder| !was_held(&holder.id)).map(|holder| granted(&key, holder)));
        self.set(key, now);
        events
    }

    /// Reads a change that contains only the changed fields.
    fn updated(&mut self, key: LockKey, changed: &Document, removed: &[String]) -> Vec<LockEvent> {
        let layout = self.layout.clone();
        if layout.sub_document().is_some_and(|whole| changed.contains_key(whole)) {
            return self.written(key, changed);
        }
        let text = |field| layout.changed(changed, field).and_then(Bson::as_str);
        let is_removed = |field| {
            let path = layout.path(field);
            removed.iter().any(|removed| *removed == path || layout.sub_document() == Some(removed))
        };
        let mut events = Vec::new();
        let last = Transitions {
            released: text(LAST_RELEASED).into_iter().collect(),
            revoked: ids(text(REVOKED)),
            expired: ids(text(EXPIRED)),
        };
        events.extend(last.released.iter().map(|id| released(&key, id)));
        events.extend(last.revoked.iter().map(|id| force_released(&key, id)));
        events.extend(last.expired.iter().map(|id| expired(&key, id)));
        let mut held = self.held.remove(&key).unwrap_or_default();
        match text(LOCK_ID) {
            Some(MARKER) => held.clear(),
            Some(holder) => {
                // An owner that is the same as before is not reported. Of holders in other modes
                // the record has none.
                let may_be_same = |before: &Held| before.mode.is_exclusive() && !is_removed(OWNER);
                let same = held.pop().filter(may_be_same).and_then(|before| before.owner);
                let owner = text(OWNER).map(str::to_owned).or(same);
                let token = layout.changed(changed, TOKEN).and_then(Bson::as_i64);
                held = vec![Held { id: holder.to_owned(), owner, token, mode: Mode::Exclusive }];
                events.push(granted(&key, &held[0]));
            }
            None if is_removed(LOCK_ID) => held.clear(),
            None => held.retain(|held| !last.has_ended(&held.id)),
        }
        for part in parts(text(GRANTS).unwrap_or_default()) {
            if let Part::Granted(part) = part {
                let (id, token) = (part.id.to_owned(), i64::try_from(part.last()).ok());
                let owner = layout.owner_in_changed(changed, part.id);
                let holder = Held { id, owner, token, mode: part.mode };
                events.push(granted(&key, &holder));
                held.push(holder);
            }
        }
        if events.is_empty() {
            events.push(LockEvent::Gap);
        }
        self.set(key, held);
        events
    }

    /// Reads the removal of a record, by the TTL index, long after the end of its lease.
    fn removed(&mut self, key: LockKey) -> Vec<LockEvent> {
        let held = self.held.remove(&key).unwrap_or_default();
        held.iter().map(|Held { id, .. }| expired(&key, id)).collect()
    }

    fn set(&mut self, key: LockKey, held: Vec<Held>) {
        if !held.is_empty() {
            self.held.insert(key, held);
        }
    }
}

impl Layout {
    /// Reads the holders of a whole record, expired ones included.
    fn holders_in(&self, document: &Document) -> Vec<Held> {
        let text = |field| self.get(document, field).and_then(Bson::as_str).map(str::to_owned);
        match text(LOCK_ID) {
            None => Vec::new(),
            Some(id) if id == MARKER => {
                let holders = self.get(document, HOLDERS).and_then(Bson::as_array);
                holders.into_iter().flatten().filter_map(Bson::as_document).filter_map(holder_in).collect()
            }
            Some(id) => {
                let token = self.get(document, TOKEN).and_then(Bson::as_i64);
                vec![Held { id, owner: text(OWNER), token, mode: Mode::Exclusive }]
            }
        }
    }

    /// Finds the owner of a new holder among the changed fields: all holders, or those that are
    /// new.
    fn owner_in_changed(&self, changed: &Document, id: &str) -> Option<String> {
        let path = self.path(HOLDERS);
        let all = changed.get_array(&path).into_iter().flatten();
        let single = changed.iter().filter(|(name, _)| name.strip_prefix(&*path).is_some_and(|of| of.starts_with('.')));
        let holders = all.chain(single.map(|(_, holder)| holder)).filter_map(Bson::as_document);
        let found = holders.filter_map(holder_in).find(|holder| holder.id == id);
        found?.owner
    }
}

/// Reads one of several holders; `None` if it has released, and only its minimum hold is left.
fn holder_in(holder: &Document) -> Option<Held> {
    if holder.get_bool(KEPT).unwrap_or(false) {
        return None;
    }
    let number = |field| {
        let value = holder.get(field)?;
        let number = value.as_i64().or_else(|| value.as_i32().map(i64::from))?;
        u32::try_from(number).ok()
    };
    let mode = match (number(TAKES), number(OF)) {
        (Some(take), Some(of)) => Mode::Permits { take, of },
        _ => Mode::Shared,
    };
    let owner = holder.get_str(OWNER).ok().map(str::to_owned);
    Some(Held { id: holder.get_str(ID_OF).ok()?.to_owned(), owner, token: holder.get_i64(TOKEN_OF).ok(), mode })
}

impl Transitions<'_> {
    fn has_ended(&self, id: &str) -> bool {
        [&self.released, &self.revoked, &self.expired].iter().any(|ended| ended.contains(&id))
    }

    /// Makes the event of the end of a lease.
    fn end_of(&self, key: &LockKey, id: &str) -> LockEvent {
        if self.released.contains(&id) {
            released(key, id)
        } else if self.revoked.contains(&id) {
            force_released(key, id)
        } else if self.expired.contains(&id) {
            expired(key, id)
        } else {
            LockEvent::Gap
        }
    }
}

/// The ids in a field that contains one or several.
fn ids(field: Option<&str>) -> Vec<&str> {
    field.into_iter().flat_map(|field| field.split(BETWEEN)).filter(|id| !id.is_empty()).collect()
}

fn granted(key: &LockKey, holder: &Held) -> LockEvent {
    let token = FencingToken::new(holder.token.and_then(|token| u64::try_from(token).ok()).unwrap_or_default());
    LockEvent::Granted {
        key: key.clone(),
        id: AcquisitionId::new(&*holder.id),
        token,
        owner: holder.owner.clone(),
        mode: holder.mode,
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
