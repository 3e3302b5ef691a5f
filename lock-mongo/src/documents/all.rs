//! The acquisition of several documents.

use std::fmt;
use std::future::{Future, IntoFuture, ready};
use std::pin::Pin;

use distlock_api::style::{Group, GroupGuard, acquire_group, until_lost, yield_on_error};
use distlock_api::{
    AcquireOptions, LockError, LockKey, LockProvider, Loss, LostSignal, ReleaseFuture, Result, acquire_setters,
    mode_setters, try_setters, wait_setters,
};
use futures_util::future::select_all;
use mongodb::bson::Bson;
use serde::de::DeserializeOwned;

use super::{DocumentGuard, DocumentLocks};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<T> DocumentLocks<T> {
    /// Locks several documents, all or nothing, in an order that cannot deadlock ([C21]), and
    /// returns them.
    ///
    /// Await it to get the guards, or call [`run`](LockAllDocuments::run). See [`LockAllDocuments`]
    /// for the options and errors.
    ///
    /// [C21]: distlock_api::contract#c21
    pub fn lock_all<I: Into<Bson>>(&self, ids: impl IntoIterator<Item = I>) -> LockAllDocuments<'_, T>
    where
        T: DeserializeOwned + Send,
    {
        LockAllDocuments::new(self, self.keys(ids))
    }

    /// Locks several documents, all or nothing, if all are free now ([C21]), and returns them.
    ///
    /// Await it to get the guards, or `None` if a document is busy; or call
    /// [`run`](TryLockAllDocuments::run). See [`TryLockAllDocuments`] for the options and errors.
    ///
    /// [C21]: distlock_api::contract#c21
    pub fn try_lock_all<I: Into<Bson>>(&self, ids: impl IntoIterator<Item = I>) -> TryLockAllDocuments<'_, T>
    where
        T: DeserializeOwned + Send,
    {
        TryLockAllDocuments::new(self, self.keys(ids))
    }

    fn keys<I: Into<Bson>>(&self, ids: impl IntoIterator<Item = I>) -> Result<Vec<LockKey>> {
        ids.into_iter().map(|id| self.key(id)).collect()
    }
}

/// The acquisition of several documents; await it to get their guards, or call [`run`](Self::run).
/// Made by [`DocumentLocks::lock_all`].
///
/// All documents are locked, or none ([C21]), in the order of their keys, as by
/// [`acquire_all`](distlock_api::LockProviderExt::acquire_all) of the
/// [plain provider](DocumentLocks::provider). Callers that name the same documents in different
/// orders, by either method, cannot deadlock. One wait covers all. If one document is not granted
/// or missing, those already locked are released again.
///
/// Free documents are locked together, up to 64 by one update and one query
/// ([R24](crate::protocol#r24)). If one is in use, those after it are released again while it is
/// waited for, and to others they may seem locked for a moment.
///
/// The guards are in the order of their keys. Each is committed by itself: a change of several
/// documents takes as many atomic steps. Releases without a change go together if they are
/// requested together, for example by dropping the vector, or with
/// `join_all(guards.into_iter().map(DocumentGuard::release))`.
///
/// Errors are those of [`LockDocument`](super::LockDocument). At the end of the wait the error
/// names the key that was busy. Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
/// [C21]: distlock_api::contract#c21
#[must_use = "nothing is locked until this is awaited"]
pub struct LockAllDocuments<'a, T> {
    locks: &'a DocumentLocks<T>,
    keys: Result<Vec<LockKey>>,
    options: AcquireOptions,
}

/// The acquisition of several documents without a wait; await it to get their guards, or `None` if
/// one of them is busy. Or call [`run`](Self::run). Made by [`DocumentLocks::try_lock_all`].
///
/// All documents are locked, or none, as by [`LockAllDocuments`]. Errors are those of
/// [`LockDocument`](super::LockDocument): a missing document is one. Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
#[must_use = "nothing is locked until this is awaited"]
pub struct TryLockAllDocuments<'a, T> {
    locks: &'a DocumentLocks<T>,
    keys: Result<Vec<LockKey>>,
    options: AcquireOptions,
}

impl<'a, T> LockAllDocuments<'a, T> {
    fn new(locks: &'a DocumentLocks<T>, keys: Result<Vec<LockKey>>) -> Self {
        Self { locks, keys, options: AcquireOptions::new() }
    }

    acquire_setters!();
    mode_setters!();
    wait_setters!();
}

impl<T: DeserializeOwned + Send> LockAllDocuments<'_, T> {
    /// Locks all documents, and runs what `work` returns while all locks are held. `work` gets the
    /// guards, in the order of their keys, and usually commits each. Documents whose guards it
    /// drops are unlocked in the background, without a change.
    ///
    /// # Errors
    /// Those of the acquisition; [`ErrorKind::Lost`](distlock_api::ErrorKind::Lost) when a lock was
    /// lost before the work had ended. Documents that were committed before stay changed.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and its guards.
    ///
    /// ```no_run
    /// use distlock_api::LockError;
    /// use distlock_mongo::DocumentLocks;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Account { balance: i64 }
    ///
    /// async fn close(accounts: &DocumentLocks<Account>, ids: [i64; 2]) -> Result<(), LockError> {
    ///     accounts
    ///         .lock_all(ids)
    ///         .run(async |guards| {
    ///             for mut account in guards {
    ///                 account.balance = 0;
    ///                 account.commit_document().await?;
    ///             }
    ///             Ok(())
    ///         })
    ///         .await?
    /// }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(Vec<DocumentGuard<T>>) -> F) -> Result<F::Output> {
        run(self.await?, work).await
    }
}

impl<'a, T: DeserializeOwned + Send> IntoFuture for LockAllDocuments<'a, T> {
    type Output = Result<Vec<DocumentGuard<T>>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { acquire(self.locks, self.keys, self.options).await?.or_not_granted() })
    }
}

impl<'a, T> TryLockAllDocuments<'a, T> {
    fn new(locks: &'a DocumentLocks<T>, keys: Result<Vec<LockKey>>) -> Self {
        Self { locks, keys, options: AcquireOptions::try_once() }
    }

    acquire_setters!();
    mode_setters!();
    try_setters!();
}

impl<T: DeserializeOwned + Send> TryLockAllDocuments<'_, T> {
    /// Locks all documents, and runs what `work` returns while all locks are held, as
    /// [`LockAllDocuments::run`]. Returns `None`, without a call of `work`, if a document is busy.
    ///
    /// # Errors
    /// As [`LockAllDocuments::run`], except that a busy document is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and its guards.
    pub async fn run<F: Future>(self, work: impl FnOnce(Vec<DocumentGuard<T>>) -> F) -> Result<Option<F::Output>> {
        match self.await? {
            Some(guards) => run(guards, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl<'a, T: DeserializeOwned + Send> IntoFuture for TryLockAllDocuments<'a, T> {
    type Output = Result<Option<Vec<DocumentGuard<T>>>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(acquire(self.locks, self.keys, self.options).await?.held()) })
    }
}

async fn acquire<T: DeserializeOwned>(
    locks: &DocumentLocks<T>,
    keys: Result<Vec<LockKey>>,
    options: AcquireOptions,
) -> Result<Group<DocumentGuard<T>>> {
    let keys = yield_on_error(ready(keys)).await?;
    // Without a request there is no document: such an answer is a refusal.
    let refuse = |key: &LockKey, options: &AcquireOptions| {
        let answer = locks.provider.engine().acquire_now(key, options)?;
        Some(answer.map(|_| None))
    };
    acquire_group(keys, &options, refuse, |key, options| locks.acquire(key, options, None)).await
}

async fn run<T, F: Future>(
    guards: Vec<DocumentGuard<T>>,
    work: impl FnOnce(Vec<DocumentGuard<T>>) -> F,
) -> Result<F::Output> {
    let lost = match &*guards {
        [] => LostSignal::never(),
        guards => {
            let signals: Vec<LostSignal> = guards.iter().map(DocumentGuard::lost).collect();
            LostSignal::new(async move { select_all(signals).await.0 })
        }
    };
    until_lost(lost, work(guards)).await.map_err(LockError::lost)
}

impl<T> GroupGuard for DocumentGuard<T> {
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

impl<T> fmt::Debug for LockAllDocuments<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "LockAllDocuments", &self.keys, &self.options)
    }
}

impl<T> fmt::Debug for TryLockAllDocuments<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "TryLockAllDocuments", &self.keys, &self.options)
    }
}

fn describe(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    keys: &Result<Vec<LockKey>>,
    options: &AcquireOptions,
) -> fmt::Result {
    let mut shown = f.debug_struct(name);
    match keys {
        Ok(keys) => shown.field("keys", keys),
        Err(error) => shown.field("error", error),
    };
    shown.field("options", options).finish_non_exhaustive()
}
