//! The grants that one release makes to the tickets at the head of the queue (R28).

use mongodb::bson::{Bson, Document, doc};

use super::holders::{
    BLOCK_OF, ID_OF, OF, SHARED, TAKES, TOKEN_OF, all, has_permits, is_shared, latest, mode_text, most, taken_by,
};
use super::queue::{CLAIM, LIVE, claim_of};
use super::{ACQUIRED_AT, Clock, EXPIRES_AT, Layout, META, OWNER, TTL, block_len_of, first_token, last_token};

/// The result of a run, computed by the first stages of a release.
pub(super) const RUN: &str = "step.run";

/// The kinds of holders, in a run.
const NONE: &str = "none";
const READERS: &str = "shared";
const PERMITS: &str = "permits";
const OTHERS: &str = "others";

impl Layout {
    /// Grants to the live tickets at the head that fit beside these holders, one after the other,
    /// until one does not; `None` for no holders. Returns `{holders, n, last, tokens, grants}`: the
    /// holders then, how many of them are new, the last token, the length of its block, and the
    /// text of [`GRANTS`](super::holders::GRANTS). Exclusive tickets never fit.
    pub(super) fn grant_run(&self, beside: Option<&str>, last: impl Into<Bson>, clock: Clock) -> Document {
        let (was, ticket) = (|field: &str| format!("$$value.{field}"), |field: &str| format!("$$this.{field}"));
        let is_one_of = |kind: &str| doc! { "$in": [was("kind"), [NONE, kind]] };
        let permits_fit = doc! { "$and": [
            has_permits("$$this"),
            is_one_of(PERMITS),
            { "$lte": [{ "$add": [was("taken"), ticket(TAKES)] }, ticket(OF)] },
        ] };
        let fits = doc! { "$and": [
            was("open"),
            { "$lt": [{ "$size": was("holders") }, most()] },
            { "$cond": [is_shared("$$this"), is_one_of(READERS), permits_fit] },
        ] };
        let (claim, tokens) = (claim_of(ticket(CLAIM)), block_len_of(ticket(BLOCK_OF)));
        let end = doc! { "$add": ["$$NOW", &claim] };
        let holder = doc! {
            ID_OF: ticket(ID_OF),
            TOKEN_OF: "$$last",
            BLOCK_OF: &tokens,
            ACQUIRED_AT: "$$NOW",
            EXPIRES_AT: &end,
            TTL: claim,
            SHARED: ticket(SHARED),
            TAKES: ticket(TAKES),
            OF: ticket(OF),
            // Those that a ticket lacks are left out.
            OWNER: ticket(OWNER),
            META: ticket(META),
        };
        let number = |value: Bson| doc! { "$toString": { "$toLong": value } };
        let text = doc! { "$concat": [
            was("grants"), ticket(ID_OF), " ", number("$$first".into()), " ", number(tokens.clone().into()), " ",
            number(end.into()), " ", mode_text("$$this"), ";",
        ] };
        let granted = doc! {
            "holders": { "$concatArrays": [was("holders"), [holder]] },
            "n": { "$add": [was("n"), 1] },
            "last": "$$last",
            "tokens": &tokens,
            "kind": { "$cond": [is_shared("$$this"), READERS, PERMITS] },
            "taken": { "$add": [was("taken"), { "$cond": [is_shared("$$this"), 0, ticket(TAKES)] }] },
            "open": true,
            "grants": text,
        };
        let with_tokens = doc! { "$let": {
            "vars": { "first": first_token(was("last"), clock) },
            "in": { "$let": { "vars": { "last": last_token("$$first", tokens) }, "in": granted } },
        } };
        let ended = doc! { "$mergeObjects": ["$$value", { "open": false }] };
        let holders = beside.map_or_else(|| Bson::Array(vec![]), Bson::from);
        let kind = beside.map_or_else(|| NONE.into(), kind_of);
        let taken = beside.map_or_else(|| 0.into(), |beside| Bson::from(taken_by(beside)));
        let begin = doc! {
            "holders": holders,
            "n": 0,
            "last": last.into(),
            "kind": kind,
            "taken": taken,
            "open": true,
            "grants": "",
        };
        doc! { "$reduce": {
            "input": { "$slice": [self.value(LIVE), most()] },
            "initialValue": begin,
            "in": { "$cond": [fits, with_tokens, ended] },
        } }
    }

    /// A part of the result of [`grant_run`](Self::grant_run).
    pub(super) fn of_run(&self, part: &str) -> String {
        self.value(&format!("{RUN}.{part}"))
    }

    /// Returns whether the run has granted to a ticket. Without a run it has not.
    pub(super) fn has_run(&self) -> Document {
        doc! { "$gt": [self.of_run("n"), 0] }
    }

    /// The queue after the run, which has granted to a ticket.
    pub(super) fn queue_after_run(&self) -> Bson {
        let number = self.of_run("n");
        let granted = doc! { "$slice": [self.ids_of_live(), &number] };
        self.queue_of(doc! { "$slice": [self.value(LIVE), number, i32::MAX] }, granted)
    }

    /// The end of the lease after the run (R26).
    pub(super) fn end_of_run(&self) -> Document {
        latest(&self.of_run("holders"))
    }
}

/// The kind that all of some holders are of.
fn kind_of(beside: &str) -> Bson {
    doc! { "$switch": {
        "branches": [
            { "case": { "$eq": [beside, []] }, "then": NONE },
            { "case": all(beside, is_shared("$$this")), "then": READERS },
            { "case": all(beside, has_permits("$$this")), "then": PERMITS },
        ],
        "default": OTHERS,
    } }
    .into()
}
