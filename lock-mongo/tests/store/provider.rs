//! The provider as an application sees it: the store under the engine.

use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt, Loss, RenewalPolicy};
use distlock_mongo::MongoProvider;

use super::Checks;
use super::world::{World, key, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    checks.add("provider_locks_and_unlocks", round_trip);
    checks.add("provider_renews_and_hears_of_losses", renewal_and_loss);
}

fn provider(world: &World, collection: &str, lease: LeaseOptions) -> MongoProvider {
    let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(collection);
    builder.lease(lease).owner("test").build().expect("valid options")
}

async fn round_trip(world: World) {
    let name = random_name("locks");
    let [a, b] = [(); 2].map(|()| provider(&world, &name, LeaseOptions::new()));
    a.connect().await.unwrap();
    let key = key();
    let guard = a.acquire(&key).await.unwrap();
    assert!(b.try_acquire(&key).await.unwrap().is_none());
    let info = b.admin().unwrap().inspect(&key).await.unwrap().unwrap();
    // The last one of its block.
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

async fn renewal_and_loss(world: World) {
    let ttl = Duration::from_secs(3);
    let lease = LeaseOptions::new().ttl(ttl).renewal(RenewalPolicy::Every(ttl / 10));
    let locks = provider(&world, &random_name("locks"), lease);
    let guard = locks.acquire(key()).await.unwrap();
    tokio::time::sleep(ttl + ttl / 3).await;
    assert_eq!(guard.loss(), None, "not renewed");
    locks.admin().unwrap().force_release(guard.key(), "test").await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("the victim hears of it");
    assert_eq!(guard.loss(), Some(Loss::ForceReleased));
    drop(guard);
    locks.close().await.unwrap();
}
