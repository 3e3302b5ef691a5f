//! The middleware over a real MongoDB: two replicas of the program `replicas` as processes of their
//! own, whose warehouse is this test – so it sees who is in a handler, and keeps them there as long
//! as it likes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::routing::{get, put};
use distlock_api::{LockError, LockKey, LockProvider};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_examples::{HttpClient, NoAnswer, serve};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{DocumentLocks, MongoProvider};
use distlock_tower::LockLayer;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than anything takes here; only a failing test waits for it.
const LONG: Duration = Duration::from_secs(60);
const DATABASE: &str = "shop";

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(LONG, future).await.unwrap_or_else(|_| panic!("this did not happen: {what}"))
}

#[derive(Debug, Deserialize)]
struct Caller {
    replica: String,
    token: u64,
}

/// What handlers do in the warehouse.
#[derive(Debug)]
enum Event {
    /// It reads, and waits for the answer.
    Reads { item: String, by: Caller, answer: oneshot::Sender<u64> },
    /// It has written.
    Wrote { item: String, by: Caller, sold: u64 },
}

type Events = mpsc::UnboundedSender<Event>;

async fn read(
    State(events): State<Events>,
    Path(item): Path<String>,
    Query(by): Query<Caller>,
) -> Result<String, StatusCode> {
    let (answer, answered) = oneshot::channel();
    events.send(Event::Reads { item, by, answer }).map_err(|_| StatusCode::GONE)?;
    answered.await.map(|sold| sold.to_string()).map_err(|_| StatusCode::GONE)
}

async fn write(
    State(events): State<Events>,
    Path(item): Path<String>,
    Query(by): Query<Caller>,
    sold: String,
) -> StatusCode {
    let sold = sold.parse().expect("a number");
    events.send(Event::Wrote { item, by, sold }).map_or(StatusCode::GONE, |()| StatusCode::NO_CONTENT)
}

struct Replica {
    address: String,
    process: Child,
}

impl Replica {
    async fn start(uri: &str, index: &str, warehouse: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_replicas"))
            .args(["--mongodb", uri, "--database", DATABASE, "--replica", index, warehouse])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let output = process.stdout.take().expect("it is piped");
        let address = soon("an address", BufReader::new(output).lines().next_line()).await.unwrap().unwrap();
        Self { address, process }
    }

    /// Orders once.
    fn order(&self, item: &str) -> JoinHandle<Result<(u16, String), NoAnswer>> {
        let uri = format!("{}/orders/{item}", self.address);
        tokio::spawn(async move {
            let response = HttpClient::new().call(Method::POST, &uri, String::new()).await?;
            Ok((response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned()))
        })
    }

    /// Orders again as long as the answer is to come again later: the service's wait is short, and
    /// this machine may be slow.
    fn order_patiently(&self, item: &'static str) -> JoinHandle<u16> {
        let uri = format!("{}/orders/{item}", self.address);
        tokio::spawn(async move {
            loop {
                let response = HttpClient::new().call(Method::POST, &uri, String::new()).await.expect("an answer");
                match response.headers().get("retry-after") {
                    Some(_) => continue,
                    None => return response.status().as_u16(),
                }
            }
        })
    }
}

struct Shop {
    a: Replica,
    b: Replica,
    events: mpsc::UnboundedReceiver<Event>,
    /// A third provider, which holds nothing.
    locks: MongoProvider,
    client: Client,
    server: MongoServer,
}

impl Shop {
    async fn open() -> Self {
        let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
        let (sender, events) = mpsc::unbounded_channel();
        let warehouse = Router::new().route("/sold/{item}", get(read).put(write)).with_state(sender);
        let (warehouse, _) = serve(warehouse, 0).await.expect("an address");
        let [a, b] = ["0", "1"].map(|index| Replica::start(server.uri(), index, &warehouse));
        let (a, b) = tokio::join!(a, b);
        let client = Client::with_uri_str(server.uri()).await.expect("a client");
        let locks = MongoProvider::builder(client.database(DATABASE)).build().expect("a provider");
        Self { a, b, events, locks, client, server }
    }

    async fn close(self) {
        self.locks.close().await.expect("nothing is held");
        self.client.shutdown().await;
        drop((self.a, self.b));
        self.server.stop().await;
    }

    async fn event(&mut self) -> Event {
        soon("an event", self.events.recv()).await.expect("the warehouse is open")
    }

    /// The next event must be a handler that reads: of which replica, under which token.
    async fn reads(&mut self, wanted: &str, replica: &str) -> (u64, oneshot::Sender<u64>) {
        match self.event().await {
            Event::Reads { item, by, answer } if (&*item, &*by.replica) == (wanted, replica) => (by.token, answer),
            other => panic!("{replica} should read {wanted}: {other:?}"),
        }
    }

    async fn wrote(&mut self, wanted: &str, replica: &str) -> u64 {
        match self.event().await {
            Event::Wrote { item, by, sold } if (&*item, &*by.replica) == (wanted, replica) => sold,
            other => panic!("{replica} should write {wanted}: {other:?}"),
        }
    }

    fn nothing(&mut self) {
        let event = self.events.try_recv();
        assert!(event.is_err(), "{event:?}");
    }

    /// Until another process waits for the lock of an item that is held. Returns when it cannot
    /// have expired yet.
    async fn until_one_waits(&self, item: &str) -> Instant {
        soon("a waiter", async {
            loop {
                let asked = Instant::now();
                match self.locks.admin().expect("there is one").inspect(&key(item)).await.expect("an answer") {
                    Some(info) if info.waiting == Some(1) => return asked + info.remaining,
                    _ => sleep(Duration::from_millis(10)).await,
                }
            }
        })
        .await
    }
}

fn key(item: &str) -> LockKey {
    LockKey::new(format!("stock/{item}")).expect("a key")
}

#[tokio::test]
async fn replicas_take_turns_for_one_item_and_not_for_others() {
    let mut shop = Shop::open().await;
    let first = shop.a.order("apples");
    let (token, answer) = shop.reads("apples", "A").await;
    let second = shop.b.order_patiently("apples");
    shop.until_one_waits("apples").await;

    let other = shop.b.order("pears");
    shop.reads("pears", "B").await.1.send(3).expect("it waits for it");
    assert_eq!(shop.wrote("pears", "B").await, 4);
    assert_eq!(soon("an answer", other).await.unwrap().unwrap(), (200, "4".to_owned()));

    shop.nothing();
    answer.send(7).expect("it waits for it");
    assert_eq!(shop.wrote("apples", "A").await, 8);
    let (next, answer) = shop.reads("apples", "B").await;
    assert!(next > token, "{next} after {token}");
    answer.send(8).expect("it waits for it");
    assert_eq!(shop.wrote("apples", "B").await, 9);
    assert_eq!(soon("an answer", first).await.unwrap().unwrap(), (200, "8".to_owned()));
    assert_eq!(soon("an answer", second).await.unwrap(), 200);
    shop.close().await;
}

#[tokio::test]
async fn a_lock_that_is_taken_away_ends_the_handler() {
    let mut shop = Shop::open().await;
    let victim = shop.a.order("apples");
    let (token, mut answer) = shop.reads("apples", "A").await;
    let next = shop.b.order_patiently("apples");
    shop.until_one_waits("apples").await;

    let taken = shop.locks.admin().expect("there is one").force_release(&key("apples"), "a test").await;
    assert_eq!(taken.expect("an answer").expect("somebody held it").owner.as_deref(), Some("A"));
    let (status, text) = soon("an answer", victim).await.unwrap().unwrap();
    assert!(status == 503 && text.contains("urn:distlock:problem:lost"), "{status} {text}");
    soon("the end of the handler's own request", answer.closed()).await;

    let (later, answer) = shop.reads("apples", "B").await;
    assert!(later > token, "{later} after {token}");
    answer.send(0).expect("it waits for it");
    assert_eq!(shop.wrote("apples", "B").await, 1);
    assert_eq!(soon("an answer", next).await.unwrap(), 200);
    shop.close().await;
}

#[tokio::test]
async fn the_lock_of_a_killed_replica_is_free_when_its_lease_has_expired() {
    let mut shop = Shop::open().await;
    let lost = shop.a.order("apples");
    let (token, _answer) = shop.reads("apples", "A").await;
    let next = shop.b.order_patiently("apples");
    let held_until = shop.until_one_waits("apples").await;

    shop.a.process.kill().await.expect("it was alive");
    assert!(matches!(soon("an answer", lost).await.unwrap(), Err(NoAnswer::Broken)));
    let (later, answer) = shop.reads("apples", "B").await;
    // Records count in milliseconds.
    assert!(Instant::now() + Duration::from_millis(1) >= held_until, "granted before the expiry");
    assert!(later > token, "{later} after {token}");
    answer.send(0).expect("it waits for it");
    assert_eq!(shop.wrote("apples", "B").await, 1);
    assert_eq!(soon("an answer", next).await.unwrap(), 200);
    shop.close().await;
}

/// Locks that are kept in documents can be refused for what the documents are; no outage, so that
/// nothing fails open.
#[tokio::test]
async fn locks_in_documents_are_refused_for_what_the_documents_are() {
    let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
    let client = Client::with_uri_str(server.uri()).await.expect("a client");
    let database = client.database(DATABASE);
    let known = doc! { "total": { "$exists": true } };
    database.create_collection("orders").validator(known).await.expect("a collection with a validator");
    let orders = database.collection::<Document>("orders");
    let there = [doc! { "_id": "1", "total": 7 }, doc! { "_id": "2", "total": 7, "lock": "of another kind" }];
    orders.insert_many(there).await.expect("documents that are valid");

    let existing = DocumentLocks::builder(&orders).build().expect("locks");
    let beginning = DocumentLocks::builder(&orders).default_document(&doc! { "paid": true }).build().expect("locks");
    let id = |parts: &mut Parts| Ok::<_, LockError>(Some(LockKey::new(&parts.uri.path()[1..])?));
    for (locks, item, status, told) in [
        (&existing, "1", 200, "changed"),
        (&existing, "2", 500, "urn:distlock:problem:misconfigured"),
        (&existing, "3", 404, "urn:distlock:problem:not-found"),
        (&beginning, "1", 200, "changed"),
        (&beginning, "3", 409, "urn:distlock:problem:rejected"),
    ] {
        let layer = LockLayer::new(locks.provider(), id).wait_up_to(LONG * 2).fail_open();
        let router = Router::new().route("/{id}", put(|| async { "changed" })).route_layer(layer);
        let (address, serving) = serve(router, 0).await.expect("an address");
        let (client, uri) = (HttpClient::new(), format!("{address}/{item}"));
        let response = soon("an answer", client.call(Method::PUT, &uri, String::new())).await.expect("an answer");
        let text = String::from_utf8_lossy(response.body()).into_owned();
        assert!(response.status() == status && text.contains(told), "{item}: {} {text}", response.status());
        assert!(!response.headers().contains_key("retry-after"), "{item}");
        serving.abort();
    }
    for locks in [existing, beginning] {
        locks.provider().close().await.expect("nothing is held");
    }
    client.shutdown().await;
    server.stop().await;
}
