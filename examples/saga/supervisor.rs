//! Starts the workers, kills one and freezes another.

use distlock_examples::{Children, Database, Failure, Interrupt, Outcome, Supervision};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::verdict::Journal;
use crate::worker::{Order, Part, Report, State};
use crate::{Arguments, EFFECTS, ORDERS};

const WORKERS: [&str; 4] = ["A", "B", KILLED, FROZEN];
const KILLED: &str = "C";
const FROZEN: &str = "D";

/// Runs the workers until all orders are shipped, and compares.
pub(crate) async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "saga").await?;
    let client = Database::client(database.uri()).await?;
    let app = client.database(database.name());
    let orders: Collection<Order> = app.collection(ORDERS);
    let fresh = |id| Order { id, state: State::Reserved, log: Vec::new() };
    orders.insert_many((1..=arguments.orders).map(fresh)).await?;

    let interrupt = Interrupt::listen();
    let mut children = Children::new();
    for name in WORKERS {
        let part = Part {
            name: name.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            locked: arguments.locked,
            lease: arguments.lease,
            stops: [KILLED, FROZEN].contains(&name),
        };
        children.start(name, &part).await?;
    }
    let how = if arguments.locked { "locked in place" } else { "WITHOUT any lock" };
    println!("{} workers take {} orders through 3 steps each, {how}.\n", WORKERS.len(), arguments.orders);

    let mut supervisor =
        Supervisor { supervision: Supervision::new(children), journal: Journal::default(), asleep: None };
    while let Some((name, report)) = supervisor.supervision.next_report(&interrupt).await? {
        supervisor.record(&name, report).await?;
    }
    let found: Vec<Order> = orders.find(doc! {}).await?.try_collect().await?;
    let effects: Vec<Document> = app.collection(EFFECTS).find(doc! {}).await?.try_collect().await?;
    println!();
    let checks = supervisor.journal.compare(&found, &effects, arguments.lease, !interrupt.is_pressed());
    supervisor.supervision.children.stop().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(checks.conclude("each step was done once, and the late commit was refused"))
}

struct Supervisor {
    supervision: Supervision<Report>,
    journal: Journal,
    /// The order that the frozen worker has locked.
    asleep: Option<i64>,
}

impl Supervisor {
    async fn record(&mut self, worker: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::Committed { order, state, entry } => {
                let after = self.journal.committed(order, state, entry);
                let after = after
                    .map_or(String::new(), |wait| format!(", {:.1} s after its worker stopped", wait.as_secs_f64()));
                self.supervision.print(&format!("order {order:>2} is {state:?} by {worker}{after}"));
                if self.asleep == Some(order) {
                    self.supervision.wake().await?;
                }
            }
            Report::AlreadyLost { order, state } => {
                self.supervision.print(&format!(
                    "order {order:>2} is NOT {state:?} by {worker}: its lock is lost, the order is unchanged"
                ));
                self.journal.refused += 1;
            }
            Report::Stops { order, .. } if self.supervision.children.is_stopping() => self.journal.stopped(order),
            Report::Stops { order, state } => {
                self.journal.stopped(order);
                if worker == KILLED {
                    self.supervision.children.kill(worker).await?;
                    self.supervision.print(&format!("order {order:>2} would be {state:?}, but {worker} is KILLED"));
                } else {
                    self.supervision.put_to_sleep(worker, "commits")?;
                    self.supervision.print(&format!("order {order:>2} would be {state:?}, but {worker} FALLS ASLEEP"));
                    self.asleep = Some(order);
                }
            }
        }
        Ok(())
    }
}
