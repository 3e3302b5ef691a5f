//! Renewing (R3, R14).

use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey};
use mongodb::bson::{Bson, Document, doc};

use super::{EXPIRES_AT, ID, LOCK_ID, Layout, TOKEN, TTL, literal, millis};

/// One lease that is to be renewed.
#[derive(Clone, Debug)]
pub(crate) struct Extension {
    pub(crate) key: LockKey,
    /// The document's.
    pub(crate) identity: Bson,
    pub(crate) id: AcquisitionId,
    pub(crate) token: i64,
    pub(crate) ttl: Duration,
}

impl Extension {
    /// Whether both are about the same lease.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        (&self.key, &self.id, self.token) == (&other.key, &other.id, other.token)
    }
}

impl Layout {
    /// The leases of a batch that may be extended (R14): by key alone it would revive others',
    /// without the token one that was taken away by force, without the expiry test one that nobody
    /// holds any more.
    ///
    /// The identities stand in one constant list, not in a branch of `$or` each: that leaves the
    /// planner one plan, and 200 leases take a third of the time.
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

    /// Extends what [`renewable`](Self::renewable) has found.
    pub(crate) fn renew(&self, batch: &[Extension]) -> Vec<Document> {
        let ttl: Bson = match batch {
            [first, rest @ ..] if rest.iter().all(|lease| lease.ttl == first.ttl) => millis(first.ttl).into(),
            _ => {
                let ids: Vec<Bson> = batch.iter().map(|lease| lease.id.as_str().into()).collect();
                let ttls: Vec<Bson> = batch.iter().map(|lease| millis(lease.ttl).into()).collect();
                let place = doc! { "$indexOfArray": [literal(ids), self.value(LOCK_ID)] };
                doc! { "$arrayElemAt": [literal(ttls), place] }.into()
            }
        };
        let end = doc! { "$max": [self.value(EXPIRES_AT), { "$add": ["$$NOW", ttl.clone()] }] };
        vec![doc! { "$set": { self.path(EXPIRES_AT): end, self.path(TTL): ttl } }]
    }
}
