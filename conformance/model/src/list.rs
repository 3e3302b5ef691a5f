//! A short list that is copied with its state and needs no allocation.

use std::hash::{Hash, Hasher};

/// At most `N` items. Items beyond the length always have the default value, so that equal lists
/// are equal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct List<T, const N: usize> {
    len: u8,
    items: [T; N],
}

impl<T: Copy + Default + Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.as_slice().iter().for_each(|item| item.hash(state));
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self { len: 0, items: [T::default(); N] }
    }
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// Returns the items.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.len()]
    }

    /// Returns the number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is room for `more` items.
    #[must_use]
    pub fn has_room(&self, more: usize) -> bool {
        self.len() + more <= N
    }

    /// Appends an item.
    /// # Panics
    /// The list is full, so `N` must be raised.
    pub fn push(&mut self, item: T) {
        assert!(self.has_room(1), "a list of the model is too short");
        self.items[self.len()] = item;
        self.len += 1;
    }

    /// Removes an item; those behind it move up.
    pub fn remove(&mut self, at: usize) -> T {
        let len = self.len();
        let item = self.items[at];
        self.items.copy_within(at + 1..len, at);
        self.items[len - 1] = T::default();
        self.len -= 1;
        item
    }

    /// Keeps the items that pass the test.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let mut at = 0;
        while at < self.len() {
            if keep(&self.items[at]) {
                at += 1;
            } else {
                self.remove(at);
            }
        }
    }

    /// Returns the items, mutable.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        let len = self.len();
        self.items[..len].iter_mut()
    }

    /// Sorts the items, for lists whose order has no meaning.
    pub fn sort(&mut self)
    where
        T: Ord,
    {
        let len = self.len();
        self.items[..len].sort_unstable();
    }
}
