//! A saga whose state is a document that is locked, changed and released in place: orders go from
//! *reserved* to *paid*, *packed* and *shipped*, one step at a time, by whichever worker comes
//! first.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples --features mongodb --bin saga                                   # on a replica set that is found or started for the run
//! cargo run -p distlock-examples --features mongodb --bin saga -- --mongodb mongodb://localhost  # on one of yours
//! cargo run -p distlock-examples --features mongodb --bin saga -- --no-lock                      # without locks: the steps that were done twice are counted
//! ```
//!
//! Options: `--orders N` (default 20).
//!
//! # What it shows
//! Four workers, each an OS process. A worker locks an order, which brings the order along; does
//! what the step is about – an effect outside, such as a payment – and commits: the new state and
//! the release are one atomic update. One worker is killed between the effect and the commit.
//! Another one falls asleep there (SIGSTOP), beyond its lease, and commits when it wakes up: it is
//! refused, because another worker has done the step meanwhile. At the end the orders are compared
//! with what each worker was told that it had committed.
//!
//! # The published approach
//! The saga's document has a field for the lock. `findAndModify` by `_id` and "not locked, or
//! locked for too long" sets the field and returns the document; the worker does the step, writes
//! the new state, and clears the field.
//!
//! Its weaknesses, and what is done here:
//!
//! | there | here |
//! |---|---|
//! | "for too long" compares the clocks of two workers | the server's clock alone decides |
//! | a worker that takes longer than that goes on, and writes its state over that of its successor | a commit is filtered by the acquisition and its expiry in the same step: who is late changes nothing, and hears `AlreadyLost` |
//! | writing the state and clearing the lock are two writes, with a crash in between | one |
//! | who finds the document locked asks again and again | a waiter stands in line in the document and is told |
//! | a step is repeated after a crash, and so is its effect outside | no lock can help that; each effect has a key – the order and the step – by which the other side recognises it |

mod supervisor;
mod verdict;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Failure, conclude, part};

const USAGE: &str = "usage: saga [--mongodb URI] [--no-lock] [--orders N]";
/// Short, so that the orders of a dead worker go on soon; a real service would take the default of
/// 30 s.
const LEASE: Duration = Duration::from_secs(2);
/// The state documents.
const ORDERS: &str = "orders";
/// The world outside: what was asked for, by key.
const EFFECTS: &str = "effects";

/// What the command line asks for.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    orders: i64,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    use lexopt::prelude::*;

    let mut arguments = Arguments { mongodb: None, locked: true, orders: 20 };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => arguments.mongodb = Some(parser.value()?.string()?),
            Long("no-lock") => arguments.locked = false,
            Long("orders") => arguments.orders = parser.value()?.parse()?,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(format!("{}; {USAGE}", argument.unexpected()).into()),
        }
    }
    match arguments.orders {
        12..=1000 => Ok(Some(arguments)),
        _ => Err("use 12 to 1000 orders".into()),
    }
}

async fn run() -> Result<bool, Failure> {
    if let Some((setting, orders)) = part().await? {
        worker::play(setting, orders).await?;
        return Ok(true);
    }
    match arguments()? {
        Some(arguments) => supervisor::show(&arguments).await,
        None => {
            println!("{USAGE}");
            Ok(true)
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    conclude("saga", run().await)
}
