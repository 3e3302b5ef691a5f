//! Servers that are away, refuse calls, hang, or lose their answers.

use std::error::Error;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use distlock_api::{Disposition, ErrorKind, LockError, LockFilter, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_engine::LeaseProvider;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, LeaseStore, QueueStanding, QueueStore, Release, Renewal,
};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::event::EventHandler;
use distlock_mongo::mongodb::event::command::CommandEvent;
use distlock_mongo::mongodb::options::{ClientOptions, Credential, ServerAddress};
use distlock_mongo::{MongoProvider, MongoStore};

use super::world::{LONG, Sent, World, admin, claim, granted, key, queued, random_name, release, ticket};
use super::{Checks, PARTS};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, alone C18 hung_server_is_bounded);
    check!(checks, alone C10 write_concern_error_leaves_the_outcome_open);
    check!(checks, alone C14 leases_are_kept_while_acquisitions_are_slow);
    // The callers take all the CPU that they get.
    checks.add_heavy(
        PARTS,
        "C14_refused_callers_that_do_not_pause_cost_no_lease",
        refused_callers_that_do_not_pause_cost_no_lease,
    );
    check!(checks, alone R2 every_command_carries_a_time_limit);
    check!(checks, wrong_credentials);
    check!(checks, C18 unreachable_server_is_bounded);
    check!(checks, corrupt_record);
    check!(checks, alone C13 a_hung_server_is_usable_as_soon_as_it_is_back);
    check!(checks, alone not_allowed_to_create_the_index);
    check!(checks, alone not_allowed_to_write);
    check!(checks, alone the_guide_has_the_errors_of_the_server);
    if checks.is_replica_set() {
        check!(checks, alone C10 replayed_write);
        check!(checks, alone R11 straggler_is_refused);
        check!(checks, alone stepped_down);
    }
}

/// Returns everything that an error shows, to people and to programs.
fn shown(error: &LockError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    text
}

async fn unreachable_server_is_bounded(_: World) {
    // The port is taken, so that no other program listens on it.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let hosts = vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(port) }];
    let options = ClientOptions::builder().hosts(hosts).build();
    let client = Client::with_options(options).unwrap();
    let store = MongoProvider::builder_from_client(&client).build_store().unwrap();
    let limit = Duration::from_millis(300);
    let a = claim(&key());
    for _ in 0..2 {
        let started = Instant::now();
        let error = store.try_acquire(&Attempt::new(a.clone(), LONG).with_timeout(limit)).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!((error.kind(), error.disposition()), (ErrorKind::Unavailable, Disposition::Retryable), "{error:?}");
        assert_eq!(error.key(), Some(a.key()));
    }
    let error = store.release(&Release::new(a.clone()).with_timeout(limit)).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let batch = [Renewal::lease(a.clone(), distlock_api::FencingToken::new(1), LONG).with_timeout(limit)];
    let started = Instant::now();
    assert!(store.renew_many(&batch).await.remove(0).is_err());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());

    // The driver's own limit comes first, and its error reports that no server was found.
    let mut options =
        ClientOptions::builder().hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(port) }]).build();
    options.server_selection_timeout = Some(Duration::from_millis(50));
    let client = Client::with_options(options).unwrap();
    let store = MongoProvider::builder_from_client(&client).build_store().unwrap();
    let error = store.try_acquire(&Attempt::new(a, LONG)).await.unwrap_err();
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::Unavailable, Disposition::Retryable), "{error:?}");
}

async fn wrong_credentials(world: World) {
    let secret = "correct horse battery staple";
    let credential = Credential::builder().username("alice".to_owned()).password(secret.to_owned()).build();
    let (client, _) = world.connect(|options| options.credential = Some(credential)).await;
    // After a refusal the driver pauses the server for seconds, and reports only that there is
    // none.
    let limit = Duration::from_secs(5);
    let provider = MongoProvider::builder_from_client(&client).request_timeout(limit).build().unwrap();
    let builder = MongoProvider::builder(client.database("app"));
    let shown_things = format!("{provider} {provider:?} {:?} {builder:?}", provider.store());
    assert!(!shown_things.contains("horse") && !shown_things.contains("alice"), "{shown_things}");
    let error = provider.store().try_acquire(&Attempt::new(claim(&key()), LONG)).await.unwrap_err();
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::PermissionDenied, Disposition::Permanent), "{error:?}");
    let text = shown(&error) + &shown(&provider.prepare().await.unwrap_err());
    assert!(!text.contains("horse") && !text.contains("mongodb://"), "{text}");
}

async fn hung_server_is_bounded(world: World) {
    let (store, app, _) = world.store_of_app().await;
    granted(&store, &claim(&key()), LONG).await;
    let limit = Duration::from_millis(500);
    // Below the time for which the server is blocked.
    let bound = Duration::from_secs(5);
    let block = doc! { "blockConnection": true, "blockTimeMS": 6000 };

    let a = claim(&key());
    world.fail(&app, "findAndModify", block.clone()).await;
    let started = Instant::now();
    let error = store.try_acquire(&Attempt::new(a.clone(), LONG).with_timeout(limit)).await.unwrap_err();
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::Timeout, Disposition::OutcomeUnknown), "{error:?}");
    assert_eq!(error.phase(), Some(distlock_api::Phase::Request));

    let b = claim(&key());
    let token = granted(&store, &b, LONG).await.token;
    world.fail(&app, "update", block.clone()).await;
    let started = Instant::now();
    let renewal = Renewal::lease(b.clone(), token, LONG).with_timeout(limit);
    assert_eq!(store.renew(&renewal).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    world.fail(&app, "findAndModify", block).await;
    let started = Instant::now();
    let error = store.release(&Release::new(b.clone()).with_timeout(limit)).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(started.elapsed() < bound, "{:?}", started.elapsed());
    assert!(release(&store, &b).await.is_released(), "repeated");
}

/// Many callers give up while the server hangs. Their calls must not delay those that come after
/// its return.
async fn a_hung_server_is_usable_as_soon_as_it_is_back(world: World) {
    let (store, app, _) = world.store_of_app().await;
    granted(&store, &claim(&key()), LONG).await;
    let block =
        doc! { "failCommands": ["findAndModify"], "appName": app, "blockConnection": true, "blockTimeMS": 1000 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": block }).await;
    let limit = Duration::from_millis(300);
    let hung = (0..300).map(async |_| {
        store.try_acquire(&Attempt::new(claim(&key()), LONG).with_timeout(limit)).await.map(|_| ()).unwrap_err()
    });
    for error in futures_util::future::join_all(hung).await {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
    }
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    let started = Instant::now();
    let attempt = Attempt::new(claim(&key()), LONG).with_timeout(Duration::from_secs(20));
    assert!(store.try_acquire(&attempt).await.is_ok());
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
}

/// Sixty callers of sixty keys, acquisitions that take 500 ms each, and a lease that is held
/// meanwhile.
async fn leases_are_kept_while_acquisitions_are_slow(world: World) {
    // Eight calls of 500 ms at once, two for each acquisition: eight acquisitions in a second.
    const ENOUGH: u32 = 48;

    let app = random_name("app");
    let (client, _) = world.connect(|options| options.app_name = Some(app.clone())).await;
    let name = random_name("locks");
    let builder = || MongoProvider::builder_from_client(&client).database("distlock_test").collection(&name);
    let locks = builder().build().unwrap();
    let (ttl, every) = (Duration::from_secs(10), RenewalPolicy::Every(Duration::from_secs(1)));
    let held = locks.acquire(key()).ttl(ttl).renewal(every).await.unwrap();
    // All that acquisitions send, alone and in batches, except for the `update` that renewals need.
    let slow = ["findAndModify", "aggregate", "find"].as_slice();
    let block = doc! { "failCommands": slow, "appName": app, "blockConnection": true, "blockTimeMS": 500 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": block }).await;
    let (begin, acquired) = (Instant::now(), AtomicU32::new(0));
    let is_over = || {
        let (passed, acquired) = (begin.elapsed(), acquired.load(Ordering::Relaxed));
        (acquired >= ENOUGH && passed > ttl + Duration::from_secs(2)) || passed > Duration::from_secs(40)
    };
    let works = async |_| {
        let key = key();
        while !is_over() {
            match locks.acquire(&key).timeout(Duration::from_secs(3)).await {
                Ok(guard) => {
                    acquired.fetch_add(1, Ordering::Relaxed);
                    drop(guard);
                }
                Err(error) => {
                    assert_ne!(error.disposition(), Disposition::Permanent, "{error:?}");
                    crate::guide::lists(&error);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    futures_util::future::join_all((0..60).map(works)).await;
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    assert_eq!(held.loss(), None);
    let acquired = acquired.into_inner();
    assert!(acquired >= ENOUGH, "{acquired} acquisitions");
    let quick = tokio::time::timeout(Duration::from_secs(10), locks.acquire(key()).into_future()).await;
    assert!(quick.expect("the server is well").is_ok());
    locks.close().await.unwrap();
}

/// As before, on two threads, and the callers do not pause when the store is overloaded. Few
/// connections, and callers that wait for less than one call takes: one that finds no free
/// connection is refused, however busy the machine is. Each has a key of its own, so none waits for
/// another.
async fn refused_callers_that_do_not_pause_cost_no_lease(world: World) {
    let (app, name) = (random_name("app"), random_name("locks"));
    let mut options = world.options.clone();
    options.app_name = Some(app.clone());
    options.max_pool_size = Some(4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let (done, is_done) = tokio::sync::oneshot::channel();
    let (over, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let loops = (over.clone(), refused.clone());
    runtime.spawn(async move {
        let (over, refused) = loops;
        let client = Client::with_options(options).unwrap();
        let locks = MongoProvider::builder_from_client(&client).database("distlock_test").collection(name);
        let locks = locks.build().unwrap();
        let ttl = Duration::from_secs(3);
        let held = locks.acquire(key()).ttl(ttl).await.unwrap();
        begun.send(()).unwrap();
        for _ in 0..60 {
            let (locks, key, over, refused) = (locks.clone(), key(), over.clone(), refused.clone());
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    match locks.acquire(&key).timeout(Duration::from_millis(300)).await {
                        Ok(guard) => drop(guard.release().await),
                        Err(error) => {
                            _ = refused.fetch_add(u32::from(error.kind() == ErrorKind::Overloaded), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        // Longer than it would last without a renewal.
        let first = held.valid_until().unwrap();
        while held.loss().is_none() && held.valid_until().unwrap() < first + ttl {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = done.send(held.loss());
    });
    begins.await.unwrap();
    let slow = ["findAndModify", "update", "aggregate"].as_slice();
    let block = doc! { "failCommands": slow, "appName": app, "blockConnection": true, "blockTimeMS": 500 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": block }).await;
    let answer = tokio::time::timeout(Duration::from_secs(60), is_done).await;
    over.store(true, Ordering::Relaxed);
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    runtime.shutdown_background();
    assert_eq!(answer.expect("the runtime stands still").unwrap(), None);
    let refused = refused.load(Ordering::Relaxed);
    println!("{refused} calls were refused");
    assert!(refused > 0, "no call was refused");
}

/// Whether a command is for this collection. One that inserts what it computes has the name in its
/// last stage.
fn is_for(command: &Document, collection: &str) -> bool {
    let first = command.iter().next().and_then(|(_, of)| of.as_str());
    let last = || command.get_array("pipeline").ok()?.last()?.as_document()?.get_document("$merge").ok();
    first == Some(collection) || last().is_some_and(|merge| merge.get_str("into").is_ok_and(|into| into == collection))
}

/// Without a time limit a hung command would keep its connection for ever.
async fn every_command_carries_a_time_limit(world: World) {
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    let name = random_name("locks");
    let watched = name.clone();
    let (client, _) = world
        .connect(|options| {
            options.command_event_handler = Some(EventHandler::callback(move |event| {
                if let CommandEvent::Started(started) = event
                    && is_for(&started.command, &watched)
                {
                    let _ = sender.send((started.command_name, started.command.contains_key("maxTimeMS")));
                }
            }));
        })
        .await;
    let store = world.store_on(&client, &name);
    let [a, b] = [(); 2].map(|()| claim(&key()));
    let token = granted(&store, &a, LONG).await.token;
    let attempt = Attempt::new(claim(a.key()), LONG).with_ticket(ticket());
    let waits = attempt.claim.clone();
    store.try_acquire(&attempt).await.unwrap();
    store.renew(&Renewal::lease(a.clone(), token, LONG)).await.unwrap();
    store.renew(&Renewal::ticket(waits, ticket())).await.unwrap();
    store.renew(&Renewal::lease(b, token, LONG)).await.unwrap();
    store.waiters(&a, LONG).await.unwrap();
    admin(&store).inspect(a.key()).await.unwrap();
    admin(&store).history(a.key()).await.unwrap();
    admin(&store).release_matching(&LockFilter::new().prefix("key"), "test").await.unwrap();
    let _ = release(&store, &a).await.is_released();
    let together: Vec<Attempt> = (0..3).map(|_| Attempt::new(claim(&key()), LONG).with_ticket(ticket())).collect();
    assert!(store.try_acquire_many(&together).await.iter().all(Result::is_ok));
    let releases: Vec<Release> = together.iter().map(|attempt| Release::new(attempt.claim.clone())).collect();
    assert!(store.release_many(&releases).await.iter().all(Result::is_ok));
    drop((store, client));
    let mut seen = std::collections::BTreeSet::new();
    while let Ok(Some((command, limited))) = tokio::time::timeout(Duration::from_millis(500), commands.recv()).await {
        assert!(limited, "{command} has no maxTimeMS");
        seen.insert(command);
    }
    assert!(["aggregate", "find", "findAndModify", "update"].iter().all(|command| seen.contains(*command)), "{seen:?}");
}

async fn write_concern_error_leaves_the_outcome_open(world: World) {
    let (store, app, _) = world.store_of_app().await;
    granted(&store, &claim(&key()), LONG).await;
    let failure = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    let a = claim(&key());
    world.fail(&app, "findAndModify", failure.clone()).await;
    let error = store.try_acquire(&Attempt::new(a.clone(), LONG)).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    crate::guide::lists(&error);
    let info = admin(&store).inspect(a.key()).await.unwrap().expect("it was applied");
    assert_eq!(granted(&store, &a, LONG).await.token, info.token);
    world.fail(&app, "findAndModify", failure).await;
    assert!(store.release(&Release::new(a.clone())).await.unwrap_err().is_outcome_unknown());
    assert!(release(&store, &a).await.is_released(), "repeated");
}

const UNAUTHORIZED: i32 = 13;

async fn not_allowed_to_create_the_index(world: World) {
    let (store, app, _) = world.store_of_app().await;
    // `prepare` reports it, as the log does.
    world.fail(&app, "createIndexes", doc! { "errorCode": UNAUTHORIZED }).await;
    let error = store.prepare().await.unwrap_err();
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::PermissionDenied, Disposition::Permanent), "{error:?}");
    world.fail(&app, "createIndexes", doc! { "errorCode": UNAUTHORIZED }).await;
    let a = claim(&key());
    granted(&store, &a, LONG).await;
    assert!(release(&store, &a).await.is_released(), "locks work without the index");
}

async fn not_allowed_to_write(world: World) {
    let (store, app, name) = world.store_of_app().await;
    let locks = LeaseProvider::new(Arc::new(store));
    let key = key();
    world.fail(&app, "findAndModify", doc! { "errorCode": UNAUTHORIZED }).await;
    // The caller would wait without a limit, but nothing will change, so the error comes at once.
    let error = tokio::time::timeout(Duration::from_secs(10), locks.acquire(&key).into_future()).await;
    let error = error.expect("at once").unwrap_err();
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::PermissionDenied, Disposition::Permanent), "{error:?}");
    assert_eq!(locks.accounting().acquired, 0);
    assert_eq!(world.raw(&name).count_documents(doc! {}).await.unwrap(), 0, "nothing left behind");
}

/// One code of each kind of refusal. The codes of a change of the primary, after which the driver
/// looks for another one, have checks of their own.
async fn the_guide_has_the_errors_of_the_server(world: World) {
    let (store, app, _) = world.store_of_app().await;
    granted(&store, &claim(&key()), LONG).await;
    for code in [2, 13, 14, 50, 67, 112, 8000, 13297, 40573, 99_999] {
        world.fail(&app, "findAndModify", doc! { "errorCode": code }).await;
        let error = store.try_acquire(&Attempt::new(claim(&key()), LONG)).await.expect_err("a refusal");
        crate::guide::lists(&error);
    }
}

async fn corrupt_record(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    world.raw(&name).insert_one(doc! { "_id": key.as_str(), "fencingToken": "seven" }).await.unwrap();
    let error = store.try_acquire(&Attempt::new(claim(&key), LONG)).await.unwrap_err();
    assert_eq!((error.kind(), error.disposition()), (ErrorKind::Corrupt, Disposition::Permanent), "{error:?}");
}

/// The server applies the write and closes the connection. The driver sends the write again, and
/// the server repeats the stored answer, without the projection (R9).
async fn replayed_write(world: World) {
    let store = world.store();
    granted(&store, &claim(&key()), LONG).await;
    let lose_reply =
        || world.admin(doc! { "configureFailPoint": "onPrimaryTransactionalWrite", "mode": { "times": 1 } });

    let a = claim(&key());
    lose_reply().await;
    let error = store.try_acquire(&Attempt::new(a.clone(), LONG)).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    crate::guide::lists(&error);
    let info = admin(&store).inspect(a.key()).await.unwrap().expect("it was applied");
    assert_eq!(info.id.as_ref(), Some(a.id()));
    assert_eq!(granted(&store, &a, LONG).await.token, info.token, "a repeated attempt");

    lose_reply().await;
    let error = store.release(&Release::new(a.clone())).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    assert!(release(&store, &a).await.is_released(), "repeated");

    // A lease that was handed over once is not handed over again.
    let [a, b, c] = [(); 3].map(|()| claim(a.key()));
    granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    lose_reply().await;
    let attempt = Attempt::new(c.clone(), LONG).with_ticket(ticket());
    assert!(store.try_acquire(&attempt).await.unwrap_err().is_outcome_unknown());
    assert_eq!(queued(&store, &c).await.standing, QueueStanding::Queued { ahead: 1 }, "queued once");
    lose_reply().await;
    assert!(store.release(&Release::new(a.clone())).await.unwrap_err().is_outcome_unknown());
    assert!(release(&store, &a).await.is_released(), "repeated");
    let info = admin(&store).inspect(a.key()).await.unwrap().expect("passed on");
    assert_eq!((info.id.as_ref(), store.waiters(&a, LONG).await.unwrap()), (Some(b.id()), 1));
}

/// An acquisition that the server carries out after its own withdrawal would leave a lease without
/// a holder.
async fn straggler_is_refused(world: World) {
    let name = random_name("locks");
    let (client, app, sent) = world.recorded_client_of_app().await;
    let store = world.store_on(&client, &name);
    granted(&store, &claim(&key()), LONG).await;
    let a = claim(&key());
    withdrawn_while_it_hangs(&world, (&*app, &sent), &store, &a).await;
    assert_eq!(admin(&store).inspect(a.key()).await.unwrap(), None, "the straggler took the lease");
    granted(&store, &claim(a.key()), LONG).await;
}

/// Sends an attempt that hangs at the server, withdraws the claim meanwhile, and waits until the
/// attempt has been carried out.
pub(super) async fn withdrawn_while_it_hangs(world: &World, by: (&str, &Sent), store: &MongoStore, claim: &Claim) {
    let ((app, sent), pause) = (by, Duration::from_secs(4));
    let blocked = i64::try_from(pause.as_millis()).unwrap();
    world.fail(app, "findAndModify", doc! { "blockConnection": true, "blockTimeMS": blocked }).await;
    // The call is dropped, not timed out: the server's own limit would end it first.
    let attempt = Attempt::new(claim.clone(), LONG).with_timeout(LONG);
    sent.take();
    // The server has it by then: otherwise it could block the withdrawal instead.
    let arrived = async {
        sent.wait_for(1, "findAndModify").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    tokio::select! {
        answer = store.try_acquire(&attempt) => panic!("{answer:?}"),
        () = arrived => {}
    }
    store.withdraw(claim, LONG).await.unwrap();
    tokio::time::sleep(pause + Duration::from_secs(1)).await;
}

async fn stepped_down(world: World) {
    let (store, app, _) = world.store_of_app().await;
    granted(&store, &claim(&key()), LONG).await;
    // Both tries of the driver fail.
    let data = doc! { "failCommands": ["findAndModify"], "appName": &app, "errorCode": 10107, "errorLabels": ["RetryableWriteError"] };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 2 }, "data": data }).await;
    let a = claim(&key());
    let error = store.try_acquire(&Attempt::new(a.clone(), LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_ne!(error.disposition(), Disposition::Permanent);
    crate::guide::lists(&error);
    granted(&store, &a, LONG).await;
}
