//! The full path of a release: it decides by the state of the record what the acquisition has, and
//! what becomes of the key (R12, R25–R30).

use std::time::Duration;

use distlock_api::{AcquisitionId, Mode};
use distlock_engine::store::{Claim, Release, Used};
use mongodb::bson::{Bson, Document, doc};

use super::grant_head::RUN;
use super::holders::{
    BLOCK_OF, GRANTS, HOLDERS, ID_OF, KEPT, MARKER, TOKEN_OF, ids_of, is_exclusive, is_live, is_own, latest,
    mode_fields, require_exclusive, unless_blank,
};
use super::plan::Step;
use super::queue::{HEAD, LIVE};
use super::release_fast::{NextHolders, end_of_hold, number};
use super::{
    ACQUIRED_AT, ADMIT, CLOSED_UNTIL, Clock, DROP, EXPIRED, EXPIRES_AT, FREE, ID, LAST_RELEASED, LEAVE, LOCK_ID,
    Layout, META, OWNER, PASS, PASSED, QUEUE, RELEASED, RELEASED_BESIDE_OTHERS, RELEASED_LEN, TOKEN, TOKENS, TTL,
    first_of, first_token, last_token, literal, one_of, removed, time_of_stored,
};

/// All holders: those beside the marker, or the acquisition itself as if it were one of them, if it
/// holds the lease alone.
const ALL: &str = "step.all";
/// The holder that releases.
const OWN: &str = "step.own";
/// The live holders that stay.
const REST: &str = "step.rest";
/// The key's last token, after the return of unused ones.
const LAST: &str = "step.last";
/// The ids of those whose leases have expired, in one text.
const LOST: &str = "step.lost";

/// The id of the acquisition that leaves, if each record has another.
const LEAVER: &str = "step.leaver";

/// A release, as the full path sees it.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    who: Leaver,
    mode: Mode,
    used: LastUsed,
    hold_at_least: Option<Duration>,
}

/// Which acquisition leaves a record.
#[derive(Clone, Debug)]
enum Leaver {
    One(AcquisitionId),
    /// Of each of the records with these identities, in the same order.
    OneEach {
        ids: Vec<Bson>,
        identities: Vec<Bson>,
    },
}

/// The last token of the acquisition's block that counts as used, see [`Used`].
#[derive(Clone, Debug)]
enum LastUsed {
    Unknown,
    First,
    Token(Bson),
}

impl Leaving {
    pub(crate) fn new(id: &AcquisitionId, mode: Mode, used: Used, hold_at_least: Option<Duration>) -> Self {
        let used = match used {
            Used::Unknown => LastUsed::Unknown,
            Used::None => LastUsed::First,
            Used::UpTo(token) => LastUsed::Token(number(token).into()),
        };
        Self { who: Leaver::One(id.clone()), mode, used, hold_at_least }
    }

    /// Makes a release of several acquisitions without a minimum hold, of different records. They
    /// have the first one's mode, and the same is known of their tokens.
    pub(crate) fn together(claims: &[&Claim], identities: &[Bson]) -> Self {
        let ids = claims.iter().map(|claim| claim.id().as_str().into()).collect();
        let last: Option<Vec<Bson>> = claims
            .iter()
            .map(|claim| if let Used::UpTo(token) = claim.used() { Some(number(token).into()) } else { None })
            .collect();
        let used = match (last, claims[0].used()) {
            (Some(last), _) => LastUsed::Token(one_of(last, format!("${ID}"), identities.to_vec())),
            (None, Used::None) => LastUsed::First,
            (None, Used::Unknown | Used::UpTo(_)) => LastUsed::Unknown,
        };
        let who = Leaver::OneEach { ids, identities: identities.to_vec() };
        Self { who, mode: claims[0].mode(), used, hold_at_least: None }
    }
}

/// The conditions of a release.
struct Conditions {
    /// Whether the acquisition is a holder, expired or not.
    has_own: Document,
    /// Whether it has not expired.
    is_in_time: Document,
    /// Whether its block is also the key's latest (R30).
    is_latest: Document,
    /// Whether it stays for the rest of its minimum hold; `None` if it never does.
    is_kept: Option<Document>,
    /// Until when the key stays closed, if the acquisition is exclusive and has a minimum hold.
    closes: Option<Document>,
}

impl Layout {
    /// Makes the release of a shared lease that leaves the others, or grants to the exclusive
    /// waiter if there are none.
    pub(crate) fn leave(&self, identity: Bson, release: &Release, clock: Clock) -> Step {
        self.released_by(self.held_beside(identity, release.claim.id()), release, NextHolders::Exclusive, clock)
    }

    /// Makes the full path of a release.
    pub(crate) fn release_full(&self, identity: Bson, release: &Release, clock: Clock) -> Step {
        self.released_by(self.record(identity), release, NextHolders::OfAnyMode, clock)
    }

    fn released_by(&self, filter: Document, release: &Release, next: NextHolders, clock: Clock) -> Step {
        let Release { claim, hold_at_least, .. } = release;
        let leaving = Leaving::new(claim.id(), claim.mode(), claim.used(), *hold_at_least);
        Step::new(filter, self.release(&leaving, next, clock), self.released(claim.id()))
    }

    /// Makes the pipeline of a release. It removes the ticket of the acquisition first, because a
    /// release must not grant to itself. Then it removes the acquisition from the holders. If none
    /// is left, the lease is granted to the first waiter and to those after it that fit beside it,
    /// or freed. Otherwise it is granted to those at the head of the queue that fit beside the
    /// holders that are left (R28). That is also done if the acquisition only had a ticket: those
    /// behind it may fit. Without a ticket and a lease nothing changes.
    ///
    /// An expired lease that has no new holder is also granted or freed: a renewal that started in
    /// time and stalled could still revive it without a holder. That is not recorded as a release.
    ///
    /// Tokens of the block that no guard has had are given back (R21), so the next grant may have
    /// them, but only if no other block was granted since (R30).
    ///
    /// Before [`NextHolders::Exclusive`] this is the fast path of a holder beside others, for the
    /// filter [`held_beside`](Self::held_beside): it grants to no one that would join the holders,
    /// and does nothing if the head of the queue is one of these after all.
    pub(crate) fn release(&self, leaving: &Leaving, next: NextHolders, clock: Clock) -> Vec<Document> {
        let (id, leaver) = match &leaving.who {
            Leaver::One(id) => (literal(id.as_str()), None),
            Leaver::OneEach { ids, identities } => {
                let leaver = one_of(ids.clone(), format!("${ID}"), identities.clone());
                (self.value(LEAVER).into(), Some((LEAVER, doc! { "$ifNull": [leaver, Bson::Null] })))
            }
        };
        let of_any_mode = next == NextHolders::OfAnyMode;
        let (rest, live, head) = (self.value(REST), self.value(LIVE), self.value(HEAD));
        let is = self.conditions(leaving);
        let has_own = is.has_own.clone();

        let stays = doc! { "$and": [is_live("$$this"), { "$not": is_own("$$this", &id) }] };
        let others = filter(self.value(ALL), stays);
        let rest_found = match (&is.is_kept, leaving.hold_at_least) {
            (Some(is_kept), Some(hold)) => {
                let until = end_of_hold(self.of_own(ACQUIRED_AT), hold);
                let kept = doc! { "$mergeObjects": [self.value(OWN), { KEPT: true, EXPIRES_AT: until }] };
                doc! { "$concatArrays": [others, { "$cond": [is_kept, [kept], []] }] }
            }
            _ => others,
        };
        let unused: Bson = match &leaving.used {
            LastUsed::Token(token) => token.clone(),
            // One, because a later grant must be greater than the token of any answer (R18).
            LastUsed::First => first_of(self.of_own(TOKEN_OF), self.of_own(BLOCK_OF)).into(),
            LastUsed::Unknown => self.value(TOKEN).into(),
        };
        // R13: there is no grant before the end of the minimum hold.
        let opens = is.closes.as_ref().map(|until| Bson::from(doc! { "$lte": [until, "$$NOW"] }));
        let has_waiter = doc! { "$ne": [&live, []] };
        let mut may_pass: Vec<Bson> = vec![
            has_own.clone().into(),
            has_waiter.clone().into(),
            is_exclusive(&head).into(),
            doc! { "$eq": [&rest, []] }.into(),
        ];
        may_pass.extend(opens.clone());
        let was_held = doc! { "$ne": [format!("$$this.{KEPT}"), true] };
        let expired = filter(self.value(ALL), doc! { "$and": [was_held, { "$not": is_live("$$this") }] });
        let all = if of_any_mode { self.all_holders(&id, leaving.mode) } else { self.holders() };
        let mut findings: Vec<_> = leaver.into_iter().chain(self.found_tickets(Some(&id))).collect();
        findings.extend([
            (HEAD, doc! { "$first": &live }),
            (ALL, all),
            (OWN, doc! { "$first": filter(self.value(ALL), is_own("$$this", &id)) }),
            (REST, rest_found),
            (LAST, doc! { "$cond": [&is.is_latest, unused, self.value(TOKEN)] }),
            (LOST, ids_of(expired)),
        ]);
        let mut may_leave = vec![Bson::from(has_own)];
        let mut steps = vec![(PASS, doc! { "$and": may_pass })];
        if of_any_mode {
            let mut may_admit: Vec<Bson> = vec![
                has_waiter.into(),
                doc! { "$not": is_exclusive(&head) }.into(),
                doc! { "$or": [&may_leave[0], { "$ne": [&rest, []] }] }.into(),
            ];
            may_admit.extend(opens);
            let run = self.grant_run(Some(&rest), self.value(LAST), clock);
            findings.push((RUN, doc! { "$cond": [{ "$and": may_admit }, run, "$$REMOVE"] }));
            steps.push((ADMIT, self.has_run()));
        } else {
            may_leave.push(doc! { "$or": [{ "$not": has_waiter }, is_exclusive(&head)] }.into());
        }
        let may_free = doc! { "$and": may_leave.clone() };
        may_leave.push(doc! { "$ne": [&rest, []] }.into());
        steps.extend([(LEAVE, doc! { "$and": may_leave }), (FREE, may_free)]);
        if of_any_mode {
            steps.push((DROP, self.has_ticket(&id)));
        }
        let made: Vec<&str> = steps.iter().map(|(step, _)| *step).collect();
        let change = self.left(leaving, id, &is, &made, clock);
        self.in_steps(findings, steps, change)
    }

    /// Returns the filter of the record, if the acquisition holds the lease beside others, and the
    /// first ticket is exclusive, or there is none.
    pub(super) fn held_beside(&self, identity: Bson, id: &AcquisitionId) -> Document {
        let mut filter = self.record(identity);
        filter.insert(self.path(LOCK_ID), MARKER);
        filter.insert(
            self.path(HOLDERS),
            doc! { "$elemMatch": { ID_OF: { "$eq": id.as_str() }, KEPT: { "$ne": true } } },
        );
        require_exclusive(&mut filter, &format!("{}.0", self.path(QUEUE)));
        filter.insert("$expr", doc! { "$gt": [self.value(EXPIRES_AT), "$$NOW"] });
        filter
    }

    /// Returns the filter of those of the records in which one of the acquisitions has a lease,
    /// expired or not, or a ticket. [`release`](Self::release) changes no other record.
    pub(crate) fn records_with(&self, identities: Vec<Bson>, ids: &[&str]) -> Document {
        let mut filter = self.records(identities);
        let places = [LOCK_ID.to_owned(), format!("{HOLDERS}.{ID_OF}"), format!("{QUEUE}.{ID_OF}")];
        filter.insert("$or", places.map(|place| doc! { self.path(&place): { "$in": ids } }).to_vec());
        filter
    }

    fn conditions(&self, Leaving { mode, hold_at_least, .. }: &Leaving) -> Conditions {
        let is_in_time = doc! { "$gt": [self.of_own(EXPIRES_AT), "$$NOW"] };
        let until = hold_at_least.map(|hold| end_of_hold(self.of_own(ACQUIRED_AT), hold));
        let (closes, kept_until) = if mode.is_exclusive() { (until, None) } else { (None, until) };
        Conditions {
            // An object is above every number, and one that is missing below.
            has_own: doc! { "$gt": [self.value(OWN), 0] },
            is_latest: doc! { "$and": [&is_in_time, { "$eq": [self.of_own(TOKEN_OF), self.value(TOKEN)] }] },
            is_kept: kept_until.map(|until| doc! { "$and": [&is_in_time, { "$gt": [until, "$$NOW"] }] }),
            closes,
            is_in_time,
        }
    }

    /// All holders, and the acquisition itself if it holds the lease exclusively, or by a grant of
    /// a process that knows no modes.
    fn all_holders(&self, id: &Bson, mode: Mode) -> Document {
        let mut alone = doc! {
            ID_OF: self.value(LOCK_ID),
            TOKEN_OF: self.value(TOKEN),
            BLOCK_OF: self.block_len(),
        };
        for field in [ACQUIRED_AT, EXPIRES_AT, TTL, OWNER, META] {
            alone.insert(field, self.value(field));
        }
        alone.extend(mode_fields(mode));
        let holds_alone = doc! { "$eq": [self.value(LOCK_ID), id] };
        doc! { "$cond": [holds_alone, [alone], self.holders()] }
    }

    /// The changes of a release, by what it does: one of the steps that are `made`.
    fn left(&self, leaving: &Leaving, this: Bson, is: &Conditions, made: &[&str], clock: Clock) -> Document {
        let (head, rest) = (self.head(), self.value(REST));
        let same = |field: &str| Bson::from(self.value(field));
        let or_nothing = |value: &str| Bson::from(doc! { "$ifNull": [value, removed()] });
        let first = first_token(self.value(LAST), clock);

        let closed: Bson = is
            .closes
            .as_ref()
            .map_or_else(removed, |until| doc! { "$cond": [{ "$gt": [until, "$$NOW"] }, until, "$$REMOVE"] }.into());
        // R6: not before the time of the token.
        let ends = vec![Bson::from("$$NOW"), closed.clone(), time_of_stored(self.value(LAST)).into()];
        let length = match leaving.used {
            LastUsed::Unknown => same(TOKENS),
            LastUsed::First | LastUsed::Token(_) => doc! { "$cond": [&is.is_latest, 1, same(TOKENS)] }.into(),
        };
        let of_last = doc! { "$let": {
            "vars": { "last": { "$last": self.of_run("holders") } },
            "in": format!("$$last.{BLOCK_OF}"),
        } };
        let lost = |otherwise: Bson| unless_blank(self.value(LOST), otherwise);
        let released = doc! { "$and": [&is.has_own, &is.is_in_time] };
        let if_released = |new: Bson, field: &str| Bson::from(doc! { "$cond": [&released, new, same(field)] });
        let remembered = if leaving.mode.is_exclusive() { RELEASED_LEN } else { RELEASED_BESIDE_OTHERS };
        // A minimum hold that begins may end before waiters expect it.
        let begun = doc! { "$concat": ["~", &this, ";"] };
        let granted = Bson::from(self.of_run(GRANTS));
        let (admitted, left) = match &is.is_kept {
            // The record may be reported as a whole, and must not tell of an earlier grant again.
            None => (granted, removed()),
            Some(is_kept) => (
                doc! { "$concat": [{ "$cond": [is_kept, &begun, ""] }, granted] }.into(),
                doc! { "$cond": [is_kept, begun, "$$REMOVE"] }.into(),
            ),
        };

        let in_all = |new: Bson| vec![(PASS, new.clone()), (ADMIT, new.clone()), (LEAVE, new.clone()), (FREE, new)];
        let of_head = |field: &String, others: Bson| {
            vec![(PASS, or_nothing(field)), (ADMIT, others.clone()), (LEAVE, others.clone()), (FREE, others)]
        };
        let rows: [(&str, Vec<(&str, Bson)>); 16] = [
            (
                LOCK_ID,
                vec![(PASS, (&*head.id).into()), (ADMIT, MARKER.into()), (LEAVE, MARKER.into()), (FREE, removed())],
            ),
            (
                HOLDERS,
                vec![
                    (PASS, removed()),
                    (ADMIT, self.of_run("holders").into()),
                    (LEAVE, rest.clone().into()),
                    (FREE, removed()),
                ],
            ),
            (
                TOKEN,
                vec![
                    (PASS, last_token(first.clone(), head.tokens.clone())),
                    (ADMIT, self.of_run("last").into()),
                    (LEAVE, same(LAST)),
                    (FREE, same(LAST)),
                ],
            ),
            (
                TOKENS,
                vec![(PASS, head.tokens.into()), (ADMIT, of_last.into()), (LEAVE, length.clone()), (FREE, length)],
            ),
            (PASSED, vec![(PASS, doc! { "$toLong": first }.into()), (ADMIT, removed()), (LEAVE, removed())]),
            (ACQUIRED_AT, vec![(PASS, "$$NOW".into())]),
            (
                EXPIRES_AT,
                vec![
                    (PASS, doc! { "$add": ["$$NOW", &head.claim] }.into()),
                    (ADMIT, self.end_of_run().into()),
                    (LEAVE, latest(&rest).into()),
                    (FREE, doc! { "$max": ends }.into()),
                ],
            ),
            (TTL, vec![(PASS, head.claim.into())]),
            (CLOSED_UNTIL, vec![(PASS, removed()), (ADMIT, removed()), (LEAVE, removed()), (FREE, closed)]),
            (
                EXPIRED,
                vec![
                    (PASS, lost(removed())),
                    (ADMIT, lost(same(EXPIRED))),
                    (LEAVE, lost(same(EXPIRED))),
                    (FREE, lost(same(EXPIRED))),
                ],
            ),
            (OWNER, of_head(&head.owner, removed())),
            (META, of_head(&head.meta, removed())),
            (LAST_RELEASED, in_all(if_released(this.clone(), LAST_RELEASED))),
            (RELEASED, in_all(if_released(self.released_too(this, remembered), RELEASED))),
            (GRANTS, vec![(PASS, removed()), (ADMIT, admitted), (LEAVE, left), (FREE, removed())]),
            (
                QUEUE,
                vec![
                    (PASS, self.queue_after_head()),
                    (ADMIT, self.queue_after_run()),
                    (LEAVE, self.live_queue()),
                    (FREE, self.live_queue()),
                    (DROP, self.live_queue()),
                ],
            ),
        ];
        let is_made = |(step, _): &(&str, Bson)| made.contains(step);
        rows.into_iter()
            .map(|(field, steps)| {
                let steps: Vec<(&str, Bson)> = steps.into_iter().filter(is_made).collect();
                (self.path(field), self.when(&steps, same(field)))
            })
            .collect()
    }

    /// The value of a field of the holder that releases.
    fn of_own(&self, field: &str) -> String {
        self.value(&format!("{OWN}.{field}"))
    }
}

fn filter(input: impl Into<Bson>, condition: Document) -> Document {
    doc! { "$filter": { "input": input.into(), "cond": condition } }
}
