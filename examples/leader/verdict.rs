//! Whether all was as promised: compares the register with what the leaders and the observer have
//! reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use distlock_examples::{Checks, Failure};
use distlock_mongo::mongodb::bson::{Bson, Document};

use crate::supervisor::Observed;

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Killed,
    Asleep,
    Resigned,
}

#[derive(Debug)]
struct Reign {
    leader: String,
    term: i64,
    writes: usize,
    /// How long after the end of the term before.
    after: Option<Duration>,
}

/// What the leaders have reported.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    reigns: Vec<Reign>,
    ends: Vec<(Ended, Instant)>,
    /// How many late writes were refused, and accepted.
    pub(crate) refused: usize,
    accepted_late: usize,
}

impl Journal {
    /// Records a new leader. Returns how long ago the leader before it ended.
    pub(crate) fn leads(&mut self, leader: &str, term: i64) -> Option<Duration> {
        let after = self.ends.last().map(|(_, end)| end.elapsed()).filter(|_| self.ends.len() == self.reigns.len());
        self.reigns.push(Reign { leader: leader.to_owned(), term, writes: 0, after });
        after
    }

    /// Records a confirmed write. Returns whether it is that of a leader that had fallen asleep.
    pub(crate) fn wrote(&mut self, term: i64) -> bool {
        let Some(index) = self.reigns.iter().position(|reign| reign.term == term) else { return false };
        self.reigns[index].writes += 1;
        let is_late = self.ends.get(index).is_some_and(|(end, _)| *end == Ended::Asleep);
        self.accepted_late += usize::from(is_late);
        is_late
    }

    pub(crate) fn ended(&mut self, how: Ended) {
        self.ends.push((how, Instant::now()));
    }

    /// The present leader, if its term was not ended.
    pub(crate) fn leader(&self) -> Option<String> {
        let reign = self.reigns.last().filter(|_| self.reigns.len() > self.ends.len())?;
        Some(reign.leader.clone())
    }

    /// How many writes the present leader has made.
    pub(crate) fn writes(&self) -> usize {
        self.reigns.last().filter(|_| self.reigns.len() > self.ends.len()).map_or(0, |reign| reign.writes)
    }

    /// How many terms were ended.
    pub(crate) fn acts(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn late_writes(&self) -> usize {
        self.refused + self.accepted_late
    }

    pub(crate) fn leaders(&self) -> Vec<String> {
        self.reigns.iter().map(|reign| reign.leader.clone()).collect()
    }

    /// Prints the sums, and checks the promises.
    pub(crate) fn compare(
        &self,
        register: Option<&Document>,
        observed: &Observed,
        lease: Duration,
        is_complete: bool,
    ) -> Result<Checks, Failure> {
        let log = read(register)?;
        let overlaps = log.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
        let mut names: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
        for (term, by) in &log {
            names.entry(*term).or_default().push(by);
        }
        let shared = names.values().filter(|names| names.iter().any(|name| *name != names[0])).count();
        let in_log = |term| names.get(&term).map_or(0, Vec::len);
        let lost = self.reigns.iter().filter(|reign| in_log(reign.term) < reign.writes).count();
        let terms: Vec<i64> = self.reigns.iter().map(|reign| reign.term).collect();
        let is_growing = terms.is_sorted_by(|a, b| a < b);
        let leaders: Vec<&str> = self.reigns.iter().map(|reign| &*reign.leader).collect();
        let seen: Vec<&str> = observed.iter().map(|(owner, _)| &**owner).collect();
        let after = |how: Ended| {
            let index = self.ends.iter().position(|(end, _)| *end == how)?;
            self.reigns.get(index + 1)?.after
        };
        let [killed, asleep, resigned] = [Ended::Killed, Ended::Asleep, Ended::Resigned].map(after);
        let text =
            |after: Option<Duration>| after.map_or("–".into(), |after| format!("{:.3} s", after.as_secs_f64()));
        println!("  leaders      {} ({})", leaders.len(), leaders.join(", "));
        println!("  observed     {} ({})", seen.len(), seen.join(", "));
        println!("  writes       {} in the register", log.len());
        println!("  overlaps     {overlaps}");
        println!("  late writes  {} refused, {} accepted", self.refused, self.accepted_late);
        println!("  taken over   {} after the kill, with leases of {} s", text(killed), lease.as_secs());
        println!("               {} after the sleeper's last look", text(asleep));
        println!("               {} after the order to resign", text(resigned));

        let mut checks = Checks::new(is_complete);
        checks.always(overlaps == 0, format!("{overlaps} writes came after one of a later term"));
        checks.always(shared == 0, format!("{shared} terms had two leaders"));
        checks.always(lost == 0, format!("the register has lost writes of {lost} terms"));
        // Ctrl-C wakes a sleeper before another one leads: its write is not late then.
        checks.at_the_end(self.accepted_late == 0, "a late write was accepted");
        checks.always(is_growing, format!("the terms did not grow: {terms:?}"));
        checks.always(observed.is_sorted_by(|a, b| a.1 < b.1), "the observer has seen a leader again");
        // At the end others lead for a moment, while one process after the other is stopped.
        checks.at_the_end(seen.starts_with(&leaders), "the observer has not seen each leader");
        checks.at_the_end(self.refused == 1, format!("{} late writes were refused, not 1", self.refused));
        checks.at_the_end(self.reigns.len() >= 4, format!("{} leaders, not 4", self.reigns.len()));
        let soon = |after: Option<Duration>, limit| after.is_some_and(|after| after <= limit);
        // How much later than the end of its lease a leader that died must have a successor. Where
        // longer leases are needed, everything takes longer.
        let grace = lease * 5 / 4;
        checks.at_the_end(soon(killed, lease + grace), "the killed leader had no successor in time");
        checks.at_the_end(soon(asleep, lease + grace), "the sleeping leader had no successor in time");
        checks.at_the_end(soon(resigned, lease / 2), "the successor of the leader that resigned did not lead at once");
        Ok(checks)
    }
}

/// Returns the lines of the register: terms and names.
fn read(register: Option<&Document>) -> Result<Vec<(i64, String)>, Failure> {
    let Some(register) = register else { return Ok(Vec::new()) };
    let line = |line: &Bson| {
        let line = line.as_document().ok_or("a line of the register is no document")?;
        Ok((line.get_i64("term")?, line.get_str("by")?.to_owned()))
    };
    register.get_array("log")?.iter().map(line).collect()
}
