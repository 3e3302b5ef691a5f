//! Acquiring (R8, R9).

use distlock_api::store::{AcquisitionId, Attempt};
use mongodb::bson::{Bson, Document, doc};

use super::queue::{LIVE, PLACE};
use super::{
    ACQUIRED_AT, CLOSED_UNTIL, Clock, EXPIRED, EXPIRES_AT, EXTEND, LOCK_ID, Layout, META, OWNER, PASSED, QUEUE, TAKE,
    TOKEN, TOKENS, TTL, WAIT, answer, first_token, last_token, later_by, literal, millis, remarks, removed,
};

impl Layout {
    /// One attempt to acquire (R8). An upsert: without a document the lease is free, and nobody waits.
    ///
    /// An attempt that neither takes nor waits leaves the record as it is, dead tickets included, so that the server writes nothing.
    pub(crate) fn acquire(&self, attempt: &Attempt, clock: Clock) -> Vec<Document> {
        let (id, ttl) = (attempt.claim.id(), attempt.ttl);
        let tokens = block(attempt);
        let mut steps = vec![
            (EXTEND, self.held_by(id)),
            (TAKE, doc! { "$and": [self.is_free(), self.is_turn(attempt.turn_window)] }),
        ];
        if let Some(ticket) = &attempt.ticket {
            steps.push((WAIT, self.has_room(id, ticket.capacity)));
        }
        let mut change = doc! {};
        for (field, new) in [
            (LOCK_ID, literal(id.as_str())),
            (TOKEN, last_token(first_token(&self.value(TOKEN), clock), tokens)),
            (TOKENS, tokens.into()),
            (ACQUIRED_AT, "$$NOW".into()),
            (CLOSED_UNTIL, removed()),
            (PASSED, removed()),
            // A grant that finds a holder finds an expired one.
            (EXPIRED, doc! { "$ifNull": [self.value(LOCK_ID), "$$REMOVE"] }.into()),
            (OWNER, attempt.holder.owner.as_deref().map_or_else(removed, literal)),
            (META, remarks(&attempt.holder).unwrap_or_else(removed)),
        ] {
            change.insert(self.path(field), self.when(&[(TAKE, new)], field));
        }
        let milliseconds = millis(ttl);
        change.insert(self.path(TTL), self.when(&[(TAKE, milliseconds.into()), (EXTEND, milliseconds.into())], TTL));
        // R3: an extension never shortens.
        let end = later_by(ttl);
        let extended = doc! { "$max": [self.value(EXPIRES_AT), end.clone()] };
        let end = self.when(&[(TAKE, end), (EXTEND, extended.into())], EXPIRES_AT);
        change.insert(self.path(EXPIRES_AT), end);
        let waiting = attempt.ticket.as_ref().map(|ticket| (WAIT, self.joined(id, ticket, tokens, &attempt.holder)));
        let queue: Vec<(&str, Bson)> = waiting.into_iter().chain([(TAKE, self.left_by(id))]).collect();
        change.insert(self.path(QUEUE), self.when(&queue, QUEUE));
        self.in_steps([(LIVE, self.live_tickets()), (PLACE, self.place(id))], steps, change)
    }

    /// The [`Acquisition`](super::Acquisition) of the document after [`acquire`](Self::acquire).
    pub(crate) fn acquisition(&self, attempt: &Attempt) -> Document {
        let id = attempt.claim.id();
        answer(with_tickets(self, id, |place| {
            doc! {
                "granted": self.held_by(id),
                "token": self.value(TOKEN),
                "tokens": { "$ifNull": [self.value(TOKENS), 1] },
                "remaining": { "$cond": [self.held_by(id), self.remaining(), self.until_turn(place, attempt.turn_window)] },
                "at": "$$at",
                "now": { "$toLong": "$$NOW" },
            }
        }))
    }
}

/// What an answer says with `$$at`, the index of the acquisition among the live tickets or -1, and its place.
fn with_tickets(layout: &Layout, id: &AcquisitionId, answer: impl FnOnce(Document) -> Document) -> Document {
    let place = doc! { "$cond": [{ "$gte": ["$$at", 0] }, "$$at", { "$size": "$$live" }] };
    doc! { "$let": {
        "vars": { "live": layout.live_tickets() },
        "in": { "$let": {
            "vars": { "at": { "$indexOfArray": ["$$live.id", literal(id.as_str())] } },
            "in": answer(place),
        } },
    } }
}

/// The length of the block that an attempt asks for.
fn block(attempt: &Attempt) -> i32 {
    i32::try_from(attempt.tokens.get()).unwrap_or(i32::MAX)
}
