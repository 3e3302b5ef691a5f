//! What the terminal shows: a line for each grant, and at the end a summary.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use distlock_examples::{Checks, Outcome};

use crate::desk::{Event, Happening};

const WIDTH: usize = 76;

/// Like `println`, for a reader that may have gone, such as `head`.
macro_rules! say {
    ($($text:tt)*) => {
        let _ = writeln!(std::io::stdout(), $($text)*);
    };
}

pub(crate) struct Show {
    events: Vec<Event>,
    colour: bool,
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

impl Show {
    pub(crate) fn live(digits: usize) -> Self {
        say!("       time    resource  worker  {:>digits$}  what happened\n", "token");
        Self { events: Vec::new(), colour: std::io::stdout().is_terminal(), digits }
    }

    pub(crate) fn note(&mut self, event: Event) {
        let start = self.events.first().map_or(event.at, |first| first.at);
        let what = match event.happening {
            Happening::Acquired { waited } => format!("waited {:>5} ms", waited.as_millis()),
            Happening::GaveUp { waited } => format!("gave up after {} ms", waited.as_millis()),
            Happening::FellAsleep { lease } => {
                format!("falls asleep; its lease ends in {} ms", lease.as_millis())
            }
            Happening::Lost => "its lease is over, and it does not know".into(),
            Happening::Refused { newest } => format!("writes late: REFUSED (seen {newest})"),
            Happening::Releasing | Happening::Wrote => String::new(),
        };
        if !what.is_empty() {
            let token = event.token.map_or(String::new(), |token| token.to_string());
            let seconds = event.at.saturating_sub(start).as_secs_f64();
            let mark = if matches!(event.happening, Happening::Acquired { .. }) { ' ' } else { '!' };
            let digits = self.digits;
            let line =
                format!("{mark}{seconds:8.3} s  {:<9} {:<7} {token:>digits$}  {what}", event.resource, event.worker);
            say!("{}", self.paint(&line, event.happening));
        }
        self.events.push(event);
    }

    fn paint(&self, line: &str, happening: Happening) -> String {
        let code = match happening {
            Happening::FellAsleep { .. } | Happening::Lost => "33",
            Happening::Refused { .. } => "1;31",
            _ => return line.to_owned(),
        };
        if self.colour { format!("\x1b[{code}m{line}\x1b[0m") } else { line.to_owned() }
    }

    /// Prints the whole run, and checks that no two holds overlapped, that all tokens grew, and
    /// that the late write was refused.
    pub(crate) fn summary(&mut self, resources: &[&str], is_complete: bool) -> Outcome {
        self.events.sort_by_key(|event| event.at);
        let start = self.events.first().map_or(Duration::ZERO, |first| first.at);
        let length = self.events.last().map_or(Duration::ZERO, |last| last.at - start);
        say!("\nThe holders (a column is {:.0} ms):\n", length.as_secs_f64() * 1000.0 / WIDTH as f64);
        let (mut grants, mut faults) = (0, 0);
        for resource in resources {
            let holds = self.holds(resource);
            grants += holds.len();
            faults +=
                holds.windows(2).filter(|pair| pair[1].from < pair[0].to || pair[1].token <= pair[0].token).count();
            say!("  {resource:<9} {}", bar(&holds, start, length));
        }
        say!("\n  each letter is the first of a worker's name; · is free\n\n  worker   locks  mean wait  longest wait");
        for (worker, waits) in self.waits() {
            let mean = waits.iter().sum::<Duration>() / u32::try_from(waits.len()).unwrap_or(1);
            let longest = waits.iter().max().copied().unwrap_or_default();
            say!("  {worker:<7} {:>6} {:>7} ms {:>10} ms", waits.len(), mean.as_millis(), longest.as_millis());
        }
        let count = |wanted: fn(Happening) -> bool| self.events.iter().filter(|event| wanted(event.happening)).count();
        let writes = count(|happening| happening == Happening::Wrote);
        let refused = count(|happening| matches!(happening, Happening::Refused { .. }));
        say!("\n{grants} locks held, {faults} overlaps or stale tokens, {writes} writes, {refused} late write refused");
        let mut checks = Checks::new(is_complete);
        checks.always(faults == 0, format!("{faults} holds overlapped, or had a token that was not the newest"));
        checks.at_the_end(refused == 1, format!("{refused} late writes were refused, not 1"));
        checks.at_the_end(writes > 0, "no worker wrote anything");
        let (outcome, text) = checks.verdict("one holder at a time, tokens only grew, the late write was refused");
        say!("{text}");
        outcome
    }

    fn holds(&self, resource: &str) -> Vec<Hold<'_>> {
        let mut holds: Vec<Hold<'_>> = Vec::new();
        for event in self.events.iter().filter(|event| event.resource == resource) {
            let Some(token) = event.token else { continue };
            match event.happening {
                Happening::Acquired { .. } => {
                    holds.push(Hold { worker: &event.worker, token, from: event.at, to: event.at });
                }
                Happening::Releasing | Happening::Lost => end(&mut holds, token, event.at),
                Happening::FellAsleep { lease } => end(&mut holds, token, event.at + lease),
                _ => {}
            }
        }
        holds
    }

    fn waits(&self) -> BTreeMap<&str, Vec<Duration>> {
        let mut waits = BTreeMap::<_, Vec<_>>::new();
        for event in &self.events {
            if let Happening::Acquired { waited } = event.happening {
                waits.entry(event.worker.as_str()).or_default().push(waited);
            }
        }
        waits
    }
}

/// Ends a hold. The first end counts: a sleeper's lease ends by itself, not when the sleeper
/// notices.
fn end(holds: &mut [Hold<'_>], token: u64, at: Duration) {
    if let Some(hold) = holds.iter_mut().find(|hold| hold.token == token && hold.to == hold.from) {
        hold.to = at;
    }
}

fn bar(holds: &[Hold<'_>], start: Duration, length: Duration) -> String {
    let column = |at: Duration| {
        let share = (at - start).as_secs_f64() / length.as_secs_f64().max(1e-9);
        ((share * WIDTH as f64) as usize).min(WIDTH - 1)
    };
    let mut bar = vec!['·'; WIDTH];
    for hold in holds {
        let letter = hold.worker.chars().next().unwrap_or('?');
        bar[column(hold.from)..=column(hold.to)].fill(letter);
    }
    bar.into_iter().collect()
}
