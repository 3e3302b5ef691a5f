//! What was observed of one contender on a slow server.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::{self, Nanos, millis};
use crate::locks::Contender;
use crate::report::Figure;

/// The rate counts as normal again from this share of the rate before the fault.
const NORMAL: f64 = 0.8;
const SECOND: Nanos = 1_000_000_000;
pub(super) const FEW: &str = "acquisitions of 10 tasks before the fault";
const BEFORE: &str = "acquisitions before the fault";
pub(super) const GOODPUT: &str = "acquisitions during the fault";
const AFTER: &str = "acquisitions after the fault";
pub(super) const RECOVERY: &str = "end of the fault → normal rate";
pub(super) const LOST: &str = "leases lost";

/// The call that failed, and how.
pub(super) type Problem = (&'static str, &'static str);

#[derive(Default)]
pub(super) struct Tally(Mutex<Tallied>);

#[derive(Default)]
pub(super) struct Tallied {
    pub(super) acquired: Vec<Nanos>,
    pub(super) errors: BTreeMap<Problem, u64>,
    pub(super) lost: Vec<Nanos>,
}

impl Tally {
    pub(super) fn lock(&self) -> MutexGuard<'_, Tallied> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn acquired(&self) {
        let mut tallied = self.lock();
        // Read under the lock, so that the times are in order.
        tallied.acquired.push(clock::now());
    }
}

/// What was observed of one contender.
pub(super) struct Seen {
    /// When each acquisition ended, in order.
    pub(super) acquired: Vec<Nanos>,
    /// Since the fault began.
    pub(super) errors: BTreeMap<Problem, u64>,
    pub(super) lost: Vec<Nanos>,
    pub(super) few: (Nanos, Nanos),
    pub(super) all_from: Nanos,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) stop: Nanos,
}

impl Seen {
    pub(super) fn few(&self) -> f64 {
        rate(&self.acquired, self.few.0, self.few.1)
    }

    pub(super) fn goodput(&self) -> f64 {
        rate(&self.acquired, self.from, self.to)
    }

    pub(super) fn describe(&self, figure: &mut Figure, who: Contender, case: &str) {
        let mut push = |what: &str, unit, value| figure.push(who, format!("{case}: {what}"), unit, value);
        let before = rate(&self.acquired, self.all_from, self.from);
        push(FEW, "/s", self.few());
        push(BEFORE, "/s", before);
        push(GOODPUT, "/s", self.goodput());
        push(AFTER, "/s", rate(&self.acquired, self.to, self.stop));
        let normal = first_second(&self.acquired, self.to, self.stop, NORMAL * before.max(self.few()));
        // A rate that does not return to normal is known to take at least the time observed.
        push(RECOVERY, "s", millis(normal.unwrap_or(self.stop) - self.to) / 1_000.0);
        if who == Contender::Ours {
            push(LOST, "", self.lost.len() as f64);
        }
        for ((call, kind), count) in &self.errors {
            push(&format!("errors of {call}: {kind}"), "", *count as f64);
        }
        if normal.is_none() {
            figure.note(format!("{who}, {case}: the rate did not return to normal."));
        }
        for lost in &self.lost {
            let after = millis(lost.saturating_sub(self.from)) / 1_000.0;
            figure.note(format!("{who}, {case}: a lease was lost {after:.1} s after the fault began."));
        }
        let mut rates = String::new();
        for (from, to) in [(self.from, self.to), (self.to, self.stop)] {
            let mut at = from;
            while at + 5 * SECOND <= to + SECOND {
                let _ = write!(rates, " {:.0}", rate(&self.acquired, at, at + 5 * SECOND));
                at += 5 * SECOND;
            }
            rates.push_str(if from == self.from { ";" } else { "." });
        }
        figure.note(format!("{who}, {case}: acquisitions per second, every 5 s during the fault and after:{rates}"));
    }
}

/// Events per second between two times.
fn rate(events: &[Nanos], from: Nanos, to: Nanos) -> f64 {
    let count = events.partition_point(|&at| at < to) - events.partition_point(|&at| at < from);
    count as f64 / (to - from) as f64 * SECOND as f64
}

/// When the first second begins that has this rate.
fn first_second(events: &[Nanos], from: Nanos, to: Nanos, least: f64) -> Option<Nanos> {
    let mut starts = (from..to.saturating_sub(SECOND)).step_by((SECOND / 10) as usize);
    starts.find(|&start| rate(events, start, start + SECOND) >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_the_first_normal_second() {
        // Ten per second in the first two seconds, none in the third, ten per second after it.
        let events: Vec<Nanos> = (0..60).filter(|n| !(20..30).contains(n)).map(|n| n * SECOND / 10).collect();
        assert_eq!(rate(&events, 0, 2 * SECOND), 10.0);
        assert_eq!(rate(&events, 2 * SECOND, 3 * SECOND), 0.0);
        assert_eq!(first_second(&events, 2 * SECOND, 6 * SECOND, 8.0), Some(2 * SECOND + 8 * SECOND / 10));
        assert_eq!(first_second(&events, 0, 6 * SECOND, 11.0), None);
    }
}
