//! How long to wait before asking again, and how long to hand a lease on. Pure; the random part comes in as a number.

use std::time::Duration;

use tokio::time::Instant;

use crate::contention::HandOff;

/// How a waiter polls a store that does not tell it more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Poll {
    /// The pause before the next question after `asked` answers of "busy": doubling, jittered down by up to a half, and not past the
    /// moment at which the present holder's lease ends unless it is renewed.
    ///
    /// `random` is uniform in `0.0..1.0`.
    pub(super) fn pause(self, asked: u32, holder_remaining: Option<Duration>, random: f64) -> Duration {
        let jittered = self.backoff(asked).mul_f64(1.0 - random / 2.0);
        match holder_remaining {
            // A store that says "at once" again and again is not asked again and again.
            Some(remaining) if asked > 0 && remaining < self.first => jittered,
            // Not all of them in the same millisecond; later by a little, because the store frees at its own expiry.
            Some(remaining) => jittered.min(remaining.saturating_add(self.first.mul_f64(0.1 + random / 2.0))),
            None => jittered,
        }
    }

    fn backoff(self, asked: u32) -> Duration {
        self.first.saturating_mul(1 << asked.min(16)).min(self.longest)
    }
}

/// The pause after the `failed`-th error in a row: 20 ms doubling to 1 s, jittered down by up to a half.
pub(super) fn after_error(failed: u32, random: f64) -> Duration {
    Poll { first: Duration::from_millis(20), longest: Duration::from_secs(1) }.pause(failed, None, random)
}

/// When to ask again for a renewal that has failed, or has not been answered: after a third of what is left, so that there is always
/// time for more attempts before the deadline (C13, C14).
pub(super) fn renewal_patience(left: Duration, cadence: Duration) -> Duration {
    (left / 3).min(cadence).max(Duration::from_millis(10))
}

/// How many renewals to put into one call, for leases that have failed `level` times in a row.
///
/// One poisoned key must not take its batch with it (C14), so each failure divides the batch by four, down to single
/// leases.
pub(super) fn chunk(level: u32, batch: usize) -> usize {
    (batch >> (2 * level).min(usize::BITS - 1)).max(1)
}

/// How long a lease has been handed on within the process, and what is known of those who wait elsewhere (R21).
#[derive(Clone, Copy, Debug)]
pub(super) struct Relay {
    /// The grant, or the last time at which nobody waited elsewhere.
    since: Instant,
    /// How often it has been handed on since then.
    count: u32,
    others: Others,
    /// Whether a question is under way.
    asked: bool,
    /// Whether the last answer is younger than the last guard.
    fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Unknown,
    /// Nobody, as of `since`.
    None,
    Wait,
}

impl Relay {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, count: 0, others: Others::Unknown, asked: false, fresh: false }
    }

    /// Whether it may be handed on once more: while somebody waits elsewhere, within both limits. Until that is known within the time, and whatever the
    /// first guard's work has taken; where nobody waited when the present guard worked, in any case.
    pub(super) fn may_go_on(&self, now: Instant, limits: &HandOff) -> bool {
        let in_time = now.saturating_duration_since(self.since) < limits.max_time;
        match self.others {
            Others::Wait => in_time && self.count < limits.max_count,
            Others::Unknown => in_time || self.count == 0,
            Others::None => in_time || self.fresh,
        }
    }

    pub(super) fn went_on(&mut self) {
        self.count = self.count.saturating_add(1);
        self.fresh = false;
    }

    /// Whether to ask now who waits elsewhere; true once per question.
    pub(super) fn asks(&mut self, now: Instant, limits: &HandOff) -> bool {
        let due = match self.others {
            Others::Unknown => true,
            Others::None => now.saturating_duration_since(self.since) >= limits.max_time / 2,
            Others::Wait => false,
        };
        due && !std::mem::replace(&mut self.asked, true)
    }

    /// The answer to a question that was sent then.
    pub(super) fn told(&mut self, sent: Instant, others: bool) {
        if others {
            (self.others, self.asked) = (Others::Wait, false);
        } else {
            *self = Self { others: Others::None, fresh: true, ..Self::new(sent) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }
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
            left = left.saturating_sub(renewal_patience(left, ms(10_000)));
            attempts += 1;
        }
        assert!(attempts >= 10, "{attempts}");
    }

    #[test]
    fn a_poisoned_key_is_alone_in_the_fourth_round() {
        assert_eq!([0, 1, 2, 3, 40].map(|level| chunk(level, 100)), [100, 25, 6, 1, 1]);
        assert_eq!(chunk(0, 1), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn r21_handing_on_is_bounded_while_others_wait_and_only_then() {
        let limits = HandOff::new().max_count(3).max_time(ms(100));
        let start = Instant::now();
        let mut relay = Relay::new(start);
        assert!(relay.may_go_on(start + ms(5000), &limits), "the first guard's own work does not count");
        assert!(relay.asks(start, &limits) && !relay.asks(start, &limits), "one question at a time");
        (0..50).for_each(|_| relay.went_on());
        assert!(relay.may_go_on(start + ms(99), &limits), "nobody is known to wait");
        assert!(!relay.may_go_on(start + ms(100), &limits), "but somebody may");
        relay.told(start + ms(90), false);
        assert!(relay.may_go_on(start + ms(900), &limits), "nobody did when this guard worked");
        relay.went_on();
        assert!(relay.may_go_on(start + ms(189), &limits) && !relay.may_go_on(start + ms(190), &limits));
        assert!(!relay.asks(start + ms(139), &limits) && relay.asks(start + ms(140), &limits));
        relay.told(start + ms(140), true);
        assert!(relay.may_go_on(start + ms(141), &limits));
        (0..3).for_each(|_| relay.went_on());
        assert!(!relay.may_go_on(start + ms(141), &limits), "by count");
        assert!(!relay.asks(start + ms(185), &limits), "it is known that somebody waits");
    }
}
