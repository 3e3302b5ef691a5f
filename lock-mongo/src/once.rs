//! Work that is done once per key: locked documents whose commit is a remembered outcome.
//!
//! The record of a key is a document of [`DocumentLocks`], with the same leases, queue, renewal and
//! fencing. `lease/once.rs` has its fields. A run is begun in two writes: the acquisition, and a
//! save under the lease that records the run. So a record that names a run was handed to a caller,
//! or its process died at that moment.

mod builder;
mod handle;

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::style::contained;
use distlock_api::style::yield_on_error;
use distlock_api::{Disposition, ErrorKind, LeaseOptions, LockError, LockKey, LockProvider, Phase, Result, Wait};
use distlock_engine::LeaseStore;
use distlock_recipes::once::{
    Once, OnceGuard, OnceHandle, OnceOptions, OnceProvider, OnceRecord, OnceState, report_once,
};
use mongodb::bson::Document;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::documents::{Change, DocumentGuard, DocumentLocks};
use crate::lease::{StoredOnce, new_once};
use crate::provider::MongoProvider;
use crate::requests::once::{Seen, find};

pub use builder::MongoOnceBuilder;

use handle::MongoOnceHandle;

/// How much longer than its wait a call may take, for its last request (O9).
const OVERRUN: Duration = Duration::from_millis(500);

/// Work that is done once per key, remembered in a MongoDB collection. Clones share everything.
///
/// See [`distlock_recipes::once`] for what it is for. The records are those of a collection of
/// their own, one document per key with the key as `_id`.
///
/// ```no_run
/// use std::time::Duration;
///
/// use distlock_api::LockError;
/// use distlock_recipes::once::{Once, OnceProviderExt};
/// use distlock_mongo::MongoOnce;
/// use distlock_mongo::mongodb::Database;
/// # async fn report(_: &str) -> String { String::new() }
///
/// /// Every server calls this at about midnight, by its own clock.
/// async fn nightly(shop: Database, date: &str) -> Result<(), LockError> {
///     let jobs = MongoOnce::builder(shop).connect().await?;
///     let job = jobs.try_once(("reports", date)).keep(Duration::from_secs(7 * 24 * 3600));
///     if let Once::Begun(mut work) = job.await? {
///         let address = work.run(report(date)).await?;
///         work.complete(address).await?;
///     }
///     Ok(())
/// }
/// ```
///
/// # What it costs
/// | call | commands |
/// |---|---|
/// | `once` of work that is done | one `find`, with read concern `majority` |
/// | `once` that begins | the same, the acquisition, and the write that records the run |
/// | `complete`, `discard` | one write, which also ends the lease and grants it to the first waiter |
/// | a waiter, after the completion | the acquisition, one `find` and a release |
///
/// # What is kept
/// An outcome counts for `keep`, by the server's clock, and its document is removed an hour later
/// at the earliest. Keys without an outcome, such as interrupted ones, are removed when they have
/// not been used for [`keep_interrupted`](MongoOnceBuilder::keep_interrupted). Both by TTL indexes,
/// which the library creates, and never while a lease lasts.
///
/// # Requirements
/// Those of [`MongoProvider`], for this collection. Documents of other programs in it are never
/// changed: their keys are an error of kind [`Corrupt`](ErrorKind::Corrupt).
pub struct MongoOnce {
    locks: DocumentLocks<Document>,
    lease: LeaseOptions,
    /// The name for reports.
    name: Option<Arc<str>>,
    /// The marks that are being written, and the discards of those without a caller. Closed with
    /// this.
    marks: TaskTracker,
}

impl MongoOnce {
    fn new(locks: DocumentLocks<Document>, lease: LeaseOptions, name: Option<Arc<str>>) -> Self {
        Self { locks, lease, name, marks: TaskTracker::new() }
    }

    /// Returns the locks under this: for [administration](LockProvider::admin), such as listing the
    /// work that is under way, and for the [accounting](LockProvider::accounting).
    ///
    /// A forced release interrupts the work of its key.
    #[must_use]
    pub fn provider(&self) -> MongoProvider {
        self.locks.provider()
    }

    /// Connects, checks the privileges, and creates the indexes; see [`MongoProvider::prepare`].
    ///
    /// # Errors
    /// As [`MongoProvider::prepare`].
    ///
    /// # Cancel safety
    /// As [`MongoProvider::prepare`].
    pub async fn prepare(&self) -> Result<()> {
        self.locks.provider().prepare().await
    }

    /// Checks all options before the first request.
    fn check(&self, key: &LockKey, options: &OnceOptions) -> Result<()> {
        let acquire = options.acquire();
        let checked = options.validate();
        let store = self.locks.store();
        let terms = checked.and_then(|()| acquire.lease().or(self.lease).terms());
        let checked = terms.and_then(|terms| store.capabilities().check_terms(store.name(), &terms));
        checked.and_then(|()| acquire.holder().validate()).map_err(|error| error.with_key(key.clone()))
    }

    async fn read(&self, key: &LockKey) -> Result<OnceRecord> {
        self.read_within(key, self.request_timeout()).await
    }

    /// Reads in what is left of a wait and [`OVERRUN`], or in a request timeout if that is less
    /// (O9).
    async fn read_in_wait(&self, key: &LockKey, wait: Wait) -> Result<OnceRecord> {
        self.read_within(key, query_limit(wait, self.request_timeout())).await
    }

    async fn read_within(&self, key: &LockKey, limit: Duration) -> Result<OnceRecord> {
        match find(&self.locks.store().records, key, Seen::Majority, limit).await? {
            Some(found) => found.record().map_err(|error| error.with_key(key.clone())),
            None => Ok(OnceRecord::default()),
        }
    }

    fn request_timeout(&self) -> Duration {
        self.locks.store().records.request_timeout
    }

    async fn answer(&self, key: LockKey, options: OnceOptions) -> Result<Once> {
        let checked = self.check(&key, &options);
        let closed = || LockError::closed().with_key(key.clone());
        let open = checked.and_then(|()| if self.marks.is_closed() { Err(closed()) } else { Ok(()) });
        yield_on_error(ready(open)).await?;
        let since = Instant::now();
        // What is left of a wait, for a query. Without a wait it is one attempt, of two requests.
        let left = || match options.acquire().wait() {
            Wait::UpTo(limit) => Wait::UpTo(limit.saturating_sub(since.elapsed())),
            other => other,
        };
        let mut is_late = false;
        loop {
            let known = self.read_in_wait(&key, left()).await;
            let rest = options.wait_left(since);
            match known.map(|known| known.answer(&options)) {
                Ok(Some(Once::Busy(_))) if rest != Wait::Try => {}
                Ok(Some(answer)) => return Ok(answer),
                // O9: no further try without a wait.
                Ok(None) if is_late && rest == Wait::Try => return Err(too_late().with_key(key)),
                Ok(None) => {}
                // The acquisition repeats what may succeed later, and brings the record.
                Err(error) if error.disposition() == Disposition::Retryable && rest != Wait::Try => {}
                Err(error) => return Err(error),
            }
            let acquire = options.acquire().clone().with_wait(acquire_wait(options.acquire().wait(), rest));
            let Some(guard) = self.locks.acquire(key.clone(), acquire, None).await? else {
                // The work may have ended at the last moment.
                return match self.read_in_wait(&key, left()).await {
                    Ok(known) => Ok(known.answer(&options).unwrap_or(Once::Busy(None))),
                    Err(error) if error.kind() == ErrorKind::Timeout => Ok(Once::Busy(None)),
                    Err(error) => Err(error),
                };
            };
            if let Some(once) = self.begin(guard, &options).await? {
                return Ok(once);
            }
            is_late = true;
        }
    }

    /// Begins the work under a lease that was acquired for it (O1, O5). Returns `None` if the lease
    /// ended meanwhile: the run that was recorded, if any, stays interrupted.
    async fn begin(&self, guard: DocumentGuard<Document>, options: &OnceOptions) -> Result<Option<Once>> {
        let key = guard.key().clone();
        let with_key = |error: LockError| error.with_key(key.clone());
        // Taken before the check: `close` waits for this one, or it is refused.
        let mark = self.marks.token();
        if self.marks.is_closed() {
            drop(guard.discard());
            return Err(with_key(LockError::closed()));
        }
        let (stored, before) = match StoredOnce::of(guard.document()) {
            Ok(known) => known,
            Err(error) => {
                drop(guard.discard());
                return Err(with_key(error));
            }
        };
        // Whether an outcome still counts is known by the server's clock alone. Under this lease no
        // other one can be written; if the lease was lost, it may be that of another request.
        let known = match stored.is_done() {
            true => Some(self.read(&key).await?).filter(|known| matches!(known.state, OnceState::Done(_))),
            false => Some(stored.unheld().map_err(with_key)?),
        };
        let known = known.unwrap_or_default();
        if let Some(answer) = known.answer(options) {
            // No work was done under the lease.
            drop(guard.discard());
            return Ok(Some(answer));
        }
        let interrupted = match known.state {
            OnceState::Interrupted(run) => Some(run),
            _ => None,
        };
        let before = if interrupted.is_some() { before } else { unbegun() };
        let token = guard.fencing_token();
        let change = Change::pipeline(self.locks.store().records.layout.once_begun(options.fingerprint()));
        let margin = options.acquire().lease().or(self.lease).terms().map_err(with_key)?.margin;
        let handle = MongoOnceHandle::new(self.locks.store().clone(), guard, before, options.keep(), margin)?;
        match record_run(handle, change, mark).await {
            // The answer may have come after the end of the lease (C3).
            Ok(handle) if handle.loss().is_some() => {
                drop(handle);
                Ok(None)
            }
            Ok(handle) => Ok(Some(Once::Begun(OnceGuard::new(key, token, interrupted, Box::new(handle))))),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the limit of a query of a call with this much of its wait left.
fn query_limit(left: Wait, request_timeout: Duration) -> Duration {
    match left {
        Wait::UpTo(left) => left.saturating_add(OVERRUN).min(request_timeout),
        _ => request_timeout,
    }
}

/// Returns the wait of an acquisition of a call with this wait, of which this much is left. One
/// attempt could take a request timeout.
fn acquire_wait(wait: Wait, left: Wait) -> Wait {
    match (wait, left) {
        (Wait::UpTo(limit), Wait::Try) if !limit.is_zero() => Wait::UpTo(OVERRUN),
        _ => left,
    }
}

fn too_late() -> LockError {
    let message = "the lease of the run ended before its beginning was recorded: MongoDB is slow, or the ttl too \
                   short. Raise the ttl, or look for load on MongoDB";
    LockError::timeout(Phase::Request, message)
}

/// Returns what is stored of work that was never begun.
fn unbegun() -> Document {
    new_once().get_document("once").cloned().unwrap_or_default()
}

/// Records the run. In a task of its own: a save that was sent comes to an end even if the caller
/// leaves, and the work is then discarded.
async fn record_run(handle: MongoOnceHandle, change: Change, mark: TaskTrackerToken) -> Result<MongoOnceHandle> {
    let mut begun = Unclaimed { handle: Some(handle), runtime: Handle::current(), mark };
    let task = tokio::spawn(async move {
        if let Some(handle) = &mut begun.handle {
            handle.save(change).await?;
        }
        Ok(begun)
    });
    // If this future is dropped, the task continues, and its output is dropped.
    let begun: Result<Unclaimed> = task.await.unwrap_or_else(|_| Err(LockError::closed()));
    begun?.handle.take().ok_or_else(LockError::closed)
}

/// Work that is recorded, or may be, and has no caller yet. Dropping it discards it in the
/// background (O11), wherever that is: also a result that its caller no longer awaits.
struct Unclaimed {
    handle: Option<MongoOnceHandle>,
    runtime: Handle,
    /// Keeps `close` waiting, because a lost lease can discard nothing.
    mark: TaskTrackerToken,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(mut handle) = self.handle.take() else { return };
        let mark = self.mark.clone();
        self.runtime.spawn(async move {
            let _mark = mark;
            // If this fails, the work stays interrupted: it is not known that nothing was begun.
            if let Err(error) = handle.discard().await {
                contained(|| tracing::debug!(%error, "work that no caller has begun may be left interrupted"));
            }
        });
    }
}

#[async_trait]
impl OnceProvider for MongoOnce {
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Once> {
        let reported = key.clone();
        report_once(self.name.as_ref(), &reported, self.answer(key, options)).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<OnceRecord> {
        self.read(key).await
    }

    async fn close(&self) -> Result<()> {
        self.marks.close();
        // Each makes two requests: the mark, and its discard. What has not ended by then is left
        // interrupted.
        if timeout(2 * self.request_timeout(), self.marks.wait()).await.is_err() {
            contained(|| tracing::debug!("work that no caller has begun may be left interrupted"));
        }
        self.locks.provider().close().await
    }
}

impl Clone for MongoOnce {
    fn clone(&self) -> Self {
        let (locks, marks) = (self.locks.clone(), self.marks.clone());
        Self { locks, lease: self.lease, name: self.name.clone(), marks }
    }
}

impl fmt::Debug for MongoOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.locks.store().describe(f, "MongoOnce", Some(self.locks.provider().engine()))
    }
}

impl fmt::Display for MongoOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.locks, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_does_not_outlast_the_wait() {
        let limit = |wait| query_limit(wait, Duration::from_secs(5));
        assert_eq!(limit(Wait::UpTo(Duration::ZERO)), OVERRUN);
        assert_eq!(limit(Wait::UpTo(Duration::from_secs(1))), Duration::from_secs(1) + OVERRUN);
        for long in [Wait::UpTo(Duration::from_secs(5)), Wait::UpTo(Duration::MAX), Wait::Forever, Wait::Try] {
            assert_eq!(limit(long), Duration::from_secs(5));
        }
        let (wait, over) = (Wait::UpTo(Duration::from_secs(1)), Wait::UpTo(OVERRUN));
        assert_eq!([acquire_wait(wait, Wait::Try), acquire_wait(wait, wait)], [over, wait]);
        for one in [Wait::Try, Wait::UpTo(Duration::ZERO)] {
            assert_eq!(acquire_wait(one, Wait::Try), Wait::Try);
        }
    }
}
