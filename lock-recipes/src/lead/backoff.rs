//! How long to pause after a failure (L5). The random part is an argument.

use distlock_api::{LockError, Result};
use std::time::Duration;

/// The longest pause that can be set.
const MAX: Duration = Duration::from_secs(3600);

/// The pauses after failures in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    pub(super) const DEFAULT: Self = Self::new(Duration::from_millis(200), Duration::from_secs(15));

    pub(super) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Checks the two limits.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { first, longest, .. } = self;
        let mistake = if first.is_zero() {
            "the first pause after a failure must not be zero".to_owned()
        } else if first > longest {
            format!("the first pause ({first:?}) must not be longer than the longest ({longest:?})")
        } else if *longest > MAX {
            format!("a pause of {longest:?} is above the longest one, {MAX:?}")
        } else {
            return Ok(());
        };
        Err(LockError::invalid_options(mistake))
    }

    /// Returns the pause after one more failure: it doubles, and is shortened by a random part of
    /// up to a half. `random` is uniform in `0.0..1.0`.
    pub(super) fn next(&mut self, random: f64) -> Duration {
        let full = self.first.saturating_mul(1 << self.failures.min(20)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(1.0 - random / 2.0)
    }

    /// Begins again with the first pause, after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether the last step was a failure.
    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Whether a term of this length was a success, although its task failed in the end.
    pub(super) fn is_long(&self, term: Duration) -> bool {
        term >= self.longest
    }
}

/// Returns a number in `0.0..1.0`, from the keys that the standard library gives to hash maps. Good
/// enough to spread candidates, without a dependency.
pub(super) fn random() -> f64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let bits = (RandomState::new().build_hasher().finish() >> 11) as f64;
    bits / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again() {
        let mut backoff = Backoff::new(ms(100), ms(500));
        assert_eq!([0; 5].map(|_| backoff.next(0.0)), [ms(100), ms(200), ms(400), ms(500), ms(500)]);
        assert_eq!(backoff.next(0.5), ms(375));
        assert!(backoff.is_failing() && backoff.is_long(ms(500)) && !backoff.is_long(ms(499)));
        backoff.reset();
        assert!(!backoff.is_failing());
        assert_eq!(backoff.next(0.0), ms(100));
        for _ in 0..100 {
            assert!(backoff.next(random()) <= ms(500), "no overflow");
        }
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        for (first, longest, expected) in [
            (ms(0), ms(1), "must not be zero"),
            (ms(2), ms(1), "longer than"),
            (ms(1), MAX + ms(1), "above the longest"),
        ] {
            let error = Backoff::new(first, longest).validate().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(Backoff::DEFAULT.validate().is_ok() && Backoff::new(MAX, MAX).validate().is_ok());
    }

    #[test]
    fn random_numbers_differ_and_are_in_range() {
        let numbers: Vec<f64> = (0..100).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.iter().any(|number| *number < 0.5) && numbers.iter().any(|number| *number >= 0.5));
    }
}
