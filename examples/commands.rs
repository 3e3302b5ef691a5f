//! What reaches the server: each operation of both styles, with the commands that the driver
//! reports, word for word. `lock-mongo/STYLES.md` has them shortened.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples --features mongodb --bin commands                                   # on a replica set that is found or started for the run
//! cargo run -p distlock-examples --features mongodb --bin commands -- --mongodb mongodb://localhost  # on one of yours
//! ```

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_examples::{Database, Failure, conclude};
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::mongodb::event::EventHandler;
use distlock_mongo::mongodb::event::command::CommandEvent;
use distlock_mongo::mongodb::options::ClientOptions;
use distlock_mongo::mongodb::{Client, Collection};
use distlock_mongo::{Change, DocumentLocks, Fence, MongoProvider};
use tokio::time::sleep;

/// Shorter than the least time between a renewal and the next.
const SOON: Duration = Duration::from_millis(500);

/// What was sent since the last look.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<Document>>>);

impl Sent {
    fn handler(&self) -> EventHandler<CommandEvent> {
        let sent = self.clone();
        EventHandler::callback(move |event: CommandEvent| {
            if let CommandEvent::Started(event) = event {
                sent.0.lock().expect("no code in here panics").push(event.command);
            }
        })
    }

    fn tell(&self, what: &str) {
        println!("── {what}");
        for mut command in std::mem::take(&mut *self.0.lock().expect("no code in here panics")) {
            // What the driver adds to every command.
            for field in ["lsid", "$db", "$clusterTime"] {
                command.remove(field);
            }
            println!("{}\n", Bson::from(command).into_relaxed_extjson());
        }
    }
}

async fn records(client: &Client, name: &str, sent: &Sent) -> Result<(), Failure> {
    let every = LeaseOptions::new().renewal(RenewalPolicy::Every(SOON));
    let builder = || MongoProvider::builder(client.database(name)).without_hand_off();
    let locks = builder().build()?;
    locks.prepare().await?;
    sent.tell("upsert style: prepare");
    let guard = locks.acquire("orders/7").await?;
    sent.tell("acquire");
    println!("the record: {}\n", record(client, name, "locks").await?);
    sent.tell("(reading the record)");
    let other = builder().build()?;
    if other.try_acquire("orders/7").await?.is_some() {
        return Err("a lock was granted twice".into());
    }
    sent.tell("try_acquire while another holds it");
    let waiter =
        tokio::spawn(async move { other.acquire("orders/7").timeout(SOON * 20).await.map(|guard| (guard, other)) });
    sleep(SOON).await;
    sent.tell("queue up, listen");
    let _ = guard.release().await?;
    let (guard, other) = waiter.await??;
    sent.tell("release, which grants to the waiter");
    let _ = guard.release().await?;
    sent.tell("release, nobody waits");
    let guard = locks.acquire("orders/8").options(distlock_api::AcquireOptions::new().with_lease(every)).await?;
    sent.tell("acquire another one");
    sleep(SOON * 2).await;
    sent.tell("renewals");
    let documents: Collection<Document> = client.database(name).collection("invoices");
    let fence = Fence::of(&guard)?;
    let _ = fence.upsert_one(&documents, 7, doc! { "$set": { "paid": true } }).await?;
    sent.tell("a fenced write (Fence::upsert_one)");
    let admin = locks.admin().ok_or("no administration")?;
    admin.release_owner("web-1/session-9", "log-out").await?;
    sent.tell("LockAdmin::release_owner");
    drop(guard);
    other.close().await?;
    locks.close().await?;
    sent.tell("close");
    Ok(())
}

async fn in_documents(client: &Client, name: &str, sent: &Sent) -> Result<(), Failure> {
    let orders: Collection<Document> = client.database(name).collection("orders");
    orders.insert_one(doc! { "_id": "7", "state": "reserved" }).await?;
    sent.tell("(inserting an order)");
    let locks = DocumentLocks::builder(&orders).build()?;
    let order = locks.lock("7").await?;
    sent.tell("lock-field style: lock");
    println!("the document: {}\n", record(client, name, "orders").await?);
    sent.tell("(reading the document)");
    order.commit(Change::new().set("state", "paid")).await?;
    sent.tell("commit, which releases");
    println!("the document: {}\n", record(client, name, "orders").await?);
    sent.tell("(reading the document)");
    let mut order = locks.lock("7").await?;
    sent.tell("lock again");
    order.save(Change::new().set("state", "packed")).await?;
    sent.tell("save, which keeps the lock");
    let _ = order.release().await?;
    sent.tell("release");
    locks.provider().close().await?;
    sent.tell("close");
    Ok(())
}

async fn record(client: &Client, name: &str, collection: &str) -> Result<Bson, Failure> {
    let found = client.database(name).collection::<Document>(collection).find_one(doc! {}).await?;
    Ok(found.map_or(Bson::Null, Bson::from))
}

async fn run() -> Result<bool, Failure> {
    use lexopt::prelude::*;

    let (mut parser, mut uri) = (lexopt::Parser::from_env(), None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => uri = Some(parser.value()?.string()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    let database = Database::open(uri.as_deref(), "commands").await?;
    let sent = Sent::default();
    let mut options = ClientOptions::parse(database.uri()).await?;
    options.command_event_handler = Some(sent.handler());
    let client = Client::with_options(options)?;
    records(&client, database.name(), &sent).await?;
    in_documents(&client, database.name(), &sent).await?;
    client.shutdown().await;
    database.close().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> ExitCode {
    conclude("commands", run().await)
}
