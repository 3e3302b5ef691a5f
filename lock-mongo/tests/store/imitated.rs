//! Servers that speak MongoDB's protocol and lack something: a proxy in front of a real server
//! refuses what they refuse.

use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockError, LockProvider, LockProviderExt, Result};
use distlock_conformance_mongo::{Imitation, Shape};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider};
use distlock_recipes::once::OnceProviderExt;

use super::Checks;
use super::proxied::primary;
use super::world::{LONG, World, key, random_name};

/// Much longer than a poll, and shorter than the ttl.
const SOON: Duration = Duration::from_secs(30);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, a_server_that_lacks_something_is_named);
    check!(checks, an_old_server_is_no_other_server);
    check!(checks, C16 a_server_without_change_streams_is_polled);
    check!(checks, alone a_refusal_of_a_real_server_is_no_lack);
}

async fn client(imitation: &Imitation) -> Client {
    let uri = format!("mongodb://{}/?directConnection=true", imitation.address());
    Client::with_uri_str(uri).await.unwrap()
}

fn locks_on(client: &Client) -> MongoProvider {
    let builder = MongoProvider::builder(client.database("distlock_test")).collection(random_name("locks"));
    builder.lease(LeaseOptions::new().ttl(LONG)).build().unwrap()
}

fn names<T>(answer: Result<T>, lacking: &[&str]) {
    let Err(error) = answer else { panic!("not refused: {lacking:?}") };
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error}");
    assert!(!error.is_outcome_unknown(), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("this server is not MongoDB: it lacks "), "{text}");
    assert!(text.contains("distlock needs"), "{text}");
    for part in ["pipeline updates", "$$NOW", "$$CLUSTER_TIME"] {
        assert_eq!(text.contains(part), lacking.contains(&part), "{part}: {text}");
    }
    crate::guide::lists(&error);
}

async fn a_server_that_lacks_something_is_named(world: World) {
    // A standalone has no `$$CLUSTER_TIME`, and needs none.
    let is_set = world.topology == distlock_conformance_mongo::Topology::ReplicaSet;
    let all: &[&str] =
        if is_set { &["pipeline updates", "$$NOW", "$$CLUSTER_TIME"] } else { &["pipeline updates", "$$NOW"] };
    for (shape, lacking) in
        [(Shape::AmazonDocumentDb, all), (Shape::CosmosRu, all), (Shape::EarlyDocumentDbOnPostgres, &["$$NOW"])]
    {
        let imitation = Imitation::of(shape, primary(&world).await).await.unwrap();
        let client = client(&imitation).await;
        names(locks_on(&client).prepare().await, lacking);
        names(locks_on(&client).acquire(key()).timeout(LONG).await, lacking);
        names(locks_on(&client).try_acquire(key()).await, lacking);
        names(locks_on(&client).acquire(key()).permits(1, 2).timeout(LONG).await, lacking);
        names(locks_on(&client).acquire_all([key(), key(), key()]).timeout(LONG).await, lacking);
        // Before the deployment is known, the clock that it needs is not.
        let without_clock: Vec<_> = lacking.iter().copied().filter(|part| *part != "$$CLUSTER_TIME").collect();
        names(locks_on(&client).admin().unwrap().inspect(&key()).await, &without_clock);
        let locks = locks_on(&client);
        for _ in 0..2 {
            names(locks.acquire(key()).timeout(LONG).await, lacking);
        }
        locks.close().await.unwrap();
        assert!(locks.accounting().balances() && locks.accounting().unsettled == 0, "{:?}", locks.accounting());

        let records = client.database("distlock_test").collection::<Document>(&random_name("documents"));
        world.raw(records.name()).insert_one(doc! { "_id": "a" }).await.unwrap();
        let documents = || DocumentLocks::<Document>::builder(&records).build().unwrap();
        names(documents().provider().prepare().await, lacking);
        names(documents().lock("a").await.map(drop), lacking);
        let jobs = || MongoOnce::builder(client.database("distlock_test")).collection(random_name("once")).build();
        names(jobs().unwrap().prepare().await, lacking);
        names(jobs().unwrap().once(key()).at_most_once().await.map(drop), lacking);
        client.shutdown().immediate(true).await;
    }
}

/// The error of an operator, who needs the events.
fn has_no_streams(error: &LockError) {
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error}");
    assert!(error.to_string().contains("no change streams"), "{error}");
    crate::guide::lists(error);
}

async fn a_server_without_change_streams_is_polled(world: World) {
    for shape in [Shape::AtlasFlex, Shape::DocumentDbOnPostgres] {
        let imitation = Imitation::of(shape, primary(&world).await).await.unwrap();
        let client = client(&imitation).await;
        let (holder, key) = (locks_on(&client), key());
        holder.prepare().await.unwrap();
        let builder = MongoProvider::builder(client.database("distlock_test"));
        let collection = holder.to_string();
        let collection = collection.rsplit_once('.').unwrap().1.trim_end_matches(')').to_owned();
        let waiter = builder.collection(collection).build().unwrap();
        let guard = holder.acquire(&key).await.unwrap();
        let waiting = tokio::spawn({
            let (waiter, key) = (waiter.clone(), key.clone());
            async move { waiter.acquire(&key).timeout(SOON).await }
        });
        let admin = holder.admin().expect("administration");
        while admin.inspect(&key).await.unwrap().and_then(|info| info.waiting) != Some(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(guard.release().await.unwrap().is_released());
        let next = tokio::time::timeout(SOON, waiting).await.expect("it polls").unwrap().unwrap();
        assert!(next.release().await.unwrap().is_released());
        let Err(error) = admin.watch().await else { panic!("it watches") };
        has_no_streams(&error);
        for locks in [holder, waiter] {
            locks.close().await.unwrap();
        }
        client.shutdown().immediate(true).await;
    }
}

/// A server of MongoDB that is too old has what the protocol needs, in another form.
async fn an_old_server_is_no_other_server(world: World) {
    let old = Imitation::with_wire_version(primary(&world).await, Some(13), |_| None).await.unwrap();
    let error = locks_on(&client(&old).await).prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().starts_with("the server is too old: MongoDB 6.0"), "{error}");
    // Even the driver does not support this one.
    let old = Imitation::with_wire_version(primary(&world).await, Some(6), |_| None).await.unwrap();
    let error = locks_on(&client(&old).await).prepare().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error}");
    crate::guide::lists(&error);
}

/// A code that such servers answer, from one that lacks nothing, keeps its meaning.
async fn a_refusal_of_a_real_server_is_no_lack(world: World) {
    let (client, app) = world.client_of_app().await;
    let locks = locks_on(&client);
    world.fail(&app, "findAndModify", doc! { "errorCode": 9 }).await;
    let error = locks.try_acquire(key()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Other, false), "{error}");
    let guard = locks.try_acquire(key()).await.unwrap().expect("free");
    assert!(guard.release().await.unwrap().is_released());
    locks.close().await.unwrap();
}
