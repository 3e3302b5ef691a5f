//! All members are stopped for a while, and continued: what they have received meanwhile locks
//! nothing for callers that have left (R31), and callers find them again soon.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{LockProvider, LockProviderExt};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::{Client, Collection, options::ClientOptions};
use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider};
use distlock_recipes::once::OnceProviderExt;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::Trials;
use crate::frozen::Frozen;

/// Longer than everything else.
const LONG: Duration = Duration::from_secs(120);

/// For how long the servers are stopped, and the ttl of the locks, in seconds. The variable names
/// others, and then the request timeout is the default: `DISTLOCK_FREEZES=12:10,25:30`.
const FREEZE: (u64, u64) = (10, 8);
/// No longer than a clean-up needs to end before the thaw.
const REQUEST: Duration = Duration::from_millis(500);
/// After the driver has made a write again. Less than any ttl here.
const SOON: Duration = Duration::from_secs(3);
/// After this time the callers leave.
const CALLER: Duration = Duration::from_millis(300);
const MEMBERS: &str = "DISTLOCK_FREEZE_MEMBERS";

pub(crate) fn add(trials: &mut Trials) {
    trials.add("r31_keys_are_free_soon_after_a_freeze", r31_keys_are_free_soon_after_a_freeze());
    trials.add(
        "the_first_acquire_after_a_freeze_does_not_wait_for_the_drivers_next_check",
        the_first_acquire_after_a_freeze_does_not_wait_for_the_drivers_next_check(),
    );
    trials.add_alone("r31_a_machine_that_was_suspended_goes_on", r31_a_machine_that_was_suspended_goes_on());
}

fn freezes() -> (Vec<(u64, u64)>, Option<Duration>) {
    let Ok(given) = std::env::var("DISTLOCK_FREEZES") else { return (vec![FREEZE], Some(REQUEST)) };
    let pair = |pair: &str| {
        let (freeze, ttl) = pair.split_once(':').expect("FREEZE:TTL");
        (freeze.parse().expect("seconds"), ttl.parse().expect("seconds"))
    };
    (given.split(',').map(pair).collect(), None)
}

/// The process ids of all members.
async fn pids(client: &Client) -> Vec<i64> {
    let hello: Document = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    let hosts = hello.get_array("hosts").unwrap().iter().map(|host| host.as_str().unwrap().to_owned());
    let pid = async |host: String| {
        let member = Client::with_uri_str(format!("mongodb://{host}/?directConnection=true")).await.unwrap();
        let status = member.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
        status.get_i64("pid").unwrap()
    };
    join_all(hosts.map(pid)).await
}

/// Prepares something before the freeze. A request timeout of the check is short, and may be too
/// short while other checks start their servers.
macro_rules! answered {
    ($call:expr) => {{
        let begun = Instant::now();
        loop {
            match $call {
                Ok(answer) => break answer,
                Err(error) => assert!(error.is_retryable() && begun.elapsed() < LONG, "{error}"),
            }
        }
    }};
}

type Attempt = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The locks of one process. Each kind of attempt has its own, so that none goes in a batch with
/// another.
struct Process {
    client: Client,
    request_timeout: Option<Duration>,
    ttl: Duration,
}

impl Process {
    async fn start(uri: &str, (ttl, request_timeout): (Duration, Option<Duration>)) -> Self {
        Self { client: Client::with_uri_str(uri).await.unwrap(), request_timeout, ttl }
    }

    async fn locks(&self) -> MongoProvider {
        let builder = MongoProvider::builder_from_client(&self.client).database("distlock_test").ttl(self.ttl);
        let builder = match self.request_timeout {
            Some(limit) => builder.request_timeout(limit),
            None => builder,
        };
        let locks = answered!(builder.clone().connect().await);
        // A connection is open, and the clock is known.
        drop(answered!(locks.acquire("warm").await));
        locks
    }
}

async fn r31_keys_are_free_soon_after_a_freeze() {
    let members = std::env::var(MEMBERS).map_or(1, |members| members.parse().expect("a number"));
    let server = MongoServer::start_local(Topology::ReplicaSet, members).await.unwrap();
    let (freezes, request_timeout) = freezes();
    for (freeze, ttl) in freezes {
        frozen_for(&server, Duration::from_secs(freeze), (Duration::from_secs(ttl), request_timeout)).await;
    }
    server.stop().await;
}

async fn frozen_for(server: &MongoServer, freeze: Duration, options @ (ttl, _): (Duration, Option<Duration>)) {
    let process = async || Process::start(server.uri(), options).await;
    let name = format!("{:016x}", fastrand::u64(..));
    let key = |kind: &str| format!("{name}-{kind}");

    let mut attempts: Vec<Attempt> = Vec::new();
    for (kind, is_new) in [("short", false), ("short-new", true)] {
        let (locks, key) = (process().await.locks().await, key(kind));
        if !is_new {
            let _ = answered!(answered!(locks.acquire(&key).await).release().await);
        }
        attempts.push(Box::pin(async move { drop(locks.acquire(&key).await) }));
    }
    for (kind, is_new) in [("long", false), ("long-new", true)] {
        let (locks, key) = (process().await.locks().await, key(kind));
        if !is_new {
            let _ = answered!(answered!(locks.acquire(&key).await).release().await);
        }
        attempts.push(Box::pin(async move { drop(locks.try_acquire(&key).await) }));
    }
    let (locks, shared) = (process().await.locks().await, key("shared"));
    attempts.push(Box::pin(async move { drop(locks.acquire(&shared).shared().await) }));
    let (locks, batch) = (process().await.locks().await, (0..8).map(|number| key(&format!("batch-{number}"))));
    let batch: Vec<String> = batch.collect();
    attempts
        .push(Box::pin(async move { drop(join_all(batch.iter().map(|key| locks.acquire(key).into_future())).await) }));
    let of_once = process().await;
    let once = MongoOnce::builder(of_once.client.database("distlock_test")).ttl(ttl);
    let once = options.1.map_or_else(|| once.clone(), |limit| once.clone().request_timeout(limit)).build().unwrap();
    drop(answered!(once.once(key("warm")).await));
    let work = key("once");
    attempts.push(Box::pin(async move { drop(once.once(&work).await) }));
    let of_documents = process().await;
    let accounts = of_documents.client.database("distlock_test").collection::<Document>("accounts");
    accounts.insert_one(doc! { "_id": key("document") }).await.unwrap();
    accounts.insert_one(doc! { "_id": key("warm"), "x": 1 }).await.unwrap();
    let documents = DocumentLocks::builder(&accounts).ttl(ttl);
    let documents = options.1.map_or_else(|| documents.clone(), |limit| documents.clone().request_timeout(limit));
    let documents = documents.build().unwrap();
    drop(answered!(documents.lock(key("warm").as_str()).await));
    let account = key("document");
    attempts.push(Box::pin(async move { drop(documents.lock(account.as_str()).await) }));

    let others = process().await;
    let other = others.locks().await;
    let other_once = MongoOnce::builder(others.client.database("distlock_test")).build().unwrap();
    let accounts = others.client.database("distlock_test").collection::<Document>("accounts");
    let other_documents = DocumentLocks::builder(&accounts).build().unwrap();

    let by_hand = others.client.database("distlock_test").collection::<Document>("by_hand");
    by_hand.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).upsert(true).await.unwrap();
    let frozen: Vec<Frozen> = pids(&others.client).await.into_iter().map(Frozen::freeze).collect();
    let begun = Instant::now();
    let leaving = attempts.into_iter().map(|attempt| timeout(CALLER, attempt));
    assert!(join_all(leaving).await.into_iter().all(|left| left.is_err()), "an attempt was answered");
    sleep(freeze.saturating_sub(begun.elapsed())).await;
    drop(frozen);

    let thaw = Instant::now();
    let by_hand = tokio::spawn(written_by_hand(by_hand, thaw));
    let mut taken: Vec<(String, Duration)> = Vec::new();
    for kind in ["short", "short-new", "long", "long-new", "shared"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..8).map(|number| format!("batch-{number}")))
    {
        let guard = other.acquire(key(&kind)).timeout(LONG).await.unwrap();
        taken.push((kind, thaw.elapsed()));
        drop(guard);
    }
    let guard = other_once.once(key("once")).timeout(LONG).await.unwrap();
    taken.push(("once".to_owned(), thaw.elapsed()));
    drop(guard);
    let guard = other_documents.lock(key("document").as_str()).timeout(LONG).await.unwrap();
    taken.push(("document".to_owned(), thaw.elapsed()));
    drop(guard);
    let by_hand = by_hand.await.unwrap();
    println!("freeze {freeze:?}, ttl {ttl:?}: by hand {by_hand:.1?}, {taken:.1?}");
    for (kind, after) in taken {
        // A lease without an owner would begin at the thaw, and last for the ttl.
        assert!(after < by_hand + SOON, "{kind}: it was taken {after:.1?} after the thaw, by hand {by_hand:.1?}");
    }
    other.close().await.unwrap();
}

/// Returns when a write of the driver alone has been made, the choice of a primary included.
async fn written_by_hand(documents: Collection<Document>, thaw: Instant) -> Duration {
    while documents.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } }).await.is_err() {
        assert!(thaw.elapsed() < LONG, "no primary");
    }
    thaw.elapsed()
}

/// A server that the driver has found dead, and that lives again.
async fn the_first_acquire_after_a_freeze_does_not_wait_for_the_drivers_next_check() {
    // The driver gives up a check after this time, and waits for ten seconds before the next one.
    const CHECK: Duration = Duration::from_millis(500);
    let server = MongoServer::start_local(Topology::ReplicaSet, 1).await.unwrap();
    let mut options = ClientOptions::parse(server.uri()).await.unwrap();
    options.connect_timeout = Some(CHECK);
    let client = Client::with_options(options).unwrap();
    let locks = MongoProvider::builder_from_client(&client).database("distlock_test").connect().await.unwrap();
    drop(locks.acquire("warm").await.unwrap());
    let observer = Client::with_uri_str(server.uri()).await.unwrap();
    let frozen: Vec<Frozen> = pids(&observer).await.into_iter().map(Frozen::freeze).collect();
    // It shows a server as unknown after a check has failed.
    let begun = Instant::now();
    while !format!("{client:?}").contains("server_type: Unknown") {
        assert!(begun.elapsed() < LONG, "the driver does not notice the freeze");
        sleep(Duration::from_millis(10)).await;
    }
    // So has the check after it.
    sleep(2 * CHECK).await;
    drop(frozen);
    let thaw = Instant::now();
    let guard = locks.acquire("first").timeout(LONG).await.unwrap();
    let after = thaw.elapsed();
    println!("taken {after:.1?} after the thaw");
    assert!(after < Duration::from_secs(5), "{after:?}");
    drop(guard);
    locks.close().await.unwrap();
    server.stop().await;
}

/// The machine of a process sleeps, and its clock with it, for longer than a request may take.
async fn r31_a_machine_that_was_suspended_goes_on() {
    const REQUEST: Duration = Duration::from_secs(2);
    let server = MongoServer::start_local(Topology::ReplicaSet, 1).await.unwrap();
    let client = Client::with_uri_str(server.uri()).await.unwrap();
    let builder = MongoProvider::builder_from_client(&client).database("distlock_test").request_timeout(REQUEST);
    let locks = builder.ttl(LONG).connect().await.unwrap();
    let suspend = || {
        tokio::time::pause();
        std::thread::sleep(2 * REQUEST);
        tokio::time::resume();
    };
    locks.acquire("short").await.unwrap().release().await.unwrap();
    suspend();
    let short = locks.acquire("short").await.expect("it reads the server's clock again");
    suspend();
    assert!(locks.try_acquire("long").await.expect("it reads the server's clock again").is_some());
    let held = locks.acquire("held").ttl(REQUEST * 4).await.unwrap();
    suspend();
    // Its renewals read the clock, too.
    let others = Client::with_uri_str(server.uri()).await.unwrap();
    let other = MongoProvider::builder_from_client(&others).database("distlock_test").connect().await.unwrap();
    let record = async || {
        let records = others.database("distlock_test").collection::<Document>("locks");
        records
            .find_one(doc! { "_id": "held" })
            .await
            .unwrap()
            .unwrap()
            .get_datetime("expiresAt")
            .unwrap()
            .timestamp_millis()
    };
    let before = record().await;
    let begun = Instant::now();
    while record().await == before {
        assert!(begun.elapsed() < LONG && !held.is_lost());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!held.is_lost());
    drop((short, held));
    locks.close().await.unwrap();
    other.close().await.unwrap();
    server.stop().await;
}
