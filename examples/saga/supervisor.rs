//! Who starts the workers, kills one and puts another one to sleep.

use std::collections::BTreeSet;

use distlock_examples::{Children, Database, Failure, Said, verdict};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;
use tokio::time::Instant;

use crate::verdict::Journal;
use crate::worker::{Order, Report, Setting, State};
use crate::{Arguments, EFFECTS, ORDERS};

const WORKERS: [&str; 4] = ["A", "B", KILLED, FROZEN];
const KILLED: &str = "C";
const FROZEN: &str = "D";

/// Runs the workers until all orders are shipped, and counts.
pub(crate) async fn show(arguments: &Arguments) -> Result<bool, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "saga").await?;
    let client = Database::client(database.uri()).await?;
    let app = client.database(database.name());
    let orders: Collection<Order> = app.collection(ORDERS);
    let fresh = |id| Order { id, state: State::Reserved, log: Vec::new() };
    orders.insert_many((1..=arguments.orders).map(fresh)).await?;

    let mut children = Children::none();
    for name in WORKERS {
        let setting = Setting {
            name: name.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            locked: arguments.locked,
            stops: [KILLED, FROZEN].contains(&name),
        };
        children.start(name, &setting).await?;
    }
    let how = if arguments.locked { "locked in place" } else { "WITHOUT any lock" };
    println!("{} workers take {} orders through 3 steps each, {how}.\n", WORKERS.len(), arguments.orders);

    let mut stage = Stage { children, start: Instant::now(), journal: Journal::default(), asleep: None };
    let mut running: BTreeSet<&str> = WORKERS.into_iter().collect();
    while !running.is_empty() {
        match stage.children.next().await? {
            (name, Said::Ended) => {
                running.remove(&*name);
                // Without locks others may have been done with its order before it fell asleep.
                if running.len() == 1 {
                    stage.wake().await?;
                }
            }
            (name, Said::Report(report)) => stage.hear(&name, report).await?,
        }
    }
    let found: Vec<Order> = orders.find(doc! {}).await?.try_collect().await?;
    let effects: Vec<Document> = app.collection(EFFECTS).find(doc! {}).await?.try_collect().await?;
    println!();
    let complaints = stage.journal.compare(&found, &effects);
    stage.children.stop().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(verdict(&complaints))
}

struct Stage {
    children: Children<Report>,
    start: Instant,
    journal: Journal,
    /// The order that the frozen worker has locked.
    asleep: Option<i64>,
}

impl Stage {
    async fn hear(&mut self, who: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::Committed { order, state, entry } => {
                let after = self.journal.committed(order, state, entry);
                let after = after
                    .map_or(String::new(), |wait| format!(", {:.1} s after its worker stopped", wait.as_secs_f64()));
                self.say(&format!("order {order:>2} is {state:?} by {who}{after}"));
                if self.asleep == Some(order) {
                    self.wake().await?;
                }
            }
            Report::AlreadyLost { order, state } => {
                self.say(&format!(
                    "order {order:>2} is NOT {state:?} by {who}: its lock is lost, and the order as it was"
                ));
                self.journal.refused += 1;
            }
            Report::Stops { order, state } => {
                self.journal.stopped(order);
                if who == KILLED {
                    self.children.kill(who).await?;
                    self.say(&format!("order {order:>2} would be {state:?}, but {who} is KILLED"));
                } else {
                    self.children.freeze(who, true).await?;
                    self.say(&format!("order {order:>2} would be {state:?}, but {who} FALLS ASLEEP"));
                    self.asleep = Some(order);
                }
            }
        }
        Ok(())
    }

    /// Wakes the sleeper, if there is one.
    async fn wake(&mut self) -> Result<(), Failure> {
        if self.asleep.take().is_some() {
            self.say(&format!("{FROZEN} WAKES UP, and commits"));
            self.children.tell(FROZEN, &()).await?;
            self.children.freeze(FROZEN, false).await?;
        }
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("{:8.3} s  {what}", self.start.elapsed().as_secs_f64());
    }
}
