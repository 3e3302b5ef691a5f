//! A locked document, and its guard that a rejected commit gives back.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{
    Disposition, ErrorKind, FencingToken, LockError, LockGuard, LockKey, Loss, LostSignal, ReleaseFuture, Result,
};
use distlock_engine::LeaseGuard;
use distlock_engine::store::Written;
use mongodb::bson::{RawDocument, from_slice};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::ops::WriteDocument;
use super::{Change, CommitError};
use crate::store::MongoStore;

/// A locked document, as it was when the lock was granted. Dropping it unlocks in the background
/// and changes nothing.
///
/// It dereferences to the document. Changing that changes nothing in the database until it is
/// [committed](Self::commit_document) or [saved](Self::save_document). What is said of
/// [`LockGuard`] holds here as well: validity, loss, renewal, drop.
#[must_use = "the document is unlocked as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct DocumentGuard<T> {
    lease: LeaseGuard,
    store: Arc<MongoStore>,
    document: T,
    /// How many writes have been sent, so that each has a number of its own.
    writes: i64,
}

/// A [commit that keeps the lock](DocumentGuard::commit_or_keep) if it is rejected. No error,
/// because an error that is passed on, logged or kept would hold the lock.
#[derive(Debug)]
#[must_use = "dropping it drops the guard, which releases in the background"]
pub struct NotCommitted<T> {
    /// Why.
    pub error: CommitError,
    /// The guard, with the document as it was, if the commit was
    /// [rejected](CommitError::Rejected).
    pub guard: Option<DocumentGuard<T>>,
}

impl<T> DocumentGuard<T> {
    pub(super) fn new(lease: LeaseGuard, store: Arc<MongoStore>, document: T) -> Self {
        Self { lease, store, document, writes: 0 }
    }

    /// The document as it was when the lock was granted, or after the last [`save`](Self::save),
    /// with whatever was changed in it here since.
    #[must_use]
    pub fn document(&self) -> &T {
        &self.document
    }

    /// The key of the lock in the [plain provider](super::DocumentLocks::provider).
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.lease.key()
    }

    /// The token of this grant; for resources elsewhere. See [`LockGuard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    /// The monotonic instant until which the lock is held if nothing is heard from the server.
    #[must_use]
    pub fn valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    /// How much longer the lock is held if nothing is heard from the server: zero when it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        self.valid_until().saturating_duration_since(Instant::now())
    }

    /// Whether the lock is lost. See [`LockGuard::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// How the lock was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.lease.loss()
    }

    /// Resolves when the lock is lost. See [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub fn lost(&self) -> LostSignal {
        self.lease.lost()
    }

    /// Changes the document and unlocks it, in one atomic step at the server, if the lock is held
    /// at that moment by the server's clock. As any release it grants to the first who waits (R12).
    ///
    /// If it is rejected the lock is released in the background: `?` keeps nothing locked. To go on
    /// with the lock see [`commit_or_keep`](Self::commit_or_keep).
    ///
    /// # Errors
    /// See [`CommitError`]: lost before, with the document untouched; rejected; or unknown, after
    /// the request timeout. Until then it is asked again, under a number of its own, so that it is
    /// carried out once.
    ///
    /// # Cancel safety
    /// When the future is dropped the call in flight is finished in the background: the change may
    /// or may not be made. Either way the lock is released ([C11]). One that is kept without being
    /// polled keeps the lock, as the guard does.
    ///
    /// [C11]: distlock_api::contract#c11
    pub async fn commit(self, change: impl Into<Change>) -> Result<(), CommitError> {
        self.commit_or_keep(change).await.map_err(|not| not.error)
    }

    /// The same, but a commit that is rejected gives the guard back beside the error.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Cancel safety
    /// As [`commit`](Self::commit).
    pub async fn commit_or_keep(mut self, change: impl Into<Change>) -> Result<(), NotCommitted<T>> {
        let op = match self.write(&change.into(), true) {
            Ok(op) => op,
            Err(error) => return Err(self.rejected(error, None)),
        };
        let Self { lease, store, document, writes } = self;
        let key = lease.key().clone();
        match lease.release_via(op.clone()).await {
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

    /// Replaces the document by this one as it is here, and unlocks it: [`commit`](Self::commit) of
    /// [`Change::replace`].
    ///
    /// Fields that `T` does not know are lost, as with any replacement.
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
    /// The document in this guard becomes what it is then.
    ///
    /// # Errors
    /// * [`Lost`](ErrorKind::Lost): the lock had been lost before, and the document is untouched;
    ///   the guard is lost.
    /// * [`InvalidOptions`](ErrorKind::InvalidOptions) before any I/O, and
    ///   [`Rejected`](ErrorKind::Rejected) by MongoDB: nothing was changed, and the lock is held.
    /// * [`Corrupt`](ErrorKind::Corrupt) of unknown outcome if the changed document is no `T`: then
    ///   it has been changed, and the one here has not.
    /// * Whatever else MongoDB fails with, after the request timeout; until then it is asked again,
    ///   under a number of its own, so that it is carried out once.
    ///
    /// # Cancel safety
    /// When the future is dropped the save goes on in the background, and may or may not be carried
    /// out; the document here stays what it was. A later commit or save of this guard is not undone
    /// by it.
    pub fn save(&mut self, change: impl Into<Change>) -> impl Future<Output = Result<()>> + Send + '_
    where
        T: DeserializeOwned + Send + Sync,
    {
        let op = self.write(&change.into(), false);
        async move {
            let op = op?;
            match self.lease.write_via(op.clone()).await? {
                Written::Applied => {
                    let about = |error: LockError| error.with_key(self.lease.key().clone());
                    let document = op.take_document().ok_or_else(|| about(crate::error::unmarked()))?;
                    self.document = read(&document).map_err(|error| about(error.outcome_unknown()))?;
                    Ok(())
                }
                Written::AlreadyLost => Err(lost().with_key(self.lease.key().clone())),
            }
        }
    }

    /// Replaces the document by this one as it is here, and keeps the lock: [`save`](Self::save) of
    /// [`Change::replace`].
    ///
    /// Fields that `T` does not know are lost, as with any replacement.
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

    /// Unlocks without a change, and says whether the lock was held until then. See
    /// [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// When the returned future is dropped, polled or not, the release goes on in the background.
    pub fn release(self) -> ReleaseFuture {
        self.lease.release()
    }

    /// Gives back a document with which nothing was done, without the minimum hold. See
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

    /// Leaves the document as it is, and locked until the ttl ends. See [`LockGuard::abandon`].
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
        tokio::select! {
            biased;
            loss = self.lost() => {
                let error = LockError::new(ErrorKind::Lost, format!("the lock was lost: {loss}"));
                Err(error.with_key(self.key().clone()))
            }
            output = future => Ok(output),
        }
    }

    /// The same lock without the document, and the document.
    pub fn into_parts(self) -> (LockGuard, T) {
        (self.lease.into_guard(), self.document)
    }

    /// The next write.
    fn write(&mut self, change: &Change, releases: bool) -> Result<Arc<WriteDocument>> {
        let key = self.lease.key();
        let stages = change.stages(&self.store.records.layout, key).map_err(|error| error.with_key(key.clone()))?;
        self.writes += 1;
        Ok(Arc::new(WriteDocument::new(self.store.clone(), stages, self.writes, releases)))
    }
}

fn lost() -> LockError {
    LockError::new(ErrorKind::Lost, "the lock had been lost before: nothing was changed")
}

/// A document as the application's type.
pub(super) fn read<T: DeserializeOwned>(document: &RawDocument) -> Result<T> {
    from_slice(document.as_bytes()).map_err(|error| {
        let message = "the document is not what the application's type expects";
        LockError::new(ErrorKind::Corrupt, message).with_disposition(Disposition::Permanent).with_source(error)
    })
}

impl<T> Deref for DocumentGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.document
    }
}

/// Changes here stay here until they are committed or saved.
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
