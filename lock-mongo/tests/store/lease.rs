//! Grants, take-overs and releases.

use std::time::Duration;

use distlock_api::ReleaseOutcome::{AlreadyLost, Released};
use distlock_engine::store::{LeaseStore, QueueStanding, Release, Reply};
use distlock_mongo::mongodb::bson::{Bson, doc};

use super::Checks;
use super::world::{LONG, SHORT, World, admin, busy, claim, granted, key, opened, release, try_once, twin};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C1 one_holder);
    check!(checks, C10 a_repeated_attempt_keeps_the_token_and_never_shortens);
    check!(checks, C19 taken_over_after_expiry_not_before);
    check!(checks, C9 release_is_truthful_and_repeatable);
    check!(checks, C8 stale_release_changes_nothing);
    check!(checks, C25 minimum_hold);
    check!(checks, busy_changes_nothing);
    check!(checks, fields_of_a_newer_version_survive);
    check!(checks, C1 racing_for_a_fresh_key);
    check!(checks, withdraw_leaves_nothing);
}

async fn one_holder(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    let grant = granted(&store, &a, LONG).await;
    assert_eq!(grant.remaining, LONG);
    assert_eq!(grant.tokens.get(), 1);

    let answer = busy(&store, &b).await;
    assert!(answer.holder_remaining.unwrap() <= LONG && answer.holder_remaining.unwrap() > LONG / 2);
    assert_eq!(answer.token, Some(grant.token));
    assert_eq!(answer.standing, QueueStanding::NotQueued);
    let later = busy(&store, &b).await;
    assert!(later.now.unwrap() >= answer.now.unwrap());

    assert_eq!(release(&store, &a).await, Released);
    assert!(granted(&store, &b, LONG).await.token > grant.token);
}

async fn a_repeated_attempt_keeps_the_token_and_never_shortens(world: World) {
    let store = world.store();
    let a = claim(&key());
    let first = granted(&store, &a, LONG).await;
    let again = granted(&store, &a, Duration::from_secs(1)).await;
    assert_eq!(again.token, first.token);
    assert!(again.remaining > Duration::from_secs(30), "shortened to {:?}", again.remaining);
    let longer = granted(&store, &twin(&a), LONG * 2).await;
    assert_eq!(longer.token, first.token);
    assert_eq!(longer.remaining, LONG * 2);
}

async fn taken_over_after_expiry_not_before(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    let started = std::time::Instant::now();
    let first = granted(&store, &a, SHORT).await;
    let second = loop {
        match try_once(&store, &b, LONG).await {
            Reply::Granted(grant) => break grant,
            Reply::Busy(busy) => tokio::time::sleep(busy.holder_remaining.unwrap()).await,
            other => panic!("{other:?}"),
        }
    };
    assert!(started.elapsed() >= SHORT, "granted before the first lease was over");
    assert!(second.token > first.token);
    busy(&store, &a).await;
}

async fn release_is_truthful_and_repeatable(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    assert_eq!(release(&store, &a).await, AlreadyLost, "never granted, no record");
    granted(&store, &a, LONG).await;
    assert_eq!(release(&store, &a).await, Released);
    assert_eq!(release(&store, &a).await, Released, "repeated");
    assert_eq!(release(&store, &twin(&a)).await, Released, "repeated by another session");
    assert_eq!(release(&store, &b).await, AlreadyLost, "never granted");
    let c = claim(&key);
    granted(&store, &c, LONG).await;
    assert_eq!(release(&store, &c).await, Released);
    assert_eq!(release(&store, &a).await, Released, "repeated after another has held and released it");
    granted(&store, &b, SHORT).await;
    assert_eq!(release(&store, &a).await, Released, "repeated while another holds it");
    opened(&store, &key).await;
    assert_eq!(release(&store, &b).await, AlreadyLost, "expired");
}

async fn stale_release_changes_nothing(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    granted(&store, &a, SHORT).await;
    opened(&store, &key).await;
    let grant = granted(&store, &b, LONG).await;
    assert_eq!(release(&store, &a).await, AlreadyLost);
    let info = admin(&store).inspect(&key).await.unwrap().expect("still held");
    assert_eq!((info.id.as_ref(), info.token), (Some(b.id()), grant.token));
}

async fn minimum_hold(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    granted(&store, &a, LONG).await;
    let quick = Release::new(a.clone()).with_hold_at_least(LONG);
    assert_eq!(store.release(&quick).await.unwrap(), Released);
    assert_eq!(store.release(&quick).await.unwrap(), Released, "repeated");
    let remaining = busy(&store, &b).await.holder_remaining.unwrap();
    assert!(remaining <= LONG && !remaining.is_zero(), "{remaining:?}");
    busy(&store, &a).await;
    let closed = admin(&store).inspect(&key).await.unwrap().expect("closed");
    assert_eq!(closed.id, None);

    // Neither longer nor shorter than the minimum hold.
    let key = super::world::key();
    let (a, b) = (claim(&key), claim(&key));
    let started = std::time::Instant::now();
    granted(&store, &a, LONG).await;
    let quick = Release::new(a.clone()).with_hold_at_least(SHORT);
    assert_eq!(store.release(&quick).await.unwrap(), Released);
    opened(&store, &key).await;
    granted(&store, &b, LONG).await;
    assert!(started.elapsed() >= SHORT);

    // The minimum hold is over: nothing is kept closed.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let late = Release::new(b.clone()).with_hold_at_least(Duration::from_millis(1));
    assert_eq!(store.release(&late).await.unwrap(), Released);
    granted(&store, &a, LONG).await;
}

async fn busy_changes_nothing(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    granted(&store, &claim(&key), LONG).await;
    let read = || async { world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap() };
    let before = read().await;
    for _ in 0..3 {
        busy(&store, &claim(&key)).await;
        assert_eq!(release(&store, &claim(&key)).await, AlreadyLost);
    }
    assert_eq!(read().await, before);
}

async fn fields_of_a_newer_version_survive(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let queue = doc! { "later": [{ "id": "$x", "seen": 1 }], "future": { "a": [1, 2] } };
    let mut record = doc! { "_id": key.as_str(), "fencingToken": 7_i64 };
    record.extend(queue.clone());
    world.raw(&name).insert_one(record).await.unwrap();
    let check = || async {
        let record = world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
        for (field, value) in &queue {
            assert_eq!(record.get(field), Some(value), "in {record}");
        }
        assert!(!record.contains_key("step"), "{record}");
        record
    };
    let a = claim(&key);
    let grant = granted(&store, &a, LONG).await;
    check().await;
    super::world::renew(&store, &a, grant.token, LONG).await;
    check().await;
    assert_eq!(release(&store, &a).await, Released);
    let free = check().await;
    assert_eq!(free.get("lockId"), None);
    assert!(matches!(free.get("expiresAt"), Some(Bson::DateTime(_))), "the TTL index must see it: {free}");
    granted(&store, &claim(&key), LONG).await;
    admin(&store).force_release(&key, "test").await.unwrap().unwrap();
    check().await;
}

async fn racing_for_a_fresh_key(world: World) {
    let (stores, _) = world.two_stores().await;
    for round in 0..200 {
        let key = key();
        let claims = [claim(&key), claim(&key)];
        let answers = tokio::join!(try_once(&stores[0], &claims[0], LONG), try_once(&stores[1], &claims[1], LONG));
        let grants = [&answers.0, &answers.1].into_iter().filter(|answer| matches!(answer, Reply::Granted(_))).count();
        assert_eq!(grants, 1, "round {round}: {answers:?}");
    }
}

async fn withdraw_leaves_nothing(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    store.withdraw(&a, LONG).await.unwrap();
    granted(&store, &a, LONG).await;
    store.withdraw(&b, LONG).await.unwrap();
    busy(&store, &b).await;
    store.withdraw(&a, LONG).await.unwrap();
    granted(&store, &b, LONG).await;
}
