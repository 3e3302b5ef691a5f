//! Workers contend for a few resources; watch who holds what, with which token, after which wait.
//! One of them stalls beyond its lease and writes late: the resource refuses it by its token.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples   # no server: five workers in one process
//! # the same, one OS process per worker:
//! cargo run -p distlock-examples --features mongodb -- --mongodb mongodb://localhost
//! ```
//!
//! Options: `--workers N` (default 5), `--seconds N` (default 6), `--database NAME` (default
//! `distlock_quickstart`).

mod desk;
mod process;
mod show;
mod worker;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LeaseOptions, LockProvider};
use distlock_memory::MemoryStore;
use tokio::task::JoinSet;

use crate::desk::{Hub, LocalDesk};
use crate::worker::Worker;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

const RESOURCES: [&str; 3] = ["billing", "invoices", "stock"];
const NAMES: [&str; 8] = ["anna", "boris", "carla", "dmitri", "elif", "farid", "grete", "hugo"];

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    mongodb: Option<String>,
    database: String,
    workers: usize,
    seconds: u64,
    /// This process is the n-th worker of another one.
    worker: Option<usize>,
}

const USAGE: &str = "usage: quickstart [--mongodb URI] [--workers N] [--seconds N] [--database NAME]";

fn arguments() -> Result<Option<Arguments>, Failure> {
    use lexopt::prelude::*;

    let database = "distlock_quickstart".to_owned();
    let mut arguments = Arguments { mongodb: None, database, workers: 5, seconds: 6, worker: None };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => arguments.mongodb = Some(parser.value()?.string()?),
            Long("database") => arguments.database = parser.value()?.string()?,
            Long("workers") => arguments.workers = parser.value()?.parse()?,
            Long("seconds") => arguments.seconds = parser.value()?.parse()?,
            Long("help") | Short('h') => return Ok(None),
            Long("worker") => arguments.worker = Some(parser.value()?.parse()?),
            _ => return Err(format!("{}; {USAGE}", argument.unexpected()).into()),
        }
    }
    if !(2..=NAMES.len()).contains(&arguments.workers) || !(4..=600).contains(&arguments.seconds) {
        return Err(format!("use 2 to {} workers and 4 to 600 seconds", NAMES.len()).into());
    }
    Ok(Some(arguments))
}

/// Short leases, so that the stalled worker's is over soon; a real service would take the default
/// of 30 s.
fn lease() -> LeaseOptions {
    LeaseOptions::new().ttl(Duration::from_secs(1))
}

#[cfg(feature = "mongodb")]
async fn on_mongodb(uri: &str, arguments: &Arguments, name: &str) -> Result<Arc<dyn LockProvider>, Failure> {
    use distlock_mongo::MongoProvider;
    use distlock_mongo::mongodb::Client;

    let client = Client::with_uri_str(uri).await.map_err(|error| format!("not a MongoDB URI: {}", error.kind))?;
    let database = client.database(&arguments.database);
    let locks = MongoProvider::builder(database).lease(lease()).owner(name).build()?;
    locks.prepare().await?;
    Ok(Arc::new(locks))
}

#[cfg(not(feature = "mongodb"))]
async fn on_mongodb(_: &str, _: &Arguments, _: &str) -> Result<Arc<dyn LockProvider>, Failure> {
    let message = "built without MongoDB: `cargo run -p distlock-examples --features mongodb -- --mongodb URI`";
    Err(message.into())
}

fn worker(index: usize, arguments: &Arguments) -> Worker {
    Worker {
        name: NAMES[index % NAMES.len()].to_owned(),
        resources: RESOURCES.map(str::to_owned).to_vec(),
        time: Duration::from_secs(arguments.seconds),
        stalls: index == 1,
    }
}

fn introduce(arguments: &Arguments, how: &str) {
    let Arguments { workers, seconds, .. } = arguments;
    println!("{workers} workers share {} locks for {seconds} s, {how}.", RESOURCES.len());
    println!("{} will fall asleep with one of them, and its late write must be refused.\n", NAMES[1]);
}

async fn run() -> Result<bool, Failure> {
    let Some(arguments) = arguments()? else {
        println!("{USAGE}");
        return Ok(true);
    };
    match (&arguments.mongodb, arguments.worker) {
        // A child: its events go to the parent.
        (Some(uri), Some(index)) => {
            let worker = worker(index, &arguments);
            let locks = on_mongodb(uri, &arguments, &worker.name).await?;
            worker.run(&*locks, &process::PipeDesk::new()).await?;
            locks.close().await?;
            Ok(true)
        }
        (Some(uri), None) => {
            on_mongodb(uri, &arguments, "quickstart").await?; // a clear error before anything starts
            introduce(&arguments, "each an OS process, all on one MongoDB");
            let hub = Hub::new(show::Show::live(19));
            process::run_children(&arguments, hub.clone()).await?;
            Ok(hub.finish(&RESOURCES))
        }
        (None, _) => {
            introduce(&arguments, "all in this process, without a server");
            let hub = Hub::new(show::Show::live(5));
            let store = MemoryStore::new();
            let mut workers = JoinSet::new();
            for index in 0..arguments.workers {
                let (worker, desk) = (worker(index, &arguments), LocalDesk(hub.clone()));
                // A provider of its own for each, as if it were another process.
                let locks: Arc<dyn LockProvider> =
                    Arc::new(store.builder().lease(lease()).owner(&*worker.name).build()?);
                workers.spawn(async move { worker.run(&*locks, &desk).await });
            }
            while let Some(ended) = workers.join_next().await {
                ended??;
            }
            Ok(hub.finish(&RESOURCES))
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let why = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            eprintln!("quickstart: {error}{why}");
            ExitCode::FAILURE
        }
    }
}
