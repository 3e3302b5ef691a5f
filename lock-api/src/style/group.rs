//! Several locks, all or nothing.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::error::{LockError, Result};
use crate::guard::{LockGuard, ReleaseFuture};
use crate::key::LockKey;
use crate::loss::Loss;
use crate::options::{AcquireOptions, Wait};

/// How long a failed acquisition of a group waits for the release of the locks it had. After that
/// they are released in the background.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);

/// A guard that can be one of a group. See [`acquire_group`].
pub trait GroupGuard {
    /// The key.
    fn key(&self) -> &LockKey;

    /// How the lock was lost, if it was.
    fn loss(&self) -> Option<Loss>;

    /// Gives the lock back unused: without the minimum hold.
    fn discard(self) -> ReleaseFuture;
}

impl GroupGuard for LockGuard {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn loss(&self) -> Option<Loss> {
        self.loss()
    }

    fn discard(self) -> ReleaseFuture {
        self.discard()
    }
}

/// The answer to the acquisition of a group. Returned by [`acquire_group`].
#[derive(Debug)]
#[must_use]
pub enum Group<G> {
    /// All locks are held: their guards, in the order of the keys.
    Held(Vec<G>),
    /// The lock of this key was not granted within the wait. None is held.
    Busy(LockKey),
}

impl<G> Group<G> {
    /// Returns the guards, or `None` if a lock was not granted.
    #[must_use]
    pub fn held(self) -> Option<Vec<G>> {
        match self {
            Self::Held(guards) => Some(guards),
            Self::Busy(_) => None,
        }
    }

    /// Returns the guards.
    ///
    /// # Errors
    /// [`LockError::not_granted`], with the key that was busy.
    pub fn or_not_granted(self) -> Result<Vec<G>> {
        match self {
            Self::Held(guards) => Ok(guards),
            Self::Busy(key) => Err(LockError::not_granted().with_key(key)),
        }
    }
}

/// Acquires several locks, all or nothing ([C21]).
///
/// The keys are sorted, and each is acquired once, one after the other, by `acquire`, which returns
/// `None` for a lock that was not granted. The wait of `options` covers all of them: each call gets
/// the rest of it. If one lock is not granted, or fails, those already held are discarded.
///
/// # Errors
/// The first error of `acquire`; [`ErrorKind::Lost`](crate::ErrorKind::Lost) if one of the locks
/// was lost while the others were acquired.
///
/// # Cancel safety
/// As cancel safe as `acquire`: dropping the future drops the guards it has.
///
/// [C21]: distlock_api::contract#c21
pub async fn acquire_group<G, F>(
    mut keys: Vec<LockKey>,
    options: &AcquireOptions,
    mut acquire: impl FnMut(LockKey, AcquireOptions) -> F,
) -> Result<Group<G>>
where
    G: GroupGuard,
    F: Future<Output = Result<Option<G>>>,
{
    keys.sort_unstable();
    keys.dedup();
    let deadline = match options.wait() {
        Wait::Try | Wait::UpTo(Duration::ZERO) | Wait::Forever => None,
        Wait::UpTo(limit) => Instant::now().checked_add(limit),
    };
    let mut guards = Vec::with_capacity(keys.len());
    for key in keys {
        let mut options = options.clone();
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                roll_back(guards).await;
                return Ok(Group::Busy(key));
            }
            options = options.with_wait(Wait::UpTo(left));
        }
        match acquire(key.clone(), options).await {
            Ok(Some(guard)) => guards.push(guard),
            Ok(None) => {
                roll_back(guards).await;
                return Ok(Group::Busy(key));
            }
            Err(error) => {
                roll_back(guards).await;
                return Err(error);
            }
        }
    }
    // A lease can be lost while the next lock is waited for.
    let lost = guards.iter().find_map(|guard: &G| Some((guard.key().clone(), guard.loss()?)));
    match lost {
        None => Ok(Group::Held(guards)),
        Some((key, loss)) => {
            roll_back(guards).await;
            Err(LockError::lost(loss).with_key(key))
        }
    }
}

/// Discards the guards. Releases that the store does not confirm soon continue in the background.
async fn roll_back<G: GroupGuard>(guards: Vec<G>) {
    let releases = join_all(guards.into_iter().rev().map(G::discard));
    if let Ok(outcomes) = tokio::time::timeout(ROLLBACK_WAIT, releases).await {
        for error in outcomes.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "the roll-back of a partial acquisition continues in the background");
        }
    }
}
