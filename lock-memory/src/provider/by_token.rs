//! Values in the order of tokens: the waiters of a key, and its holders where there are several.

use std::collections::VecDeque;

/// Gaps are removed when there are more of them than of values, and more than this many.
const MANY: usize = 16;
/// So many looks are where the token is expected, and those after them halve what is left.
const GUESSES: u32 = 4;

/// Values in the order of their tokens, which is that of the calls (C15).
///
/// A value that is removed leaves a gap, so that none behind it is moved: a removal costs a search,
/// which takes a few looks, however many there are. The first and the last slot are never gaps.
/// Apart from a few, no more than half of all slots are.
pub(super) struct ByToken<T> {
    slots: VecDeque<(u64, Option<T>)>,
    gaps: usize,
}

impl<T> Default for ByToken<T> {
    fn default() -> Self {
        Self { slots: VecDeque::new(), gaps: 0 }
    }
}

impl<T> ByToken<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.gaps
    }

    /// Returns the first value.
    #[inline]
    pub(super) fn first(&self) -> Option<&T> {
        self.slots.front()?.1.as_ref()
    }

    /// Adds a value with a token greater than all before.
    #[inline]
    pub(super) fn push(&mut self, token: u64, value: T) {
        self.slots.push_back((token, Some(value)));
    }

    /// Removes the first value.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let first = self.slots.pop_front();
        if self.gaps > 0 {
            self.trim();
        }
        first.and_then(|(token, value)| Some((token, value?)))
    }

    pub(super) fn get(&self, token: u64) -> Option<&T> {
        self.slots[self.position(token)?].1.as_ref()
    }

    pub(super) fn get_mut(&mut self, token: u64) -> Option<&mut T> {
        let at = self.position(token)?;
        self.slots[at].1.as_mut()
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<T> {
        let at = self.position(token)?;
        let value = self.slots[at].1.take()?;
        self.gaps += 1;
        self.trim();
        if self.gaps > MANY.max(self.len()) {
            self.slots.retain(|(_, value)| value.is_some());
            self.gaps = 0;
        }
        Some(value)
    }

    /// Returns all values with their tokens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().filter_map(|(token, value)| Some((*token, value.as_ref()?)))
    }

    /// Returns all values.
    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|(_, value)| value)
    }

    /// Searches where the token is expected: tokens come from a counter, so they are spread evenly.
    /// In a long queue each look at a slot reads memory that is not in the cache of the processor.
    fn position(&self, token: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.slots.len().checked_sub(1)?);
        let (mut least, mut greatest) = (self.slots[low].0, self.slots[high].0);
        if token == least {
            return Some(low);
        }
        if token == greatest {
            return Some(high);
        }
        let mut looks = 0;
        // Between the two, both excluded.
        while least < token && token < greatest && high - low > 1 {
            let expected = if looks < GUESSES { (token - least).checked_mul((high - low) as u64) } else { None };
            let at = match expected {
                Some(scaled) => low + (scaled / (greatest - least)) as usize,
                None => low.midpoint(high),
            };
            let at = at.clamp(low + 1, high - 1);
            looks += 1;
            match self.slots[at].0 {
                found if found == token => return Some(at),
                found if found < token => (low, least) = (at, found),
                found => (high, greatest) = (at, found),
            }
        }
        None
    }

    /// Clears the gaps at both ends.
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|(_, value)| value.is_none()) {
            self.slots.pop_front();
            self.gaps -= 1;
        }
        while self.slots.back().is_some_and(|(_, value)| value.is_none()) {
            self.slots.pop_back();
            self.gaps -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(tokens: impl IntoIterator<Item = u64>) -> ByToken<&'static str> {
        let mut queue = ByToken::default();
        tokens.into_iter().for_each(|token| queue.push(token, "a value"));
        queue
    }

    /// The tokens in the order in which they are served.
    fn served(mut queue: ByToken<&'static str>) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop().map(|(token, _)| token)).collect()
    }

    #[test]
    fn a_value_that_leaves_moves_no_other() {
        let mut queue = queue([2, 3, 5, 8, 13]);
        assert!(queue.remove(4).is_none());
        for token in [5, 2, 13] {
            assert!(queue.remove(token).is_some() && queue.remove(token).is_none() && queue.get(token).is_none());
        }
        assert_eq!(queue.len(), 2);
        assert!(queue.get(3).is_some() && queue.get(8).is_some());
        assert_eq!(served(queue), [3, 8]);
    }

    #[test]
    fn every_value_is_found_however_its_token_is_spread() {
        let evenly: Vec<u64> = (1..=1_000).collect();
        let widely: Vec<u64> = (0..64).map(|bit| 1 << bit).chain([u64::MAX]).collect();
        let with_holes: Vec<u64> = (0..1_000).filter(|n| n % 7 != 3 && !(200..900).contains(n)).collect();
        for tokens in [vec![5], vec![5, 9], evenly, widely, with_holes] {
            let queue = queue(tokens.iter().copied());
            for (at, token) in tokens.iter().enumerate() {
                assert_eq!(queue.position(*token), Some(at));
                for beside in [token.wrapping_sub(1), token.wrapping_add(1)] {
                    assert_eq!(queue.position(beside), tokens.binary_search(&beside).ok());
                }
            }
        }
        assert_eq!(ByToken::<()>::default().position(1), None);
    }

    #[test]
    fn gaps_do_not_pile_up_between_remaining_values() {
        let mut queue = queue([0]);
        for token in 1..1_000 {
            queue.push(token, "a value");
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
