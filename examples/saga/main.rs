//! A saga whose state is a document that is locked, changed and released in place. Orders go from
//! *reserved* to *paid*, *packed* and *shipped*, one step at a time, each by the first free worker.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin saga
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

mod worker;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use distlock_examples::{
    Checks, Children, Database, Failure, Given, Interrupt, MONGODB, Opt, Outcome, Program, shut_down,
};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::worker::{Order, Part, Report, State, play};

const PROGRAM: Program = Program {
    name: "saga",
    about: "Workers take orders through steps. One is killed, and one wakes up late.",
    options: &[
        MONGODB,
        Opt::number("orders", 20, 12..=1000, "how many orders"),
        // Short, so that the orders of a dead worker soon continue. A real service would keep 30 s.
        // On a busy machine, a worker cannot always renew a short lease in time.
        Opt::number("lease", 2, 1..=30, "seconds of a lease"),
        Opt::flag("no-lock", "without locks: counts the steps that are done twice"),
    ],
};

const WORKERS: [&str; 4] = ["A", "B", KILLED, FROZEN];
const KILLED: &str = "C";
const FROZEN: &str = "D";
const ORDERS: &str = "orders";
/// The collection of the effects outside, by their keys.
const EFFECTS: &str = "effects";

/// Runs the workers until all orders are shipped, and compares.
async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let server = Database::open(given.text("mongodb"), "saga").await?;
    let database = server.place.open().await?;
    let orders: Collection<Order> = database.collection(ORDERS);
    let count = i64::try_from(given.number("orders"))?;
    orders.insert_many((1..=count).map(|id| Order { id, state: State::Reserved, log: Vec::new() })).await?;

    let (locked, lease) = (!given.flag("no-lock"), Duration::from_secs(given.number("lease")));
    let how = if locked { "locked in place" } else { "WITHOUT any lock" };
    println!("{} workers take {count} orders through 3 steps each, {how}.\n", WORKERS.len());
    let mut children = Children::new(&interrupt)?;
    for name in WORKERS {
        let (place, stops) = (server.place.clone(), [KILLED, FROZEN].contains(&name));
        children.start(name, &Part { place, locked, lease, stops }).await?;
    }
    let mut journal = Journal::default();
    while let Some((worker, report)) = children.next().await? {
        journal.record(&mut children, &worker, report).await?;
    }
    let found: Vec<Order> = orders.find(doc! {}).await?.try_collect().await?;
    let effects: Vec<Document> = database.collection(EFFECTS).find(doc! {}).await?.try_collect().await?;
    println!();
    let checks = journal.compare(&found, &effects, lease, !interrupt.is_pressed());
    children.stop().await?;
    shut_down(database).await;
    server.close().await?;
    Ok(checks.conclude("each step was done once, and the late commit was refused"))
}

/// What the workers have reported.
#[derive(Default)]
struct Journal {
    /// The commits of each step of each order. With more than one, the step was done twice.
    committed: BTreeMap<(i64, State), Vec<String>>,
    /// How many commits came too late.
    refused: usize,
    /// The orders whose workers have stopped, and when.
    stopped: HashMap<i64, Instant>,
    interrupted: usize,
    recoveries: Vec<Duration>,
    /// The order that the frozen worker has locked.
    asleep: Option<i64>,
}

impl Journal {
    async fn record(&mut self, children: &mut Children<Report>, worker: &str, report: Report) -> Result<(), Failure> {
        let clock = children.clock;
        match report {
            Report::Committed(order, state, entry) => {
                self.committed.entry((order, state)).or_default().push(entry);
                let recovery = self.stopped.remove(&order).map(|since| since.elapsed());
                let after = recovery.map(|it| format!(", {:.1} s after its worker stopped", it.as_secs_f64()));
                self.recoveries.extend(recovery);
                clock.say(&format!("order {order:>2} is {state:?} by {worker}{}", after.unwrap_or_default()));
                if self.asleep == Some(order) {
                    children.wake().await?;
                }
            }
            Report::AlreadyLost(order, state) => {
                let why = "its lock is lost, the order is unchanged";
                clock.say(&format!("order {order:>2} is NOT {state:?} by {worker}: {why}"));
                self.refused += 1;
            }
            Report::Stops(order, state) => {
                self.stopped.insert(order, Instant::now());
                self.interrupted += 1;
                let end = match worker {
                    _ if children.is_stopping() => return Ok(()),
                    KILLED => {
                        children.kill(worker).await?;
                        "is KILLED"
                    }
                    _ => {
                        children.put_to_sleep(worker, "commits")?;
                        self.asleep = Some(order);
                        "FALLS ASLEEP"
                    }
                };
                clock.say(&format!("order {order:>2} would be {state:?}, but {worker} {end}"));
            }
        }
        Ok(())
    }

    /// Compares the commits that were confirmed to the workers with the orders: prints the sums,
    /// and checks the promises.
    fn compare(&self, orders: &[Order], effects: &[Document], lease: Duration, is_complete: bool) -> Checks {
        let logs: HashMap<i64, &[String]> = orders.iter().map(|order| (order.id, &*order.log)).collect();
        let entries =
            self.committed.iter().flat_map(|((order, _), entries)| entries.iter().map(|entry| (*order, entry)));
        let lost = entries.filter(|(order, entry)| !logs.get(order).is_some_and(|log| log.contains(entry))).count();
        let twice = self.committed.values().filter(|entries| entries.len() > 1).count();
        let whole = |order: &&Order| {
            let done = order.log.iter().map(|entry| entry.split(' ').next().unwrap_or_default().to_owned());
            order.state == State::Shipped && done.eq(State::STEPS.map(|state| format!("{state:?}")))
        };
        let odd = orders.len() - orders.iter().filter(whole).count();
        let repeated = effects.iter().filter(|effect| effect.get_i32("times").is_ok_and(|times| times > 1)).count();
        let mut checks = Checks::new(is_complete);
        checks.show("orders", orders.len());
        checks.at_the_end(odd == 0 && !orders.is_empty(), format!("{odd} orders went another way"));
        checks.show("steps", format_args!("{} confirmed", self.committed.values().map(Vec::len).sum::<usize>()));
        checks.none("done twice", twice, "steps were done twice");
        checks.none("lost steps", lost, "steps were lost");
        checks.show("late commits", format_args!("{} refused", self.refused));
        checks.at_the_end(self.refused == 1, format!("{} late commits were refused, not 1", self.refused));
        checks.show("effects", format_args!("{}, {repeated} repeated, and recognised by their keys", effects.len()));
        checks.always(repeated <= self.interrupted, format!("{repeated} effects were repeated"));
        checks.at_the_end(self.interrupted == 2, "no worker was killed, or none fell asleep");
        let longest = self.recoveries.iter().max().copied();
        checks.soon("recovery", longest, lease, "the orders of the stopped workers did not soon continue");
        checks
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
