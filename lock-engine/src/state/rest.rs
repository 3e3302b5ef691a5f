//! Decides from when a waiter in the store's queue needs events.
//!
//! A request for events that is under way costs the store something with every change, whatever the
//! change is about. With a hundred processes in one queue, most of a MongoDB primary's work was to
//! wake them for turns of others. So a waiter rests at first: its turn cannot be near. An event is
//! not lost by that, only read later.
//!
//! How long one turn takes is known from the waits before. A waiter that rests for too long holds
//! up all others. So the estimate follows the fastest of the last waits, and a rest is half of the
//! wait that is expected. Above all, it is no longer than half the time of a claim: even if all
//! waiters ahead leave at once, the turn is delayed, but not lost. *(Measured: with rests of half
//! the wait, up to several seconds, claims ended while their waiters rested, and 100 processes took
//! no more turns than without any rest.)*
//!
//! A caller that leaves while it rests may have had its turn without knowing. If all callers did
//! so, one turn after the other would be passed on unused. So a rest ends when half of the caller's
//! time has passed. A caller whose future is dropped has a limit that is not known here: then the
//! next one rests for as long as if nothing were known of the key.

use std::time::Duration;

use distlock_api::LockKey;
use tokio::time::Instant;

use crate::state::places::Places;

/// How long one turn takes at least, as long as nothing is known of a key: two requests that a
/// majority confirms.
const SHORTEST_TURN: Duration = Duration::from_millis(2);
/// In a queue that is slower than this, events are rare.
const SLOW_TURN: Duration = Duration::from_millis(100);
/// How many turns tell how long one takes. A waiter with fewer ahead does not rest.
const ENOUGH: u32 = 8;
/// A shorter rest would save nothing.
const SHORTEST_REST: Duration = Duration::from_millis(100);
/// If all waiters ahead leave, the key is unused until the end of the rest.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// How long one turn takes, for the keys that were waited for last.
#[derive(Debug, Default)]
pub(crate) struct TurnTimes(Places<Duration>);

/// A place in the store's queue, since the first answer that told it.
#[derive(Clone, Debug)]
pub(crate) struct QueuePlace {
    key: LockKey,
    since: Instant,
    ahead: u32,
    /// When the present rest began, and how long it is.
    rest: (Instant, Duration),
}

impl TurnTimes {
    fn get(&self, key: &LockKey) -> Duration {
        self.0.get(key).unwrap_or(SHORTEST_TURN)
    }

    /// Records how long one turn of a key has taken. The estimate falls at once, and rises slowly.
    fn record(&mut self, key: &LockKey, took: Duration) {
        let slower = self.0.get(key).map(|before| before + before / 4);
        self.0.set(key, Some(slower.map_or(took, |slower| took.min(slower)).max(SHORTEST_TURN)));
    }

    /// Records that the waiter at this place has been granted the lock.
    pub(crate) fn granted(&mut self, place: &QueuePlace, now: Instant) {
        let took = place.took(now, 0);
        let late = place.has_rested() && now < place.rests_until() + place.rest.1 / 8;
        // The turn may have come at any time during the rest.
        took.into_iter().for_each(|took| self.record(&place.key, if late { took / 2 } else { took }));
    }

    /// Records that the waiter at this place has left without the lock.
    pub(crate) fn left(&mut self, place: &QueuePlace) {
        if place.has_rested() {
            self.0.set(&place.key, None);
        }
    }
}

/// What bounds a rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The time that a waiter has to confirm a lease that was handed over.
    pub(crate) claim: Duration,
    /// When the caller leaves.
    pub(crate) leaves: Option<Instant>,
}

/// Returns how long a waiter rests, if a turn takes this long.
fn rest(turn: Duration, ahead: u32, sent: Instant, bounds: Bounds) -> Duration {
    if ahead < ENOUGH || turn > SLOW_TURN {
        return Duration::ZERO;
    }
    let left = bounds.leaves.map_or(Duration::MAX, |leaves| leaves.saturating_duration_since(sent));
    let longest = (bounds.claim / 2).min(left / 2).min(LONGEST_REST);
    let rest = (turn * ahead / 2).min(longest);
    if rest < SHORTEST_REST { Duration::ZERO } else { rest }
}

impl QueuePlace {
    pub(crate) fn new(key: LockKey, since: Instant, ahead: u32) -> Self {
        Self { key, since, ahead, rest: (since, Duration::ZERO) }
    }

    /// Returns until when the waiter rests.
    pub(crate) fn rests_until(&self) -> Instant {
        self.rest.0 + self.rest.1
    }

    fn has_rested(&self) -> bool {
        !self.rest.1.is_zero()
    }

    /// Returns how long one turn has taken, if the queue has advanced enough to tell.
    fn took(&self, now: Instant, ahead: u32) -> Option<Duration> {
        let turns = self.ahead.saturating_sub(ahead);
        (turns >= ENOUGH).then(|| now.saturating_duration_since(self.since) / turns)
    }

    /// Decides how long to rest after an answer that was requested at `sent`.
    pub(crate) fn advanced(&mut self, times: &TurnTimes, (sent, ahead): (Instant, u32), bounds: Bounds) {
        let turn = times.get(&self.key).min(self.took(sent, ahead).unwrap_or(Duration::MAX));
        self.rest = (sent, rest(turn, ahead, sent, bounds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const BOUNDS: Bounds = Bounds { claim: ms(1900), leaves: None };

    fn key() -> LockKey {
        LockKey::new("k").unwrap()
    }

    fn place(times: &TurnTimes, since: Instant, ahead: u32, bounds: Bounds) -> QueuePlace {
        let mut place = QueuePlace::new(key(), since, ahead);
        place.advanced(times, (since, ahead), bounds);
        place
    }

    /// Returns how long a waiter rests that finds this many tickets ahead.
    fn rest_of(times: &TurnTimes, ahead: u32) -> u128 {
        let since = Instant::now();
        (place(times, since, ahead, BOUNDS).rests_until() - since).as_millis()
    }

    /// Makes a wait that took this long with 100 tickets ahead.
    fn wait(times: &mut TurnTimes, took: Duration) {
        let since = Instant::now();
        let place = place(times, since, 100, BOUNDS);
        times.granted(&place, since + took);
    }

    #[tokio::test(start_paused = true)]
    async fn r20_a_rest_is_shorter_than_the_wait() {
        let mut times = TurnTimes::default();
        let rests = |times: &TurnTimes| [7, 8, 20, 100, 300, 1000].map(|ahead| rest_of(times, ahead));
        assert_eq!(rests(&times), [0, 0, 0, 100, 300, 950], "nothing is known: turns of 2 ms");
        wait(&mut times, ms(1000));
        assert_eq!(rests(&times), [0, 0, 100, 500, 950, 950], "turns of 10 ms");
        let mut slow = TurnTimes::default();
        wait(&mut slow, ms(10_000));
        assert_eq!(rests(&slow), [0, 400, 950, 950, 950, 950], "turns of 100 ms");
        wait(&mut slow, ms(10_100));
        assert_eq!(rests(&slow), [0; 6], "events so rare cost little");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_a_rest_is_bounded_by_the_claim_and_by_the_time_of_the_caller() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(5000));
        let rest = |claim: u64, leaves: Option<u64>| {
            let bounds = Bounds { claim: ms(claim), leaves: leaves.map(|leaves| since + ms(leaves)) };
            (place(&times, since, 100, bounds).rests_until() - since).as_millis()
        };
        assert_eq!(rest(60_000, None), 1000, "half of 5 s are expected");
        assert_eq!(rest(1100, None), 550);
        assert_eq!(rest(1100, Some(1000)), 500);
        assert_eq!(rest(1100, Some(199)), 0, "too short for a rest");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_the_estimate_follows_the_fastest_of_the_last_waits() {
        let mut times = TurnTimes::default();
        let mut after = |took| {
            wait(&mut times, ms(took));
            times.get(&key()).as_micros()
        };
        assert_eq!(after(1000), 10_000);
        assert_eq!(after(2000), 12_500, "it rises slowly");
        assert_eq!(after(1600), 15_625);
        assert_eq!(after(1100), 11_000, "and falls at once");
        // The rest was of 550 ms.
        assert_eq!(after(600), 3000, "a turn that came during the rest may have come at any time of it");
        assert_eq!(after(1), 2000, "the least");
    }

    #[tokio::test(start_paused = true)]
    async fn r20_who_leaves_after_a_rest_may_have_missed_a_turn() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(1000));
        times.left(&place(&times, since, 7, BOUNDS));
        assert_eq!(times.get(&key()), ms(10), "it did not rest");
        times.left(&place(&times, since, 100, BOUNDS));
        assert_eq!(times.get(&key()), SHORTEST_TURN);
    }

    #[tokio::test(start_paused = true)]
    async fn r20_the_progress_of_the_present_wait_counts_too() {
        let (mut times, since) = (TurnTimes::default(), Instant::now());
        wait(&mut times, ms(5000));
        let mut place = place(&times, since, 200, BOUNDS);
        assert_eq!(place.rests_until(), since + ms(950), "200 turns of 50 ms");
        place.advanced(&times, (since + ms(1000), 100), BOUNDS);
        assert_eq!(place.rests_until(), since + ms(1500), "100 of 10 ms are left");
        place.advanced(&times, (since + ms(2000), 7), BOUNDS);
        assert_eq!(place.rests_until(), since + ms(2000), "too few are left for a rest");
    }
}
