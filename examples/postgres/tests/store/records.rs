//! The schema, and the contents of the records.

use std::time::Duration;

use distlock_api::{AcquisitionId, ErrorKind, Holder, LockAdmin, LockEvent, LockFilter, Mode};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, Claim, ProviderId, QueueStanding, Renewal, Reply, Standing, Ticket};
use distlock_example_postgres::PostgresStore;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{sleep, timeout};

use crate::{LONG, SOON, World, claim, give_back, key, take};

#[tokio::test]
async fn descriptions_come_back_unchanged() {
    let world = World::new().await;
    let store = world.store();
    let odd = "\0 'x' \\ %_ é\u{10ffff}";
    let name = key(&format!("k{odd}"));
    let holder = Holder::new().with_owner(odd).with_metadata("job", odd).with_metadata(odd, "");
    let claim = Claim::new(name.clone(), ProviderId::random().acquisition_id());
    let reply = store.try_acquire(&Attempt::new(claim, LONG).with_holder(holder.clone())).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)));
    let info = store.inspect(&name).await.unwrap().unwrap();
    assert_eq!((info.key, info.owner.as_deref()), (name.clone(), Some(odd)));
    assert_eq!(Some(&info.metadata), holder.metadata.as_deref());
    assert_eq!(store.release_matching(&LockFilter::new().owner(odd), odd).await.unwrap(), 1);
    let history = store.history(&name).await.unwrap();
    assert_eq!((history.len(), history[0].reason.as_str(), history[0].owner.as_deref()), (1, odd, Some(odd)));
}

#[tokio::test]
async fn invalid_requests_are_refused_before_anything_is_sent() {
    let nowhere = PostgresStore::new("postgres://me@127.0.0.1:1/x").unwrap();
    let odd = Claim::new(key("k"), AcquisitionId::new("a\0b"));
    let error = nowhere.try_acquire(&Attempt::new(odd.clone(), LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let error = nowhere.release_matching(&LockFilter::new(), "all").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let error = nowhere.try_acquire(&Attempt::new(claim("k"), LONG)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error:?}");

    let world = World::new().await;
    let stranger = world.uri.replace("postgres@", "no_such_role:secret@");
    let error = PostgresStore::new(&stranger).unwrap().inspect(&key("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(!format!("{error:?} {error}").contains("secret"));
}

#[tokio::test]
async fn stores_that_start_at_once_create_one_schema_and_a_newer_one_is_refused() {
    let world = World::new().await;
    let stores: Vec<_> = (0..8).map(|_| world.store()).collect();
    let claims: Vec<_> = (0..8).map(|_| claim("k")).collect();
    let attempts: Vec<_> = claims.iter().map(|claim| Attempt::new(claim.clone(), LONG).with_timeout(SOON)).collect();
    let replies = join_all(stores.iter().zip(&attempts).map(|(store, attempt)| store.try_acquire(attempt))).await;
    let granted = replies.into_iter().filter(|reply| matches!(reply.as_ref().unwrap(), Reply::Granted(_))).count();
    assert_eq!(granted, 1);
    let newer = format!("UPDATE {}.meta SET version = version + 1", world.schema);
    world.operator.batch_execute(&newer).await.unwrap();
    let error = world.store().inspect(&key("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}

#[tokio::test]
async fn a_purge_removes_unused_records_and_tokens_still_grow() {
    let world = World::new().await;
    let store = world.store();
    let mut last = Vec::new();
    for nr in 0..250 {
        let claim = claim(&format!("k{nr:03}"));
        last.push(take(&store, &claim, LONG).await);
        give_back(&store, claim).await;
    }
    let held = claim("k249");
    take(&store, &held, LONG).await;
    assert_eq!(store.purge(Duration::ZERO).await.unwrap(), 0, "unused for less than a minute");
    // A token far ahead of the clock, as after the clock was set back.
    let age = format!(
        "UPDATE {schema}.lease SET token = token + 1000000000000000 WHERE id IS NULL;
         UPDATE {schema}.lease SET closed_until = closed_until - interval '2 hours' WHERE id IS NULL",
        schema = world.schema
    );
    world.operator.batch_execute(&age).await.unwrap();
    assert_eq!(store.purge(Duration::from_secs(3600)).await.unwrap(), 249);
    assert!(store.inspect(held.key()).await.unwrap().is_some());
    let next = take(&store, &claim("k000"), LONG).await;
    assert!(next.get() > last[0].get() + 1_000_000_000_000_000 && next.get() < 1 << 53, "{next}");
}

#[tokio::test]
async fn a_place_in_the_queue_outlives_a_lost_reply() {
    let world = World::new().await;
    let store = world.store();
    let (held, ticket) = (claim("k"), Ticket::new(LONG, LONG, 8));
    take(&store, &held, LONG).await;
    let [first, second] = [claim("k"), claim("k")];
    for (ahead, waiter) in [(0, &first), (1, &second), (0, &first)] {
        let attempt = Attempt::new(waiter.clone(), LONG).with_ticket(ticket);
        let Reply::Busy(busy) = store.try_acquire(&attempt).await.unwrap() else { panic!("the key is held") };
        assert_eq!(busy.standing, QueueStanding::Queued { ahead });
    }
    give_back(&store, held).await;
    let info = store.inspect(&key("k")).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.waiting), (Some(first.id()), Some(1)));
}

#[tokio::test]
async fn a_role_without_ownership_can_use_what_another_has_installed() {
    let world = World::new().await;
    take(&world.store(), &claim("k"), LONG).await;
    let role = format!("plain_{}", world.schema);
    let grants = format!(
        "CREATE ROLE {role} LOGIN;
         GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
        schema = world.schema
    );
    world.operator.batch_execute(&grants).await.unwrap();
    let uri = world.uri.replace("postgres@", &format!("{role}@"));
    let store = PostgresStore::parse(&uri).unwrap().schema(&world.schema).build().unwrap();
    let attempt = Attempt::new(claim("k"), LONG).with_ticket(Ticket::new(LONG, LONG, 8));
    assert!(matches!(store.try_acquire(&attempt).await.unwrap(), Reply::Busy(_)));
    assert!(store.force_release(&key("k"), "test").await.unwrap().is_some());
    assert!(matches!(store.try_acquire(&attempt).await.unwrap(), Reply::Granted(_)));
    assert_eq!(store.purge(Duration::ZERO).await.unwrap(), 0);
    let undo = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    world.operator.batch_execute(&undo).await.unwrap();
}

#[tokio::test]
async fn lock_events_are_reported_where_a_store_has_enabled_them() {
    let world = World::new().await;
    let silent = world.store();
    let error = silent.watch().await.err().expect("no events without the trigger");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    let reporting = PostgresStore::parse(world.uri).unwrap().schema(&world.schema).lock_events().build().unwrap();
    drop(reporting.watch().await.unwrap());
    // Now the other store reports events, too, and may watch.
    let mut events = silent.watch().await.unwrap();
    let (expired, claim) = (claim("k"), claim("k"));
    take(&silent, &expired, Duration::from_millis(1)).await;
    sleep(Duration::from_millis(2)).await;
    let token = take(&silent, &claim, LONG).await;
    let renewal = Renewal::lease(claim.clone(), token, LONG);
    assert!(matches!(silent.renew(&renewal).await.unwrap(), Standing::Held { .. }));
    give_back(&silent, claim.clone()).await;
    let seen: Vec<LockEvent> = timeout(SOON, (&mut events).take(4).try_collect()).await.unwrap().unwrap();
    let (key, owner) = (key("k"), None::<String>);
    let grant_of = |event: &LockEvent, of: &Claim| match event {
        LockEvent::Granted { id, .. } => id == of.id(),
        _ => false,
    };
    assert!(grant_of(&seen[0], &expired), "{seen:?}");
    assert_eq!(seen[1], LockEvent::Expired { key: key.clone(), id: expired.id().clone() });
    assert_eq!(
        seen[2],
        LockEvent::Granted { key: key.clone(), id: claim.id().clone(), token, owner, mode: Mode::Exclusive }
    );
    assert_eq!(seen[3], LockEvent::Released { key, id: claim.id().clone() });
}
