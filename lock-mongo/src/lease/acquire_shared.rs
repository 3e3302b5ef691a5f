//! Acquisitions in a mode that is not exclusive: they take a free key, or join its holders
//! (R25–R27).

use distlock_engine::store::Attempt;
use mongodb::bson::{Bson, Document, doc};

use super::acquire::with_tickets;
use super::grant_fields::taken_text;
use super::holders::{BLOCK_OF, GRANTS, HELD, HOLDERS, MARKER, TOKEN_OF, earliest, fits, is_own, latest};
use super::queue::{POSITION, block, bounded, ends_of_tickets};
use super::{
    ACQUIRED_AT, CLOSED_UNTIL, Clock, EXPIRED, EXPIRES_AT, EXTEND, KEEP, LOCK_ID, Layout, META, OWNER, PASSED, QUEUE,
    TAKE, TOKEN, TOKENS, TTL, WAIT, answer, block_len_of, first_token, is_absent, last_token, later_by, literal,
    millis, millis_until, removed,
};

impl Layout {
    /// Makes the pipeline of one attempt to acquire, as [`acquire`](Self::acquire) does.
    ///
    /// A lease that a release of a process without modes has granted is extended as it is: no one
    /// else joins it.
    pub(super) fn join(&self, attempt: &Attempt, clock: Clock) -> Vec<Document> {
        let (id, ttl, mode) = (attempt.claim.id(), attempt.ttl, attempt.claim.mode());
        let held = self.value(HELD);
        let of_own = doc! { "$filter": { "input": &held, "cond": is_own("$$this", &literal(id.as_str())) } };
        // R27: no one overtakes the queue. R13: a closed key has no live holder, unless another
        // program has written so.
        let joins = doc! { "$and": [
            is_absent(self.value(CLOSED_UNTIL)),
            { "$ne": [&held, []] },
            { "$lte": [self.value(POSITION), 0] },
            fits(mode, &held),
        ] };
        let takes = doc! { "$and": [self.is_free(), self.is_turn(attempt.turn_window)] };
        let mut steps = vec![
            (EXTEND, self.held_by(id)),
            (KEEP, doc! { "$ne": [of_own, []] }),
            (TAKE, doc! { "$or": [takes, joins] }),
        ];
        if let Some(ticket) = &attempt.ticket {
            steps.push((WAIT, self.may_wait(id, ticket)));
        }
        let first = first_token(self.value(TOKEN), clock);
        let tokens = block(attempt);
        let new = self.new_holder(literal(id.as_str()), attempt, last_token(first.clone(), tokens));
        // R3: an extension never shortens.
        let extended = doc! { "$max": [self.value(EXPIRES_AT), later_by(ttl)] };
        let end = doc! { "$max": [format!("$$this.{EXPIRES_AT}"), later_by(ttl)] };
        let kept = doc! { "$mergeObjects": ["$$this", { EXPIRES_AT: end, TTL: millis(ttl) }] };
        let kept = doc! { "$cond": [is_own("$$this", &literal(id.as_str())), kept, "$$this"] };
        // R26: the latest expiry of all.
        let ends = doc! { "$max": [latest(&held), later_by(ttl)] };
        let rows: [(&str, Vec<(&str, Bson)>); 13] = [
            (LOCK_ID, vec![(TAKE, MARKER.into())]),
            (
                HOLDERS,
                vec![
                    (TAKE, doc! { "$concatArrays": [&held, [new]] }.into()),
                    (KEEP, doc! { "$map": { "input": self.holders(), "in": kept } }.into()),
                ],
            ),
            (TOKEN, vec![(TAKE, last_token(first.clone(), tokens))]),
            (TOKENS, vec![(TAKE, tokens.into())]),
            (ACQUIRED_AT, vec![(TAKE, "$$NOW".into())]),
            (EXPIRES_AT, vec![(TAKE, ends.into()), (KEEP, extended.clone().into()), (EXTEND, extended.into())]),
            (TTL, vec![(TAKE, millis(ttl).into()), (EXTEND, millis(ttl).into())]),
            (CLOSED_UNTIL, vec![(TAKE, removed())]),
            (PASSED, vec![(TAKE, removed())]),
            (EXPIRED, vec![(TAKE, self.expired_by_grant())]),
            (OWNER, vec![(TAKE, removed())]),
            (META, vec![(TAKE, removed())]),
            (GRANTS, vec![(TAKE, taken_text(attempt, literal(id.as_str()), first.into()))]),
        ];
        let mut change = doc! {};
        for (field, changes) in rows {
            change.insert(self.path(field), self.when(&changes, self.value(field).into()));
        }
        change.insert(self.path(QUEUE), self.queue_after(attempt));
        let others = [(POSITION, self.position(id)), (HELD, self.live_holders())];
        let findings = self.found_tickets(None).into_iter().chain(others);
        self.in_steps(findings, steps, change)
    }

    /// Projects the document after [`join`](Self::join) to an
    /// [`AcquireReply`](super::AcquireReply).
    pub(super) fn joined(&self, attempt: &Attempt, with_document: bool) -> Document {
        let (id, mode) = (attempt.claim.id(), attempt.claim.mode());
        let window = bounded(attempt.turn_window);
        let granted = doc! { "$or": [self.held_by(id), { "$gt": [format!("$$own.{EXPIRES_AT}"), "$$NOW"] }] };
        let of_own = |field: &str, otherwise: Bson| doc! { "$ifNull": [format!("$$own.{field}"), otherwise] };
        let of_lease = |field: &str| Bson::from(self.value(field));
        let left = |end: Document| doc! { "$max": [{ "$subtract": [end, "$$NOW"] }, 0_i64] };
        answer(with_tickets(self, id, |position| {
            let turn = |begin: Document| {
                doc! { "$add": [begin, { "$multiply": [&position, window] }] }
            };
            let opened = turn(self.opened());
            // Only tickets are ahead: until they have died, or the holders have.
            let dead = doc! { "$min": [&opened, ends_of_tickets("$$live", &position)] };
            // The first of the holders has expired. The others may have released by then.
            let changed = turn(earliest("$$held"));
            let beside = doc! { "$cond": [fits(mode, "$$held"), dead, changed] };
            let opens = doc! { "$cond": [{ "$eq": ["$$held", []] }, opened, beside] };
            let until_turn = left(self.if_it_ends(opens));
            let own_end = of_own(EXPIRES_AT, of_lease(EXPIRES_AT));
            let mut found = doc! {
                "granted": &granted,
                "token": of_own(TOKEN_OF, of_lease(TOKEN)),
                "tokens": block_len_of(of_own(BLOCK_OF, self.value(TOKENS).into())),
                "remaining": { "$cond": [&granted, millis_until(own_end), until_turn] },
                "at": "$$at",
                "waiting": { "$size": "$$live" },
                "others": { "$subtract": [{ "$size": "$$held" }, { "$cond": [&granted, 1, 0] }] },
                "now": { "$toLong": "$$NOW" },
                "since": self.first_of_block(),
            };
            if with_document {
                found.insert("document", doc! { "$cond": [&granted, self.without_lease(), "$$REMOVE"] });
            }
            let own = doc! { "$first": { "$filter": { "input": "$$held", "cond": is_own("$$this", &literal(id.as_str())) } } };
            let with_own = doc! { "$let": { "vars": { "own": own }, "in": found } };
            doc! { "$let": { "vars": { "held": self.live_holders() }, "in": with_own } }
        }))
    }
}
