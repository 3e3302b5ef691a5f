//! Breadth-first search: the first counterexample that is found is a shortest one.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant};

use crate::action::Action;
use crate::config::Config;
use crate::rules::Property;
use crate::state::State;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum of different states.
    pub states: usize,
    /// When to stop; `None` for never.
    pub until: Option<Instant>,
}

impl Default for Limits {
    /// Allows more states than any small configuration has, without a time limit.
    fn default() -> Self {
        Self { states: 30_000_000, until: None }
    }
}

/// The progress of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Steps taken, including those to known states.
    pub steps: u64,
    /// Different states.
    pub unique: usize,
    /// Steps from the beginning to the farthest state.
    pub depth: usize,
}

/// A violation, and a shortest path to it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The violated property.
    pub property: Property,
    /// The steps.
    pub path: Vec<Action>,
    /// Whether the violation shows only in the calm continuation after the path.
    pub is_calm: bool,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Report {
    /// The progress at the end.
    pub progress: Progress,
    /// Whether every state within the bounds was explored.
    pub is_complete: bool,
    /// The duration.
    pub elapsed: Duration,
    /// The first violation.
    pub counterexample: Option<Counterexample>,
    /// The kinds of steps that have led to new states.
    happened: HashSet<Discriminant<Action>, foldhash::fast::FixedState>,
}

impl Report {
    /// Whether a step of this kind, of any process, has led to a new state.
    #[must_use]
    pub fn has_happened(&self, action: Action) -> bool {
        self.happened.contains(&discriminant(&action))
    }
}

/// Packs the many small fields of a state into words before they are mixed.
struct Packing {
    word: u64,
    filled: u32,
    words: foldhash::fast::FoldHasher<'static>,
}

impl Hasher for Packing {
    fn finish(&self) -> u64 {
        let mut words = self.words.clone();
        words.write_u64(self.word);
        words.write_u32(self.filled);
        words.finish()
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, value: u8) {
        self.word = self.word << 8 | u64::from(value);
        self.filled += 1;
        if self.filled.is_multiple_of(8) {
            self.words.write_u64(std::mem::take(&mut self.word));
        }
    }

    /// Writes the variants of enums, which are few.
    fn write_isize(&mut self, value: isize) {
        self.write_u8(value as u8);
    }
}

fn fingerprint(state: &State) -> u64 {
    let words = foldhash::fast::FixedState::with_seed(21).build_hasher();
    let mut packing = Packing { word: 0, filled: 0, words };
    state.hash(&mut packing);
    packing.finish()
}

/// Fingerprints are hashes already.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// The record of a state: its predecessor, and the step.
struct Visit {
    from: u32,
    action: Action,
}

struct Search<'a, F> {
    config: &'a Config,
    wanted: Option<Property>,
    seen: HashSet<u64, BuildHasherDefault<Fingerprint>>,
    visits: Vec<Visit>,
    happened: HashSet<Discriminant<Action>, foldhash::fast::FixedState>,
    progress: Progress,
    report: F,
}

/// Explores all states within the bounds, or until a violation. With `wanted`, ignores violations
/// of other properties. Calls `report` now and then.
pub fn explore(config: &Config, wanted: Option<Property>, limits: Limits, report: impl FnMut(&Progress)) -> Report {
    let begun = Instant::now();
    let (seen, visits, happened) = (HashSet::default(), Vec::new(), HashSet::default());
    let mut search = Search { config, wanted, seen, visits, happened, progress: Progress::default(), report };
    let (counterexample, is_complete) = search.run(limits);
    Report {
        progress: search.progress,
        is_complete,
        elapsed: begun.elapsed(),
        counterexample,
        happened: search.happened,
    }
}

impl<F: FnMut(&Progress)> Search<'_, F> {
    fn run(&mut self, limits: Limits) -> (Option<Counterexample>, bool) {
        let first = State::initial(self.config);
        self.enter(&first, Visit { from: 0, action: Action::Tick });
        let mut frontier = vec![(first, 0_u32)];
        let mut actions = Vec::new();
        while !frontier.is_empty() {
            let mut next = Vec::new();
            for (state, at) in &frontier {
                state.actions(self.config, &mut actions);
                let calm = state.first_calm_step(self.config);
                let mut is_answered_for = calm.is_none();
                for action in actions.drain(..) {
                    self.progress.steps += 1;
                    if self.progress.steps.is_multiple_of(1 << 16) {
                        (self.report)(&self.progress);
                        if limits.until.is_some_and(|until| Instant::now() >= until) {
                            return (None, false);
                        }
                    }
                    let (after, found) = state.after(action, self.config);
                    is_answered_for |= calm == Some(action) && state.is_covered_by(&after);
                    let new = self.enter(&after, Visit { from: *at, action });
                    let found =
                        self.wants(found).or_else(|| self.wants(new.and_then(|_| after.violation(self.config))));
                    if let Some(property) = found {
                        let mut found = self.path(*at, property, false);
                        found.path.push(action);
                        return (Some(found), false);
                    }
                    let Some(number) = new else { continue };
                    self.happened.insert(discriminant(&action));
                    next.push((after, number));
                    if self.visits.len() >= limits.states {
                        return (None, false);
                    }
                }
                if !is_answered_for
                    && let Some(property) = self.wants(state.calm(self.config, self.wanted, |_, _, _| {}))
                {
                    return (Some(self.path(*at, property, true)), false);
                }
            }
            self.progress.depth += usize::from(!next.is_empty());
            frontier = next;
        }
        (None, true)
    }

    fn wants(&self, found: Option<Property>) -> Option<Property> {
        found.filter(|found| self.wanted.is_none_or(|wanted| wanted == *found))
    }

    /// Adds a state. Returns its number if it is new.
    fn enter(&mut self, state: &State, visit: Visit) -> Option<u32> {
        let fingerprint =
            if self.config.symmetric { fingerprint(&state.canonical(self.config.clients)) } else { fingerprint(state) };
        if !self.seen.insert(fingerprint) {
            return None;
        }
        let number = u32::try_from(self.visits.len()).ok()?;
        self.visits.push(visit);
        self.progress.unique = self.visits.len();
        Some(number)
    }

    fn path(&self, mut at: u32, property: Property, is_calm: bool) -> Counterexample {
        let mut path = Vec::new();
        while at != 0 {
            let visit = &self.visits[at as usize];
            path.push(visit.action);
            at = visit.from;
        }
        path.reverse();
        Counterexample { property, path, is_calm }
    }
}
