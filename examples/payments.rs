//! Payments that clients send three times, to two replicas of a service, one of which is killed.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin payments
//! # without the layer, to count what is charged too often:
//! cargo run -p distlock-examples --features mongodb --bin payments -- --no-keys
//! ```
//!
//! # What it shows
//! The replicas are OS processes with an `IdempotencyLayer` over MongoDB. Each payment has an
//! idempotency key, and is sent three times at once, by clients that try again until they have an
//! answer. The bank charges whatever it is sent, and keeps a ledger.
//!
//! In the middle the bank charges a card and does not answer. The replica that called it is killed
//! then. A retry reaches the other replica, which learns that a run was interrupted, finds the
//! charge in the ledger, and does not repeat it. At the end the ledger is counted: every payment
//! was charged once, and its three clients have the same receipt.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Method, Request, StatusCode};
use axum::routing::{get, post};
use axum::{Extension, Router};
use distlock_api::LeaseOptions;
use distlock_examples::{Checks, Children, Database, Failure, Given, HttpClient, Interrupt, MONGODB, Opt, Orders};
use distlock_examples::{Outcome, Place, Program, report, serve};
use distlock_mongo::{MongoOnce, close_all};
use distlock_recipes::idempotency::{IdempotencyLayer, IdempotentRun};
use distlock_recipes::once::OnceProvider;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

const PROGRAM: Program = Program {
    name: "payments",
    about: "Each payment is sent three times, to two replicas. One of them is killed in the middle.",
    options: &[
        MONGODB,
        Opt::number("payments", 300, 20..=10_000, "how many payments there are"),
        Opt::flag("no-keys", "without the layer: counts what is charged too often"),
    ],
};

const REPLICAS: [&str; 2] = ["A", "B"];
/// How soon the work of a dead replica counts as interrupted. A real service would keep 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// How often each payment is sent.
const TIMES: usize = 3;
/// How many payments are under way at once.
const AT_ONCE: usize = 16;
/// Before another try.
const PAUSE: Duration = Duration::from_millis(50);
/// After this many tries without an answer the run fails.
const TRIES: usize = 1000;
/// How long a charge takes.
const CHARGE: Duration = Duration::from_millis(2);

/// The part of a replica.
#[derive(Serialize, Deserialize)]
struct Part {
    place: Place,
    bank: String,
    keyed: bool,
}

/// One replica of the service: the part that looks like an application.
struct Service {
    name: String,
    bank: String,
    client: HttpClient,
}

impl Service {
    async fn call_bank(&self, method: Method, payment: &str) -> Result<(StatusCode, String), StatusCode> {
        let uri = format!("{}/charges/{payment}", self.bank);
        let answer = self.client.call(method, &uri, self.name.clone()).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        Ok((answer.status(), String::from_utf8_lossy(answer.body()).into_owned()))
    }
}

/// Charges a payment, and returns its receipt.
async fn pay(
    State(service): State<Arc<Service>>,
    run: Option<Extension<IdempotentRun>>,
    payment: String,
) -> Result<(StatusCode, String), StatusCode> {
    // A run that was interrupted may have charged it.
    if run.is_some_and(|Extension(run)| run.interrupted().is_some()) {
        let (status, receipt) = service.call_bank(Method::GET, &payment).await?;
        if status.is_success() {
            return Ok((StatusCode::CREATED, receipt));
        }
    }
    let (_, receipt) = service.call_bank(Method::POST, &payment).await?;
    Ok((StatusCode::CREATED, receipt))
}

/// Runs the replica in this process until the parent stops it.
async fn play(name: String, part: Part, orders: Orders) -> Result<(), Failure> {
    let database = part.place.open().await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let once = Arc::new(MongoOnce::builder(database.clone()).lease(lease).owner(&name).connect().await?);
    let mut router = Router::new().route("/payments", post(pay));
    if part.keyed {
        // All clients are one here. A real service names the authenticated user.
        let layer = IdempotencyLayer::for_everyone(once.clone()).required().run_interrupted_again();
        router = router.route_layer(layer.wait_up_to(Duration::from_secs(10)));
    }
    let service = Service { name, bank: part.bank, client: HttpClient::new() };
    let (address, listening) = serve(router.with_state(Arc::new(service)), 0).await?;
    report(&address);
    orders.end().await;
    listening.abort();
    close_all(database.client().clone(), [once.close()]).await?;
    Ok(())
}

/// The bank: it charges whatever it is sent, and keeps a ledger.
#[derive(Clone)]
struct Bank(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    /// The receipts of each payment.
    ledger: BTreeMap<String, Vec<String>>,
    charges: usize,
    /// How many charges were looked up and found.
    found: usize,
    /// The charge that is not answered, and where to say which replica waits for it.
    hangs: Option<(usize, oneshot::Sender<String>)>,
}

impl Bank {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("no code in here panics")
    }
}

/// Charges a payment. The body is the name of the replica.
async fn charge(State(bank): State<Bank>, Path(payment): Path<String>, replica: String) -> String {
    sleep(CHARGE).await;
    let (receipt, hangs) = {
        let mut books = bank.books();
        books.charges += 1;
        let charges = books.charges;
        let receipt = format!("receipt {charges}");
        books.ledger.entry(payment).or_default().push(receipt.clone());
        (receipt, books.hangs.take_if(|(number, _)| *number == charges))
    };
    if let Some((_, hangs)) = hangs {
        // An error means that the run is over.
        let _ = hangs.send(replica);
        pending::<()>().await;
    }
    receipt
}

/// Returns the receipt of a payment that was charged.
async fn find(State(bank): State<Bank>, Path(payment): Path<String>) -> Result<String, StatusCode> {
    let mut books = bank.books();
    let receipt = books.ledger.get(&payment).and_then(|receipts| receipts.first()).cloned();
    books.found += usize::from(receipt.is_some());
    receipt.ok_or(StatusCode::NOT_FOUND)
}

/// Sends a payment to one replica after the other until there is an answer. Returns the payment,
/// its receipt, and whether the answer is that of an earlier request.
async fn send(
    client: HttpClient,
    replicas: Vec<String>,
    payment: String,
    first: usize,
) -> Result<(String, String, bool), Failure> {
    for replica in first..first + TRIES {
        let uri = format!("{}/payments", replicas[replica % replicas.len()]);
        let request = Request::post(uri).header("idempotency-key", format!("\"{payment}\"")).body(())?;
        match client.send(request.into_parts().0, Bytes::from(payment.clone())).await {
            Ok(response) if response.status() == StatusCode::CREATED => {
                let receipt = String::from_utf8_lossy(response.body()).into_owned();
                return Ok((payment, receipt, response.headers().contains_key("idempotent-replayed")));
            }
            // Still under way, or the replica is in trouble: the same key can be sent again.
            Ok(response) if response.status() == StatusCode::CONFLICT || response.status().is_server_error() => {}
            Ok(response) => return Err(format!("{payment} was answered with {}", response.status()).into()),
            // The replica is dead, and perhaps has died with this payment in its hands.
            Err(_) => {}
        }
        sleep(PAUSE).await;
    }
    Err(format!("{payment} was never answered").into())
}

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let database = Database::open(given.text("mongodb"), "payments").await?;
    let (payments, keyed) = (usize::try_from(given.number("payments"))?, !given.flag("no-keys"));
    let (hangs, hanging) = oneshot::channel();
    let bank = Bank(Arc::new(Mutex::new(Books { hangs: Some((payments / 2, hangs)), ..Books::default() })));
    let charges = Router::new().route("/charges/{payment}", get(find).post(charge)).with_state(bank.clone());
    let (address, listening) = serve(charges, 0).await?;
    let mut children = Children::<String>::new(&interrupt)?;
    let (clock, mut replicas) = (children.clock, Vec::new());
    for name in REPLICAS {
        let part = Part { place: database.place.clone(), bank: address.clone(), keyed };
        children.start(name, &part).await?;
        replicas.push(children.next().await?.ok_or("a replica did not start")?.1);
    }
    let how = if keyed { "with an idempotency key" } else { "WITHOUT idempotency" };
    println!("{payments} payments, each sent {TIMES} times to {} replicas, {how}.\n", REPLICAS.len());

    let (client, turns) = (HttpClient::new(), Arc::new(Semaphore::new(AT_ONCE * TIMES)));
    let mut clients = JoinSet::new();
    for (payment, time) in (0..payments).flat_map(|payment| (0..TIMES).map(move |time| (payment, time))) {
        let (turns, sent) =
            (turns.clone(), send(client.clone(), replicas.clone(), format!("p-{payment}"), payment + time));
        clients.spawn(async move {
            let _turn = turns.acquire_owned().await?;
            sent.await
        });
    }
    let mut receipts = BTreeMap::<String, BTreeSet<String>>::new();
    let (mut answers, mut replayed) = (0, 0);
    let serve_all = async {
        while let Some(answered) = clients.join_next().await {
            let (payment, receipt, is_replayed) = answered??;
            receipts.entry(payment).or_default().insert(receipt);
            answers += 1;
            replayed += usize::from(is_replayed);
        }
        Ok::<_, Failure>(())
    };
    let kill_one = async {
        let victim = hanging.await?;
        children.kill(&victim).await?;
        clock.say(&format!("replica {victim} is KILLED: the bank has charged, and not answered"));
        Ok(())
    };
    let is_complete = tokio::select! {
        done = async { tokio::try_join!(serve_all, kill_one) } => done.map(|_| true)?,
        () = interrupt.pressed() => false,
    };
    clock.say(&format!("{answers} answers\n"));
    let Books { ledger, found, .. } = std::mem::take(&mut *bank.books());
    let charged: usize = ledger.values().map(Vec::len).sum();
    let twice = charged - ledger.len();
    let differing = receipts.values().filter(|receipts| receipts.len() > 1).count();
    let is_known = |payment: &str, receipt: &String| ledger.get(payment).is_some_and(|all| all.contains(receipt));
    let unknown =
        receipts.iter().filter(|(payment, all)| !all.iter().all(|receipt| is_known(payment, receipt))).count();
    let mut checks = Checks::new(is_complete);
    checks.show("ledger", format_args!("{charged} charges of {} payments", ledger.len()));
    checks.at_the_end(ledger.len() == payments, "payments are missing in the ledger");
    checks.none("charged twice", twice, "charges were made too often");
    checks.none("other receipts", differing, "payments have different receipts");
    checks.none("wrong receipts", unknown, "payments have receipts that the bank does not know");
    checks.show("replayed", replayed);
    checks.show("looked up", format_args!("{found} charges of interrupted runs"));
    checks.at_the_end(!keyed || found > 0, "no interrupted run was looked up");
    clients.shutdown().await;
    children.stop().await?;
    listening.abort();
    database.close().await?;
    Ok(checks.conclude("every payment was charged once, and its clients have the same receipt"))
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
