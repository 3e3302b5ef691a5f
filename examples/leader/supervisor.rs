//! Starts the candidates, kills one leader, freezes the next, and has the third one resign.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::LockProviderExt;
use distlock_examples::{Children, Database, Failure, Interrupt, Message, Outcome, print_event};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::bson::{Document, doc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::verdict::{Ended, Journal};
use crate::worker::{Order, Part, Report};
use crate::{Arguments, KEY, REGISTER, REGISTERS};

const CANDIDATES: [&str; 3] = ["A", "B", "C"];
/// Takes the place of the one that is killed.
const SUBSTITUTE: &str = "D";
/// How long the observer may be behind at the end.
const OBSERVER_LIMIT: Duration = Duration::from_secs(10);

/// Runs the candidates through all changes of the leader, and compares.
pub(crate) async fn show(arguments: Arguments) -> Result<Outcome, Failure> {
    let database = Database::open(arguments.mongodb.as_deref(), "leader").await?;
    let client = Database::client(database.uri()).await?;
    let app = client.database(database.name());
    let start = Instant::now();
    let observer = Observer::start(MongoProvider::builder(app.clone()).build()?, start);

    let interrupt = Interrupt::listen();
    let part = |name: &str| Part {
        name: name.to_owned(),
        mongodb: database.uri().to_owned(),
        database: database.name().to_owned(),
        fenced: arguments.fenced,
        lease: arguments.lease,
    };
    let how = if arguments.fenced { "checks the term" } else { "does NOT check the term" };
    println!("{} processes campaign, and the leader writes to a register that {how}.\n", CANDIDATES.len());
    let mut children = Children::new();
    for name in CANDIDATES {
        children.start(name, &part(name)).await?;
    }
    let mut supervisor = Supervisor { children, start, journal: Journal::default(), asleep: None, is_ordered: false };
    while let Some((name, message)) = supervisor.children.next_until(&interrupt).await? {
        if let Message::Report(report) = message {
            supervisor.record(&name, report).await?;
            if supervisor.journal.writes() >= arguments.writes && !supervisor.children.is_stopping() {
                let was_killed = supervisor.next_act().await?;
                if was_killed {
                    supervisor.children.start(SUBSTITUTE, &part(SUBSTITUTE)).await?;
                }
            }
        }
    }
    let register: Option<Document> = app.collection(REGISTERS).find_one(doc! { "_id": REGISTER }).await?;
    let observed = observer.end(&supervisor.journal.leaders()).await;
    println!();
    let is_complete = !interrupt.is_pressed();
    let checks = supervisor.journal.compare(register.as_ref(), &observed, arguments.lease, is_complete)?;
    supervisor.children.stop().await?;
    client.shutdown().await;
    database.close().await?;
    Ok(checks.conclude("one leader at a time, terms only grew, the late write was refused"))
}

struct Supervisor {
    children: Children<Report>,
    start: Instant,
    journal: Journal,
    asleep: Option<String>,
    /// Whether the present leader has been ordered to stop, and has not yet.
    is_ordered: bool,
}

impl Supervisor {
    async fn record(&mut self, name: &str, report: Report) -> Result<(), Failure> {
        match report {
            Report::Leads { term } => {
                let after = self.journal.leads(name, term);
                let after = after.map_or(String::new(), |after| format!(", {:.3} s later", after.as_secs_f64()));
                print_event(self.start, &format!("{name} leads in term {term}{after}"));
            }
            Report::Wrote { term } => {
                if self.journal.wrote(term) {
                    print_event(self.start, &format!("{name} writes in term {term}, which is over: ACCEPTED"));
                }
            }
            Report::Refused { term, newest } => {
                self.journal.refused += 1;
                print_event(
                    self.start,
                    &format!("{name} writes in term {term}, which is over: REFUSED (seen {newest})"),
                );
            }
            Report::Stops { .. } if self.children.is_stopping() => {}
            Report::Stops { term } => {
                self.children.freeze(name, true)?;
                self.asleep = Some(name.to_owned());
                self.end(Ended::Asleep);
                print_event(self.start, &format!("{name} FALLS ASLEEP before a write in term {term}"));
            }
            Report::Resigned => print_event(self.start, &format!("{name} has ended")),
        }
        Ok(())
    }

    fn end(&mut self, how: Ended) {
        self.is_ordered = false;
        self.journal.ended(how);
    }

    /// Ends the present term in the next way. Returns whether the leader was killed.
    async fn next_act(&mut self) -> Result<bool, Failure> {
        let Some(leader) = self.journal.leader() else { return Ok(false) };
        if self.is_ordered {
            return Ok(false);
        }
        match self.journal.acts() {
            0 => {
                self.children.kill(&leader).await?;
                self.end(Ended::Killed);
                print_event(self.start, &format!("{leader} is KILLED"));
                return Ok(true);
            }
            1 => {
                self.is_ordered = true;
                self.children.send(&leader, &Order::Stop).await?;
            }
            2 if self.asleep.is_some() => {
                let sleeper = self.asleep.take().expect("checked");
                print_event(self.start, &format!("{sleeper} WAKES UP, and writes"));
                self.children.send(&sleeper, &Order::Stop).await?;
                self.children.freeze(&sleeper, false)?;
            }
            // Not before the late write has its answer.
            2 if self.journal.late_writes() == 0 => {}
            2 => {
                self.children.send(&leader, &Order::Resign).await?;
                self.end(Ended::Resigned);
                print_event(self.start, &format!("{leader} is to RESIGN"));
            }
            _ => self.children.begin_stop()?,
        }
        Ok(false)
    }
}

/// What an observer has seen: each leader's name, and the last token that it may use.
pub(crate) type Observed = Vec<(String, u64)>;

struct Observer {
    seen: Arc<Mutex<Observed>>,
    task: JoinHandle<()>,
}

impl Observer {
    fn start(locks: MongoProvider, start: Instant) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut observer = locks.observe(KEY).expect("MongoDB has an administration");
            loop {
                match observer.changed().await {
                    Ok(Some(leader)) => {
                        let owner = leader.owner.unwrap_or_default();
                        print_event(start, &format!("          observed: {owner}"));
                        noted.lock().expect("not poisoned").push((owner, leader.last_term.get()));
                    }
                    Ok(None) => print_event(start, "          observed: no leader"),
                    Err(error) => print_event(start, &format!("          observed: unknown, {error}")),
                }
            }
        });
        Self { seen, task }
    }

    /// Waits until all leaders were seen, and ends.
    async fn end(self, leaders: &[String]) -> Observed {
        let begin = Instant::now();
        while self.seen.lock().expect("not poisoned").len() < leaders.len() && begin.elapsed() < OBSERVER_LIMIT {
            sleep(Duration::from_millis(20)).await;
        }
        self.task.abort();
        let _ = self.task.await;
        self.seen.lock().expect("not poisoned").clone()
    }
}
