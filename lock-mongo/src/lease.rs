//! The record: its field names, and the pipelines, filters and projections of every operation on it.
//!
//! Nothing else spells a field. Everything here is a pure function of a [`Layout`] – where the fields are – and of the request;
//! the only clock in it is the server's (`$$NOW`, `$$CLUSTER_TIME`), which is one value for a whole command.
//!
//! Every pipeline is made of `$set` and `$unset`, so that fields which a newer version keeps in a record survive. What a caller said stands
//! in `$literal`: a plain string that begins with `$` would be an expression. The rules R3–R16 that the comments cite are in `PROTOCOL.md` of this crate.

use std::time::Duration;

use distlock_api::Holder;
use distlock_api::store::AcquisitionId;
use mongodb::bson::{Bson, Document, doc};

mod admin;
mod answer;
mod events;
#[cfg(test)]
mod tests;

pub(crate) use answer::{Acquisition, Forced, ForcedEntry, Keyed, Marked, Released, State};
pub(crate) use events::Watcher;

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
/// A minimum hold that goes on after a release.
const CLOSED_UNTIL: &str = "closedUntil";
/// The last acquisition that released.
const LAST_RELEASED: &str = "lastReleased";
/// The last [`RELEASED_LEN`] of them, so that a repeated release is recognised, also when others have held the key meanwhile.
const RELEASED: &str = "released";
const RELEASED_LEN: i32 = 8;
/// The last acquisition whose lease was taken away by force.
const REVOKED: &str = "revoked";
/// The acquisition whose expired lease the present holder took over; absent if there was none.
const EXPIRED: &str = "expired";
const OWNER: &str = "owner";
/// `[{k, v}]`, so that every name is possible.
const META: &str = "meta";
/// `[{lockId, owner, token, at, why}]`, the last [`AUDIT_LEN`] releases by force.
const AUDIT: &str = "audit";
/// What an operation has decided; set by its first stage, read by the second, removed by the third.
const STEP: &str = "step";

const AUDIT_LEN: i32 = 5;
/// Bytes of a reason that are kept.
const MAX_REASON_LEN: usize = 1024;

/// The field of a projected answer, see [`Marked`]. A retryable write that the server replays returns the stored document *without* the projection,
/// so an answer that lacks this field is no answer (R9).
const ANSWER: &str = "distlock";

const TAKE: &str = "take";
const EXTEND: &str = "extend";
const LEAVE: &str = "leave";

/// Where the fields of a lease are.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: &'static str,
}

/// What makes tokens outlive their record (R5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The logical clock of a replica set: seconds × 2³⁰ + number within the second.
    ClusterTime,
    /// A standalone has none. The server's clock in the same magnitude: seconds × 2³⁰ + milliseconds × 2²⁰.
    WallTime,
}

/// One lease that is to be renewed.
#[derive(Clone, Debug)]
pub(crate) struct Extension {
    pub(crate) key: String,
    pub(crate) id: AcquisitionId,
    pub(crate) token: i64,
    pub(crate) ttl: Duration,
}

impl Extension {
    /// Whether both are about the same lease.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        (&self.key, &self.id, self.token) == (&other.key, &other.id, other.token)
    }
}

/// The document of a key.
pub(crate) fn by_key(key: &str) -> Document {
    doc! { ID: key }
}

/// The index of the documents' identities, as a hint: the planner would also consider the one on the expiry, which every live lease matches.
pub(crate) fn identity_index() -> Document {
    doc! { ID: 1 }
}

/// The documents of several keys.
pub(crate) fn by_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Document {
    let keys: Vec<&str> = keys.into_iter().collect();
    doc! { ID: { "$in": keys } }
}

impl Layout {
    /// The fields in a document whose paths begin with `prefix`: nothing, or the name of a sub-document and a dot.
    pub(crate) const fn new(prefix: &'static str) -> Self {
        Self { prefix }
    }

    fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// The field's value in an expression.
    fn value(&self, field: &str) -> String {
        format!("${}{field}", self.prefix)
    }

    /// One attempt to acquire (R8). An upsert: without a document the lease is free.
    pub(crate) fn acquire(
        &self,
        id: &AcquisitionId,
        ttl: Duration,
        tokens: i32,
        holder: &Holder,
        clock: Clock,
    ) -> Vec<Document> {
        let last_token = doc! { "$ifNull": [self.value(TOKEN), 0_i64] };
        let first = doc! { "$max": [{ "$add": [last_token, 1_i64] }, clock.reading()] };
        let end = later_by(ttl);
        let owner = holder.owner.as_deref().map_or_else(removed, literal);
        let remarks = holder.metadata.as_deref().map_or_else(removed, |remarks| {
            let remarks = remarks.iter().map(|(k, v)| Bson::from(doc! { "k": k, "v": v }));
            literal(remarks.collect::<Vec<_>>())
        });
        let steps =
            [(TAKE, doc! { "$and": [{ "$not": [self.held_by(id)] }, self.is_free()] }), (EXTEND, self.held_by(id))];
        let mut change = doc! {};
        for (field, new) in [
            (LOCK_ID, literal(id.as_str())),
            // Beyond the last token there is an error, and nothing is written; without the conversion there would be a floating-point number.
            (TOKEN, doc! { "$toLong": { "$add": [first, i64::from(tokens) - 1] } }.into()),
            (TOKENS, tokens.into()),
            (ACQUIRED_AT, "$$NOW".into()),
            (CLOSED_UNTIL, removed()),
            // A grant that finds a holder finds an expired one.
            (EXPIRED, doc! { "$ifNull": [self.value(LOCK_ID), "$$REMOVE"] }.into()),
            (OWNER, owner),
            (META, remarks),
        ] {
            change.insert(self.path(field), self.when(&[(TAKE, new)], field));
        }
        let ttl = millis(ttl);
        change.insert(self.path(TTL), self.when(&[(TAKE, ttl.into()), (EXTEND, ttl.into())], TTL));
        // R3: an extension never shortens.
        let extended = doc! { "$max": [self.value(EXPIRES_AT), end.clone()] };
        let end = self.when(&[(TAKE, end), (EXTEND, extended.into())], EXPIRES_AT);
        change.insert(self.path(EXPIRES_AT), end);
        self.in_steps(steps, change)
    }

    /// The [`Acquisition`] of the document after [`acquire`](Self::acquire).
    pub(crate) fn acquisition(&self, id: &AcquisitionId) -> Document {
        answer(doc! {
            "granted": self.held_by(id),
            "token": self.value(TOKEN),
            "tokens": { "$ifNull": [self.value(TOKENS), 1] },
            "remaining": self.remaining(),
            "now": { "$toLong": "$$NOW" },
        })
    }

    /// One release (R12 without a queue, R13). Changes nothing unless the acquisition holds the lease, unexpired.
    pub(crate) fn release(&self, id: &AcquisitionId, hold_at_least: Option<Duration>) -> Vec<Document> {
        let closed = hold_at_least.map_or_else(removed, |hold| {
            let until = doc! { "$add": [self.value(ACQUIRED_AT), millis(hold)] };
            doc! { "$cond": [{ "$gt": [until.clone(), "$$NOW"] }, until, "$$REMOVE"] }.into()
        });
        // The later one, so that the TTL index does not remove a record that keeps its key closed.
        let end = doc! { "$max": ["$$NOW", closed.clone()] };
        let mut change = doc! {};
        for (field, new) in [
            (CLOSED_UNTIL, closed),
            (EXPIRES_AT, end.into()),
            (LAST_RELEASED, literal(id.as_str())),
            (RELEASED, self.released_too(id)),
            (LOCK_ID, removed()),
            (OWNER, removed()),
            (META, removed()),
        ] {
            change.insert(self.path(field), self.when(&[(TAKE, new)], field));
        }
        self.in_steps([(TAKE, self.held_by(id))], change)
    }

    /// The [`Released`] of the document after [`release`](Self::release): true also for a repeated one.
    pub(crate) fn released(&self, id: &AcquisitionId) -> Document {
        answer(doc! { "released": { "$in": [literal(id.as_str()), self.released_before()] } })
    }

    /// Who has released lately, the last one first.
    fn released_before(&self) -> Document {
        doc! { "$cond": [{ "$isArray": self.value(RELEASED) }, self.value(RELEASED), []] }
    }

    fn released_too(&self, id: &AcquisitionId) -> Bson {
        let all = doc! { "$concatArrays": [[literal(id.as_str())], self.released_before()] };
        doc! { "$slice": [all, RELEASED_LEN] }.into()
    }

    /// The leases of a batch that may be extended (R14): by key alone it would revive others', without the token one that was taken
    /// away by force, without the expiry test one that nobody holds any more.
    ///
    /// The identities stand in one constant list, not in a branch of `$or` each: that leaves the planner one plan, and 200 leases take a third of the time.
    pub(crate) fn renewable(&self, batch: &[Extension]) -> Document {
        let one = doc! { "key": format!("${ID}"), "id": self.value(LOCK_ID), "token": self.value(TOKEN) };
        let each = batch
            .iter()
            .map(|lease| doc! { "key": &lease.key, "id": lease.id.as_str(), "token": lease.token }.into())
            .collect::<Vec<Bson>>();
        let mut filter = by_keys(batch.iter().map(|lease| lease.key.as_str()));
        let test = doc! { "$and": [
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
            { "$in": [one, literal(each)] },
        ] };
        filter.insert("$expr", test);
        filter
    }

    /// Extends what [`renewable`](Self::renewable) has found.
    pub(crate) fn renew(&self, batch: &[Extension]) -> Vec<Document> {
        let ttl: Bson = match batch {
            [first, rest @ ..] if rest.iter().all(|lease| lease.ttl == first.ttl) => millis(first.ttl).into(),
            _ => {
                let ids: Vec<Bson> = batch.iter().map(|lease| lease.id.as_str().into()).collect();
                let ttls: Vec<Bson> = batch.iter().map(|lease| millis(lease.ttl).into()).collect();
                let place = doc! { "$indexOfArray": [literal(ids), self.value(LOCK_ID)] };
                doc! { "$arrayElemAt": [literal(ttls), place] }.into()
            }
        };
        let end = doc! { "$max": [self.value(EXPIRES_AT), { "$add": ["$$NOW", ttl.clone()] }] };
        vec![doc! { "$set": { self.path(EXPIRES_AT): end, self.path(TTL): ttl } }]
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
        })
    }

    /// The [`Keyed`] state of a document.
    pub(crate) fn keyed_state(&self) -> Document {
        let mut projection = self.state();
        projection.insert(ID, 1);
        projection
    }

    /// The keys of the TTL index that removes records that nobody has used for a while (R6).
    pub(crate) fn purge_index(&self) -> Document {
        doc! { self.path(EXPIRES_AT): 1 }
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

    /// R7: nobody's **or** expired – a released record can look unexpired to an operation that started before the release – and not
    /// closed by a minimum hold. What is missing sorts before null, and null before every date.
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

    /// The field's new value in each of some steps, and in the others what it is.
    fn when(&self, changes: &[(&str, Bson)], field: &str) -> Bson {
        let step = self.value(STEP);
        changes.iter().fold(self.value(field).into(), |otherwise: Bson, (name, new)| {
            doc! { "$cond": [{ "$eq": [&step, *name] }, new, otherwise] }.into()
        })
    }

    /// Decides once, on the document as it was, and then changes it.
    fn in_steps<const N: usize>(&self, steps: [(&str, Document); N], change: Document) -> Vec<Document> {
        let branches: Vec<Document> =
            steps.into_iter().map(|(name, case)| doc! { "case": case, "then": name }).collect();
        let decision = doc! { "$switch": { "branches": branches, "default": LEAVE } };
        vec![
            doc! { "$set": { self.path(STEP): decision } },
            doc! { "$set": change },
            doc! { "$unset": self.path(STEP) },
        ]
    }
}

impl Clock {
    fn reading(self) -> Document {
        const SECOND: i64 = 1 << 30;
        const MILLISECOND: i64 = 1 << 20;
        match self {
            Self::ClusterTime => doc! { "$add": [
                { "$multiply": [{ "$tsSecond": "$$CLUSTER_TIME" }, SECOND] },
                { "$tsIncrement": "$$CLUSTER_TIME" },
            ] },
            Self::WallTime => {
                let millis = doc! { "$toLong": "$$NOW" };
                doc! { "$add": [
                    { "$multiply": [{ "$toLong": { "$floor": { "$divide": [millis.clone(), 1000] } } }, SECOND] },
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
