//! The record: its field names, and the pipelines, filters and projections of every operation on
//! it.
//!
//! No other module has the name of a field. Everything here is a pure function of a [`Layout`],
//! which has the paths of the fields, and of the request. The only clock is the server's (`$$NOW`,
//! `$$CLUSTER_TIME`), which has one value for a whole command.
//!
//! Every pipeline consists of `$set` and `$unset`, so that fields of a newer version survive.
//! Values from callers are in `$literal`, because a plain string that begins with `$` would be an
//! expression. The comments cite the rules of this crate's `PROTOCOL.md`.

use distlock_api::{AcquisitionId, Holder, LockError, LockKey, Mode, Result};
use mongodb::bson::{Bson, DateTime, Document, doc};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{KeyMap, TextIds};
use crate::numbers::{EPOCH, LATEST, NEVER, SECOND};

mod acquire;
mod acquire_shared;
mod admin;
mod answer;
mod bound;
mod change;
mod decoder;
mod document;
mod events;
mod foreign;
mod grant_fields;
mod grant_head;
mod grants;
mod holders;
mod kept;
mod once;
pub(crate) mod plan;
mod queue;
mod release_fast;
mod release_full;
mod renew;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use acquire::{BatchTokens, last_of};
pub(crate) use admin::Victims;
pub(crate) use answer::{
    AcquireReply, Forced, ForcedEntry, HolderState, Keyed, KeyedTickets, Marked, Released, State, TakenTogether,
    TicketStates, Waiters, Wrote, names,
};
pub(crate) use bound::{LATE, until};
pub(crate) use change::{Edit, Form, NO_SUB_DOCUMENT};
pub(crate) use decoder::{EventDecoder, ReportedChange, Subject};
pub(crate) use document::NOT_A_LOCK;
pub(crate) use events::Watcher;
pub(crate) use foreign::Found;
pub(crate) use once::{Fate, OnceFound, StoredOnce, is_once, new_once, not_once};
pub(crate) use queue::block;
pub(crate) use queue::{KeyTicket, tickets_by_key};
pub(crate) use release_fast::{Held, NextHolders};
pub(crate) use release_full::Leaving;
pub(crate) use renew::Extension;
pub(crate) use write::WriteId;

/// The identity of the document. In a lock collection this is the lock's key.
const ID: &str = "_id";
/// The acquisition that holds the lease, or the marker of several; absent without a holder. See
/// `holders.rs`.
const LOCK_ID: &str = "lockId";
/// The last token of the holder's block.
const TOKEN: &str = "fencingToken";
/// The length of the block.
const TOKENS: &str = "tokens";
const ACQUIRED_AT: &str = "acquiredAt";
/// Exclusive end of the lease. A TTL index removes the record some time after it.
const EXPIRES_AT: &str = "expiresAt";
/// Milliseconds; for people.
const TTL: &str = "ttl";
/// The holders, if the key is not held exclusively. See `holders.rs`.
const HOLDERS: &str = "holders";
/// The tickets, in the order of their arrival; absent without a waiter. See `queue.rs`.
const QUEUE: &str = "queue";
/// The first token of the present block, if a release granted it; absent if the holder took the
/// lease itself. Unlike the other fields of a grant it always differs from its previous value. A
/// change stream therefore always reports it, and thus the length of the block.
const PASSED: &str = "passed";
/// The end of a minimum hold that continues after a release.
const CLOSED_UNTIL: &str = "closedUntil";
/// The last acquisition that released.
const LAST_RELEASED: &str = "lastReleased";
/// The last [`RELEASED_LEN`] acquisitions that released. A repeated release is recognised by them,
/// even if others have held the key meanwhile.
const RELEASED: &str = "released";
const RELEASED_LEN: i32 = 8;
/// More of them, if the acquisition was one of several holders: many may release at the same time.
const RELEASED_BESIDE_OTHERS: i32 = 32;
/// `[{id, n}]`: the last [`WRITTEN_LEN`] acquisitions that changed the document under their lease,
/// with the number of their last write. A repeated write is recognised by them, even if others have
/// held the key meanwhile.
const WRITTEN: &str = "written";
const WRITTEN_LEN: i32 = 8;
/// The last acquisition whose lease was released by force; of several all, with `;` between them.
const REVOKED: &str = "revoked";
/// The acquisition whose expired lease the present holder took over; absent if there was none. Of
/// several all, with `;` between them.
const EXPIRED: &str = "expired";
const OWNER: &str = "owner";
/// `[{k, v}]`, so that any name is possible.
const META: &str = "meta";
/// `[{lockId, owner, token, at, why}]`, the last [`AUDIT_LEN`] releases by force.
const AUDIT: &str = "audit";
/// The intermediate results of an operation: set by its first stages, read by the next, removed by
/// the last.
const STEP: &str = "step";
/// The decision.
const DO: &str = "step.do";

/// The lists that operations compute over, and how long they can become (R32): holders, and places
/// of the queue, of which no more than half are empty or dead.
const LISTS: [(&str, usize); 2] = [(HOLDERS, Mode::MAX_HOLDERS), (QUEUE, 2 * MAX_QUEUE)];
/// The most tickets that a record can have.
const MAX_QUEUE: usize = distlock_engine::QueueOptions::MAX_CAPACITY as usize;

const AUDIT_LEN: i32 = 5;
/// Bytes of a reason that are kept.
const MAX_REASON_LEN: usize = 1024;

/// The field of a projected answer, see [`Marked`]. A retryable write that the server replays
/// returns the stored document *without* the projection, so an answer that lacks this field is no
/// answer (R9).
const ANSWER: &str = "distlock";

const TAKE: &str = "take";
const EXTEND: &str = "extend";
const KEEP: &str = "keep";
const WAIT: &str = "wait";
const PASS: &str = "pass";
const ADMIT: &str = "admit";
const LEAVE: &str = "leave";
const FREE: &str = "free";
const DROP: &str = "drop";

/// The longest block of tokens: many times the engine's longest (R5).
const MAX_BLOCK: i64 = i32::MAX as i64;

/// The paths of the fields of a lease, and the mapping of keys to documents.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: Cow<'static, str>,
    ids: Arc<dyn KeyMap>,
}

/// The clock of tokens, by which they grow even after their record was removed (R5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) source: Source,
    /// The smallest token; zero for no floor.
    pub(crate) floor: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The logical clock of a replica set: seconds since [`EPOCH`] × 2²¹ + number within the
    /// second.
    ClusterTime,
    /// The wall clock of a standalone, which has no logical one, in the same magnitude: seconds ×
    /// 2²¹ + milliseconds × 2¹¹.
    WallTime,
}

const MILLISECOND: i64 = 1 << 11;

/// Returns when the clock reaches a token. Until then the record must stay, or a later token could
/// be smaller (R6).
fn time_of(token: i64) -> DateTime {
    DateTime::from_millis((token / SECOND).saturating_add(EPOCH).saturating_mul(1000).min(LATEST))
}

/// The first token of a millisecond.
pub(crate) fn token_at(time: Duration) -> i64 {
    let (seconds, milliseconds) = (time.as_secs(), time.subsec_millis());
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_sub(EPOCH);
    seconds.saturating_mul(SECOND).saturating_add(i64::from(milliseconds) * MILLISECOND)
}

/// The same of a token in a record.
fn time_of_stored(token: impl Into<Bson>) -> Document {
    let seconds = doc! { "$toLong": { "$floor": { "$divide": [token.into(), SECOND] } } };
    doc! { "$toDate": { "$min": [{ "$multiply": [{ "$add": [seconds, EPOCH] }, 1000_i64] }, LATEST] } }
}

/// Returns the index on `_id`, as a hint. The planner would also consider the TTL index, which has
/// an entry for every live lease.
pub(crate) fn identity_index() -> Document {
    doc! { ID: 1 }
}

impl Layout {
    /// Makes the layout of fields whose paths begin with `prefix`: nothing, or the name of a
    /// sub-document and a dot.
    pub(crate) fn new(prefix: impl Into<Cow<'static, str>>) -> Self {
        Self { prefix: prefix.into(), ids: Arc::new(TextIds) }
    }

    /// Makes the layout of fields in a sub-document.
    pub(crate) fn within(field: &str, ids: Arc<dyn KeyMap>) -> Self {
        Self { prefix: format!("{field}.").into(), ids }
    }

    /// Returns the `_id` of a key's document.
    pub(crate) fn identity(&self, key: &LockKey) -> Result<Bson> {
        let id = self.ids.id(key)?;
        // Two keys for one document would be one lock (C20).
        match self.ids.key(&id) {
            Some(same) if same == *key => Ok(id),
            canonical => {
                let canonical = canonical.map_or_else(String::new, |key| format!(": write {key}"));
                let message = format!("the key is not the canonical form of its `_id`{canonical}");
                Err(LockError::invalid_key(message).with_key(key.clone()))
            }
        }
    }

    /// Returns the mapping of keys to identities.
    pub(crate) fn ids(&self) -> &dyn KeyMap {
        &*self.ids
    }

    /// Returns the key of a document, if it has one.
    pub(crate) fn key(&self, id: &Bson) -> Option<LockKey> {
        self.ids.key(id)
    }

    /// Returns the filter of the document with this `_id`, whether or not it is a record.
    pub(crate) fn document(id: Bson) -> Document {
        match id {
            // Without `$eq` it would be a condition.
            Bson::Document(_) => doc! { ID: { "$eq": id } },
            id => doc! { ID: id },
        }
    }

    /// Returns the filter of the document with this `_id`, if it is or contains a record.
    pub(crate) fn record(&self, id: Bson) -> Document {
        self.if_record(Self::document(id))
    }

    /// Returns the filter of several records. To find and modify a single one on a sharded cluster,
    /// the filter needs the `_id` itself.
    pub(crate) fn records(&self, ids: impl IntoIterator<Item = Bson>) -> Document {
        let mut ids: Vec<Bson> = ids.into_iter().collect();
        match ids.len() {
            1 => self.record(ids.remove(0)),
            _ => self.if_record(doc! { ID: { "$in": ids } }),
        }
    }

    /// Restricts a filter to records, so that others are never changed (R22): an application's
    /// document in the lock collection, or another field of the same name in a document.
    fn if_record(&self, mut filter: Document) -> Document {
        if let Some(whole) = self.sub_document() {
            filter.insert(whole, doc! { "$not": { "$type": "array" } });
        }
        // `$type` also matches elements of arrays.
        filter.insert(self.path(TOKEN), doc! { "$type": "long", "$not": { "$type": "array" } });
        // R32: what no operation of the library makes so long would delay all other commands.
        for (list, longest) in LISTS {
            filter.insert(self.path(&format!("{list}.{longest}")), doc! { "$exists": false });
        }
        filter
    }

    fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Returns the expression for the value of a field.
    fn value(&self, field: &str) -> String {
        format!("${}{field}", self.prefix)
    }

    /// Projects a document to its [`State`].
    pub(crate) fn state(&self) -> Document {
        answer(doc! {
            "holder": { "$cond": [self.is_held(), self.value(LOCK_ID), Bson::Null] },
            "token": self.value(TOKEN),
            "remaining": self.remaining(),
            "revoked": self.value(REVOKED),
            "owner": self.value(OWNER),
            "meta": self.value(META),
            "waiting": { "$size": self.live_tickets() },
            "holders": self.holder_states(),
            "now": { "$toLong": "$$NOW" },
        })
    }

    /// Projects a document to its [`Keyed`] state.
    pub(crate) fn keyed_state(&self) -> Document {
        let mut projection = self.state();
        projection.insert(ID, 1);
        projection
    }

    /// Projects a document, which may be no record, to its [`Keyed`] state.
    pub(crate) fn listed_state(&self) -> Document {
        let mut state = self.state();
        if !self.is_within() {
            let found = doc! { "$type": self.value(TOKEN) };
            let token = doc! { "$cond": [{ "$eq": [found.clone(), "long"] }, self.value(TOKEN), found] };
            state.get_document_mut(ANSWER).expect("see `answer`").insert("token", token);
        }
        state.insert(ID, 1);
        state
    }

    /// Returns the keys and the partial filter of the TTL index. It removes records that have not
    /// been used for a while (R6), and only records (R22).
    pub(crate) fn purge_index(&self) -> (Document, Document) {
        (doc! { self.path(EXPIRES_AT): 1 }, doc! { self.path(TOKEN): { "$type": "long" } })
    }

    /// Returns whether the lease has a holder, and has not expired.
    fn is_held(&self) -> Document {
        let [after_now, is_date] = self.is_future(EXPIRES_AT);
        doc! { "$and": [{ "$not": is_absent(self.value(LOCK_ID)) }, after_now, is_date] }
    }

    /// Returns whether this acquisition holds the lease, and it has not expired.
    fn held_by(&self, id: &AcquisitionId) -> Document {
        let [after_now, is_date] = self.is_future(EXPIRES_AT);
        doc! { "$and": [{ "$eq": [self.value(LOCK_ID), literal(id.as_str())] }, after_now, is_date] }
    }

    /// Returns whether the field is a date in the future. Values of other types compare by their
    /// types, of which some are after all dates.
    fn is_future(&self, field: &str) -> [Document; 2] {
        let latest = DateTime::from_millis(LATEST);
        [doc! { "$gt": [self.value(field), "$$NOW"] }, doc! { "$lt": [self.value(field), latest] }]
    }

    /// Returns whether a key that is not free has an end (R32).
    fn has_end(&self) -> Document {
        let is_date = |time: Bson| {
            doc! { "$and": [{ "$gte": [&time, DateTime::MIN] }, { "$lt": [time, DateTime::from_millis(NEVER)] }] }
        };
        doc! { "$and": [
            { "$or": [is_absent(self.value(LOCK_ID)), is_date(self.value(EXPIRES_AT).into())] },
            is_date(doc! { "$ifNull": [self.value(CLOSED_UNTIL), DateTime::MIN] }.into()),
        ] }
    }

    /// A time at which the key may open, or the last one of all if it never does (R32).
    fn if_it_ends(&self, time: Document) -> Document {
        doc! { "$cond": [self.has_end(), time, DateTime::from_millis(LATEST)] }
    }

    /// Returns whether the lease has no holder **or** has expired, and no minimum hold closes the
    /// key (R7).
    ///
    /// A released record can look unexpired to an operation that started before the release. An end
    /// that is no date never comes: nothing but an operator frees a key whose record another
    /// program has changed so (R32).
    fn is_free(&self) -> Document {
        let has_passed = |time: Bson| [doc! { "$lte": [&time, "$$NOW"] }, doc! { "$gte": [&time, DateTime::MIN] }];
        let [expired, is_date] = has_passed(self.value(EXPIRES_AT).into());
        let [opened, is_time] = has_passed(doc! { "$ifNull": [self.value(CLOSED_UNTIL), DateTime::MIN] }.into());
        doc! { "$and": [
            { "$or": [
                is_absent(self.value(LOCK_ID)),
                { "$and": [expired, is_date] },
            ] },
            opened,
            is_time,
        ] }
    }

    /// Milliseconds until the key opens without a renewal or a release; negative if that is not
    /// known (R32).
    fn remaining(&self) -> Document {
        let [after_now, is_date] = self.is_future(CLOSED_UNTIL);
        let closed = doc! { "$cond": [{ "$and": [after_now, is_date] }, self.value(CLOSED_UNTIL), Bson::Null] };
        let lease = doc! { "$cond": [self.is_held(), self.value(EXPIRES_AT), Bson::Null] };
        let end = doc! { "$let": {
            "vars": { "end": { "$max": [lease, closed] } },
            "in": { "$cond": [{ "$gt": ["$$end", Bson::Null] }, { "$subtract": ["$$end", "$$NOW"] }, -1_i64] },
        } };
        doc! { "$cond": [self.is_free(), 0_i64, end] }
    }

    /// The length of the present block.
    fn block_len(&self) -> Document {
        block_len_of(self.value(TOKENS))
    }

    /// The first token of the present block, or the last used token of a released lease. Later
    /// grants have greater tokens, earlier grants smaller ones (R18).
    fn first_of_block(&self) -> Document {
        first_of(self.value(TOKEN), self.value(TOKENS))
    }

    /// The time at which the key opened or opens; long ago if it is not known. The end of a minimum
    /// hold is later than the expiry, or there is none.
    ///
    /// The `expiresAt` of a free record may be the time of its token, in the future (R6).
    fn opened(&self) -> Document {
        let is_of_token = doc! { "$and": [
            is_absent(self.value(LOCK_ID)),
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
        ] };
        let closed = self.value(CLOSED_UNTIL);
        time(doc! { "$cond": [
            is_of_token,
            { "$ifNull": [&closed, "$$NOW"] },
            { "$max": [self.value(EXPIRES_AT), &closed] },
        ] })
    }

    /// The new value of a field in each of some steps, and in all others.
    fn when(&self, changes: &[(&str, Bson)], others: Bson) -> Bson {
        // Steps with one value share it, because the server parses each copy.
        let mut values: Vec<(&Bson, Vec<String>)> = vec![];
        for (name, new) in changes.iter().filter(|(_, new)| *new != others) {
            let flag = self.value(&format!("{DO}.{name}"));
            match values.iter_mut().find(|(value, _)| *value == new) {
                Some((_, flags)) => flags.push(flag),
                None => values.push((new, vec![flag])),
            }
        }
        values.into_iter().fold(others.clone(), |otherwise, (new, mut flags)| {
            let condition = if flags.len() == 1 { flags.remove(0).into() } else { Bson::from(doc! { "$or": flags }) };
            doc! { "$cond": [condition, new, otherwise] }.into()
        })
    }

    /// Makes a pipeline: it computes findings one after the other, decides once, on the record as
    /// it was, for the first step whose condition holds, and then changes the record.
    ///
    /// R32: the first finding replaces what another program has left in the scratch field. A path
    /// would be set within it, or in each element of an array, and so would a plain document.
    fn in_steps(
        &self,
        findings: impl IntoIterator<Item = (&'static str, Document)>,
        steps: impl IntoIterator<Item = (&'static str, Document)>,
        change: Document,
    ) -> Vec<Document> {
        let path = |field: &str| self.path(field);
        let mut findings = findings.into_iter();
        let (first, found) = findings.next().expect("each operation has findings");
        let name = first.strip_prefix(STEP).and_then(|name| name.strip_prefix('.')).expect("in the scratch field");
        let mut stages = vec![doc! { "$set": { path(STEP): { "$mergeObjects": [{ name: found }] } } }];
        stages.extend(findings.map(|(field, found)| doc! { "$set": { path(field): found } }));
        // A flag for each step instead of its name, which each field would have to compare.
        let branches: Vec<Document> =
            steps.into_iter().map(|(name, case)| doc! { "case": case, "then": { name: true } }).collect();
        let decision = doc! { "$switch": { "branches": branches, "default": {} } };
        stages.extend([
            doc! { "$set": { path(DO): decision } },
            doc! { "$set": change },
            doc! { "$unset": path(STEP) },
        ]);
        stages
    }
}

impl Clock {
    fn reading(self) -> Document {
        match self.source {
            Source::ClusterTime => doc! { "$add": [
                { "$multiply": [{ "$subtract": [{ "$tsSecond": "$$CLUSTER_TIME" }, EPOCH] }, SECOND] },
                { "$tsIncrement": "$$CLUSTER_TIME" },
            ] },
            Source::WallTime => {
                let millis = doc! { "$toLong": "$$NOW" };
                let whole_seconds = doc! { "$toLong": { "$floor": { "$divide": [millis.clone(), 1000] } } };
                doc! { "$add": [
                    { "$multiply": [{ "$subtract": [whole_seconds, EPOCH] }, SECOND] },
                    { "$multiply": [{ "$mod": [millis, 1000] }, MILLISECOND] },
                ] }
            }
        }
    }
}

fn answer(fields: Document) -> Document {
    doc! { ID: 0, ANSWER: fields }
}

fn literal(value: impl Into<Bson>) -> Bson {
    doc! { "$literal": value.into() }.into()
}

/// The one of the `values` that belongs to what `key` is, by their place in the list `keys`, which
/// contains it.
fn one_of(values: Vec<Bson>, key: impl Into<Bson>, keys: Vec<Bson>) -> Bson {
    // Those of one batch often have the same tokens. The server is spared the lists.
    if let Some(same) = values.first().filter(|first| values.iter().all(|value| value == *first)) {
        return literal(same.clone());
    }
    doc! { "$arrayElemAt": [literal(values), { "$indexOfArray": [literal(keys), key.into()] }] }.into()
}

/// Whether a field is missing or null. Not by its order: another value is before null, too (R32).
fn is_absent(value: impl Into<Bson>) -> Document {
    doc! { "$eq": [{ "$ifNull": [value.into(), Bson::Null] }, Bson::Null] }
}

/// [`is_absent`] as the condition of a filter, where null also matches an element of an array.
pub(crate) fn absent() -> Document {
    doc! { "$eq": Bson::Null, "$not": { "$type": "array" } }
}

/// A number between these, whatever the value is (R32).
fn clamped(value: impl Into<Bson>, least: i64, greatest: i64) -> Document {
    doc! { "$toLong": { "$min": [{ "$max": [value.into(), least] }, greatest] } }
}

/// The length of a block, whatever the value is (R32).
fn block_len_of(value: impl Into<Bson>) -> Document {
    doc! { "$toInt": clamped(value, 1, MAX_BLOCK) }
}

/// The first token of a block with this last one. A number below all tokens is none, whatever the
/// length is (R32): less than the least 64-bit integer is a floating-point number, and cannot be
/// converted.
fn first_of(last: impl Into<Bson>, tokens: impl Into<Bson>) -> Document {
    let first = doc! { "$subtract": [last.into(), { "$subtract": [block_len_of(tokens), 1] }] };
    doc! { "$toLong": { "$max": [first, 0_i64] } }
}

/// A date, whatever the value is, that can be computed with (R32). Values of other types become the
/// first date or the last one.
fn time(value: impl Into<Bson>) -> Document {
    doc! { "$min": [{ "$max": [value.into(), DateTime::from_millis(0)] }, DateTime::from_millis(LATEST)] }
}

/// Milliseconds until a time; negative in the past.
fn millis_until(value: impl Into<Bson>) -> Document {
    doc! { "$subtract": [time(value), "$$NOW"] }
}

fn removed() -> Bson {
    "$$REMOVE".into()
}

fn later_by(duration: Duration) -> Bson {
    doc! { "$add": ["$$NOW", millis(duration)] }.into()
}

/// The next token of a record, which is the first of a new block (R5).
fn first_token(last: impl Into<Bson>, clock: Clock) -> Document {
    let next = doc! { "$add": [{ "$ifNull": [last.into(), 0_i64] }, 1_i64] };
    let mut all: Vec<Bson> = vec![next.into(), clock.reading().into()];
    all.extend(Some(clock.floor.into()).filter(|_| clock.floor > 0));
    doc! { "$max": all }
}

/// The last token of a block. After the greatest possible token this is an error, and nothing is
/// written. Without the conversion the sum would become a floating-point number.
fn last_token(first: impl Into<Bson>, tokens: impl Into<Bson>) -> Bson {
    doc! { "$toLong": { "$subtract": [{ "$add": [first.into(), tokens.into()] }, 1_i64] } }.into()
}

/// The remarks, in the form of a record.
fn remarks(holder: &Holder) -> Option<Bson> {
    holder.metadata.as_deref().map(|remarks| {
        let remarks = remarks.iter().map(|(k, v)| Bson::from(doc! { "k": k, "v": v }));
        literal(remarks.collect::<Vec<_>>())
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn cut(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
