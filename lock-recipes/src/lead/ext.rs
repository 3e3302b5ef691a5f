//! The fluent calls.

use distlock_api::{IntoLockKey, LockProvider, Result};

use super::{Lead, LeaderObserver};

/// Leadership on every [`LockProvider`], `dyn LockProvider` included.
pub trait LeadExt: LockProvider {
    /// Campaigns for the leadership of a key, and runs a task while leading. One process of a fleet
    /// leads; another one takes over when it resigns or dies.
    ///
    /// Call [`run`](Lead::run). See the [module](super) for the promises and an example.
    fn lead(&self, key: impl IntoLockKey) -> Lead<'_, Self> {
        Lead::new(self, key.into_lock_key())
    }

    /// Observes the leadership of a key, without campaigning: who leads, and each change. It shows
    /// the holder of any lock. See [`LeaderObserver`].
    ///
    /// # Errors
    /// As [`LockKey::new`](distlock_api::LockKey::new);
    /// [`Unsupported`](distlock_api::ErrorKind::Unsupported) for a provider without administration.
    fn observe(&self, key: impl IntoLockKey) -> Result<LeaderObserver<'_>> {
        LeaderObserver::new(self.admin(), key.into_lock_key()?)
    }
}

impl<P: LockProvider + ?Sized> LeadExt for P {}
