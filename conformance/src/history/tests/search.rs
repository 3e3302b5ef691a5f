//! Compares the checker's search with an exhaustive one, on thousands of small histories.

use super::super::linear;
use super::*;

/// The remaining effects, and the state of the lock.
struct Naive<'a> {
    calls: &'a [Call],
    /// For each call: nothing yet, granted, over.
    stage: Vec<u8>,
    holder: Option<usize>,
    token: u64,
}

type Interval = (Duration, Option<Duration>);

impl Naive<'_> {
    /// Returns the interval of the next effect of a call; `None` after the last one. An open effect
    /// may not happen.
    fn next(&self, call: usize) -> Option<Interval> {
        let Call { asked, answered, ref what, .. } = self.calls[call];
        match (what, self.stage[call]) {
            (What::Granted { .. } | What::Busy, 0) => Some((asked, answered)),
            (What::NotGranted, 0 | 1) => Some((asked, None)),
            (What::Granted { until, end, .. }, 1) => match end {
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
                What::Granted { end: End::Released { answered, .. }, .. } => Some(*answered),
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
        let before = (self.stage[call], self.holder, self.token);
        let possible = match (&self.calls[call].what, self.stage[call]) {
            (What::Granted { token, .. }, 0) => {
                let free = self.holder.is_none() && *token > self.token;
                (self.holder, self.token) = (Some(call), *token);
                free
            }
            (What::NotGranted, 0) => self.holder.replace(call).is_none(),
            (What::Busy, _) => self.holder.is_some(),
            _ => self.holder.take() == Some(call),
        };
        self.stage[call] += if self.calls[call].what == What::Busy { 2 } else { 1 };
        let possible = possible && self.is_possible();
        (self.stage[call], self.holder, self.token) = before;
        possible
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
        _ => busy(1, a, b.max(c)),
    }
}

#[test]
fn it_finds_exactly_what_trying_everything_finds() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut good = 0;
    const HISTORIES: usize = 20_000;
    for number in 0..HISTORIES {
        let calls: Vec<Call> = (0..rng.usize(2..6)).map(|_| random_call(&mut rng, 5)).collect();
        let mut naive = Naive { calls: &calls, stage: vec![0; calls.len()], holder: None, token: 0 };
        let possible = naive.is_possible();
        let mut sorted: Vec<&Call> = calls.iter().collect();
        sorted.sort_by_key(|call| call.asked);
        let found = linear::violation(&sorted, linear::STEPS);
        assert_eq!(found.is_none(), possible, "number {number}: {calls:#?}\n{found:?}");
        good += usize::from(possible);
    }
    // Both answers are frequent.
    assert!((HISTORIES / 10..HISTORIES * 9 / 10).contains(&good), "{good} of {HISTORIES} are possible");
}
