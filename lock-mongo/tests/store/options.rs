//! Builders, `prepare`, and the TTL index.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Loss};
use distlock_mongo::mongodb::IndexModel;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider, MongoProviderBuilder};
use distlock_recipes::once::OnceProviderExt;

use super::Checks;
use super::world::{LONG, World, claim, granted, key, random_name, release};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, mistakes_are_reported_before_any_request);
    check!(checks, R6 purge_index_is_made_in_the_background);
    check!(checks, purge_index_with_other_options);
    check!(checks, alone C24 close_does_not_wait_for_indexes);
    check!(checks, names);
    check!(checks, alone C20 a_ttl_below_the_latency_is_refused);
}

async fn mistakes_are_reported_before_any_request(world: World) {
    let hour = Duration::from_secs(3600);
    let wrong: [fn(MongoProviderBuilder) -> MongoProviderBuilder; 11] = [
        |builder| builder.purge_after(Duration::ZERO),
        |builder| builder.purge_after(Duration::from_secs(3599)),
        |builder| builder.purge_after(Duration::MAX),
        |builder| builder.collection(""),
        |builder| builder.collection("a$b"),
        |builder| builder.collection("system.locks"),
        |builder| builder.database("a.b"),
        |builder| builder.request_timeout(Duration::ZERO),
        |builder| builder.request_timeout(Duration::from_millis(99)),
        |builder| builder.ttl(Duration::from_millis(999)),
        |builder| builder.safety_margin(Duration::from_millis(29_501)),
    ];
    for change in wrong {
        let error = change(MongoProvider::builder_from_client(&world.client)).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    }
    MongoProvider::builder(world.client.database("app")).purge_after(hour).build().unwrap();
}

/// A lease that ends within the time of a request is never held.
async fn a_ttl_below_the_latency_is_refused(world: World) {
    let (client, sent) = world.recorded_client().await;
    let database = client.database("distlock_test");
    let ttl = Duration::from_millis(5);
    let locks = MongoProvider::builder(database.clone()).collection(random_name("locks")).build().unwrap();
    let documents =
        DocumentLocks::builder(&database.collection::<Document>(&random_name("documents"))).build().unwrap();
    let once = MongoOnce::builder(database.clone()).collection(random_name("once")).build().unwrap();
    for error in [
        locks.acquire("k").ttl(ttl).await.unwrap_err(),
        locks.try_acquire("k").ttl(ttl).await.unwrap_err(),
        locks.acquire_all(["k", "l"]).ttl(ttl).await.unwrap_err(),
        documents.lock("k").ttl(ttl).await.unwrap_err(),
        once.once("k").ttl(ttl).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        let text = error.to_string();
        assert!(["5ms", "mongodb", "1s", "min_ttl"].iter().all(|part| text.contains(part)), "{text}");
    }
    let commands = sent.take();
    assert!(commands.is_empty(), "{commands:?}");
    // The time to connect would be the client's.
    database.run_command(doc! { "ping": 1 }).await.unwrap();
    let _ = sent.take();
    let short = MongoProvider::builder(database).collection(random_name("locks")).min_ttl(ttl).build().unwrap();
    // Whether it is held in time depends on the server, but it is asked.
    if let Err(error) = short.try_acquire("k").ttl(Duration::from_millis(200)).await {
        assert_ne!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    }
    assert!(!sent.take().is_empty());
}

async fn indexes(world: &World, name: &str) -> Vec<Document> {
    let database = world.client.database("distlock_test");
    let reply = database.run_command(doc! { "listIndexes": name }).await.unwrap();
    let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    batch.iter().map(|index| index.as_document().unwrap().clone()).collect()
}

async fn purge_index_is_made_in_the_background(world: World) {
    let (store, name) = world.named_store();
    granted(&store, &claim(&key()), LONG).await;
    let index = loop {
        let found = indexes(&world, &name)
            .await
            .into_iter()
            .find(|index| index.get_document("key").unwrap().contains_key("expiresAt"));
        if let Some(index) = found {
            break index;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(index.get("expireAfterSeconds").unwrap().as_i32().map(i64::from), Some(3600));
    store.prepare().await.unwrap();
    assert_eq!(indexes(&world, &name).await.len(), 4);
}

/// They take as long as the server takes for a large collection.
async fn close_does_not_wait_for_indexes(world: World) {
    let app = random_name("app");
    let (client, _) = world.connect(|options| options.app_name = Some(app.clone())).await;
    world.fail(&app, "createIndexes", doc! { "blockConnection": true, "blockTimeMS": 10_000 }).await;
    let locks = MongoProvider::builder(client.database("distlock_test")).collection(random_name("locks"));
    let locks = locks.request_timeout(Duration::from_secs(1)).build().unwrap();
    let held = locks.acquire("k").await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(held.loss(), Some(Loss::Closed));
}

async fn purge_index_with_other_options(world: World) {
    let name = random_name("locks");
    let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).build();
    world.raw(&name).create_index(index).await.unwrap();
    let store = world.store_on(&world.client, &name);
    let a = claim(&key());
    granted(&store, &a, LONG).await;
    assert!(release(&store, &a).await.is_released());
    store.prepare().await.unwrap();
    let names = world.raw(&name).list_index_names().await.unwrap();
    assert!(names.iter().any(|name| name == "distlock_purge"), "{names:?}");
}

async fn names(world: World) {
    let provider = MongoProvider::builder_from_client(&world.client).build().unwrap();
    assert_eq!(provider.to_string(), "MongoDB(distlock.locks)");
    let provider = MongoProvider::builder(world.client.database("app")).collection("my.locks").build().unwrap();
    assert_eq!(provider.to_string(), "MongoDB(app.my.locks)");
}
