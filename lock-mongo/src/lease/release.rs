//! Releases, and the grants that they make to the first waiter (R12, R13).

use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken};
use distlock_engine::store::Used;
use mongodb::bson::{Bson, Document, doc};

use super::queue::{HEAD, LIVE, unless_empty};
use super::{
    ACQUIRED_AT, ANSWER, CLOSED_UNTIL, Clock, DROP, EXPIRED, EXPIRES_AT, FREE, ID, LAST_RELEASED, LOCK_ID, Layout,
    META, OWNER, PASS, PASSED, QUEUE, RELEASED, RELEASED_LEN, TOKEN, TOKENS, TTL, answer, first_token, last_token,
    literal, millis, one_of, removed, time_of,
};

/// What a record keeps of a block of tokens.
struct BlockEnd {
    /// The last token that counts as used.
    token: Bson,
    length: Bson,
    /// When the clock reaches the token, if that may be later than now (R6).
    time: Option<Bson>,
}

impl Layout {
    /// Makes the pipeline of a release. It removes the ticket of the acquisition first, because a
    /// release must not grant to itself. A lease of the acquisition is then granted to the first
    /// waiter, or freed. Without a ticket and a lease nothing changes.
    ///
    /// An expired lease that has no new holder is also granted or freed: a renewal that started in
    /// time and stalled could still revive it without a holder. That is not recorded as a release.
    ///
    /// Tokens of the block that no guard has had are given back (R21), so the next grant may have
    /// them.
    pub(crate) fn release(
        &self,
        id: &AcquisitionId,
        used: Used,
        hold_at_least: Option<Duration>,
        clock: Clock,
    ) -> Vec<Document> {
        self.give_up(id, used, hold_at_least, clock, false)
    }

    /// Makes the pipeline of the short way of [`release`](Self::release), for the filter
    /// [`held_record`](Self::held_record). It computes less while the next holder waits.
    pub(crate) fn pass(
        &self,
        id: &AcquisitionId,
        used: Used,
        hold_at_least: Option<Duration>,
        clock: Clock,
    ) -> Vec<Document> {
        self.give_up(id, used, hold_at_least, clock, true)
    }

    fn give_up(
        &self,
        id: &AcquisitionId,
        used: Used,
        hold_at_least: Option<Duration>,
        clock: Clock,
        is_held: bool,
    ) -> Vec<Document> {
        let closed = hold_at_least.map_or_else(removed, |hold| {
            let until = doc! { "$add": [self.value(ACQUIRED_AT), millis(hold)] };
            doc! { "$cond": [{ "$gt": [until.clone(), "$$NOW"] }, until, "$$REMOVE"] }.into()
        });
        let has_waiter = doc! { "$gt": [{ "$size": self.value(LIVE) }, 0] };
        let mut pass = vec![Bson::from(has_waiter)];
        if let Some(hold) = hold_at_least {
            // R13: there is no grant before the end of the minimum hold.
            let until = doc! { "$add": [self.value(ACQUIRED_AT), millis(hold)] };
            pass.push(doc! { "$lte": [until, "$$NOW"] }.into());
        }
        let steps = if is_held {
            vec![(PASS, doc! { "$and": pass })]
        } else {
            let is_own = doc! { "$eq": [self.value(LOCK_ID), literal(id.as_str())] };
            pass.push(is_own.clone().into());
            vec![(PASS, doc! { "$and": pass }), (FREE, is_own), (DROP, self.has_ticket(id))]
        };
        let findings = [(LIVE, self.others(id)), (HEAD, doc! { "$first": self.value(LIVE) })];

        let head = self.head();
        let rest = doc! { "$slice": [self.value(LIVE), 1, i32::MAX] };
        let others = unless_empty(self.value(LIVE));
        let or_nothing = |value: &str| doc! { "$ifNull": [value, removed()] }.into();
        let in_time = |then: Bson, otherwise: Bson| -> Bson {
            if is_held {
                return then;
            }
            doc! { "$cond": [{ "$gt": [self.value(EXPIRES_AT), "$$NOW"] }, then, otherwise] }.into()
        };
        let same = |field| Bson::from(self.value(field));
        let is_lost = literal(id.as_str());
        let first = first_token(in_time(self.last_used(used), same(TOKEN)), clock);
        let passed = [
            (LOCK_ID, (&*head.id).into()),
            (TOKENS, (&*head.tokens).into()),
            (TOKEN, last_token(first.clone(), &*head.tokens)),
            (PASSED, doc! { "$toLong": first }.into()),
            (ACQUIRED_AT, "$$NOW".into()),
            (EXPIRES_AT, doc! { "$add": ["$$NOW", &head.claim] }.into()),
            (TTL, (&*head.claim).into()),
            (CLOSED_UNTIL, removed()),
            (EXPIRED, in_time(removed(), is_lost.clone())),
            (OWNER, or_nothing(&head.owner)),
            (META, or_nothing(&head.meta)),
            (LAST_RELEASED, literal(id.as_str())),
            (RELEASED, self.released_too(literal(id.as_str()))),
        ];
        let mut freed = self.freed(literal(id.as_str()), self.end_of_block(used), closed).to_vec();
        if !is_held {
            freed.push((EXPIRED, in_time(same(EXPIRED), is_lost)));
        }
        let mut change = doc! {};
        for (field, passed) in passed {
            let records_release = matches!(field, LAST_RELEASED | RELEASED);
            let new = |new: Bson, only_in_time: bool| if only_in_time { in_time(new, same(field)) } else { new };
            let gives_back = matches!(field, TOKEN | TOKENS);
            let freed = freed.iter().find(|(freed, _)| *freed == field);
            let freed = freed.map(|(_, freed)| new(freed.clone(), records_release || gives_back));
            let (passed, same) = (new(passed, records_release), same(field));
            let new = match freed {
                Some(freed) if is_held => self.when(&[(PASS, passed)], freed),
                Some(freed) => self.when(&[(PASS, passed), (FREE, freed)], same),
                None => self.when(&[(PASS, passed)], same),
            };
            change.insert(self.path(field), new);
        }
        let queue = if is_held {
            self.when(&[(PASS, unless_empty(rest))], others)
        } else {
            let same = self.value(QUEUE).into();
            self.when(&[(PASS, unless_empty(rest)), (FREE, others.clone()), (DROP, others)], same)
        };
        change.insert(self.path(QUEUE), queue);
        self.in_steps(findings, steps, change)
    }

    /// The fields of a freed lease, except the queue. A hand-over sets all of these fields, too.
    fn freed(&self, id: Bson, used: BlockEnd, closed: Bson) -> [(&'static str, Bson); 9] {
        // The latest of these times, so that the TTL index removes no record that keeps its key
        // closed, or whose token the clock has not reached yet (R6).
        let mut ends = vec![Bson::from("$$NOW")];
        ends.extend(Some(closed.clone()).filter(|closed| *closed != removed()));
        ends.extend(used.time);
        let end = if let [end] = &*ends { end.clone() } else { doc! { "$max": ends }.into() };
        [
            (LOCK_ID, removed()),
            (TOKEN, used.token),
            (TOKENS, used.length),
            (EXPIRES_AT, end),
            (CLOSED_UNTIL, closed),
            (OWNER, removed()),
            (META, removed()),
            (LAST_RELEASED, id.clone()),
            (RELEASED, self.released_too(id)),
        ]
    }

    /// Returns what becomes of a block of which this much was used.
    fn end_of_block(&self, used: Used) -> BlockEnd {
        let time = if let Used::UpTo(token) = used { Some(time_of(number(token)).into()) } else { None };
        let length = if used == Used::Unknown { self.value(TOKENS).into() } else { 1.into() };
        BlockEnd { token: self.last_used(used), length, time }
    }

    /// Makes the pipeline that frees the leases of
    /// [`all_held_without_waiters`](Self::all_held_without_waiters). Of each block is known which
    /// token was used last, or of all the same less.
    pub(crate) fn free_together(&self, releases: &[(&AcquisitionId, Used)]) -> Vec<Document> {
        let lock_id = self.value(LOCK_ID);
        let last: Option<Vec<i64>> = releases
            .iter()
            .map(|(_, used)| if let Used::UpTo(token) = used { Some(number(*token)) } else { None })
            .collect();
        let used = match last {
            Some(last) => {
                let of_each = |values: Vec<Bson>| {
                    let ids = releases.iter().map(|(id, _)| id.as_str().into()).collect();
                    one_of(values, lock_id.clone(), ids)
                };
                BlockEnd {
                    token: of_each(last.iter().map(|token| (*token).into()).collect()),
                    length: 1.into(),
                    time: Some(of_each(last.iter().map(|token| time_of(*token).into()).collect())),
                }
            }
            None => self.end_of_block(releases.first().map_or(Used::Unknown, |(_, used)| *used)),
        };
        let freed = self.freed(lock_id.into(), used, removed());
        vec![doc! { "$set": freed.into_iter().map(|(field, new)| (self.path(field), new)).collect::<Document>() }]
    }

    /// Makes the pipeline of the short way of [`release`](Self::release), for the filter
    /// [`held_without_waiters`](Self::held_without_waiters).
    pub(crate) fn free(&self, id: &AcquisitionId, used: Used) -> Vec<Document> {
        let change: Document = self
            .freed(literal(id.as_str()), self.end_of_block(used), removed())
            .into_iter()
            .map(|(field, new)| (self.path(field), new))
            .collect();
        vec![doc! { "$set": change }]
    }

    /// Returns the last token of the present block that counts as used.
    fn last_used(&self, used: Used) -> Bson {
        match used {
            Used::UpTo(token) => number(token).into(),
            // One, because a later grant must be greater than the token of any answer (R18).
            Used::None => self.first_of_block().into(),
            Used::Unknown => self.value(TOKEN).into(),
        }
    }

    /// Returns the filter of the record, if the acquisition holds the lease, unexpired.
    pub(crate) fn held_record(&self, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.record(identity);
        filter.insert(self.path(LOCK_ID), doc! { "$eq": id.as_str() });
        filter.insert("$expr", doc! { "$gt": [self.value(EXPIRES_AT), "$$NOW"] });
        filter
    }

    /// Returns the filter of the record, if the acquisition holds the lease, and there is no
    /// ticket.
    pub(crate) fn held_without_waiters(&self, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.held_record(identity, id);
        filter.insert(self.path(QUEUE), Bson::Null);
        filter
    }

    /// Returns the filter of those of the records whose leases these acquisitions hold, unexpired
    /// and without a ticket.
    pub(crate) fn all_held_without_waiters(&self, identities: Vec<Bson>, ids: &[&str]) -> Document {
        let mut filter = self.held_by_any(identities, ids);
        filter.insert("$expr", doc! { "$gt": [self.value(EXPIRES_AT), "$$NOW"] });
        filter.insert(self.path(QUEUE), Bson::Null);
        filter
    }

    /// Projects the document after [`free`](Self::free) or [`pass`](Self::pass) to a
    /// [`Released`](super::Released).
    pub(crate) fn has_been_freed() -> Document {
        // A plain `true` would project a field of the document.
        answer(doc! { "released": literal(true) })
    }

    /// Projects the document after [`release`](Self::release) to a [`Released`](super::Released),
    /// which is also true for a repeated release.
    pub(crate) fn released(&self, id: &AcquisitionId) -> Document {
        answer(doc! { "released": { "$in": [literal(id.as_str()), self.released_before()] } })
    }

    /// The acquisitions that released recently, the last one first.
    fn released_before(&self) -> Document {
        doc! { "$cond": [{ "$isArray": self.value(RELEASED) }, self.value(RELEASED), []] }
    }

    /// Projects a record to the ids of the acquisitions that released last.
    pub(crate) fn releases_remembered(&self) -> Document {
        doc! { ID: 0, ANSWER: self.released_before() }
    }

    fn released_too(&self, id: Bson) -> Bson {
        let all = doc! { "$concatArrays": [[id], self.released_before()] };
        doc! { "$slice": [all, RELEASED_LEN] }.into()
    }
}

fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}
