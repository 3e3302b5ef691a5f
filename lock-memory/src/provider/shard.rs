//! One shard of the key table: the lock around its [`State`], and what is read without that lock.

use std::sync::atomic::{AtomicBool, Ordering};

use distlock_api::{LockKey, Loss};
use parking_lot::{Mutex, MutexGuard};

use super::answers::Taken;
use super::entry::Entry;
use super::spin::LastEnded;
use super::state::State;

/// Aligned, so that threads with keys in neighbouring shards do not share a cache line.
///
/// `T` is the type of the boxes in [`State`].
#[repr(align(128))]
pub(super) struct Shard<T> {
    state: Mutex<State<T>>,
    /// Set after the lock.
    pub(super) ended: LastEnded,
    /// Whether a key has ever been taken away. Until then no guard needs to look for its loss.
    taken: AtomicBool,
}

impl<T> Shard<T> {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Locks the state in order to take keys away.
    pub(super) fn lock_to_take_away(&self) -> TakeAway<'_, T> {
        self.taken.store(true, Ordering::Release);
        TakeAway(self.state.lock())
    }

    /// Returns how the guard with this token was lost.
    #[inline]
    pub(super) fn loss(&self, token: u64) -> Option<Loss> {
        if !self.taken.load(Ordering::Acquire) {
            return None;
        }
        self.lock().loss(token)
    }
}

impl<T> Default for Shard<T> {
    fn default() -> Self {
        Self { state: Mutex::default(), ended: LastEnded::default(), taken: AtomicBool::default() }
    }
}

/// The locked state. From now on the guards of the shard look for their loss.
pub(super) struct TakeAway<'a, T>(MutexGuard<'a, State<T>>);

impl<T> TakeAway<'_, T> {
    pub(super) fn state(&self) -> &State<T> {
        &self.0
    }

    /// Takes the key away from these of its holders, or from the timers that keep it closed.
    pub(super) fn take_away(&mut self, hash: u64, key: &LockKey, tokens: &[u64], loss: Loss) -> Option<Taken> {
        self.0.take_away(hash, key, tokens, loss)
    }

    /// Refuses all requests from now on and takes every key away. Waiters and holders are notified
    /// when the entries are [ended](Entry::end_closed), after the lock.
    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.0.close()
    }
}
