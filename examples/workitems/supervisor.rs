//! The server that keeps the sessions, and ends those that are dead.

use std::collections::{BTreeMap, BTreeSet};

use distlock_api::{ListOptions, LockAdmin, LockProvider};
use distlock_examples::{Children, Database, Failure, Said, verdict};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Collection;
use futures_util::TryStreamExt;
use tokio::time::Instant;

use crate::session::{Habit, Item, Report, Setting};
use crate::verdict::Journal;
use crate::{Arguments, ITEMS, LOCKS};

const SESSIONS: [(&str, Habit); 5] = [
    ("anna", Habit::Diligent),
    ("boris", Habit::LogsOut),
    (KILLED, Habit::Lingers),
    (FROZEN, Habit::Lingers),
    ("erika", Habit::Diligent),
];
const KILLED: &str = "carla";
const FROZEN: &str = "dmitri";

/// Runs all sessions until all items are done, and counts.
pub(crate) async fn show(arguments: &Arguments) -> Result<bool, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "workitems").await?;
    let client = Database::client(database.uri()).await?;
    let items: Collection<Item> = client.database(database.name()).collection(ITEMS);
    items.insert_many((1..=arguments.items).map(|n| Item { id: format!("item {n:02}"), edits: Vec::new() })).await?;
    let locks =
        MongoProvider::builder(client.database(database.name())).collection(LOCKS).owner("supervisor").build()?;
    locks.prepare().await?;

    let mut children = Children::none();
    for (session, habit) in SESSIONS {
        let setting = Setting {
            session: session.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            locked: arguments.locked,
            fenced: arguments.fenced,
            habit,
        };
        children.start(session, &setting).await?;
    }
    let how = match (arguments.locked, arguments.fenced) {
        (false, _) => "WITHOUT any lock",
        (true, false) => "with locks, but WITHOUT a fence",
        (true, true) => "with locks and a fence",
    };
    println!("{} sessions edit {} items, {how}.\n", SESSIONS.len(), arguments.items);

    let mut office = Office { children, locks, start: Instant::now(), journal: Journal::default(), asleep: None };
    let mut running: BTreeSet<&str> = SESSIONS.into_iter().map(|(name, _)| name).collect();
    while !running.is_empty() {
        match office.children.next().await? {
            (name, Said::Ended) => {
                running.remove(&*name);
                // Without locks others may have been done with its items before it fell asleep.
                if running.len() == 1 {
                    office.wake().await?;
                }
            }
            (name, Said::Report(report)) => office.hear(&name, report).await?,
        }
    }
    let Office { children, locks, journal, .. } = office;
    let found: Vec<Item> = items.find(Default::default()).await?.try_collect().await?;
    println!();
    let complaints = journal.compare(&found, &[KILLED]);
    children.stop().await?;
    locks.close().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(verdict(&complaints))
}

struct Office {
    children: Children<Report>,
    locks: MongoProvider,
    start: Instant,
    journal: Journal,
    /// What the frozen session has checked out, and whether somebody else has saved it since.
    asleep: Option<BTreeMap<String, bool>>,
}

impl Office {
    async fn hear(&mut self, who: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::CheckedOut { item } => {
                if let Some(waited) = self.journal.taken(who, &item) {
                    self.say(&format!(
                        "{who} has {item}, {:.1} ms after its session was ended",
                        waited.as_secs_f64() * 1e3
                    ));
                }
            }
            Report::Saved { item, edit } => {
                self.say(&format!("{who} saves {item}"));
                self.journal.saved(item.clone(), edit);
                if let Some(items) = &mut self.asleep {
                    items.entry(item).and_modify(|saved| *saved = true);
                }
                if self.asleep.as_ref().is_some_and(|items| items.values().all(|saved| *saved)) {
                    self.wake().await?;
                }
            }
            Report::Refused { item, token, newest } => {
                self.say(&format!("{who} saves {item} late: REFUSED, its token {token} is older than {newest}"));
                self.journal.refused += 1;
            }
            Report::LoggedOut { freed } => {
                self.say(&format!("{who} logs out: {freed} items are free"));
                self.journal.freed.push(freed);
            }
            Report::Lingers { items } if who == KILLED => {
                self.children.kill(who).await?;
                self.say(&format!("{who} is KILLED with {} checked out", items.join(" and ")));
                self.end_session(who, "connection lost", &items).await?;
            }
            Report::Lingers { items } => {
                self.children.freeze(who, true).await?;
                self.say(&format!("{who} FALLS ASLEEP with {} checked out", items.join(" and ")));
                self.end_session(who, "no sign of life", &items).await?;
                self.asleep = Some(items.into_iter().map(|item| (item, false)).collect());
            }
        }
        Ok(())
    }

    /// Whatever the session still holds is given to others.
    async fn end_session(&mut self, session: &str, why: &str, items: &[String]) -> Result<(), Failure> {
        let admin: &dyn LockAdmin = self.locks.admin().ok_or("no administration")?;
        let held: Vec<_> = admin.list(ListOptions::new().owner(session)).try_collect().await?;
        let freed = admin.release_owner(session, why).await?;
        let left = held.iter().map(|lock| lock.remaining).max().unwrap_or_default();
        self.say(&format!(
            "the session of {session} is ended: {freed} items are free, {:.0} s early",
            left.as_secs_f64()
        ));
        self.journal.freed.push(freed);
        self.journal.ended(session, items);
        Ok(())
    }

    /// Wakes the sleeper, if there is one.
    async fn wake(&mut self) -> Result<(), Failure> {
        if self.asleep.take().is_some() {
            self.say(&format!("{FROZEN} WAKES UP, and knows nothing"));
            self.children.tell(FROZEN, &()).await?;
            self.children.freeze(FROZEN, false).await?;
        }
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("{:8.3} s  {what}", self.start.elapsed().as_secs_f64());
    }
}
