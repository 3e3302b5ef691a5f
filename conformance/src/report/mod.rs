//! The results of a run for each backend. All reports are made from this structure.

mod directory;
mod html;
mod junit;
mod measures;
mod renewals;
mod rerun;
mod summary;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::failure::Failure;
use crate::figures::Figures;
use crate::history::Call;
use crate::level::{Level, Plan, Seed};
use crate::profile::Profile;

pub(crate) use directory::save;
pub(crate) use measures::Measures;
pub(crate) use summary::{Summary, explained};

/// How many calls of a failed check's history are kept: the last ones before the failure.
const MOST_CALLS: usize = 1_000;

/// The results of one backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Backend {
    pub(crate) name: String,
    pub(crate) level: Level,
    /// The seed of the first round.
    pub(crate) seed: String,
    /// When the run began, in milliseconds since 1970.
    pub(crate) started_unix_ms: u64,
    /// The time from the beginning of the run to the end of the last check.
    pub(crate) took_ms: f64,
    /// What the profile declares to be weaker than the contract.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) weaker: Vec<Weaker>,
    /// In the order of their clauses.
    pub(crate) checks: Vec<Checked>,
}

/// A clause that a backend keeps in a weaker form only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Weaker {
    /// `C5_fencing`.
    pub(crate) clause: String,
    pub(crate) why: String,
}

/// The result of one check, which may have run several times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// Without the backend: `C5_fencing::across_release`.
    pub(crate) name: String,
    /// `C5_fencing`.
    pub(crate) clause: String,
    /// What the clause promises.
    pub(crate) text: String,
    /// What the check tests.
    pub(crate) promise: String,
    pub(crate) result: Result,
    pub(crate) runs: u32,
    pub(crate) took_ms: f64,
    pub(crate) measures: Measures,
    /// The figures of the last run of a check that damages a deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) figures: Option<Figures>,
}

/// The result of a check: the first failure, if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Result {
    Passed,
    Failed(Box<Failed>),
    /// Refused by design, with the reason.
    Refused(String),
}

/// A failure, with all that is needed to understand and repeat it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) message: String,
    /// The line of the suite that found it.
    pub(crate) location: String,
    pub(crate) seed: String,
    /// The command that runs only this check, with the same seed.
    pub(crate) command: String,
    /// The calls that show the failure.
    pub(crate) shown_by: Vec<Call>,
    /// The calls of the check's clients.
    pub(crate) history: Vec<Call>,
    /// The renewals of the clients' leases, a line for each client and lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) renewals: Vec<String>,
}

/// The name, clause and promise of a check.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    clause: String,
    text: &'static str,
    promise: &'static str,
    /// The lowest at which it runs.
    pub(crate) level: Level,
}

impl Subject {
    pub(crate) fn of(check: &Check) -> Self {
        Self {
            name: check.name(),
            clause: check.clause().to_string(),
            text: check.clause().text(),
            promise: check.promise(),
            level: check.level(),
        }
    }

    /// Makes the subject of a check of the fixture's profile.
    pub(crate) fn profile(word: &str, promise: &'static str) -> Self {
        Self {
            name: format!("profile::{word}"),
            clause: "profile".into(),
            text: "The provider is what the fixture declares, and no check falls silent unnoticed.",
            promise,
            level: Level::Smoke,
        }
    }
}

impl Checked {
    pub(crate) fn new(subject: &Subject, result: Result, took: Duration, measures: Measures) -> Self {
        Self {
            name: subject.name.clone(),
            clause: subject.clause.clone(),
            text: subject.text.into(),
            promise: subject.promise.into(),
            result,
            runs: 1,
            took_ms: millis(took),
            measures,
            figures: None,
        }
    }

    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.took_ms += other.took_ms;
        self.measures.add(other.measures);
        self.figures = other.figures.or(self.figures.take());
        if !matches!(self.result, Result::Failed(_)) {
            self.result = other.result;
        }
    }

    pub(crate) fn failed(&self) -> Option<&Failed> {
        match &self.result {
            Result::Failed(failed) => Some(failed),
            _ => None,
        }
    }
}

impl Failed {
    pub(crate) fn new(backend: &str, subject: &Subject, failure: &Failure, plan: Plan, calls: Vec<Call>) -> Self {
        let shown_by = failure.calls().to_vec();
        let renewals = renewals::lines(&calls, &shown_by);
        Self {
            renewals,
            message: failure.message().to_owned(),
            location: failure.location(),
            seed: plan.seed.to_string(),
            command: rerun::command(&format!("{backend}::{}", subject.name), subject.level, plan),
            history: kept(calls, &shown_by),
            shown_by,
        }
    }
}

/// Returns the calls of the keys that the failure is about, up to it.
fn kept(mut calls: Vec<Call>, shown_by: &[Call]) -> Vec<Call> {
    if let Some(last) = shown_by.iter().map(|call| call.answered.unwrap_or(call.asked)).max() {
        calls.retain(|call| call.asked <= last && shown_by.iter().any(|shown| shown.key == call.key));
    }
    calls.sort_by_key(|call| call.asked);
    calls.split_off(calls.len().saturating_sub(MOST_CALLS))
}

impl Backend {
    pub(crate) fn new(name: &str, level: Level, seed: Seed) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            name: name.to_owned(),
            level,
            seed: seed.to_string(),
            started_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            took_ms: 0.0,
            weaker: Vec::new(),
            checks: Vec::new(),
        }
    }

    /// Adds what the backend's profile declares to be weaker.
    pub(crate) fn declared_by(mut self, profile: &Profile) -> Self {
        let weaker = profile.weaker_clauses().iter();
        self.weaker.extend(weaker.map(|(clause, why)| Weaker { clause: clause.to_string(), why: (*why).to_owned() }));
        self
    }

    /// Adds a check that has just ended, `now` after the beginning of the run.
    pub(crate) fn add(&mut self, checked: Checked, now: Duration) {
        self.took_ms = self.took_ms.max(millis(now));
        match self.checks.iter_mut().find(|known| known.name == checked.name) {
            Some(known) => known.add(checked),
            None => self.checks.push(checked),
        }
    }

    /// Sorts the checks by their clauses: C2 before C10.
    pub(crate) fn sort(&mut self) {
        self.checks.sort_by_cached_key(|check| (place(&check.clause), check.name.clone()));
    }
}

/// Counts the checks that passed, failed and were refused.
pub(crate) fn counts<'a>(checks: impl IntoIterator<Item = &'a Checked>) -> [usize; 3] {
    let mut counts = [0; 3];
    for check in checks {
        counts[match check.result {
            Result::Passed => 0,
            Result::Failed(_) => 1,
            Result::Refused(_) => 2,
        }] += 1;
    }
    counts
}

/// Returns the sort key of a clause: its series and its number, and after those the groups without
/// one.
pub(crate) fn place(clause: &str) -> (usize, u32, String) {
    const SERIES: [char; 3] = ['C', 'O', 'L'];
    let id = clause.split('_').next().unwrap_or_default();
    let numbered = SERIES.iter().enumerate().find_map(|(series, letter)| {
        let number = id.strip_prefix(*letter)?.parse().ok()?;
        Some((series, number))
    });
    let (series, number) = numbered.unwrap_or((SERIES.len(), 0));
    (series, number, clause.to_owned())
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
