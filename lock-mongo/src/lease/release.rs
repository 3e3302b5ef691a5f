//! Giving up what an acquisition has, and passing it on (R12, R13).

use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken};
use distlock_engine::store::Used;
use mongodb::bson::{Bson, Document, doc};

use super::queue::{HEAD, LIVE, unless_empty};
use super::{
    ACQUIRED_AT, CLOSED_UNTIL, Clock, DROP, EXPIRED, EXPIRES_AT, FREE, LAST_RELEASED, LOCK_ID, Layout, META, OWNER,
    PASS, PASSED, QUEUE, RELEASED, RELEASED_LEN, TOKEN, TOKENS, TTL, answer, first_token, last_token, literal, millis,
    removed, time_of,
};

impl Layout {
    /// One release, or leaving. The own ticket goes first, or a release could grant to the
    /// releaser; then the lease, if it is the acquisition's, is the first waiter's, or nobody's. So
    /// is an expired one that nobody has taken: a renewal that began in time and stalled could
    /// still revive it, for nobody. But that was no release, and is not remembered as one. Changes
    /// nothing if there is neither.
    ///
    /// Tokens of the block that no guard has had are given back (R21): the next grant may have
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

    /// The same of a record that [the acquisition holds](Self::held_record), so that less has to be
    /// found out while the next holder waits.
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
        let somebody_waits = doc! { "$gt": [{ "$size": self.value(LIVE) }, 0] };
        let mut pass = vec![Bson::from(somebody_waits)];
        if let Some(hold) = hold_at_least {
            // R13: while the minimum hold lasts nobody is granted anything.
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
            (RELEASED, self.released_too(id)),
        ];
        let mut freed = self.freed(id, used, closed).to_vec();
        if !is_held {
            freed.push((EXPIRED, in_time(same(EXPIRED), is_lost)));
        }
        let mut change = doc! {};
        for (field, passed) in passed {
            let remembers = matches!(field, LAST_RELEASED | RELEASED);
            let new = |new: Bson, only_in_time: bool| if only_in_time { in_time(new, same(field)) } else { new };
            let gives_back = matches!(field, TOKEN | TOKENS);
            let freed = freed.iter().find(|(freed, _)| *freed == field);
            let freed = freed.map(|(_, freed)| new(freed.clone(), remembers || gives_back));
            let (passed, same) = (new(passed, remembers), same(field));
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

    /// What becomes of the fields if nobody gets the lease, the queue apart. All of them are also
    /// those of a hand-over.
    fn freed(&self, id: &AcquisitionId, used: Used, closed: Bson) -> [(&'static str, Bson); 9] {
        // The latest one, so that the TTL index removes no record that keeps its key closed, or
        // whose token the clock has not reached yet (R6).
        let mut ends = vec![Bson::from("$$NOW")];
        ends.extend(Some(closed.clone()).filter(|closed| *closed != removed()));
        if let Used::UpTo(token) = used {
            ends.push(time_of(number(token)).into());
        }
        let end = if let [end] = &*ends { end.clone() } else { doc! { "$max": ends }.into() };
        let length = if used == Used::Unknown { self.value(TOKENS).into() } else { 1.into() };
        [
            (LOCK_ID, removed()),
            (TOKEN, self.last_used(used)),
            (TOKENS, length),
            (EXPIRES_AT, end),
            (CLOSED_UNTIL, closed),
            (OWNER, removed()),
            (META, removed()),
            (LAST_RELEASED, literal(id.as_str())),
            (RELEASED, self.released_too(id)),
        ]
    }

    /// The short way of [`release`](Self::release), for a lease that
    /// [probably nobody waits for](Self::alone).
    pub(crate) fn free(&self, id: &AcquisitionId, used: Used) -> Vec<Document> {
        let change: Document =
            self.freed(id, used, removed()).into_iter().map(|(field, new)| (self.path(field), new)).collect();
        vec![doc! { "$set": change }]
    }

    /// The last token of the present block that counts as used.
    fn last_used(&self, used: Used) -> Bson {
        match used {
            Used::UpTo(token) => number(token).into(),
            // One, because a grant must be greater than what an answer has told (R18).
            Used::None => self.first_of_block().into(),
            Used::Unknown => self.value(TOKEN).into(),
        }
    }

    /// The record, if the acquisition has the lease unexpired.
    pub(crate) fn held_record(&self, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.record(identity);
        filter.insert(self.path(LOCK_ID), doc! { "$eq": id.as_str() });
        filter.insert("$expr", doc! { "$gt": [self.value(EXPIRES_AT), "$$NOW"] });
        filter
    }

    /// The record, if moreover nobody waits.
    pub(crate) fn alone(&self, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.held_record(identity, id);
        filter.insert(self.path(QUEUE), Bson::Null);
        filter
    }

    /// The [`Released`](super::Released) of the document after [`free`](Self::free) or
    /// [`pass`](Self::pass).
    pub(crate) fn has_been_freed() -> Document {
        // A plain `true` would mean a field of the document.
        answer(doc! { "released": literal(true) })
    }

    /// The [`Released`](super::Released) of the document after [`release`](Self::release): true
    /// also for a repeated one.
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
}

fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}
