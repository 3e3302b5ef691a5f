//! The queue: `[{id, seen, ttl, claim, tokens, owner, meta}]`, the first to come first.
//!
//! A ticket describes itself, because others grant to it: who waits, for how many tokens, and how
//! long the lease shall last that a releaser grants. It is alive for its own `ttl` after it was
//! last `seen`. Only what changes the queue anyway drops dead ones; everybody else looks past them.

use std::time::Duration;

use distlock_api::{AcquisitionId, Holder, LockKey};
use distlock_engine::store::Ticket;
use mongodb::bson::{Bson, Document, doc};

use super::{EXPIRES_AT, ID, LOCK_ID, Layout, META, OWNER, QUEUE, REVOKED, answer, literal, millis, remarks, removed};

/// The live tickets, found out by an operation's first stage.
pub(super) const LIVE: &str = "step.live";
/// The place of the one who asks.
pub(super) const PLACE: &str = "step.place";

const TICKET: &str = "id";
const SEEN: &str = "seen";
const TICKET_TTL: &str = "ttl";
const CLAIM: &str = "claim";
const BLOCK: &str = "tokens";

/// Milliseconds, 35 years: others calculate with what stands in a ticket, and must not overflow.
const LONGEST: i64 = 1 << 40;

/// Bytes of names and values: a ticket with more remarks goes without them, so that a full queue
/// stays small.
const MAX_REMARKS_LEN: usize = 512;

/// One ticket that is to be refreshed.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) key: LockKey,
    /// The document's.
    pub(crate) identity: Bson,
    pub(crate) id: AcquisitionId,
}

impl Layout {
    /// Those who wait, whether they live or not; an odd value of the field is none.
    fn tickets(&self) -> Document {
        doc! { "$cond": [{ "$isArray": self.value(QUEUE) }, self.value(QUEUE), []] }
    }

    /// Those who wait. A ticket that lacks something, or holds it in another form, counts as dead:
    /// nobody could grant to it.
    pub(super) fn live_tickets(&self) -> Document {
        let of = |field| format!("$$this.{field}");
        let mut alive =
            vec![doc! { "$eq": [{ "$type": of(TICKET) }, "string"] }, doc! { "$eq": [{ "$type": of(SEEN) }, "date"] }];
        alive.extend([TICKET_TTL, CLAIM, BLOCK].map(|field| doc! { "$isNumber": of(field) }));
        alive.push(doc! { "$gt": [{ "$add": [of(SEEN), of(TICKET_TTL)] }, "$$NOW"] });
        doc! { "$filter": { "input": self.tickets(), "cond": { "$and": alive } } }
    }

    /// How many live tickets are before that of the acquisition; all, if it has none: newcomers
    /// keep the order, too.
    pub(super) fn place(&self, id: &AcquisitionId) -> Document {
        let at = doc! { "$indexOfArray": [self.ids_of_live(), literal(id.as_str())] };
        doc! { "$let": {
            "vars": { "at": at },
            "in": { "$cond": [{ "$gte": ["$$at", 0] }, "$$at", { "$size": self.value(LIVE) }] },
        } }
    }

    /// Whether the place may take the free lease: each further one a window later (R8). The first
    /// needs no time at all: what is free can look unexpired to an operation that started before
    /// the release (R7).
    pub(super) fn is_turn(&self, window: Duration) -> Document {
        let place = self.value(PLACE);
        let turn = doc! { "$add": [self.opened(), { "$multiply": [&place, bounded(window)] }] };
        doc! { "$or": [{ "$lte": [place, 0] }, { "$lte": [turn, "$$NOW"] }] }
    }

    /// Milliseconds until the place may take the lease if nobody renews or releases.
    pub(super) fn until_turn(&self, place: impl Into<Bson>, window: Duration) -> Document {
        let turn = doc! { "$add": [self.opened(), { "$multiply": [place.into(), bounded(window)] }] };
        doc! { "$max": [{ "$subtract": [turn, "$$NOW"] }, 0_i64] }
    }

    /// Whether the acquisition may wait: it does so already, or there are fewer than `capacity`.
    pub(super) fn has_room(&self, id: &AcquisitionId, capacity: u32) -> Document {
        doc! { "$or": [
            { "$in": [literal(id.as_str()), self.ids_of_live()] },
            { "$lt": [{ "$size": self.value(LIVE) }, i64::from(capacity)] },
        ] }
    }

    /// The queue with the acquisition's ticket, refreshed where it is, or at the end.
    pub(super) fn joined(&self, id: &AcquisitionId, ticket: &Ticket, tokens: i32, holder: &Holder) -> Bson {
        let mut new = doc! {
            TICKET: literal(id.as_str()),
            SEEN: "$$NOW",
            TICKET_TTL: bounded(ticket.ttl),
            CLAIM: bounded(ticket.claim_ttl),
            BLOCK: tokens,
        };
        if let Some(owner) = holder.owner.as_deref() {
            new.insert(OWNER, literal(owner));
        }
        if remarks_len(holder) <= MAX_REMARKS_LEN
            && let Some(remarks) = remarks(holder)
        {
            new.insert(META, remarks);
        }
        let (own, live) = (literal(id.as_str()), self.value(LIVE));
        let is_own = doc! { "$eq": [format!("$$this.{TICKET}"), &own] };
        let refreshed = doc! { "$map": { "input": &live, "in": { "$cond": [is_own, "$$ticket", "$$this"] } } };
        doc! { "$let": {
            "vars": { "ticket": new },
            "in": { "$cond": [
                { "$in": [own, self.ids_of_live()] },
                refreshed,
                { "$concatArrays": [live, ["$$ticket"]] },
            ] },
        } }
        .into()
    }

    /// The queue of the living without the acquisition.
    pub(super) fn left_by(&self, id: &AcquisitionId) -> Bson {
        unless_empty(without(self.value(LIVE).into(), id))
    }

    /// The live tickets of others.
    pub(super) fn others(&self, id: &AcquisitionId) -> Document {
        without(self.live_tickets().into(), id)
    }

    /// Whether the acquisition has a ticket, dead or alive.
    pub(super) fn has_ticket(&self, id: &AcquisitionId) -> Document {
        doc! { "$let": {
            "vars": { "all": self.tickets() },
            "in": { "$in": [literal(id.as_str()), format!("$$all.{TICKET}")] },
        } }
    }

    /// Something of the first live ticket.
    fn of_head(&self, field: &str) -> String {
        self.value(&format!("{HEAD}.{field}"))
    }

    /// The first live ticket, when an operation has put it at [`HEAD`].
    pub(super) fn head(&self) -> Head {
        Head {
            id: self.of_head(TICKET),
            tokens: self.of_head(BLOCK),
            claim: self.of_head(CLAIM),
            owner: self.of_head(OWNER),
            meta: self.of_head(META),
        }
    }

    fn ids_of_live(&self) -> String {
        self.value(&format!("{LIVE}.{TICKET}"))
    }

    /// The records that hold a ticket of a batch. Not by `queue.id`, which would also match a queue
    /// of an odd type, and one such record would let the whole batch fail.
    pub(crate) fn refreshable(&self, batch: &[Seat]) -> Document {
        let ids: Vec<&str> = batch.iter().map(|seat| seat.id.as_str()).collect();
        let mut filter = self.records(batch.iter().map(|seat| seat.identity.clone()));
        filter.insert(self.path(QUEUE), doc! { "$elemMatch": { TICKET: { "$in": ids } } });
        filter
    }

    /// Refreshes the tickets that [`mine`](Self::mine) names, and adds none (R15). No pipeline,
    /// because that would write the whole queue.
    pub(crate) fn refresh(&self) -> Document {
        doc! { "$currentDate": { format!("{}.$[mine].{SEEN}", self.path(QUEUE)): true } }
    }

    /// The array filter of [`refresh`](Self::refresh).
    pub(crate) fn mine(batch: &[Seat]) -> Document {
        let ids: Vec<&str> = batch.iter().map(|seat| seat.id.as_str()).collect();
        doc! { format!("mine.{TICKET}"): { "$in": ids } }
    }

    /// What has become of the tickets of a batch: the [`Seated`](super::Seated) of each of its
    /// records. The places stand in the order of [`seats_by_key`].
    pub(crate) fn seated(&self, batch: &[Seat]) -> Document {
        let (mut keys, mut ids) = (Vec::new(), Vec::new());
        for (_, seats) in seats_by_key(batch) {
            keys.push(seats[0].identity.clone());
            ids.push(Bson::Array(seats.iter().map(|seat| seat.id.as_str().into()).collect()));
        }
        let asked = doc! { "$arrayElemAt": [literal(ids), { "$indexOfArray": [literal(keys), format!("${ID}")] }] };
        let places =
            doc! { "$map": { "input": asked, "in": { "$indexOfArray": [format!("$$live.{TICKET}"), "$$this"] } } };
        let found = doc! {
            "places": places,
            "holder": { "$cond": [self.is_held(), self.value(LOCK_ID), Bson::Null] },
            "token": { "$ifNull": [self.first_of_block(), 0_i64] },
            "opens": { "$ifNull": [{ "$subtract": [self.opened(), "$$NOW"] }, 0_i64] },
            "remaining": { "$ifNull": [{ "$subtract": [self.value(EXPIRES_AT), "$$NOW"] }, 0_i64] },
            "revoked": self.value(REVOKED),
            "now": { "$toLong": "$$NOW" },
        };
        let mut projection = answer(doc! { "$let": { "vars": { "live": self.live_tickets() }, "in": found } });
        projection.insert(ID, 1);
        projection
    }

    /// The [`Waiters`](super::Waiters) of a record.
    pub(crate) fn waiters(&self) -> Document {
        answer(doc! { "waiters": { "$size": self.live_tickets() } })
    }
}

/// The first live ticket of others, found out by a release.
pub(super) const HEAD: &str = "step.head";

/// Expressions for what the first live ticket says of itself.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) tokens: String,
    pub(super) claim: String,
    pub(super) owner: String,
    pub(super) meta: String,
}

/// The seats of a batch by their keys, in the order in which the keys come first.
pub(crate) fn seats_by_key(batch: &[Seat]) -> Vec<(&LockKey, Vec<&Seat>)> {
    let mut keys: Vec<(&LockKey, Vec<&Seat>)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for seat in batch {
        let at = *known.entry(&seat.key).or_insert_with(|| {
            keys.push((&seat.key, Vec::new()));
            keys.len() - 1
        });
        keys[at].1.push(seat);
    }
    keys
}

/// The queue of an expression, or nothing instead of an empty one.
pub(super) fn unless_empty(queue: impl Into<Bson>) -> Bson {
    doc! { "$let": {
        "vars": { "queue": queue.into() },
        "in": { "$cond": [{ "$eq": ["$$queue", []] }, removed(), "$$queue"] },
    } }
    .into()
}

fn without(tickets: Bson, id: &AcquisitionId) -> Document {
    let another = doc! { "$ne": [format!("$$this.{TICKET}"), literal(id.as_str())] };
    doc! { "$filter": { "input": tickets, "cond": another } }
}

fn remarks_len(holder: &Holder) -> usize {
    holder.metadata.iter().flat_map(|remarks| remarks.iter()).map(|(name, value)| name.len() + value.len()).sum()
}

fn bounded(duration: Duration) -> i64 {
    millis(duration).min(LONGEST)
}
