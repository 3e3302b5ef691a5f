//! Pessimistic locking of work items: people check items out, edit them for as long as they like,
//! and save; meanwhile nobody else can. Who has what stands in a lock collection of its own, by
//! session, and a session that ends gives everything back in one call.
//!
//! Run with
//!
//! ```text
//! cargo run -p distlock-examples --features mongodb --bin workitems                                   # on a replica set that is found or started for the run
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --mongodb mongodb://localhost  # on one of yours
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --no-lock                      # without locks: the lost edits are counted
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --no-fence                     # locks, but saves that nobody checks: a late one destroys others' work
//! ```
//!
//! Options: `--items N` (default 12).
//!
//! # What it shows
//! Five sessions, each an OS process, edit the same items by reading the whole item, thinking, and
//! saving the whole item. Boris logs out with items checked out. Carla's process is killed, and the
//! server that kept her connection ends her session. Dmitri's laptop falls asleep (SIGSTOP); his
//! session is ended as dead; others edit his items; then he wakes up and saves. At the end the
//! items themselves are compared with what each session was told that it had saved.
//!
//! # The published approach
//! A collection of locks beside the items: one document per checked-out item, with the item's id as
//! the key and the session's id in it. Checking out is an insert, checking in deletes by item and
//! session, the end of a session deletes by session; a timestamp lets old locks be cleared away.
//!
//! Its weaknesses, and what is done here:
//!
//! | there | here |
//! |---|---|
//! | a lock without end: who dies without logging out blocks the item until an administrator or a clearing job comes by | a lease that is renewed while its holder lives: 30 s at the worst, and at once if somebody knows that the session has ended |
//! | or a lock with an age limit, and who thinks longer loses it | thinking is free: the renewal goes on |
//! | the end of a session deletes what it finds; what another session has got in the meantime may be among it | `LockAdmin::release_owner` decides in the same step in which it takes a lock away, and each lock remembers who took it away, when and why |
//! | a session that was declared dead and is not saves over its successor's work | `Fence`: each save carries the lock's token, and an older one than the item has seen is refused by the item |
//! | who wants an item that is taken tries again and again | a waiter stands in line and is told |

mod session;
mod supervisor;
mod verdict;

use std::process::ExitCode;

use distlock_examples::{Failure, conclude, part};

const USAGE: &str = "usage: workitems [--mongodb URI] [--no-lock | --no-fence] [--items N]";
/// The collection of the locks.
const LOCKS: &str = "item_locks";
const ITEMS: &str = "items";
/// So many edits, and an item is done.
const EDITS: usize = 4;

/// What the command line asks for.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    fenced: bool,
    items: usize,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    use lexopt::prelude::*;

    let mut arguments = Arguments { mongodb: None, locked: true, fenced: true, items: 12 };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("mongodb") => arguments.mongodb = Some(parser.value()?.string()?),
            Long("no-lock") => arguments.locked = false,
            Long("no-fence") => arguments.fenced = false,
            Long("items") => arguments.items = parser.value()?.parse()?,
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(format!("{}; {USAGE}", argument.unexpected()).into()),
        }
    }
    match arguments.items {
        12..=99 => Ok(Some(arguments)),
        _ => Err("use 12 to 99 items".into()),
    }
}

async fn run() -> Result<bool, Failure> {
    if let Some((setting, orders)) = part().await? {
        session::play(setting, orders).await?;
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
    conclude("workitems", run().await)
}
