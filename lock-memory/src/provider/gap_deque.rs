//! Values in the order of ascending numbers: the waiters of a key, and its holders where there are
//! several.

use std::collections::VecDeque;

/// Gaps are removed when there are more of them than of values, and more than this many.
const MANY: usize = 16;
/// So many looks are where the number is expected, and those after them halve what is left.
const GUESSES: u32 = 4;

/// Values in the order of their numbers.
///
/// A value that is removed leaves a gap, so that none behind it is moved: a removal costs a search,
/// which takes a few looks, however many there are. The first and the last slot are never gaps.
/// After a removal no more than half of all slots are, apart from a few.
#[derive(Debug)]
pub(super) struct GapDeque<T> {
    slots: VecDeque<(u64, Option<T>)>,
    gaps: usize,
}

impl<T> Default for GapDeque<T> {
    fn default() -> Self {
        Self { slots: VecDeque::new(), gaps: 0 }
    }
}

impl<T> GapDeque<T> {
    /// Returns whether there is no value.
    #[inline]
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of values.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.gaps
    }

    /// Returns the first value.
    #[inline]
    #[must_use]
    pub(super) fn first(&self) -> Option<&T> {
        self.slots.front()?.1.as_ref()
    }

    /// Adds a value with a number greater than all before.
    #[inline]
    pub(super) fn push(&mut self, number: u64, value: T) {
        self.slots.push_back((number, Some(value)));
    }

    /// Removes the first value.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let first = self.slots.pop_front();
        if self.gaps > 0 {
            self.trim();
        }
        first.and_then(|(number, value)| Some((number, value?)))
    }

    /// Returns the value with this number.
    #[must_use]
    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.slots[self.position(number)?].1.as_ref()
    }

    /// Returns the value with this number, to change it.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let at = self.position(number)?;
        self.slots[at].1.as_mut()
    }

    /// Removes the value with this number.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.position(number)?;
        let value = self.slots[at].1.take()?;
        self.gaps += 1;
        self.trim();
        if self.gaps > MANY.max(self.len()) {
            self.slots.retain(|(_, value)| value.is_some());
            self.gaps = 0;
        }
        Some(value)
    }

    /// Returns all values with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }

    /// Returns all values.
    pub(super) fn into_values(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().filter_map(|(_, value)| value)
    }

    /// Searches where the number is expected: numbers come from a counter, so they are spread
    /// evenly. In a long queue each look at a slot reads memory that is not in the cache of the
    /// processor.
    fn position(&self, number: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.slots.len().checked_sub(1)?);
        let (mut least, mut greatest) = (self.slots[low].0, self.slots[high].0);
        if number == least {
            return Some(low);
        }
        if number == greatest {
            return Some(high);
        }
        let mut looks = 0;
        // Between the two, both excluded.
        while least < number && number < greatest && high - low > 1 {
            let expected = if looks < GUESSES { (number - least).checked_mul((high - low) as u64) } else { None };
            let at = match expected {
                Some(scaled) => low + (scaled / (greatest - least)) as usize,
                None => low.midpoint(high),
            };
            let at = at.clamp(low + 1, high - 1);
            looks += 1;
            match self.slots[at].0 {
                found if found == number => return Some(at),
                found if found < number => (low, least) = (at, found),
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

    fn queue(numbers: impl IntoIterator<Item = u64>) -> GapDeque<&'static str> {
        let mut queue = GapDeque::default();
        numbers.into_iter().for_each(|number| queue.push(number, "a value"));
        queue
    }

    /// The numbers in the order in which they are served.
    fn served(mut queue: GapDeque<&'static str>) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop().map(|(number, _)| number)).collect()
    }

    #[test]
    fn a_value_that_leaves_moves_no_other() {
        let mut queue = queue([2, 3, 5, 8, 13]);
        assert!(queue.remove(4).is_none());
        for number in [5, 2, 13] {
            assert!(queue.remove(number).is_some() && queue.remove(number).is_none() && queue.get(number).is_none());
        }
        assert_eq!(queue.len(), 2);
        assert!(queue.get(3).is_some() && queue.get(8).is_some());
        assert_eq!(served(queue), [3, 8]);
    }

    #[test]
    fn every_value_is_found_however_its_number_is_spread() {
        let evenly: Vec<u64> = (1..=1_000).collect();
        let widely: Vec<u64> = (0..64).map(|bit| 1 << bit).chain([u64::MAX]).collect();
        let with_holes: Vec<u64> = (0..1_000).filter(|n| n % 7 != 3 && !(200..900).contains(n)).collect();
        for numbers in [vec![5], vec![5, 9], evenly, widely, with_holes] {
            let queue = queue(numbers.iter().copied());
            for (at, number) in numbers.iter().enumerate() {
                assert_eq!(queue.position(*number), Some(at));
                for beside in [number.wrapping_sub(1), number.wrapping_add(1)] {
                    assert_eq!(queue.position(beside), numbers.binary_search(&beside).ok());
                }
            }
        }
        assert_eq!(GapDeque::<()>::default().position(1), None);
    }

    #[test]
    fn gaps_do_not_pile_up_between_remaining_values() {
        let mut queue = queue([0]);
        for number in 1..1_000 {
            queue.push(number, "a value");
            if number > 1 {
                assert!(queue.remove(number - 1).is_some());
            }
            assert!(queue.slots.len() <= 2 + MANY + 1, "{} slots for {}", queue.slots.len(), queue.len());
        }
        assert_eq!(served(queue), [0, 999]);
    }

    #[test]
    fn an_empty_queue_has_no_slots() {
        let mut queue = queue(0..10);
        for number in [3, 4, 0, 9, 5, 6, 7, 8, 2, 1] {
            assert!(queue.remove(number).is_some());
        }
        assert!(queue.is_empty() && queue.gaps == 0 && queue.pop().is_none());
    }
}
