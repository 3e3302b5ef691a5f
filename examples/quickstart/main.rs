//! Workers contend for a few resources. Watch which worker holds what, with which token, after
//! which wait. One worker stalls beyond its lease and writes late: the resource refuses the write
//! by its token.
//!
//! ```text
//! cargo run -p distlock-examples   # no server: five workers in one process
//! # the same, one OS process per worker:
//! cargo run -p distlock-examples --features mongodb -- --mongodb mongodb://localhost
//! ```

mod desk;
mod process;
mod show;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider};
use distlock_examples::{Failure, Interrupt, Outcome, read_options};
use distlock_memory::MemoryStore;
use tokio::task::JoinSet;

use crate::desk::{Hub, LocalDesk};
use crate::show::Show;
use crate::worker::Worker;

const RESOURCES: [&str; 3] = ["billing", "invoices", "stock"];
const NAMES: [&str; 8] = ["anna", "boris", "carla", "dmitri", "elif", "farid", "grete", "hugo"];

const USAGE: &str = "\
usage: quickstart [OPTION]...

Workers contend for a few locks. One stalls, and its late write is refused.

  --mongodb URI    each worker is a process, on this MongoDB; without it, all in this process
  --database NAME  where the locks are (default distlock_quickstart)
  --workers N      2 to 8 (default 5)
  --seconds N      how long they work, 4 to 600 (default 6)
  --help           this text
";

/// The command line.
#[derive(Clone, Debug)]
struct Arguments {
    mongodb: Option<String>,
    database: String,
    workers: usize,
    seconds: u64,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let database = "distlock_quickstart".to_owned();
    let defaults = Arguments { mongodb: None, database, workers: 5, seconds: 6 };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "database" => arguments.database = values.text()?,
            "workers" => arguments.workers = values.number(2..=NAMES.len())?,
            "seconds" => arguments.seconds = values.number(4..=600)?,
            _ => return Ok(false),
        }
        Ok(true)
    })
}

/// Short leases, so that the stalled worker's lease ends soon. A real service would keep the
/// default of 30 s.
fn lease() -> LeaseOptions {
    LeaseOptions::new().ttl(Duration::from_secs(1))
}

#[cfg(feature = "mongodb")]
async fn on_mongodb(uri: &str, database: &str, owner: &str) -> Result<Connected, Failure> {
    use distlock_mongo::MongoProvider;

    let client = distlock_examples::Database::client(uri).await?;
    let locks = MongoProvider::builder(client.database(database)).lease(lease()).owner(owner).build()?;
    locks.prepare().await?;
    Ok(Connected { locks: Arc::new(locks), client })
}

#[cfg(not(feature = "mongodb"))]
async fn on_mongodb(_: &str, _: &str, _: &str) -> Result<Connected, Failure> {
    let message = "built without MongoDB: `cargo run -p distlock-examples --features mongodb -- --mongodb URI`";
    Err(message.into())
}

/// A provider on MongoDB, and its client.
struct Connected {
    locks: Arc<dyn LockProvider>,
    #[cfg(feature = "mongodb")]
    client: distlock_mongo::mongodb::Client,
}

impl Connected {
    /// Gives everything back. The driver's tasks must have ended before the runtime does.
    async fn close(self) -> Result<(), Failure> {
        self.locks.close().await?;
        #[cfg(feature = "mongodb")]
        self.client.shutdown().await;
        Ok(())
    }
}

/// The workers of a run. The second one stalls.
fn workers(arguments: &Arguments) -> impl Iterator<Item = Worker> {
    let time = Duration::from_secs(arguments.seconds);
    NAMES.into_iter().take(arguments.workers).map(move |name| Worker {
        name: name.to_owned(),
        resources: RESOURCES.map(str::to_owned).to_vec(),
        time,
        stalls: name == NAMES[1],
    })
}

fn introduce(arguments: &Arguments, how: &str) {
    let Arguments { workers, seconds, .. } = arguments;
    println!("{workers} workers share {} locks for {seconds} s, {how}.", RESOURCES.len());
    println!("{} will fall asleep with one of them, and its late write must be refused.\n", NAMES[1]);
}

async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    match &arguments.mongodb {
        Some(uri) => on_processes(uri, &arguments).await,
        None => in_this_process(&arguments).await,
    }
}

async fn on_processes(uri: &str, arguments: &Arguments) -> Result<Outcome, Failure> {
    // A clear error before anything starts.
    on_mongodb(uri, &arguments.database, "quickstart").await?.close().await?;
    let interrupt = Interrupt::listen();
    introduce(arguments, "each an OS process, all on one MongoDB");
    let hub = Hub::new(Show::live(19));
    process::run_all(uri, arguments, &hub, &interrupt).await?;
    Ok(hub.finish(&RESOURCES, &interrupt))
}

async fn in_this_process(arguments: &Arguments) -> Result<Outcome, Failure> {
    let interrupt = Interrupt::listen();
    introduce(arguments, "all in this process, without a server");
    let hub = Hub::new(Show::live(7));
    let store = MemoryStore::new();
    let mut running = JoinSet::new();
    for worker in workers(arguments) {
        let desk = LocalDesk(hub.clone());
        // Each worker has a provider of its own, as if it were another process.
        let locks: Arc<dyn LockProvider> = Arc::new(store.builder().lease(lease()).owner(&*worker.name).build()?);
        running.spawn(async move { worker.run(&*locks, &desk).await });
    }
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
            () = interrupt.pressed() => {
                running.shutdown().await;
                break;
            }
        }
    }
    Ok(hub.finish(&RESOURCES, &interrupt))
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("quickstart", arguments, show, process::play).await
}
