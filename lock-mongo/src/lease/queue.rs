//! The queue: `[{id, seen, ttl, claim, tokens, owner, meta}]`, in the order of arrival, each with
//! its mode.
//!
//! A ticket contains everything that a release needs to grant to it: the acquisition, the number of
//! tokens, the mode, and the duration of the lease. It is alive for its own `ttl` after it was last
//! `seen`. Operations that change the queue also remove dead tickets; all others skip them.
//!
//! A ticket that is removed leaves an empty place, a document without fields. Without it all later
//! tickets would move, and the server would write all of them to its log, which the other members
//! and each change stream read. The empty places are removed when there are more than one for two
//! tickets. They are no nulls: an array with a null matches the filters of a record without a
//! queue.

use std::time::Duration;

use distlock_api::{AcquisitionId, Holder, LeaseOptions, LockKey};
use distlock_engine::store::{Attempt, Ticket};
use mongodb::bson::{Bson, Document, doc};

use super::bound::is_in_time;
use super::holders::{earliest, mode_fields, ticket_fits};
use super::{
    EXPIRES_AT, ID, LOCK_ID, Layout, META, OWNER, QUEUE, REVOKED, answer, block_len_of, clamped, is_absent, literal,
    millis, millis_until, remarks, removed,
};

/// The places of the queue: live tickets and empty ones, computed by the first stage of an
/// operation.
const PLACES: &str = "step.places";
/// The live tickets, computed from the places.
pub(super) const LIVE: &str = "step.live";
/// The position of the acquisition.
pub(super) const POSITION: &str = "step.position";

/// The acquisition of a ticket.
const TICKET: &str = "id";
const SEEN: &str = "seen";
const TICKET_TTL: &str = "ttl";
pub(super) const CLAIM: &str = "claim";
const BLOCK: &str = "tokens";

/// Milliseconds, 35 years: other processes compute with these times, and must not overflow.
const LONGEST: i64 = 1 << 40;

/// Bytes of names and values. A ticket with more remarks is stored without them, so that a full
/// queue stays small.
const MAX_REMARKS_LEN: usize = 512;

/// A ticket to refresh, with its key.
#[derive(Clone, Debug)]
pub(crate) struct KeyTicket {
    pub(crate) key: LockKey,
    /// The `_id` of the document.
    pub(crate) identity: Bson,
    pub(crate) id: AcquisitionId,
}

/// The number of tokens that an attempt requests.
pub(crate) fn block(attempt: &Attempt) -> i32 {
    i32::try_from(attempt.tokens.get()).unwrap_or(i32::MAX)
}

impl Layout {
    /// The tickets, dead or alive. A value that is no array counts as none.
    pub(super) fn tickets(&self) -> Document {
        doc! { "$cond": [{ "$isArray": self.value(QUEUE) }, self.value(QUEUE), []] }
    }

    /// The live tickets.
    pub(super) fn live_tickets(&self) -> Document {
        doc! { "$filter": { "input": self.tickets(), "cond": is_alive("$$this") } }
    }

    /// What the first stages of an operation find in the queue. They count the ticket of `but` as
    /// dead, an expression for an id.
    pub(super) fn found_tickets(&self, but: Option<&Bson>) -> [(&'static str, Document); 2] {
        let counts = match but {
            Some(id) => doc! { "$and": [is_alive("$$this"), is_another(id)] },
            None => is_alive("$$this"),
        };
        let places = doc! { "$map": { "input": self.tickets(), "in": { "$cond": [counts, "$$this", empty_place()] } } };
        let live = doc! { "$filter": { "input": self.value(PLACES), "cond": { "$ne": ["$$this", empty_place()] } } };
        [(PLACES, places), (LIVE, live)]
    }

    /// The queue, if of the live tickets these are `left`, and those with the ids `gone` are not.
    pub(super) fn queue_of(&self, left: impl Into<Bson>, gone: impl Into<Bson>) -> Bson {
        let is_gone = doc! { "$in": [format!("$$this.{TICKET}"), gone.into()] };
        let in_place = doc! { "$map": {
            "input": self.value(PLACES),
            "in": { "$cond": [is_gone, empty_place(), "$$this"] },
        } };
        doc! { "$let": {
            "vars": { "left": left.into() },
            "in": { "$switch": {
                "branches": [
                    { "case": { "$eq": ["$$left", []] }, "then": removed() },
                    { "case": self.has_few_empty_places("$$left"), "then": in_place },
                ],
                "default": "$$left",
            } },
        } }
        .into()
    }

    /// Returns whether so many tickets may stay where they are: there are at least two of them for
    /// each empty place.
    fn has_few_empty_places(&self, tickets: &str) -> Document {
        let empty = doc! { "$subtract": [{ "$size": self.value(PLACES) }, { "$size": tickets }] };
        doc! { "$lte": [{ "$multiply": [empty, 2] }, { "$size": tickets }] }
    }

    /// The queue without the first live ticket.
    pub(super) fn queue_after_head(&self) -> Bson {
        self.queue_of(doc! { "$slice": [self.value(LIVE), 1, i32::MAX] }, vec![self.head().id])
    }

    /// The queue of all live tickets.
    pub(super) fn live_queue(&self) -> Bson {
        self.queue_of(self.value(LIVE), Bson::Array(vec![]))
    }

    /// The number of live tickets before that of the acquisition. Without a ticket all of them are
    /// before it, so that newcomers keep the order, too.
    pub(super) fn position(&self, id: &AcquisitionId) -> Document {
        let at = doc! { "$indexOfArray": [self.ids_of_live(), literal(id.as_str())] };
        doc! { "$let": {
            "vars": { "at": at },
            "in": { "$cond": [{ "$gte": ["$$at", 0] }, "$$at", { "$size": self.value(LIVE) }] },
        } }
    }

    /// Returns whether the position may take the free lease: each one a window later than the one
    /// before (R8). The first one may at once, without a test of times: a free lease can look
    /// unexpired to an operation that started before the release (R7).
    pub(super) fn is_turn(&self, window: Duration) -> Document {
        let position = self.value(POSITION);
        let turn = doc! { "$add": [self.opened(), { "$multiply": [&position, bounded(window)] }] };
        doc! { "$or": [{ "$lte": [position, 0] }, { "$lte": [turn, "$$NOW"] }] }
    }

    /// Milliseconds until the position may take the lease without a renewal or a release, or zero
    /// if that is not known (R32). Of several holders, until the first one's lease ends: the others
    /// may have released by then.
    pub(super) fn until_turn(&self, position: impl Into<Bson>, window: Duration) -> Document {
        let first = doc! { "$let": {
            "vars": { "held": self.live_holders() },
            "in": { "$ifNull": [earliest("$$held"), self.opened()] },
        } };
        let opened = doc! { "$cond": [self.has_marker(), first, self.opened()] };
        let opened = self.if_it_ends(opened);
        let turn = doc! { "$add": [opened, { "$multiply": [position.into(), bounded(window)] }] };
        doc! { "$max": [{ "$subtract": [turn, "$$NOW"] }, 0_i64] }
    }

    /// Returns whether the acquisition may have a ticket: it has one, or there are fewer than
    /// `capacity`. In a queue that is no list it has none (R32).
    fn has_room(&self, id: &AcquisitionId, capacity: u32) -> Document {
        doc! { "$or": [
            { "$in": [literal(id.as_str()), self.ids_of_live()] },
            { "$and": [
                { "$lt": [{ "$size": self.value(LIVE) }, i64::from(capacity)] },
                { "$or": [{ "$isArray": self.value(QUEUE) }, is_absent(self.value(QUEUE))] },
            ] },
        ] }
    }

    /// Returns whether an attempt with this ticket waits: there is room, and an end to wait for.
    pub(super) fn may_wait(&self, id: &AcquisitionId, ticket: &Ticket) -> Document {
        doc! { "$and": [self.has_room(id, ticket.capacity), self.has_end()] }
    }

    /// The live tickets with that of the acquisition, refreshed in its position or added at the
    /// end.
    pub(super) fn queue_with(&self, attempt: &Attempt, ticket: &Ticket) -> Bson {
        let (own, live) = (literal(attempt.claim.id().as_str()), self.value(LIVE));
        let is_own = doc! { "$eq": [format!("$$this.{TICKET}"), &own] };
        let refreshed = doc! { "$map": { "input": "$$queue", "in": { "$cond": [is_own, "$$ticket", "$$this"] } } };
        let queue = doc! { "$cond": [self.has_few_empty_places(&live), self.value(PLACES), &live] };
        doc! { "$let": {
            "vars": { "ticket": new_ticket(attempt, ticket), "queue": queue },
            "in": { "$cond": [
                { "$in": [own, self.ids_of_live()] },
                refreshed,
                { "$concatArrays": ["$$queue", ["$$ticket"]] },
            ] },
        } }
        .into()
    }

    /// The queue without the ticket of the acquisition.
    pub(super) fn queue_without(&self, id: &AcquisitionId) -> Bson {
        let left = doc! { "$filter": { "input": self.value(LIVE), "cond": is_another(&literal(id.as_str())) } };
        self.queue_of(left, vec![literal(id.as_str())])
    }

    /// Returns whether the acquisition has a ticket, dead or alive.
    pub(super) fn has_ticket(&self, id: &Bson) -> Document {
        doc! { "$let": {
            "vars": { "all": self.tickets() },
            "in": { "$in": [id, format!("$$all.{TICKET}")] },
        } }
    }

    /// The value of a field of the first live ticket.
    fn of_head(&self, field: &str) -> String {
        self.value(&format!("{HEAD}.{field}"))
    }

    /// The first live ticket, which an earlier stage has set as [`HEAD`].
    pub(super) fn head(&self) -> Head {
        Head {
            id: self.of_head(TICKET),
            tokens: block_len_of(self.of_head(BLOCK)),
            claim: claim_of(self.of_head(CLAIM)),
            owner: self.of_head(OWNER),
            meta: self.of_head(META),
        }
    }

    pub(super) fn ids_of_live(&self) -> String {
        self.value(&format!("{LIVE}.{TICKET}"))
    }

    /// Returns the filter of the records that have a ticket of a batch, while the server's clock is
    /// before `bound` (R31). Not by `queue.id`, which would also match a queue that is no array,
    /// and one such record would fail the whole batch.
    pub(crate) fn refreshable(&self, batch: &[KeyTicket], bound: Duration) -> Document {
        let ids: Vec<&str> = batch.iter().map(|ticket| ticket.id.as_str()).collect();
        let mut filter = self.records(batch.iter().map(|ticket| ticket.identity.clone()));
        filter.insert(self.path(QUEUE), doc! { "$elemMatch": { TICKET: { "$in": ids } } });
        filter.insert("$expr", is_in_time(bound));
        filter
    }

    /// Makes the update that refreshes the tickets of [`own_tickets`](Self::own_tickets), and adds
    /// none (R15). It is no pipeline, because that would write the whole queue.
    pub(crate) fn refresh(&self) -> Document {
        doc! { "$currentDate": { format!("{}.$[mine].{SEEN}", self.path(QUEUE)): true } }
    }

    /// Returns the array filter of [`refresh`](Self::refresh).
    pub(crate) fn own_tickets(batch: &[KeyTicket]) -> Document {
        let ids: Vec<&str> = batch.iter().map(|ticket| ticket.id.as_str()).collect();
        // A list of tickets within the queue would also match, and has no field to set (R32).
        doc! { format!("mine.{TICKET}"): { "$in": ids }, "mine": { "$not": { "$type": "array" } } }
    }

    /// Projects each record of a batch to its [`KeyedTickets`](super::KeyedTickets). The positions
    /// are in the order of [`tickets_by_key`].
    pub(crate) fn ticket_states(&self, batch: &[KeyTicket]) -> Document {
        let (mut keys, mut ids) = (Vec::new(), Vec::new());
        for (_, tickets) in tickets_by_key(batch) {
            keys.push(tickets[0].identity.clone());
            ids.push(Bson::Array(tickets.iter().map(|ticket| ticket.id.as_str().into()).collect()));
        }
        let of_key = doc! { "$arrayElemAt": [literal(ids), { "$indexOfArray": [literal(keys), format!("${ID}")] }] };
        let positions =
            doc! { "$map": { "input": of_key, "in": { "$indexOfArray": [format!("$$live.{TICKET}"), "$$this"] } } };
        let opens = doc! { "$subtract": [self.opened(), "$$NOW"] };
        let found = doc! {
            "positions": positions,
            "holder": { "$cond": [self.is_held(), self.value(LOCK_ID), Bson::Null] },
            "holders": self.holder_states(),
            "token": self.first_of_block(),
            "opens": { "$cond": [self.has_marker(), self.opens_beside(opens.clone()), opens] },
            "remaining": millis_until(self.value(EXPIRES_AT)),
            "revoked": self.value(REVOKED),
            "now": { "$toLong": "$$NOW" },
        };
        let mut projection = answer(doc! { "$let": { "vars": { "live": self.live_tickets() }, "in": found } });
        projection.insert(ID, 1);
        projection
    }

    /// Milliseconds until something may change for the first live ticket, by itself, beside several
    /// holders: at once if it fits, otherwise at the end of the first holder's lease.
    fn opens_beside(&self, opens: Document) -> Document {
        let first = doc! { "$subtract": [earliest("$$held"), "$$NOW"] };
        let beside = doc! { "$switch": {
            "branches": [
                { "case": { "$eq": ["$$held", []] }, "then": opens },
                { "case": ticket_fits("$$head", "$$held"), "then": 0_i64 },
            ],
            "default": first,
        } };
        let vars = doc! { "held": self.live_holders(), "head": { "$first": "$$live" } };
        doc! { "$let": { "vars": vars, "in": beside } }
    }

    /// Projects a record to its [`Waiters`](super::Waiters).
    pub(crate) fn waiters(&self) -> Document {
        answer(doc! { "waiters": { "$size": self.live_tickets() } })
    }
}

/// The first live ticket of others, computed by the first stages of a release.
pub(super) const HEAD: &str = "step.head";

/// Expressions for the fields of the first live ticket.
pub(super) struct Head {
    pub(super) id: String,
    pub(super) tokens: Document,
    pub(super) claim: Document,
    pub(super) owner: String,
    pub(super) meta: String,
}

/// The duration of a lease that a release grants to a ticket, whatever its field is (R32).
pub(super) fn claim_of(value: impl Into<Bson>) -> Document {
    clamped(value, 0, millis(LeaseOptions::MAX_TTL))
}

/// Groups the tickets of a batch by their keys, in the order in which the keys first occur.
pub(crate) fn tickets_by_key(batch: &[KeyTicket]) -> Vec<(&LockKey, Vec<&KeyTicket>)> {
    let mut keys: Vec<(&LockKey, Vec<&KeyTicket>)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for ticket in batch {
        let at = *known.entry(&ticket.key).or_insert_with(|| {
            keys.push((&ticket.key, Vec::new()));
            keys.len() - 1
        });
        keys[at].1.push(ticket);
    }
    keys
}

/// When the first `number` of these tickets have died, unless they are refreshed; at least one.
pub(super) fn ends_of_tickets(tickets: &str, number: &Document) -> Document {
    let end = doc! { "$add": [format!("$$this.{SEEN}"), format!("$$this.{TICKET_TTL}")] };
    let ahead = doc! { "$slice": [tickets, { "$max": [number, 1] }] };
    doc! { "$max": { "$map": { "input": ahead, "in": end } } }
}

/// Returns whether a ticket is alive. One that lacks a field, or has it in another form, counts as
/// dead, because no release could grant to it. So does one with a time that no server has written
/// (R32).
fn is_alive(ticket: &str) -> Document {
    let of = |field| format!("{ticket}.{field}");
    let mut alive = vec![doc! { "$eq": [{ "$type": of(TICKET) }, "string"] }];
    alive.extend([CLAIM, BLOCK].map(|field| doc! { "$isNumber": of(field) }));
    // What is between two numbers is one, and between two dates a date. A sum with any other value
    // would be an error of the whole command.
    alive.extend([doc! { "$gte": [of(TICKET_TTL), 0] }, doc! { "$lte": [of(TICKET_TTL), LONGEST] }]);
    alive.push(doc! { "$gt": [of(SEEN), { "$subtract": ["$$NOW", of(TICKET_TTL)] }] });
    alive.push(doc! { "$lte": [of(SEEN), { "$add": ["$$NOW", of(TICKET_TTL)] }] });
    doc! { "$and": alive }
}

/// A ticket of the acquisition, seen now.
fn new_ticket(attempt: &Attempt, ticket: &Ticket) -> Document {
    let holder = &attempt.holder;
    let mut new = doc! {
        TICKET: literal(attempt.claim.id().as_str()),
        SEEN: "$$NOW",
        TICKET_TTL: stored(ticket.ttl),
        CLAIM: stored(ticket.claim_ttl),
        BLOCK: block(attempt),
    };
    new.extend(mode_fields(attempt.claim.mode()));
    if let Some(owner) = holder.owner.as_deref() {
        new.insert(OWNER, literal(owner));
    }
    if remarks_len(holder) <= MAX_REMARKS_LEN
        && let Some(remarks) = remarks(holder)
    {
        new.insert(META, remarks);
    }
    new
}

fn empty_place() -> Bson {
    literal(doc! {})
}

/// Returns whether a ticket belongs to another acquisition.
fn is_another(id: &Bson) -> Document {
    doc! { "$ne": [format!("$$this.{TICKET}"), id] }
}

fn remarks_len(holder: &Holder) -> usize {
    holder.metadata.iter().flat_map(|remarks| remarks.iter()).map(|(name, value)| name.len() + value.len()).sum()
}

pub(super) fn bounded(duration: Duration) -> i64 {
    millis(duration).min(LONGEST)
}

/// The value of a ticket's field: four bytes if they suffice, because all tickets are written with
/// each change of the queue.
fn stored(duration: Duration) -> Bson {
    let millis = bounded(duration);
    i32::try_from(millis).map_or_else(|_| millis.into(), Bson::from)
}
