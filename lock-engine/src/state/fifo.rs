//! A queue from whose middle any of many may leave.

use std::collections::VecDeque;

/// First in, first out. Adding and taking need no allocation as a rule, and an item in the middle
/// is found by halving.
pub(crate) struct Fifo<T> {
    /// In the order of their numbers. An item that has left is a gap, until there are too many.
    items: VecDeque<(u64, Option<T>)>,
    gaps: usize,
    last: u64,
}

/// This many gaps are kept in any case.
const FEW: usize = 32;

impl<T> Fifo<T> {
    pub(crate) const fn new() -> Self {
        Self { items: VecDeque::new(), gaps: 0, last: 0 }
    }

    /// Adds an item. Returns the number under which it may leave.
    pub(crate) fn push(&mut self, item: T) -> u64 {
        self.last += 1;
        self.items.push_back((self.last, Some(item)));
        self.last
    }

    /// Returns the next item.
    pub(crate) fn first(&self) -> Option<&T> {
        self.items.iter().find_map(|(_, item)| item.as_ref())
    }

    /// Takes the next item.
    pub(crate) fn pop(&mut self) -> Option<T> {
        while let Some((_, item)) = self.items.pop_front() {
            match item {
                Some(item) => return Some(item),
                None => self.gaps -= 1,
            }
        }
        None
    }

    /// Takes an item out of turn; `None` if it has left.
    pub(crate) fn leave(&mut self, number: u64) -> Option<T> {
        let place = self.items.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let item = self.items[place].1.take()?;
        self.gaps += 1;
        if self.gaps > FEW && 2 * self.gaps > self.items.len() {
            self.items.retain(|(_, item)| item.is_some());
            self.gaps = 0;
        }
        Some(item)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.len() == self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_passed_over_and_leaves_nothing_behind() {
        let mut fifo = Fifo::new();
        let numbers: Vec<u64> = (0..1000).map(|item| fifo.push(item)).collect();
        for (item, number) in numbers.iter().enumerate().filter(|(item, _)| item % 10 != 3) {
            assert_eq!(fifo.leave(*number), Some(item));
            assert_eq!(fifo.leave(*number), None);
        }
        assert!(fifo.items.len() <= 200 + FEW, "{} for a hundred", fifo.items.len());
        for item in (3..1000).step_by(10) {
            assert_eq!((fifo.first(), fifo.is_empty()), (Some(&item), false));
            assert_eq!(fifo.pop(), Some(item));
        }
        assert!(fifo.is_empty() && fifo.first().is_none() && fifo.pop().is_none());
        assert_eq!(fifo.leave(numbers[3]), None, "it was taken");
        assert!(fifo.items.is_empty() && fifo.gaps == 0);
    }

    #[test]
    fn one_that_stays_in_front_does_not_keep_those_that_left() {
        let mut fifo = Fifo::new();
        fifo.push(0);
        for item in 1..10_000 {
            let number = fifo.push(item);
            assert_eq!(fifo.leave(number), Some(item));
            assert!(fifo.items.len() <= 2 * FEW + 2);
        }
        assert_eq!(fifo.pop(), Some(0));
        assert!(fifo.is_empty());
    }
}
