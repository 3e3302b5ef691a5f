//! What the terminal shows: a line for each event, and at the end the holders.

use std::collections::HashMap;
use std::io::{IsTerminal, stdout};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use distlock_api::{FencedRegister, FencedWrite, FencingToken};
use distlock_examples::{Checks, Given, Outcome};
use serde::{Deserialize, Serialize};

use crate::{RESOURCES, SLEEPER};

/// The width of the picture of the holders.
const WIDTH: usize = 76;

/// Something that a worker did. The time is the machine's, so that the events of several processes
/// can be shown together. It serves the display alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    at: Duration,
    worker: String,
    resource: String,
    token: Option<u64>,
    happening: Happening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Happening {
    Acquired {
        waited: Duration,
    },
    GaveUp {
        waited: Duration,
    },
    /// With what is left of the lease.
    FellAsleep {
        lease: Duration,
    },
    Lost,
    Releasing,
    Wrote,
    Refused {
        newest: u64,
    },
}

impl Event {
    pub(crate) fn now(worker: &str, resource: &str, token: Option<u64>, happening: Happening) -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { at, worker: worker.to_owned(), resource: resource.to_owned(), token, happening }
    }

    /// What the terminal shows, and in which colour.
    fn line(&self) -> Option<(String, &'static str)> {
        Some(match self.happening {
            Happening::Acquired { waited } => (format!("waited {:>5} ms", waited.as_millis()), ""),
            Happening::GaveUp { waited } => (format!("gave up after {} ms", waited.as_millis()), "0"),
            Happening::FellAsleep { lease } => {
                (format!("falls asleep; its lease ends in {} ms", lease.as_millis()), "33")
            }
            Happening::Lost => ("its lease is over, and it does not know".to_owned(), "33"),
            Happening::Refused { newest } => (format!("writes late: REFUSED (seen {newest})"), "1;31"),
            Happening::Releasing | Happening::Wrote => return None,
        })
    }
}

/// The resources and the display, shared by all workers of this run.
#[derive(Clone)]
pub(crate) struct Hub(Arc<Mutex<State>>);

pub(crate) struct State {
    /// Each resource holds the name of the last writer, and refuses writers whose token is not the
    /// newest.
    resources: HashMap<String, FencedRegister<String>>,
    events: Vec<Event>,
    /// The width of a token: a small number in memory, a clock reading on MongoDB.
    digits: usize,
}

/// A worker held a resource from one time to another.
struct Hold<'a> {
    worker: &'a str,
    token: u64,
    from: Duration,
    to: Duration,
}

impl Hub {
    pub(crate) fn open(given: &Given, how: &str, digits: usize) -> Self {
        let (workers, seconds) = (given.number("workers"), given.number("seconds"));
        println!("{workers} workers share {} locks for {seconds} s, {how}.", RESOURCES.len());
        println!("{SLEEPER} will fall asleep with one of them, and its late write must be refused.\n");
        println!("       time    resource  worker  {:>digits$}  what happened\n", "token");
        Self(Arc::new(Mutex::new(State { resources: HashMap::new(), events: Vec::new(), digits })))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code in here panics")
    }
}

impl State {
    pub(crate) fn note(&mut self, event: Event) {
        if let Some((what, colour)) = event.line() {
            let seconds = event.at.saturating_sub(self.events.first().unwrap_or(&event).at).as_secs_f64();
            let token = event.token.map_or(String::new(), |token| token.to_string());
            let (mark, digits) = (if colour.is_empty() { ' ' } else { '!' }, self.digits);
            let (resource, worker) = (&event.resource, &event.worker);
            let line = format!("{mark}{seconds:8.3} s  {resource:<9} {worker:<7} {token:>digits$}  {what}");
            match stdout().is_terminal() {
                true => println!("\x1b[{colour}m{line}\x1b[0m"),
                false => println!("{line}"),
            }
        }
        self.events.push(event);
    }

    pub(crate) fn write(&mut self, worker: &str, resource: &str, token: u64) -> bool {
        let register = self.resources.entry(resource.to_owned()).or_default();
        let happening = match register.write(FencingToken::new(token), worker.to_owned()) {
            FencedWrite::Accepted => Happening::Wrote,
            FencedWrite::FencedOff { newest } => Happening::Refused { newest: newest.get() },
        };
        self.note(Event::now(worker, resource, Some(token), happening));
        happening == Happening::Wrote
    }

    /// Prints who held what, and checks that no two holds overlapped, that all tokens grew, and
    /// that the late write was refused.
    pub(crate) fn finish(&mut self, is_complete: bool) -> Outcome {
        self.events.sort_by_key(|event| event.at);
        let start = self.events.first().map_or(Duration::ZERO, |first| first.at);
        let length = self.events.last().map_or(Duration::ZERO, |last| last.at - start);
        println!("\nThe holders (a column is {:.0} ms):\n", length.as_secs_f64() * 1000.0 / WIDTH as f64);
        let (mut grants, mut faults) = (0, 0);
        for resource in RESOURCES {
            let holds = self.holds(resource);
            grants += holds.len();
            let is_fault = |pair: &&[Hold<'_>]| pair[1].from < pair[0].to || pair[1].token <= pair[0].token;
            faults += holds.windows(2).filter(is_fault).count();
            println!("  {resource:<9} {}", bar(&holds, start, length));
        }
        println!("\n  each letter is the first of a worker's name; · is free");
        let count = |wanted: fn(Happening) -> bool| self.events.iter().filter(|event| wanted(event.happening)).count();
        let writes = count(|happening| happening == Happening::Wrote);
        let refused = count(|happening| matches!(happening, Happening::Refused { .. }));
        println!();
        let mut checks = Checks::new(is_complete);
        checks.show("locks held", grants);
        checks.none("overlaps", faults, "holds overlapped, or had a token that was not the newest");
        checks.show("writes", writes);
        checks.at_the_end(writes > 0, "no worker wrote anything");
        checks.show("late writes", format_args!("{refused} refused"));
        checks.at_the_end(refused == 1, format!("{refused} late writes were refused, not 1"));
        checks.conclude("one holder at a time, tokens only grew, the late write was refused")
    }

    fn holds(&self, resource: &str) -> Vec<Hold<'_>> {
        let mut holds: Vec<Hold<'_>> = Vec::new();
        for event in self.events.iter().filter(|event| event.resource == resource) {
            let (Some(token), worker, at) = (event.token, &event.worker, event.at) else { continue };
            let end = match event.happening {
                Happening::Acquired { .. } => {
                    holds.push(Hold { worker, token, from: at, to: at });
                    continue;
                }
                Happening::Releasing | Happening::Lost => at,
                Happening::FellAsleep { lease } => at + lease,
                _ => continue,
            };
            // The first end counts: a sleeper's lease ends by itself, not when the sleeper notices.
            if let Some(hold) = holds.iter_mut().find(|hold| hold.token == token && hold.to == hold.from) {
                hold.to = end;
            }
        }
        holds
    }
}

fn bar(holds: &[Hold<'_>], start: Duration, length: Duration) -> String {
    let column = |at: Duration| {
        let share = (at - start).as_secs_f64() / length.as_secs_f64().max(1e-9);
        ((share * WIDTH as f64) as usize).min(WIDTH - 1)
    };
    let mut bar = vec!['·'; WIDTH];
    for hold in holds {
        bar[column(hold.from)..=column(hold.to)].fill(hold.worker.chars().next().unwrap_or('?'));
    }
    bar.into_iter().collect()
}
