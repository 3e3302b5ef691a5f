//! The record: its field names, and the pipelines, filters and projections of every operation on
//! it.
//!
//! Nothing else spells a field. Everything here is a pure function of a [`Layout`] – where the
//! fields are – and of the request; the only clock in it is the server's (`$$NOW`,
//! `$$CLUSTER_TIME`), which is one value for a whole command.
//!
//! Every pipeline is made of `$set` and `$unset`, so that fields which a newer version keeps in a
//! record survive. What a caller said stands in `$literal`: a plain string that begins with `$`
//! would be an expression. The rules R3–R16 that the comments cite are in `PROTOCOL.md` of this
//! crate.

use distlock_api::{AcquisitionId, Holder, LockError, LockKey, Result};
use mongodb::bson::{Bson, DateTime, Document, doc};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{KeyMap, TextIds};

mod acquire;
mod admin;
mod answer;
mod change;
mod document;
mod events;
mod foreign;
mod hints;
mod queue;
mod release;
mod renew;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use acquire::block;
pub(crate) use answer::{
    Acquisition, Forced, ForcedEntry, Keyed, Marked, Queued, Released, Seated, State, Taken, Waiters, Wrote,
};
pub(crate) use change::{Edit, Form, NO_SUB_DOCUMENT};
pub(crate) use document::NOT_A_LOCK;
pub(crate) use events::Watcher;
pub(crate) use foreign::Found;
pub(crate) use hints::{Hints, Subject, Told};
pub(crate) use queue::{Seat, seats_by_key};
pub(crate) use renew::Extension;
pub(crate) use write::WriteId;

/// The document's identity. In a lock collection this is the lock's key.
const ID: &str = "_id";
/// The acquisition that holds the lease; absent when nobody does.
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
/// Who waits, in the order of their coming; absent when nobody does. See `queue.rs`.
const QUEUE: &str = "queue";
/// The first token of the present block, if a releaser granted it; absent if the holder took the
/// lease itself. Unlike everything else that a grant says it differs from what was there before, so
/// that a change stream always tells it, and with it the length of the block.
const PASSED: &str = "passed";
/// A minimum hold that goes on after a release.
const CLOSED_UNTIL: &str = "closedUntil";
/// The last acquisition that released.
const LAST_RELEASED: &str = "lastReleased";
/// The last [`RELEASED_LEN`] of them, so that a repeated release is recognised, also when others
/// have held the key meanwhile.
const RELEASED: &str = "released";
const RELEASED_LEN: i32 = 8;
/// `[{id, n}]`: the last [`WRITTEN_LEN`] acquisitions that changed the document together with their
/// lease, and which of their writes was the last, so that a repeated write is recognised, also when
/// others have held the key meanwhile.
const WRITTEN: &str = "written";
const WRITTEN_LEN: i32 = 8;
/// The last acquisition whose lease was taken away by force.
const REVOKED: &str = "revoked";
/// The acquisition whose expired lease the present holder took over; absent if there was none.
const EXPIRED: &str = "expired";
const OWNER: &str = "owner";
/// `[{k, v}]`, so that every name is possible.
const META: &str = "meta";
/// `[{lockId, owner, token, at, why}]`, the last [`AUDIT_LEN`] releases by force.
const AUDIT: &str = "audit";
/// What an operation has found out and decided; set by its first stages, read by the next, removed
/// by the last.
const STEP: &str = "step";
/// The decision.
const DO: &str = "step.do";

const AUDIT_LEN: i32 = 5;
/// Bytes of a reason that are kept.
const MAX_REASON_LEN: usize = 1024;

/// The field of a projected answer, see [`Marked`]. A retryable write that the server replays
/// returns the stored document *without* the projection, so an answer that lacks this field is no
/// answer (R9).
const ANSWER: &str = "distlock";

const TAKE: &str = "take";
const EXTEND: &str = "extend";
const WAIT: &str = "wait";
const PASS: &str = "pass";
const FREE: &str = "free";
const DROP: &str = "drop";

/// Where the fields of a lease are, and in which document.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: Cow<'static, str>,
    ids: Arc<dyn KeyMap>,
}

/// What makes tokens outlive their record (R5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) source: Source,
    /// What all tokens are greater than, or equal to; zero for nothing.
    pub(crate) floor: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The logical clock of a replica set: seconds since [`EPOCH`] × 2²¹ + number within the
    /// second.
    ClusterTime,
    /// A standalone has none. The server's clock in the same magnitude: seconds × 2²¹ +
    /// milliseconds × 2¹¹.
    WallTime,
}

/// The beginning of 2025, in seconds of Unix time. Counted from there, in seconds of 2²¹ tokens,
/// tokens stay below 2⁵³ until the year 2161: readers that make doubles of them can tell them
/// apart.
const EPOCH: i64 = 1_735_689_600;
/// Tokens of a second. A second of the logical clock has fewer writes than that.
const SECOND: i64 = 1 << 21;

/// When the clock reaches a token: until then the record must stay, or a later token could be less
/// (R6).
fn time_of(token: i64) -> DateTime {
    DateTime::from_millis((token / SECOND).saturating_add(EPOCH).saturating_mul(1000))
}

/// The index of the documents' identities, as a hint: the planner would also consider the one on
/// the expiry, which every live lease matches.
pub(crate) fn identity_index() -> Document {
    doc! { ID: 1 }
}

impl Layout {
    /// The fields in a document whose paths begin with `prefix`: nothing, or the name of a
    /// sub-document and a dot.
    pub(crate) fn new(prefix: impl Into<Cow<'static, str>>) -> Self {
        Self { prefix: prefix.into(), ids: Arc::new(TextIds) }
    }

    /// The fields in a sub-document of documents with such identities.
    pub(crate) fn within(field: &str, ids: Arc<dyn KeyMap>) -> Self {
        Self { prefix: format!("{field}.").into(), ids }
    }

    /// The identity of a key's document.
    pub(crate) fn identity(&self, key: &LockKey) -> Result<Bson> {
        let id = self.ids.id(key)?;
        // Two keys for one document would be one lock (C20).
        match self.ids.key(&id) {
            Some(same) if same == *key => Ok(id),
            _ => Err(LockError::invalid_key("this is not how the `_id` is written as a key").with_key(key.clone())),
        }
    }

    /// The key of a document.
    pub(crate) fn key(&self, id: &Bson) -> Option<LockKey> {
        self.ids.key(id)
    }

    /// The document with an identity, whatever else it is.
    pub(crate) fn document(id: Bson) -> Document {
        match id {
            // It would be read as a condition.
            Bson::Document(_) => doc! { ID: { "$eq": id } },
            id => doc! { ID: id },
        }
    }

    /// The document with an identity, if it is a record, or holds one.
    pub(crate) fn record(&self, id: Bson) -> Document {
        self.if_record(Self::document(id))
    }

    /// The same of several.
    pub(crate) fn records(&self, ids: impl IntoIterator<Item = Bson>) -> Document {
        self.if_record(doc! { ID: { "$in": ids.into_iter().collect::<Vec<_>>() } })
    }

    /// What is no record stays what it is (R22): an application's document in the lock
    /// collection, or another field of the same name in a document.
    fn if_record(&self, mut filter: Document) -> Document {
        if let Some(whole) = self.whole() {
            filter.insert(whole, doc! { "$not": { "$type": "array" } });
        }
        // `$type` looks into arrays.
        filter.insert(self.path(TOKEN), doc! { "$type": "long", "$not": { "$type": "array" } });
        filter
    }

    fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// The field's value in an expression.
    fn value(&self, field: &str) -> String {
        format!("${}{field}", self.prefix)
    }

    /// The [`State`] of a document.
    pub(crate) fn state(&self) -> Document {
        answer(doc! {
            "holder": { "$cond": [self.is_held(), self.value(LOCK_ID), Bson::Null] },
            "token": self.value(TOKEN),
            "remaining": self.remaining(),
            "revoked": self.value(REVOKED),
            "owner": self.value(OWNER),
            "meta": self.value(META),
            "waiting": { "$size": self.live_tickets() },
        })
    }

    /// The [`Keyed`] state of a document.
    pub(crate) fn keyed_state(&self) -> Document {
        let mut projection = self.state();
        projection.insert(ID, 1);
        projection
    }

    /// The same of a document that may be no record.
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

    /// The keys of the TTL index that removes records that have not been used for a while (R6), and
    /// which documents are in it: records (R22).
    pub(crate) fn purge_index(&self) -> (Document, Document) {
        (doc! { self.path(EXPIRES_AT): 1 }, doc! { self.path(TOKEN): { "$type": "long" } })
    }

    /// Held, and not expired.
    fn is_held(&self) -> Document {
        doc! { "$and": [
            { "$gt": [self.value(LOCK_ID), Bson::Null] },
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
        ] }
    }

    /// Held by this acquisition, and not expired.
    fn held_by(&self, id: &AcquisitionId) -> Document {
        doc! { "$and": [
            { "$eq": [self.value(LOCK_ID), literal(id.as_str())] },
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
        ] }
    }

    /// R7: nobody's **or** expired – a released record can look unexpired to an operation that
    /// started before the release – and not closed by a minimum hold. What is missing sorts before
    /// null, and null before every date.
    fn is_free(&self) -> Document {
        doc! { "$and": [
            { "$or": [
                { "$lte": [self.value(LOCK_ID), Bson::Null] },
                { "$lte": [self.value(EXPIRES_AT), "$$NOW"] },
            ] },
            { "$lte": [self.value(CLOSED_UNTIL), "$$NOW"] },
        ] }
    }

    /// Milliseconds until the key opens if nobody renews or releases.
    fn remaining(&self) -> Document {
        let lease = doc! { "$cond": [self.is_held(), self.value(EXPIRES_AT), Bson::Null] };
        doc! { "$subtract": [{ "$max": [lease, self.value(CLOSED_UNTIL), "$$NOW"] }, "$$NOW"] }
    }

    /// The first token of the present block, or the last one used of a lease that was released:
    /// every later grant has a greater one, every earlier one a smaller one (R18).
    fn first_of_block(&self) -> Document {
        let length = doc! { "$cond": [{ "$isNumber": self.value(TOKENS) }, self.value(TOKENS), 1] };
        doc! { "$toLong": { "$subtract": [{ "$add": [self.value(TOKEN), 1_i64] }, length] } }
    }

    /// When a free lease became free, null if nobody knows. The end of a hold is later than the
    /// expiry, or there is none.
    fn opened(&self) -> Document {
        doc! { "$max": [self.value(EXPIRES_AT), self.value(CLOSED_UNTIL)] }
    }

    /// The field's new value in each of some steps, and in the others.
    fn when(&self, changes: &[(&str, Bson)], others: Bson) -> Bson {
        changes.iter().filter(|(_, new)| *new != others).fold(others.clone(), |otherwise: Bson, (name, new)| {
            doc! { "$cond": [self.value(&format!("{DO}.{name}")), new, otherwise] }.into()
        })
    }

    /// Finds out one thing after the other, decides once, on the record as it was, for the first
    /// step whose condition holds, and then changes it.
    fn in_steps(
        &self,
        findings: impl IntoIterator<Item = (&'static str, Document)>,
        steps: impl IntoIterator<Item = (&'static str, Document)>,
        change: Document,
    ) -> Vec<Document> {
        // A flag for each step rather than its name: read once per field, and a name would have to
        // be compared.
        let branches: Vec<Document> =
            steps.into_iter().map(|(name, case)| doc! { "case": case, "then": { name: true } }).collect();
        let decision = doc! { "$switch": { "branches": branches, "default": {} } };
        let mut stages: Vec<Document> =
            findings.into_iter().map(|(field, found)| doc! { "$set": { self.path(field): found } }).collect();
        stages.extend([
            doc! { "$set": { self.path(DO): decision } },
            doc! { "$set": change },
            doc! { "$unset": self.path(STEP) },
        ]);
        stages
    }
}

impl Clock {
    fn reading(self) -> Document {
        const MILLISECOND: i64 = 1 << 11;
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

fn removed() -> Bson {
    "$$REMOVE".into()
}

fn later_by(duration: Duration) -> Bson {
    doc! { "$add": ["$$NOW", millis(duration)] }.into()
}

/// The next token of a record, the first one of a new block (R5).
fn first_token(last: impl Into<Bson>, clock: Clock) -> Document {
    let next = doc! { "$add": [{ "$ifNull": [last.into(), 0_i64] }, 1_i64] };
    let mut all: Vec<Bson> = vec![next.into(), clock.reading().into()];
    all.extend(Some(clock.floor.into()).filter(|_| clock.floor > 0));
    doc! { "$max": all }
}

/// The last token of the block. Beyond the last one there is an error, and nothing is written;
/// without the conversion there would be a floating-point number.
fn last_token(first: impl Into<Bson>, tokens: impl Into<Bson>) -> Bson {
    doc! { "$toLong": { "$subtract": [{ "$add": [first.into(), tokens.into()] }, 1_i64] } }.into()
}

/// Remarks as they stand in a record.
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
