//! Change streams share the pool of a client with all other calls. There is one stream for all
//! collections of a database, none in a small pool, and none that is not needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distlock_api::ReleaseOutcome::Released;
use distlock_api::{ErrorKind, LeaseOptions, LockProvider, LockProviderExt, RenewalPolicy, Result};
use distlock_engine::store::{
    Attempt, Claim, EventStore, EventStream, LeaseStore, ProviderId, RemoteStore, StoreEvent, Watch,
};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::{Client, Database};
use distlock_mongo::{DocumentLocks, MongoProvider, MongoStore, QueueOptions};
use futures_util::{StreamExt, TryStreamExt};
use tokio::task::JoinHandle;

use super::Checks;
use super::hints::listen;
use super::world::{LONG, World, admin, claim, granted, key, queue_up, queued, random_name, release, ticket};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, a_pool_of_one_keeps_its_lease);
    check!(checks, more_calls_than_connections_are_refused);
    check!(checks, alone the_application_reads_while_no_write_is_answered);
    check!(checks, alone the_application_reads_while_indexes_are_created);
    check!(checks, alone the_client_shuts_down_while_no_write_is_answered);
    if checks.is_replica_set() {
        check!(checks, many_collections_share_one_stream);
        check!(checks, an_unused_stream_closes);
        check!(checks, a_stream_that_is_not_read_requests_nothing);
        check!(checks, the_stream_of_an_operator_takes_a_connection_from_calls);
        check!(checks, a_new_collection_joins_without_a_gap);
        check!(checks, a_stream_waits_for_a_busy_pool_of_sessions);
        check!(checks, only_its_own_subscribers_get_a_drop);
        check!(checks, the_end_of_a_database_ends_its_stream);
        check!(checks, alone without_the_database_there_are_few_streams);
    }
}

/// A database of its own, so that its streams can be counted.
fn database(client: &Client) -> Database {
    client.database(&random_name("distlock_test"))
}

fn store(database: &Database, collection: &str) -> MongoStore {
    MongoProvider::builder(database.clone()).collection(collection).build_store().expect("valid options")
}

/// The change streams that the server has open on a database.
async fn streams(world: &World, database: &Database) -> usize {
    let pipeline = vec![
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": {
            "ns": { "$regex": format!(r"^{}\.", database.name()) },
            "cursor": { "$exists": true },
        } },
    ];
    let found: Vec<Document> =
        world.operator.database("admin").aggregate(pipeline).await.unwrap().try_collect().await.unwrap();
    let is_stream = |op: &&Document| op.to_string().contains("$changeStream");
    found.iter().filter(is_stream).count()
}

/// Returns the duration of a read of the application.
async fn timed_find(database: &Database) -> Duration {
    let begin = Instant::now();
    database.collection::<Document>("accounts").find_one(doc! { "_id": 7 }).await.unwrap();
    begin.elapsed()
}

/// Returns the medians of reads by two clients, which read in turn: both find the machine as busy.
async fn median_finds(databases: [&Database; 2]) -> [Duration; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..100 {
        for (database, times) in databases.into_iter().zip(&mut times) {
            times.push(timed_find(database).await);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    })
}

/// Reads for this long. Returns by how much the slowest read took longer than the same read by a
/// client with a pool of its own, made at the same time.
async fn slowest_find(database: &Database, reference: &Database, during: Duration) -> Duration {
    let (begin, mut slowest) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < during {
        let (own, other) = tokio::join!(timed_find(database), timed_find(reference));
        slowest = slowest.max(own.saturating_sub(other));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slowest
}

/// Lease terms for a lease that is kept on a machine that pauses for seconds.
fn kept() -> LeaseOptions {
    LeaseOptions::new().ttl(Duration::from_secs(10)).renewal(RenewalPolicy::Every(Duration::from_secs(1)))
}

async fn many_collections_share_one_stream(world: World) {
    let database = database(&world.client);
    let (other, _) = world.connect(|_| ()).await;
    let reference = other.database(database.name());
    let lease = kept();
    let (mut providers, mut keys) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let (name, key) = (format!("locks{n}"), key());
        // Every second one locks the application's own documents.
        let provider = if n % 2 == 0 {
            MongoProvider::builder(database.clone()).collection(name).lease(lease).build().unwrap()
        } else {
            let documents = database.collection::<Document>(&name);
            documents.insert_one(doc! { "_id": key.as_str() }).await.unwrap();
            DocumentLocks::builder(&documents).lease(lease).build().unwrap().provider()
        };
        provider.prepare().await.unwrap();
        providers.push(provider);
        keys.push(key);
    }
    let mut guards = Vec::new();
    for (provider, key) in providers.iter().zip(keys) {
        guards.push(provider.acquire(key).await.unwrap());
    }
    let until = Instant::now() + Duration::from_secs(12);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let [own, alone] = median_finds([&database, &reference]).await;
    tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    println!("{lost} of 100 leases lost, find {own:?} beside the locks, {alone:?} by a client without locks");
    assert_eq!(lost, 0);
    // All collections have joined. The driver closes the replaced streams in the background.
    until_streams(&world, &database, 1).await;
    // The check concerns the wait for a connection.
    assert!(own < alone * 5 + Duration::from_millis(20), "{own:?} beside the locks, {alone:?} without");
    for guard in guards {
        assert!(guard.release().await.unwrap().is_released());
    }
    for provider in providers {
        provider.close().await.unwrap();
    }
    database.drop().await.unwrap();
}

/// Starts acquisitions, each of a key of its own.
fn acquisitions(provider: &MongoProvider, count: usize, limit: Duration) -> Vec<JoinHandle<Result<()>>> {
    let acquire = |provider: MongoProvider| async move { provider.acquire(key()).timeout(limit).await.map(drop) };
    (0..count).map(|_| tokio::spawn(acquire(provider.clone()))).collect()
}

/// Starts an acquisition in each of this many collections.
fn acquisitions_of_collections(database: &Database, count: usize) -> Vec<JoinHandle<Result<()>>> {
    let provider = |n: usize| MongoProvider::builder(database.clone()).collection(format!("locks{n}")).build().unwrap();
    (0..count).flat_map(|n| acquisitions(&provider(n), 1, LONG)).collect()
}

/// As after the loss of a majority: no write is answered before its `maxTimeMS`, and the renewals
/// of many collections alone would fill the pool.
async fn the_application_reads_while_no_write_is_answered(world: World) {
    let (client, app) = world.client_of_app().await;
    let database = database(&client);
    let lease = LeaseOptions::new().ttl(Duration::from_secs(6));
    let mut guards = Vec::new();
    for n in 0..20 {
        let builder = MongoProvider::builder(database.clone()).collection(format!("locks{n}")).lease(lease);
        guards.push(builder.build().unwrap().acquire(key()).await.unwrap());
    }
    let provider = MongoProvider::builder(database.clone()).build().unwrap();
    let data = doc! {
        "failCommands": ["update", "findAndModify", "aggregate"],
        "appName": &app,
        "blockConnection": true,
        "blockTimeMS": 9_000,
    };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data }).await;
    let acquiring = acquisitions(&provider, 40, Duration::from_secs(10));
    let reference = world.client.database(database.name());
    let slowest = slowest_find(&database, &reference, Duration::from_secs(8)).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    for acquiring in acquiring {
        acquiring.abort();
    }
    drop(guards);
    assert!(slowest < Duration::from_secs(2), "a read of the application waited {slowest:?}");
}

/// Each collection has indexes of its own, and a slow disk creates them slowly. One at a time is
/// created, so that a connection is left for the application.
async fn the_application_reads_while_indexes_are_created(world: World) {
    let (client, app) = world.client_of_app().await;
    let database = database(&client);
    let data = doc! {
        "failCommands": ["createIndexes"], "appName": &app, "blockConnection": true, "blockTimeMS": 3_000,
    };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data }).await;
    let acquiring = acquisitions_of_collections(&database, 20);
    let reference = world.client.database(database.name());
    let slowest = slowest_find(&database, &reference, Duration::from_secs(6)).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    for acquiring in acquiring {
        assert!(acquiring.await.unwrap().is_ok());
    }
    assert!(slowest < Duration::from_secs(2), "a read of the application waited {slowest:?}");
}

/// The driver waits for every command and session, so a command without an end would keep the
/// client. The server is blocked for longer than close and shutdown may take, and not much longer:
/// the fail point cannot be ended before.
async fn the_client_shuts_down_while_no_write_is_answered(world: World) {
    let (client, app) = world.client_of_app().await;
    let provider = MongoProvider::builder(database(&client)).build().unwrap();
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(provider.acquire(key()).ttl(Duration::from_secs(6)).await.unwrap());
    }
    let writes = ["update", "findAndModify", "aggregate", "commitTransaction", "abortTransaction"];
    let data = doc! {
        "failCommands": writes.to_vec(), "appName": &app, "blockConnection": true, "blockTimeMS": 25_000,
    };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data }).await;
    let acquiring = acquisitions(&provider, 20, Duration::from_secs(3));
    for acquiring in acquiring {
        assert!(acquiring.await.unwrap().is_err(), "no write is answered");
    }
    drop(guards);
    let closed = tokio::time::timeout(Duration::from_secs(20), provider.close()).await.expect("close has a bound");
    let shut_down = tokio::time::timeout(Duration::from_secs(10), client.shutdown()).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    assert!(shut_down.is_ok(), "the client does not shut down after close: {closed:?}");
}

async fn the_stream_of_an_operator_takes_a_connection_from_calls(world: World) {
    let (client, _) = world.connect(|_| {}).await;
    let store = store(&database(&client), "locks");
    // Later, the creation of the indexes would take a connection for a moment.
    store.prepare().await.unwrap();
    let at_once = || store.lanes().expect("lanes").at_once();
    granted(&store, &claim(&key()), LONG).await;
    let calls = at_once();
    let watches = [admin(&store).watch().await.unwrap(), admin(&store).watch().await.unwrap()];
    assert_eq!(at_once(), calls - 2);
    drop(watches);
    assert_eq!(at_once(), calls);
}

pub(super) async fn until_streams(world: &World, database: &Database, expected: usize) {
    let reached = async {
        while streams(world, database).await != expected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap_or_else(|_| panic!("not {expected} streams"));
}

async fn an_unused_stream_closes(world: World) {
    let database = database(&world.client);
    // Without the event a waiter would look again after 30 s, when it refreshes its ticket.
    let queue = QueueOptions::new().ticket_ttl(Duration::from_secs(90));
    let builder = |name: &str| MongoProvider::builder(database.clone()).collection(name).queue(queue);
    let [a, b] = ["a", "b"].map(|name| builder(name).build().unwrap());
    let key = key();
    for _ in 0..2 {
        let guards = [a.acquire(&key).await.unwrap(), b.acquire(&key).await.unwrap()];
        until_streams(&world, &database, 1).await;
        for guard in guards {
            assert!(guard.release().await.unwrap().is_released());
        }
        until_streams(&world, &database, 0).await;
    }
    // A waiter opens the stream again, and gets its grant by it.
    let (other, _) = world.connect(|_| ()).await;
    let holder = MongoProvider::builder(other.database(database.name())).collection("a").build().unwrap();
    let held = holder.acquire(&key).ttl(Duration::from_secs(90)).await.unwrap();
    let waiting = tokio::spawn({
        let (a, key) = (a.clone(), key.clone());
        async move { a.acquire(&key).timeout(LONG).await }
    });
    until_streams(&world, &database, 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(held.release().await.unwrap().is_released());
    let granted = tokio::time::timeout(Duration::from_secs(15), waiting).await.expect("a hand-over").unwrap().unwrap();
    assert!(granted.release().await.unwrap().is_released());
    for provider in [a, b, holder] {
        provider.close().await.unwrap();
    }
    database.drop().await.unwrap();
}

/// A request for changes that is under way is woken by each write of the server.
async fn a_stream_that_is_not_read_requests_nothing(world: World) {
    let database = database(&world.client);
    let (client, _, sent) = world.recorded_client_of_app().await;
    let (mine, releaser) = (store(&client.database(database.name()), "a"), store(&database, "a"));
    let me = ProviderId::random();
    let mut events = listen(&mine, me).await;
    let requests = || sent.take().iter().filter(|command| command.contains_key("getMore")).count();
    for round in 0..3 {
        let key = key();
        let (holder, waiter) = (claim(&key), Claim::new(key.clone(), me.acquisition_id()));
        granted(&releaser, &holder, LONG).await;
        queued(&releaser, &waiter).await;
        assert_eq!(release(&releaser, &holder).await, Released);
        assert_eq!(requests(), 0, "round {round}: it is not read");
        let event = tokio::time::timeout(LONG, events.next()).await.expect("an event").expect("open").unwrap();
        assert!(matches!(event, StoreEvent::Granted { id, .. } if id == *waiter.id()), "what it has missed");
        assert_eq!(requests(), 1, "round {round}: it was read once");
    }
    drop(events);
    until_streams(&world, &database, 0).await;
    database.drop().await.unwrap();
}

/// Every hand-over is reported once and at once while other collections join and leave.
async fn a_new_collection_joins_without_a_gap(world: World) {
    let database = database(&world.client);
    let (other, _) = world.connect(|_| ()).await;
    let (mine, releaser) = (store(&database, "a"), store(&other.database(database.name()), "a"));
    let (me, key) = (ProviderId::random(), key());
    let mut events = listen(&mine, me).await;
    let joining = tokio::spawn({
        let database = database.clone();
        async move {
            let mut kept = Vec::new();
            for n in 0..60 {
                let joined = listen(&store(&database, &format!("other{n}")), ProviderId::random()).await;
                if n % 2 == 0 {
                    kept.push(joined);
                }
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..60))).await;
            }
            kept
        }
    });
    let mut holder = claim(&key);
    granted(&releaser, &holder, LONG).await;
    let mut rounds = 0;
    while !joining.is_finished() || rounds < 20 {
        let waiter = Claim::new(key.clone(), me.acquisition_id());
        queue_up(&mine, &Attempt::new(waiter.clone(), LONG).with_ticket(ticket())).await;
        assert_eq!(release(if rounds == 0 { &releaser } else { &mine }, &holder).await, Released);
        let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await.expect("an event");
        match event.expect("the stream goes on").unwrap() {
            StoreEvent::Granted { id, .. } => assert_eq!(&id, waiter.id()),
            event => panic!("{event:?} in round {rounds}"),
        }
        holder = waiter;
        rounds += 1;
    }
    let kept = joining.await.unwrap();
    // The driver closes the stream before the last one in the background.
    until_streams(&world, &database, 1).await;
    println!("{rounds} hand-overs while 60 collections joined");
    drop((events, kept));
    until_streams(&world, &database, 0).await;
    database.drop().await.unwrap();
}

/// The client's pool of sessions is behind a mutex, for which a new store must wait.
async fn a_stream_waits_for_a_busy_pool_of_sessions(world: World) {
    let (client, _) = world.connect(|_| ()).await;
    let database = database(&client);
    let done = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let (client, done) = (client.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let sessions = (0..8).map(|_| async { client.start_session().await });
                    drop(futures_util::future::join_all(sessions).await);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    let mut kept = Vec::new();
    for n in 0..60 {
        kept.push(listen(&store(&database, &format!("busy{}", n % 10)), ProviderId::random()).await);
    }
    done.store(true, Ordering::Relaxed);
    futures_util::future::join_all(busy).await;
    drop(kept);
    until_streams(&world, &database, 0).await;
    database.drop().await.unwrap();
}

/// Stores of two collections with a lease each, and their streams.
async fn two_that_listen(database: &Database) -> ([MongoStore; 2], [EventStream; 2]) {
    let stores = ["a", "b"].map(|name| store(database, name));
    for store in &stores {
        granted(store, &claim(&key()), LONG).await;
    }
    let events = [listen(&stores[0], ProviderId::random()).await, listen(&stores[1], ProviderId::random()).await];
    (stores, events)
}

/// The stream reports gaps, at least one, and ends.
async fn ends_with_gaps(events: EventStream) {
    let reported: Vec<StoreEvent> =
        tokio::time::timeout(Duration::from_secs(20), events.try_collect()).await.expect("an end").unwrap();
    assert!(!reported.is_empty() && reported.iter().all(|event| *event == StoreEvent::Gap), "{reported:?}");
}

async fn only_its_own_subscribers_get_a_drop(world: World) {
    let database = database(&world.client);
    let (stores, events) = two_that_listen(&database).await;
    let [a, mut b] = events;
    database.collection::<Document>("a").drop().await.unwrap();
    ends_with_gaps(a).await;
    let freed = key();
    granted(&stores[1], &claim(&freed), LONG).await;
    admin(&stores[1]).force_release(&freed, "test").await.unwrap().unwrap();
    let event = tokio::time::timeout(Duration::from_secs(20), b.next()).await.expect("an event").unwrap().unwrap();
    assert_eq!(event, StoreEvent::Freed { key: freed });
    drop(b);
    until_streams(&world, &database, 0).await;
    database.drop().await.unwrap();
}

async fn the_end_of_a_database_ends_its_stream(world: World) {
    let database = database(&world.client);
    let (stores, events) = two_that_listen(&database).await;
    database.drop().await.unwrap();
    for events in events {
        ends_with_gaps(events).await;
    }
    until_streams(&world, &database, 0).await;
    // The stream can be opened again.
    drop(listen(&stores[0], ProviderId::random()).await);
    until_streams(&world, &database, 0).await;
}

async fn a_pool_of_one_keeps_its_lease(world: World) {
    let (client, _) = world.connect(|options| options.max_pool_size = Some(1)).await;
    let database = database(&client);
    let builder = |client: &Client| MongoProvider::builder(client.database(database.name())).lease(kept());
    let (one, other) = (builder(&client).build().unwrap(), builder(&world.client).build().unwrap());
    one.prepare().await.unwrap();
    let kept = one.acquire(key()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let contended = key();
    let held = other.acquire(&contended).await.unwrap();
    let waiting = tokio::spawn({
        let (one, contended) = (one.clone(), contended.clone());
        async move { one.acquire(&contended).timeout(Duration::from_secs(20)).await }
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(held.release().await.unwrap().is_released());
    let waited = waiting.await.unwrap().unwrap();
    assert!(waited.release().await.unwrap().is_released());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(kept.loss(), None);
    assert!(one.store().extras().events.is_none());
    assert!(kept.release().await.unwrap().is_released());
    for provider in [one, other] {
        provider.close().await.unwrap();
    }
    database.drop().await.unwrap();
}

async fn more_calls_than_connections_are_refused(world: World) {
    let (client, _) = world.connect(|options| options.max_pool_size = Some(4)).await;
    let database = database(&client);
    let provider = |calls: usize| {
        let builder = MongoProvider::builder(database.clone());
        builder.calls_at_once(calls.try_into().unwrap()).build().unwrap()
    };
    let error = provider(5).prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let text = error.to_string();
    assert!(text.contains("calls_at_once") && text.contains("maxPoolSize") && text.contains('4'), "{text}");
    crate::guide::lists(&error);
    let allowed = provider(4);
    allowed.prepare().await.unwrap();
    database.drop().await.unwrap();
}

/// Without the privilege for the database each collection has a stream of its own: two at most in a
/// pool of ten. The other stores report that they have no push.
async fn without_the_database_there_are_few_streams(world: World) {
    let (client, app) = world.client_of_app().await;
    let database = database(&client);
    let stores = ["a", "b", "c"].map(|name| store(&database, name));
    for store in &stores {
        granted(store, &claim(&key()), LONG).await;
    }
    world.fail(&app, "aggregate", doc! { "errorCode": 13 }).await;
    let a = listen(&stores[0], ProviderId::random()).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    let b = listen(&stores[1], ProviderId::random()).await;
    let also_a = listen(&stores[0], ProviderId::random()).await;
    let watch = Watch::provider(ProviderId::random());
    let error = EventStore::subscribe(&stores[2], &watch).await.err().expect("no third stream");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    // The stream of `a` was opened again for another provider; the old cursor is closed in the
    // background.
    until_streams(&world, &database, 2).await;
    drop((a, also_a));
    until_streams(&world, &database, 1).await;
    let _c = listen(&stores[2], watch.provider).await;
    drop(b);
    database.drop().await.unwrap();
}
