//! The fast paths of a release, and the grants that they make to the first waiter (R12, R13). The
//! full path is in `release_full.rs`.

use std::time::Duration;

use distlock_api::{AcquisitionId, FencingToken, Mode};
use distlock_engine::store::{Claim, Release, Used};
use mongodb::bson::{Bson, Document, doc};

use super::grant_head::RUN;
use super::holders::{BLOCK_OF, GRANTS, HOLDERS, ID_OF, KEPT, MARKER, TOKEN_OF, is_exclusive, require_exclusive};
use super::plan::{ConfirmedBy, Step};
use super::queue::{HEAD, LIVE};
use super::{
    ACQUIRED_AT, ADMIT, ANSWER, CLOSED_UNTIL, Clock, EXPIRED, EXPIRES_AT, ID, LAST_RELEASED, LOCK_ID, Layout, META,
    OWNER, PASS, PASSED, QUEUE, RELEASED, RELEASED_BESIDE_OTHERS, RELEASED_LEN, TOKEN, TOKENS, TTL, absent, answer,
    first_token, is_absent, last_token, literal, millis, one_of, removed, time, time_of, time_of_stored,
};

/// Whom a hand-over may find in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHolders {
    /// Exclusive tickets only; the filter says so. The server then computes no run (R28), which
    /// costs it more than the write.
    Exclusive,
    /// Tickets of every mode.
    OfAnyMode,
}

/// How a lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Exclusively.
    Alone,
    /// In a mode in which others may hold the key beside them (R25).
    Beside,
}

impl Held {
    pub(crate) fn of(mode: Mode) -> Self {
        if mode.is_exclusive() { Self::Alone } else { Self::Beside }
    }
}

/// What a record keeps of a block of tokens.
struct BlockEnd {
    /// The last token that counts as used.
    token: Bson,
    length: Bson,
    /// When the clock reaches the token, which may be later than now (R6).
    time: Bson,
}

/// The end of a minimum hold of a lease that began at this time. No value of another program brings
/// it further than the hold from now (R32).
pub(super) fn end_of_hold(began: impl Into<Bson>, hold: Duration) -> Document {
    doc! { "$add": [{ "$min": [time(began), "$$NOW"] }, millis(hold)] }
}

impl Layout {
    /// Makes the release of a lease without waiters and other holders. The primary's word is enough
    /// (R23).
    pub(crate) fn release_without_waiter(&self, identity: Bson, claim: &Claim) -> Step {
        let held = Held::of(claim.mode());
        let filter = self.all_held_without_waiters(held, vec![identity], &[claim.id().as_str()]);
        let pipeline = self.free_together(held, &[(claim.id(), claim.used())]);
        // A plain `true` would project a field of the document.
        let projection = answer(doc! { "released": literal(true), "is_unused": literal(true) });
        Step { confirmed_by: ConfirmedBy::Primary, ..Step::new(filter, pipeline, projection) }
    }

    /// Makes the hand-over of an exclusive lease to such waiters.
    ///
    /// R23: the waiter's event comes when a majority has the grant. And a roll-back would open the
    /// key before the end of a minimum hold (R13).
    pub(crate) fn hand_over(&self, identity: Bson, release: &Release, next: NextHolders, clock: Clock) -> Step {
        let Release { claim, hold_at_least, .. } = release;
        let filter = self.held_before(next, identity, claim.id());
        let pipeline = self.pass(claim.id(), claim.used(), *hold_at_least, next, clock);
        Step::new(filter, pipeline, answer(doc! { "released": literal(true) }))
    }

    /// Makes the pipeline of a hand-over, for the filter [`held_before`](Self::held_before). An
    /// exclusive lease is granted to the first waiter, and to those after it that fit beside it
    /// (R28), or freed. It computes less while the next holder waits.
    pub(super) fn pass(
        &self,
        id: &AcquisitionId,
        used: Used,
        hold_at_least: Option<Duration>,
        next: NextHolders,
        clock: Clock,
    ) -> Vec<Document> {
        let until = hold_at_least.map(|hold| end_of_hold(self.value(ACQUIRED_AT), hold));
        let closed = until
            .as_ref()
            .map_or_else(removed, |until| doc! { "$cond": [{ "$gt": [until, "$$NOW"] }, until, "$$REMOVE"] }.into());
        let mut may_grant = vec![Bson::from(doc! { "$gt": [{ "$size": self.value(LIVE) }, 0] })];
        // R13: there is no grant before the end of the minimum hold.
        may_grant.extend(until.map(|until| Bson::from(doc! { "$lte": [until, "$$NOW"] })));
        let mut findings = self.found_tickets(Some(&literal(id.as_str()))).to_vec();
        findings.push((HEAD, doc! { "$first": self.value(LIVE) }));
        let mut admit = None;
        if next == NextHolders::OfAnyMode {
            let is_exclusive = is_exclusive(&self.value(HEAD));
            let mut may_admit = may_grant.clone();
            may_admit.push(doc! { "$not": &is_exclusive }.into());
            may_grant.push(is_exclusive.into());
            // No holder is left.
            let run = self.grant_run(None, self.last_used(used), clock);
            findings.push((RUN, doc! { "$cond": [{ "$and": may_admit }, run, "$$REMOVE"] }));
            admit = Some((ADMIT, self.has_run()));
        }
        let steps = [(PASS, doc! { "$and": may_grant })].into_iter().chain(admit);

        let head = self.head();
        let or_nothing = |value: &str| doc! { "$ifNull": [value, removed()] }.into();
        let this = literal(id.as_str());
        let first = first_token(self.last_used(used), clock);
        let of_last = doc! { "$let": {
            "vars": { "last": { "$last": self.of_run("holders") } },
            "in": format!("$$last.{BLOCK_OF}"),
        } };
        let freed = self.freed(this.clone(), self.end_of_block(used), closed);
        let freed = |field: &str| freed.iter().find(|(freed, _)| *freed == field).map(|(_, new)| new.clone());
        let rows: [(&str, Bson, Option<Bson>); 14] = [
            (LOCK_ID, (&*head.id).into(), Some(MARKER.into())),
            (HOLDERS, removed(), Some(self.of_run("holders").into())),
            (GRANTS, removed(), Some(self.of_run(GRANTS).into())),
            (TOKENS, head.tokens.clone().into(), Some(of_last.into())),
            (TOKEN, last_token(first.clone(), head.tokens), Some(self.of_run("last").into())),
            (PASSED, doc! { "$toLong": first }.into(), Some(removed())),
            (ACQUIRED_AT, "$$NOW".into(), None),
            (EXPIRES_AT, doc! { "$add": ["$$NOW", &head.claim] }.into(), Some(self.end_of_run().into())),
            (TTL, head.claim.into(), None),
            (CLOSED_UNTIL, removed(), Some(removed())),
            (EXPIRED, removed(), None),
            (OWNER, or_nothing(&head.owner), Some(removed())),
            (META, or_nothing(&head.meta), Some(removed())),
            (QUEUE, self.queue_after_head(), Some(self.queue_after_run())),
        ];
        let mut change = doc! {};
        for (field, passed, admitted) in rows {
            let otherwise = match field {
                QUEUE => self.live_queue(),
                field => freed(field).unwrap_or_else(|| self.value(field).into()),
            };
            let admitted = admitted.filter(|_| next == NextHolders::OfAnyMode).map(|admitted| (ADMIT, admitted));
            let steps: Vec<(&str, Bson)> = [(PASS, passed)].into_iter().chain(admitted).collect();
            change.insert(self.path(field), self.when(&steps, otherwise));
        }
        change.insert(self.path(LAST_RELEASED), this.clone());
        change.insert(self.path(RELEASED), self.released_too(this, RELEASED_LEN));
        self.in_steps(findings, steps, change)
    }

    /// The fields of a freed lease, except the queue. A hand-over sets all of these fields, too.
    fn freed(&self, id: Bson, used: BlockEnd, closed: Bson) -> [(&'static str, Bson); 11] {
        // The latest of these times, so that the TTL index removes no record that keeps its key
        // closed, or whose token the clock has not reached yet (R6).
        let mut ends = vec![Bson::from("$$NOW"), used.time];
        ends.extend(Some(closed.clone()).filter(|closed| *closed != removed()));
        let end = doc! { "$max": ends }.into();
        [
            (LOCK_ID, removed()),
            // Beside an exclusive lease a process without modes has left them behind (R25).
            (HOLDERS, removed()),
            (GRANTS, removed()),
            (TOKEN, used.token),
            (TOKENS, used.length),
            (EXPIRES_AT, end),
            (CLOSED_UNTIL, closed),
            (OWNER, removed()),
            (META, removed()),
            (LAST_RELEASED, id.clone()),
            (RELEASED, self.released_too(id, RELEASED_LEN)),
        ]
    }

    /// Returns what becomes of a block of which this much was used.
    fn end_of_block(&self, used: Used) -> BlockEnd {
        let token = self.last_used(used);
        let time = match used {
            Used::UpTo(token) => time_of(number(token)).into(),
            // It may be ahead of the clock because of earlier blocks, or of a floor.
            Used::None | Used::Unknown => time_of_stored(token.clone()).into(),
        };
        let length = if used == Used::Unknown { self.value(TOKENS).into() } else { 1.into() };
        BlockEnd { token, length, time }
    }

    /// Makes the pipeline that frees the leases of the filter
    /// [`all_held_without_waiters`](Self::all_held_without_waiters). Of each block is known which
    /// token was used last, or of all the same less.
    pub(crate) fn free_together(&self, held: Held, releases: &[(&AcquisitionId, Used)]) -> Vec<Document> {
        let id = self.id_of(held);
        let last: Option<Vec<i64>> = releases
            .iter()
            .map(|(_, used)| if let Used::UpTo(token) = used { Some(number(*token)) } else { None })
            .collect();
        let used = match last {
            Some(last) => {
                let of_each = |values: Vec<Bson>| {
                    let ids = releases.iter().map(|(id, _)| id.as_str().into()).collect();
                    one_of(values, id.clone(), ids)
                };
                BlockEnd {
                    token: of_each(last.iter().map(|token| (*token).into()).collect()),
                    length: 1.into(),
                    time: of_each(last.iter().map(|token| time_of(*token).into()).collect()),
                }
            }
            None => self.end_of_block(releases.first().map_or(Used::Unknown, |(_, used)| *used)),
        };
        let mut freed = Vec::from(self.freed(id.clone(), used, removed()));
        if held == Held::Beside {
            freed.push((RELEASED, self.released_too(id, RELEASED_BESIDE_OTHERS)));
        }
        vec![doc! { "$set": freed.into_iter().map(|(field, new)| (self.path(field), new)).collect::<Document>() }]
    }

    /// The acquisition that holds the lease, if it is the only one.
    fn id_of(&self, held: Held) -> Bson {
        match held {
            Held::Alone => self.value(LOCK_ID).into(),
            Held::Beside => self.of_first_holder(ID_OF).into(),
        }
    }

    fn of_first_holder(&self, field: &str) -> Document {
        doc! { "$arrayElemAt": [self.value(&format!("{HOLDERS}.{field}")), 0] }
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

    /// Returns the filter of the record, if the acquisition holds the lease, unexpired, and such
    /// waiters only have tickets.
    pub(crate) fn held_before(&self, next: NextHolders, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.held_record(identity, id);
        if next == NextHolders::Exclusive {
            // Dead tickets included.
            require_exclusive(&mut filter, &self.path(QUEUE));
        }
        filter
    }

    /// Returns the filter of those of the records whose leases these acquisitions hold, unexpired,
    /// each without another holder and without a ticket. In a mode that is not exclusive their
    /// blocks are also the records' latest (R30).
    pub(crate) fn all_held_without_waiters(&self, held: Held, identities: Vec<Bson>, ids: &[&str]) -> Document {
        let mut filter = self.records(identities);
        filter.insert(self.path(QUEUE), absent());
        match held {
            Held::Alone => {
                filter.insert(self.path(LOCK_ID), doc! { "$in": ids });
                filter.insert("$expr", doc! { "$gt": [self.value(EXPIRES_AT), "$$NOW"] });
            }
            Held::Beside => {
                let is_own = doc! { ID_OF: { "$in": ids }, KEPT: { "$ne": true } };
                filter.insert(self.path(LOCK_ID), MARKER);
                filter.insert(self.path(HOLDERS), doc! { "$size": 1, "$elemMatch": is_own });
                let is_in_time = doc! { "$gt": [self.of_first_holder(EXPIRES_AT), "$$NOW"] };
                let is_latest = doc! { "$eq": [self.of_first_holder(TOKEN_OF), self.value(TOKEN)] };
                filter.insert("$expr", doc! { "$and": [is_in_time, is_latest] });
            }
        }
        filter
    }

    /// Projects the document after [`release`](Self::release) to a [`Released`](super::Released),
    /// which is also true for a repeated release.
    pub(crate) fn released(&self, id: &AcquisitionId) -> Document {
        let is_unused = [LOCK_ID, CLOSED_UNTIL, QUEUE].map(|field| is_absent(self.value(field)));
        answer(doc! {
            "released": { "$in": [literal(id.as_str()), self.released_before()] },
            "is_unused": { "$and": is_unused.to_vec() },
        })
    }

    /// The acquisitions that released recently, the last one first.
    fn released_before(&self) -> Document {
        let released = doc! { "$slice": [self.value(RELEASED), RELEASED_BESIDE_OTHERS] };
        doc! { "$cond": [{ "$isArray": self.value(RELEASED) }, released, []] }
    }

    /// Projects a record to the ids of the acquisitions that released last.
    pub(crate) fn releases_remembered(&self) -> Document {
        doc! { ID: 0, ANSWER: self.released_before() }
    }

    /// The acquisitions that released recently, with this one before the others.
    pub(super) fn released_too(&self, id: Bson, at_most: i32) -> Bson {
        let all = doc! { "$concatArrays": [[id], self.released_before()] };
        doc! { "$slice": [all, at_most] }.into()
    }
}

pub(super) fn number(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}
