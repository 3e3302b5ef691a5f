//! The waiters of one key, in order.

use std::collections::VecDeque;
use std::task::Waker;

use distlock_api::Holder;

use super::minimum_hold::MinimumHold;
use super::spin::Thread;

/// Gaps are removed when there are more of them than of waiters, and more than this many.
const MANY: usize = 16;

/// Waiters in the order of their tokens, which is that of their calls (C15).
///
/// A waiter that gives up leaves a gap, so that none behind it is moved: giving up costs a search,
/// however many wait. The first and the last slot are never gaps. Apart from a few, no more than
/// half of all slots are.
#[derive(Default)]
pub(super) struct Queue {
    slots: VecDeque<(u64, Option<Waiter>)>,
    gaps: usize,
}

pub(super) struct Waiter {
    /// `None` while the waiter spins.
    pub(super) waker: Option<Waker>,
    pub(super) thread: Thread,
    pub(super) holder: Holder,
    pub(super) hold: Option<MinimumHold>,
}

impl Queue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of waiters.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.gaps
    }

    /// Adds a waiter with a token greater than all before.
    pub(super) fn push(&mut self, token: u64, waiter: Waiter) {
        self.slots.push_back((token, Some(waiter)));
    }

    /// Removes the first waiter.
    pub(super) fn pop(&mut self) -> Option<(u64, Waiter)> {
        let first = self.slots.pop_front();
        if self.gaps > 0 {
            self.trim();
        }
        first.and_then(|(token, waiter)| Some((token, waiter?)))
    }

    pub(super) fn find(&mut self, token: u64) -> Option<&mut Waiter> {
        let at = self.position(token)?;
        self.slots[at].1.as_mut()
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Waiter> {
        let at = self.position(token)?;
        let waiter = self.slots[at].1.take()?;
        self.gaps += 1;
        self.trim();
        if self.gaps > MANY.max(self.len()) {
            self.slots.retain(|(_, waiter)| waiter.is_some());
            self.gaps = 0;
        }
        Some(waiter)
    }

    /// Returns all waiters.
    pub(super) fn into_waiters(self) -> impl Iterator<Item = Waiter> {
        self.slots.into_iter().filter_map(|(_, waiter)| waiter)
    }

    fn position(&self, token: u64) -> Option<usize> {
        self.slots.binary_search_by_key(&token, |(of, _)| *of).ok()
    }

    /// Clears the gaps at both ends.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|(_, waiter)| waiter.is_none()) {
            self.slots.pop_front();
            self.gaps -= 1;
        }
        while self.slots.back().is_some_and(|(_, waiter)| waiter.is_none()) {
            self.slots.pop_back();
            self.gaps -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter() -> Waiter {
        Waiter { waker: None, thread: Thread::this(), holder: Holder::new(), hold: None }
    }

    fn queue(tokens: impl IntoIterator<Item = u64>) -> Queue {
        let mut queue = Queue::default();
        tokens.into_iter().for_each(|token| queue.push(token, waiter()));
        queue
    }

    /// The tokens in the order in which they are served.
    fn served(mut queue: Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop().map(|(token, _)| token)).collect()
    }

    #[test]
    fn a_waiter_that_leaves_moves_no_other() {
        let mut queue = queue([2, 3, 5, 8, 13]);
        assert!(queue.remove(4).is_none());
        for token in [5, 2, 13] {
            assert!(queue.remove(token).is_some() && queue.remove(token).is_none() && queue.find(token).is_none());
        }
        assert_eq!(queue.len(), 2);
        assert!(queue.find(3).is_some() && queue.find(8).is_some());
        assert_eq!(served(queue), [3, 8]);
    }

    #[test]
    fn gaps_do_not_pile_up_between_remaining_waiters() {
        let mut queue = queue([0]);
        for token in 1..1_000 {
            queue.push(token, waiter());
            if token > 1 {
                assert!(queue.remove(token - 1).is_some());
            }
            assert!(queue.slots.len() <= 2 + MANY + 1, "{} slots for {}", queue.slots.len(), queue.len());
        }
        assert_eq!(served(queue), [0, 999]);
    }

    #[test]
    fn an_empty_queue_has_no_slots() {
        let mut queue = queue(0..10);
        for token in [3, 4, 0, 9, 5, 6, 7, 8, 2, 1] {
            assert!(queue.remove(token).is_some());
        }
        assert!(queue.is_empty() && queue.gaps == 0 && queue.pop().is_none());
    }
}
