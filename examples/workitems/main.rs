//! Pessimistic locking of work items: people check items out, edit them for as long as they like,
//! and save. Meanwhile no other session can edit them. A collection of locks records which session
//! has which item, and a session that ends returns all its items in one call.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin workitems
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

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use distlock_api::{LeaseOptions, ListOptions, LockProvider};
use distlock_examples::millis;
use distlock_examples::{Checks, Children, Database, Failure, Given, Interrupt, MONGODB, Opt, Outcome, Program};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::{MongoProvider, close_all};
use futures_util::TryStreamExt;

use crate::session::{Item, Part, Report, play};

const PROGRAM: Program = Program {
    name: "workitems",
    about: "Sessions check items out and save them. They log out, die, and wake up late.",
    options: &[
        MONGODB,
        Opt::number("items", 12, 12..=99, "how many items"),
        Opt::flag("no-lock", "without locks: counts the lost edits"),
        Opt::flag("no-fence", "with locks, but late saves are not refused: counts the lost edits"),
    ],
};

const SESSIONS: [&str; 5] = ["anna", LOGS_OUT, KILLED, FROZEN, "erika"];
const LOGS_OUT: &str = "boris";
const KILLED: &str = "carla";
const FROZEN: &str = "dmitri";
/// The collection of the locks.
const LOCKS: &str = "item_locks";
const ITEMS: &str = "items";
/// How many edits an item needs.
const EDITS: usize = 4;

/// Runs the sessions until all items are done, and compares.
async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let server = Database::open(given.text("mongodb"), "workitems").await?;
    let database = server.place.open().await?;
    let items: Collection<Item> = database.collection(ITEMS);
    let count = given.number("items");
    items.insert_many((1..=count).map(|n| Item { id: format!("item {n:02}"), edits: Vec::new() })).await?;
    let locks = MongoProvider::builder(database.clone()).collection(LOCKS).owner("supervisor").build()?;
    locks.prepare().await?;

    let (locked, fenced) = (!given.flag("no-lock"), !given.flag("no-fence"));
    let how = match (locked, fenced) {
        (false, _) => "WITHOUT any lock",
        (true, false) => "with locks, but WITHOUT a fence",
        (true, true) => "with locks and a fence",
    };
    println!("{} sessions edit {count} items, {how}.\n", SESSIONS.len());
    let mut children = Children::new(&interrupt)?;
    for name in SESSIONS {
        children.start(name, &Part { place: server.place.clone(), locked, fenced }).await?;
    }
    let mut journal = Journal::default();
    while let Some((session, report)) = children.next().await? {
        journal.record(&mut children, &locks, &session, report).await?;
    }
    let found: Vec<Item> = items.find(Default::default()).await?.try_collect().await?;
    println!();
    let checks = journal.compare(&found, !interrupt.is_pressed());
    children.stop().await?;
    close_all(database.client().clone(), [locks.close()]).await?;
    server.close().await?;
    Ok(checks.conclude("no edit was lost, and the late saves were refused"))
}

/// What the sessions have reported.
#[derive(Default)]
struct Journal {
    /// The item of each confirmed edit.
    saved: BTreeMap<String, String>,
    refused: u64,
    /// How many locks were released at each early end of a session.
    freed: Vec<u64>,
    /// The items of sessions that were ended, with the session and when.
    orphans: HashMap<String, (String, Instant)>,
    waits: Vec<Duration>,
    /// What the frozen session has checked out, and no other session has saved since.
    asleep: Vec<String>,
}

impl Journal {
    async fn record(
        &mut self,
        children: &mut Children<Report>,
        locks: &MongoProvider,
        session: &str,
        report: Report,
    ) -> Result<(), Failure> {
        let clock = children.clock;
        match report {
            Report::CheckedOut(item) => {
                if self.orphans.get(&item).is_some_and(|(of, _)| of != session)
                    && let Some((_, since)) = self.orphans.remove(&item)
                {
                    self.waits.push(since.elapsed());
                    let wait = millis(Some(since.elapsed()));
                    clock.say(&format!("{session} has {item}, {wait} after its last session was ended"));
                }
            }
            Report::Saved(item, edit) => {
                clock.say(&format!("{session} saves {item}"));
                self.asleep.retain(|other| *other != item);
                self.saved.insert(edit, item);
                if self.asleep.is_empty() {
                    children.wake().await?;
                }
            }
            Report::Refused { item, token, newest } => {
                clock.say(&format!("{session} saves {item} late: REFUSED, token {token} < {newest}"));
                self.refused += 1;
            }
            Report::LoggedOut { freed } => {
                clock.say(&format!("{session} logs out: {freed} items are free"));
                self.freed.push(freed);
            }
            Report::Lingers(_) if children.is_stopping() => {}
            Report::Lingers(items) => {
                let (how, why) = match session {
                    KILLED => {
                        children.kill(session).await?;
                        ("is KILLED", "connection lost")
                    }
                    _ => {
                        children.put_to_sleep(session, "saves")?;
                        self.asleep.clone_from(&items);
                        ("FALLS ASLEEP", "no sign of life")
                    }
                };
                clock.say(&format!("{session} {how} with {} checked out", items.join(" and ")));
                // Releases all that the session still holds, for others.
                let admin = locks.admin().ok_or("no administration")?;
                let held: Vec<_> = admin.list(ListOptions::new().owner(session)).try_collect().await?;
                let freed = admin.release_owner(session, why).await?;
                let left = held.iter().map(|lock| lock.remaining).max().unwrap_or_default().as_secs();
                clock.say(&format!("the session of {session} is ended: {freed} items are free, {left} s early"));
                self.freed.push(freed);
                let now = Instant::now();
                self.orphans.extend(items.into_iter().map(|item| (item, (session.to_owned(), now))));
            }
        }
        Ok(())
    }

    /// Compares the saves that were confirmed to the sessions with the items: prints the sums, and
    /// checks the promises. An edit of the killed session may be there without being confirmed.
    fn compare(&self, items: &[Item], is_complete: bool) -> Checks {
        let edits = |item: &Item| item.edits.iter().map(|edit| (edit.clone(), item.id.clone())).collect::<Vec<_>>();
        let found: Vec<(String, String)> = items.iter().flat_map(edits).collect();
        let distinct: BTreeMap<&String, &String> = found.iter().map(|(edit, item)| (edit, item)).collect();
        let lost = self.saved.iter().filter(|(edit, item)| distinct.get(edit) != Some(item)).count();
        let is_known = |edit: &&&String| self.saved.contains_key(**edit) || edit.starts_with(KILLED);
        let odd = found.len() - distinct.keys().filter(is_known).count();
        let undone = items.iter().filter(|item| item.edits.len() != EDITS).count();
        let mut checks = Checks::new(is_complete);
        checks.show("items", format_args!("{}, each to be edited {EDITS} times", items.len()));
        checks.at_the_end(undone == 0 && !items.is_empty(), format!("{undone} items have another number of edits"));
        checks.show("edits", format_args!("{} confirmed, {} in the items", self.saved.len(), found.len()));
        checks.none("lost edits", lost, "edits were lost");
        checks.none("twice", odd, "edits are there twice, or unconfirmed");
        checks.show("late saves", format_args!("{} refused", self.refused));
        checks.at_the_end(self.refused > 0, "no late save was refused");
        let freed = self.freed.iter().sum::<u64>();
        checks.show("sessions", format_args!("{} ended early, {freed} items released", self.freed.len()));
        let all_released = self.freed.len() == 3 && self.freed.iter().all(|freed| *freed > 0);
        checks.at_the_end(all_released, "an ended session released nothing");
        let (longest, ttl) = (self.waits.iter().max().copied(), LeaseOptions::DEFAULT_TTL);
        checks.show("next holder", format_args!("after {}, with leases of {} s", millis(longest), ttl.as_secs()));
        let was_soon = longest.is_some_and(|longest| longest < ttl / 2);
        checks.at_the_end(was_soon, "the items of a dead session did not soon have another holder");
        checks
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
