//! The server that starts the sessions, and ends those that are dead.

use std::collections::BTreeMap;

use distlock_api::{ListOptions, LockAdmin, LockProvider};
use distlock_examples::{Children, Database, Failure, Interrupt, Message, Outcome};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Collection;
use futures_util::TryStreamExt;
use tokio::time::Instant;

use crate::session::{Habit, Item, Part, Report};
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

/// Runs the sessions until all items are done, and compares.
pub(crate) async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "workitems").await?;
    let client = Database::client(database.uri()).await?;
    let items: Collection<Item> = client.database(database.name()).collection(ITEMS);
    items.insert_many((1..=arguments.items).map(|n| Item { id: format!("item {n:02}"), edits: Vec::new() })).await?;
    let locks =
        MongoProvider::builder(client.database(database.name())).collection(LOCKS).owner("supervisor").build()?;
    locks.prepare().await?;

    let interrupt = Interrupt::listen();
    let mut children = Children::new();
    for (session, habit) in SESSIONS {
        let part = Part {
            session: session.to_owned(),
            mongodb: database.uri().to_owned(),
            database: database.name().to_owned(),
            locked: arguments.locked,
            fenced: arguments.fenced,
            habit,
        };
        children.start(session, &part).await?;
    }
    let how = match (arguments.locked, arguments.fenced) {
        (false, _) => "WITHOUT any lock",
        (true, false) => "with locks, but WITHOUT a fence",
        (true, true) => "with locks and a fence",
    };
    println!("{} sessions edit {} items, {how}.\n", SESSIONS.len(), arguments.items);

    let mut supervisor =
        Supervisor { children, locks, start: Instant::now(), journal: Journal::default(), asleep: None };
    while let Some((name, message)) = supervisor.children.next_until(&interrupt).await? {
        match message {
            Message::Report(report) => supervisor.record(&name, report).await?,
            // Without locks, other sessions may have finished the items before this one fell
            // asleep.
            Message::Ended if supervisor.children.running() == 1 => supervisor.wake().await?,
            Message::Ended => {}
        }
    }
    let Supervisor { children, locks, journal, .. } = supervisor;
    let found: Vec<Item> = items.find(Default::default()).await?.try_collect().await?;
    println!();
    let checks = journal.compare(&found, &[KILLED], !interrupt.is_pressed());
    children.stop().await?;
    locks.close().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(checks.conclude("no edit was lost, and the late saves were refused"))
}

struct Supervisor {
    children: Children<Report>,
    locks: MongoProvider,
    start: Instant,
    journal: Journal,
    /// What the frozen session has checked out, and whether another session has saved it since.
    asleep: Option<BTreeMap<String, bool>>,
}

impl Supervisor {
    async fn record(&mut self, session: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::CheckedOut { item } => {
                if let Some(waited) = self.journal.taken(session, &item) {
                    self.print(&format!(
                        "{session} has {item}, {:.1} ms after its last session was ended",
                        waited.as_secs_f64() * 1e3
                    ));
                }
            }
            Report::Saved { item, edit } => {
                self.print(&format!("{session} saves {item}"));
                self.journal.saved(item.clone(), edit);
                if let Some(items) = &mut self.asleep {
                    items.entry(item).and_modify(|saved| *saved = true);
                }
                if self.asleep.as_ref().is_some_and(|items| items.values().all(|saved| *saved)) {
                    self.wake().await?;
                }
            }
            Report::Refused { item, token, newest } => {
                self.print(&format!("{session} saves {item} late: REFUSED, token {token} < {newest}"));
                self.journal.refused += 1;
            }
            Report::LoggedOut { freed } => {
                self.print(&format!("{session} logs out: {freed} items are free"));
                self.journal.freed.push(freed);
            }
            Report::Lingers { .. } if self.children.is_stopping() => {}
            Report::Lingers { items } if session == KILLED => {
                self.children.kill(session).await?;
                self.print(&format!("{session} is KILLED with {} checked out", items.join(" and ")));
                self.end_session(session, "connection lost", &items).await?;
            }
            Report::Lingers { items } => {
                self.children.freeze(session, true)?;
                self.print(&format!("{session} FALLS ASLEEP with {} checked out", items.join(" and ")));
                self.end_session(session, "no sign of life", &items).await?;
                self.asleep = Some(items.into_iter().map(|item| (item, false)).collect());
            }
        }
        Ok(())
    }

    /// Releases all that the session still holds, for others.
    async fn end_session(&mut self, session: &str, why: &str, items: &[String]) -> Result<(), Failure> {
        let admin: &dyn LockAdmin = self.locks.admin().ok_or("no administration")?;
        let held: Vec<_> = admin.list(ListOptions::new().owner(session)).try_collect().await?;
        let freed = admin.release_owner(session, why).await?;
        let left = held.iter().map(|lock| lock.remaining).max().unwrap_or_default();
        self.print(&format!(
            "the session of {session} is ended: {freed} items are free, {:.0} s early",
            left.as_secs_f64()
        ));
        self.journal.freed.push(freed);
        self.journal.ended(session, items);
        Ok(())
    }

    /// Wakes the sleeper, if there is one.
    async fn wake(&mut self) -> Result<(), Failure> {
        if self.asleep.take().is_none() || self.children.is_stopping() {
            return Ok(());
        }
        self.print(&format!("{FROZEN} WAKES UP, and saves"));
        self.children.send(FROZEN, &()).await?;
        self.children.freeze(FROZEN, false)
    }

    fn print(&self, what: &str) {
        println!("{:8.3} s  {what}", self.start.elapsed().as_secs_f64());
    }
}
