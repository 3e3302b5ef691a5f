//! The provider as an application uses it: the store under the engine.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt, Loss, RenewalPolicy};
use distlock_engine::LeaseStore;
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{MongoOnce, MongoProvider, close_all};
use distlock_recipes::once::{OnceProvider, OnceProviderExt};

use super::Checks;
use super::world::{World, key, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, provider_locks_and_unlocks);
    check!(checks, provider_renews_and_reports_losses);
    check!(checks, the_builder_sets_lease_terms);
    check!(checks, close_all_closes_the_client_last);
    check!(checks, a_probe_finds_nothing_and_leaves_nothing);
    if checks.is_replica_set() {
        check!(checks, R20 the_holder_of_a_changed_record_renews_at_once);
    }
}

fn provider(world: &World, collection: &str, lease: LeaseOptions) -> MongoProvider {
    let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(collection);
    builder.lease(lease).owner("test").build().expect("valid options")
}

async fn the_builder_sets_lease_terms(world: World) {
    let (ttl, margin) = (Duration::from_secs(20), Duration::from_secs(5));
    let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(random_name("locks"));
    let builder = builder.ttl(ttl).safety_margin(margin).renewal(RenewalPolicy::Never).hold_at_least(ttl);
    let shown = format!("{builder:?}");
    assert!(shown.contains("distlock_test.locks_") && shown.contains("20s") && !shown.contains("Client"), "{shown}");
    let locks = builder.connect().await.unwrap();
    let key = key();
    let guard = locks.acquire(&key).await.unwrap();
    let remaining = guard.remaining().unwrap();
    assert!(remaining > ttl / 2 && remaining <= ttl - margin, "{remaining:?}");
    assert!(guard.release().await.unwrap().is_released());
    assert!(locks.try_acquire(&key).await.unwrap().is_none(), "the minimum hold keeps the key closed");
    let shown = format!("{locks:?}");
    for part in ["accounting", "Lanes", "0 in line", "acquisitions: 0 wait; 0 batches", "releases: 0 wait"] {
        assert!(shown.contains(part) && !shown.contains("Client"), "{part} in {shown}");
    }
    locks.close().await.unwrap();
}

async fn a_probe_finds_nothing_and_leaves_nothing(world: World) {
    let name = random_name("locks");
    let store: Arc<dyn LeaseStore> = Arc::new(world.store_on(&world.client, &name));
    let started = Instant::now();
    distlock_conformance::probe(&store).await.unwrap();
    println!("the probe took {:?}", started.elapsed());
    let everything = distlock_api::LockFilter::new();
    let held = store.extras().admin.unwrap().page(&everything, None, NonZeroUsize::MAX).await.unwrap();
    assert!(held.is_empty(), "{held:?}");
}

async fn provider_locks_and_unlocks(world: World) {
    let name = random_name("locks");
    let [a, b] = [(); 2].map(|()| provider(&world, &name, LeaseOptions::new()));
    a.prepare().await.unwrap();
    let key = key();
    let guard = a.acquire(&key).await.unwrap();
    assert!(b.try_acquire(&key).await.unwrap().is_none());
    let info = b.admin().unwrap().inspect(&key).await.unwrap().unwrap();
    // The last token of its block.
    assert!(info.token >= guard.fencing_token());
    assert_eq!((info.owner.as_deref(), info.waiting), (Some("test"), Some(0)));
    assert!(guard.release().await.unwrap().is_released());
    let next = b.try_acquire(&key).await.unwrap().expect("free");
    drop(next);
    let waited = a.acquire(&key).timeout(Duration::from_secs(10)).await.unwrap();
    assert!(waited.release().await.unwrap().is_released());
    for provider in [a, b] {
        provider.close().await.unwrap();
        assert!(provider.accounting().balances());
    }
}

/// The driver waits for all sessions and cursors, including those of providers that still exist.
async fn close_all_closes_the_client_last(world: World) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let providers = [(); 2].map(|()| {
        let builder = MongoProvider::builder(client.database("distlock_test")).collection(&name);
        builder.build().expect("valid options")
    });
    let key = key();
    let guard = providers[0].acquire(&key).await.unwrap();
    let waits = providers[1].acquire(&key).timeout(Duration::from_millis(1500));
    assert!(waits.await.is_err(), "it is held");
    drop(guard);
    let jobs = MongoOnce::builder(client.database("distlock_test")).collection(random_name("once")).build().unwrap();
    let _work = jobs.once("job").await.unwrap().begun().unwrap();
    let _held = providers[1].acquire(&key).await.unwrap();
    sent.take();
    close_all(client, [providers[0].close(), providers[1].close(), jobs.close()]).await.unwrap();
    // Both leases are released, and then the client ends the sessions of the server.
    let sent = sent.take();
    let last = sent.iter().rposition(|command| !command.contains_key("endSessions")).expect("releases");
    assert!(last + 1 < sent.len(), "the client is not shut down: {sent:?}");
    assert_eq!(providers[1].accounting().abandoned, 0);
    assert!(provider(&world, &name, LeaseOptions::new()).try_acquire(&key).await.unwrap().is_some());
    assert!(providers[0].acquire(&key).await.is_err());
}

/// Without an event a renewal would follow after 30 s.
async fn the_holder_of_a_changed_record_renews_at_once(world: World) {
    let name = random_name("locks");
    let locks = provider(&world, &name, LeaseOptions::new().ttl(Duration::from_secs(90)));
    let records = world.raw(&name);
    let (mut held, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let guard = locks.acquire(key()).await.unwrap();
        ends.push(guard.valid_until());
        held.push(guard);
    }
    // The stream is opened when a lease is a second old, and all leases are renewed then.
    let renewed = async {
        while held.iter().zip(&ends).any(|(guard, end)| guard.valid_until() == *end) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), renewed).await.expect("a renewal");
    let by_key = |n: usize| doc! { "_id": held[n].key().as_str() };
    records.delete_one(by_key(0)).await.unwrap();
    records.update_one(by_key(1), doc! { "$unset": { "lockId": 1 } }).await.unwrap();
    records.replace_one(by_key(2), doc! { "something": "else" }).await.unwrap();
    for guard in &held[..3] {
        let lost = tokio::time::timeout(Duration::from_secs(20), guard.lost()).await;
        lost.unwrap_or_else(|_| panic!("{} was not lost", guard.key()));
    }
    assert_eq!(held[3].loss(), None, "its record is untouched");
    drop(held);
    locks.close().await.unwrap();
}

async fn provider_renews_and_reports_losses(world: World) {
    let ttl = Duration::from_secs(8);
    let lease = LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Every(Duration::from_millis(500)));
    let locks = provider(&world, &random_name("locks"), lease);
    let guard = locks.acquire(key()).await.unwrap();
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert_eq!(guard.loss(), None, "not renewed");
    locks.admin().unwrap().force_release(guard.key(), "test").await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("the holder gets the loss");
    assert_eq!(guard.loss(), Some(Loss::ForceReleased));
    drop(guard);
    locks.close().await.unwrap();
}
