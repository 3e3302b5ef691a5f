//! Counts requests that come and go, without a cache line that all threads change.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Beyond this number, threads share lanes.
const LANES: usize = 16;
/// How often to read the counters until none changes meanwhile.
const LOOKS: usize = 8;

/// Every request changes three of these counters. A cache line that all processors change would
/// cost more than the lock, so each thread counts in a lane of its own. Counters only grow. A
/// request may arrive on one thread and leave on another, so only the sums have a meaning.
#[derive(Debug, Default)]
pub(super) struct Flow([Lane; LANES]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane {
    arrived: AtomicU64,
    granted: AtomicU64,
    /// Of those that had been granted.
    released: AtomicU64,
    /// Of the others.
    left: AtomicU64,
}

impl Flow {
    pub(super) fn arrived(&self) {
        self.lane().arrived.fetch_add(1, SeqCst);
    }

    pub(super) fn granted(&self) {
        self.lane().granted.fetch_add(1, SeqCst);
    }

    pub(super) fn released(&self) {
        self.lane().released.fetch_add(1, SeqCst);
    }

    pub(super) fn left(&self) {
        self.lane().left.fetch_add(1, SeqCst);
    }

    /// Returns whether there was a moment during the call at which all requests were gone.
    pub(super) fn is_empty(&self) -> bool {
        // The requests that are gone are summed first. Both sums only grow, and never are more gone
        // than have arrived. If the later sum of arrivals equals the earlier one of the gone, they
        // were equal at the moment between.
        let gone = self.sum(|lane| &lane.released) + self.sum(|lane| &lane.left);
        gone == self.sum(|lane| &lane.arrived)
    }

    /// Returns how many requests hold their locks. If holds end meanwhile it reads the counters
    /// again, a few times. If they always do, it may count some that have ended.
    pub(super) fn holding(&self) -> u64 {
        let mut released = self.sum(|lane| &lane.released);
        for _ in 0..LOOKS {
            let granted = self.total_granted();
            match self.sum(|lane| &lane.released) {
                same if same == released => return granted - released,
                more => released = more,
            }
        }
        self.total_granted().saturating_sub(released)
    }

    pub(super) fn total_granted(&self) -> u64 {
        self.sum(|lane| &lane.granted)
    }

    fn lane(&self) -> &Lane {
        thread_local! {
            static LANE: usize = {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                NEXT.fetch_add(1, Relaxed) % LANES
            };
        }
        // A thread that is ending no longer has a lane.
        &self.0[LANE.try_with(|lane| *lane).unwrap_or_default()]
    }

    fn sum(&self, counter: impl Fn(&Lane) -> &AtomicU64) -> u64 {
        self.0.iter().map(|lane| counter(lane).load(SeqCst)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_arrive_and_leave_on_different_threads() {
        let flow = Flow::default();
        assert!(flow.is_empty());
        for _ in 0..3 {
            flow.arrived();
        }
        flow.granted();
        assert_eq!((flow.is_empty(), flow.holding(), flow.total_granted()), (false, 1, 1));
        std::thread::scope(|scope| scope.spawn(|| flow.released()).join()).unwrap();
        assert_eq!((flow.is_empty(), flow.holding(), flow.total_granted()), (false, 0, 1));
        std::thread::scope(|scope| scope.spawn(|| flow.left()).join()).unwrap();
        assert!(!flow.is_empty());
        flow.left();
        assert!(flow.is_empty());
    }

    #[test]
    fn it_is_never_empty_while_requests_overlap() {
        let flow = Flow::default();
        flow.arrived();
        std::thread::scope(|scope| {
            // On whichever lanes they count, one request is there at all times.
            let relay = scope.spawn(|| {
                for _ in 0..20_000 {
                    flow.arrived();
                    flow.left();
                }
            });
            let other = scope.spawn(|| {
                for _ in 0..20_000 {
                    flow.arrived();
                    flow.granted();
                    flow.released();
                }
            });
            while !(relay.is_finished() && other.is_finished()) {
                assert!(!flow.is_empty());
            }
        });
        flow.left();
        assert!(flow.is_empty());
    }
}
