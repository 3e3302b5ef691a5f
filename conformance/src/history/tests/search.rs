//! Compares the checker's search with an exhaustive one, on thousands of small histories.

use super::super::{linear, modes};
use super::*;

/// The remaining effects, and the state of the lock.
struct Naive<'a> {
    calls: &'a [Call],
    /// For each call: nothing yet, granted, over.
    stage: Vec<u8>,
    holders: Vec<usize>,
    /// The greatest token of a shared grant, and of any other.
    tokens: [u64; 2],
    granted: Vec<u64>,
}

type Interval = (Duration, Option<Duration>);

impl Naive<'_> {
    /// Returns the interval of the next effect of a call; `None` after the last one. An open effect
    /// may not happen.
    fn next(&self, call: usize) -> Option<Interval> {
        let Call { asked, answered, ref what, .. } = self.calls[call];
        match (what, self.stage[call]) {
            (CallKind::Granted { .. } | CallKind::Busy, 0) => Some((asked, answered)),
            (CallKind::NotGranted, 0 | 1) => Some((asked, None)),
            (CallKind::Granted { until, end, .. }, 1) => match end {
                End::Open => None,
                End::Released { asked, answered } => Some((*asked, Some(*answered))),
                _ => Some((*until, None)),
            },
            _ => None,
        }
    }

    fn is_possible(&mut self) -> bool {
        // The effect after the next one of a call also counts: its answer bounds the others just
        // the same.
        let due = |call: usize| -> Option<Duration> {
            let next = self.next(call)?.1;
            let release = match &self.calls[call].what {
                CallKind::Granted { end: End::Released { answered, .. }, .. } => Some(*answered),
                _ => None,
            };
            [next, release].into_iter().flatten().min()
        };
        let bound = (0..self.calls.len()).filter_map(due).min();
        let Some(bound) = bound else { return true };
        for call in 0..self.calls.len() {
            let Some((asked, _)) = self.next(call) else { continue };
            if asked <= bound && self.take(call) {
                return true;
            }
        }
        false
    }

    /// Whether the rest is possible with this as the next effect.
    fn take(&mut self, call: usize) -> bool {
        let before = (self.stage[call], self.holders.clone(), self.tokens, self.granted.clone());
        let calls = self.calls;
        let Call { mode, ref what, .. } = calls[call];
        let fits = modes::fits(mode, self.holders.iter().map(|holder| calls[*holder].mode));
        let possible = match (what, self.stage[call]) {
            (CallKind::Granted { token, .. }, 0) => {
                let is_shared = mode == Mode::Shared;
                let least = if is_shared { self.tokens[1] } else { self.tokens[0].max(self.tokens[1]) };
                let is_new = *token > least && !self.granted.contains(token);
                let of_kind = &mut self.tokens[usize::from(!is_shared)];
                *of_kind = (*of_kind).max(*token);
                self.granted.push(*token);
                self.holders.push(call);
                fits && is_new
            }
            (CallKind::NotGranted, 0) => {
                self.holders.push(call);
                fits
            }
            (CallKind::Busy, _) => !self.holders.is_empty() && (!fits || self.is_behind(call)),
            _ => {
                let is_held = self.holders.contains(&call);
                self.holders.retain(|holder| *holder != call);
                is_held
            }
        };
        self.stage[call] += if *what == CallKind::Busy { 2 } else { 1 };
        let possible = possible && self.is_possible();
        (self.stage[call], self.holders, self.tokens, self.granted) = before;
        possible
    }

    /// Whether another call may wait ahead of it.
    fn is_behind(&self, busy: usize) -> bool {
        let Call { asked, answered, mode, .. } = self.calls[busy];
        let waits = |other: &Call| match other.what {
            CallKind::Granted { .. } => other.answered >= Some(asked),
            CallKind::NotGranted => true,
            _ => false,
        };
        let ahead = |other: &&Call| Some(other.asked) <= answered && waits(other);
        self.calls.iter().filter(ahead).any(|other| mode != Mode::Shared || other.mode != Mode::Shared)
    }
}

fn random_call(rng: &mut fastrand::Rng, tokens: u64) -> Call {
    let mut times = [0; 4].map(|_| rng.u64(0..12));
    times.sort_unstable();
    let [a, b, c, d] = times;
    let token = rng.u64(1..=tokens);
    match rng.u8(..8) {
        0..4 => held(1, token, times),
        4 => held_until(1, token, [a, b, c], [End::Lost, End::Unknown, End::Open][rng.usize(..3)].clone()),
        5 => not_granted(1, a, d),
        // Of another client, which has no release of its own.
        _ => busy(2, a, b.max(c)),
    }
}

fn random_mode(rng: &mut fastrand::Rng) -> Mode {
    match rng.u8(..8) {
        0..2 => Mode::Exclusive,
        2..5 => Mode::Shared,
        _ => Mode::Permits { take: rng.u32(1..3), of: rng.u32(2..4) },
    }
}

#[test]
fn it_finds_exactly_what_trying_everything_finds() {
    compare(7, |_| Mode::Exclusive);
}

#[test]
fn it_finds_exactly_what_trying_everything_finds_in_all_modes() {
    compare(8, random_mode);
    compare(9, |rng| if rng.u8(..4) == 0 { Mode::Exclusive } else { Mode::Shared });
    compare(10, |rng| Mode::Permits { take: rng.u32(1..3), of: rng.u32(2..5) });
}

fn compare(seed: u64, mode: impl Fn(&mut fastrand::Rng) -> Mode) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut good = 0;
    const HISTORIES: usize = 20_000;
    for number in 0..HISTORIES {
        let count = rng.usize(2..6);
        let random = |_| Call { mode: mode(&mut rng), ..random_call(&mut rng, 5) };
        let calls: Vec<Call> = (0..count).map(random).collect();
        let stage = vec![0; calls.len()];
        let mut naive = Naive { calls: &calls, stage, holders: Vec::new(), tokens: [0; 2], granted: Vec::new() };
        let possible = naive.is_possible();
        let mut sorted: Vec<&Call> = calls.iter().collect();
        sorted.sort_by_key(|call| call.asked);
        let found = linear::violation(&sorted, linear::Answers::Known, linear::STEPS);
        assert_eq!(found.is_none(), possible, "number {number}: {calls:#?}\n{found:?}");
        good += usize::from(possible);
    }
    // Both answers are frequent.
    assert!((HISTORIES / 10..HISTORIES * 9 / 10).contains(&good), "{good} of {HISTORIES} are possible");
}
