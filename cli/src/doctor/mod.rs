//! `distlock doctor`: examines the deployment, and says what to do.

mod facts;
mod finding;
mod judge;
mod records;

use std::time::Duration;

use clap::Args;
use distlock::once::OnceProvider;
use distlock::{Disposition, ErrorKind, LeaseOptions, LockAdmin, LockError, Phase, Printable};
use serde_json::json;

use self::finding::{Finding, Verdict};
use crate::connect::{Connection, ConnectionArgs, Locks};
use crate::failure::{Failure, chain};
use crate::outcomes::COLLECTION;
use crate::output::{self, Format};
use crate::scratch::{self, Scratch};
use crate::stats::percentile;
use crate::{duration, exit};

/// How often a round trip is measured.
const SAMPLES: usize = 30;

const LONG_ABOUT: &str = "\
Examine the deployment, and say what to do

Looks at the kind of the deployment and which members can be reached, the server's version, the \
user's privileges, the collection and its indexes, change streams, round trips, and the clocks of \
the members against the safety margin. Each finding is ok, a warning, or wrong, and says what to \
do. The exit code is 1 if something is wrong.

It creates the lock collection and its indexes if they do not exist, as the first lock would, and \
takes a lock of its own.";

/// Examine the deployment, and say what to do
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT)]
pub(crate) struct DoctorArgs {
    /// The ttl that your applications use, which decides how slow writes and how far apart clocks
    /// may be
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    ttl: Duration,
    /// Examine a collection of outcomes of `run --once` too, and create it if it does not exist.
    /// Without a name it is `once`
    #[arg(long, value_name = "COLLECTION", num_args = 0..=1, require_equals = true, default_missing_value = COLLECTION)]
    once: Option<String>,
    /// Examine the records one by one too: name those that cannot be read, and those whose dates or
    /// tokens lie far ahead. It reads the whole collection
    #[arg(long)]
    records: bool,
}

/// Prints the findings, and returns the exit code: 1 if something is wrong.
///
/// # Errors
/// No deployment is named, an option makes no sense, or the output fails.
pub(crate) async fn run(args: DoctorArgs, connection: &ConnectionArgs, format: Format) -> Result<u8, Failure> {
    let margin = LeaseOptions::new().ttl(args.ttl).terms()?.margin;
    let mut report = Report { format, colours: output::colours(), counts: [0; 3], worst: Verdict::Ok };
    match Locks::open(connection).await {
        Ok(locks) => {
            let examined = examine(&locks, &args, margin, &mut report).await;
            if let Err(failure) = locks.close().await {
                let advice = "look for load on the servers, or for a connection that hangs";
                report.print(&Finding::warning("close", failure.message, advice))?;
            }
            examined?;
        }
        Err(failure) if failure.code == exit::USAGE => return Err(failure),
        Err(failure) => {
            report.print(&Finding::wrong("connection", failure.message, "correct the connection string"))?;
        }
    }
    report.sum_up()?;
    Ok(if report.worst == Verdict::Wrong { exit::WRONG } else { 0 })
}

/// Prints findings as they are made, and remembers the worst.
struct Report {
    format: Format,
    colours: bool,
    /// How many findings have each verdict.
    counts: [usize; 3],
    worst: Verdict,
}

impl Report {
    /// Prints how many findings there were of each kind.
    fn sum_up(&self) -> std::io::Result<()> {
        let [ok, warning, wrong] = self.counts;
        match self.format {
            Format::Json => output::json(&json!({ "check": "sum", "ok": ok, "warning": warning, "wrong": wrong })),
            Format::Human => output::line(&format!("{ok} ok, {warning} to be looked at, {wrong} wrong")),
        }
    }

    fn print(&mut self, finding: &Finding) -> std::io::Result<()> {
        self.worst = self.worst.max(finding.verdict);
        self.counts[finding.verdict as usize] += 1;
        match self.format {
            Format::Json => output::json(&finding.object()),
            Format::Human => {
                let lines = finding.lines();
                let lines = lines.lines().map(|line| Printable(line).to_string()).collect::<Vec<_>>().join("\n");
                let word = finding.verdict.as_str();
                output::line(&match lines.strip_prefix(word).filter(|_| self.colours) {
                    Some(rest) => format!("{}{word}\u{1b}[0m{rest}", finding.verdict.colour()),
                    None => lines,
                })
            }
        }
    }
}

async fn examine(locks: &Locks, args: &DoctorArgs, margin: Duration, report: &mut Report) -> Result<(), Failure> {
    let connection = &locks.connection;
    // Of a server that cannot be used the library's error says why.
    let is_prepared = locks.provider.prepare().await;
    let hello = match &is_prepared {
        Err(error) if error.phase() == Some(Phase::Connect) => Err(chain(error)),
        _ => facts::hello(connection).await,
    };
    let hello = match hello {
        Ok(hello) => hello,
        Err(error) => {
            let error = is_prepared.err().map_or(error, |error| chain(&error));
            let advice = "check the hosts, the port, replicaSet, TLS, the user and the password, and that a primary is \
                          elected";
            return Ok(report.print(&Finding::wrong("connection", error, advice))?);
        }
    };
    let server = hello.get_str("me").unwrap_or("the server");
    report.print(&Finding::ok("connection", format!("connected to {server}")))?;
    let (clocks, unreachable) = facts::clocks(connection, &hello).await;
    report.print(&judge::deployment(facts::kind(&hello), &clocks, &unreachable))?;
    let version = facts::version(connection).await.map(|version| judge::version(&version));
    report.print(&or_unanswered("version", version))?;
    let (database, collection) = (&connection.database, &connection.collection);
    let status = facts::status(connection).await;
    let privileges = |of, collection| status.clone().map(|status| judge::privileges(&status, of, database, collection));
    report.print(&or_unanswered("privileges", privileges("locks", collection)))?;
    if let Err(error) = is_prepared {
        report.print(&prepared(&error, "locks", &format!("{database}.{collection}")))?;
        if error.kind() != ErrorKind::PermissionDenied {
            return Ok(());
        }
    } else {
        report.print(&Finding::ok("collection", format!("{database}.{collection} can carry locks")))?;
    }
    let indexes = facts::indexes(connection, collection).await.map(|indexes| judge::indexes(&indexes));
    report.print(&indexes.unwrap_or_else(|error| unlisted("indexes", &error)))?;
    if let Some(collection) = &args.once {
        let finding = or_unanswered("privileges", privileges("outcomes", collection));
        report.print(&Finding { check: "oncePrivileges", ..finding })?;
        once(connection, collection, report).await?;
    }
    if args.records {
        let now = hello.get_datetime("localTime").map_or(0, |now| now.timestamp_millis());
        let once = args.once.as_ref().map(|once| ("onceRecords", once, Some("lock")));
        for (check, collection, field) in [("records", collection, None)].into_iter().chain(once) {
            match facts::records(connection, collection, field, now).await {
                Ok(examined) => {
                    for finding in examined.findings(check, &format!("{database}.{collection}")) {
                        report.print(&finding)?;
                    }
                }
                Err(error) => report.print(&Finding::warning(check, error, "see that the server answers"))?,
            }
        }
    }
    report.print(&change_stream(locks.admin()).await)?;
    round_trips(locks, args, report).await?;
    Ok(report.print(&judge::clocks(&clocks, &unreachable, margin))?)
}

/// Examines the collection of the outcomes of `run --once`.
async fn once(connection: &Connection, collection: &str, report: &mut Report) -> Result<(), Failure> {
    let (check, namespace) = ("onceCollection", format!("{}.{collection}", connection.database));
    let prepare = async {
        let jobs = connection.jobs(collection)?;
        let prepared = jobs.prepare().await;
        // It holds nothing.
        let _ = jobs.close().await;
        prepared
    };
    let finding = match prepare.await {
        Ok(()) => Finding::ok(check, format!("{namespace} can carry outcomes")),
        Err(error) => Finding { check, ..prepared(&error, "outcomes", &namespace) },
    };
    report.print(&finding)?;
    let indexes = facts::indexes(connection, collection).await.map(|indexes| judge::once_indexes(&indexes));
    Ok(report.print(&indexes.unwrap_or_else(|error| unlisted("onceIndexes", &error)))?)
}

fn unlisted(check: &'static str, error: &str) -> Finding {
    Finding::warning(check, format!("they cannot be listed: {error}"), "grant listIndexes to the user's role")
}

/// Judges the failure of the library's own preparation.
fn prepared(error: &LockError, what: &str, namespace: &str) -> Finding {
    let advice = match error.kind() {
        ErrorKind::PermissionDenied => "grant the privilege that is named",
        ErrorKind::Unsupported => {
            "use an ordinary collection of its own, on a deployment that is supported (the guide `deployments`)"
        }
        ErrorKind::InvalidOptions => "correct the name",
        _ if error.disposition() == Disposition::Permanent => {
            "correct what MongoDB names: it refuses the same again (the guide `errors`)"
        }
        _ => "see that a primary is elected, and that a majority of the members is up",
    };
    Finding::wrong("collection", format!("{namespace} cannot carry {what}: {}", chain(error)), advice)
}

fn or_unanswered(check: &'static str, found: Result<Finding, String>) -> Finding {
    found.unwrap_or_else(|error| Finding::warning(check, error, "see that the server answers this command"))
}

async fn change_stream(admin: &dyn LockAdmin) -> Finding {
    let check = "changeStream";
    match admin.watch().await {
        Ok(_) => Finding::ok(check, "change streams can be opened: waiters are woken by events"),
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::PermissionDenied => "grant find and changeStream on the database to the user's role",
                ErrorKind::Unsupported => {
                    "nothing, if waiters may poll: they ask again after a pause, so hand-overs take longer. Otherwise \
                     use a replica set of MongoDB; Atlas Flex and most other servers have no change streams"
                }
                _ => "see that a majority of the members is up",
            };
            Finding::warning(check, format!("waiters poll, and `watch` does not work: {}", chain(&error)), advice)
        }
    }
}

async fn round_trips(locks: &Locks, args: &DoctorArgs, report: &mut Report) -> Result<(), Failure> {
    let pings = facts::pings(&locks.connection, SAMPLES).await;
    let pings = pings.map(|mut all| judge::ping(percentile(&mut all, 50), percentile(&mut all, 99)));
    report.print(&or_unanswered("ping", pings))?;
    let scratch = Scratch::new("doctor");
    let measured = facts::acquisitions(locks, &scratch.key("lock"), SAMPLES).await;
    let finding = match measured {
        Ok(mut all) => judge::writes(percentile(&mut all, 50), percentile(&mut all, 99), args.ttl),
        Err(error) => {
            let advice = "see that a majority of the members is up, and that the user has the privileges";
            Finding::wrong("majority", format!("no lock can be taken: {}", chain(&error)), advice)
        }
    };
    report.print(&finding)?;
    // Without the privilege `remove` the record stays until the TTL index removes it.
    let _ = scratch::remove(&locks.connection, &scratch).await;
    Ok(())
}
