//! The fast path to a ticket: for a lease that another acquisition holds (R8).

use distlock_engine::store::{Attempt, Ticket};
use mongodb::bson::{Bson, Document, doc};

use super::acquire::with_tickets;
use super::holders::MARKER;
use super::queue::{TICKET, is_alive, new_ticket};
use super::{CLOSED_UNTIL, EXPIRES_AT, LOCK_ID, Layout, QUEUE, TOKEN, answer, literal};

impl Layout {
    /// Restricts a filter to a record whose lease another acquisition holds exclusively, unexpired,
    /// and whose queue has room, and no ticket of this one. Dead tickets and empty places also need
    /// room. If the queue is not empty, the ticket in its middle is alive, so that dead ones do not
    /// pile up.
    pub(crate) fn if_held_by_another(&self, filter: Document, attempt: &Attempt, ticket: &Ticket) -> Document {
        let id = attempt.claim.id().as_str();
        let queue = self.path(QUEUE);
        let mut filter = self.if_record(filter);
        filter.insert(self.path(LOCK_ID), doc! { "$type": "string", "$nin": [id, MARKER] });
        filter.insert(self.path(CLOSED_UNTIL), Bson::Null);
        filter.insert(format!("{queue}.{TICKET}"), doc! { "$ne": id });
        filter.insert(format!("{queue}.{}", ticket.capacity.saturating_sub(1)), doc! { "$exists": false });
        let half = doc! { "$toInt": { "$divide": [{ "$size": "$$tickets" }, 2] } };
        let in_middle = doc! { "$let": {
            "vars": { "middle": { "$arrayElemAt": ["$$tickets", half] } },
            "in": { "$or": [{ "$eq": ["$$tickets", []] }, is_alive("$$middle")] },
        } };
        let in_middle = doc! { "$let": { "vars": { "tickets": self.value(QUEUE) }, "in": in_middle } };
        // A queue that is no list is for the full path (R32).
        let may_append = doc! { "$cond": [
            { "$isArray": self.value(QUEUE) },
            in_middle,
            { "$lte": [self.value(QUEUE), Bson::Null] },
        ] };
        let [after_now, is_date] = self.is_future(EXPIRES_AT);
        filter.insert("$expr", doc! { "$and": [after_now, is_date, may_append] });
        filter
    }

    /// Makes the pipeline of the fast path of [`acquire`](Self::acquire), for the filter
    /// [`if_held_by_another`](Self::if_held_by_another).
    pub(crate) fn take_ticket(&self, attempt: &Attempt, ticket: &Ticket) -> Vec<Document> {
        let queue = doc! { "$concatArrays": [self.tickets(), [new_ticket(attempt, ticket)]] };
        vec![doc! { "$set": { self.path(QUEUE): queue } }]
    }

    /// Projects the document after [`take_ticket`](Self::take_ticket) to an
    /// [`AcquireReply`](super::AcquireReply).
    pub(crate) fn ticket_taken(&self, attempt: &Attempt) -> Document {
        answer(with_tickets(self, attempt.claim.id(), |position| {
            doc! {
                // A plain `false` would leave the field out.
                "granted": literal(false),
                "token": self.value(TOKEN),
                "tokens": self.block_len(),
                "remaining": self.until_turn_after(self.opened(), position, attempt.turn_window),
                "at": "$$at",
                "waiting": { "$size": "$$live" },
                "now": { "$toLong": "$$NOW" },
                "since": self.first_of_block(),
            }
        }))
    }
}
