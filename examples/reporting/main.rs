//! A short-lived lock around an external reporting API that several web servers call, and that
//! takes one call per account at a time.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples --features mongodb --bin reporting                                   # on a replica set that is found or started for the run
//! cargo run -p distlock-examples --features mongodb --bin reporting -- --mongodb mongodb://localhost  # on one of yours
//! cargo run -p distlock-examples --features mongodb --bin reporting -- --no-lock                      # without the lock: what the API complains about is counted
//! ```
//!
//! Options: `--months N`, the reports of each account (default 8).
//!
//! # What it shows
//! Three web servers and the API are OS processes. Impatient users ask two servers for the same
//! report at once. A server takes the account's lock, looks whether the report is there, calls the
//! API if not, and keeps the report in MongoDB. One call hangs for longer than the lease, which is
//! renewed meanwhile; then its server is killed. At the end the API's own account of calls and the
//! reports in the database are counted: no overlap, no report made twice, none missing.
//!
//! # The published approach
//! One document per lock in a collection: `findAndModify` with `upsert`, and *no document before ⇒
//! the lock is mine*; else try again every 100 ms for 10 s. Who is done deletes the document by its
//! key. A TTL index removes what a dead server leaves behind.
//!
//! Its weaknesses, and what is done here:
//!
//! | there | here |
//! |---|---|
//! | the TTL index is the only recovery, and its monitor sweeps once a minute: after a crash the account is blocked for up to ttl + 60 s | an expired lease is taken over by the next attempt; who waits knows when that is. The TTL index only tidies up |
//! | the ttl must be longer than the longest call, or the lock is deleted under a living holder | the lease is renewed as long as its holder lives, so the ttl only says how long a dead one hurts: 2 s here |
//! | a waiter asks every 100 ms: ten requests a second each, 50 ms lost on average, and who comes first is chance | a release grants the lock to who waits longest, in the same write, and tells it |
//! | a slow holder deletes the lock by its key: it may be somebody else's by now | a release names its acquisition: a late one changes nothing, and is told so |
//! | nobody tells the slow holder | `guard.run` drops the call when the lock is lost, before anybody else can get it |

mod api;
mod server;
mod users;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Children, Database, Failure, Said, conclude, part};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use crate::api::Outcome;
use crate::users::{Users, Wish};

const SERVERS: [&str; 3] = ["A", "B", "C"];
const ACCOUNTS: [&str; 3] = ["acme", "bolt", "cove"];
/// How long a dead server's lock hurts; a real service would take the default of 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// What the API takes for a report.
const CALL: Duration = Duration::from_millis(120);
/// How long the hanging call hangs before its server is killed: longer than the lease, which
/// therefore must have been renewed.
const HANG: Duration = Duration::from_millis(2500);
/// Far away.
const FOREVER: Duration = Duration::from_secs(3600);

const USAGE: &str = "usage: reporting [--mongodb URI] [--no-lock] [--months N]";

/// What the command line asks for.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    months: usize,
}

/// What a child plays.
#[derive(Serialize, Deserialize)]
enum Part {
    /// The external API. The call that begins after so many have ended hangs for ever.
    Api {
        hang_after: usize,
    },
    Server(server::Setting),
}

/// What a child says.
#[derive(Serialize, Deserialize)]
enum Report {
    Listening(String),
    Call(api::Call),
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    use lexopt::prelude::*;

    let mut arguments = Arguments { mongodb: None, locked: true, months: 8 };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => arguments.mongodb = Some(parser.value()?.string()?),
            Long("no-lock") => arguments.locked = false,
            Long("months") => arguments.months = parser.value()?.parse()?,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(format!("{}; {USAGE}", argument.unexpected()).into()),
        }
    }
    match arguments.months {
        2..=12 => Ok(Some(arguments)),
        _ => Err("use 2 to 12 months".into()),
    }
}

async fn run() -> Result<bool, Failure> {
    match part().await? {
        Some((Part::Api { hang_after }, orders)) => api::play(hang_after, orders).await.map(|()| true),
        Some((Part::Server(setting), orders)) => server::play(setting, orders).await.map(|()| true),
        None => match arguments()? {
            Some(arguments) => show(&arguments).await,
            None => {
                println!("{USAGE}");
                Ok(true)
            }
        },
    }
}

async fn show(arguments: &Arguments) -> Result<bool, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "reporting").await?;
    let mut children = Children::none();
    let wishes = Wish::all(arguments.months);
    // In the middle of the work.
    let part = Part::Api { hang_after: wishes.len() / 2 };
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
        };
        children.start(name, &Part::Server(setting)).await?;
        servers.push(address(&mut children).await?);
    }
    let how = if arguments.locked { "a lock per account" } else { "WITHOUT any lock" };
    println!("{} web servers call one API for {} reports, each wanted twice, {how}.\n", SERVERS.len(), wishes.len());

    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    let mut users = Users::ask(&wishes, servers);
    let (mut victim, mut killed) = (None::<(String, Instant)>, None::<String>);
    while !users.are_served() {
        let kill_at = victim.as_ref().map_or(start + FOREVER, |(_, at)| *at);
        tokio::select! {
            answered = users.next() => answered?,
            said = children.next() => match said? {
                (_, Said::Report(Report::Call(call))) => {
                    println!("{:8.3} s  {call}", seconds());
                    if call.outcome == Outcome::Hangs {
                        victim = Some((call.server, Instant::now() + HANG));
                    }
                }
                (name, Said::Ended) if killed.as_ref() == Some(&name) => {}
                (name, _) => return Err(format!("{name} ended by itself").into()),
            },
            () = sleep_until(kill_at) => if let Some((name, _)) = victim.take() {
                children.kill(&name).await?;
                println!("{:8.3} s  server {name} is KILLED, with the lock of that account in its hands", seconds());
                killed = Some(name);
            },
        }
    }
    println!();
    let counted = verdict::count(&api, &database, &wishes).await?;
    counted.show();
    let mut complaints = counted.complaints(wishes.len());
    if killed.is_none() {
        complaints.push("nobody was killed".to_owned());
    }
    children.stop().await?;
    database.close().await?;
    Ok(distlock_examples::verdict(&complaints))
}

/// Where the child that was started last listens.
async fn address(children: &mut Children<Report>) -> Result<String, Failure> {
    match children.next().await? {
        (_, Said::Report(Report::Listening(address))) => Ok(address),
        (name, _) => Err(format!("{name} did not start").into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    conclude("reporting", run().await)
}
