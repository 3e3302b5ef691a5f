//! Pessimistic locking of work items: people check items out, edit them for as long as they like,
//! and save. Meanwhile no other session can edit them. A collection of locks records which session
//! has which item, and a session that ends returns all its items in one call.
//!
//! ```text
//! # on a replica set that is found or started for the run:
//! cargo run -p distlock-examples --features mongodb --bin workitems
//! # on one of yours:
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --mongodb mongodb://localhost
//! # without locks, to count the lost edits:
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --no-lock
//! # with locks, but without a check of the saves: a late one destroys the work of others
//! cargo run -p distlock-examples --features mongodb --bin workitems -- --no-fence
//! ```
//!
//! # What it shows
//! Five sessions, each an OS process, edit the same items: they read the whole item, think, and
//! save the whole item.
//!
//! * Boris logs out with items checked out.
//! * Carla's process is killed, and the server that had her connection ends her session.
//! * Dmitri's laptop falls asleep (SIGSTOP), and his session is ended as dead. Others edit his
//!   items. Then he wakes up and saves.
//!
//! At the end the items are compared with the saves that were confirmed to the sessions.
//!
//! # The published approach
//! A collection of locks beside the items has one document per checked-out item. Its key is the
//! item's id, and it contains the session's id. Checking out is an insert, checking in deletes by
//! item and session, and the end of a session deletes by session. By a timestamp old locks can be
//! removed.
//!
//! Its weaknesses, and what this program does:
//!
//! | there | here |
//! |---|---|
//! | a lock has no end: a session that dies without logging out blocks the item until an administrator or a job removes the lock | a lease is renewed while its holder lives: 30 s at the worst, and none if a server knows that the session has ended |
//! | or a lock has an age limit, and a session that thinks longer loses it | thinking may take any time, because the lease is renewed |
//! | the end of a session deletes what it finds, perhaps the lock that another session has got meanwhile | `LockAdmin::release_owner` decides in the same step in which it takes a lock away, and each lock remembers its last removals: by which call, when and why |
//! | a session that was wrongly declared dead overwrites the work of its successor | `Fence`: each save carries the lock's token, and the item refuses an older token than it has seen |
//! | a session that wants an item that is taken polls | a waiter stands in the queue, and the grant is pushed to it |

mod session;
mod supervisor;
mod verdict;

use std::process::ExitCode;

use distlock_examples::{Failure, read_options};

const USAGE: &str = "\
usage: workitems [OPTION]...

Sessions check items out and save them. They log out, die, and wake up late.

  --mongodb URI  a replica set; without it, one is found or started for the run
  --items N      12 to 99 (default 12)
  --no-lock      without locks: counts the lost edits
  --no-fence     with locks, but late saves are not refused: counts the lost edits
  --help         this text
";

/// The collection of the locks.
const LOCKS: &str = "item_locks";
const ITEMS: &str = "items";
/// How many edits an item needs.
const EDITS: usize = 4;

/// The command line.
struct Arguments {
    mongodb: Option<String>,
    locked: bool,
    fenced: bool,
    items: usize,
}

fn arguments() -> Result<Option<Arguments>, Failure> {
    let defaults = Arguments { mongodb: None, locked: true, fenced: true, items: 12 };
    read_options(USAGE, defaults, |arguments, option, values| {
        match option {
            "mongodb" => arguments.mongodb = Some(values.text()?),
            "no-lock" => arguments.locked = false,
            "no-fence" => arguments.fenced = false,
            "items" => arguments.items = values.number(12..=99)?,
            _ => return Ok(false),
        }
        Ok(true)
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    distlock_examples::run("workitems", arguments, supervisor::show, session::play).await
}
