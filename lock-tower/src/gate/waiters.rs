//! Counts the waiting requests of a layer, for each key and in total.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_api::LockKey;

use crate::keys::KeySet;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_key: usize,
    pub(crate) total: usize,
}

/// The waiting requests. Keys without a waiter take no memory.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// The sum of `queues`. A caller that finds no waiter need not lock the mutex.
    total: AtomicUsize,
    queues: Mutex<HashMap<LockKey, usize>>,
}

impl Waiters {
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns the length of the longest queue of these keys.
    pub(crate) fn ahead(&self, keys: &KeySet) -> usize {
        if self.total() == 0 {
            return 0;
        }
        longest(&self.lock(), keys)
    }

    /// Returns whether one more waiter would be too many.
    pub(crate) fn is_full(&self, keys: &KeySet, limits: Limits) -> bool {
        match self.total() {
            0 => false,
            total => total >= limits.total || self.ahead(keys) >= limits.per_key,
        }
    }

    /// Adds a waiter. Returns `None` if that is one too many.
    pub(crate) fn enter(self: &Arc<Self>, keys: &KeySet, limits: Limits) -> Option<Waiting> {
        let mut queues = self.lock();
        if self.total() >= limits.total || longest(&queues, keys) >= limits.per_key {
            return None;
        }
        for key in keys.as_slice() {
            *queues.entry(key.clone()).or_default() += 1;
        }
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(Waiting { waiters: self.clone(), keys: keys.clone() })
    }

    fn leave(&self, keys: &KeySet) {
        let mut queues = self.lock();
        for key in keys.as_slice() {
            if let Some(queue) = queues.get_mut(key) {
                *queue -= 1;
                if *queue == 0 {
                    queues.remove(key);
                }
            }
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, usize>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn longest(queues: &HashMap<LockKey, usize>, keys: &KeySet) -> usize {
    keys.as_slice().iter().filter_map(|key| queues.get(key)).copied().max().unwrap_or(0)
}

/// A waiting request, until dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    waiters: Arc<Waiters>,
    keys: KeySet,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiters.leave(&self.keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const N: usize>(names: [&str; N]) -> KeySet {
        names.into_iter().map(|name| LockKey::new(name).unwrap()).collect()
    }

    #[test]
    fn both_bounds_hold_and_nothing_is_left_behind() {
        let waiters = Arc::new(Waiters::default());
        let limits = Limits { per_key: 1, total: 2 };
        let a = waiters.enter(&keys(["a"]), limits).unwrap();
        assert!(waiters.enter(&keys(["a"]), limits).is_none() && waiters.is_full(&keys(["a"]), limits));
        assert!(waiters.enter(&keys(["a", "b"]), limits).is_none(), "one full key is enough");
        let bc = waiters.enter(&keys(["b", "c"]), limits).unwrap();
        assert_eq!((waiters.total(), waiters.ahead(&keys(["c", "x"]))), (2, 1));
        assert!(waiters.is_full(&keys(["d"]), limits), "two in total");
        drop((a, bc));
        assert_eq!(waiters.total(), 0);
        assert!(waiters.lock().is_empty());
    }
}
