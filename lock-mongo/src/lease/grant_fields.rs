//! What a grant writes, if the acquisition takes the lease itself: alone, or as the first of
//! several holders.

use distlock_api::Mode;
use distlock_engine::store::Attempt;
use mongodb::bson::{Bson, Document, doc};

use super::holders::{BLOCK_OF, GRANTS, HOLDERS, ID_OF, MARKER, TOKEN_OF, mode_fields};
use super::queue::block;
use super::{
    ACQUIRED_AT, CLOSED_UNTIL, Clock, EXPIRED, EXPIRES_AT, LOCK_ID, Layout, META, OWNER, PASSED, TOKEN, TOKENS, TTL,
    first_token, last_token, later_by, literal, millis, remarks, removed,
};

/// The first token of a new block, and its last one.
pub(super) struct Block {
    pub(super) first: Bson,
    pub(super) last: Bson,
}

impl Layout {
    /// The next block (R5).
    pub(super) fn next_block(&self, attempt: &Attempt, clock: Clock) -> Block {
        let first = first_token(self.value(TOKEN), clock);
        Block { last: last_token(first.clone(), block(attempt)), first: first.into() }
    }

    /// The fields after a grant of a free key to the acquisition `id`, in the attempt's mode,
    /// except the queue.
    pub(super) fn taken(&self, attempt: &Attempt, id: Bson, block: Block) -> Vec<(&'static str, Bson)> {
        if attempt.claim.mode().is_exclusive() {
            self.taken_alone(attempt, id, block.last).into()
        } else {
            self.taken_as_first(attempt, id, block).into()
        }
    }

    /// The fields after an exclusive grant with this last token, except the queue.
    pub(super) fn taken_alone(&self, attempt: &Attempt, id: Bson, last: Bson) -> [(&'static str, Bson); 11] {
        [
            (LOCK_ID, id),
            (TOKEN, last),
            (TOKENS, block(attempt).into()),
            (ACQUIRED_AT, "$$NOW".into()),
            (CLOSED_UNTIL, removed()),
            (PASSED, removed()),
            // If a grant finds a holder, the holder's lease has expired.
            (EXPIRED, doc! { "$ifNull": [self.value(LOCK_ID), "$$REMOVE"] }.into()),
            (OWNER, attempt.holder.owner.as_deref().map_or_else(removed, literal)),
            (META, remarks(&attempt.holder).unwrap_or_else(removed)),
            (TTL, millis(attempt.ttl).into()),
            (EXPIRES_AT, later_by(attempt.ttl)),
        ]
    }

    /// The fields after a grant of a free key to the first of several holders, except the queue
    /// (R25).
    fn taken_as_first(&self, attempt: &Attempt, id: Bson, Block { first, last }: Block) -> [(&'static str, Bson); 13] {
        let holder = self.new_holder(id.clone(), attempt, last.clone());
        [
            (LOCK_ID, MARKER.into()),
            (HOLDERS, vec![holder].into()),
            (GRANTS, taken_text(attempt, id, first)),
            (TOKEN, last),
            (TOKENS, block(attempt).into()),
            (ACQUIRED_AT, "$$NOW".into()),
            (CLOSED_UNTIL, removed()),
            (PASSED, removed()),
            (EXPIRED, removed()),
            (OWNER, removed()),
            (META, removed()),
            (TTL, millis(attempt.ttl).into()),
            (EXPIRES_AT, later_by(attempt.ttl)),
        ]
    }

    /// What a grant by the full path changes beside [`taken_alone`](Self::taken_alone). It may take
    /// the lease over from several holders, or find those that a process without modes has left
    /// behind (R25).
    pub(super) fn taken_over(&self) -> [(&'static str, Bson); 3] {
        [(EXPIRED, self.expired_by_grant()), (HOLDERS, removed()), (GRANTS, removed())]
    }

    /// The acquisition `id` as a new holder in the attempt's mode, with this last token.
    pub(super) fn new_holder(&self, id: Bson, attempt: &Attempt, last: Bson) -> Document {
        let Attempt { claim, ttl, holder, .. } = attempt;
        let mut new = doc! {
            ID_OF: id,
            TOKEN_OF: last,
            BLOCK_OF: block(attempt),
            ACQUIRED_AT: "$$NOW",
            EXPIRES_AT: later_by(*ttl),
            TTL: millis(*ttl),
        };
        new.extend(mode_fields(claim.mode()));
        if let Some(owner) = holder.owner.as_deref() {
            new.insert(OWNER, literal(owner));
        }
        if let Some(remarks) = remarks(holder) {
            new.insert(META, remarks);
        }
        new
    }
}

/// The text of [`GRANTS`] for a lease that the acquisition takes itself.
pub(super) fn taken_text(attempt: &Attempt, id: Bson, first: Bson) -> Bson {
    let mode = match attempt.claim.mode() {
        Mode::Permits { take, of } => format!("{take}/{of}"),
        _ => "s".to_owned(),
    };
    let number = |value: Bson| doc! { "$toString": { "$toLong": value } };
    let rest = literal(format!(" {} ", block(attempt)));
    let end = number(later_by(attempt.ttl));
    doc! { "$concat": ["+", id, " ", number(first), rest, end, literal(format!(" {mode};"))] }.into()
}
