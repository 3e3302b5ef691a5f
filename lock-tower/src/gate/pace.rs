//! How long requests hold locks: the basis of `Retry-After`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest wait that is ever suggested.
const LONGEST: Duration = Duration::from_secs(3600);

/// An exponentially weighted average of hold times; the newest counts one eighth.
///
/// Concurrent updates may overwrite each other, which matters little to an average.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds; zero before the first hold.
    average: AtomicU64,
}

impl Pace {
    pub(crate) fn record(&self, hold: Duration) {
        let hold = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::MAX / 8);
        let average = match self.average.load(Ordering::Relaxed) {
            0 => hold,
            average => (average - average / 8 + hold / 8).max(1),
        };
        self.average.store(average, Ordering::Relaxed);
    }

    /// Returns the average, if there was a hold.
    pub(crate) fn average(&self) -> Option<Duration> {
        let nanos = self.average.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the expected wait of a caller behind `ahead` others, the holder included.
    pub(crate) fn estimate(&self, ahead: usize) -> Option<Duration> {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX).max(1);
        Some(self.average()?.saturating_mul(ahead).min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_with_the_first_hold_and_follows_the_later_ones() {
        let pace = Pace::default();
        assert_eq!(pace.estimate(3), None);
        pace.record(Duration::from_millis(800));
        assert_eq!(pace.estimate(3), Some(Duration::from_millis(2400)));
        for _ in 0..100 {
            pace.record(Duration::from_millis(80));
        }
        let average = pace.average().unwrap();
        assert!(average > Duration::from_millis(79) && average < Duration::from_millis(81), "{average:?}");
    }

    #[test]
    fn extremes_do_not_overflow() {
        let pace = Pace::default();
        pace.record(Duration::MAX);
        pace.record(Duration::MAX);
        assert_eq!(pace.estimate(usize::MAX), Some(LONGEST));
    }
}
