//! The server that starts the sessions, and ends those that are dead.

use std::collections::BTreeMap;

use distlock_api::{ListOptions, LockAdmin, LockProvider};
use distlock_examples::{Children, Database, Failure, Interrupt, Outcome, Supervision};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Collection;
use futures_util::TryStreamExt;

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
        Supervisor { supervision: Supervision::new(children), locks, journal: Journal::default(), asleep: None };
    while let Some((name, report)) = supervisor.supervision.next_report(&interrupt).await? {
        supervisor.record(&name, report).await?;
    }
    let Supervisor { supervision, locks, journal, .. } = supervisor;
    let found: Vec<Item> = items.find(Default::default()).await?.try_collect().await?;
    println!();
    let checks = journal.compare(&found, &[KILLED], !interrupt.is_pressed());
    supervision.children.stop().await?;
    locks.close().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(checks.conclude("no edit was lost, and the late saves were refused"))
}

struct Supervisor {
    supervision: Supervision<Report>,
    locks: MongoProvider,
    journal: Journal,
    /// What the frozen session has checked out, and whether another session has saved it since.
    asleep: Option<BTreeMap<String, bool>>,
}

impl Supervisor {
    async fn record(&mut self, session: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::CheckedOut { item } => {
                if let Some(waited) = self.journal.taken(session, &item) {
                    self.supervision.print(&format!(
                        "{session} has {item}, {:.1} ms after its last session was ended",
                        waited.as_secs_f64() * 1e3
                    ));
                }
            }
            Report::Saved { item, edit } => {
                self.supervision.print(&format!("{session} saves {item}"));
                self.journal.saved(item.clone(), edit);
                if let Some(items) = &mut self.asleep {
                    items.entry(item).and_modify(|saved| *saved = true);
                }
                if self.asleep.as_ref().is_some_and(|items| items.values().all(|saved| *saved)) {
                    self.supervision.wake().await?;
                }
            }
            Report::Refused { item, token, newest } => {
                self.supervision.print(&format!("{session} saves {item} late: REFUSED, token {token} < {newest}"));
                self.journal.refused += 1;
            }
            Report::LoggedOut { freed } => {
                self.supervision.print(&format!("{session} logs out: {freed} items are free"));
                self.journal.freed.push(freed);
            }
            Report::Lingers { .. } if self.supervision.children.is_stopping() => {}
            Report::Lingers { items } if session == KILLED => {
                self.supervision.children.kill(session).await?;
                self.supervision.print(&format!("{session} is KILLED with {} checked out", items.join(" and ")));
                self.end_session(session, "connection lost", &items).await?;
            }
            Report::Lingers { items } => {
                self.supervision.put_to_sleep(session, "saves")?;
                self.supervision.print(&format!("{session} FALLS ASLEEP with {} checked out", items.join(" and ")));
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
        self.supervision.print(&format!(
            "the session of {session} is ended: {freed} items are free, {:.0} s early",
            left.as_secs_f64()
        ));
        self.journal.freed.push(freed);
        self.journal.ended(session, items);
        Ok(())
    }
}
