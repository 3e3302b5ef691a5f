//! What reaches the server: each operation of both styles, with the commands that the driver
//! reports. `lock-mongo/STYLES.md` has them shortened.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin commands
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin commands -- --mongodb mongodb://localhost
//! ```

use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_examples::{Checks, Database, Failure, Interrupt, Outcome, no_child, read_options, wrapped};
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::mongodb::event::EventHandler;
use distlock_mongo::mongodb::event::command::CommandEvent;
use distlock_mongo::mongodb::options::ClientOptions;
use distlock_mongo::mongodb::{Client, Collection};
use distlock_mongo::{Change, DocumentLocks, Fence, MongoProvider};
use tokio::time::sleep;

/// How often the leases are renewed.
const SOON: Duration = Duration::from_millis(500);

const USAGE: &str = "\
usage: commands [OPTION]...

Prints the commands that each operation sends to MongoDB.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --help         this text
";

/// The operations that are one `findAndModify` each. The first one of a client also prepares the
/// collection.
const SINGLE: [&str; 8] = [
    "acquire",
    "try_acquire while another provider holds it",
    "release",
    "a fenced write (Fence::upsert_one)",
    "lock",
    "commit, which releases",
    "save, which keeps the lock",
    "release of a document",
];

/// The commands since the last operation, and the numbers of the operations before.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    commands: Vec<Document>,
    done: Vec<Done>,
}

/// An operation, and what it took.
struct Done {
    operation: &'static str,
    commands: usize,
    find_and_modifies: usize,
}

impl Sent {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("no code in here panics")
    }

    fn handler(&self) -> EventHandler<CommandEvent> {
        let sent = self.clone();
        EventHandler::callback(move |event: CommandEvent| {
            if let CommandEvent::Started(event) = event {
                sent.log().commands.push(event.command);
            }
        })
    }

    /// Prints the commands of the operation that has just ended.
    fn print(&self, operation: &'static str) {
        println!("── {operation}");
        let mut log = self.log();
        let commands = std::mem::take(&mut log.commands);
        let find_and_modifies = commands.iter().filter(|command| command.contains_key("findAndModify")).count();
        log.done.push(Done { operation, commands: commands.len(), find_and_modifies });
        for mut command in commands {
            // What the driver adds to every command.
            for field in ["lsid", "$db", "$clusterTime"] {
                command.remove(field);
            }
            println!("{}\n", json("", command.into()));
        }
    }

    fn check(&self, is_complete: bool) -> Checks {
        let (log, mut checks) = (self.log(), Checks::new(is_complete));
        for single in SINGLE {
            match log.done.iter().find(|done| done.operation == single) {
                Some(Done { find_and_modifies, .. }) => {
                    let complaint = format!("{single}: {find_and_modifies} of findAndModify, not 1");
                    checks.always(*find_and_modifies == 1, complaint);
                }
                None => checks.at_the_end(false, format!("{single} is missing")),
            }
        }
        checks
    }
}

/// A value as wrapped JSON, behind this text.
fn json(before: &str, value: Bson) -> String {
    let json = value.into_relaxed_extjson().to_string();
    let json = json.replace(',', ", ").replace(":{", ": {").replace(":[", ": [");
    wrapped(&format!("{before}{json}"), "    ")
}

/// The style with a record per key.
async fn records(client: &Client, name: &str, sent: &Sent) -> Result<(), Failure> {
    let every = LeaseOptions::new().renewal(RenewalPolicy::Every(SOON));
    let builder = || MongoProvider::builder(client.database(name)).without_hand_off();
    let locks = builder().build()?;
    locks.prepare().await?;
    sent.print("prepare");
    let guard = locks.acquire("orders/7").await?;
    sent.print("acquire");
    println!("{}\n", json("the record: ", record(client, name, "locks").await?));
    sent.print("(reading the record)");
    let other = builder().build()?;
    if other.try_acquire("orders/7").await?.is_some() {
        return Err("a lock was granted twice".into());
    }
    sent.print("try_acquire while another provider holds it");
    let waiter =
        tokio::spawn(async move { other.acquire("orders/7").timeout(SOON * 20).await.map(|guard| (guard, other)) });
    sleep(SOON).await;
    sent.print("wait in the queue, open the event stream");
    let _ = guard.release().await?;
    let (guard, other) = waiter.await??;
    sent.print("release, which grants the lock to the waiter");
    let _ = guard.release().await?;
    sent.print("release");
    let guard = locks.acquire("orders/8").options(distlock_api::AcquireOptions::new().with_lease(every)).await?;
    sent.print("acquire another key");
    sleep(SOON * 2).await;
    sent.print("renewals");
    let documents: Collection<Document> = client.database(name).collection("invoices");
    let fence = Fence::of(&guard)?;
    let _ = fence.upsert_one(&documents, 7, doc! { "$set": { "paid": true } }).await?;
    sent.print("a fenced write (Fence::upsert_one)");
    let admin = locks.admin().ok_or("no administration")?;
    admin.release_owner("web-1/session-9", "log-out").await?;
    sent.print("LockAdmin::release_owner");
    drop(guard);
    other.close().await?;
    locks.close().await?;
    sent.print("close");
    Ok(())
}

/// The style with the lock in a document of the application.
async fn in_documents(client: &Client, name: &str, sent: &Sent) -> Result<(), Failure> {
    let orders: Collection<Document> = client.database(name).collection("orders");
    orders.insert_one(doc! { "_id": "7", "state": "reserved" }).await?;
    sent.print("(inserting an order)");
    let locks = DocumentLocks::builder(&orders).build()?;
    let order = locks.lock("7").await?;
    sent.print("lock");
    println!("{}\n", json("the document: ", record(client, name, "orders").await?));
    sent.print("(reading the document)");
    order.commit(Change::new().set("state", "paid")).await?;
    sent.print("commit, which releases");
    println!("{}\n", json("the document: ", record(client, name, "orders").await?));
    sent.print("(reading the document)");
    let mut order = locks.lock("7").await?;
    sent.print("lock again");
    order.save(Change::new().set("state", "packed")).await?;
    sent.print("save, which keeps the lock");
    let _ = order.release().await?;
    sent.print("release of a document");
    locks.provider().close().await?;
    sent.print("close");
    Ok(())
}

async fn record(client: &Client, name: &str, collection: &str) -> Result<Bson, Failure> {
    let found = client.database(name).collection::<Document>(collection).find_one(doc! {}).await?;
    Ok(found.map_or(Bson::Null, Bson::from))
}

fn arguments() -> Result<Option<Option<String>>, Failure> {
    read_options(USAGE, None, |uri, option, values| {
        match option {
            "mongodb" => *uri = Some(values.text()?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

async fn show(uri: Option<String>) -> Result<Outcome, Failure> {
    let database = Database::open(uri.as_deref(), "commands").await?;
    let interrupt = Interrupt::listen();
    let sent = Sent::default();
    let mut options = ClientOptions::parse(database.uri()).await?;
    options.command_event_handler = Some(sent.handler());
    let client = Client::with_options(options)?;
    let both = async {
        println!("==== a record per key ====\n");
        records(&client, database.name(), &sent).await?;
        println!("==== the lock in the document ====\n");
        in_documents(&client, database.name(), &sent).await
    };
    tokio::select! {
        done = both => done?,
        () = interrupt.pressed() => {}
    }
    let commands: usize = sent.log().done.iter().map(|done| done.commands).sum();
    println!("{commands} commands for {} operations", sent.log().done.len());
    let checks = sent.check(!interrupt.is_pressed());
    drop(client);
    database.close().await?;
    Ok(checks.conclude("acquire, release, lock, commit and save are one findAndModify each"))
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("commands", arguments, show, no_child).await
}
