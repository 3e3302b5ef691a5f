//! Collections that lose records although nobody deletes them: two holders could have one lock.

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockProvider, LockProviderExt, Result};
use distlock_mongo::mongodb::bson::spec::BinarySubtype;
use distlock_mongo::mongodb::bson::{Binary, Bson, Document, doc};
use distlock_mongo::{DocumentLocks, Fence, MongoOnce, MongoProvider, TransactionError};
use distlock_recipes::once::OnceProviderExt;

use super::Checks;
use super::world::{LONG, World, claim, granted, key, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, a_collection_that_removes_records_is_refused);
    check!(checks, a_ttl_index_that_removes_held_records_is_refused);
    check!(checks, a_ttl_index_that_removes_outcomes_is_refused);
    check!(checks, a_ttl_index_that_spares_held_records_is_no_error);
    check!(checks, a_fence_is_not_made_where_it_can_be_removed);
    check!(checks, a_database_without_replication_is_refused);
}

fn names<T>(answer: Result<T>, text_part: &str) {
    let Err(error) = answer else { panic!("not refused: {text_part}") };
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error:?}");
    assert!(!error.is_outcome_unknown() && error.to_string().contains(text_part), "{text_part}: {error}");
    crate::guide::lists(&error);
}

/// Every way into the collection is refused, before anything is written.
async fn is_refused(world: &World, collection: &str, text_part: &str) {
    let database = world.client.database("distlock_test");
    let locks = || MongoProvider::builder(database.clone()).collection(collection).build().unwrap();
    names(locks().prepare().await, text_part);
    names(locks().acquire(key()).timeout(LONG).await, text_part);
    names(locks().try_acquire(key()).await, text_part);
    names(locks().acquire_all([key(), key()]).timeout(LONG).await, text_part);
    names(locks().acquire(key()).shared().timeout(LONG).await, text_part);
    names(locks().admin().unwrap().force_release(&key(), "test").await, text_part);
    let both = locks();
    names(both.acquire(key()).timeout(LONG).await, text_part);
    names(both.acquire(key()).timeout(LONG).await, text_part);
    both.close().await.unwrap();
    assert!(both.accounting().balances() && both.accounting().unsettled == 0, "{:?}", both.accounting());
}

async fn is_refused_in_documents(world: &World, collection: &str, text_part: &str) {
    let locks = DocumentLocks::<Document>::builder(&world.raw(collection)).build().unwrap();
    names(locks.provider().prepare().await, text_part);
    let locks = DocumentLocks::<Document>::builder(&world.raw(collection)).build().unwrap();
    names(locks.lock("a").await.map(drop), text_part);
    names(locks.lock("a").or_insert(&doc! {}).await.map(drop), text_part);
    names(locks.try_lock("a").await.map(drop), text_part);
}

async fn is_refused_once(world: &World, collection: &str, text_part: &str) {
    let jobs = || MongoOnce::builder(world.client.database("distlock_test")).collection(collection).build().unwrap();
    names(jobs().prepare().await, text_part);
    names(jobs().once(key()).at_most_once().await.map(drop), text_part);
}

async fn create(world: &World, options: Document) -> String {
    let name = random_name("locks");
    let mut command = doc! { "create": &name };
    command.extend(options);
    // The Stable API lacks the options.
    world.operator.database("distlock_test").run_command(command).await.expect("a collection");
    name
}

fn capped() -> Document {
    doc! { "capped": true, "size": 100_000, "max": 8 }
}

async fn a_collection_that_removes_records_is_refused(world: World) {
    let clustered = doc! { "key": { "_id": 1 }, "unique": true };
    let mut kinds = vec![
        (capped(), "is capped"),
        (doc! { "timeseries": { "timeField": "at" }, "expireAfterSeconds": 3600 }, "time series"),
        (doc! { "clusteredIndex": clustered, "expireAfterSeconds": 3600 }, "clustered"),
        (doc! { "viewOn": "another" }, "is a view"),
    ];
    if world.topology == distlock_conformance_mongo::Topology::ReplicaSet {
        let id = Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] });
        let field = doc! { "path": "secret", "bsonType": "string", "keyId": id };
        kinds.push((doc! { "encryptedFields": { "fields": [field] } }, "encrypted"));
    }
    for (options, text_part) in kinds {
        let name = create(&world, options).await;
        is_refused(&world, &name, text_part).await;
        is_refused_in_documents(&world, &name, text_part).await;
        is_refused_once(&world, &name, text_part).await;
        if !["time series", "is a view"].contains(&text_part) {
            let found = world.raw(&name).count_documents(doc! {}).await.unwrap();
            assert_eq!(found, 0, "{text_part}");
        }
    }
    // Neither capped nor with an expiry.
    let clustered = doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true } };
    let name = create(&world, clustered).await;
    let store = world.store_on(&world.client, &name);
    store.prepare().await.unwrap();
    granted(&store, &claim(&key()), LONG).await;
}

async fn index(world: &World, collection: &str, field: &str, seconds: i32, of: Option<Document>) {
    let name = format!("theirs of {field}");
    let mut index = doc! { "key": { field: 1 }, "name": name, "expireAfterSeconds": seconds };
    if let Some(of) = of {
        index.insert("partialFilterExpression", of);
    }
    let create = doc! { "createIndexes": collection, "indexes": [index] };
    world.client.database("distlock_test").run_command(create).await.expect("an index");
}

/// Whatever its time and its filter: a lease is renewed for as long as its holder lives.
async fn a_ttl_index_that_removes_held_records_is_refused(world: World) {
    let fields = ["acquiredAt", "holders.acquiredAt", "holders.expiresAt", "queue.seen", "audit.at"];
    for (at, field) in fields.into_iter().enumerate() {
        let name = random_name("locks");
        let of = [None, Some(doc! { "fencingToken": { "$type": "long" } }), Some(doc! { "kind": "theirs" })];
        let seconds = [0, 60, 1_000_000_000];
        index(&world, &name, field, seconds[at % 3], of[at % 3].clone()).await;
        let named = format!("\"theirs of {field}\" of the collection distlock_test.{name}");
        is_refused(&world, &name, &named).await;
        let field = format!("lock.{field}");
        let name = random_name("documents");
        index(&world, &name, &field, seconds[(at + 1) % 3], of[(at + 1) % 3].clone()).await;
        is_refused_in_documents(&world, &name, &field).await;
        is_refused_once(&world, &name, &field).await;
    }
}

async fn a_ttl_index_that_removes_outcomes_is_refused(world: World) {
    for field in ["once.at", "once.begun.at", "lock.expiresAt"] {
        let name = random_name("once");
        index(&world, &name, field, 3600, None).await;
        is_refused_once(&world, &name, field).await;
    }
    let name = random_name("once");
    index(&world, &name, "lock.expiresAt", 7200, Some(doc! { "once.state": "open" })).await;
    index(&world, &name, "once.kept", 7200, None).await;
    let jobs = MongoOnce::builder(world.client.database("distlock_test")).collection(&*name).build().unwrap();
    jobs.prepare().await.unwrap();
}

async fn a_ttl_index_that_spares_held_records_is_no_error(world: World) {
    for (field, seconds) in [("expiresAt", 0), ("expiresAt", 3600), ("closedUntil", 0), ("theirs", 0)] {
        let name = random_name("locks");
        index(&world, &name, field, seconds, None).await;
        let store = world.store_on(&world.client, &name);
        store.prepare().await.unwrap();
        granted(&store, &claim(&key()), LONG).await;
    }
    // The application's own documents end as it decides.
    let name = random_name("documents");
    index(&world, &name, "acquiredAt", 60, None).await;
    let locks = DocumentLocks::<Document>::builder(&world.raw(&name)).build().unwrap();
    locks.provider().prepare().await.unwrap();
}

/// An insertion by a fence is refused. A document that is there already can be written, because its
/// removal stops every holder.
async fn a_fence_is_not_made_where_it_can_be_removed(world: World) {
    let name = create(&world, capped()).await;
    let records = world.raw(&name);
    let fence = Fence::new(FencingToken::new(7)).unwrap();
    let update = || doc! { "$set": { "paid": true } };
    names(fence.upsert_one(&records, 1, update()).await, "is capped");
    assert_eq!(records.count_documents(doc! {}).await.unwrap(), 0);
    records.insert_one(doc! { "_id": 1 }).await.unwrap();
    assert!(fence.upsert_one(&records, 1, update()).await.unwrap().is_accepted());
    assert!(fence.update_one(&records, doc! { "_id": 1 }, update()).await.unwrap().is_accepted());
    if world.topology == distlock_conformance_mongo::Topology::ReplicaSet {
        let transaction = fence.transaction(&records, "fence").within(Duration::from_secs(20));
        let Err(TransactionError::Failed(error)) = transaction.run(|_| Box::pin(async { Ok(()) })).await else {
            panic!("not refused")
        };
        names::<()>(Err(error), "is capped");
    }
}

/// No other member has what is in `local`, so that a fail-over loses it.
async fn a_database_without_replication_is_refused(world: World) {
    let error = MongoProvider::builder(world.client.database("local")).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
    assert!(error.to_string().contains("is not replicated"), "{error}");
}
