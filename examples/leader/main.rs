//! One leader among three processes. The leader writes; it is killed, it falls asleep, it resigns,
//! and each time another process takes over.
//!
//! ```text
//! # on a replica set that is found or started for the run, or `-- --mongodb URI`:
//! cargo run -p distlock-examples --features mongodb --bin leader
//! # without the check of the term, to see the late write of a leader of the past:
//! cargo run -p distlock-examples --features mongodb --bin leader -- --no-fence
//! ```
//!
//! # What it shows
//! Each candidate is an OS process. The one that leads adds lines to a register, a document, each
//! under its term. An observer in the parent process prints who leads.
//!
//! The first leader is killed (SIGKILL). The second one falls asleep (SIGSTOP) before a write, for
//! longer than its lease, and sends the write when it wakes up: the register refuses it. The third
//! one resigns, and the next one leads at once. At the end the register is compared with what the
//! leaders have reported.

mod candidate;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use distlock_examples::{Checks, Children, Clock, Database, Failure, Given, Interrupt, MONGODB, Opt, Outcome, Program};
use distlock_examples::{millis, shut_down};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_recipes::lead::LeadExt;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::candidate::{Order, Part, Report, play};

const PROGRAM: Program = Program {
    name: "leader",
    about: "Three processes, one leader: it is killed, falls asleep, and resigns.",
    options: &[
        MONGODB,
        Opt::number("writes", 10, 3..=1000, "writes of each leader"),
        // Short, so that another process soon takes over. A real service would keep 30 s. On a
        // busy machine, a leader cannot always renew a short lease in time.
        Opt::number("lease", 2, 1..=30, "seconds of a lease"),
        Opt::flag("no-fence", "the register does not check the term: a late write is accepted"),
    ],
};

const CANDIDATES: [&str; 3] = ["A", "B", "C"];
/// Takes the place of the one that is killed.
const SUBSTITUTE: &str = "D";
/// The leadership.
const KEY: &str = "writer";
/// The collection of the register, and its `_id`.
const REGISTERS: &str = "registers";
const REGISTER: &str = "the register";
/// How long the observer may be behind at the end.
const OBSERVER_LIMIT: Duration = Duration::from_secs(10);

/// Runs the candidates through all changes of the leader, and compares.
async fn show(given: Given, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let server = Database::open(given.text("mongodb"), "leader").await?;
    let database = server.place.open().await?;
    let (fenced, lease) = (!given.flag("no-fence"), Duration::from_secs(given.number("lease")));
    let how = if fenced { "checks the term" } else { "does NOT check the term" };
    println!("{} processes campaign, and the leader writes to a register that {how}.\n", CANDIDATES.len());
    let mut children = Children::new(&interrupt)?;
    let (sender, mut observed) = watch::channel(Vec::new());
    let observer = MongoProvider::builder(database.clone()).build()?;
    let observer = tokio::spawn(observe(observer, children.clock, sender));
    let part = Part { place: server.place.clone(), fenced, lease };
    for name in CANDIDATES {
        children.start(name, &part).await?;
    }
    let (mut journal, writes) = (Journal::default(), given.number("writes"));
    while let Some((name, report)) = children.next().await? {
        journal.record(&mut children, &name, report)?;
        let is_due = journal.reigning().is_some_and(|reign| reign.writes >= writes);
        if is_due && !journal.is_ordered && !children.is_stopping() {
            let was_killed = journal.next_act(&mut children).await?;
            if was_killed {
                children.start(SUBSTITUTE, &part).await?;
            }
        }
    }
    // The observer may be a little late.
    let all_seen = observed.wait_for(|seen| seen.len() >= journal.reigns.len());
    let _ = timeout(OBSERVER_LIMIT, all_seen).await;
    observer.abort();
    let _ = observer.await;
    let register: Option<Document> = database.collection(REGISTERS).find_one(doc! { "_id": REGISTER }).await?;
    println!();
    let checks = journal.compare(register, &observed.borrow(), lease, !interrupt.is_pressed())?;
    children.stop().await?;
    shut_down(database).await;
    server.close().await?;
    Ok(checks.conclude("one leader at a time, terms only grew, the late write was refused"))
}

/// What an observer has seen: each leader's name, and the last token that it may use.
type Observed = Vec<(String, u64)>;

async fn observe(locks: MongoProvider, clock: Clock, seen: watch::Sender<Observed>) {
    let mut observer = locks.observe(KEY).expect("MongoDB has an administration");
    loop {
        match observer.changed().await {
            Ok(Some(leader)) => {
                let owner = leader.owner.unwrap_or_default();
                clock.say(&format!("          observed: {owner}"));
                seen.send_modify(|seen| seen.push((owner, leader.last_term.get())));
            }
            Ok(None) => clock.say("          observed: no leader"),
            Err(error) => clock.say(&format!("          observed: unknown, {error}")),
        }
    }
}

/// How a term ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Killed,
    Asleep,
    Resigned,
}

struct Reign {
    leader: String,
    term: i64,
    writes: u64,
    /// How long after the end of the term before.
    after: Option<Duration>,
    ended: Option<(Ended, Instant)>,
}

/// What the leaders have reported.
#[derive(Default)]
struct Journal {
    reigns: Vec<Reign>,
    /// How many late writes were refused, and accepted.
    refused: usize,
    accepted: usize,
    /// Whether the present leader has been ordered to stop, and has not yet.
    is_ordered: bool,
}

impl Journal {
    /// The present leader, if its term was not ended.
    fn reigning(&self) -> Option<&Reign> {
        self.reigns.last().filter(|reign| reign.ended.is_none())
    }

    fn end(&mut self, how: Ended) {
        self.is_ordered = false;
        if let Some(reign) = self.reigns.last_mut() {
            reign.ended = Some((how, Instant::now()));
        }
    }

    fn record(&mut self, children: &mut Children<Report>, name: &str, report: Report) -> Result<(), Failure> {
        let clock = children.clock;
        match report {
            Report::Leads(term) => {
                let before = self.reigns.last().and_then(|reign| reign.ended);
                let after = before.map(|(_, end)| end.elapsed());
                let later = after.map_or(String::new(), |after| format!(", {:.3} s later", after.as_secs_f64()));
                clock.say(&format!("{name} leads in term {term}{later}"));
                self.reigns.push(Reign { leader: name.to_owned(), term, writes: 0, after, ended: None });
            }
            Report::Wrote(term) => {
                let Some(reign) = self.reigns.iter_mut().find(|reign| reign.term == term) else { return Ok(()) };
                reign.writes += 1;
                if reign.ended.is_some_and(|(how, _)| how == Ended::Asleep) {
                    self.accepted += 1;
                    clock.say(&format!("{name} writes in term {term}, which is over: ACCEPTED"));
                }
            }
            Report::Refused(term, newest) => {
                self.refused += 1;
                clock.say(&format!("{name} writes in term {term}, which is over: REFUSED (seen {newest})"));
            }
            Report::Stops(_) if children.is_stopping() => {}
            Report::Stops(term) => {
                children.put_to_sleep(name, "writes")?;
                self.end(Ended::Asleep);
                clock.say(&format!("{name} FALLS ASLEEP before a write in term {term}"));
            }
            Report::Resigned => clock.say(&format!("{name} has ended")),
        }
        Ok(())
    }

    /// Ends the present term in the next way. Returns whether the leader was killed.
    async fn next_act(&mut self, children: &mut Children<Report>) -> Result<bool, Failure> {
        let Some(leader) = self.reigning().map(|reign| reign.leader.clone()) else { return Ok(false) };
        match self.reigns.len() {
            1 => {
                children.kill(&leader).await?;
                self.end(Ended::Killed);
                children.clock.say(&format!("{leader} is KILLED"));
                return Ok(true);
            }
            2 => {
                self.is_ordered = true;
                children.send(&leader, &Order::Stop).await?;
            }
            3 if children.has_sleeper() => children.wake().await?,
            // Not before the late write has its answer.
            3 if self.refused + self.accepted == 0 => {}
            3 => {
                children.send(&leader, &Order::Resign).await?;
                self.end(Ended::Resigned);
                children.clock.say(&format!("{leader} is to RESIGN"));
            }
            _ => children.begin_stop()?,
        }
        Ok(false)
    }

    /// Compares the register with what the leaders and the observer have reported: prints the sums,
    /// and checks the promises.
    fn compare(
        &self,
        register: Option<Document>,
        observed: &Observed,
        lease: Duration,
        is_complete: bool,
    ) -> Result<Checks, Failure> {
        let log = read(register)?;
        let overlaps = log.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
        let mut names: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        log.iter().for_each(|(term, by)| names.entry(*term).or_default().push(by));
        let shared = names.values().filter(|names| names.iter().any(|name| *name != names[0])).count();
        let in_log = |term| names.get(&term).map_or(0, |names| names.len() as u64);
        let lost = self.reigns.iter().filter(|reign| in_log(reign.term) < reign.writes).count();
        let leaders: Vec<&str> = self.reigns.iter().map(|reign| &*reign.leader).collect();
        let seen: Vec<&str> = observed.iter().map(|(owner, _)| &**owner).collect();
        let after = |how: Ended| {
            let is_it = |reign: &Reign| reign.ended.is_some_and(|(ended, _)| ended == how);
            self.reigns.windows(2).find(|pair| is_it(&pair[0])).and_then(|pair| pair[1].after)
        };
        let [killed, asleep, resigned] = [Ended::Killed, Ended::Asleep, Ended::Resigned].map(after);
        let mut checks = Checks::new(is_complete);
        checks.show("leaders", format_args!("{} ({})", leaders.len(), leaders.join(", ")));
        checks.at_the_end(leaders.len() >= 4, format!("{} leaders, not 4", leaders.len()));
        checks.show("observed", format_args!("{} ({})", seen.len(), seen.join(", ")));
        // At the end others lead for a moment, while one process after the other is stopped.
        checks.at_the_end(seen.starts_with(&leaders), "the observer has not seen each leader");
        checks.always(observed.is_sorted_by(|a, b| a.1 < b.1), "the observer has seen a leader again");
        checks.show("writes", format_args!("{} in the register", log.len()));
        checks.none("overlaps", overlaps, "writes came after one of a later term");
        checks.none("shared terms", shared, "terms had two leaders");
        checks.none("lost writes", lost, "terms have lost writes in the register");
        checks.always(self.reigns.is_sorted_by(|a, b| a.term < b.term), "the terms did not grow");
        checks.show("late writes", format_args!("{} refused, {} accepted", self.refused, self.accepted));
        checks.at_the_end(self.refused == 1, format!("{} late writes were refused, not 1", self.refused));
        // Ctrl-C wakes a sleeper before another one leads: its write is not late then.
        checks.at_the_end(self.accepted == 0, "a late write was accepted");
        checks.soon("after a kill", killed, lease, "the killed leader had no successor in time");
        checks.soon("after a sleep", asleep, lease, "the sleeping leader had no successor in time");
        checks.show("after resigning", millis(resigned));
        let at_once = resigned.is_some_and(|after| after <= lease / 2);
        checks.at_the_end(at_once, "the successor of the leader that resigned did not lead at once");
        Ok(checks)
    }
}

/// Returns the lines of the register: terms and names.
fn read(register: Option<Document>) -> Result<Vec<(i64, String)>, Failure> {
    let Some(register) = register else { return Ok(Vec::new()) };
    let line = |line: &Bson| {
        let line = line.as_document().ok_or("a line of the register is no document")?;
        Ok((line.get_i64("term")?, line.get_str("by")?.to_owned()))
    };
    register.get_array("log")?.iter().map(line).collect()
}

#[tokio::main]
async fn main() -> ExitCode {
    PROGRAM.run(show, play).await
}
