//! Renewals (R3, R14).

use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey};
use mongodb::bson::{Bson, Document, doc};

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
}

impl Extension {
    /// Whether both renew the same lease.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        (&self.key, &self.id, self.token) == (&other.key, &other.id, other.token)
    }
}

impl Layout {
    /// Returns the filter of the leases of a batch that may be extended (R14).
    ///
    /// By key alone it would extend leases of others. Without the token it would extend a lease
    /// that was released by force, and without the expiry one that no longer has a holder.
    ///
    /// The identities are one constant list, not a branch of `$or` each: that leaves the planner
    /// one plan, and 200 leases take a third of the time.
    pub(crate) fn renewable(&self, batch: &[Extension]) -> Document {
        let one = doc! { "key": format!("${ID}"), "id": self.value(LOCK_ID), "token": self.value(TOKEN) };
        let each = batch
            .iter()
            .map(|lease| doc! { "key": &lease.identity, "id": lease.id.as_str(), "token": lease.token }.into())
            .collect::<Vec<Bson>>();
        let mut filter = self.records(batch.iter().map(|lease| lease.identity.clone()));
        let test = doc! { "$and": [
            { "$gt": [self.value(EXPIRES_AT), "$$NOW"] },
            { "$in": [one, literal(each)] },
        ] };
        filter.insert("$expr", test);
        filter
    }

    /// Makes the pipeline that extends the leases of [`renewable`](Self::renewable).
    pub(crate) fn renew(&self, batch: &[Extension]) -> Vec<Document> {
        let ttl: Bson = match batch {
            [first, others @ ..] if others.iter().all(|lease| lease.ttl == first.ttl) => millis(first.ttl).into(),
            _ => {
                let ids: Vec<Bson> = batch.iter().map(|lease| lease.id.as_str().into()).collect();
                let ttls: Vec<Bson> = batch.iter().map(|lease| millis(lease.ttl).into()).collect();
                one_of(ttls, self.value(LOCK_ID), ids)
            }
        };
        let end = doc! { "$max": [self.value(EXPIRES_AT), { "$add": ["$$NOW", ttl.clone()] }] };
        vec![doc! { "$set": { self.path(EXPIRES_AT): end, self.path(TTL): ttl } }]
    }
}
