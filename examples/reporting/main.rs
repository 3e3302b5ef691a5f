//! A short-lived lock around an external reporting API that several web servers call, and that
//! accepts one call per account at a time.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin reporting
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin reporting -- --mongodb mongodb://localhost
//! # without the lock, to count the calls that overlap:
//! cargo run -p distlock-examples --features mongodb --bin reporting -- --no-lock
//! ```
//!
//! # What it shows
//! Three web servers and the API are OS processes. Impatient users request the same report from two
//! servers at once. A server takes the account's lock, looks for the report in MongoDB, calls the
//! API if there is none, and stores the report.
//!
//! One call hangs for longer than the lease, which is renewed meanwhile. Then its server is killed.
//! At the end the API's record of its calls and the reports in the database are counted: no
//! overlap, no report made twice, none missing.
//!
//! # The published approach
//! A collection has one document per lock. `findAndModify` with `upsert` takes the lock if there
//! was no document before; else the caller tries again every 100 ms for 10 s. The holder deletes
//! the document by its key. A TTL index removes what a dead server leaves behind.
//!
//! Its weaknesses, and what this program does:
//!
//! | there | here |
//! |---|---|
//! | the TTL index is the only recovery, and its monitor sweeps once a minute: after a crash the account is blocked for up to ttl + 60 s | the next attempt takes over an expired lease, and waiters know when that is. The TTL index only tidies up |
//! | the ttl must be longer than the longest call, or the lock of a living holder is deleted | the lease is renewed as long as its holder lives. The ttl only limits how long a dead holder blocks: 2 s here |
//! | each waiter sends ten requests a second, loses 50 ms on average, and the order is chance | a release grants the lock to the first waiter in the same write, and the grant is pushed |
//! | a slow holder deletes the lock by its key, perhaps that of another holder | a release names its acquisition: a late one changes nothing, and returns `AlreadyLost` |
//! | a slow holder does not learn of its loss | `guard.run` drops the call when the lock is lost, before another caller can get it |

mod api;
mod server;
mod users;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Children, Database, Failure, Interrupt, Message, Orders, Outcome, read_options};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use crate::api::Ending;
use crate::users::{ReportId, Users};

const SERVERS: [&str; 3] = ["A", "B", "C"];
const ACCOUNTS: [&str; 3] = ["acme", "bolt", "cove"];
/// How long a dead server blocks an account, by default. A real service would keep 30 s. On a busy
/// machine, a server cannot always renew a short lease in time.
const LEASE: Duration = Duration::from_secs(2);
/// How long the API works on a report.
const CALL: Duration = Duration::from_millis(120);
/// How much longer than a lease the hanging call hangs before its server is killed: the lease must
/// have been renewed.
const HANG: Duration = Duration::from_millis(500);
/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(3600);

const USAGE: &str = "\
usage: reporting [OPTION]...

Web servers call an API that takes one call per account. One server is killed in a call.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --months N     the reports of each account, 2 to 12 (default 8)
  --lease N      seconds of a lease, 1 to 30 (default 2)
  --no-lock      without the lock: counts the calls that overlap
  --help         this text
";

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    months: usize,
    lease: Duration,
}

/// The part of a child.
#[derive(Serialize, Deserialize)]
enum Part {
    /// The external API. After `hang_after` calls, the next one hangs for ever.
    Api {
        hang_after: usize,
    },
    Server(server::Setting),
}

/// What a child reports.
#[derive(Serialize, Deserialize)]
enum Report {
    Listening(String),
    Call(api::Call),
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, locked: true, months: 8, lease: LEASE };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "no-lock" => arguments.locked = false,
            "months" => arguments.months = values.number(2..=12)?,
            "lease" => arguments.lease = Duration::from_secs(values.number(1..=30)?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

async fn play(part: Part, orders: Orders) -> Result<(), Failure> {
    match part {
        Part::Api { hang_after } => api::play(hang_after, orders).await,
        Part::Server(setting) => server::play(setting, orders).await,
    }
}

async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "reporting").await?;
    let interrupt = Interrupt::listen();
    let mut children = Children::new();
    let wanted = ReportId::all(arguments.months);
    // One call hangs in the middle of the work.
    let part = Part::Api { hang_after: wanted.len() / 2 };
    children.start("api", &part).await?;
    let api = address(&mut children).await?;
    let mut servers = Vec::new();
    for name in SERVERS {
        let setting = server::Setting {
            name: name.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            api: api.clone(),
            locked: arguments.locked,
            lease: arguments.lease,
        };
        children.start(name, &Part::Server(setting)).await?;
        servers.push(address(&mut children).await?);
    }
    let how = if arguments.locked { "a lock per account" } else { "WITHOUT any lock" };
    println!("{} web servers call one API for {} reports, each wanted twice, {how}.\n", SERVERS.len(), wanted.len());

    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    let mut users = Users::come(&wanted, servers);
    let (mut victim, mut killed) = (None::<(String, Instant)>, None::<String>);
    while !users.are_served() {
        let kill_at = victim.as_ref().map_or(start + FOREVER, |(_, at)| *at);
        tokio::select! {
            answered = users.next() => answered?,
            message = children.next() => match message?.ok_or("the API has ended")? {
                (_, Message::Report(Report::Call(call))) => {
                    println!("{:8.3} s  {call}", seconds());
                    if call.ending == Ending::Hangs {
                        victim = Some((call.server, Instant::now() + arguments.lease + HANG));
                    }
                }
                (name, Message::Ended) if killed.as_ref() == Some(&name) => {}
                (name, _) => return Err(format!("{name} ended by itself").into()),
            },
            () = sleep_until(kill_at) => if let Some((name, _)) = victim.take() {
                children.kill(&name).await?;
                println!("{:8.3} s  server {name} is KILLED, while it holds the lock of that account", seconds());
                killed = Some(name);
            },
            () = interrupt.pressed() => break,
        }
    }
    println!();
    // Before anything stops, so that calls that are under way cannot be taken for mistakes.
    let counted = verdict::count(&api, &database, &wanted).await?;
    counted.show(arguments.lease);
    let mut checks = counted.check(wanted.len(), arguments.lease, users.are_served());
    checks.at_the_end(killed.is_some(), "no server was killed");
    drop(users);
    children.stop().await?;
    database.close().await?;
    Ok(checks.conclude("no calls overlapped, no report was made twice or is missing"))
}

/// The address that a new child reports.
async fn address(children: &mut Children<Report>) -> Result<String, Failure> {
    match children.next().await? {
        Some((_, Message::Report(Report::Listening(address)))) => Ok(address),
        _ => Err("a child did not start".into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("reporting", arguments, show, play).await
}
