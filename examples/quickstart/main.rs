//! Workers contend for a few resources. Watch which worker holds what, with which token, after
//! which wait. One worker stalls beyond its lease and writes late: the resource refuses the write
//! by its token.
//!
//! ```text
//! cargo run -p distlock-examples   # no server: five workers in one process
//! # the same, one OS process per worker:
//! cargo run -p distlock-examples --features mongodb -- --mongodb mongodb://localhost
//! ```

mod show;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LeaseOptions, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_examples::{Failure, Given, Interrupt, Opt, Orders, Outcome, Program, report};
use distlock_memory::MemoryStore;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::show::{Event, Happening, Hub};

const PROGRAM: Program = Program {
    name: "quickstart",
    about: "Workers contend for a few locks. One stalls, and its late write is refused.",
    options: &[
        Opt::text("mongodb", "URI", "each worker is a process, on this MongoDB; without it, all in this process"),
        Opt::number("workers", 5, 2..=8, "how many workers"),
        Opt::number("seconds", 6, 4..=600, "how long they work"),
    ],
};

const RESOURCES: [&str; 3] = ["billing", "invoices", "stock"];
const NAMES: [&str; 8] = ["anna", "boris", "carla", "dmitri", "elif", "farid", "grete", "hugo"];
/// The one that falls asleep.
const SLEEPER: &str = NAMES[1];
/// Short, so that the stalled worker's lease ends soon. A real service would keep 30 s.
const LEASE: Duration = Duration::from_secs(1);

// What a worker does: the part that looks like an application.

struct Worker {
    name: String,
    locks: Arc<dyn LockProvider>,
    desk: Desk,
    time: Duration,
}

impl Worker {
    async fn run(self) -> Result<(), Failure> {
        let (start, mut stalls) = (Instant::now(), self.name == SLEEPER);
        while start.elapsed() < self.time {
            if stalls && start.elapsed() > self.time / 4 {
                stalls = false;
                self.stall().await?;
            }
            self.work(RESOURCES[fastrand::usize(..RESOURCES.len())]).await?;
            sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        }
        Ok(())
    }

    /// One piece of work: waits for the lock, writes under it, releases it.
    async fn work(&self, resource: &str) -> Result<(), Failure> {
        let begun = Instant::now();
        let guard = match self.locks.acquire(resource).timeout(Duration::from_secs(3)).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => {
                self.record(resource, None, Happening::GaveUp { waited: begun.elapsed() });
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let token = guard.fencing_token();
        self.record(resource, Some(token), Happening::Acquired { waited: begun.elapsed() });
        let worked = guard
            .run(async {
                sleep(Duration::from_millis(fastrand::u64(100..400))).await;
                self.desk.write(&self.name, resource, token.get()).await
            })
            .await;
        // Recorded before the release, so that no other hold can seem to begin earlier.
        let over = if worked.is_ok() { Happening::Releasing } else { Happening::Lost };
        self.record(resource, Some(token), over);
        worked.map(drop).or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })?;
        guard.release().await?;
        Ok(())
    }

    /// Holds a lock as a process does that is paused by its garbage collector, its hypervisor, or
    /// the lid of its laptop. The lease is not renewed, and the process wakes up believing that it
    /// still holds the lock.
    async fn stall(&self) -> Result<(), Failure> {
        let (resource, begun) = (RESOURCES[0], Instant::now());
        let guard = self.locks.acquire(resource).renewal(RenewalPolicy::Never).await?;
        let token = guard.fencing_token();
        self.record(resource, Some(token), Happening::Acquired { waited: begun.elapsed() });
        let lease = guard.remaining().unwrap_or_default();
        self.record(resource, Some(token), Happening::FellAsleep { lease });
        guard.lost().await;
        self.record(resource, Some(token), Happening::Lost);
        sleep(Duration::from_millis(1500)).await;
        // A sleeper cannot look at `lost()`, so it writes. Only the token saves the data.
        self.desk.write(&self.name, resource, token.get()).await;
        Ok(())
    }

    fn record(&self, resource: &str, token: Option<FencingToken>, happening: Happening) {
        self.desk.record(Event::now(&self.name, resource, token.map(FencingToken::get), happening));
    }
}

/// Where a worker records its events and writes: in this process, or through pipes to the parent.
enum Desk {
    Here(Hub),
    Parent(Mutex<Orders>),
}

/// What a child reports. A write gets an order in return: whether it was accepted.
#[derive(Serialize, Deserialize)]
enum Report {
    Event(Event),
    Write { resource: String, token: u64 },
}

impl Desk {
    fn record(&self, event: Event) {
        match self {
            Self::Here(hub) => hub.state().note(event),
            Self::Parent(_) => report(&Report::Event(event)),
        }
    }

    /// Writes to a resource. Returns `false` if it has seen a newer token, and refuses.
    async fn write(&self, worker: &str, resource: &str, token: u64) -> bool {
        match self {
            Self::Here(hub) => hub.state().write(worker, resource, token),
            Self::Parent(replies) => {
                let mut replies = replies.lock().await;
                report(&Report::Write { resource: resource.to_owned(), token });
                // Without a reply the write was not accepted.
                matches!(replies.next().await, Ok(Some(true)))
            }
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    if let Some(uri) = given.text("mongodb") {
        return on_processes(uri, &given, &interrupt).await;
    }
    let hub = Hub::open(&given, "all in this process, without a server", 7);
    let store = MemoryStore::new();
    let mut running = JoinSet::new();
    for name in workers(&given) {
        // Each worker has a provider of its own, as if it were another process.
        let locks = store.builder().lease(LeaseOptions::new().ttl(LEASE)).owner(name).build()?;
        let (desk, time) = (Desk::Here(hub.clone()), Duration::from_secs(given.number("seconds")));
        running.spawn(Worker { name: name.to_owned(), locks: Arc::new(locks), desk, time }.run());
    }
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
            () = interrupt.pressed() => running.shutdown().await,
        }
    }
    Ok(hub.state().finish(!interrupt.is_pressed()))
}

fn workers(given: &Given) -> impl Iterator<Item = &'static str> + use<> {
    NAMES.into_iter().zip(0..given.number("workers")).map(|(name, _)| name)
}

/// One OS process per worker.
#[cfg(feature = "mongodb")]
async fn on_processes(uri: &str, given: &Given, interrupt: &Interrupt) -> Result<Outcome, Failure> {
    let database = distlock_examples::Database::open(Some(uri), "quickstart").await?;
    let hub = Hub::open(given, "each an OS process, all on one MongoDB", 19);
    let mut children = distlock_examples::Children::new(interrupt)?;
    for name in workers(given) {
        children.start(name, &(&database.place, given.number("seconds"))).await?;
    }
    while let Some((name, report)) = children.next().await? {
        match report {
            Report::Event(event) => hub.state().note(event),
            // A worker that was told to stop no longer waits for the answer.
            Report::Write { .. } if children.is_stopping() => {}
            Report::Write { resource, token } => {
                let is_accepted = hub.state().write(&name, &resource, token);
                children.send(&name, &is_accepted).await?;
            }
        }
    }
    children.stop().await?;
    database.close().await?;
    Ok(hub.state().finish(!interrupt.is_pressed()))
}

/// Runs the worker of this process until its time is over or the parent stops it.
#[cfg(feature = "mongodb")]
async fn play(name: String, part: (distlock_examples::Place, u64), orders: Orders) -> Result<(), Failure> {
    let database = part.0.open().await?;
    let lease = LeaseOptions::new().ttl(LEASE);
    let locks = distlock_mongo::MongoProvider::builder(database.clone()).lease(lease).owner(&name).build()?;
    let (end, desk) = (orders.end(), Desk::Parent(Mutex::new(orders)));
    let worker = Worker { name, locks: Arc::new(locks.clone()), desk, time: Duration::from_secs(part.1) };
    tokio::select! {
        done = worker.run() => done?,
        () = end => {}
    }
    distlock_mongo::close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}

#[cfg(not(feature = "mongodb"))]
async fn on_processes(_: &str, _: &Given, _: &Interrupt) -> Result<Outcome, Failure> {
    Err("built without MongoDB: `cargo run -p distlock-examples --features mongodb -- --mongodb URI`".into())
}

#[cfg(not(feature = "mongodb"))]
async fn play(name: String, (): (), orders: Orders) -> Result<(), Failure> {
    let _ = (name, Desk::Parent(Mutex::new(orders)));
    Err("built without MongoDB".into())
}
