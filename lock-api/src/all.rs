//! Several locks at once.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::Instant;

use crate::error::Result;
use crate::guard::{LockGuard, Loss, LostSignal, ReleaseOutcome, lost_error, race_loss};
use crate::key::LockKey;
use crate::options::{AcquireOptions, Wait};
use crate::provider::{Acquired, LockProvider};
use crate::setters::acquire_setters;

/// How long a failed acquisition of several locks waits for the release of those it had; then they are released in the background.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);

/// An acquisition of several locks being described; await it to get the [`AllGuard`], or none if they were not all
/// granted within the wait (C21).
///
/// The keys are sorted and taken one after the other, each once, so callers that name the same keys in different orders
/// cannot deadlock. One wait covers them all. If one is not granted, those already taken are released again.
/// With no keys the guard is empty, and nothing is asked of the store.
///
/// Errors are those of [`LockProvider::acquire_with`]. Cancel safe (C11).
///
/// ```
/// # use std::time::Duration;
/// # use distlock_api::{LockProvider, LockProviderExt, LockError};
/// async fn transfer(locks: &dyn LockProvider, from: &str, to: &str) -> Result<(), LockError> {
///     let both = locks.acquire_all([from, to]).timeout(Duration::from_secs(5)).await?;
///     let Some(both) = both else { return Ok(()) }; // somebody else is at it
///     let _ = both.release().await?;
///     Ok(())
/// }
/// ```
#[must_use = "nothing is acquired until this is awaited"]
pub struct AcquireAll<'a, P: ?Sized> {
    provider: &'a P,
    keys: Vec<Result<LockKey>>,
    options: AcquireOptions,
}

impl<P: ?Sized> fmt::Debug for AcquireAll<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll").field("keys", &self.keys).field("options", &self.options).finish_non_exhaustive()
    }
}

impl<'a, P: LockProvider + ?Sized> AcquireAll<'a, P> {
    pub(crate) fn new(provider: &'a P, keys: Vec<Result<LockKey>>) -> Self {
        Self { provider, keys, options: AcquireOptions::new() }
    }

    acquire_setters!();

    /// All options at once, the wait included.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = options;
        self
    }

    /// Wait at most this long for all of them together. Defaults to waiting for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
    }

    async fn acquire(self) -> Result<Option<AllGuard>> {
        let mut keys = self.keys.into_iter().collect::<Result<Vec<_>>>()?;
        keys.sort_unstable();
        keys.dedup();
        let deadline = match self.options.wait() {
            Wait::Try | Wait::UpTo(Duration::ZERO) | Wait::Forever => None,
            Wait::UpTo(limit) => Instant::now().checked_add(limit),
        };
        let mut guards = Vec::with_capacity(keys.len());
        for key in &keys {
            let mut options = self.options.clone();
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    roll_back(guards).await;
                    return Ok(None);
                }
                options = options.with_wait(Wait::UpTo(left));
            }
            match self.provider.acquire_with(key.clone(), options).await {
                Ok(Acquired::Held(guard)) => guards.push(guard),
                Ok(Acquired::Busy(_)) => {
                    roll_back(guards).await;
                    return Ok(None);
                }
                Err(error) => {
                    roll_back(guards).await;
                    return Err(error);
                }
            }
        }
        let all = AllGuard { guards };
        match all.first_loss() {
            None => Ok(Some(all)),
            // The first lease was lost while the last was waited for: not all, so nothing.
            Some((key, loss)) => {
                let error = lost_error(loss).with_key(key);
                roll_back(all.guards).await;
                Err(error)
            }
        }
    }
}

/// Gives back what was taken; what the store does not confirm soon goes on in the background.
async fn roll_back(guards: Vec<LockGuard>) {
    let releases = join_all(guards.into_iter().rev().map(LockGuard::discard));
    if let Ok(outcomes) = tokio::time::timeout(ROLLBACK_WAIT, releases).await {
        for error in outcomes.into_iter().filter_map(Result::err) {
            tracing::debug!(%error, "roll-back of a partial acquisition goes on in the background");
        }
    }
}

impl<'a, P: LockProvider + ?Sized> IntoFuture for AcquireAll<'a, P> {
    type Output = Result<Option<AllGuard>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// Several held locks. Dropping it releases all of them in the background.
#[derive(Debug)]
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct AllGuard {
    guards: Vec<LockGuard>,
}

impl AllGuard {
    /// The guards, in the order of their keys.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// The guard of one key, or `None` if the key is not among them.
    #[must_use]
    pub fn get(&self, key: impl AsRef<str>) -> Option<&LockGuard> {
        let key = key.as_ref();
        self.guards.iter().find(|guard| guard.key().as_str() == key)
    }

    /// The guards one by one, in the order of their keys.
    #[must_use = "the locks are released as soon as the guards are dropped"]
    pub fn into_guards(self) -> Vec<LockGuard> {
        self.guards
    }

    /// Whether any of the locks is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.first_loss().is_some()
    }

    fn first_loss(&self) -> Option<(LockKey, Loss)> {
        self.guards.iter().find_map(|guard| Some((guard.key().clone(), guard.loss()?)))
    }

    /// How much longer all of them are held if nothing is heard from the store; none if they never expire.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(LockGuard::remaining).min()
    }

    /// Resolves when the first of them is lost; never without any.
    pub fn lost(&self) -> LostSignal {
        if self.guards.is_empty() {
            return LostSignal::never();
        }
        let signals: Vec<LostSignal> = self.guards.iter().map(LockGuard::lost).collect();
        LostSignal::new(async move { select_all(signals).await.0 })
    }

    /// Runs a future while all locks are held: drops it and fails as soon as one is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when a lock was lost before the future had finished.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        race_loss(self.lost(), future).await.map_err(lost_error)
    }

    /// Releases all of them, each independently of the others. [`AlreadyLost`](ReleaseOutcome::AlreadyLost) if any of them had been lost.
    ///
    /// # Errors
    /// The first error, after every release was tried; the engine goes on trying in the background.
    ///
    /// # Cancel safety
    /// When the future is dropped, polled or not, the releases go on in the background.
    #[must_use = "dropping the future releases in the background, and nobody hears whether it was in time"]
    pub fn release(self) -> impl Future<Output = Result<ReleaseOutcome>> + Send + 'static {
        let releases = join_all(self.guards.into_iter().rev().map(LockGuard::release));
        async move {
            let mut outcome = ReleaseOutcome::Released;
            for result in releases.await {
                if result? == ReleaseOutcome::AlreadyLost {
                    outcome = ReleaseOutcome::AlreadyLost;
                }
            }
            Ok(outcome)
        }
    }
}
