//! Locked rows, connections that break, and requests that are given up.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_api::{ErrorKind, LockAdmin, LockFilter, Loss, ReleaseOutcome};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, EventStore, ProviderId, Release, Renewal, Standing, StoreEvent, Watch,
};
use distlock_example_postgres::PostgresStore;
use distlock_example_postgres::tokio_postgres::{self, NoTls};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::server::Server;
use crate::{LONG, SOON, World, claim, give_back, key, take, until_blocked};

#[tokio::test]
async fn a_locked_record_is_waited_for_in_time_and_nothing_has_happened() {
    let mut world = World::new().await;
    let store = world.store();
    let held = claim("k");
    let token = take(&store, &held, LONG).await;
    give_back(&store, held).await;
    let locked = world.lock(&key("k")).await;
    let limit = Duration::from_secs(2);
    let attempt = Attempt::new(claim("k"), LONG).with_timeout(limit);
    let begun = Instant::now();
    let error = store.try_acquire(&attempt).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.is_retryable(), "{error:?}");
    assert!(begun.elapsed() < SOON);
    locked.rollback().await.unwrap();
    assert_eq!(store.inspect(&key("k")).await.unwrap(), None);
    assert!(take(&store, &claim("k"), LONG).await > token);
}

#[tokio::test]
async fn a_renewal_that_waits_beyond_the_expiry_revives_nothing() {
    let mut world = World::new().await;
    let store = world.store();
    let (late, ttl) = (claim("k"), Duration::from_millis(300));
    let token = take(&store, &late, ttl).await;
    let locked = world.lock(&key("k")).await;
    let renewal = Renewal::lease(late, token, LONG);
    let unlock = async {
        sleep(ttl).await;
        locked.rollback().await.unwrap();
    };
    let (renewed, ()) = tokio::join!(store.renew(&renewal), unlock);
    assert_eq!(renewed.unwrap(), Standing::Gone(Loss::Gone));
}

#[tokio::test]
async fn a_locked_record_delays_no_other_renewal() {
    let mut world = World::new().await;
    let store = world.store();
    let claims: Vec<_> = ["c", "a", "d", "b"].map(claim).into();
    let mut renewals = Vec::new();
    for claim in &claims {
        let token = take(&store, claim, LONG).await;
        renewals.push(Renewal::lease(claim.clone(), token, LONG * 2).with_timeout(Duration::from_millis(500)));
    }
    let locked = world.lock(&key("a")).await;
    for (renewal, answer) in renewals.iter().zip(store.renew_many(&renewals).await) {
        match answer {
            Ok(Standing::Held { remaining }) => {
                assert!(remaining > LONG && *renewal.claim.key() != key("a"));
            }
            other => {
                let error = other.unwrap_err();
                assert!(error.is_retryable() && *renewal.claim.key() == key("a"), "{error:?}");
            }
        }
    }
    locked.rollback().await.unwrap();
    assert!(store.renew_many(&renewals).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_request_that_was_given_up_does_nothing_after_the_next_one_of_its_claim() {
    let mut world = World::new().await;
    let (store, schema) = (world.store(), world.schema.clone());
    let first = claim("k");
    take(&store, &first, LONG).await;
    give_back(&store, first).await;
    let locked = world.lock(&key("k")).await;
    let left = claim("k");
    let attempt = Attempt::new(left.clone(), LONG).with_timeout(SOON);
    let leaving = async {
        // The request waits at the server when its caller leaves.
        tokio::select! {
            _ = store.try_acquire(&attempt) => panic!("the record is locked"),
            () = until_blocked(&locked, &schema, 1) => {}
        }
    };
    leaving.await;
    let release = Release::new(left).with_timeout(SOON);
    let unlock = async {
        // The fence ends the first request. The release comes after it.
        until_blocked(&locked, &format!("{schema}\".release"), 1).await;
        until_blocked(&locked, &schema, 1).await;
        locked.rollback().await.unwrap();
    };
    let (released, ()) = tokio::join!(store.release(&release), unlock);
    assert_eq!(released.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(store.inspect(&key("k")).await.unwrap(), None);
}

#[tokio::test]
async fn a_connection_that_breaks_during_a_request_leaves_its_outcome_unknown() {
    let mut world = World::new().await;
    let (store, schema) = (world.store(), world.schema.clone());
    let first = claim("k");
    take(&store, &first, LONG).await;
    let locked = world.lock(&key("k")).await;
    let release = Release::new(first).with_timeout(SOON);
    let breaking = async {
        until_blocked(&locked, &schema, 1).await;
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE wait_event_type = 'Lock' AND query LIKE $1";
        locked.query(all, &[&format!("%{schema}%")]).await.unwrap();
        locked.rollback().await.unwrap();
    };
    let (released, ()) = tokio::join!(store.release(&release), breaking);
    let error = released.unwrap_err();
    assert!(error.is_outcome_unknown() && error.kind() == ErrorKind::Unavailable, "{error:?}");
    assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn idle_connections_that_were_closed_are_replaced() {
    let world = World::new().await;
    let store = world.store();
    let claims: Vec<_> = (0..8).map(|nr| claim(&format!("k{nr}"))).collect();
    join_all(claims.iter().map(|claim| take(&store, claim, LONG))).await;
    let names = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE $1 AND pid <> $2";
    let own: i32 = world.operator.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let ended = world.operator.query(names, &[&format!("%{}%", world.schema), &own]).await.unwrap();
    assert!(!ended.is_empty());
    for claim in claims {
        // The driver may not have read the end of its connection yet.
        let release = Release::new(claim);
        let released = match store.release(&release).await {
            Err(error) if error.is_outcome_unknown() => store.release(&release).await,
            released => released,
        };
        assert_eq!(released.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn an_event_stream_whose_connection_breaks_ends_with_an_error() {
    let world = World::new().await;
    let store = world.store();
    take(&store, &claim("k"), LONG).await;
    let mut events = store.subscribe(&Watch::provider(ProviderId::random())).await.unwrap();
    store.force_release(&key("k"), "test").await.unwrap();
    let freed = timeout(SOON, events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(freed, StoreEvent::Freed { key: key("k") });
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE $1";
    world.operator.query(end, &[&format!("LISTEN%{}%", world.schema)]).await.unwrap();
    assert!(timeout(SOON, events.next()).await.unwrap().unwrap().is_err());
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn batches_and_releases_by_force_in_opposite_orders_end() {
    let world = World::new().await;
    let store = Arc::new(world.store());
    let claims: Vec<_> = (0..60).map(|nr| claim(&format!("k{nr}"))).collect();
    let mut renewals = Vec::new();
    for claim in &claims {
        let token = take(&store, claim, LONG).await;
        renewals.push(Renewal::lease(claim.clone(), token, LONG));
    }
    let reversed: Vec<_> = renewals.iter().rev().cloned().collect();
    let forcing = async {
        sleep(Duration::from_millis(20)).await;
        store.release_matching(&LockFilter::new().prefix("k"), "test").await
    };
    let renewing = |batch: Vec<Renewal>| {
        let store = Arc::clone(&store);
        async move {
            for _ in 0..10 {
                for answer in store.renew_many(&batch).await {
                    answer.unwrap();
                }
            }
        }
    };
    let ((), (), forced) =
        timeout(SOON * 2, async { tokio::join!(renewing(renewals.clone()), renewing(reversed), forcing) })
            .await
            .unwrap();
    assert_eq!(forced.unwrap(), 60);
    for answer in store.renew_many(&renewals).await {
        assert_eq!(answer.unwrap(), Standing::Gone(Loss::ForceReleased));
    }
}

#[tokio::test]
async fn a_commit_that_no_standby_has_leaves_its_outcome_unknown() {
    let server = Server::start_own().await.unwrap();
    let (operator, connection) = tokio_postgres::connect(&server.uri, NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = PostgresStore::new(&server.uri).unwrap();
    let held = claim("k");
    take(&store, &held, LONG).await;
    operator.batch_execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await.unwrap();
    operator.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let cancelling = async || {
        let waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        while operator.query(waiting, &[]).await.unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    // The server's processes read the new configuration one by one: a commit waits when all have.
    let (writer, connection) = tokio_postgres::connect(&server.uri, NoTls).await.unwrap();
    tokio::spawn(connection);
    loop {
        let mut commit = pin!(writer.batch_execute("SELECT pg_logical_emit_message(true, 'a commit', '')"));
        tokio::select! {
            committed = &mut commit => committed.unwrap(),
            () = cancelling() => break commit.await.unwrap(),
        }
    }
    let release = Release::new(held).with_timeout(SOON);
    let (released, ()) = tokio::join!(store.release(&release), cancelling());
    let error = released.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    // Once the server needs no standby, the repeated release is answered.
    operator.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.unwrap();
    operator.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::Released);
    server.stop();
}
