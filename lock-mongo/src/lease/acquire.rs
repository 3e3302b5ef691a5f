//! Acquisitions (R8, R9).

use std::time::Duration;

use distlock_api::AcquisitionId;
use distlock_engine::store::Attempt;
use mongodb::bson::{Bson, Document, doc};

use super::bound::{LATE, is_in_time};
use super::grant_fields::Block;
use super::holders::{HOLDERS, ID_OF, MARKER, SHARED, TAKES, TOKEN_OF};
use super::plan::Step;
use super::queue::{POSITION, block};
use super::{
    CLOSED_UNTIL, Clock, EXPIRES_AT, EXTEND, ID, LOCK_ID, Layout, QUEUE, TAKE, TOKEN, TTL, WAIT, absent, answer,
    later_by, literal, millis, millis_until, one_of, removed,
};

/// Where the tokens of a batch come from (R24).
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchTokens {
    /// Every block begins with this one. Records that have reached it are left out.
    From(i64),
    /// From each record and the clock, as those of a single attempt (R5).
    Clock(Clock),
}

impl Layout {
    /// Makes the pipeline of one attempt to acquire (R8). It is an upsert: without a document the
    /// lease is free and has no waiter.
    ///
    /// An attempt that neither takes the lease nor a ticket leaves the record as it is, dead
    /// tickets included, so that the server writes nothing.
    pub(crate) fn acquire(&self, attempt: &Attempt, clock: Clock) -> Vec<Document> {
        let (id, ttl) = (attempt.claim.id(), attempt.ttl);
        if !attempt.claim.mode().is_exclusive() {
            return self.join(attempt, clock);
        }
        let mut steps = vec![
            (EXTEND, self.held_by(id)),
            (TAKE, doc! { "$and": [self.is_free(), self.is_turn(attempt.turn_window)] }),
        ];
        if let Some(ticket) = &attempt.ticket {
            steps.push((WAIT, self.may_wait(id, ticket)));
        }
        let mut change = doc! {};
        let taken = self.taken_alone(attempt, literal(id.as_str()), self.next_block(attempt, clock).last);
        for (field, new) in taken.into_iter().chain(self.taken_over()) {
            let extended: Option<Bson> = match field {
                TTL => Some(millis(ttl).into()),
                // R3: an extension never shortens.
                EXPIRES_AT => Some(doc! { "$max": [self.value(EXPIRES_AT), later_by(ttl)] }.into()),
                _ => None,
            };
            let steps: Vec<(&str, Bson)> = [(TAKE, new)].into_iter().chain(extended.map(|new| (EXTEND, new))).collect();
            change.insert(self.path(field), self.when(&steps, self.value(field).into()));
        }
        change.insert(self.path(QUEUE), self.queue_after(attempt));
        let findings = self.found_tickets(None).into_iter().chain([(POSITION, self.position(id))]);
        self.in_steps(findings, steps, change)
    }

    /// The queue after an attempt, by its decision.
    pub(super) fn queue_after(&self, attempt: &Attempt) -> Bson {
        let waiting = attempt.ticket.as_ref().map(|ticket| (WAIT, self.queue_with(attempt, ticket)));
        let queue: Vec<(&str, Bson)> =
            waiting.into_iter().chain([(TAKE, self.queue_without(attempt.claim.id()))]).collect();
        self.when(&queue, self.value(QUEUE).into())
    }

    /// Makes the fast path of [`acquire`](Self::acquire): a grant without a condition, of a record
    /// without holder, ticket and minimum hold (R7), or a new one.
    ///
    /// A condition in the filter spares the server the expressions for all other cases. In those
    /// cases the insertion collides with the record.
    pub(crate) fn acquire_if_unused(&self, identity: Bson, attempt: &Attempt, clock: Clock) -> Step {
        let id = literal(attempt.claim.id().as_str());
        let pipeline = self.take_as(attempt, id, self.next_block(attempt, clock));
        let projection = answer(doc! {
            // A plain number or `true` would project a field of the document.
            "granted": literal(true),
            "token": self.value(TOKEN),
            "tokens": literal(block(attempt)),
            "remaining": literal(millis(attempt.ttl)),
            "at": literal(-1_i64),
            "waiting": literal(0_i64),
            "now": { "$toLong": "$$NOW" },
        });
        Step { upsert: true, ..Step::new(self.without_use(self.record(identity)), pipeline, projection) }
    }

    fn take_as(&self, attempt: &Attempt, id: Bson, block: Block) -> Vec<Document> {
        let taken = self.taken(attempt, id, block).into_iter().map(|(field, new)| (self.path(field), new));
        // The upsert of a new record has written the null of the filter.
        let change: Document = taken.chain([(self.path(QUEUE), removed())]).collect();
        vec![doc! { "$set": change }]
    }

    /// Makes the pipeline of several attempts with the same mode and equal terms, the first one's
    /// (R24): as [`acquire_if_unused`](Self::acquire_if_unused), for records with these identities.
    /// The condition is in the filter, [`all_unused`](Self::all_unused).
    pub(crate) fn take_together(
        &self,
        attempts: &[&Attempt],
        identities: &[Bson],
        tokens: BatchTokens,
    ) -> Vec<Document> {
        let ids = attempts.iter().map(|attempt| attempt.claim.id().as_str().into()).collect();
        let id = one_of(ids, format!("${ID}"), identities.to_vec());
        self.take_as(attempts[0], id, self.block_in_batch(attempts[0], tokens))
    }

    /// Makes the pipeline of several attempts with equal terms, the first one's (R24), for keys
    /// without records. It inserts records with these identities into a collection, as
    /// [`take_together`](Self::take_together) changes them. From the time `bound` on it fails with
    /// the text [`LATE`]. If there are documents already, it leaves them as they are and fails.
    pub(crate) fn take_new(
        &self,
        attempts: &[&Attempt],
        identities: &[Bson],
        tokens: BatchTokens,
        bound: Duration,
        collection: &str,
    ) -> Vec<Document> {
        const NEW: &str = "new";
        let new = attempts.iter().zip(identities);
        let new = new.map(|(attempt, identity)| doc! { ID: identity, NEW: attempt.claim.id().as_str() }.into());
        // A pipeline can only fail by a conversion. That of a constant would always fail.
        let refusal = doc! { "$toLong": { "$concat": [LATE, format!("${NEW}")] } };
        let taken = self.taken(attempts[0], format!("${NEW}").into(), self.block_in_batch(attempts[0], tokens));
        let change: Document = taken.into_iter().map(|(field, new)| (self.path(field), new)).collect();
        vec![
            doc! { "$documents": literal(new.collect::<Vec<Bson>>()) },
            doc! { "$match": { "$expr": { "$cond": [is_in_time(bound), true, refusal] } } },
            doc! { "$set": change },
            doc! { "$unset": NEW },
            doc! { "$merge": { "into": collection, "on": ID, "whenMatched": "fail", "whenNotMatched": "insert" } },
        ]
    }

    /// The block that a batch grants.
    fn block_in_batch(&self, attempt: &Attempt, tokens: BatchTokens) -> Block {
        match tokens {
            BatchTokens::From(first) => Block { first: first.into(), last: last_of(first, attempt).into() },
            BatchTokens::Clock(clock) => self.next_block(attempt, clock),
        }
    }

    /// Returns the filter of the records that one of these acquisitions holds, exclusively or
    /// beside others.
    pub(crate) fn held_by_any(&self, identities: Vec<Bson>, ids: &[&str]) -> Document {
        let mut filter = self.records(identities);
        let alone = doc! { self.path(LOCK_ID): { "$in": ids } };
        let beside = doc! { self.path(LOCK_ID): MARKER, format!("{}.{ID_OF}", self.path(HOLDERS)): { "$in": ids } };
        filter.insert("$or", vec![alone, beside]);
        filter
    }

    /// Projects a document after [`take_together`](Self::take_together) to the
    /// [`TakenTogether`](super::TakenTogether) of these acquisitions, with the document itself for
    /// those `with_document`.
    pub(crate) fn taken_together(&self, ids: &[&str], with_document: &[&str]) -> Document {
        let texts = |ids: &[&str]| ids.iter().copied().map(literal).collect::<Vec<Bson>>();
        let is_one = doc! { "$in": [format!("$$this.{ID_OF}"), texts(ids)] };
        let of_several = doc! { "$first": { "$filter": { "input": self.holders(), "cond": is_one } } };
        let alone =
            doc! { ID_OF: self.value(LOCK_ID), TOKEN_OF: self.value(TOKEN), EXPIRES_AT: self.value(EXPIRES_AT) };
        let own = doc! { "$cond": [self.has_marker(), of_several, alone] };
        let mut taken = doc! {
            "id": format!("$$own.{ID_OF}"),
            "token": format!("$$own.{TOKEN_OF}"),
            "remaining": { "$subtract": [format!("$$own.{EXPIRES_AT}"), "$$NOW"] },
            "now": { "$toLong": "$$NOW" },
        };
        if !with_document.is_empty() {
            let is_wanted = doc! { "$in": [format!("$$own.{ID_OF}"), texts(with_document)] };
            taken.insert("document", doc! { "$cond": [is_wanted, self.without_lease(), "$$REMOVE"] });
        }
        answer(doc! { "$let": { "vars": { "own": own }, "in": taken } })
    }

    /// Returns the filter of those of the records that are without holder, ticket and minimum hold,
    /// and have had none of these tokens, while the server's clock is before `bound` (R24). A
    /// document that was never locked counts as such a record, unless it has nothing but its `_id`:
    /// such a one counts as missing.
    pub(crate) fn all_unused(&self, identities: &[Bson], tokens: BatchTokens, bound: Duration) -> Document {
        let mut unused = self.without_use(self.if_record(doc! {}));
        if let BatchTokens::From(first) = tokens {
            unused.get_document_mut(self.path(TOKEN)).expect("every record has a token").insert("$lt", first);
        }
        let mut filter = doc! { ID: { "$in": identities } };
        match self.sub_document() {
            Some(whole) => {
                let is_bare = doc! { "$eq": ["$$ROOT", { ID: format!("${ID}") }] };
                let never_locked = doc! { whole: { "$exists": false }, "$expr": { "$not": [is_bare] } };
                filter.extend(doc! { "$or": [never_locked, unused] });
            }
            None => filter.extend(unused),
        }
        filter.insert("$expr", is_in_time(bound));
        filter
    }

    fn without_use(&self, mut filter: Document) -> Document {
        filter.extend([LOCK_ID, QUEUE, CLOSED_UNTIL].map(|field| (self.path(field), absent().into())));
        filter
    }

    /// Projects the document after [`acquire`](Self::acquire) to an
    /// [`AcquireReply`](super::AcquireReply), with the document itself if `with_document` is set
    /// and the lease is granted.
    pub(crate) fn acquisition(&self, attempt: &Attempt, with_document: bool) -> Document {
        if !attempt.claim.mode().is_exclusive() {
            return self.joined(attempt, with_document);
        }
        let id = attempt.claim.id();
        answer(with_tickets(self, id, |position| {
            let mut found = doc! {
                "granted": self.held_by(id),
                "token": self.value(TOKEN),
                "tokens": self.block_len(),
                "remaining": { "$cond": [
                    self.held_by(id),
                    millis_until(self.value(EXPIRES_AT)),
                    self.until_turn(position, attempt.turn_window),
                ] },
                "at": "$$at",
                "waiting": { "$size": "$$live" },
                // An exclusive ticket has none of these fields.
                "met_modes": { "$or": [
                    self.has_marker(),
                    { "$ne": [format!("$$live.{SHARED}"), []] },
                    { "$ne": [format!("$$live.{TAKES}"), []] },
                ] },
                "now": { "$toLong": "$$NOW" },
                "since": self.first_of_block(),
            };
            if with_document {
                found.insert("document", doc! { "$cond": [self.held_by(id), self.without_lease(), "$$REMOVE"] });
            }
            found
        }))
    }
}

/// The last token of an attempt's block that begins with `first`.
pub(crate) fn last_of(first: i64, attempt: &Attempt) -> i64 {
    first.saturating_add(i64::from(block(attempt)) - 1)
}

/// Makes an answer that can use `$$live`, the live tickets, `$$at`, the index of the acquisition
/// among them or -1, and its position.
pub(super) fn with_tickets(layout: &Layout, id: &AcquisitionId, answer: impl FnOnce(Document) -> Document) -> Document {
    let position = doc! { "$cond": [{ "$gte": ["$$at", 0] }, "$$at", { "$size": "$$live" }] };
    doc! { "$let": {
        "vars": { "live": layout.live_tickets() },
        "in": { "$let": {
            "vars": { "at": { "$indexOfArray": ["$$live.id", literal(id.as_str())] } },
            "in": answer(position),
        } },
    } }
}
