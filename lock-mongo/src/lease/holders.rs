//! Several holders of a key: `[{id, token, tokens, acquiredAt, expiresAt, ttl, owner, meta}]`, in
//! the order of their grants, each with its mode (R25, R26).
//!
//! While a key has such holders, `lockId` is [`MARKER`], which is the id of no acquisition, and
//! `expiresAt` is the latest expiry of them. So every operation on an exclusive lease, and every
//! process that knows no modes, finds a held lease of another, until the last of them has expired.
//! Holders beside another `lockId` are left behind by such a process, and mean nothing.

use distlock_api::Mode;
use mongodb::bson::{Bson, DateTime, Document, doc};

pub(super) use super::HOLDERS;
use super::{EXPIRES_AT, LOCK_ID, Layout, META, OWNER, removed};
use crate::numbers::NEVER;

/// The holder of a key that is not held exclusively.
pub(super) const MARKER: &str = "shared";
/// What the last grant beside the marker granted: `ID FIRST TOKENS EXPIRY MODE;…`. It is one
/// string, so that a change stream reports all of it. An id whose acquisition took the lease itself
/// is behind a `+`, because only grants by a release are pushed. A `~` and an id stand for a
/// minimum hold that has begun.
pub(super) const GRANTS: &str = "grants";
/// The live holders, computed by the first stages of an operation.
pub(super) const HELD: &str = "step.held";

/// The acquisition, in a holder and in a ticket.
pub(super) const ID_OF: &str = "id";
/// The last token of a holder's block.
pub(super) const TOKEN_OF: &str = "token";
/// The length of a holder's or a ticket's block.
pub(super) const BLOCK_OF: &str = "tokens";
/// Whether a holder has released, and stays for its minimum hold. Then it is renewed no longer.
pub(super) const KEPT: &str = "kept";
/// The mode of a ticket or a holder: this for shared, the other two for permits, none of them for
/// exclusive.
pub(super) const SHARED: &str = "shared";
pub(super) const TAKES: &str = "take";
pub(super) const OF: &str = "of";

/// Between the ids in a field that contains several.
pub(super) const BETWEEN: &str = ";";

/// Returns the fields that tell the mode of a ticket or a holder.
pub(super) fn mode_fields(mode: Mode) -> Document {
    match mode {
        Mode::Shared => doc! { SHARED: true },
        Mode::Permits { take, of } => doc! { TAKES: i64::from(take), OF: i64::from(of) },
        _ => doc! {},
    }
}

/// Returns whether a ticket or a holder is shared.
pub(super) fn is_shared(one: &str) -> Document {
    doc! { "$eq": [format!("{one}.{SHARED}"), true] }
}

/// Returns whether a ticket or a holder has permits. Other values than numbers that an acquisition
/// can request make a ticket exclusive: one that is no number compares less than each, and would
/// leave room for any number of others (R32).
pub(super) fn has_permits(one: &str) -> Document {
    let (takes, of) = (format!("{one}.{TAKES}"), format!("{one}.{OF}"));
    doc! { "$and": [{ "$gte": [&takes, 1] }, { "$lte": [takes, &of] }, { "$lte": [of, i64::from(u32::MAX)] }] }
}

/// Returns whether a ticket is exclusive.
pub(super) fn is_exclusive(one: &str) -> Document {
    doc! { "$not": { "$or": [is_shared(one), has_permits(one)] } }
}

/// Makes a filter match only if the ticket of this path is exclusive or missing, or all are if the
/// path is that of the queue.
pub(super) fn require_exclusive(filter: &mut Document, ticket: &str) {
    filter.insert(format!("{ticket}.{SHARED}"), doc! { "$ne": true });
    filter.insert(format!("{ticket}.{TAKES}"), doc! { "$exists": false });
}

/// Returns whether a request of a mode fits beside these holders, see [`Mode::fits`].
pub(super) fn fits(mode: Mode, held: &str) -> Document {
    match mode {
        Mode::Shared => shared_fits(held),
        Mode::Permits { take, of } => permits_fit(i64::from(take), i64::from(of), held),
        _ => doc! { "$eq": [held, []] },
    }
}

/// Returns whether a ticket that is not exclusive fits beside these holders.
pub(super) fn ticket_fits(ticket: &str, held: &str) -> Document {
    let of_permits = permits_fit(format!("{ticket}.{TAKES}"), format!("{ticket}.{OF}"), held);
    doc! { "$cond": [is_shared(ticket), shared_fits(held), of_permits] }
}

fn shared_fits(held: &str) -> Document {
    doc! { "$and": [has_room(held), all(held, is_shared("$$this"))] }
}

fn permits_fit(take: impl Into<Bson>, of: impl Into<Bson>, held: &str) -> Document {
    let taken = doc! { "$add": [taken_by(held), take.into()] };
    doc! { "$and": [has_room(held), all(held, has_permits("$$this")), { "$lte": [taken, of.into()] }] }
}

fn has_room(held: &str) -> Document {
    doc! { "$lt": [{ "$size": held }, most()] }
}

/// The number of permits that holders have together.
pub(super) fn taken_by(held: &str) -> Document {
    doc! { "$sum": format!("{held}.{TAKES}") }
}

/// Returns whether all holders are of a kind.
pub(super) fn all(held: &str, is_of_kind: Document) -> Document {
    doc! { "$allElementsTrue": [{ "$map": { "input": held, "in": is_of_kind } }] }
}

/// The largest number of holders.
pub(super) fn most() -> i64 {
    i64::try_from(Mode::MAX_HOLDERS).unwrap_or(i64::MAX)
}

/// The text of a holder's or a ticket's mode in [`GRANTS`]: `s`, or `take/of`.
pub(super) fn mode_text(one: &str) -> Document {
    let number = |field| doc! { "$toString": { "$toLong": format!("{one}.{field}") } };
    doc! { "$cond": [is_shared(one), "s", { "$concat": [number(TAKES), "/", number(OF)] }] }
}

/// Returns whether one of several holders has not expired, and has the form of a holder.
pub(super) fn is_live(one: &str) -> Document {
    let of = |field: &str| format!("{one}.{field}");
    doc! { "$and": [
        { "$eq": [{ "$type": of(ID_OF) }, "string"] },
        { "$eq": [{ "$type": of(TOKEN_OF) }, "long"] },
        { "$isNumber": of(BLOCK_OF) },
        { "$eq": [{ "$type": of(EXPIRES_AT) }, "date"] },
        { "$gt": [of(EXPIRES_AT), "$$NOW"] },
    ] }
}

/// Returns whether one of several holders is this acquisition, and has not released. Its id is an
/// expression.
pub(super) fn is_own(one: &str, id: &Bson) -> Document {
    doc! { "$and": [
        { "$eq": [format!("{one}.{ID_OF}"), id] },
        { "$ne": [format!("{one}.{KEPT}"), true] },
    ] }
}

/// The ids of some holders in one text; empty if there are none. An odd id is left out.
pub(super) fn ids_of(holders: impl Into<Bson>) -> Document {
    let id = format!("$$this.{ID_OF}");
    let between = doc! { "$cond": [{ "$eq": ["$$value", ""] }, "", BETWEEN] };
    let is_text = doc! { "$eq": [{ "$type": &id }, "string"] };
    let each = doc! { "$cond": [is_text, { "$concat": ["$$value", between, id] }, "$$value"] };
    doc! { "$reduce": { "input": holders.into(), "initialValue": "", "in": each } }
}

/// A text, or another value if it is empty.
pub(super) fn unless_blank(text: impl Into<Bson>, otherwise: Bson) -> Bson {
    doc! { "$let": {
        "vars": { "text": text.into() },
        "in": { "$cond": [{ "$eq": ["$$text", ""] }, otherwise, "$$text"] },
    } }
    .into()
}

/// The latest expiry of some holders (R26). An end that never comes leaves the key held, and costs
/// the other holders nothing (R32).
pub(super) fn latest(holders: &str) -> Document {
    let never = DateTime::from_millis(NEVER);
    doc! { "$let": {
        "vars": { "end": { "$max": format!("{holders}.{EXPIRES_AT}") } },
        "in": { "$cond": [{ "$gt": ["$$end", never] }, never, "$$end"] },
    } }
}

/// The earliest expiry of some holders.
pub(super) fn earliest(holders: &str) -> Document {
    doc! { "$min": format!("{holders}.{EXPIRES_AT}") }
}

impl Layout {
    /// Returns whether the key is held by several, or was by the time they expired (R25).
    pub(super) fn has_marker(&self) -> Document {
        doc! { "$eq": [self.value(LOCK_ID), MARKER] }
    }

    /// All holders of a key that is not held exclusively, expired ones included.
    pub(super) fn holders(&self) -> Document {
        let counts = doc! { "$and": [self.has_marker(), { "$isArray": self.value(HOLDERS) }] };
        doc! { "$cond": [counts, self.value(HOLDERS), []] }
    }

    /// The live holders of a key that is not held exclusively. None of them has not expired if the
    /// lease has (R26), so that all operations agree on when the key is free.
    pub(super) fn live_holders(&self) -> Document {
        let live = doc! { "$filter": { "input": self.holders(), "cond": is_live("$$this") } };
        doc! { "$cond": [self.is_held(), live, []] }
    }

    /// What [`EXPIRED`](super::EXPIRED) is after a grant: those whose expired leases it removes.
    pub(super) fn expired_by_grant(&self) -> Bson {
        let has_expired = doc! { "$not": is_live("$$this") };
        let was_held = doc! { "$ne": [format!("$$this.{KEPT}"), true] };
        let condition = doc! { "$and": [has_expired, was_held] };
        let expired = doc! { "$filter": { "input": self.holders(), "cond": condition } };
        let of_several = unless_blank(ids_of(expired), removed());
        doc! { "$cond": [self.has_marker(), of_several, { "$ifNull": [self.value(LOCK_ID), "$$REMOVE"] }] }.into()
    }

    /// The live holders as they are projected: a list of [`HolderState`](super::HolderState), or
    /// nothing.
    pub(super) fn holder_states(&self) -> Document {
        let of = |field: &str| format!("$$this.{field}");
        let text = doc! { "$cond": [{ "$eq": [{ "$type": of(OWNER) }, "string"] }, of(OWNER), Bson::Null] };
        let each = doc! {
            "id": of(ID_OF),
            "token": of(TOKEN_OF),
            "remaining": { "$subtract": [of(EXPIRES_AT), "$$NOW"] },
            "shared": is_shared("$$this"),
            "take": { "$cond": [has_permits("$$this"), { "$toLong": of(TAKES) }, 0_i64] },
            "of": { "$cond": [has_permits("$$this"), { "$toLong": of(OF) }, 0_i64] },
            "kept": { "$eq": [of(KEPT), true] },
            "owner": text,
            "meta": of(META),
        };
        let states = doc! { "$map": { "input": self.live_holders(), "in": each } };
        doc! { "$cond": [self.has_marker(), states, "$$REMOVE"] }
    }
}
