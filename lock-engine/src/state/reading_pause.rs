//! Decides how long a waiter in the store's queue pauses before it reads events.
//!
//! A request for events that is under way costs the store something with every change, whatever the
//! change is about. With a hundred processes in one queue, most of a MongoDB primary's work was to
//! wake them for turns of others. So a waiter does not read events at first, because its turn is
//! unlikely to be near. The event of its grant is read later.
//!
//! How long one turn takes is known from the waits before. A pause that is too long holds up all
//! others. So the estimate follows the fastest of the last turns, and a pause is half of the wait
//! that is expected. It is also no longer than half the time of a claim: even if all waiters ahead
//! leave at once, the turn is delayed, but not lost. *(Measured: with pauses of half the wait, up
//! to several seconds, claims ended during them, and 100 processes took no more turns than without
//! any pause.)*
//!
//! A caller that leaves during its pause may have had its turn without knowing. If all callers did
//! so, one turn after the other would be passed on unused. So a pause ends when half of the
//! caller's time has passed. If the caller's future is dropped, its limit is unknown. The estimate
//! is then forgotten, and without an estimate there is no pause.

use std::time::Duration;

use distlock_api::LockKey;
use tokio::time::Instant;

use crate::state::recent_keys::RecentKeys;

/// In a queue that is slower than this, events are rare.
const SLOW_TURN: Duration = Duration::from_millis(100);
/// The fewest turns from which an estimate is made. A waiter with fewer ahead does not pause.
const ENOUGH: u32 = 8;
/// A shorter pause would save nothing.
const SHORTEST: Duration = Duration::from_millis(100);
/// If all waiters ahead leave, the key is unused until the end of the pause.
const LONGEST: Duration = Duration::from_secs(1);

/// How long one turn takes, for the keys that were waited for last.
#[derive(Debug, Default)]
pub(crate) struct TurnTimes(RecentKeys<Duration>);

/// The progress of one waiter in the store's queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueProgress {
    key: LockKey,
    /// The answer from which the next turns are counted: when it was requested, and the tickets
    /// ahead.
    counted_from: (Instant, u32),
    /// The tickets ahead by the last answer.
    ahead: u32,
    /// When the present pause began, and how long it is.
    pause: (Instant, Duration),
}

/// What bounds a pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The time that a waiter has to confirm a lease that was handed over.
    pub(crate) claim: Duration,
    /// When the caller leaves.
    pub(crate) leaves: Option<Instant>,
}

impl TurnTimes {
    /// Records how long one turn of a key has taken. The estimate falls at once, and rises slowly.
    fn record(&mut self, key: &LockKey, took: Duration) {
        let slower = self.0.get(key).map(|before| before + before / 4);
        self.0.set(key, Some(slower.map_or(took, |slower| took.min(slower))));
    }

    fn forget(&mut self, key: &LockKey) {
        self.0.set(key, None);
    }

    /// Records an answer to a waiter, which was requested at `sent`, and decides how long the
    /// waiter pauses.
    pub(crate) fn advanced(&mut self, progress: &mut QueueProgress, (sent, ahead): (Instant, u32), bounds: Bounds) {
        if ahead > progress.ahead {
            // It has lost its position, perhaps because it had its turn during a pause.
            self.forget(&progress.key);
            progress.counted_from = (sent, ahead);
        } else if let Some(took) = progress.took(sent, ahead) {
            self.record(&progress.key, took);
            progress.counted_from = (sent, ahead);
        }
        progress.ahead = ahead;
        let turn = self.0.get(&progress.key);
        progress.pause = (sent, turn.map_or(Duration::ZERO, |turn| pause(turn, ahead, sent, bounds)));
    }

    /// Records that the waiter has been granted the lock.
    pub(crate) fn granted(&mut self, progress: &QueueProgress, now: Instant) {
        let late = progress.has_paused() && now < progress.pauses_until() + progress.pause.1 / 8;
        // The turn may have come at any time during the pause.
        let took = progress.took(now, 0).map(|took| if late { took / 2 } else { took });
        took.into_iter().for_each(|took| self.record(&progress.key, took));
    }

    /// Records that the waiter has left without the lock.
    pub(crate) fn left(&mut self, progress: &QueueProgress) {
        if progress.has_paused() {
            self.forget(&progress.key);
        }
    }
}

impl QueueProgress {
    pub(crate) fn new(key: LockKey, sent: Instant, ahead: u32) -> Self {
        Self { key, counted_from: (sent, ahead), ahead, pause: (sent, Duration::ZERO) }
    }

    /// Returns until when the waiter pauses.
    pub(crate) fn pauses_until(&self) -> Instant {
        self.pause.0 + self.pause.1
    }

    fn has_paused(&self) -> bool {
        !self.pause.1.is_zero()
    }

    /// Returns how long one turn has taken, if there were enough.
    fn took(&self, now: Instant, ahead: u32) -> Option<Duration> {
        let (since, before) = self.counted_from;
        let turns = before.saturating_sub(ahead);
        (turns >= ENOUGH).then(|| now.saturating_duration_since(since) / turns)
    }
}

/// Returns how long a waiter pauses, if a turn takes this long.
fn pause(turn: Duration, ahead: u32, sent: Instant, bounds: Bounds) -> Duration {
    if ahead < ENOUGH || turn > SLOW_TURN {
        return Duration::ZERO;
    }
    let left = bounds.leaves.map_or(Duration::MAX, |leaves| leaves.saturating_duration_since(sent));
    let longest = (bounds.claim / 2).min(left / 2).min(LONGEST);
    let pause = (turn * ahead / 2).min(longest);
    if pause < SHORTEST { Duration::ZERO } else { pause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::ms;

    const BOUNDS: Bounds = Bounds { claim: ms(1900), leaves: None };

    fn key() -> LockKey {
        LockKey::new("k").unwrap()
    }

    /// A waiter that finds this many tickets ahead.
    fn waiter(times: &mut TurnTimes, since: Instant, ahead: u32, bounds: Bounds) -> QueueProgress {
        let mut progress = QueueProgress::new(key(), since, ahead);
        times.advanced(&mut progress, (since, ahead), bounds);
        progress
    }

    /// Returns how long waiters pause that find these numbers of tickets ahead.
    fn pauses<const N: usize>(times: &mut TurnTimes, ahead: [u32; N]) -> [u128; N] {
        let since = Instant::now();
        ahead.map(|ahead| (waiter(times, since, ahead, BOUNDS).pauses_until() - since).as_millis())
    }

    /// Makes a wait that took this long with 100 tickets ahead.
    fn wait(times: &mut TurnTimes, took: Duration) {
        let since = Instant::now();
        let waiter = waiter(times, since, 100, BOUNDS);
        times.granted(&waiter, since + took);
    }

    #[tokio::test(start_paused = true)]
    async fn r20_a_pause_is_shorter_than_the_wait() {
        let mut times = TurnTimes::default();
        let ahead = [7, 8, 20, 100, 300, 1000];
        assert_eq!(pauses(&mut times, ahead), [0; 6], "nothing is known");
        wait(&mut times, ms(1000));
        assert_eq!(pauses(&mut times, ahead), [0, 0, 100, 500, 950, 950], "turns of 10 ms");
        let mut slow = TurnTimes::default();
        wait(&mut slow, ms(10_000));
        assert_eq!(pauses(&mut slow, ahead), [0, 400, 950, 950, 950, 950], "turns of 100 ms");
        wait(&mut slow, ms(10_100));
        assert_eq!(pauses(&mut slow, ahead), [0; 6], "events so rare cost little");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_a_pause_is_bounded_by_the_claim_and_by_the_time_of_the_caller() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(5000));
        let mut pause = |claim: u64, leaves: Option<u64>| {
            let bounds = Bounds { claim: ms(claim), leaves: leaves.map(|leaves| since + ms(leaves)) };
            (waiter(&mut times, since, 100, bounds).pauses_until() - since).as_millis()
        };
        assert_eq!(pause(60_000, None), 1000, "half of 5 s are expected");
        assert_eq!(pause(1100, None), 550);
        assert_eq!(pause(1100, Some(1000)), 500);
        assert_eq!(pause(1100, Some(199)), 0, "too short for a pause");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_the_estimate_follows_the_fastest_of_the_last_waits() {
        let mut times = TurnTimes::default();
        let mut after = |took| {
            wait(&mut times, ms(took));
            times.0.get(&key()).unwrap().as_micros()
        };
        assert_eq!(after(1000), 10_000);
        assert_eq!(after(2000), 12_500, "it rises slowly");
        assert_eq!(after(1600), 15_625);
        assert_eq!(after(1100), 11_000, "and falls at once");
        // The pause was of 550 ms.
        assert_eq!(after(600), 3000, "a turn that came during the pause may have come at any time of it");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_after_a_turn_that_may_have_been_missed_nothing_is_known() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(1000));
        let no_pause = waiter(&mut times, since, 7, BOUNDS);
        times.left(&no_pause);
        assert_eq!(times.0.get(&key()), Some(ms(10)), "it did not pause");
        let mut waiter = waiter(&mut times, since, 100, BOUNDS);
        times.left(&waiter);
        assert_eq!(times.0.get(&key()), None);
        wait(&mut times, ms(1000));
        times.advanced(&mut waiter, (since + ms(2000), 101), BOUNDS);
        assert_eq!(times.0.get(&key()), None, "it has lost its position");
        assert_eq!(waiter.pauses_until(), since + ms(2000));
    }

    #[tokio::test(start_paused = true)]
    async fn r20_the_progress_of_the_present_wait_counts_too() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(5000));
        let mut waiter = waiter(&mut times, since, 300, BOUNDS);
        let mut pause = |at: u64, ahead| {
            times.advanced(&mut waiter, (since + ms(at), ahead), BOUNDS);
            (waiter.pauses_until() - since - ms(at)).as_millis()
        };
        assert_eq!(pause(0, 300), 950, "300 turns of 50 ms");
        assert_eq!(pause(4000, 200), 950, "200 of 40 ms");
        assert_eq!(pause(4200, 100), 100, "100 of 2 ms: it counts from the last answer");
        assert_eq!(pause(4300, 7), 0, "too few are left for a pause");
    }
}
