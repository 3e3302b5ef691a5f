//! What happened in a run.

use std::time::Duration;

use distlock_examples::Checks;
use serde::{Deserialize, Serialize};

use crate::{KEY, ROUNDS};

/// What a complete run has proved.
pub(crate) const PROVED: &str = "one holder at a time, tokens only grew, the killed holder's lock was soon free";

/// A run. Times are microseconds since the first process began to wait.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recording {
    pub(crate) server: String,
    pub(crate) key: String,
    pub(crate) lease_ms: u64,
    /// In the order in which the lock was granted.
    pub(crate) holds: Vec<Hold>,
    /// When it began, and which processes wait now.
    #[serde(skip)]
    start: Option<u64>,
    #[serde(skip)]
    waiting: Vec<(String, u64)>,
}

/// One process waits for the lock, holds it, and releases it or is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hold {
    pub(crate) process: String,
    pub(crate) waits: u64,
    pub(crate) holds: u64,
    pub(crate) ends: u64,
    pub(crate) token: u64,
    pub(crate) is_killed: bool,
}

impl Recording {
    pub(crate) fn new(server: String, lease: Duration) -> Self {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        let (holds, waiting) = (Vec::new(), Vec::new());
        Self { server, key: KEY.to_owned(), lease_ms, holds, start: None, waiting }
    }

    fn since_start(&mut self, at: u64) -> u64 {
        at.saturating_sub(*self.start.get_or_insert(at))
    }

    pub(crate) fn waits(&mut self, process: &str, at: u64) {
        let at = self.since_start(at);
        self.waiting.push((process.to_owned(), at));
    }

    pub(crate) fn holds(&mut self, process: &str, at: u64, token: u64) {
        let at = self.since_start(at);
        println!("{:8.3} s  {process} holds, with token {token}", seconds(at));
        let place = self.waiting.iter().position(|(waiting, _)| waiting == process);
        let waits = place.map_or(at, |place| self.waiting.remove(place).1);
        let process = process.to_owned();
        self.holds.push(Hold { process, waits, holds: at, ends: at, token, is_killed: false });
    }

    pub(crate) fn ends(&mut self, process: &str, at: u64, is_killed: bool) {
        let at = self.since_start(at);
        println!("{:8.3} s  {process} {}", seconds(at), if is_killed { "is KILLED" } else { "releases" });
        if let Some(hold) = self.holds.iter_mut().rev().find(|hold| hold.process == process) {
            (hold.ends, hold.is_killed) = (at, is_killed);
        }
    }

    /// The time from the end of each hold to the next one, and whether the first was killed.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (Duration, bool)> {
        let pairs = self.holds.windows(2);
        pairs.map(|pair| (Duration::from_micros(pair[1].holds.saturating_sub(pair[0].ends)), pair[0].is_killed))
    }

    fn overlaps(&self) -> usize {
        self.holds.windows(2).filter(|pair| pair[1].holds < pair[0].ends).count()
    }

    pub(crate) fn print(&self) {
        let hand_overs = self.gaps().filter(|(_, is_killed)| !is_killed);
        let hand_overs: Vec<_> = hand_overs.map(|(gap, _)| format!("{:.1}", gap.as_secs_f64() * 1e3)).collect();
        println!("\n  holds        {}", self.holds.len());
        println!("  overlaps     {}", self.overlaps());
        println!("  hand-overs   {} ms, from the release to the next holder", hand_overs.join(", "));
        if let Some((gap, _)) = self.gaps().find(|(_, is_killed)| *is_killed) {
            println!("  expiry       {:.2} s after the kill, with leases of {} ms", gap.as_secs_f64(), self.lease_ms);
        }
    }

    pub(crate) fn check(&self, is_complete: bool) -> Checks {
        let mut checks = Checks::new(is_complete);
        let back = self.holds.windows(2).filter(|pair| pair[1].token <= pair[0].token).count();
        checks.always(self.overlaps() == 0, format!("{} holds overlapped", self.overlaps()));
        checks.always(back == 0, format!("{back} tokens did not grow"));
        checks.at_the_end(self.holds.len() == 2 * ROUNDS, format!("{} holds, not {}", self.holds.len(), 2 * ROUNDS));
        let expiry = self.gaps().find(|(_, is_killed)| *is_killed).map_or(Duration::MAX, |(gap, _)| gap);
        // How much later than its lease ends the lock of a killed process must have a new holder.
        // Where longer leases are needed, everything takes longer.
        let lease = Duration::from_millis(self.lease_ms);
        let grace = lease * 5 / 2;
        checks.at_the_end(expiry <= lease + grace, "the killed holder's lock was not soon free");
        checks
    }
}

pub(crate) fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}
