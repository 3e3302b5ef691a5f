//! Counts the requests that wait for the answer of the store, for each key and in total.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock_api::LockKey;

/// The waiting requests. Keys without a waiter take no memory.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// The sum of `queues`. A request that finds no waiter need not lock the mutex.
    total: AtomicUsize,
    queues: Mutex<HashMap<LockKey, usize>>,
}

impl Waiters {
    pub(super) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Returns whether one more waiter of this key would be too many.
    pub(super) fn is_full(&self, key: &LockKey, limit: usize) -> bool {
        self.total() > 0 && self.lock().get(key).is_some_and(|queue| *queue >= limit)
    }

    /// Adds a waiter. Returns `None` if that is one too many.
    pub(super) fn enter(self: &Arc<Self>, key: &LockKey, limit: usize) -> Option<Waiting> {
        let mut queues = self.lock();
        let queue = queues.entry(key.clone()).or_default();
        if *queue >= limit {
            return None;
        }
        *queue += 1;
        self.total.fetch_add(1, Ordering::Relaxed);
        Some(Waiting { waiters: self.clone(), key: key.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, usize>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiting request, until dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    key: LockKey,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        if let Some(queue) = queues.get_mut(&self.key) {
            *queue -= 1;
            if *queue == 0 {
                queues.remove(&self.key);
            }
        }
        self.waiters.total.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_key_holds_and_nothing_is_left_behind() {
        let waiters = Arc::new(Waiters::default());
        let [a, b] = ["a", "b"].map(|name| LockKey::new(name).unwrap());
        let first = waiters.enter(&a, 1).unwrap();
        assert!(waiters.enter(&a, 1).is_none() && waiters.is_full(&a, 1) && !waiters.is_full(&a, 2));
        let other = waiters.enter(&b, 1).unwrap();
        assert_eq!(waiters.total(), 2);
        drop((first, other));
        assert_eq!(waiters.total(), 0);
        assert!(waiters.lock().is_empty());
    }
}
