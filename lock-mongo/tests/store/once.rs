//! Work that is done once: what the clauses O1–O12 mean on MongoDB, and the records.

use std::future::{IntoFuture, pending};
use std::time::{Duration, SystemTime};

use distlock_api::{ErrorKind, FencingToken, LockKey, LockProvider, LockProviderExt, Phase, RenewalPolicy};
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
use distlock_mongo::MongoOnce;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};
use distlock_mongo::mongodb::{Client, IndexModel};
use distlock_recipes::once::{NotCompleted, Once, OnceProvider, OnceProviderExt, OnceState};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::Checks;
use super::proxied::{BOUND, REQUEST, behind, primary, struck};
use super::world::{LONG, Sent, World, random_name};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, O1 once_for_many_tasks);
    check!(checks, O2 once_replays_by_one_query);
    check!(checks, O4 once_reopens_after_a_runtime_has_died);
    check!(checks, O5 once_taken_away_by_force);
    check!(checks, alone O8 once_completion_of_lost_reply);
    check!(checks, alone O8 once_completion_without_answer);
    check!(checks, alone O8 once_completion_not_carried_out);
    check!(checks, O10 once_records_and_indexes);
    check!(checks, O10 once_purge_spares_work_under_way);
    check!(checks, O10 once_outcome_with_floor_ahead);
    check!(checks, alone O7 once_outcome_of_another_request);
    check!(checks, alone O9 once_wait_of_slow_queries);
    check!(checks, alone O9 once_wait_goes_on_after_a_failed_query);
    check!(checks, alone O11 once_dropped_and_closed);
    check!(checks, alone O8 once_unanswered_is_lost_at_its_deadline);
    check!(checks, alone O8 once_completion_forgotten_meanwhile);
    check!(checks, O12 once_foreign_documents);
    check!(checks, C3 once_over_a_slow_network);
    // A standalone server has no transactions.
    if checks.is_replica_set() {
        check!(checks, O8 once_completion_that_stalls);
        checks.add("O8_once_half_open_reply", |world| once_half_open(world, Way::ToClient));
        checks.add("O8_once_half_open_request", |world| once_half_open(world, Way::ToServer));
    }
}

fn on(client: &Client, collection: &str) -> MongoOnce {
    on_within(client, collection, Duration::from_secs(10))
}

/// Makes a provider with this time limit for a request.
fn on_within(client: &Client, collection: &str, request_timeout: Duration) -> MongoOnce {
    let builder = MongoOnce::builder(client.database("distlock_test")).collection(collection);
    builder.request_timeout(request_timeout).build().expect("valid options")
}

/// Providers, each with a client of its own, of one collection.
async fn providers(world: &World, collection: &str, count: usize) -> Vec<MongoOnce> {
    let mut providers = Vec::new();
    for _ in 0..count {
        let (client, _) = world.connect(|_| ()).await;
        providers.push(on(&client, collection));
    }
    providers
}

/// Thirty-two tasks, four processes: one begins, the others get its outcome, and nothing is left.
async fn once_for_many_tasks(world: World) {
    let collection = random_name("once");
    let providers = providers(&world, &collection, 4).await;
    let tasks = providers.iter().flat_map(|once| (0..8).map(move |_| once.clone())).map(|once| {
        tokio::spawn(async move {
            match once.once("job").timeout(Duration::from_secs(60)).await.unwrap() {
                Once::Begun(mut work) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    work.complete("by one").await.unwrap();
                    None
                }
                other => Some(other.done().expect("an outcome").value().to_vec()),
            }
        })
    });
    let answers: Vec<_> = join_all(tasks.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_none()).count(), 1);
    assert!(answers.iter().flatten().all(|value| value == b"by one"));
    for once in &providers {
        once.close().await.unwrap();
        let accounting = once.provider().accounting();
        assert!(accounting.balances() && accounting.held + accounting.unsettled == 0, "{accounting:?}");
        assert_eq!(accounting.lost, 0, "{accounting:?}");
    }
    let raw = world.raw(&collection);
    let record = raw.find_one(doc! { "_id": "job" }).await.unwrap().unwrap();
    let lock = record.get_document("lock").unwrap();
    assert!(!lock.contains_key("lockId") && !lock.contains_key("queue"), "{record}");
}

async fn once_replays_by_one_query(world: World) {
    let (client, sent) = world.recorded_client().await;
    let once = on(&client, &random_name("once"));
    let mut work = once.once("job").await.unwrap().begun().unwrap();
    work.complete("done").await.unwrap();
    sent.take();
    for _ in 0..3 {
        assert_eq!(once.once("job").await.unwrap().done().unwrap().value(), b"done");
        let mut commands = sent.take();
        // Without the change stream, which the lease of the completed work may have opened.
        commands.retain(|command| !is_of_stream(command));
        assert!(commands.len() == 1 && commands[0].contains_key("find"), "{commands:?}");
    }
}

/// Whether the command opens, reads or closes a change stream.
fn is_of_stream(command: &Document) -> bool {
    let first = command.get_array("pipeline").ok().and_then(|stages| stages.first()?.as_document());
    let opens = first.is_some_and(|stage| stage.contains_key("$changeStream"));
    opens || command.contains_key("getMore") || command.contains_key("killCursors")
}

/// The runtime of the holder ends, as with its process: no renewal, no release.
async fn once_reopens_after_a_runtime_has_died(world: World) {
    let collection = random_name("once");
    let (options, name) = (world.options.clone(), collection.clone());
    let ttl = Duration::from_millis(1500);
    let died = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let token = runtime.block_on(async {
            let once = on(&Client::with_options(options).unwrap(), &name);
            let work = once.once("job").ttl(ttl).keep(DAY).owner("ada").await.unwrap().begun().unwrap();
            let token = work.fencing_token();
            std::mem::forget(work);
            token
        });
        runtime.shutdown_background();
        token
    });
    let token = tokio::task::spawn_blocking(|| died.join().unwrap()).await.unwrap();
    let (client, _) = world.connect(|_| ()).await;
    let once = on(&client, &collection);
    let work = once.once("job").timeout(Duration::from_secs(30)).await.unwrap().begun().unwrap();
    let run = work.interrupted().unwrap();
    assert_eq!((run.token, run.owner.as_deref()), (token, Some("ada")));
    assert!(work.fencing_token() > token);
    work.discard().await.unwrap();
    let again = once.once("job").at_most_once().await.unwrap();
    assert!(matches!(again, Once::Interrupted(run) if run.token == token));
}

async fn once_taken_away_by_force(world: World) {
    let once = providers(&world, &random_name("once"), 1).await.remove(0);
    let mut work = once.once("job").await.unwrap().begun().unwrap();
    let key = LockKey::new("job").unwrap();
    once.provider().admin().unwrap().force_release(&key, "stuck").await.unwrap().unwrap();
    assert!(matches!(work.complete("late").await, Err(NotCompleted::Lost(_))));
    assert!(work.is_lost());
    assert!(matches!(once.inspect(&key).await.unwrap().state, OnceState::Interrupted(_)));
    let next = once.once("job").await.unwrap().begun().unwrap();
    assert_eq!(next.interrupted().unwrap().token, work.fencing_token());
}

/// Makes the given number of `findAndModify` commands of an application fail.
async fn fail(world: &World, app: &str, times: Bson, how: Document) {
    let mut data = doc! { "failCommands": ["findAndModify"], "appName": app };
    data.extend(how);
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": times, "data": data }).await;
}

/// Delays the queries of the collection after the next `skip`. The server's own queries for a
/// retryable write are not among them.
async fn slow_query(world: &World, app: &str, collection: &str, skip: i32, millis: i32) {
    let namespace = format!("distlock_test.{collection}");
    let how = doc! {
        "failCommands": ["find"], "namespace": namespace, "blockConnection": true, "blockTimeMS": millis,
    };
    fail(world, app, doc! { "skip": skip }.into(), how).await;
}

async fn heal(world: &World) {
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
}

/// The write is carried out, and its outcome stays unknown.
fn open() -> Document {
    doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } }
}

async fn once_completion_of_lost_reply(world: World) {
    let (client, app) = world.client_of_app().await;
    let collection = random_name("once");
    let (once, other) = (on(&client, &collection), on(&world.client, &collection));
    let mut work = once.once("job").await.unwrap().begun().unwrap();
    fail(&world, &app, doc! { "times": 1 }.into(), open()).await;
    work.complete("done").await.expect("the repetition recognises it");
    heal(&world).await;
    assert_eq!(other.once("job").await.unwrap().done().unwrap().value(), b"done");
}

/// All tries are carried out and none is answered: unknown. The same holder asks again.
async fn once_completion_without_answer(world: World) {
    let (client, app) = world.client_of_app().await;
    let collection = random_name("once");
    // The tries end with the request timeout.
    let (once, other) = (on_within(&client, &collection, Duration::from_secs(3)), on(&world.client, &collection));
    let mut work = once.once("job").await.unwrap().begun().unwrap();
    fail(&world, &app, "alwaysOn".into(), open()).await;
    let answer = work.complete("done").await;
    heal(&world).await;
    assert!(matches!(&answer, Err(NotCompleted::Unknown(error)) if error.is_outcome_unknown()), "{answer:?}");
    work.complete("done").await.expect("what was written is not reported as lost");
    work.complete("another").await.unwrap();
    assert_eq!(other.once("job").await.unwrap().done().unwrap().value(), b"done");
}

/// No answer, and it may or may not be carried out later: the holder and the next caller agree.
async fn once_completion_not_carried_out(world: World) {
    let (client, app) = world.client_of_app().await;
    let collection = random_name("once");
    let other = on(&world.client, &collection);
    let builder = MongoOnce::builder(client.database("distlock_test")).collection(collection);
    let once = builder.request_timeout(Duration::from_millis(300)).build().unwrap();
    for how in [
        doc! { "blockConnection": true, "blockTimeMS": 1000 },
        doc! { "closeConnection": true },
        doc! { "errorCode": 91 },
    ] {
        let key = random_name("job");
        let mut work = once.once(&key).ttl(Duration::from_secs(3)).await.unwrap().begun().unwrap();
        fail(&world, &app, doc! { "times": 3 }.into(), how.clone()).await;
        let mut answer = work.complete("done").await;
        heal(&world).await;
        for _ in 0..200 {
            if !matches!(answer, Err(NotCompleted::Unknown(_) | NotCompleted::Rejected(_))) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer = work.complete("done").await;
        }
        let next = other.once(&key).timeout(Duration::from_secs(30)).await.unwrap();
        match answer {
            Ok(()) => assert_eq!(next.done().expect("remembered").value(), b"done", "{how}"),
            Err(NotCompleted::Lost(_)) => {
                let next = next.begun().expect("nothing is remembered");
                assert_eq!(next.interrupted().unwrap().token, work.fencing_token(), "{how}");
            }
            Err(error) => panic!("{how}: still {error:?}"),
        }
    }
}

/// The completion stalls at the server beyond the end of its lease, behind another transaction.
async fn once_completion_that_stalls(world: World) {
    let collection = random_name("once");
    let (raw, sent) = (world.raw(&collection), Sent::default());
    let (client, _) = world.connect(|options| options.command_event_handler = Some(sent.handler())).await;
    let once = MongoOnce::builder(client.database("distlock_test")).collection(&collection);
    // The indexes are made before, because their build would hold up the transaction.
    let once = once.request_timeout(Duration::from_secs(30)).connect().await.unwrap();
    let ttl = Duration::from_secs(8);
    let begin = once.once("job").ttl(ttl).renewal(RenewalPolicy::Never);
    let mut work = begin.await.unwrap().begun().unwrap();
    let mut other = world.client.start_session().await.unwrap();
    other.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "touched": true } };
    raw.update_one(doc! { "_id": "job" }, touch).session(&mut other).await.unwrap();
    // Its caller leaves.
    sent.take();
    tokio::select! {
        answer = work.complete("done") => panic!("{answer:?}"),
        () = sent.wait_for(1, "findAndModify") => {}
    }
    tokio::time::sleep(ttl).await;
    let answer = work.complete("done").await;
    assert!(matches!(answer, Err(NotCompleted::Unknown(_))), "{answer:?}");
    other.abort_transaction().await.unwrap();
    let settled = async {
        loop {
            match work.complete("done").await {
                Err(NotCompleted::Unknown(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                answer => break answer,
            }
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(30), settled).await.expect("it is known at last");
    settled.expect("what was written is not reported as lost");
    assert_eq!(once.once("job").await.unwrap().done().expect("remembered").value(), b"done");
}

async fn once_records_and_indexes(world: World) {
    let collection = random_name("once");
    let once = on(&world.client, &collection);
    once.prepare().await.unwrap();
    let raw = world.raw(&collection);
    let indexes: Vec<IndexModel> = raw.list_indexes().await.unwrap().try_collect().await.unwrap();
    let ttl = |name: &str| {
        let index = indexes.iter().find(|index| index.options.as_ref().unwrap().name.as_deref() == Some(name)).unwrap();
        let options = index.options.clone().unwrap();
        (index.keys.clone(), options.expire_after.unwrap(), options.partial_filter_expression.unwrap())
    };
    let hour = Duration::from_secs(3600);
    assert_eq!(ttl("distlock_once_done"), (doc! { "once.kept": 1 }, hour, doc! { "once.state": "done" }));
    assert_eq!(ttl("distlock_once_open"), (doc! { "lock.expiresAt": 1 }, 30 * DAY, doc! { "once.state": "open" }));

    let record = || async { raw.find_one(doc! { "_id": "job" }).await.unwrap().unwrap() };
    let mut work = once.once("job").keep(Duration::from_millis(1)).fingerprint("$a").await.unwrap().begun().unwrap();
    let begun = record().await;
    let known = begun.get_document("once").unwrap();
    assert_eq!(known.keys().map(String::as_str).collect::<Vec<_>>(), ["state", "fingerprint", "begun"], "{begun}");
    work.complete("$value").await.unwrap();
    let done = record().await;
    let known = done.get_document("once").unwrap();
    let mut fields: Vec<_> = known.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["at", "begun", "fingerprint", "kept", "state", "until", "value"], "{done}");
    assert_eq!(known.get_binary_generic("value").unwrap(), b"$value");
    // What counts no longer is begun again, and then has no date at which it would be removed.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let work = once.once("job").await.unwrap().begun().unwrap();
    assert!(work.interrupted().is_none());
    let again = record().await;
    let known = again.get_document("once").unwrap();
    assert_eq!(known.keys().map(String::as_str).collect::<Vec<_>>(), ["state", "begun"], "{again}");
    work.discard().await.unwrap();
    assert_eq!(record().await.get_document("once").unwrap(), &doc! { "state": "open" });
    assert_eq!(once.once("job").keep(Duration::ZERO).await.unwrap_err().kind(), ErrorKind::InvalidOptions);
}

/// The server's TTL monitor, on records that were last used long ago.
async fn once_purge_spares_work_under_way(world: World) {
    let collection = random_name("once");
    let once = on(&world.client, &collection);
    once.prepare().await.unwrap();
    let raw = world.raw(&collection);
    let begin = async |key: &str| once.once(key).keep(Duration::from_millis(1)).await.unwrap().begun().unwrap();
    let mut under_way = begin("under way").await;
    begin("done").await.complete("value").await.unwrap();
    begin("discarded").await.discard().await.unwrap();
    drop(begin("interrupted").await);
    let lock = async |key: &str| {
        let found = raw.find_one(doc! { "_id": key }).await.unwrap()?;
        Some(found.get_document("lock").unwrap().contains_key("lockId"))
    };
    while lock("interrupted").await == Some(true) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ago = |days: u32| {
        let then = SystemTime::now() - days * DAY;
        doc! { "$set": { "lock.expiresAt": DateTime::from_system_time(then) } }
    };
    // An outcome that counted until two hours ago.
    let then = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    let then = DateTime::from_system_time(then);
    let until = doc! { "$set": { "once.until": then, "once.kept": then } };
    raw.update_one(doc! { "_id": "done" }, until).await.unwrap();
    for key in ["discarded", "interrupted"] {
        raw.update_one(doc! { "_id": key }, ago(31)).await.unwrap();
    }
    // One that is kept: it was used 29 days ago.
    begin("recent").await.discard().await.unwrap();
    raw.update_one(doc! { "_id": "recent" }, ago(29)).await.unwrap();
    let limit = Instant::now() + Duration::from_secs(150);
    while raw.count_documents(doc! { "_id": { "$in": ["done", "discarded", "interrupted"] } }).await.unwrap() > 0 {
        assert!(Instant::now() < limit, "the records are not removed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!([lock("under way").await, lock("recent").await], [Some(true), Some(false)]);
    under_way.complete("value").await.unwrap();
    assert!(begin("done").await.interrupted().is_none());
}

/// A token floor that is an hour ahead keeps the records, and not the outcome.
async fn once_outcome_with_floor_ahead(world: World) {
    let collection = random_name("once");
    let epoch = Duration::from_secs(1_735_689_600);
    let ahead = SystemTime::now() + Duration::from_secs(60 * 60);
    let seconds = (ahead.duration_since(SystemTime::UNIX_EPOCH).unwrap() - epoch).as_secs();
    let once = MongoOnce::builder(world.client.database("distlock_test")).collection(&collection);
    let once = once.token_floor(FencingToken::new(seconds << 21)).build().unwrap();
    let raw = world.raw(&collection);
    let record = async || raw.find_one(doc! { "_id": "job" }).await.unwrap().unwrap();
    // A second less, because tokens count whole seconds.
    let kept = |date: &DateTime| date.to_system_time() >= ahead - Duration::from_secs(1);

    let mut work = once.once("job").keep(Duration::from_millis(200)).await.unwrap().begun().unwrap();
    work.complete("done").await.unwrap();
    let done = record().await;
    assert!(kept(done.get_document("once").unwrap().get_datetime("kept").unwrap()), "{done}");
    let limit = Instant::now() + Duration::from_secs(30);
    let again = loop {
        assert!(Instant::now() < limit, "the outcome counts for longer than `keep`");
        match once.once("job").await.unwrap() {
            Once::Begun(work) => break work,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    again.discard().await.unwrap();
    let open = record().await;
    assert!(kept(open.get_document("lock").unwrap().get_datetime("expiresAt").unwrap()), "{open}");
}

/// The lease is lost between the acquisition and the query, and another request completes.
async fn once_outcome_of_another_request(world: World) {
    let (client, app, sent) = world.recorded_client_of_app().await;
    let collection = random_name("once");
    // The slow query must not be ended by its own limit.
    let (once, other) = (on_within(&client, &collection, Duration::from_secs(30)), on(&world.client, &collection));
    let begin = other.once("job").fingerprint("a").keep(Duration::from_millis(1));
    begin.await.unwrap().begun().unwrap().complete("old").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    once.prepare().await.unwrap();
    sent.take();
    slow_query(&world, &app, &collection, 1, 8000).await;
    let late = tokio::spawn(async move { once.once("job").fingerprint("a").await });
    sent.wait_for(2, "find").await;
    let key = LockKey::new("job").unwrap();
    other.provider().admin().unwrap().force_release(&key, "stuck").await.unwrap().unwrap();
    let mut work = other.once("job").fingerprint("b").await.unwrap().begun().unwrap();
    work.complete("of b").await.unwrap();
    let answer = late.await.unwrap().unwrap();
    heal(&world).await;
    assert!(matches!(answer, Once::Mismatch(_)), "{answer:?}");
}

/// A query that hangs, the first or the last one, does not outlast the wait.
async fn once_wait_of_slow_queries(world: World) {
    let (client, app) = world.client_of_app().await;
    let collection = random_name("once");
    let builder = MongoOnce::builder(client.database("distlock_test")).collection(&collection);
    let once = builder.request_timeout(Duration::from_secs(60)).connect().await.unwrap();
    let _work = on(&world.client, &collection).once("job").await.unwrap().begun().unwrap();
    assert!(once.try_once("job").await.unwrap().is_busy());
    // The second wait must suffice for a query and an acquisition.
    for (skip, limit) in [(0, Duration::from_secs(1)), (1, Duration::from_secs(5))] {
        slow_query(&world, &app, &collection, skip, 10_000).await;
        let wait = once.once("job").timeout(limit).into_future();
        let answer = tokio::time::timeout(Duration::from_secs(8), wait).await;
        heal(&world).await;
        match answer.expect("the wait ends") {
            // Nothing is known without the first query.
            Err(error) if skip == 0 => assert_eq!(error.phase(), Some(Phase::Request), "{error}"),
            answer => assert!(skip == 1 && answer.as_ref().unwrap().is_busy(), "{skip}: {answer:?}"),
        }
    }
}

/// A query that fails as in a fail-over ends a single attempt, but not a wait.
async fn once_wait_goes_on_after_a_failed_query(world: World) {
    const NOT_PRIMARY: i32 = 10107;

    // After the error the driver waits for the end of its `hello`, which lasts for this long.
    let often = Some(Duration::from_millis(500));
    let app = random_name("app");
    let (client, _) =
        world.connect(|options| (options.app_name, options.heartbeat_freq) = (Some(app.clone()), often)).await;
    let once = on(&client, &random_name("once"));
    once.prepare().await.unwrap();
    // The driver makes a query a second time.
    let data = doc! { "failCommands": ["find"], "appName": &app, "errorCode": NOT_PRIMARY };
    let fail = async || {
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 2 }, "data": &data }).await;
    };
    fail().await;
    let error = once.try_once("tried").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    fail().await;
    let mut work = once.once("waited").timeout(Duration::from_secs(30)).await.unwrap().begun().unwrap();
    heal(&world).await;
    work.complete("done").await.unwrap();
    assert_eq!(once.once("waited").await.unwrap().done().unwrap().value(), b"done");
}

/// The call is dropped while its mark is under way, and the provider is closed then.
async fn once_dropped_and_closed(world: World) {
    let (client, app, sent) = world.recorded_client_of_app().await;
    let collection = random_name("once");
    let (once, other) = (on(&client, &collection), on(&world.client, &collection));
    once.prepare().await.unwrap();
    sent.take();
    let how = doc! { "blockConnection": true, "blockTimeMS": 4000 };
    fail(&world, &app, doc! { "skip": 1 }.into(), how).await;
    let caller = once.clone();
    let call = tokio::spawn(async move { caller.once("job").at_most_once().await });
    sent.wait_for(2, "findAndModify").await;
    call.abort();
    once.close().await.unwrap();
    heal(&world).await;
    let next = other.once("job").at_most_once().timeout(Duration::from_secs(30)).await.unwrap();
    assert!(matches!(next, Once::Begun(_)), "{next:?}");
    assert_eq!(once.once("job").await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Every reply takes more than half of the ttl, so that the one to the mark comes after the end of
/// the lease.
async fn once_over_a_slow_network(world: World) {
    const TTL: Duration = Duration::from_secs(2);
    const SLOW: Duration = Duration::from_millis(1300);

    let proxy = FaultProxy::start(primary(&world).await).await.unwrap();
    let collection = random_name("once");
    let (once, other) = (on(&behind(&world, &proxy).await, &collection), on(&world.client, &collection));
    once.prepare().await.unwrap();
    for limit in [None, Some(Duration::from_secs(5))] {
        let key = random_name("job");
        proxy.strike(NetworkFault::Delay { way: Way::ToClient, by: SLOW });
        let attempt = limit.map_or_else(|| once.try_once(&key), |limit| once.once(&key).timeout(limit));
        let attempt = attempt.ttl(TTL).renewal(RenewalPolicy::Never).into_future();
        let answer = tokio::time::timeout(Duration::from_secs(30), attempt).await.expect("a bounded call");
        match answer {
            Ok(Once::Begun(work)) => assert!(!work.is_lost(), "a lost run was begun: {work:?}"),
            Ok(answer) => assert!(answer.is_busy(), "{answer:?}"),
            Err(error) => {
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Timeout, true), "{error:?}");
                crate::guide::lists(&error);
            }
        }
        assert!(proxy.heal() > 0, "no reply was slow");
        let next = other.once(&key).timeout(Duration::from_secs(30)).await.unwrap().begun().expect("it is open");
        next.discard().await.unwrap();
    }
}

/// A request of the beginning, and later of the completion, or its reply is lost, and the
/// connection stays open. Each is decided as soon as a lock would be.
async fn once_half_open(world: World, way: Way) {
    let proxy = FaultProxy::start(primary(&world).await).await.unwrap();
    let collection = random_name("once");
    let (once, other) = (
        on_within(&behind(&world, &proxy).await, &collection, REQUEST),
        on_within(&world.client, &collection, REQUEST),
    );
    once.prepare().await.unwrap();
    let caller = once.clone();
    let (beginning, hit) = struck(&proxy, way, async move { caller.once("job").ttl(LONG).await }).await;
    let begun = tokio::time::timeout(BOUND.saturating_sub(hit.elapsed()), beginning).await;
    let begun = begun.expect("the beginning hangs on a half-open connection").unwrap().unwrap();
    let mut work = begun.begun().expect("no other caller wants it");
    assert!(work.interrupted().is_none(), "the lost exchange is no run: {work:?}");
    assert!(other.try_once("job").await.unwrap().is_busy());

    let completing = async move {
        // The same holder asks again.
        while let Err(error) = work.complete("done").await {
            assert!(matches!(error, NotCompleted::Unknown(_)), "{error:?}");
        }
        work
    };
    let (completing, hit) = struck(&proxy, way, completing).await;
    let completed = tokio::time::timeout(BOUND.saturating_sub(hit.elapsed()), completing).await;
    drop(completed.expect("the completion hangs on a half-open connection").unwrap());
    assert_eq!(other.once("job").await.unwrap().done().expect("remembered").value(), b"done");
    once.close().await.unwrap();
    let accounting = once.provider().accounting();
    assert!(accounting.balances() && accounting.held + accounting.unsettled == 0, "{accounting:?}");
}

/// While the outcome of a completion is not known, its lease still has an end.
async fn once_unanswered_is_lost_at_its_deadline(world: World) {
    let (client, app) = world.client_of_app().await;
    // The tries end with the request timeout, long before the lease.
    let once = on_within(&client, &random_name("once"), Duration::from_secs(3));
    let mut work = once.once("job").ttl(Duration::from_secs(8)).await.unwrap().begun().unwrap();
    fail(&world, &app, "alwaysOn".into(), open()).await;
    let answer = work.complete("done").await;
    heal(&world).await;
    assert!(matches!(answer, Err(NotCompleted::Unknown(_))), "{answer:?}");
    let run = tokio::time::timeout(Duration::from_secs(30), work.run(pending::<()>())).await;
    let error = run.expect("the lease ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(work.loss(), Some(work.lost().await));
    work.complete("done").await.expect("what was written is not reported as lost");
    assert!(work.is_lost(), "once lost, always lost");
}

/// The completion was written, its outcome was forgotten, and another run has followed.
async fn once_completion_forgotten_meanwhile(world: World) {
    let (client, app, sent) = world.recorded_client_of_app().await;
    let collection = random_name("once");
    let (once, other) = (on(&client, &collection), on(&world.client, &collection));
    let mut work = once.once("job").keep(Duration::from_millis(1)).await.unwrap().begun().unwrap();
    let how = doc! { "blockConnection": true, "blockTimeMS": 4000 };
    fail(&world, &app, doc! { "times": 1 }.into(), how).await;
    // Its caller leaves.
    sent.take();
    tokio::select! {
        answer = work.complete("done") => panic!("{answer:?}"),
        () = sent.wait_for(1, "findAndModify") => {}
    }
    let next = other.once("job").timeout(Duration::from_secs(30)).await.unwrap();
    heal(&world).await;
    let next = match next {
        Once::Begun(next) => next,
        _ => {
            tokio::time::sleep(Duration::from_millis(20)).await;
            other.once("job").await.unwrap().begun().expect("it is forgotten")
        }
    };
    assert!(next.interrupted().is_none());
    work.complete("done").await.expect("what was written is not reported as lost");
}

async fn once_foreign_documents(world: World) {
    let collection = random_name("once");
    let once = on(&world.client, &collection);
    let raw = world.raw(&collection);
    for other in [
        doc! { "_id": "a", "order": 7 },
        doc! { "_id": "b", "once": "upon a time" },
        doc! { "_id": "c", "once": { "state": "odd" } },
        doc! { "_id": "d", "once": { "state": "open" }, "lock": "of another program" },
    ] {
        raw.insert_one(&other).await.unwrap();
        let id = other.get_str("_id").unwrap();
        let key = LockKey::new(id).unwrap();
        let refused = [
            once.once(id).await.map(drop).unwrap_err(),
            once.try_once(id).await.map(drop).unwrap_err(),
            once.inspect(&key).await.map(drop).unwrap_err(),
            // The acquisition itself, without the query before it.
            once.provider().acquire(id).into_future().await.map(drop).unwrap_err(),
            once.provider().try_acquire(id).into_future().await.map(drop).unwrap_err(),
        ];
        for error in refused {
            assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some(&key)), "{error}");
        }
        assert_eq!(raw.find_one(doc! { "_id": id }).await.unwrap().unwrap(), other, "it is left as it is");
    }
    let guard = once.once("e").renewal(RenewalPolicy::Never).await.unwrap().begun().unwrap();
    guard.discard().await.unwrap();
}
