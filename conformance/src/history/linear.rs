//! Checks whether a lock could have given the recorded answers to the calls of one key.
//!
//! This is the search of Wing and Gong (1993), with the memory of Lowe (2017). Calls take effect
//! one after the other, each within its interval. A set of calls that failed with the same holder
//! is not tried again. The lock is free, or held by one call.
//!
//! Tokens make the search short: they must increase, so the next grant is always the remaining one
//! with the smallest token. Ends without an answer may take effect at any time from their
//! beginning, or never: a lease that expired, a guard that was dropped, an acquisition that may
//! have been granted.

use std::collections::HashSet;
use std::time::Duration;

use super::call::{Call, End, What};
use super::violation::Violation;

/// A history that takes more steps is undecided.
pub(super) const STEPS: usize = 200_000;

/// A part of a call that takes effect at one moment.
struct Step<'a> {
    call: &'a Call,
    effect: Effect,
    asked: Duration,
    /// `None`: at any time, or never.
    answered: Option<Duration>,
}

/// An effect, with the number of its call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Grant {
        call: usize,
        token: u64,
    },
    /// It is unknown whether the lock was granted.
    PossibleGrant {
        call: usize,
    },
    End {
        call: usize,
    },
    Busy,
}

/// A point of the search: which steps have taken effect, and the resulting state of the lock.
#[derive(Clone)]
struct Point {
    done: Vec<u64>,
    /// All steps before this one are done.
    first: usize,
    /// How many grants are done: those with the smallest tokens.
    grants: usize,
    /// How many answers are explained.
    explained: usize,
    holder: Option<usize>,
}

impl Point {
    fn is_done(&self, step: usize) -> bool {
        self.done[step / 64] & (1 << (step % 64)) != 0
    }
}

/// Returns a violation if the calls are not linearizable. All are of one key, in the order of their
/// requests.
pub(super) fn violation(calls: &[&Call], limit: usize) -> Option<Violation> {
    let search = Search::new(calls);
    let answers = search.steps.iter().filter(|step| step.answered.is_some()).count();
    let words = search.steps.len().div_ceil(64);
    let start = Point { done: vec![0; words], first: 0, grants: 0, explained: 0, holder: None };
    let mut best = start.clone();
    let (mut open, mut seen) = (vec![start], HashSet::new());
    let mut taken = 0;
    while let Some(point) = open.pop() {
        if point.explained == answers {
            return None;
        }
        taken += 1;
        if taken > limit {
            let key = calls.first().map(|call| call.key.clone()).unwrap_or_default();
            return Some(Violation::Undecided { key, steps: limit });
        }
        if point.explained > best.explained {
            best = point.clone();
        }
        for next in search.nexts(&point) {
            if seen.insert((next.done.clone(), next.holder)) {
                open.push(next);
            }
        }
    }
    let stuck = search.most_urgent(&best).map(|step| search.steps[step].call);
    let holder = best.holder.map(|call| calls[call]).filter(|holder| stuck.is_none_or(|stuck| stuck != *holder));
    let stuck = stuck.into_iter().chain(holder).cloned().collect();
    Some(Violation::NotLinearizable { stuck, explained: best.explained, of: answers })
}

/// The constants of a search.
struct Search<'a> {
    /// In the order of their requests.
    steps: Vec<Step<'a>>,
    /// The tokens and steps of the grants, in the order of tokens.
    grants: Vec<(u64, usize)>,
}

impl<'a> Search<'a> {
    fn new(calls: &[&'a Call]) -> Self {
        let steps = steps(calls);
        let grant = |(number, step): (usize, &Step<'_>)| match step.effect {
            Effect::Grant { token, .. } => Some((token, number)),
            _ => None,
        };
        let mut grants: Vec<_> = steps.iter().enumerate().filter_map(grant).collect();
        grants.sort_unstable();
        Self { steps, grants }
    }

    /// Returns the points that may follow, the most promising last.
    fn nexts(&self, point: &Point) -> Vec<Point> {
        let reachable = self.reachable(point);
        let find = |is: &dyn Fn(Effect) -> bool| reachable.iter().copied().find(|step| is(self.steps[*step].effect));
        let busy = find(&|effect| effect == Effect::Busy);
        let next: [Option<usize>; 2] = match point.holder {
            // A busy answer changes nothing, so it may take effect at once.
            Some(_) if busy.is_some() => [busy, None],
            Some(holder) => [find(&|effect| effect == Effect::End { call: holder }), None],
            None => {
                // Possible grants explain busy answers, and nothing else. They differ only in their
                // beginning, so the first is as good as any.
                let possible = busy.and_then(|_| find(&|effect| matches!(effect, Effect::PossibleGrant { .. })));
                let is_greater = |token| point.grants == 0 || token > self.grants[point.grants - 1].0;
                let grant = self.grants.get(point.grants).filter(|(token, _)| is_greater(*token));
                [possible, grant.map(|(_, step)| *step).filter(|step| reachable.contains(step))]
            }
        };
        next.into_iter().flatten().map(|step| self.after(point, step)).collect()
    }

    /// Returns the steps that may be next. No step comes before an answer that preceded its
    /// request.
    fn reachable(&self, point: &Point) -> Vec<usize> {
        let (mut reachable, mut bound) = (Vec::new(), Duration::MAX);
        for (number, step) in self.steps.iter().enumerate().skip(point.first) {
            if step.asked > bound {
                break;
            }
            if !point.is_done(number) {
                bound = bound.min(step.answered.unwrap_or(Duration::MAX));
                reachable.push(number);
            }
        }
        reachable.retain(|number| self.steps[*number].asked <= bound);
        reachable
    }

    /// Returns the remaining step whose answer came first.
    fn most_urgent(&self, point: &Point) -> Option<usize> {
        let left = (0..self.steps.len()).filter(|step| !point.is_done(*step) && self.steps[*step].answered.is_some());
        left.min_by_key(|step| self.steps[*step].answered)
    }

    fn after(&self, point: &Point, number: usize) -> Point {
        let mut next = point.clone();
        next.done[number / 64] |= 1 << (number % 64);
        while next.first < self.steps.len() && next.is_done(next.first) {
            next.first += 1;
        }
        next.explained += usize::from(self.steps[number].answered.is_some());
        match self.steps[number].effect {
            Effect::Grant { call, .. } => (next.holder, next.grants) = (Some(call), next.grants + 1),
            Effect::PossibleGrant { call } => next.holder = Some(call),
            Effect::End { .. } => next.holder = None,
            Effect::Busy => {}
        }
        next
    }
}

/// Returns the steps in the order of their requests.
fn steps<'a>(calls: &[&'a Call]) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let mut step = |effect, asked, answered| steps.push(Step { call, effect, asked, answered });
        match &call.what {
            What::Granted { token, until, end } => {
                let effect = Effect::Grant { call: number, token: *token };
                step(effect, call.asked, Some(call.answered.unwrap_or(Duration::MAX)));
                match end {
                    End::Open => {}
                    End::Released { asked, answered } => step(Effect::End { call: number }, *asked, Some(*answered)),
                    End::Unknown | End::Lost => step(Effect::End { call: number }, *until, None),
                }
            }
            What::NotGranted => {
                step(Effect::PossibleGrant { call: number }, call.asked, None);
                step(Effect::End { call: number }, call.asked, None);
            }
            What::Busy | What::GaveWay if call.says_held(calls) => {
                step(Effect::Busy, call.asked, Some(call.answered.unwrap_or(Duration::MAX)));
            }
            What::Busy | What::GaveWay | What::Wrote { .. } | What::Sent { .. } | What::Left { .. } => {}
        }
    }
    steps.sort_by_key(|step| step.asked);
    steps
}
