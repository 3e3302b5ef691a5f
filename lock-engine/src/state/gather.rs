//! Which requests go to the store together, and when.
//!
//! While as many calls are under way as the store is given at once, further requests wait. When one
//! of the calls ends, a *sender* gets in line for the next one. What waits when its turn has come
//! goes together: the busier the store, the larger the batches. A request that finds fewer calls
//! goes at once and alone, unless it has [company](Company) that arrives with it. Once a request
//! has waited for as long as a call usually takes, or for half of the time that it can spare
//! ([`Gather::patience`]), a sender gets in line besides the others.

use std::collections::BTreeMap;
use std::time::Duration;

/// How many calls are under way before requests wait for company. With four, 16 tasks of one
/// process acquired three quarters as often, and sent twice as many commands.
const AT_ONCE: usize = 2;
/// The bounds of [`Gather::patience`].
const PATIENCE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The requests of one kind that wait for company.
pub(crate) struct Gather<T> {
    /// Calls that have not ended. A request that goes alone counts from its arrival.
    under_way: usize,
    /// Batches in line for the store. Their requests still wait here.
    senders: usize,
    /// How long calls take: a moving average, and the last one.
    pace: (Duration, Duration),
    waiting: BTreeMap<u64, T>,
    arrived: u64,
}

/// Whether other requests arrive at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// It may be the only one.
    Unknown,
    /// It is one of several of one caller. They add no sender before they are polled again, even if
    /// there is room: as a rule all have [arrived](Gather::arrived) by then.
    Certain,
}

/// What becomes of a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<T> {
    /// It goes at once; [`Gather::ended`] must be called.
    Alone(T),
    /// It waits under this number. If `sender`, a sender must get in line.
    Waits { number: u64, sender: bool },
}

impl<T> Default for Gather<T> {
    fn default() -> Self {
        let pace = (PATIENCE.0, PATIENCE.0);
        Self { under_way: 0, senders: 0, pace, waiting: BTreeMap::new(), arrived: 0 }
    }
}

impl<T> Gather<T> {
    /// Returns whether a request that arrives now goes alone.
    pub(crate) fn goes_alone(&self, company: Company) -> bool {
        company == Company::Unknown && self.has_room() && self.waiting.is_empty()
    }

    fn has_room(&self) -> bool {
        self.under_way + self.senders < AT_ONCE
    }

    /// A request arrives. Senders take `batch` requests each.
    pub(crate) fn arrive(&mut self, request: T, company: Company, batch: usize) -> Arrival<T> {
        if self.goes_alone(company) {
            self.under_way += 1;
            return Arrival::Alone(request);
        }
        self.arrived += 1;
        let number = self.arrived;
        self.waiting.insert(number, request);
        Arrival::Waits { number, sender: company == Company::Unknown && self.needs_sender(batch) }
    }

    /// All requests of a caller that makes several have arrived. Returns whether a sender must get
    /// in line.
    pub(crate) fn arrived(&mut self, batch: usize) -> bool {
        self.needs_sender(batch)
    }

    fn add_sender(&mut self) -> bool {
        self.senders += 1;
        true
    }

    /// Returns whether a sender must get in line: there is room, and something waits that is not
    /// for the senders in line, which take `batch` each.
    fn needs_sender(&mut self, batch: usize) -> bool {
        self.has_room() && self.waiting.len() > self.senders * batch && self.add_sender()
    }

    /// A request has waited for [`patience`](Self::patience). Returns whether a sender must get in
    /// line for it.
    pub(crate) fn overdue(&mut self, number: u64, batch: usize) -> bool {
        let taken_care_of = self.waiting.len() <= self.senders * batch;
        self.waiting.contains_key(&number) && !taken_care_of && self.add_sender()
    }

    /// The turn of a sender has come. Returns the requests that go together; `ended` must be
    /// called, even if there are none. The second value is whether another sender must get in line.
    pub(crate) fn take(&mut self, batch: usize) -> (Vec<T>, bool) {
        self.senders -= 1;
        self.under_way += 1;
        let count = self.waiting.len().min(batch);
        let next = std::iter::from_fn(|| self.waiting.pop_first()).take(count).map(|(_, item)| item).collect();
        (next, self.needs_sender(batch))
    }

    /// A sender has left the line.
    pub(crate) fn sender_left(&mut self) {
        self.senders -= 1;
    }

    /// A call has ended after so much time; `None` if nothing was sent. Returns whether a sender
    /// must get in line.
    pub(crate) fn ended(&mut self, took: Option<Duration>, batch: usize) -> bool {
        self.under_way -= 1;
        if let Some(took) = took {
            self.pace = ((self.pace.0 * 7 + took) / 8, took);
        }
        self.needs_sender(batch)
    }

    /// The caller of a request has left. Returns the request, if it still waits.
    pub(crate) fn leave(&mut self, number: u64) -> Option<T> {
        self.waiting.remove(&number)
    }

    /// Returns how many calls must get in line, besides those that are, before the call of a
    /// request that arrives now.
    pub(crate) fn calls_ahead(&self, batch: usize) -> usize {
        (self.waiting.len() / batch).saturating_sub(self.senders)
    }

    /// How long a request waits for company at most: half of `spare`, the time that is left beside
    /// one call.
    pub(crate) fn patience(&self, spare: Option<Duration>) -> Duration {
        let patience = self.pace().clamp(PATIENCE.0, PATIENCE.1);
        spare.map_or(patience, |spare| patience.min(spare / 2))
    }

    /// How long calls take. An improvement counts at once.
    pub(crate) fn pace(&self) -> Duration {
        self.pace.0.min(self.pace.1)
    }

    /// Whether a call has not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits and no call is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way + self.senders + self.waiting.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn busy() -> Gather<u32> {
        let mut gather = Gather::default();
        for request in 0..AT_ONCE as u32 {
            assert_eq!(gather.arrive(request, Company::Unknown, 3), Arrival::Alone(request));
        }
        gather
    }

    fn wait(gather: &mut Gather<u32>, request: u32) -> u64 {
        wait_with(Company::Unknown, gather, request)
    }

    fn wait_with(company: Company, gather: &mut Gather<u32>, request: u32) -> u64 {
        match gather.arrive(request, company, 3) {
            Arrival::Waits { number, sender: false } => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_waits_when_the_turn_comes_goes_together() {
        let mut gather = busy();
        wait(&mut gather, 10);
        assert!(gather.ended(Some(MS), 3), "a sender gets in line");
        for request in 11..15 {
            wait(&mut gather, request);
        }
        assert_eq!(gather.take(3), (vec![10, 11, 12], false), "in the order of their arrival");
        assert!(gather.ended(Some(MS), 3));
        assert_eq!(gather.take(3), (vec![13, 14], false));
        assert!(!gather.ended(Some(MS), 3));
    }

    #[test]
    fn a_request_with_nothing_under_way_goes_alone() {
        let mut gather = busy();
        for _ in 0..AT_ONCE {
            assert!(!gather.ended(Some(MS), 3));
        }
        assert!(gather.is_idle());
        assert_eq!(gather.arrive(7, Company::Unknown, 3), Arrival::Alone(7));
    }

    #[test]
    fn requests_with_company_go_together_though_nothing_is_under_way() {
        let mut gather = Gather::default();
        for request in 0..5 {
            wait_with(Company::Certain, &mut gather, request);
        }
        assert_eq!([(); 5].map(|()| gather.arrived(3)), [true, true, false, false, false], "one for three");
        assert_eq!(gather.take(3), (vec![0, 1, 2], false));
        assert_eq!(gather.take(3), (vec![3, 4], false));
    }

    #[test]
    fn requests_with_company_wait_for_room_like_others() {
        let mut gather = busy();
        let numbers = [10, 11].map(|request| wait_with(Company::Certain, &mut gather, request));
        assert!(!gather.arrived(3) && !gather.arrived(3), "as many calls as are made at once are under way");
        wait(&mut gather, 12);
        assert!(gather.ended(Some(MS), 3));
        assert_eq!(gather.take(3), (vec![10, 11, 12], false));
        assert!(!gather.overdue(numbers[0], 3), "it has gone");
        let number = wait_with(Company::Certain, &mut gather, 13);
        assert!(!gather.arrived(3) && gather.overdue(number, 3), "it has waited long enough");
    }

    #[test]
    fn a_caller_that_leaves_is_not_in_the_batch() {
        let mut gather = busy();
        let number = wait(&mut gather, 10);
        wait(&mut gather, 11);
        assert_eq!(gather.leave(number), Some(10));
        assert_eq!(gather.leave(number), None);
        assert!(!gather.overdue(number, 3), "it has left");
        assert!(gather.ended(Some(MS), 3));
        assert_eq!(gather.take(3), (vec![11], false));
    }

    #[test]
    fn senders_in_line_take_care_of_a_batch_each() {
        let mut gather = busy();
        let numbers: Vec<u64> = (10..15).map(|request| wait(&mut gather, request)).collect();
        assert!(gather.overdue(numbers[0], 3));
        assert!(gather.overdue(numbers[1], 3), "five do not fit into one batch");
        assert!(!gather.overdue(numbers[2], 3));
        assert_eq!(gather.take(3), (vec![10, 11, 12], false));
        assert_eq!(gather.take(3), (vec![13, 14], false));
        assert!(!gather.ended(Some(MS), 3), "nothing waits");
        wait(&mut gather, 20);
        assert!(!gather.ended(Some(MS), 3), "as many as before are still under way");
        assert!(gather.ended(Some(MS), 3));
    }

    #[test]
    fn what_is_left_behind_by_a_sender_goes_with_another() {
        let mut gather = busy();
        let number = wait(&mut gather, 10);
        assert!(gather.overdue(number, 3));
        gather.sender_left();
        for _ in 0..AT_ONCE {
            gather.under_way -= 1;
        }
        assert_eq!(gather.arrive(11, Company::Unknown, 1), Arrival::Waits { number: 2, sender: true });
        assert_eq!(gather.take(1), (vec![10], true));
        assert_eq!(gather.take(1), (vec![11], false));
    }

    #[test]
    fn a_batch_that_sends_nothing_counts_for_no_duration() {
        let mut gather = busy();
        gather.ended(Some(40 * MS), 3);
        let pace = gather.pace();
        gather.ended(None, 3);
        assert_eq!(gather.pace(), pace);
    }

    #[test]
    fn the_calls_ahead_are_those_that_are_not_in_line_yet() {
        let mut gather = busy();
        let first = wait(&mut gather, 10);
        assert_eq!(gather.calls_ahead(2), 0);
        for request in 11..15 {
            wait(&mut gather, request);
        }
        assert_eq!(gather.calls_ahead(2), 2, "two batches of two, and its own has one already");
        assert!(gather.overdue(first, 2));
        assert_eq!(gather.calls_ahead(2), 1);
    }

    #[test]
    fn patience_follows_the_calls_within_bounds() {
        let mut gather = busy();
        assert_eq!(gather.patience(None), PATIENCE.0);
        for _ in 0..100 {
            gather.under_way += 1;
            gather.ended(Some(40 * MS), 3);
        }
        assert!(gather.patience(None) > 39 * MS && gather.patience(None) <= 40 * MS);
        assert_eq!(gather.patience(Some(30 * MS)), 15 * MS, "of a caller with little time");
        assert_eq!(gather.patience(Some(Duration::ZERO)), Duration::ZERO);
        for _ in 0..100 {
            gather.under_way += 1;
            gather.ended(Some(4000 * MS), 3);
        }
        assert_eq!(gather.patience(None), PATIENCE.1);
        gather.under_way += 1;
        gather.ended(Some(MS), 3);
        assert_eq!(gather.patience(None), PATIENCE.0, "an improvement counts at once");
    }
}
