//! A saga whose state is a document that is locked, changed and released in place. Orders go from
//! *reserved* to *paid*, *packed* and *shipped*, one step at a time, each by the first free worker.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin saga
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin saga -- --mongodb mongodb://localhost
//! # without locks, to count the steps that are done twice:
//! cargo run -p distlock-examples --features mongodb --bin saga -- --no-lock
//! ```
//!
//! # What it shows
//! Each of four workers is an OS process. A worker locks an order, and the answer contains the
//! order. It carries out the step, an effect outside such as a payment, and commits: the new state
//! and the release are one atomic update.
//!
//! One worker is killed between the effect and the commit. Another falls asleep there (SIGSTOP) for
//! longer than its lease, and commits when it wakes up. The commit is refused, because another
//! worker has done the step meanwhile. At the end the orders are compared with the commits that
//! were confirmed to the workers.
//!
//! # The published approach
//! The saga's document has a field for the lock. `findAndModify` by `_id` and "not locked, or
//! locked for too long" sets the field and returns the document. The worker does the step, writes
//! the new state, and clears the field.
//!
//! Its weaknesses, and what this program does:
//!
//! | there | here |
//! |---|---|
//! | "for too long" compares the clocks of two workers | the server's clock alone decides |
//! | a worker that takes longer continues, and overwrites the state of its successor | the filter of a commit contains the acquisition and its expiry: a late commit changes nothing, and returns `AlreadyLost` |
//! | writing the state and clearing the lock are two writes, with a crash in between | one |
//! | a worker that finds the document locked polls | a waiter stands in the document's queue, and the grant is pushed to it |
//! | a step is repeated after a crash, and so is its effect outside | no lock can prevent that; each effect has a key, the order and the step, by which the other side recognises it |

mod supervisor;
mod verdict;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use distlock_examples::{Failure, read_options};

const USAGE: &str = "\
usage: saga [OPTION]...

Workers take orders through steps. One is killed, and one wakes up late.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --orders N     12 to 1000 (default 20)
  --lease N      seconds of a lease, 1 to 30 (default 2)
  --no-lock      without locks: counts the steps that are done twice
  --help         this text
";

/// The default. Short, so that the orders of a dead worker soon continue. A real service would keep
/// 30 s. On a busy machine, a worker cannot always renew a short lease in time.
const LEASE: Duration = Duration::from_secs(2);
/// The collection of the orders.
const ORDERS: &str = "orders";
/// The collection of the effects outside, by their keys.
const EFFECTS: &str = "effects";

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    orders: i64,
    lease: Duration,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, locked: true, orders: 20, lease: LEASE };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "no-lock" => arguments.locked = false,
            "orders" => arguments.orders = values.number(12..=1000)?,
            "lease" => arguments.lease = Duration::from_secs(values.number(1..=30)?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("saga", arguments, supervisor::show, worker::play).await
}
