//! The counters of a run.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use distlock_api::LockError;

use crate::child::ChildError;
use crate::figures::Figures;

/// Counters that all participants share.
#[derive(Clone)]
pub(super) struct Tally {
    started: Instant,
    figures: Arc<Mutex<Figures>>,
}

impl Tally {
    pub(super) fn new() -> Self {
        // A round that does not pass is a violation.
        let figures = Figures { violations: 1, ..Figures::default() };
        Self { started: Instant::now(), figures: Arc::new(Mutex::new(figures)) }
    }

    fn change(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().expect("not poisoned")
    }

    pub(super) fn figures(&self, impossible: Vec<(&'static str, String)>) -> Figures {
        let mut figures = self.change().clone();
        figures.took_s = self.started.elapsed().as_secs_f64();
        figures.impossible = impossible.into_iter().map(|(kind, why)| (kind.to_owned(), why)).collect();
        figures
    }

    pub(super) fn expect(&self, kinds: Vec<String>) {
        self.change().faults = kinds.into_iter().map(|kind| (kind, 0)).collect();
    }

    pub(super) fn next_round(&self) -> u64 {
        let mut figures = self.change();
        figures.violations = 1;
        figures.rounds += 1;
        figures.rounds
    }

    /// Records a round without a violation.
    pub(super) fn passed(&self, operations: usize, acquisitions: usize, at_work: Duration) {
        let mut figures = self.change();
        figures.violations = 0;
        figures.operations += operations as u64;
        figures.acquisitions += acquisitions as u64;
        figures.at_work_s += at_work.as_secs_f64();
    }

    pub(super) fn happened(&self, kind: &str) {
        *self.change().faults.entry(kind.to_owned()).or_default() += 1;
    }

    pub(super) fn stalled(&self, stall: Duration, name: &str) {
        let mut figures = self.change();
        if stall.as_secs_f64() > figures.longest_stall_s {
            figures.longest_stall_s = stall.as_secs_f64();
            figures.longest_stall_in = format!("round {}, {name}", figures.rounds);
        }
    }

    pub(super) fn failed(&self, error: &LockError) {
        let mut figures = self.change();
        figures.unknown_outcomes += u64::from(error.is_outcome_unknown());
        *figures.errors.entry(error.kind().as_str().to_owned()).or_default() += 1;
    }

    pub(super) fn child_failed(&self, error: &ChildError) {
        let mut figures = self.change();
        figures.unknown_outcomes += u64::from(error.unknown);
        *figures.errors.entry("child".to_owned()).or_default() += 1;
    }

    pub(super) fn lost(&self) {
        self.change().lost += 1;
    }

    pub(super) fn fenced_off(&self) {
        self.change().fenced_off += 1;
    }
}
