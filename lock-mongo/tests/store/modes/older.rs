//! Processes that know no modes, beside others that do, as during a rolling deployment: those of
//! the format before the queue, and those of the format before modes.

use distlock_api::ReleaseOutcome::{AlreadyLost, Released};
use distlock_api::{Loss, Mode};
use distlock_conformance_mongo::Topology;
use distlock_engine::store::{Claim, LeaseStore, Release, Standing};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::options::ReturnDocument;

use super::{claim_in, holders, permits, reader, record};
use crate::Checks;
use crate::older::Older;
use crate::world::{
    LONG, World, admin, busy, claim, end_lease, granted, key, opened, queued, random_name, release, renew,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C1 older_processes_wait_for_all_holders);
    check!(checks, R25 an_older_release_grants_alone);
    check!(checks, R25 an_older_grant_has_a_minimum_hold);
}

/// A process of the format before modes. Its release is literally that of this version.
pub(super) struct Before {
    records: Collection<Document>,
    clock: Document,
}

impl Before {
    pub(super) fn new(world: &World, name: &str) -> Self {
        let clock = match world.topology {
            Topology::ReplicaSet => doc! { "$add": [
                { "$multiply": [{ "$subtract": [{ "$tsSecond": "$$CLUSTER_TIME" }, 1_735_689_600_i64] }, 2_097_152_i64] },
                { "$tsIncrement": "$$CLUSTER_TIME" },
            ] },
            Topology::Standalone => {
                let millis = doc! { "$toLong": "$$NOW" };
                let seconds = doc! { "$toLong": { "$floor": { "$divide": [millis.clone(), 1000] } } };
                doc! { "$add": [
                    { "$multiply": [{ "$subtract": [seconds, 1_735_689_600_i64] }, 2_097_152_i64] },
                    { "$multiply": [{ "$mod": [millis, 1000] }, 2048_i64] },
                ] }
            }
        };
        Self { records: world.raw(name), clock }
    }

    /// Releases an exclusive lease, and grants it to the first ticket.
    pub(super) async fn release(&self, claim: &Claim) -> bool {
        let id = doc! { "$literal": claim.id().as_str() };
        let filter = doc! {
            "_id": claim.key().as_str(),
            "fencingToken": { "$type": "long", "$not": { "$type": "array" } },
            "lockId": { "$eq": claim.id().as_str() },
            "$expr": { "$gt": ["$expiresAt", "$$NOW"] },
        };
        let alive = doc! { "$and": [
            { "$eq": [{ "$type": "$$this.id" }, "string"] },
            { "$eq": [{ "$type": "$$this.seen" }, "date"] },
            { "$isNumber": "$$this.ttl" },
            { "$isNumber": "$$this.claim" },
            { "$isNumber": "$$this.tokens" },
            { "$gt": [{ "$add": ["$$this.seen", "$$this.ttl"] }, "$$NOW"] },
        ] };
        let tickets = doc! { "$cond": [{ "$isArray": "$queue" }, "$queue", []] };
        let live = doc! { "$filter": { "input": tickets, "cond": alive } };
        let others = doc! { "$filter": { "input": live, "cond": { "$ne": ["$$this.id", &id] } } };
        let passes = |new: Document, otherwise: &str| doc! { "$cond": ["$step.do.pass", new, otherwise] };
        let of_head = |field: &str| doc! { "$ifNull": [format!("$step.head.{field}"), "$$REMOVE"] };
        let first = doc! { "$max": [{ "$add": [{ "$ifNull": ["$fencingToken", 0_i64] }, 1_i64] }, &self.clock] };
        let last = doc! { "$toLong": { "$subtract": [{ "$add": [&first, "$step.head.tokens"] }, 1_i64] } };
        let unless_empty = |queue: Document| {
            doc! { "$let": {
                "vars": { "queue": queue },
                "in": { "$cond": [{ "$eq": ["$$queue", []] }, "$$REMOVE", "$$queue"] },
            } }
        };
        let before = doc! { "$cond": [{ "$isArray": "$released" }, "$released", []] };
        let rest = unless_empty(doc! { "$slice": ["$step.live", 1, i32::MAX] });
        let all = unless_empty(doc! { "$slice": ["$step.live", 0x7fff] });
        let pipeline = vec![
            doc! { "$set": { "step.live": others } },
            doc! { "$set": { "step.head": { "$first": "$step.live" } } },
            doc! { "$set": { "step.do": { "$switch": {
                "branches": [{ "case": { "$gt": [{ "$size": "$step.live" }, 0] }, "then": { "pass": true } }],
                "default": {},
            } } } },
            doc! { "$set": {
                "lockId": passes(of_head("id"), "$$REMOVE"),
                "tokens": passes(of_head("tokens"), "$tokens"),
                "fencingToken": passes(last, "$fencingToken"),
                "passed": passes(doc! { "$toLong": first }, "$passed"),
                "acquiredAt": passes(doc! { "$add": ["$$NOW", 0] }, "$acquiredAt"),
                "expiresAt": passes(doc! { "$add": ["$$NOW", "$step.head.claim"] }, "$$NOW"),
                "ttl": passes(of_head("claim"), "$ttl"),
                "closedUntil": "$$REMOVE",
                "expired": { "$cond": ["$step.do.pass", "$$REMOVE", "$expired"] },
                "owner": passes(of_head("owner"), "$$REMOVE"),
                "meta": passes(of_head("meta"), "$$REMOVE"),
                "lastReleased": &id,
                "released": { "$slice": [{ "$concatArrays": [[&id], before] }, 8] },
                "queue": { "$cond": ["$step.do.pass", rest, all] },
            } },
            doc! { "$unset": "step" },
        ];
        let change = self.records.find_one_and_update(filter, pipeline).return_document(ReturnDocument::After);
        change.await.unwrap().is_some()
    }
}

async fn older_processes_wait_for_all_holders(world: World) {
    let name = random_name("locks");
    let (older, newer) = (Older::new(&world, &name), world.store_on(&world.client, &name));
    for mode in [Mode::Shared, permits(1, 3)] {
        let key = key();
        let (a, b, theirs) = (claim_in(mode, &key), claim_in(mode, &key), claim(&key));
        granted(&newer, &a, LONG).await;
        assert_eq!(older.acquire(&theirs, LONG).await, None);
        assert!(!older.release(&theirs).await);
        let token = granted(&newer, &b, LONG / 2).await.token;
        assert_eq!(release(&newer, &a).await, Released);
        assert_eq!(older.acquire(&theirs, LONG).await, None, "until the latest of them has expired");
        let left = record(&world, &name, &key).await;
        let [holder] = left.get_array("holders").unwrap().as_slice() else { panic!("{left}") };
        let end = holder.as_document().unwrap().get_datetime("expiresAt").unwrap();
        assert_eq!(left.get_datetime("expiresAt").unwrap(), end, "that of the holder that is left");
        end_lease(&world, &name, &key).await;
        opened(&newer, &key).await;
        let taken = older.acquire(&theirs, LONG).await.expect("free");
        assert!(taken.unsigned_abs() > token.get());
        // It leaves the holders behind, and they mean nothing.
        assert!(record(&world, &name, &key).await.contains_key("holders"));
        assert_eq!(renew(&newer, &b, token, LONG).await, Standing::Gone(Loss::Gone));
        assert_eq!(release(&newer, &b).await, AlreadyLost);
        let waiter = claim_in(mode, &key);
        queued(&newer, &waiter).await;
        assert!(older.release(&theirs).await);
        granted(&newer, &waiter, LONG).await;
        assert_eq!(holders(&newer, &key).await, [waiter.id().clone()]);
        assert_eq!(older.acquire(&claim(&key), LONG).await, None);
        assert_eq!(release(&newer, &waiter).await, Released);
        let theirs = claim(&key);
        assert!(older.acquire(&theirs, LONG).await.is_some());
        busy(&newer, &claim_in(mode, &key)).await;
        assert!(older.release(&theirs).await);
    }
}

async fn an_older_release_grants_alone(world: World) {
    let name = random_name("locks");
    let (before, newer) = (Before::new(&world, &name), world.store_on(&world.client, &name));
    let key = key();
    let holder = claim(&key);
    granted(&newer, &holder, LONG).await;
    let (a, b, c) = (reader(&key), reader(&key), reader(&key));
    queued(&newer, &a).await;
    queued(&newer, &b).await;
    assert!(before.release(&holder).await);
    let info = admin(&newer).inspect(&key).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.holders.len()), (Some(a.id()), 0), "to the head alone");
    let grant = granted(&newer, &a, LONG).await;
    assert_eq!(grant.token, info.token);
    assert_eq!(renew(&newer, &a, grant.token, LONG * 2).await, Standing::Held { remaining: LONG * 2 });
    assert_eq!(renew(&newer, &b, grant.token, LONG).await, Standing::Gone(Loss::Gone));
    busy(&newer, &c).await;
    assert_eq!(release(&newer, &a).await, Released);
    assert_eq!(release(&newer, &a).await, Released, "repeated");
    assert_eq!(holders(&newer, &key).await, [b.id().clone()], "and from now on together");
    granted(&newer, &c, LONG).await;
    assert_eq!(holders(&newer, &key).await, [b.id().clone(), c.id().clone()]);
    // A waiting writer that an older release grants to, and readers behind it.
    let (writer, d) = (claim(&key), reader(&key));
    queued(&newer, &writer).await;
    queued(&newer, &d).await;
    for reader in [&b, &c] {
        assert_eq!(release(&newer, reader).await, Released);
    }
    assert!(before.release(&writer).await);
    assert_eq!(admin(&newer).inspect(&key).await.unwrap().unwrap().id.as_ref(), Some(d.id()));
    assert_eq!(release(&newer, &d).await, Released);
    assert!(admin(&newer).inspect(&key).await.unwrap().is_none());
}

async fn an_older_grant_has_a_minimum_hold(world: World) {
    let name = random_name("locks");
    let (before, newer) = (Before::new(&world, &name), world.store_on(&world.client, &name));
    let key = key();
    let (holder, a, b) = (claim(&key), reader(&key), reader(&key));
    granted(&newer, &holder, LONG).await;
    queued(&newer, &a).await;
    assert!(before.release(&holder).await);
    let quickly = Release::new(a.clone()).with_hold_at_least(LONG / 2);
    assert_eq!(newer.release(&quickly).await.unwrap(), Released);
    assert_eq!(holders(&newer, &key).await, [a.id().clone()]);
    granted(&newer, &b, LONG).await;
    busy(&newer, &claim(&key)).await;
}
