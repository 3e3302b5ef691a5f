//! Giving up what an acquisition has, and passing it on (R12, R13).

use std::time::Duration;

use distlock_api::store::AcquisitionId;
use mongodb::bson::{Bson, Document, doc};

use super::queue::{HEAD, LIVE, unless_empty};
use super::{
    ACQUIRED_AT, CLOSED_UNTIL, Clock, DROP, EXPIRED, EXPIRES_AT, FREE, LAST_RELEASED, LOCK_ID, Layout, META, OWNER,
    PASS, PASSED, QUEUE, RELEASED, RELEASED_LEN, TOKEN, TOKENS, TTL, answer, first_token, last_token, literal, millis,
    removed,
};

impl Layout {
    /// One release, or leaving. The own ticket goes first, or a release could grant to the releaser; then the lease, if the acquisition holds it unexpired, is
    /// the first waiter's, or nobody's. Changes nothing if there is neither.
    pub(crate) fn release(&self, id: &AcquisitionId, hold_at_least: Option<Duration>, clock: Clock) -> Vec<Document> {
        let closed = hold_at_least.map_or_else(removed, |hold| {
            let until = doc! { "$add": [self.value(ACQUIRED_AT), millis(hold)] };
            doc! { "$cond": [{ "$gt": [until.clone(), "$$NOW"] }, until, "$$REMOVE"] }.into()
        });
        let somebody_waits = doc! { "$gt": [{ "$size": self.value(LIVE) }, 0] };
        let mut pass = vec![Bson::from(self.held_by(id)), somebody_waits.into()];
        if let Some(hold) = hold_at_least {
            // R13: while the minimum hold lasts nobody is granted anything.
            let until = doc! { "$add": [self.value(ACQUIRED_AT), millis(hold)] };
            pass.push(doc! { "$lte": [until, "$$NOW"] }.into());
        }
        let steps = [(PASS, doc! { "$and": pass }), (FREE, self.held_by(id)), (DROP, self.has_ticket(id))];
        let findings = [(LIVE, self.others(id)), (HEAD, doc! { "$first": self.value(LIVE) })];

        let head = self.head();
        let first = first_token(&self.value(TOKEN), clock);
        // The later one, so that the TTL index does not remove a record that keeps its key closed.
        let free = doc! { "$max": ["$$NOW", closed.clone()] };
        let rest = doc! { "$slice": [self.value(LIVE), 1, i32::MAX] };
        let others = unless_empty(self.value(LIVE));
        let or_nothing = |value: &str| doc! { "$ifNull": [value, removed()] }.into();
        let mut change = doc! {};
        for (field, passed, freed) in [
            (LOCK_ID, (&*head.id).into(), removed()),
            (TOKENS, (&*head.tokens).into(), self.value(TOKENS).into()),
            (TOKEN, last_token(first.clone(), &*head.tokens), self.value(TOKEN).into()),
            (PASSED, doc! { "$toLong": first }.into(), self.value(PASSED).into()),
            (ACQUIRED_AT, "$$NOW".into(), self.value(ACQUIRED_AT).into()),
            (EXPIRES_AT, doc! { "$add": ["$$NOW", &head.claim] }.into(), free.into()),
            (TTL, (&*head.claim).into(), self.value(TTL).into()),
            (CLOSED_UNTIL, removed(), closed),
            (EXPIRED, removed(), self.value(EXPIRED).into()),
            (OWNER, or_nothing(&head.owner), removed()),
            (META, or_nothing(&head.meta), removed()),
            (LAST_RELEASED, literal(id.as_str()), literal(id.as_str())),
            (RELEASED, self.released_too(id), self.released_too(id)),
        ] {
            change.insert(self.path(field), self.when(&[(PASS, passed), (FREE, freed)], field));
        }
        let queue = self.when(&[(PASS, unless_empty(rest)), (FREE, others.clone()), (DROP, others)], QUEUE);
        change.insert(self.path(QUEUE), queue);
        self.in_steps(findings, steps, change)
    }

    /// The [`Released`](super::Released) of the document after [`release`](Self::release): true also for a repeated one.
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
