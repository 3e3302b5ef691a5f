//! The durations of grants and hand-overs, from histories.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::{Call, CallKind, End, by_key};

/// How many samples of a check are kept, evenly spread from the least to the greatest.
const MOST: usize = 200;
/// How many calls of a key are considered.
const MOST_CALLS: usize = 400;

/// Microseconds, sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measures {
    /// From the request to the grant of a lock that was free all that time.
    pub(crate) acquire_us: Vec<f64>,
    /// From the beginning of a release to the grant to a waiter.
    pub(crate) hand_over_us: Vec<f64>,
}

impl Measures {
    pub(crate) fn of(calls: &[Call]) -> Self {
        let mut measures = Self::default();
        for mut of_key in by_key(calls) {
            of_key.truncate(MOST_CALLS);
            measures.acquire_us.extend(free_grants(&of_key).map(micros));
            measures.hand_over_us.extend(hand_overs(&of_key).into_iter().map(micros));
        }
        measures.tidy();
        measures
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.acquire_us.extend(other.acquire_us);
        self.hand_over_us.extend(other.hand_over_us);
        self.tidy();
    }

    fn tidy(&mut self) {
        for samples in [&mut self.acquire_us, &mut self.hand_over_us] {
            samples.sort_by(f64::total_cmp);
            if samples.len() > MOST {
                let last = samples.len() - 1;
                *samples = (0..MOST).map(|place| samples[place * last / (MOST - 1)]).collect();
            }
        }
    }
}

fn free_grants<'a>(calls: &'a [&Call]) -> impl Iterator<Item = Duration> + 'a {
    calls.iter().enumerate().filter_map(move |(number, call)| {
        let (CallKind::Granted { .. }, Some(answered)) = (&call.what, call.answered) else { return None };
        let is_in_the_way = |other: &Call| {
            let hold = other.possible_hold();
            hold.is_some_and(|(from, until)| from <= answered && until.is_none_or(|until| until >= call.asked))
        };
        let others = calls.iter().enumerate().filter(|(other, _)| *other != number);
        let free = !others.into_iter().any(|(_, other)| is_in_the_way(other));
        free.then(|| answered.saturating_sub(call.asked))
    })
}

fn hand_overs(calls: &[&Call]) -> Vec<Duration> {
    let mut holds: Vec<&Call> = calls.iter().copied().filter(|call| call.hold().is_some()).collect();
    holds.sort_by_key(|call| call.answered);
    let hand_over = |pair: &[&Call]| match (&pair[0].what, pair[1].answered) {
        (CallKind::Granted { end: End::Released { asked, .. }, .. }, Some(granted))
            if pair[1].asked < *asked && pair[0].excludes(pair[1]) =>
        {
            granted.checked_sub(*asked)
        }
        _ => None,
    };
    holds.windows(2).filter_map(hand_over).collect()
}

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e9).round() / 1e3
}
