//! How a lock passes between two processes: a recording of a real run, and the picture of it that
//! the README shows.
//!
//! ```text
//! # on a replica set that is found or started for the run:
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
mod holder;
mod recording;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Children, Database, Failure, Interrupt, Message, Outcome, read_options};
use distlock_mongo::mongodb::bson::doc;

use crate::holder::{Part, Report, now};
use crate::recording::Recording;

/// The holder that is killed.
const A: &str = "A";
const B: &str = "B";
const KEY: &str = "orders/42";
/// The default. Short, so that the picture can show an expiry. A real service would keep 30 s. On a
/// busy machine, a process cannot always renew a short lease in time.
const LEASE: Duration = Duration::from_secs(1);
/// How long each process holds the lock.
const HOLD: Duration = Duration::from_millis(700);
/// How long each process has the lock before it is killed.
const KILLED_AFTER: Duration = Duration::from_millis(350);
/// How often each process takes the lock.
const ROUNDS: usize = 3;

const USAGE: &str = "\
usage: hand-over [OPTION]...

Records and draws how a lock passes between two processes.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --lease N      seconds of a lease, 1 to 30 (default 1)
  --save FILE    writes the recording to FILE.json and the picture to FILE.svg
  --draw FILE    runs nothing: reads FILE.json and writes FILE.svg
  --help         this text
";

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    lease: Duration,
    save: Option<String>,
    draw: Option<String>,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, lease: LEASE, save: None, draw: None };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "lease" => arguments.lease = Duration::from_secs(values.number(1..=30)?),
            "save" => arguments.save = Some(values.text()?),
            "draw" => arguments.draw = Some(values.text()?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    if let Some(file) = &arguments.draw {
        let recording: Recording = serde_json::from_str(&std::fs::read_to_string(format!("{file}.json"))?)?;
        std::fs::write(format!("{file}.svg"), draw::picture(&recording))?;
        println!("{file}.svg is drawn");
        return Ok(recording.check(true).conclude(recording::PROVED));
    }
    let database = Database::open(arguments.mongodb.as_deref(), "hand_over").await?;
    let interrupt = Interrupt::listen();
    let recording = record(&database, arguments.lease, &interrupt).await?;
    database.close().await?;

    let is_complete = !interrupt.is_pressed();
    recording.print();
    let checks = recording.check(is_complete);
    if let Some(file) = arguments.save.filter(|_| is_complete) {
        std::fs::write(format!("{file}.json"), serde_json::to_string_pretty(&recording)? + "\n")?;
        std::fs::write(format!("{file}.svg"), draw::picture(&recording))?;
        println!("\nwritten: {file}.json\nwritten: {file}.svg");
    }
    Ok(checks.conclude(recording::PROVED))
}

/// Runs both processes, and records when each waits for and holds the lock.
async fn record(database: &Database, lease: Duration, interrupt: &Interrupt) -> Result<Recording, Failure> {
    let client = Database::client(database.uri()).await?;
    let build = client.database("admin").run_command(doc! { "buildInfo": 1 }).await?;
    let server = format!("MongoDB {}", build.get_str("version")?);
    println!("two processes take the lock {KEY} in turn, with leases of {} s, on {server}\n", lease.as_secs());
    let mut recording = Recording::new(server, lease);
    let mut children = Children::new();
    for name in [A, B] {
        let part = Part {
            name: name.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            lease,
        };
        children.start(name, &part).await?;
    }
    let mut ready = 0;
    while let Some((name, message)) = children.next_until(interrupt).await? {
        match message {
            // Both are connected: A begins.
            Message::Report(Report::Ready) => {
                ready += 1;
                if ready == 2 && !children.is_stopping() {
                    children.send(A, &()).await?;
                }
            }
            Message::Report(Report::Waits { at }) => recording.waits(&name, at),
            Message::Report(Report::Holds { at, token }) => {
                recording.holds(&name, at, token);
                // B waits from the first hold of A on.
                if recording.holds.len() == 1 && !children.is_stopping() {
                    children.send(B, &()).await?;
                }
            }
            Message::Report(Report::Releases { at }) => recording.ends(&name, at, false),
            Message::Report(Report::WouldHold) if children.is_stopping() => {}
            Message::Report(Report::WouldHold) => {
                children.kill(&name).await?;
                recording.ends(&name, now(), true);
            }
            Message::Ended => {}
        }
    }
    children.stop().await?;
    client.shutdown().await;
    Ok(recording)
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("hand-over", arguments, show, holder::play).await
}
