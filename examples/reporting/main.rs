//! A short-lived lock around an external reporting API that several web servers call, and that
//! accepts one call per account at a time.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin reporting
//! # without the lock, to count the calls that overlap:
//! cargo run -p distlock-examples --features mongodb --bin reporting -- --no-lock
//! ```
//!
//! # What it shows
//! Three web servers are OS processes; the API is this one. Impatient users request the same report
//! from two servers at once. A server takes the account's lock, looks for the report in MongoDB,
//! calls the API if there is none, and stores the report.
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

use std::process::ExitCode;
use std::time::Duration;

use axum::http::Method;
use distlock_examples::{Checks, Children, Database, Failure, Given, HttpClient, Interrupt, MONGODB, Opt, Outcome};
use distlock_examples::{Program, millis, serve, shut_down};
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::api::{Api, Record};
use crate::server::{Part, play};

const PROGRAM: Program = Program {
    name: "reporting",
    about: "Web servers call an API that takes one call per account. One server is killed in a call.",
    options: &[
        MONGODB,
        Opt::number("months", 8, 2..=12, "the reports of each account"),
        // How long a dead server blocks an account. A real service would keep 30 s. On a busy
        // machine, a server cannot always renew a short lease in time.
        Opt::number("lease", 2, 1..=30, "seconds of a lease"),
        Opt::flag("no-lock", "without the lock: counts the calls that overlap"),
    ],
};

const SERVERS: [&str; 3] = ["A", "B", "C"];
const ACCOUNTS: [&str; 3] = ["acme", "bolt", "cove"];
const REPORTS: &str = "reports";
/// How much longer than a lease the hanging call hangs before its server is killed: the lease must
/// have been renewed.
const HANG: Duration = Duration::from_millis(500);
/// All users come within this time, in milliseconds.
const RUSH: u64 = 800;
/// After this many attempts without an answer the run fails.
const ATTEMPTS: usize = 20;
/// Before another attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// The account and the month of a report.
type Wanted = [String; 2];

/// Each user requests a report from two servers at once, and without an answer tries another one.
fn users(wanted: &[Wanted], servers: &[String]) -> JoinSet<Result<(), Failure>> {
    let (client, mut users) = (HttpClient::new(), JoinSet::new());
    for [account, month] in wanted {
        let first = fastrand::usize(..servers.len());
        let come = Duration::from_millis(fastrand::u64(..RUSH));
        for click in 0..2 {
            let (client, servers, path) = (client.clone(), servers.to_vec(), format!("/reports/{account}/{month}"));
            users.spawn(async move {
                sleep(come).await;
                for attempt in first + click..first + click + ATTEMPTS {
                    let uri = format!("{}{path}", servers[attempt % servers.len()]);
                    match client.call(Method::POST, &uri, String::new()).await {
                        Ok(answer) if answer.status().is_success() => return Ok(()),
                        Ok(_) | Err(_) => sleep(PAUSE).await,
                    }
                }
                Err(format!("no server returns {path}").into())
            });
        }
    }
    users
}

async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let database = Database::open(given.text("mongodb"), "reporting").await?;
    let (locked, lease) = (!given.flag("no-lock"), Duration::from_secs(given.number("lease")));
    let mut wanted = Vec::new();
    for month in 1..=given.number("months") {
        wanted.extend(ACCOUNTS.map(|account| [account.to_owned(), format!("{month:02}")]));
    }
    let mut children = Children::<String>::new(&interrupt)?;
    let clock = children.clock;
    // One call hangs in the middle of the work.
    let (hangs, hanging) = oneshot::channel();
    let api = Api::new(clock, (wanted.len() / 2 + 1, hangs));
    let (address, listening) = serve(api.router(), 0).await?;
    let mut servers = Vec::new();
    for name in SERVERS {
        let part = Part { place: database.place.clone(), api: address.clone(), locked, lease };
        children.start(name, &part).await?;
        servers.push(children.next().await?.ok_or("a server did not start")?.1);
    }
    let how = if locked { "a lock per account" } else { "WITHOUT any lock" };
    println!("{} web servers call one API for {} reports, each wanted twice, {how}.\n", SERVERS.len(), wanted.len());

    let mut users = users(&wanted, &servers);
    let serve_all = async {
        while let Some(answered) = users.join_next().await {
            answered??;
        }
        Ok::<_, Failure>(())
    };
    let kill_one = async {
        let victim = hanging.await?;
        sleep(lease + HANG).await;
        children.kill(&victim).await?;
        clock.say(&format!("server {victim} is KILLED, while it holds the lock of that account"));
        Ok(())
    };
    let is_complete = tokio::select! {
        done = async { tokio::try_join!(serve_all, kill_one) } => done.map(|_| true)?,
        () = interrupt.pressed() => false,
    };
    // Before anything stops, so that calls that are under way cannot be taken for mistakes.
    let app = database.place.open().await?;
    let stored: Vec<Document> = app.collection(REPORTS).find(doc! {}).await?.try_collect().await?;
    println!();
    let checks = check(&api.record(), &wanted, &stored, lease, is_complete);
    users.shutdown().await;
    children.stop().await?;
    listening.abort();
    shut_down(app).await;
    database.close().await?;
    Ok(checks.conclude("no calls overlapped, no report was made twice or is missing"))
}

/// Compares the API's record with the reports in the database: prints the sums, and checks the
/// promises.
fn check(record: &Record, wanted: &[Wanted], stored: &[Document], lease: Duration, is_complete: bool) -> Checks {
    let of =
        |report: &Document| Some([report.get_str("account").ok()?, report.get_str("month").ok()?].map(str::to_owned));
    let stored: Vec<Wanted> = stored.iter().filter_map(of).collect();
    let copies = |wanted: &Wanted| stored.iter().filter(|report| *report == wanted).count();
    let missing = wanted.iter().filter(|wanted| copies(wanted) == 0).count();
    let made = record.made.values().sum::<usize>();
    let mut hand_overs = record.hand_overs.clone();
    hand_overs.sort();

    let mut checks = Checks::new(is_complete);
    checks.show("API", format_args!("{made} reports made, {} call broken off", record.broken_off));
    checks.at_the_end(record.broken_off > 0, "no server was killed in a call");
    checks.none("overlaps", record.overlaps, "calls overlapped");
    checks.none("made twice", made - record.made.len(), "reports were made twice");
    checks.show("database", format_args!("{} reports", stored.len()));
    checks.none("stored twice", stored.len() - (wanted.len() - missing), "reports are stored twice");
    checks.show("missing", missing);
    let is_whole = missing == 0 && record.made.len() == wanted.len();
    checks.at_the_end(is_whole, format!("{missing} reports are missing"));
    checks
        .show("hand-over", format_args!("{} from call to call", millis(hand_overs.get(hand_overs.len() / 2).copied())));
    let recovery = record.recoveries.iter().max().copied();
    checks.soon("recovery", recovery, lease, "the dead server's account was not served soon");
    checks
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
