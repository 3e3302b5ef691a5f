//! Processes of the record format without a queue, beside others with a queue, as during a rolling
//! deployment.
//!
//! The pipelines are literally those of the version before the queue. They are kept here because
//! deployed programs still send them.

use std::time::Duration;

use distlock_api::ReleaseOutcome::Released;
use distlock_engine::store::{Claim, QueueStore, Standing};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::mongodb::options::ReturnDocument;

use super::Checks;
use super::world::{
    LONG, World, admin, busy, claim, end_lease, granted, key, opened, queued, random_name, release, renew,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C1 older_and_newer_processes_exclude_each_other);
    check!(checks, C1 older_and_newer_processes_race);
    check!(checks, older_process_leaves_the_queue_alone);
}

/// A process of the older format.
pub(crate) struct Older {
    records: Collection<Document>,
    /// Expressions for the clock: the older version also chooses by the deployment.
    clock: Document,
}

impl Older {
    pub(crate) fn new(world: &World, name: &str) -> Self {
        let clock = match world.topology {
            distlock_conformance_mongo::Topology::ReplicaSet => doc! { "$add": [
                { "$multiply": [{ "$tsSecond": "$$CLUSTER_TIME" }, 1_073_741_824_i64] },
                { "$tsIncrement": "$$CLUSTER_TIME" },
            ] },
            distlock_conformance_mongo::Topology::Standalone => doc! { "$add": [
                { "$multiply": [{ "$toLong": { "$floor": { "$divide": [{ "$toLong": "$$NOW" }, 1000] } } }, 1_073_741_824_i64] },
                { "$multiply": [{ "$mod": [{ "$toLong": "$$NOW" }, 1000] }, 1_048_576_i64] },
            ] },
        };
        Self { records: world.raw(name), clock }
    }

    async fn change(&self, claim: &Claim, pipeline: Vec<Document>, upsert: bool) -> Option<Document> {
        let change = self.records.find_one_and_update(doc! { "_id": claim.key().as_str() }, pipeline);
        change.upsert(upsert).return_document(ReturnDocument::After).await.unwrap()
    }

    /// Returns the last token, if the lease is granted.
    pub(crate) async fn acquire(&self, claim: &Claim, ttl: Duration) -> Option<i64> {
        let id = claim.id().as_str();
        let ttl = i64::try_from(ttl.as_millis()).unwrap();
        let held = held_by(id);
        let free = doc! { "$and": [
            { "$or": [{ "$lte": ["$lockId", Bson::Null] }, { "$lte": ["$expiresAt", "$$NOW"] }] },
            { "$lte": ["$closedUntil", "$$NOW"] },
        ] };
        let first = doc! { "$max": [{ "$add": [{ "$ifNull": ["$fencingToken", 0_i64] }, 1_i64] }, self.clock.clone()] };
        let take = |new, field: &str| doc! { "$cond": [{ "$eq": ["$step", "take"] }, new, format!("${field}")] };
        let token = doc! { "$toLong": { "$add": [first, 0_i64] } };
        let end = doc! { "$add": ["$$NOW", ttl] };
        let record = self.change(claim, vec![
            doc! { "$set": { "step": { "$switch": { "branches": [
                { "case": { "$and": [{ "$not": [held.clone()] }, free] }, "then": "take" },
                { "case": held, "then": "extend" },
            ], "default": "leave" } } } },
            doc! { "$set": {
                "lockId": take(doc! { "$literal": id }, "lockId"),
                "fencingToken": take(token, "fencingToken"),
                "tokens": take(doc! { "$literal": 1 }, "tokens"),
                "acquiredAt": { "$cond": [{ "$eq": ["$step", "take"] }, "$$NOW", "$acquiredAt"] },
                "closedUntil": { "$cond": [{ "$eq": ["$step", "take"] }, "$$REMOVE", "$closedUntil"] },
                "expired": take(doc! { "$ifNull": ["$lockId", "$$REMOVE"] }, "expired"),
                "owner": { "$cond": [{ "$eq": ["$step", "take"] }, "$$REMOVE", "$owner"] },
                "meta": { "$cond": [{ "$eq": ["$step", "take"] }, "$$REMOVE", "$meta"] },
                "ttl": { "$cond": [{ "$eq": ["$step", "extend"] }, ttl, { "$cond": [{ "$eq": ["$step", "take"] }, ttl, "$ttl"] }] },
                "expiresAt": { "$cond": [
                    { "$eq": ["$step", "extend"] },
                    { "$max": ["$expiresAt", end.clone()] },
                    { "$cond": [{ "$eq": ["$step", "take"] }, end, "$expiresAt"] },
                ] },
            } },
            doc! { "$unset": "step" },
        ], true);
        let record = record.await.unwrap();
        record.get_str("lockId").is_ok_and(|of| of == id).then(|| record.get_i64("fencingToken").unwrap())
    }

    /// Whether the release is confirmed.
    pub(crate) async fn release(&self, claim: &Claim) -> bool {
        let id = claim.id().as_str();
        let before = doc! { "$cond": [{ "$isArray": "$released" }, "$released", []] };
        let take = |new, field: &str| doc! { "$cond": [{ "$eq": ["$step", "take"] }, new, format!("${field}")] };
        let gone = |field: &str| doc! { "$cond": [{ "$eq": ["$step", "take"] }, "$$REMOVE", format!("${field}")] };
        let record = self.change(claim, vec![
            doc! { "$set": { "step": { "$switch": {
                "branches": [{ "case": held_by(id), "then": "take" }],
                "default": "leave",
            } } } },
            doc! { "$set": {
                "closedUntil": gone("closedUntil"),
                "expiresAt": take(doc! { "$max": ["$$NOW", "$$REMOVE"] }, "expiresAt"),
                "lastReleased": take(doc! { "$literal": id }, "lastReleased"),
                "released": take(doc! { "$slice": [{ "$concatArrays": [[{ "$literal": id }], before] }, 8] }, "released"),
                "lockId": gone("lockId"),
                "owner": gone("owner"),
                "meta": gone("meta"),
            } },
            doc! { "$unset": "step" },
        ], false);
        let Some(record) = record.await else { return false };
        record.get_array("released").is_ok_and(|released| released.contains(&id.into()))
    }

    async fn renew(&self, claim: &Claim, token: i64, ttl: Duration) -> bool {
        let (key, id) = (claim.key().as_str(), claim.id().as_str());
        let ttl = i64::try_from(ttl.as_millis()).unwrap();
        let filter = doc! { "_id": { "$in": [key] }, "$expr": { "$and": [
            { "$gt": ["$expiresAt", "$$NOW"] },
            { "$in": [
                { "key": "$_id", "id": "$lockId", "token": "$fencingToken" },
                { "$literal": [{ "key": key, "id": id, "token": token }] },
            ] },
        ] } };
        let end = doc! { "$max": ["$expiresAt", { "$add": ["$$NOW", ttl] }] };
        let change = vec![doc! { "$set": { "expiresAt": end, "ttl": ttl } }];
        self.records.update_many(filter, change).await.unwrap().matched_count == 1
    }
}

fn held_by(id: &str) -> Document {
    doc! { "$and": [{ "$eq": ["$lockId", { "$literal": id }] }, { "$gt": ["$expiresAt", "$$NOW"] }] }
}

async fn older_and_newer_processes_exclude_each_other(world: World) {
    let name = random_name("locks");
    let (older, newer) = (Older::new(&world, &name), world.store_on(&world.client, &name));
    let key = key();
    let [a, b, c, d] = [(); 4].map(|()| claim(&key));
    // The older process holds the lease: a newer one waits.
    let first = older.acquire(&a, LONG).await.expect("free");
    assert_eq!(newer.waiters(&a, LONG).await.unwrap(), 0);
    queued(&newer, &b).await;
    queued(&newer, &c).await;
    assert!(older.renew(&a, first, LONG).await, "with a queue");
    assert_eq!(older.acquire(&d, LONG).await, None);
    assert!(older.release(&a).await, "it frees, because it knows no waiters");
    // The head of the queue acquires again, and is granted.
    let second = granted(&newer, &b, LONG).await;
    assert!(second.token.get() > u64::try_from(first).unwrap());
    assert_eq!(older.acquire(&d, LONG).await, None);
    assert!(older.release(&a).await, "repeated");
    // An older process respects a lease that a newer one has handed over.
    assert_eq!(release(&newer, &b).await, Released);
    assert_eq!(older.acquire(&d, LONG).await, None);
    assert!(!older.release(&d).await);
    let info = admin(&newer).inspect(&key).await.unwrap().unwrap();
    assert_eq!(info.id.as_ref(), Some(c.id()));
    assert_eq!(renew(&newer, &c, info.token, LONG).await, Standing::Held { remaining: LONG });
    assert_eq!(release(&newer, &c).await, Released);
    let fourth = older.acquire(&d, LONG).await.expect("free");
    assert!(fourth > i64::try_from(info.token.get()).unwrap());
    busy(&newer, &claim(&key)).await;
    end_lease(&world, &name, &key).await;
    // The lease was taken over after its expiry, and is not revived.
    opened(&newer, &key).await;
    granted(&newer, &claim(&key), LONG).await;
    assert!(!older.renew(&d, fourth, LONG).await);
}

async fn older_process_leaves_the_queue_alone(world: World) {
    let name = random_name("locks");
    let (older, newer) = (Older::new(&world, &name), world.store_on(&world.client, &name));
    let key = key();
    let [a, b] = [(); 2].map(|()| claim(&key));
    granted(&newer, &a, LONG).await;
    let waiter = queued(&newer, &claim(&key)).await;
    assert!(waiter.holder_remaining.is_some());
    assert!(older.release(&a).await, "of a claim of a newer process");
    // The older process overtakes, because it sees no queue. The queue stays.
    let token = older.acquire(&b, LONG).await.expect("free");
    assert_eq!(newer.waiters(&a, LONG).await.unwrap(), 1);
    assert!(older.acquire(&b, LONG).await == Some(token), "a repeated attempt");
    assert_eq!(release(&newer, &b).await, Released, "passed on by a newer process");
    assert!(older.acquire(&b, LONG).await.is_none());
}

async fn older_and_newer_processes_race(world: World) {
    let name = random_name("locks");
    let (older, newer) = (Older::new(&world, &name), world.store_on(&world.client, &name));
    let key = key();
    let mut last = 0;
    for round in 0..60 {
        let (a, b) = (claim(&key), claim(&key));
        let (old, new) = tokio::join!(older.acquire(&a, LONG), super::world::try_once(&newer, &b, LONG));
        let new = match new {
            distlock_engine::store::Reply::Granted(grant) => Some(i64::try_from(grant.token.get()).unwrap()),
            _ => None,
        };
        assert!(old.is_some() != new.is_some(), "round {round}: {old:?} {new:?}");
        let token = old.or(new).unwrap();
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        if old.is_some() {
            assert!(older.release(&a).await);
        } else {
            assert_eq!(release(&newer, &b).await, Released);
        }
    }
}
