//! Checks whether a lock could have given the recorded answers to the calls of one key.
//!
//! This is the search of Wing and Gong (1993), with the memory of Lowe (2017). Calls take effect
//! one after the other, each within its interval. A set of steps that failed is not tried again.
//! The lock is free, held by one call, or held by several whose modes fit.
//!
//! Tokens make the search short: they must increase, so the next grant is always the remaining one
//! with the smallest token. Only shared grants have no order among each other. Ends without an
//! answer may take effect at any time from their beginning, or never. Such ends are a lease that
//! expired, a guard that was dropped, and an acquisition that may have been granted.

use std::collections::HashSet;
use std::time::Duration;

use distlock_api::Mode;

use super::call::{Call, CallKind, End};
use super::modes::{Kind, fits, kind, may_keep_back};
use super::violation::Violation;

/// A history that takes more steps is undecided.
pub(super) const STEPS: usize = 200_000;

/// The time in which a waiter must claim the lock that it was handed, by default.
const CLAIM: Duration = Duration::from_secs(1);

/// Whether the store's answers can have been lost, or have left open what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// An acquisition holds the lock once. Only one that takes as long as a claim window may have
    /// been handed the lock before, and have missed it.
    Known,
    /// A call that waits may go on under another claim while its first one holds the lock, and is
    /// withdrawn. So it may hold the lock several times before its answer.
    Uncertain,
}

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
    Busy {
        /// Whether another call may have waited ahead of it.
        behind: bool,
    },
}

/// A point of the search: which steps have taken effect, and the resulting state of the lock.
#[derive(Clone)]
struct Point {
    done: Vec<u64>,
    /// All steps before this one are done.
    first: usize,
    /// How many of the turns are taken: those with the smallest tokens.
    turns: usize,
    /// How many shared grants are done.
    shared: usize,
    /// How many answers are explained.
    explained: usize,
    /// The calls that hold the lock. They follow from the steps that are done.
    holders: Vec<usize>,
}

impl Point {
    fn is_done(&self, step: usize) -> bool {
        self.done[step / 64] & (1 << (step % 64)) != 0
    }
}

/// Returns a violation if the calls are not linearizable. All are of one key, in the order of their
/// requests.
pub(super) fn violation(calls: &[&Call], answers: Answers, limit: usize) -> Option<Violation> {
    let search = Search::new(calls, answers);
    let answers = search.steps.iter().filter(|step| step.answered.is_some()).count();
    let words = search.steps.len().div_ceil(64);
    let done = vec![0; words];
    let start = Point { done, first: 0, turns: 0, shared: 0, explained: 0, holders: Vec::new() };
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
            if seen.insert(next.done.clone()) {
                open.push(next);
            }
        }
    }
    let stuck = search.most_urgent(&best).map(|step| search.steps[step].call);
    let holders = best.holders.iter().map(|call| calls[*call]);
    let others = holders.filter(|holder| stuck.is_none_or(|stuck| stuck != *holder));
    let stuck = stuck.into_iter().chain(others).cloned().collect();
    Some(Violation::NotLinearizable { stuck, explained: best.explained, of: answers })
}

/// The constants of a search.
struct Search<'a> {
    calls: &'a [&'a Call],
    /// In the order of their requests.
    steps: Vec<Step<'a>>,
    /// The grants that are not shared, in the order of their tokens.
    turns: Vec<Turn>,
    /// The shared grants whose tokens another grant has, too.
    repeated: HashSet<usize>,
}

/// A grant whose place among all others follows from its token.
struct Turn {
    token: u64,
    step: usize,
    /// How many shared grants have smaller tokens. They come before.
    shared_before: usize,
    /// Whether a grant before it has the same token.
    is_repeated: bool,
}

impl<'a> Search<'a> {
    fn new(calls: &'a [&'a Call], answers: Answers) -> Self {
        let steps = steps(calls, answers);
        let grant = |(number, step): (usize, &Step<'_>)| match step.effect {
            Effect::Grant { token, .. } => Some((token, number)),
            _ => None,
        };
        let mut grants: Vec<_> = steps.iter().enumerate().filter_map(grant).collect();
        grants.sort_unstable();
        let (mut turns, mut repeated, mut shared_before) = (Vec::new(), HashSet::new(), 0);
        for (place, (token, step)) in grants.iter().copied().enumerate() {
            let is_repeated = place > 0 && grants[place - 1].0 == token;
            if kind(steps[step].call.mode) == Kind::Shared {
                shared_before += 1;
                repeated.extend(is_repeated.then_some(step));
            } else {
                turns.push(Turn { token, step, shared_before, is_repeated });
            }
        }
        Self { calls, steps, turns, repeated }
    }

    /// Returns the points that may follow, the most promising last.
    ///
    /// A step is taken at once if it excludes no other: an answer that the holders explain, and a
    /// grant that fits beside them. A hold ends as late as possible, because that explains more
    /// answers: when it is in the way of the next grant, or when its release was answered.
    fn nexts(&self, point: &Point) -> Vec<Point> {
        let reachable = self.reachable(point);
        let is_busy = |step: &&usize| matches!(self.steps[**step].effect, Effect::Busy { .. });
        let mut busy = reachable.iter().filter(is_busy).copied().peekable();
        let is_unexplained = busy.peek().is_some() && point.holders.is_empty();
        // A busy answer changes nothing, so it may take effect at once.
        if let Some(busy) = busy.find(|step| self.explains(point, *step)) {
            return vec![self.after(point, busy)];
        }
        let mut next = Vec::new();
        if is_unexplained {
            next = self.possible_grants(&reachable);
        }
        match self.grant(point, &reachable) {
            Some(grant) if fits(self.steps[grant].call.mode, self.held(point)) => next.push(grant),
            grant => next.extend(self.ends(point, &reachable, grant)),
        }
        next.into_iter().map(|step| self.after(point, step)).collect()
    }

    fn held(&self, point: &Point) -> impl Iterator<Item = Mode> {
        point.holders.iter().map(|call| self.calls[*call].mode)
    }

    /// Whether the present holders explain the busy answer.
    fn explains(&self, point: &Point, busy: usize) -> bool {
        let Step { call, effect, .. } = &self.steps[busy];
        let is_behind = *effect == Effect::Busy { behind: true };
        !point.holders.is_empty() && (is_behind || !fits(call.mode, self.held(point)))
    }

    /// Returns the possible grants for a free lock. They explain busy answers, and nothing else.
    /// Those of one mode differ only in their beginning, so the first is as good as any.
    fn possible_grants(&self, reachable: &[usize]) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for step in reachable.iter().copied() {
            let mode = self.steps[step].call.mode;
            let is_new = !found.iter().any(|other| self.steps[*other].call.mode == mode);
            if is_new && matches!(self.steps[step].effect, Effect::PossibleGrant { .. }) {
                found.push(step);
            }
        }
        found
    }

    /// Returns the next grant. Shared grants have no order among each other, but one to all others.
    fn grant(&self, point: &Point, reachable: &[usize]) -> Option<usize> {
        let turn = self.turns.get(point.turns);
        let is_shared = |step: &usize| match self.steps[*step].effect {
            Effect::Grant { token, .. } => {
                kind(self.steps[*step].call.mode) == Kind::Shared
                    && turn.is_none_or(|turn| token < turn.token)
                    && !self.repeated.contains(step)
            }
            _ => false,
        };
        let shared = reachable.iter().copied().filter(is_shared).min_by_key(|step| self.steps[*step].answered);
        let turn = turn.filter(|turn| turn.shared_before == point.shared && !turn.is_repeated).map(|turn| turn.step);
        shared.or_else(|| turn.filter(|step| reachable.contains(step)))
    }

    /// Returns the ends of holds that let the grant in, each of them if one may be enough. Without
    /// a grant, returns the end that is due first.
    fn ends(&self, point: &Point, reachable: &[usize], grant: Option<usize>) -> Vec<usize> {
        let is_end = |step: &usize| match self.steps[*step].effect {
            Effect::End { call } => point.holders.contains(&call),
            _ => false,
        };
        let mut ends: Vec<usize> = reachable.iter().copied().filter(is_end).collect();
        let answered = |step: &usize| self.steps[*step].answered.unwrap_or(Duration::MAX);
        ends.sort_by_key(|step| std::cmp::Reverse(answered(step)));
        let is_permits = |mode| kind(mode) == Kind::Permits;
        match grant {
            Some(grant) if is_permits(self.steps[grant].call.mode) && self.held(point).all(is_permits) => ends,
            _ => ends.pop().into_iter().collect(),
        }
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
            Effect::Grant { call, .. } => {
                let is_shared = kind(self.steps[number].call.mode) == Kind::Shared;
                *(if is_shared { &mut next.shared } else { &mut next.turns }) += 1;
                next.holders.push(call);
            }
            Effect::PossibleGrant { call } => next.holders.push(call),
            Effect::End { call } => next.holders.retain(|holder| *holder != call),
            Effect::Busy { .. } => {}
        }
        next
    }
}

/// Returns the steps in the order of their requests.
fn steps<'a>(calls: &[&'a Call], answers: Answers) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let mut step = |effect, asked, answered| steps.push(Step { call, effect, asked, answered });
        match &call.what {
            CallKind::Granted { token, until, end } => {
                let effect = Effect::Grant { call: number, token: *token };
                step(effect, call.asked, Some(call.answered.unwrap_or(Duration::MAX)));
                match end {
                    End::Open => {}
                    End::Released { asked, answered } => step(Effect::End { call: number }, *asked, Some(*answered)),
                    End::Unknown | End::Lost => step(Effect::End { call: number }, *until, None),
                }
            }
            CallKind::NotGranted => {
                step(Effect::PossibleGrant { call: number }, call.asked, None);
                step(Effect::End { call: number }, call.asked, None);
            }
            CallKind::Busy | CallKind::GaveWay if may_be_held_before(call, calls, answers) => {}
            CallKind::Busy | CallKind::GaveWay if call.says_held(calls) => {
                let behind = may_be_behind(call, calls);
                step(Effect::Busy { behind }, call.asked, Some(call.answered.unwrap_or(Duration::MAX)));
            }
            CallKind::Busy
            | CallKind::GaveWay
            | CallKind::Wrote { .. }
            | CallKind::Sent { .. }
            | CallKind::Left { .. } => {}
        }
    }
    steps.sort_by_key(|step| step.asked);
    steps
}

/// Whether another call was pending that was granted the lock, or may have been, and may have held
/// it before, in a mode that keeps this one back.
fn may_be_held_before(call: &Call, calls: &[&Call], answers: Answers) -> bool {
    let least = if answers == Answers::Known { CLAIM } else { Duration::ZERO };
    let is_long = |other: &&&Call| other.answered.is_none_or(|answered| answered.saturating_sub(other.asked) >= least);
    let is_pending = |other: &&&Call| {
        call.answered.is_none_or(|answered| other.asked <= answered)
            && other.answered.is_none_or(|answered| call.asked <= answered)
    };
    let may_hold = |other: &&&Call| matches!(other.what, CallKind::Granted { .. } | CallKind::NotGranted);
    let mut others = calls.iter().filter(may_hold).filter(is_long).filter(is_pending);
    // Permits exclude others by their sum.
    let are_permits = |other: &Call| [call.mode, other.mode].map(kind) == [Kind::Permits; 2];
    others.any(|other| are_permits(other) || !fits(call.mode, [other.mode]))
}

/// Whether another call may have waited ahead of this one, in a mode that keeps it back.
fn may_be_behind(call: &Call, calls: &[&Call]) -> bool {
    // Any holder keeps an exclusive attempt back.
    if call.mode.is_exclusive() {
        return false;
    }
    let may_wait = |other: &&Call| match other.what {
        CallKind::Granted { .. } => other.answered.is_none_or(|answered| answered >= call.asked),
        CallKind::NotGranted => true,
        _ => false,
    };
    let is_earlier = |other: &&Call| call.answered.is_none_or(|answered| other.asked <= answered);
    let mut waiters = calls.iter().copied().filter(is_earlier).filter(may_wait);
    waiters.any(|waiter| may_keep_back(waiter.mode, call.mode))
}
