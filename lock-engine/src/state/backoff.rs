//! How long to wait before the next attempt. The random part is an argument.

use std::time::Duration;

/// How a waiter polls a store that reports neither events nor a holder's expiry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poll {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Poll {
    /// Returns the pause before the next attempt, after `busy_answers` answers of "busy". It
    /// doubles with each answer, and is shortened by a random part of up to a half. It ends no
    /// later than the present holder's lease would end without a renewal.
    ///
    /// `random` is uniform in `0.0..1.0`.
    pub(crate) fn pause(self, busy_answers: u32, holder_remaining: Option<Duration>, random: f64) -> Duration {
        let jittered = self.backoff(busy_answers).mul_f64(1.0 - random / 2.0);
        match holder_remaining {
            // A store that keeps answering "at once" is not polled without a pause.
            Some(remaining) if busy_answers > 0 && remaining < self.first => jittered,
            // Not all waiters in the same millisecond. A little later than the expiry, because the
            // store frees the key at its own expiry.
            Some(remaining) => jittered.min(remaining.saturating_add(self.first.mul_f64(0.1 + random / 2.0))),
            None => jittered,
        }
    }

    /// Returns the pauses of a caller without a place in a full queue. The key is not for it yet,
    /// and its attempts slow down those that have places.
    pub(crate) fn outside_the_queue(self) -> Self {
        Self { longest: self.longest.saturating_mul(8), ..self }
    }

    fn backoff(self, busy_answers: u32) -> Duration {
        self.first.saturating_mul(1 << busy_answers.min(16)).min(self.longest)
    }
}

/// Returns the pause after the `failed`-th error in a row: 20 ms doubling to 1 s, shortened by a
/// random part of up to a half.
pub(crate) fn after_error(failed: u32, random: f64) -> Duration {
    Poll { first: Duration::from_millis(20), longest: Duration::from_secs(1) }.pause(failed, None, random)
}

/// Returns how long to wait before a renewal that failed or was not answered is sent again: a third
/// of the time left. So there is always time for more attempts before the deadline (C13, C14).
pub(crate) fn renewal_retry_after(left: Duration, cadence: Duration) -> Duration {
    (left / 3).min(cadence).max(Duration::from_millis(10))
}

/// Returns how many renewals to put into one call, for leases that have failed `level` times in a
/// row.
///
/// One poisoned key must not take its batch with it (C14), so each failure divides the batch by
/// four, down to single leases.
pub(crate) fn chunk(level: u32, batch: usize) -> usize {
    (batch >> (2 * level).min(usize::BITS - 1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::ms;

    const POLL: Poll = Poll { first: ms(10), longest: ms(250) };

    #[test]
    fn polling_backs_off_to_the_longest_pause() {
        assert_eq!(POLL.pause(0, None, 0.0), ms(10));
        assert_eq!(POLL.pause(2, None, 0.0), ms(40));
        assert_eq!(POLL.pause(40, None, 0.0), ms(250));
        assert_eq!(POLL.pause(40, None, 1.0), ms(125));
    }

    #[test]
    fn polling_does_not_sleep_past_the_expiry() {
        let pause = POLL.pause(40, Some(ms(30)), 0.5);
        assert!(pause > ms(30) && pause < ms(40), "{pause:?}");
        assert_eq!(POLL.pause(0, Some(ms(30_000)), 0.0), ms(10));
    }

    #[test]
    fn there_is_always_time_for_more_renewals() {
        let (mut left, mut attempts) = (ms(17_000), 0);
        while left > ms(10) {
            left = left.saturating_sub(renewal_retry_after(left, ms(10_000)));
            attempts += 1;
        }
        assert!(attempts >= 10, "{attempts}");
    }

    #[test]
    fn a_poisoned_key_is_alone_in_the_fourth_round() {
        assert_eq!([0, 1, 2, 3, 40].map(|level| chunk(level, 100)), [100, 25, 6, 1, 1]);
        assert_eq!(chunk(0, 1), 1);
    }
}
