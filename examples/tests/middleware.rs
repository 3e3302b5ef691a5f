//! The middleware over a real MongoDB: two replicas of the program `replicas` are processes, and
//! this test is their warehouse. It sees which replica is in a handler, and keeps it there.

use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::routing::{get, put};
use distlock_api::{LockError, LockKey, LockProvider};
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_examples::{Children, HttpClient, NoAnswer, serve};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{DocumentLocks, MongoProvider, close_all};
use distlock_tower::LockLayer;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than anything takes here. Only a failing test waits this long.
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

/// What a handler does in the warehouse.
#[derive(Debug)]
enum Event {
    /// Reads, and waits for the answer.
    Reads { item: String, by: Caller, answer: oneshot::Sender<u64> },
    /// Has written.
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
}

impl Replica {
    async fn start(fleet: &mut Children<String>, name: &str, uri: &str, warehouse: &str) -> Self {
        let place = json!({ "uri": uri, "database": DATABASE });
        let part = json!({ "place": place, "warehouse": warehouse, "locked": true });
        fleet.start(name, &part).await.expect("the program starts");
        match soon("an address", fleet.next()).await.expect("a report") {
            Some((_, address)) => Self { address },
            None => panic!("{name} should report its address"),
        }
    }

    /// Orders once.
    fn order(&self, item: &str) -> JoinHandle<Result<(u16, String), NoAnswer>> {
        let uri = format!("{}/orders/{item}", self.address);
        tokio::spawn(async move {
            let response = HttpClient::new().call(Method::POST, &uri, String::new()).await?;
            Ok((response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned()))
        })
    }

    /// Orders again as long as the answer is to try again: the service's wait is short, and this
    /// machine may be slow.
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
    fleet: Children<String>,
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
        let mut fleet = Children::of(env!("CARGO_BIN_EXE_replicas"));
        let a = Replica::start(&mut fleet, "A", server.uri(), &warehouse).await;
        let b = Replica::start(&mut fleet, "B", server.uri(), &warehouse).await;
        let client = Client::with_uri_str(server.uri()).await.expect("a client");
        let locks = MongoProvider::builder(client.database(DATABASE)).build().expect("a provider");
        Self { fleet, a, b, events, locks, client, server }
    }

    async fn close(self) {
        close_all(self.client, [self.locks.close()]).await.expect("nothing is held");
        drop(self.fleet);
        self.server.stop().await;
    }

    async fn event(&mut self) -> Event {
        soon("an event", self.events.recv()).await.expect("the warehouse is open")
    }

    /// Expects that a handler of this replica reads. Returns its token, and where the answer goes.
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

    /// Lets the order of `B` for the first apple finish, and closes the shop.
    async fn finish(mut self, answer: oneshot::Sender<u64>, order: JoinHandle<u16>) {
        answer.send(0).expect("it waits for it");
        assert_eq!(self.wrote("apples", "B").await, 1);
        assert_eq!(soon("an answer", order).await.unwrap(), 200);
        self.close().await;
    }

    fn nothing(&mut self) {
        let event = self.events.try_recv();
        assert!(event.is_err(), "{event:?}");
    }

    /// Waits until another process waits for the lock of an item. Returns an instant before which
    /// the lock cannot have expired.
    async fn until_one_waits(&self, item: &str) -> Instant {
        soon("a waiter", async {
            loop {
                let begun = Instant::now();
                match self.locks.admin().expect("there is one").inspect(&key(item)).await.expect("an answer") {
                    Some(info) if info.waiting == Some(1) => return begun + info.remaining,
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
    assert_eq!(taken.expect("an answer").expect("it was held").owner.as_deref(), Some("A"));
    let (status, text) = soon("an answer", victim).await.unwrap().unwrap();
    assert!(status == 503 && text.contains("urn:distlock:problem:lost"), "{status} {text}");
    soon("the end of the handler's own request", answer.closed()).await;

    let (later, answer) = shop.reads("apples", "B").await;
    assert!(later > token, "{later} after {token}");
    shop.finish(answer, next).await;
}

#[tokio::test]
async fn the_lock_of_a_killed_replica_is_free_when_its_lease_has_expired() {
    let mut shop = Shop::open().await;
    let lost = shop.a.order("apples");
    let (token, _answer) = shop.reads("apples", "A").await;
    let next = shop.b.order_patiently("apples");
    let held_until = shop.until_one_waits("apples").await;

    shop.fleet.kill("A").await.expect("it was alive");
    assert!(matches!(soon("an answer", lost).await.unwrap(), Err(NoAnswer::Broken)));
    let (later, answer) = shop.reads("apples", "B").await;
    // Records count in milliseconds.
    assert!(Instant::now() + Duration::from_millis(1) >= held_until, "granted before the expiry");
    assert!(later > token, "{later} after {token}");
    shop.finish(answer, next).await;
}

/// Locks in documents can be refused because of the documents. That is no outage, so nothing fails
/// open.
#[tokio::test]
async fn locks_in_documents_may_be_refused_because_of_the_documents() {
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
    for (locks, item, status, word) in [
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
        assert!(response.status() == status && text.contains(word), "{item}: {} {text}", response.status());
        assert!(!response.headers().contains_key("retry-after"), "{item}");
        serving.abort();
    }
    let (existing, beginning) = (existing.provider(), beginning.provider());
    close_all(client, [existing.close(), beginning.close()]).await.expect("nothing is held");
    server.stop().await;
}
