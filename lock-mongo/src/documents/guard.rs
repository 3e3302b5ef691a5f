//! The guard of a locked document, and the guard that a rejected commit returns.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use distlock_api::style::until_lost;
use distlock_api::{
    AcquisitionId, Disposition, ErrorKind, FencingToken, HasFencingToken, LockError, LockGuard, LockKey, Loss,
    LostSignal, ReleaseFuture, Result,
};
use distlock_engine::LeaseGuard;
use distlock_engine::store::Written;
use mongodb::bson::RawDocument;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::ops::WriteDocument;
use super::{Change, CommitError};
use crate::bson::from_slice;
use crate::requests::write::ensure_exclusive;
use crate::store::MongoStore;

/// A locked document, as it was when the lock was granted. Dropping it unlocks in the background
/// and changes nothing.
///
/// It dereferences to the document. A change of that reaches the database with a
/// [commit](Self::commit_document) or a [save](Self::save_document). Validity, loss, renewal and
/// drop are those of [`LockGuard`].
///
/// ```no_run
/// use distlock_api::LockError;
/// use distlock_mongo::{Change, DocumentGuard};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Order { state: String, paid: f64 }
/// # async fn charge(_: &Order) -> f64 { 0.0 }
///
/// async fn pay(mut order: DocumentGuard<Order>) -> Result<(), LockError> {
///     // Visible to readers at once, and the lock is kept.
///     order.save(Change::new().set("state", "paying")).await?;
///     // Dropped at once if the lock is lost.
///     order.paid = order.run(charge(&order)).await?;
///     order.state = "paid".into();
///     order.commit_document().await?;
///     Ok(())
/// }
/// ```
#[must_use = "the document is unlocked as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct DocumentGuard<T> {
    lease: LeaseGuard,
    store: Arc<MongoStore>,
    document: T,
    /// The number of writes that were sent. Each has its own number.
    writes: i64,
}

/// The answer of a [commit that keeps the lock](DocumentGuard::commit_or_keep) and has failed.
///
/// It does not implement [`Error`](std::error::Error), because an error that is logged or stored
/// would keep the lock.
#[derive(Debug)]
#[must_use = "dropping it drops the guard, which releases in the background"]
pub struct NotCommitted<T> {
    /// The error of the commit.
    pub error: CommitError,
    /// The guard, with its document unchanged, if the commit was [rejected](CommitError::Rejected).
    pub guard: Option<DocumentGuard<T>>,
}

impl<T> DocumentGuard<T> {
    pub(super) fn new(lease: LeaseGuard, store: Arc<MongoStore>, document: T) -> Self {
        Self { lease, store, document, writes: 0 }
    }

    /// Returns the document as it was when the lock was granted, or after the last
    /// [`save`](Self::save), with the changes that were made in this guard since.
    #[must_use]
    pub fn document(&self) -> &T {
        &self.document
    }

    /// Returns the key of the lock in the [plain provider](super::DocumentLocks::provider).
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.lease.key()
    }

    /// Returns the token of this grant, for other resources than the document. See
    /// [`LockGuard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    /// Returns the monotonic instant until which the lock is held unless a renewal moves it. Always
    /// `Some`. See [`LockGuard::valid_until`].
    #[must_use]
    pub fn valid_until(&self) -> Option<Instant> {
        Some(self.lease.valid_until())
    }

    /// Returns how much longer the lock is held unless a renewal extends it: zero when it is lost.
    /// Always `Some`. See [`LockGuard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        if self.is_lost() {
            return Some(Duration::ZERO);
        }
        self.valid_until().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the lock is lost. See [`LockGuard::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns how the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.lease.loss()
    }

    /// Returns a future that resolves when the lock is lost. See [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub fn lost(&self) -> LostSignal {
        self.lease.lost()
    }

    /// Changes the document and unlocks it, in one atomic step at the server, if the lock is held
    /// at that moment by the server's clock. As any release it grants to the first waiter
    /// ([R12](crate::protocol#r12)).
    ///
    /// If it is rejected, the lock is released in the background, so `?` keeps nothing locked. To
    /// keep the lock then, see [`commit_or_keep`](Self::commit_or_keep). Under a lock that is not
    /// exclusive it is rejected before any I/O: others read the document meanwhile.
    ///
    /// # Errors
    /// See [`CommitError`]: the lock had been lost, and the document is untouched; the change was
    /// rejected; or the outcome is unknown after the request timeout. The commit is repeated until
    /// then, and in the background until the lease expires. It has its own number, so that it is
    /// carried out once.
    ///
    /// # Cancel safety
    /// When the future is dropped, the call in flight is finished in the background: the change may
    /// or may not be made. In both cases the lock is released ([C11]). A future that is kept
    /// without being polled keeps the lock, as the guard does.
    ///
    /// [C11]: distlock_api::contract#c11
    pub async fn commit(self, change: impl Into<Change>) -> Result<(), CommitError> {
        self.commit_or_keep(change).await.map_err(|not| not.error)
    }

    /// Commits as [`commit`](Self::commit), but a rejected commit returns the guard with the error.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Cancel safety
    /// As [`commit`](Self::commit).
    pub async fn commit_or_keep(self, change: impl Into<Change>) -> Result<(), NotCommitted<T>> {
        self.end(change.into(), true).await
    }

    /// Commits as [`commit_or_keep`](Self::commit_or_keep), without the minimum hold: a change that
    /// takes back what was done under the lock.
    pub(crate) async fn discard_with(self, change: Change) -> Result<(), NotCommitted<T>> {
        self.end(change, false).await
    }

    async fn end(mut self, change: Change, holds: bool) -> Result<(), NotCommitted<T>> {
        let op = match self.write(&change, true) {
            Ok(op) => op,
            Err(error) => return Err(self.rejected(error, None)),
        };
        let Self { lease, store, document, writes } = self;
        let key = lease.key().clone();
        let ended = match holds {
            true => lease.release_via(op.clone()).await,
            false => lease.discard_via(op.clone()).await,
        };
        match ended {
            Ok(outcome) if outcome.is_released() => Ok(()),
            Ok(_) => Err(NotCommitted { error: CommitError::AlreadyLost(lost().with_key(key)), guard: None }),
            Err(not) => Err(match not.guard {
                Some(lease) => Self { lease, store, document, writes }.rejected(not.error, op.code()),
                None => NotCommitted { error: CommitError::Unknown(not.error), guard: None },
            }),
        }
    }

    fn rejected(self, error: LockError, code: Option<i32>) -> NotCommitted<T> {
        NotCommitted { error: CommitError::Rejected { error, code }, guard: Some(self) }
    }

    /// Replaces the document by the one of this guard, and unlocks it: a [`commit`](Self::commit)
    /// of [`Change::replace`]. Fields that `T` does not have are removed.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Cancel safety
    /// As [`commit`](Self::commit).
    pub async fn commit_document(self) -> Result<(), CommitError>
    where
        T: Serialize,
    {
        let change = Change::replace(&self.document);
        self.commit(change).await
    }

    /// Changes the document and keeps the lock, if it is held at that moment by the server's clock.
    /// The guard gets the changed document.
    ///
    /// # Errors
    /// * [`Lost`](ErrorKind::Lost): the lock had been lost before. The document is untouched, and
    ///   the guard is lost.
    /// * [`InvalidOptions`](ErrorKind::InvalidOptions) before any I/O, also under a lock that is
    ///   not exclusive, and [`Rejected`](ErrorKind::Rejected) by MongoDB: nothing was changed, and
    ///   the lock is held.
    /// * [`Corrupt`](ErrorKind::Corrupt) of unknown outcome if the changed document is no `T`. It
    ///   has been changed in the database, but not in the guard.
    /// * Any other error of MongoDB, after the request timeout. Until then the save is repeated. It
    ///   has its own number, so that it is carried out once.
    ///
    /// # Cancel safety
    /// When the future is dropped, the save continues in the background, and may or may not be
    /// carried out. The document of the guard does not change. The save cannot undo a later commit
    /// or save of this guard.
    pub fn save(&mut self, change: impl Into<Change>) -> impl Future<Output = Result<()>> + Send + '_
    where
        T: DeserializeOwned + Send + Sync,
    {
        let op = self.write(&change.into(), false);
        async move {
            let op = op?;
            match self.lease.write_via(op.clone()).await? {
                Written::Applied => {
                    let with_key = |error: LockError| error.with_key(self.lease.key().clone());
                    let document = op.take_document().ok_or_else(|| with_key(crate::error::unmarked()))?;
                    self.document = read(&document).map_err(|error| with_key(error.outcome_unknown()))?;
                    Ok(())
                }
                Written::AlreadyLost => Err(lost().with_key(self.lease.key().clone())),
            }
        }
    }

    /// Replaces the document by the one of this guard, and keeps the lock: a [`save`](Self::save)
    /// of [`Change::replace`]. Fields that `T` does not have are removed.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    ///
    /// # Cancel safety
    /// As [`save`](Self::save).
    pub fn save_document(&mut self) -> impl Future<Output = Result<()>> + Send + '_
    where
        T: Serialize + DeserializeOwned + Send + Sync,
    {
        let change = Change::replace(&self.document);
        self.save(change)
    }

    /// Unlocks without a change, and returns whether the lock was held until now. See
    /// [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, the release continues in the background.
    pub fn release(self) -> ReleaseFuture {
        self.lease.release()
    }

    /// Unlocks a document with which no work was done, without the minimum hold. See
    /// [`LockGuard::discard`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// As [`release`](Self::release).
    pub fn discard(self) -> ReleaseFuture {
        self.lease.discard()
    }

    /// Leaves the document unchanged, and locked until the ttl ends. See [`LockGuard::abandon`].
    pub fn abandon(self) {
        self.lease.abandon();
    }

    /// Runs a future while the lock is held: drops it and fails as soon as the lock is lost. See
    /// [`LockGuard::run`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before the future had finished.
    ///
    /// # Cancel safety
    /// As cancel safe as the given future.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output> {
        until_lost(self.lost(), future).await.map_err(|loss| LockError::lost(loss).with_key(self.key().clone()))
    }

    /// Splits the guard into a guard without the document, and the document.
    pub fn into_parts(self) -> (LockGuard, T) {
        (self.lease.into_guard(), self.document)
    }

    pub(crate) fn acquisition(&self) -> &AcquisitionId {
        self.lease.claim().id()
    }

    /// Returns the number that the next write will have.
    pub(crate) fn next_write(&self) -> i64 {
        self.writes + 1
    }

    /// Makes the next write.
    fn write(&mut self, change: &Change, releases: bool) -> Result<Arc<WriteDocument>> {
        let key = self.lease.key();
        ensure_exclusive(self.lease.claim()).map_err(|error| error.with_key(key.clone()))?;
        let stages = change.stages(&self.store.records.layout, key).map_err(|error| error.with_key(key.clone()))?;
        self.writes += 1;
        Ok(Arc::new(WriteDocument::new(self.store.clone(), stages, self.writes, releases)))
    }
}

impl<T> HasFencingToken for DocumentGuard<T> {
    fn key(&self) -> &LockKey {
        self.key()
    }

    fn fencing_token(&self) -> FencingToken {
        self.fencing_token()
    }
}

fn lost() -> LockError {
    LockError::new(ErrorKind::Lost, "the lock had been lost before: nothing was changed. Lock the document again")
}

/// Reads a document as the application's type.
pub(super) fn read<T: DeserializeOwned>(document: &RawDocument) -> Result<T> {
    from_slice(document.as_bytes()).map_err(|error| {
        let message =
            format!("the document cannot be read as {}: the cause names the field", std::any::type_name::<T>());
        LockError::new(ErrorKind::Corrupt, message).with_disposition(Disposition::Permanent).with_source(error)
    })
}

impl<T> Deref for DocumentGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.document
    }
}

/// Changes stay in the guard until they are committed or saved.
impl<T> DerefMut for DocumentGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.document
    }
}

impl<T> fmt::Debug for DocumentGuard<T> {
    /// Without the document.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentGuard")
            .field("key", self.key())
            .field("token", &self.fencing_token().get())
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}
