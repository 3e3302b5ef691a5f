//! What is told of an event that happens again and again, such as each renewal of a thousand
//! leases while the server is down.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long the same is only counted.
const PERIOD: Duration = Duration::from_secs(10);

/// Events that were told lately, by what has happened and why. Both are constants of the code, so
/// there are few.
#[derive(Debug, Default)]
pub(crate) struct Repeats(HashMap<(&'static str, &'static str), Told>);

#[derive(Debug)]
struct Told {
    at: Instant,
    untold: u64,
}

impl Repeats {
    /// Returns how many such events are told now, these included: all since the last time. `None`
    /// if they are only counted, because the same was told a short time ago.
    pub(crate) fn tell(&mut self, what: &'static str, why: &'static str, count: u64, now: Instant) -> Option<u64> {
        match self.0.get_mut(&(what, why)) {
            Some(told) if now < told.at + PERIOD => {
                told.untold += count;
                None
            }
            known => {
                let untold = known.map_or(0, |told| told.untold);
                self.0.insert((what, why), Told { at: now, untold: 0 });
                Some(untold + count)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_the_others_are_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut tell = |why, count, after: Duration| repeats.tell("renewal", why, count, start + after);
        assert_eq!(tell("unavailable", 1, Duration::ZERO), Some(1));
        for n in 1..100 {
            assert_eq!(tell("unavailable", 2, PERIOD * n / 100), None);
        }
        assert_eq!(tell("timeout", 1, PERIOD / 2), Some(1), "another cause");
        assert_eq!(tell("unavailable", 2, PERIOD), Some(200));
        assert_eq!(tell("unavailable", 3, PERIOD * 3), Some(3));
    }
}
