//! Several documents at once.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LockError, LockKey, Result, Wait, acquire_setters};
use futures_util::future::join_all;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{DocumentGuard, DocumentLocks, Locked};
use crate::records::Absent;

/// How long a failed locking of several documents waits for the release of those it had; then they
/// are released in the background.
const ROLLBACK_WAIT: Duration = Duration::from_secs(1);

/// The locking of several documents being described; await it to get their guards, or none if they
/// were not all granted within the wait ([C21]).
///
/// The documents are locked one after the other in the order of their keys, each once, as by
/// [`acquire_all`](distlock_api::LockProviderExt::acquire_all) of the
/// [plain provider](DocumentLocks::provider): whoever locks the same ones in another order, by
/// either, cannot deadlock with it. One wait covers them all. If one is not granted, or missing,
/// those already locked are released again. The guards come in the order of their keys. Each is
/// committed for itself: a change of several documents is as many atomic steps.
///
/// Errors are those of [`LockDocument`](super::LockDocument), except that the end of the wait is
/// none. Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
/// [C21]: distlock_api::contract#c21
#[must_use = "nothing is locked until this is awaited"]
pub struct LockAllDocuments<'a, T> {
    locks: &'a DocumentLocks<T>,
    keys: Result<Vec<LockKey>>,
    options: AcquireOptions,
}

impl<'a, T> LockAllDocuments<'a, T> {
    pub(super) fn new(locks: &'a DocumentLocks<T>, keys: Result<Vec<LockKey>>) -> Self {
        Self { locks, keys, options: AcquireOptions::new() }
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
}

impl<T: DeserializeOwned> LockAllDocuments<'_, T> {
    async fn acquire(self) -> Result<Option<Vec<DocumentGuard<T>>>> {
        let mut keys = self.keys?;
        keys.sort_unstable();
        keys.dedup();
        let deadline = match self.options.wait() {
            Wait::Try | Wait::UpTo(Duration::ZERO) | Wait::Forever => None,
            Wait::UpTo(limit) => Instant::now().checked_add(limit),
        };
        let mut guards = Vec::with_capacity(keys.len());
        let failed = 'all: {
            for key in keys {
                let mut options = self.options.clone();
                if let Some(deadline) = deadline {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break 'all Ok(());
                    }
                    options = options.with_wait(Wait::UpTo(left));
                }
                match self.locks.acquire(key.clone(), options, None::<Absent>).await {
                    Ok(Locked::Held(guard)) => guards.push(guard),
                    Ok(Locked::Busy(_)) => break 'all Ok(()),
                    Ok(Locked::Missing) => break 'all Err(super::missing().with_key(key)),
                    Err(error) => break 'all Err(error),
                }
            }
            match guards.iter().find_map(|guard| Some((guard.key().clone(), guard.loss()?))) {
                None => return Ok(Some(guards)),
                // The first was lost while the last was waited for: not all, so nothing.
                Some((key, loss)) => {
                    Err(LockError::new(ErrorKind::Lost, format!("the lock was lost: {loss}")).with_key(key))
                }
            }
        };
        let releases = join_all(guards.into_iter().rev().map(DocumentGuard::discard));
        if let Ok(outcomes) = tokio::time::timeout(ROLLBACK_WAIT, releases).await {
            for error in outcomes.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "roll-back of a partial locking goes on in the background");
            }
        }
        failed.map(|()| None)
    }
}

impl<'a, T: DeserializeOwned + Send> IntoFuture for LockAllDocuments<'a, T> {
    type Output = Result<Option<Vec<DocumentGuard<T>>>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl<T> fmt::Debug for LockAllDocuments<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAllDocuments")
            .field("keys", &self.keys)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
