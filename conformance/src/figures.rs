//! The figures of a run of the torture.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The figures of a run. Part of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// From the first round to the end of the last.
    pub(crate) took_s: f64,
    /// The part of it during which clients worked.
    pub(crate) at_work_s: f64,
    pub(crate) rounds: u64,
    /// Acquisitions, attempts, releases and fenced writes.
    pub(crate) operations: u64,
    /// Grants.
    pub(crate) acquisitions: u64,
    /// How often each kind of fault happened, each time verified.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Kinds of faults that this machine does not allow, and why.
    pub(crate) impossible: BTreeMap<String, String>,
    /// Rounds with a violation. The first one ends the run.
    pub(crate) violations: u64,
    /// Calls whose outcome is unknown.
    pub(crate) unknown_outcomes: u64,
    /// Errors by kind, those of unknown outcome included; of child processes without their kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Guards that were lost before they were released.
    pub(crate) lost: u64,
    /// Writes that the resource refused, because a later holder had written before.
    pub(crate) fenced_off: u64,
    /// The longest time without any grant while clients worked.
    pub(crate) longest_stall_s: f64,
    /// The round of the longest stall, and its faults.
    pub(crate) longest_stall_in: String,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} rounds in {:.0} s, {:.0} s of them at work", self.rounds, self.took_s, self.at_work_s)?;
        writeln!(f, "  operations        {}", self.operations)?;
        writeln!(f, "  acquisitions      {}", self.acquisitions)?;
        writeln!(f, "  violations        {}", self.violations)?;
        writeln!(f, "  unknown outcomes  {}", self.unknown_outcomes)?;
        writeln!(f, "  errors            {}", listed(&self.errors))?;
        writeln!(f, "  guards lost       {}", self.lost)?;
        writeln!(f, "  fenced off        {}", self.fenced_off)?;
        writeln!(f, "  longest stall     {:.1} s ({})", self.longest_stall_s, self.longest_stall_in)?;
        let total: u64 = self.faults.values().sum();
        write!(f, "  faults            {total}: {}", listed(&self.faults))?;
        for (kind, reason) in &self.impossible {
            write!(f, "\n  not possible here {kind}: {reason}")?;
        }
        Ok(())
    }
}

/// Lists the counts that are not zero.
fn listed(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let listed: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
    if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
}
