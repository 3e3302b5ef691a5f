//! Collections that contain other documents than lock records, or cannot contain locks, and users
//! without the privileges that locks need (R22).

use std::time::{Duration, SystemTime};

use distlock_api::{ErrorKind, LeaseOptions, ListOptions, LockFilter, LockKey, LockProvider, LockProviderExt, Result};
use distlock_engine::store::{Attempt, LeaseStore, Reply};
use distlock_mongo::mongodb::IndexModel;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};
use distlock_mongo::mongodb::options::{
    ClientOptions, Collation, CollationStrength, Credential, IndexOptions, ServerAddress, TlsOptions,
};
use distlock_mongo::{DocumentLocks, MongoProvider};
use futures_util::TryStreamExt;
use tokio::time::{sleep, timeout};
use tracing::instrument::WithSubscriber;

use super::Checks;
use super::streams::until_streams;
use super::world::{LONG, World, admin, claim, granted, key, random_name, ticket, twin};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R22 foreign_documents_are_not_changed);
    check!(checks, R22 only_records_are_purged);
    check!(checks, R22 locks_of_another_program_are_respected_until_they_expire);
    check!(checks, R22 an_unreadable_record_is_listed);
    check!(checks, C20 a_collation_is_refused);
    check!(checks, indexes_of_others_are_no_error);
    check!(checks, errors_name_why_no_server_can_be_used);
    check!(checks, refused_connections_end_the_wait);
    check!(checks, alone prepare_names_the_missing_privilege);
    check!(checks, alone C14 a_subscriber_that_panics_costs_no_lock);
    if checks.is_replica_set() {
        check!(checks, indexes_come_back_after_a_drop);
        check!(checks, indexes_come_back_after_a_drop_of_the_database);
        check!(checks, indexes_come_back_after_a_rename);
    }
}

fn at(seconds: i64) -> DateTime {
    DateTime::from_millis(DateTime::from_system_time(SystemTime::now()).timestamp_millis() + 1000 * seconds)
}

fn is_corrupt<T: std::fmt::Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Corrupt, false), "{error}");
    crate::guide::lists(&error);
}

/// The identities of documents that are no records, each for another reason.
async fn others(world: &World, collection: &str) -> Vec<LockKey> {
    let documents = [
        doc! { "name": "a user", "expiresAt": at(-10_000) },
        doc! { "owner": "other", "expiresAt": at(60) },
        doc! { "owner": "other", "expiresAt": at(-60), "lockId": "other" },
        doc! { "owner": "other", "expiresAt": at(60), "lockId": "other", "fencingToken": 7.0 },
        doc! { "lockId": Bson::Null, "queue": Bson::Null, "fencingToken": [7_i64] },
        doc! {},
    ];
    let mut keys = Vec::new();
    for mut document in documents {
        let key = key();
        document.insert("_id", key.as_str());
        world.raw(collection).insert_one(document).await.unwrap();
        keys.push(key);
    }
    keys
}

async fn all(world: &World, collection: &str) -> Vec<Document> {
    world.raw(collection).find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap()
}

async fn foreign_documents_are_not_changed(world: World) {
    let (store, name) = world.named_store();
    let keys = others(&world, &name).await;
    store.prepare().await.unwrap();
    let before = all(&world, &name).await;
    for key in &keys {
        let (first, second) = (claim(key), claim(key));
        // The fast path, the full path of the same claim, and an attempt that does not wait.
        let waits = Attempt::new(first.clone(), LONG).with_ticket(ticket());
        is_corrupt(store.try_acquire(&waits).await);
        is_corrupt(store.try_acquire(&waits).await);
        is_corrupt(store.try_acquire(&Attempt::new(second.clone(), LONG)).await);
        for claim in [first, second] {
            store.withdraw(&twin(&claim), LONG).await.unwrap();
        }
        is_corrupt(admin(&store).force_release(key, "test").await);
        is_corrupt(admin(&store).inspect(key).await);
    }
    assert_eq!(admin(&store).release_owner("other", "test").await.unwrap(), 0);
    assert_eq!(admin(&store).release_matching(&LockFilter::new().prefix("key"), "test").await.unwrap(), 0);
    assert_eq!(all(&world, &name).await, before);

    let provider = world.locks(&name);
    let error = provider.acquire(&keys[1]).timeout(LONG).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&keys[1])), "at once: {error}");
    provider.close().await.unwrap();
    assert_eq!(all(&world, &name).await, before);
}

async fn only_records_are_purged(world: World) {
    let (store, name) = world.named_store();
    store.prepare().await.unwrap();
    let keys = others(&world, &name).await;
    let record = doc! { "_id": "record", "fencingToken": 7_i64, "expiresAt": at(-10_000) };
    world.raw(&name).insert_one(record).await.unwrap();
    // The sweep that removes the record has examined the other documents, which are older.
    let removed = async {
        while world.raw(&name).find_one(doc! { "_id": "record" }).await.unwrap().is_some() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(90), removed).await.expect("the TTL index is at work");
    assert_eq!(all(&world, &name).await.len(), keys.len());
}

async fn locks_of_another_program_are_respected_until_they_expire(world: World) {
    let name = random_name("locks");
    let builder = || MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
    let locks = builder().adopt_foreign_locks().build().unwrap();
    let [live, dead, odd, never] = [(); 4].map(|()| key());
    let until = at(8);
    for (key, fields) in [
        (&live, doc! { "owner": "other", "ttl": "long", "expiresAt": until }),
        (&dead, doc! { "owner": "other", "expiresAt": at(-1), "note": 1 }),
        (&odd, doc! { "fencingToken": 7.0, "expiresAt": at(-1) }),
        (&never, doc! { "owner": "other" }),
    ] {
        let mut document = doc! { "_id": key.as_str() };
        document.extend(fields);
        world.raw(&name).insert_one(document).await.unwrap();
    }
    assert!(locks.try_acquire(&live).await.unwrap().is_none());
    let taken = locks.try_acquire(&dead).await.unwrap().expect("expired");
    let record = world.raw(&name).find_one(doc! { "_id": dead.as_str() }).await.unwrap().unwrap();
    assert!(!record.contains_key("note") && record.get_i64("fencingToken").is_ok(), "{record}");
    for key in [&odd, &never] {
        is_corrupt(locks.try_acquire(key).await.map(drop));
    }
    let waited = locks.acquire(&live).timeout(Duration::from_secs(30)).await.unwrap();
    assert!(DateTime::now() >= until, "it was respected");
    assert!(builder().build().unwrap().try_acquire(&dead).await.unwrap().is_none(), "it is a record now");
    for guard in [taken, waited] {
        assert!(guard.release().await.unwrap().is_released());
    }
    locks.close().await.unwrap();
    assert!(locks.accounting().balances());
}

async fn an_unreadable_record_is_listed(world: World) {
    let (store, name) = world.named_store();
    let own = claim(&LockKey::new("b").unwrap());
    granted(&store, &own, LONG).await;
    let held = || doc! { "lockId": "x", "expiresAt": at(60), "fencingToken": 7_i64 };
    for (id, field, odd) in [
        ("a", "fencingToken", Bson::Double(7.0)),
        ("c", "owner", doc! { "name": "another" }.into()),
        ("d", "meta", "none".into()),
        ("e", "expiresAt", "tomorrow".into()),
        ("f", "fencingToken", (-7_i64).into()),
    ] {
        let mut record = held();
        record.insert("_id", id);
        record.insert(field, odd);
        world.raw(&name).insert_one(record).await.unwrap();
    }
    let list: Vec<_> = admin(&store).list(ListOptions::new().page_size(2)).try_collect().await.unwrap();
    let shown: Vec<_> = list.iter().map(|info| (info.key.as_str(), info.unreadable.as_deref())).collect();
    let [a, b, c, d, e, f] = &*shown else { panic!("{shown:?}") };
    assert_eq!(*b, ("b", None));
    for ((key, why), (odd, text_part)) in
        [(a, ("a", "double")), (c, ("c", "owner")), (d, ("d", "")), (e, ("e", "expiresAt")), (f, ("f", "token"))]
            .map(|(x, y)| (*x, y))
    {
        assert_eq!(key, odd);
        assert!(why.is_some_and(|why| why.contains(text_part)), "{key}: {why:?}");
    }
    assert!(list[0].remaining > Duration::from_secs(50), "{:?}", list[0]);
}

async fn a_collation_is_refused(world: World) {
    let database = world.client.database("distlock_test");
    let name = random_name("locks");
    let collation = Collation::builder().locale("en").strength(CollationStrength::Secondary).build();
    database.create_collection(&name).collation(collation).await.unwrap();
    let locks = MongoProvider::builder(database.clone()).collection(&*name).build().unwrap();
    let documents = DocumentLocks::<Document>::builder(&database.collection(&name)).build_store().unwrap();
    let refused = |answer: Result<()>| {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unsupported, false), "{error}");
        assert!(error.to_string().contains("\"en\", strength Secondary"), "{error}");
        crate::guide::lists(&error);
    };
    refused(locks.prepare().await);
    refused(locks.acquire("Key").await.map(drop));
    refused(locks.try_acquire("KEY").await.map(drop));
    refused(documents.prepare().await);
    locks.close().await.unwrap();
    assert_eq!(world.raw(&name).count_documents(doc! {}).await.unwrap(), 0);
}

async fn indexes_of_others_are_no_error(world: World) {
    for (name, partial) in [("distlock_purge", false), ("theirs", false), ("distlock_purge", true)] {
        let collection = random_name("locks");
        let options = IndexOptions::builder().name(name.to_owned()).expire_after(Duration::from_secs(7200));
        let options = match partial {
            true => options.partial_filter_expression(doc! { "fencingToken": { "$type": "long" } }).build(),
            false => options.build(),
        };
        let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(options).build();
        world.raw(&collection).create_index(index).await.unwrap();
        let store = world.store_on(&world.client, &collection);
        store.prepare().await.unwrap();
        granted(&store, &claim(&key()), LONG).await;
    }
}

async fn indexes_come_back_after_a_drop(world: World) {
    made_again(&world, End::Drop).await;
}

async fn indexes_come_back_after_a_drop_of_the_database(world: World) {
    made_again(&world, End::DropDatabase).await;
}

async fn indexes_come_back_after_a_rename(world: World) {
    made_again(&world, End::Rename).await;
}

/// How a collection is removed.
#[derive(Clone, Copy)]
enum End {
    Drop,
    DropDatabase,
    Rename,
}

/// The holder of a lock notices that the collection is gone, and its process creates the indexes of
/// the next one. In a database of its own.
async fn made_again(world: &World, end: End) {
    let (database, name) = (world.client.database(&random_name("again")), "locks");
    let locks = MongoProvider::builder(database.clone()).collection(name);
    // Without the stream its holder would notice only when it renews, after 30 s.
    let locks = locks.lease(LeaseOptions::new().ttl(Duration::from_secs(90))).build().unwrap();
    let indexes = async |when: &str| {
        let made = async {
            loop {
                // Without the collection this is an error.
                let names = database.collection::<Document>(name).list_index_names().await.unwrap_or_default();
                if ["distlock_purge", "distlock_owner"].iter().all(|index| names.iter().any(|name| name == index)) {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), made).await.unwrap_or_else(|_| panic!("no indexes {when}"));
    };
    let held = locks.acquire(key()).await.unwrap();
    indexes("at first").await;
    // The holder subscribes when its lease is a second old, and gets the end of the stream.
    until_streams(world, &database, 1).await;
    match end {
        End::Drop => database.collection::<Document>(name).drop().await.unwrap(),
        End::DropDatabase => database.drop().await.unwrap(),
        End::Rename => {
            let from = format!("{}.{name}", database.name());
            world.admin(doc! { "renameCollection": &from, "to": format!("{from}_old") }).await;
        }
    }
    timeout(Duration::from_secs(20), held.lost()).await.expect("its record is gone");
    let again = async {
        loop {
            locks.acquire(key()).await.unwrap().release().await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = indexes("after the end") => {}
        () = again => {}
    }
    drop(held);
    locks.close().await.unwrap();
    database.drop().await.unwrap();
}

/// Nothing was sent, so no outcome is unknown, for any number of tries.
async fn errors_name_why_no_server_can_be_used(world: World) {
    let nowhere = |host: &str| vec![ServerAddress::Tcp { host: host.into(), port: Some(1) }];
    let user = Credential::builder().username("unknown".to_owned()).password("wrong".to_owned()).build();
    type Mistake = Box<dyn FnOnce(&mut ClientOptions) + Send>;
    let cases: [(&str, ErrorKind, Mistake); 5] = [
        ("Connection refused", ErrorKind::Unavailable, Box::new(move |options| options.hosts = nowhere("127.0.0.1"))),
        ("lookup", ErrorKind::Unavailable, Box::new(move |options| options.hosts = nowhere("no-such-host.invalid"))),
        ("tls handshake", ErrorKind::Unavailable, Box::new(|options| options.tls = Some(TlsOptions::default().into()))),
        (
            "replicaSet",
            ErrorKind::Unavailable,
            Box::new(|options| {
                options.direct_connection = None;
                options.repl_set_name = Some("other".to_owned());
            }),
        ),
        ("Authentication failed", ErrorKind::PermissionDenied, Box::new(|options| options.credential = Some(user))),
    ];
    let limit = Duration::from_secs(5);
    let world = &world;
    // All at once: each call takes as long as it may.
    let cases = cases.map(|(text_part, kind, mistake)| async move {
        let (client, _) = world.connect(mistake).await;
        let locks = MongoProvider::builder(client.database("distlock_test"));
        let locks = locks.request_timeout(limit).build().unwrap();
        let tries = [
            locks.prepare().await.unwrap_err(),
            locks.acquire(key()).timeout(limit).await.unwrap_err(),
            locks.prepare().await.unwrap_err(),
            locks.acquire(key()).timeout(limit).await.unwrap_err(),
        ];
        for error in tries {
            assert_eq!((error.kind(), error.is_outcome_unknown()), (kind, false), "{text_part}: {error}");
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(source.contains(text_part), "{text_part}: {error}: {source}");
        }
        locks.close().await.unwrap();
        assert_eq!(locks.accounting().unsettled, 0, "{text_part}");
    });
    futures_util::future::join_all(cases).await;
}

/// If all servers refuse connections, the error comes before the end of the request.
async fn refused_connections_end_the_wait(world: World) {
    let nowhere = vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(1) }];
    let (client, _) = world.connect(move |options| options.hosts = nowhere).await;
    let locks = MongoProvider::builder(client.database("distlock_test"));
    let locks = locks.request_timeout(Duration::from_secs(300)).build().unwrap();
    let error = timeout(Duration::from_secs(60), locks.prepare()).await.expect("long before 300 s").unwrap_err();
    assert!(error.to_string().ends_with("(while connecting)"), "{error}");
    locks.close().await.unwrap();
}

/// The error for a user without a privilege. A fail point makes the server report it, because its
/// test servers have no access control.
async fn prepare_names_the_missing_privilege(world: World) {
    let (client, app) = world.client_of_app().await;
    for (command, skip, privilege) in [
        ("find", 0, "find"),
        ("findAndModify", 0, "update"),
        ("findAndModify", 1, "insert"),
        ("createIndexes", 0, "createIndex"),
    ] {
        let data = doc! { "failCommands": [command], "appName": &app, "errorCode": 13 };
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "skip": skip }, "data": data }).await;
        let store = world.store_on(&client, &random_name("locks"));
        let answer = store.prepare().await;
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
        let error = answer.expect_err(privilege);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::PermissionDenied, false), "{error}");
        assert!(error.to_string().contains(&format!("privilege {privilege} on")), "{error}");
        store.prepare().await.unwrap();
    }
}

/// Panics on each event.
struct Panicking;

impl tracing::Subscriber for Panicking {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("a subscriber panicked");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// What the store logs while it connects: that the privilege `listIndexes` is missing, and that
/// there is a TTL index of others.
async fn a_subscriber_that_panics_costs_no_lock(world: World) {
    let (client, app) = world.client_of_app().await;
    let data = doc! { "failCommands": ["listIndexes"], "appName": &app, "errorCode": 13 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data }).await;
    let store = world.store_on(&client, &random_name("locks"));
    let attempt = Attempt::new(claim(&key()), LONG);
    let reply = store.try_acquire(&attempt).with_subscriber(Panicking).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    assert!(matches!(reply, Ok(Reply::Granted(_))), "{reply:?}");

    let name = random_name("locks");
    let options = IndexOptions::builder().name("theirs".to_owned()).expire_after(Duration::from_secs(7200)).build();
    let index = IndexModel::builder().keys(doc! { "expiresAt": 1 }).options(options).build();
    world.raw(&name).create_index(index).await.unwrap();
    world.store_on(&client, &name).prepare().with_subscriber(Panicking).await.unwrap();
}
