//! Which requests go to the store together, and when.
//!
//! While as many calls are under way as the store is given at once, further requests wait, and go
//! together when one of the calls ends: the busier the store, the larger the batches. A request
//! that finds fewer calls goes at once and alone. No request waits longer than a fraction of a
//! call's usual duration ([`Gather::patience`]); then all that wait go, besides the others.

use std::collections::BTreeMap;
use std::time::Duration;

/// How many calls are under way before requests wait for company.
const AT_ONCE: usize = 4;
/// How many full batches may wait. Requests beyond go without company, through the lanes, which
/// refuse what would come too late.
const MOST_WAITING: usize = 4;
/// The bounds of [`Gather::patience`].
const PATIENCE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The requests of one kind that wait for company.
pub(crate) struct Gather<T> {
    /// Calls that were sent and have not ended.
    under_way: usize,
    /// A moving average of how long calls take.
    pace: Duration,
    waiting: BTreeMap<u64, T>,
    arrived: u64,
}

/// What becomes of a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<T> {
    /// It goes at once; [`Gather::ended`] must be called.
    Alone(T),
    /// It waits under this number.
    Waits(u64),
    /// It goes at once, together with those that waited; `ended` must be called.
    Together(u64, Vec<T>),
    /// Too many wait: it goes without company.
    Full(T),
}

impl<T> Default for Gather<T> {
    fn default() -> Self {
        Self { under_way: 0, pace: PATIENCE.0 * 2, waiting: BTreeMap::new(), arrived: 0 }
    }
}

impl<T> Gather<T> {
    /// A request arrives, at a store that takes `batch` of them in one call.
    pub(crate) fn arrive(&mut self, request: T, batch: usize) -> Arrival<T> {
        let room = self.under_way < AT_ONCE;
        if room && self.waiting.is_empty() {
            self.under_way += 1;
            return Arrival::Alone(request);
        }
        if self.waiting.len() >= batch * MOST_WAITING {
            return Arrival::Full(request);
        }
        self.arrived += 1;
        let number = self.arrived;
        self.waiting.insert(number, request);
        if room { Arrival::Together(number, self.next(batch)) } else { Arrival::Waits(number) }
    }

    /// Takes the next batch. If it is empty, there is no call.
    fn next(&mut self, batch: usize) -> Vec<T> {
        let count = self.waiting.len().min(batch);
        let next: Vec<T> = std::iter::from_fn(|| self.waiting.pop_first()).take(count).map(|(_, item)| item).collect();
        self.under_way += usize::from(!next.is_empty());
        next
    }

    /// A call has ended after so much time. Returns the requests that go together now.
    pub(crate) fn ended(&mut self, took: Duration, batch: usize) -> Vec<T> {
        self.under_way -= 1;
        self.pace = (self.pace * 7 + took) / 8;
        if self.under_way < AT_ONCE { self.next(batch) } else { Vec::new() }
    }

    /// A request has waited for [`patience`](Self::patience). Returns the requests that go together
    /// now; nothing if this one no longer waits.
    pub(crate) fn overdue(&mut self, number: u64, batch: usize) -> Vec<T> {
        if self.waiting.contains_key(&number) { self.next(batch) } else { Vec::new() }
    }

    /// The caller of a request has left. Returns the request, if it still waits.
    pub(crate) fn leave(&mut self, number: u64) -> Option<T> {
        self.waiting.remove(&number)
    }

    /// How long a request waits for company at most.
    pub(crate) fn patience(&self) -> Duration {
        (self.pace / 2).clamp(PATIENCE.0, PATIENCE.1)
    }

    /// How long calls take.
    pub(crate) fn pace(&self) -> Duration {
        self.pace
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn busy(batch: usize) -> Gather<u32> {
        let mut gather = Gather::default();
        for request in 0..AT_ONCE as u32 {
            assert_eq!(gather.arrive(request, batch), Arrival::Alone(request));
        }
        gather
    }

    #[test]
    fn requests_go_together_when_a_call_ends() {
        let mut gather = busy(3);
        for request in 10..15 {
            assert!(matches!(gather.arrive(request, 3), Arrival::Waits(_)));
        }
        assert_eq!(gather.ended(MS, 3), [10, 11, 12], "in the order of their arrival");
        assert_eq!(gather.ended(MS, 3), [13, 14]);
        assert!(gather.ended(MS, 3).is_empty());
    }

    #[test]
    fn a_request_with_nothing_under_way_goes_alone() {
        let mut gather = busy(3);
        for _ in 0..AT_ONCE {
            assert!(gather.ended(MS, 3).is_empty());
        }
        assert_eq!(gather.arrive(7, 3), Arrival::Alone(7));
    }

    #[test]
    fn a_caller_that_leaves_is_not_in_the_batch() {
        let mut gather = busy(3);
        let Arrival::Waits(number) = gather.arrive(10, 3) else { panic!("no call has ended") };
        gather.arrive(11, 3);
        assert_eq!(gather.leave(number), Some(10));
        assert_eq!(gather.leave(number), None);
        assert!(gather.overdue(number, 3).is_empty(), "it has left");
        assert_eq!(gather.ended(MS, 3), [11]);
    }

    #[test]
    fn an_overdue_request_takes_the_others_along_beside_the_calls() {
        let mut gather = busy(3);
        let Arrival::Waits(number) = gather.arrive(10, 3) else { panic!("no call has ended") };
        gather.arrive(11, 3);
        assert_eq!(gather.overdue(number, 3), [10, 11]);
        gather.arrive(12, 3);
        assert!(gather.ended(MS, 3).is_empty(), "as many as before are still under way");
        assert_eq!(gather.ended(MS, 3), [12]);
    }

    #[test]
    fn requests_beyond_the_bound_go_without_company() {
        let mut gather = busy(2);
        for request in 0..2 * MOST_WAITING as u32 {
            assert!(matches!(gather.arrive(request, 2), Arrival::Waits(_)));
        }
        assert_eq!(gather.arrive(99, 2), Arrival::Full(99));
    }

    #[test]
    fn what_was_left_behind_goes_with_the_next() {
        // A call ended where no task could be started for the next batch.
        let mut gather = busy(3);
        gather.arrive(10, 3);
        gather.under_way = 1;
        assert_eq!(gather.arrive(11, 3), Arrival::Together(2, vec![10, 11]));
    }

    #[test]
    fn patience_follows_the_calls_within_bounds() {
        let mut gather = busy(3);
        assert_eq!(gather.patience(), PATIENCE.0);
        for _ in 0..100 {
            gather.under_way += 1;
            gather.ended(40 * MS, 3);
        }
        assert!(gather.patience() > 19 * MS && gather.patience() <= 20 * MS);
        for _ in 0..100 {
            gather.under_way += 1;
            gather.ended(4000 * MS, 3);
        }
        assert_eq!(gather.patience(), PATIENCE.1);
    }
}
