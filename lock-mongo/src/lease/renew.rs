//! Renewals (R3, R14, R29).

use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey};
use mongodb::bson::{Bson, Document, doc};

use super::bound::is_in_time;
use super::holders::{HOLDERS, ID_OF, KEPT, TOKEN_OF, is_live, latest};
use super::{EXPIRES_AT, ID, LOCK_ID, Layout, TOKEN, TTL, literal, millis, one_of};

/// One lease to renew.
#[derive(Clone, Debug)]
pub(crate) struct Extension {
    pub(crate) key: LockKey,
    /// The `_id` of the document.
    pub(crate) identity: Bson,
    pub(crate) id: AcquisitionId,
    pub(crate) token: i64,
    pub(crate) ttl: Duration,
    /// Whether no one else holds the key meanwhile.
    pub(crate) is_exclusive: bool,
}

impl Extension {
    /// Returns what says which lease it is.
    pub(crate) fn subject(&self) -> (&LockKey, &AcquisitionId, i64) {
        (&self.key, &self.id, self.token)
    }
}

impl Layout {
    /// Returns the filter of the leases of a batch that may be extended, while the server's clock
    /// is before `bound` (R14, R31).
    ///
    /// By key alone it would extend leases of others. Without the token it would extend a lease
    /// that was released by force, and without the expiry one that no longer has a holder.
    ///
    /// The identities are one constant list, not a branch of `$or` each: that leaves the planner
    /// one plan, and 200 leases take a third of the time.
    pub(crate) fn renewable(&self, batch: &[Extension], bound: Duration) -> Document {
        let one = doc! { "key": format!("${ID}"), "id": self.value(LOCK_ID), "token": self.value(TOKEN) };
        let each = each(batch);
        let mut filter = self.records(batch.iter().map(|lease| lease.identity.clone()));
        let test = doc! { "$and": [
            is_in_time(bound),
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
            { "$in": [one, literal(each)] },
        ] };
        filter.insert("$expr", test);
        filter
    }

    /// Returns the filter of the records in which a lease of a batch may be extended, whose holders
    /// are not exclusive (R29). A release of a process without modes has granted some of them
    /// alone.
    pub(crate) fn renewable_beside_others(&self, batch: &[Extension], bound: Duration) -> Document {
        let is_renewed = |id: String, token: String| {
            let one = doc! { "key": format!("${ID}"), "id": id, "token": token };
            doc! { "$in": [one, literal(each(batch))] }
        };
        let holder = is_renewed(format!("$$this.{ID_OF}"), format!("$$this.{TOKEN_OF}"));
        let is_renewed_holder = doc! { "$and": [holder, { "$ne": [format!("$$this.{KEPT}"), true] }] };
        let some = doc! { "$map": { "input": self.live_holders(), "in": is_renewed_holder } };
        let mut filter = self.records(batch.iter().map(|lease| lease.identity.clone()));
        let test = doc! { "$and": [
            is_in_time(bound),
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
            { "$or": [is_renewed(self.value(LOCK_ID), self.value(TOKEN)), { "$anyElementTrue": [some] }] },
        ] };
        filter.insert("$expr", test);
        filter
    }

    /// Makes the pipeline that extends the leases of
    /// [`renewable_beside_others`](Self::renewable_beside_others). It extends each holder of the
    /// batch that has not expired, and no other. The end of the lease is the latest of all (R26).
    pub(crate) fn renew_beside_others(&self, batch: &[Extension]) -> Vec<Document> {
        let ttl_of = |id: String| ttl_of(batch, id);
        let id = format!("$$this.{ID_OF}");
        let one = doc! { "key": format!("${ID}"), "id": &id, "token": format!("$$this.{TOKEN_OF}") };
        let is_renewed = doc! { "$and": [
            is_live("$$this"),
            { "$ne": [format!("$$this.{KEPT}"), true] },
            { "$in": [one, literal(each(batch))] },
        ] };
        let end = doc! { "$max": [format!("$$this.{EXPIRES_AT}"), { "$add": ["$$NOW", ttl_of(id.clone())] }] };
        let renewed = doc! { "$mergeObjects": ["$$this", { EXPIRES_AT: end, TTL: ttl_of(id) }] };
        let each = doc! { "$cond": [is_renewed, renewed, "$$this"] };
        let renewed = doc! { "$map": { "input": self.holders(), "in": each } };
        let alone = doc! { "$max": [self.value(EXPIRES_AT), { "$add": ["$$NOW", ttl_of(self.value(LOCK_ID))] }] };
        let unless_beside = |alone: Bson, field| doc! { "$cond": [self.has_marker(), self.value(field), alone] };
        let live = doc! { "$filter": { "input": self.holders(), "cond": is_live("$$this") } };
        let latest = doc! { "$let": { "vars": { "live": live }, "in": latest("$$live") } };
        let latest = doc! { "$max": [self.value(EXPIRES_AT), latest] };
        vec![
            doc! { "$set": {
                self.path(HOLDERS): { "$cond": [self.has_marker(), renewed, self.value(HOLDERS)] },
                self.path(EXPIRES_AT): unless_beside(alone.into(), EXPIRES_AT),
                self.path(TTL): unless_beside(ttl_of(self.value(LOCK_ID)), TTL),
            } },
            doc! { "$set": {
                self.path(EXPIRES_AT): { "$cond": [self.has_marker(), latest, self.value(EXPIRES_AT)] },
            } },
        ]
    }

    /// Makes the pipeline that extends the leases of [`renewable`](Self::renewable).
    pub(crate) fn renew(&self, batch: &[Extension]) -> Vec<Document> {
        let ttl = ttl_of(batch, self.value(LOCK_ID));
        let end = doc! { "$max": [self.value(EXPIRES_AT), { "$add": ["$$NOW", ttl.clone()] }] };
        vec![doc! { "$set": { self.path(EXPIRES_AT): end, self.path(TTL): ttl } }]
    }
}

/// What identifies each lease of a batch.
fn each(batch: &[Extension]) -> Vec<Bson> {
    let one = |lease: &Extension| doc! { "key": &lease.identity, "id": lease.id.as_str(), "token": lease.token }.into();
    batch.iter().map(one).collect()
}

/// The ttl of the lease that this acquisition has in a batch.
fn ttl_of(batch: &[Extension], id: String) -> Bson {
    let ids = batch.iter().map(|lease| lease.id.as_str().into()).collect();
    let ttls = batch.iter().map(|lease| millis(lease.ttl).into()).collect();
    one_of(ttls, id, ids)
}
