//! How a lock passes between two processes: a recording of a real run, and the picture of it that
//! the README shows.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin hand-over
//! # the same, and writes the recording and the picture:
//! cargo run -p distlock-examples --features mongodb --bin hand-over -- --save examples/pictures/hand-over
//! # only draws a recording again:
//! cargo run -p distlock-examples --features mongodb --bin hand-over -- --draw examples/pictures/hand-over
//! ```
//!
//! Two processes take one lock in turn. Each release grants the lock to the process that waits, in
//! the same write. Then the process that holds the lock is killed, and the other one gets it when
//! the lease has expired.

mod draw;

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use distlock_api::{LeaseOptions, LockProvider, LockProviderExt};
use distlock_examples::{Checks, Children, Database, Failure, Given, Interrupt, MONGODB, Opt, Orders, Outcome};
use distlock_examples::{Place, Program, millis, report, shut_down};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{MongoProvider, close_all};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

const PROGRAM: Program = Program {
    name: "hand-over",
    about: "Records and draws how a lock passes between two processes.",
    options: &[
        MONGODB,
        // Short, so that the picture can show an expiry. A real service would keep 30 s. On a busy
        // machine, a process cannot always renew a short lease in time.
        Opt::number("lease", 1, 1..=30, "seconds of a lease"),
        Opt::text("save", "FILE", "writes the recording to FILE.json and the picture to FILE.svg"),
        Opt::text("draw", "FILE", "runs nothing: reads FILE.json and writes FILE.svg"),
    ],
};

/// The holder that is killed.
const A: &str = "A";
const B: &str = "B";
const KEY: &str = "orders/42";
/// How long each process holds the lock.
const HOLD: Duration = Duration::from_millis(700);
/// How long the process has the lock before it is killed.
const KILLED_AFTER: Duration = Duration::from_millis(350);
/// How often each process takes the lock.
const ROUNDS: usize = 3;
/// What a complete run has proved.
const PROVED: &str = "one holder at a time, tokens only grew, the killed holder's lock was soon free";

/// What a child reports. The times are from [`now`].
#[derive(Serialize, Deserialize)]
enum Report {
    /// Connected. It begins at an order.
    Ready,
    Waits {
        at: u64,
    },
    Holds {
        at: u64,
        token: u64,
    },
    Releases {
        at: u64,
    },
    /// In the middle of its last hold. It would continue if it were not killed.
    WouldHold,
}

/// Microseconds since 1970 by the machine's clock, which both processes share.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Takes the lock a few times, until the parent stops or kills this process.
async fn play(name: String, (place, lease): (Place, Duration), mut orders: Orders) -> Result<(), Failure> {
    let database = place.open().await?;
    let options = LeaseOptions::new().ttl(lease);
    let locks = MongoProvider::builder(database.clone()).lease(options).owner(&name).build()?;
    locks.prepare().await?;
    // So that the first hold of the recording does not wait for a cold connection.
    locks.acquire(format!("warm-up/{name}")).await?.release().await?;
    report(&Report::Ready);
    if orders.next::<()>().await?.is_some() {
        let end = orders.end();
        tokio::select! {
            done = take_turns(&name, lease, &locks) => done?,
            () = end => {}
        }
    }
    close_all(database.client().clone(), [locks.close()]).await?;
    Ok(())
}

async fn take_turns(name: &str, lease: Duration, locks: &MongoProvider) -> Result<(), Failure> {
    for round in 1..=ROUNDS {
        report(&Report::Waits { at: now() });
        let guard = locks.acquire(KEY).timeout(lease + Duration::from_secs(20)).await?;
        report(&Report::Holds { at: now(), token: guard.fencing_token().get() });
        if name == A && round == ROUNDS {
            sleep(KILLED_AFTER).await;
            report(&Report::WouldHold);
        }
        sleep(HOLD).await;
        report(&Report::Releases { at: now() });
        guard.release().await?;
    }
    Ok(())
}

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    if let Some(file) = given.text("draw") {
        let recording: Recording = serde_json::from_str(&std::fs::read_to_string(format!("{file}.json"))?)?;
        std::fs::write(format!("{file}.svg"), draw::picture(&recording))?;
        println!("{file}.svg is drawn");
        return Ok(recording.check(true).conclude(PROVED));
    }
    let server = Database::open(given.text("mongodb"), "hand_over").await?;
    let recording = record(&server, Duration::from_secs(given.number("lease")), &interrupt).await?;
    server.close().await?;
    let is_complete = !interrupt.is_pressed();
    let checks = recording.check(is_complete);
    if let Some(file) = given.text("save").filter(|_| is_complete) {
        std::fs::write(format!("{file}.json"), serde_json::to_string_pretty(&recording)? + "\n")?;
        std::fs::write(format!("{file}.svg"), draw::picture(&recording))?;
        println!("\nwritten: {file}.json\nwritten: {file}.svg");
    }
    Ok(checks.conclude(PROVED))
}

/// Runs both processes, and records when each waits for and holds the lock.
async fn record(server: &Database, lease: Duration, interrupt: &Interrupt) -> Result<Recording, Failure> {
    let database = server.place.open().await?;
    let build = database.client().database("admin").run_command(doc! { "buildInfo": 1 }).await?;
    let version = format!("MongoDB {}", build.get_str("version")?);
    println!("two processes take the lock {KEY} in turn, with leases of {} s, on {version}\n", lease.as_secs());
    let mut recording = Recording::new(version, lease);
    let mut children = Children::new(interrupt)?;
    for name in [A, B] {
        children.start(name, &(&server.place, lease)).await?;
    }
    let mut ready = 0;
    while let Some((name, report)) = children.next().await? {
        match report {
            // Both are connected: A begins.
            Report::Ready => {
                ready += 1;
                if ready == 2 && !children.is_stopping() {
                    children.send(A, &()).await?;
                }
            }
            Report::Waits { at } => recording.waits(&name, at),
            Report::Holds { at, token } => {
                recording.holds(&name, at, token);
                // B waits from the first hold of A on.
                if recording.holds.len() == 1 && !children.is_stopping() {
                    children.send(B, &()).await?;
                }
            }
            Report::Releases { at } => recording.ends(&name, at, false),
            Report::WouldHold if children.is_stopping() => {}
            Report::WouldHold => {
                children.kill(&name).await?;
                recording.ends(&name, now(), true);
            }
        }
    }
    children.stop().await?;
    shut_down(database).await;
    Ok(recording)
}

/// A run. Times are microseconds since the first process began to wait.
#[derive(Debug, Serialize, Deserialize)]
struct Recording {
    server: String,
    key: String,
    lease_ms: u64,
    /// In the order in which the lock was granted.
    holds: Vec<Hold>,
    /// When it began, and which processes wait now.
    #[serde(skip)]
    start: Option<u64>,
    #[serde(skip)]
    waiting: Vec<(String, u64)>,
}

/// One process waits for the lock, holds it, and releases it or is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hold {
    process: String,
    waits: u64,
    holds: u64,
    ends: u64,
    token: u64,
    is_killed: bool,
}

impl Recording {
    fn new(server: String, lease: Duration) -> Self {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (holds, waiting) = (Vec::new(), Vec::new());
        Self { server, key: KEY.to_owned(), lease_ms, holds, start: None, waiting }
    }

    fn since_start(&mut self, at: u64) -> u64 {
        at.saturating_sub(*self.start.get_or_insert(at))
    }

    fn waits(&mut self, process: &str, at: u64) {
        let at = self.since_start(at);
        self.waiting.push((process.to_owned(), at));
    }

    fn holds(&mut self, process: &str, at: u64, token: u64) {
        let at = self.since_start(at);
        println!("{:8.3} s  {process} holds, with token {token}", seconds(at));
        let place = self.waiting.iter().position(|(waiting, _)| waiting == process);
        let waits = place.map_or(at, |place| self.waiting.remove(place).1);
        let process = process.to_owned();
        self.holds.push(Hold { process, waits, holds: at, ends: at, token, is_killed: false });
    }

    fn ends(&mut self, process: &str, at: u64, is_killed: bool) {
        let at = self.since_start(at);
        println!("{:8.3} s  {process} {}", seconds(at), if is_killed { "is KILLED" } else { "releases" });
        if let Some(hold) = self.holds.iter_mut().rev().find(|hold| hold.process == process) {
            (hold.ends, hold.is_killed) = (at, is_killed);
        }
    }

    /// Prints the sums, and checks the promises.
    fn check(&self, is_complete: bool) -> Checks {
        let count = |is_fault: fn(&[Hold]) -> bool| self.holds.windows(2).filter(|pair| is_fault(pair)).count();
        // From the end of each hold to the next one, after a release and after the kill.
        let gap = |pair: &[Hold]| Duration::from_micros(pair[1].holds.saturating_sub(pair[0].ends));
        let released = self.holds.windows(2).filter(|pair| !pair[0].is_killed);
        let hand_overs: Vec<_> = released.map(|pair| millis(Some(gap(pair)))).collect();
        let expiry = self.holds.windows(2).find(|pair| pair[0].is_killed).map(gap);
        let lease = Duration::from_millis(self.lease_ms);
        let mut checks = Checks::new(is_complete);
        println!();
        checks.show("holds", self.holds.len());
        checks.at_the_end(self.holds.len() == 2 * ROUNDS, format!("{} holds, not {}", self.holds.len(), 2 * ROUNDS));
        checks.none("overlaps", count(|pair| pair[1].holds < pair[0].ends), "holds overlapped");
        checks.none("stale tokens", count(|pair| pair[1].token <= pair[0].token), "tokens did not grow");
        checks.show("hand-overs", format_args!("{}, from the release to the next holder", hand_overs.join(", ")));
        checks.show("expiry", format_args!("{}, with leases of {} s", millis(expiry), lease.as_secs()));
        // Where longer leases are needed, everything takes longer.
        let is_soon = expiry.is_some_and(|expiry| expiry <= lease * 7 / 2);
        checks.at_the_end(is_soon, "the killed holder's lock was not soon free");
        checks
    }
}

fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
