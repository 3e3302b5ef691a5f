//! Payments that clients send three times, to two replicas of a service, one of which is killed.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin payments
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin payments -- --mongodb mongodb://localhost
//! # without the layer, to count what is charged too often:
//! cargo run -p distlock-examples --features mongodb --bin payments -- --no-keys
//! ```
//!
//! # What it shows
//! The replicas are OS processes with an `IdempotencyLayer` over MongoDB. Each payment has an
//! idempotency key, and is sent three times at once, by clients that try again until they have an
//! answer. The bank charges whatever it is sent, and keeps a ledger.
//!
//! In the middle the bank charges a card and does not answer. The replica that called it is killed
//! then. A retry reaches the other replica, which learns that a run was interrupted, finds the
//! charge in the ledger, and does not repeat it. At the end the ledger is counted: every payment
//! was charged once, and its three clients have the same receipt.

mod bank;
mod clients;
mod replica;

use std::collections::BTreeSet;
use std::process::ExitCode;

use distlock_examples::{Checks, Children, Database, Failure, Interrupt, Message, Outcome, read_options, serve};
use tokio::time::Instant;

use crate::bank::Bank;
use crate::clients::Clients;
use crate::replica::Setting;

const REPLICAS: [&str; 2] = ["A", "B"];
/// How often each payment is sent.
const TIMES: usize = 3;

const USAGE: &str = "\
usage: payments [OPTION]...

Each payment is sent three times, to two replicas. One of them is killed in the middle.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --payments N   how many payments there are, 20 to 10000 (default 1000)
  --no-keys      without the layer: counts what is charged too often
  --help         this text
";

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    payments: usize,
    keyed: bool,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, payments: 1000, keyed: true };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "payments" => arguments.payments = values.number(20..=10_000)?,
            "no-keys" => arguments.keyed = false,
            _ => return Ok(false),
        }
        Ok(true)
    })
}

async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "payments").await?;
    let interrupt = Interrupt::listen();
    let (bank, mut hanging) = Bank::open(arguments.payments / 2);
    let (bank_address, listening) = serve(bank.router(), 0).await?;
    let mut children = Children::new();
    let mut addresses = Vec::new();
    for name in REPLICAS {
        let setting = Setting {
            name: name.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            bank: bank_address.clone(),
            keyed: arguments.keyed,
        };
        children.start(name, &setting).await?;
        match children.next().await? {
            Some((_, Message::Report(address))) => addresses.push(address),
            _ => return Err("a replica did not start".into()),
        }
    }
    let how = if arguments.keyed { "with an idempotency key" } else { "WITHOUT idempotency" };
    println!("{} payments, each sent {TIMES} times to {} replicas, {how}.\n", arguments.payments, REPLICAS.len());

    let start = Instant::now();
    let mut clients = Clients::start(arguments.payments, addresses);
    let mut killed = false;
    loop {
        tokio::select! {
            answered = clients.next() => if !answered? { break },
            Some(name) = hanging.recv() => {
                children.kill(&name).await?;
                println!("{:8.3} s  replica {name} is KILLED: the bank has charged, and not answered", start.elapsed().as_secs_f64());
                killed = true;
            },
            () = interrupt.pressed() => break,
        }
    }
    let complete = clients.are_served();
    println!("{:8.3} s  {} answers\n", start.elapsed().as_secs_f64(), clients.answers());
    let ledger = bank.ledger();
    let charged: usize = ledger.values().map(Vec::len).sum();
    let twice: usize = ledger.values().map(|charges| charges.len() - 1).sum();
    let differing = clients.receipts().values().filter(|receipts| receipts.len() > 1).count();
    let unknown = clients.receipts().iter().filter(|(payment, receipts)| {
        let charges: BTreeSet<_> = ledger.get(*payment).into_iter().flatten().cloned().collect();
        !receipts.is_subset(&charges)
    });
    let unknown = unknown.count();
    println!("  ledger          {charged} charges of {} payments", ledger.len());
    println!("  charged twice   {twice}");
    println!("  other receipts  {differing} payments with different receipts, {unknown} with wrong ones");
    println!("  replayed        {}", clients.replayed());
    println!("  looked up       {} charges of interrupted runs", bank.found());

    let mut checks = Checks::new(complete);
    checks.always(twice == 0, format!("{twice} charges were made too often"));
    checks.always(differing == 0, format!("{differing} payments have different receipts"));
    checks.always(unknown == 0, format!("{unknown} payments have receipts that the bank does not know"));
    checks.at_the_end(ledger.len() == arguments.payments, "payments are missing in the ledger");
    checks.at_the_end(killed, "no replica was killed");
    checks.at_the_end(!arguments.keyed || bank.found() > 0, "no interrupted run was looked up");
    drop(clients);
    children.stop().await?;
    listening.abort();
    database.close().await?;
    Ok(checks.conclude("every payment was charged once, and its clients have the same receipt"))
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("payments", arguments, show, replica::play).await
}
