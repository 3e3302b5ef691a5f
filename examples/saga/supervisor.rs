//! Starts the workers, kills one and freezes another.

use distlock_examples::{Children, Database, Failure, Interrupt, Message, Outcome};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;
use tokio::time::Instant;

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

    let mut supervisor = Supervisor { children, start: Instant::now(), journal: Journal::default(), asleep: None };
    while let Some((name, message)) = supervisor.children.next_until(&interrupt).await? {
        match message {
            Message::Report(report) => supervisor.record(&name, report).await?,
            // Without locks, other workers may have shipped the order before this one fell asleep.
            Message::Ended if supervisor.children.running() == 1 => supervisor.wake().await?,
            Message::Ended => {}
        }
    }
    let found: Vec<Order> = orders.find(doc! {}).await?.try_collect().await?;
    let effects: Vec<Document> = app.collection(EFFECTS).find(doc! {}).await?.try_collect().await?;
    println!();
    let checks = supervisor.journal.compare(&found, &effects, arguments.lease, !interrupt.is_pressed());
    supervisor.children.stop().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(checks.conclude("each step was done once, and the late commit was refused"))
}

struct Supervisor {
    children: Children<Report>,
    start: Instant,
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
                self.print(&format!("order {order:>2} is {state:?} by {worker}{after}"));
                if self.asleep == Some(order) {
                    self.wake().await?;
                }
            }
            Report::AlreadyLost { order, state } => {
                self.print(&format!(
                    "order {order:>2} is NOT {state:?} by {worker}: its lock is lost, the order is unchanged"
                ));
                self.journal.refused += 1;
            }
            Report::Stops { order, .. } if self.children.is_stopping() => self.journal.stopped(order),
            Report::Stops { order, state } => {
                self.journal.stopped(order);
                if worker == KILLED {
                    self.children.kill(worker).await?;
                    self.print(&format!("order {order:>2} would be {state:?}, but {worker} is KILLED"));
                } else {
                    self.children.freeze(worker, true)?;
                    self.print(&format!("order {order:>2} would be {state:?}, but {worker} FALLS ASLEEP"));
                    self.asleep = Some(order);
                }
            }
        }
        Ok(())
    }

    /// Wakes the sleeper, if there is one.
    async fn wake(&mut self) -> Result<(), Failure> {
        if self.asleep.take().is_none() || self.children.is_stopping() {
            return Ok(());
        }
        self.print(&format!("{FROZEN} WAKES UP, and commits"));
        self.children.send(FROZEN, &()).await?;
        self.children.freeze(FROZEN, false)
    }

    fn print(&self, what: &str) {
        println!("{:8.3} s  {what}", self.start.elapsed().as_secs_f64());
    }
}
