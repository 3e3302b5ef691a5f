//! One shard of the key table: the lock around its [`State`], and what is read without that lock.

use distlock_api::Loss;
use parking_lot::{Mutex, MutexGuard};

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
}

impl<T> Shard<T> {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Returns how the guard with this token was lost.
    #[inline]
    pub(super) fn loss(&self, token: u64) -> Option<Loss> {
        self.lock().loss(token)
    }
}

impl<T> Default for Shard<T> {
    fn default() -> Self {
        Self { state: Mutex::default(), ended: LastEnded::default() }
    }
}
