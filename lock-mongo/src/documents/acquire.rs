//! The acquisition of one document.

use std::fmt;
use std::future::{Future, IntoFuture, ready};
use std::pin::Pin;

use distlock_api::style::{until_lost, yield_on_error};
use distlock_api::{AcquireOptions, LockError, Result, acquire_setters, mode_setters, try_setters, wait_setters};
use mongodb::bson::{Bson, Document};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::builder::{checked, default_document};
use super::{DocumentGuard, DocumentLocks};
use crate::records::IfMissing;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl<T> DocumentLocks<T> {
    /// Locks a document and returns it, and waits without a limit unless a
    /// [`timeout`](LockDocument::timeout) is set. A document that is free takes one round trip; or
    /// two that it shares with others, where a process locks many at once.
    ///
    /// Await it to get the [`DocumentGuard`], or call [`run`](LockDocument::run). See
    /// [`LockDocument`] for the options and errors. The id has the type of the collection's `_id`s:
    /// text, an `ObjectId`, a `Uuid`, a number.
    pub fn lock(&self, id: impl Into<Bson>) -> LockDocument<'_, T>
    where
        T: DeserializeOwned,
    {
        LockDocument::new(self, id.into())
    }

    /// Locks a document if it is free now, and returns it.
    ///
    /// Await it to get the [`DocumentGuard`], or `None` if the document is busy; or call
    /// [`run`](TryLockDocument::run). See [`TryLockDocument`] for the options and errors.
    ///
    /// ```no_run
    /// use distlock_api::LockError;
    /// use distlock_mongo::mongodb::bson::Document;
    /// use distlock_mongo::{Change, DocumentLocks};
    ///
    /// async fn ship(orders: &DocumentLocks<Document>, id: &str) -> Result<bool, LockError> {
    ///     let Some(order) = orders.try_lock(id).await? else { return Ok(false) };
    ///     order.commit(Change::new().set("state", "shipped")).await?;
    ///     Ok(true)
    /// }
    /// ```
    pub fn try_lock(&self, id: impl Into<Bson>) -> TryLockDocument<'_, T>
    where
        T: DeserializeOwned,
    {
        TryLockDocument::new(self, id.into())
    }
}

/// The acquisition of a document; await it to get the [`DocumentGuard`], or call
/// [`run`](Self::run). Made by [`DocumentLocks::lock`].
///
/// Errors, besides those of
/// [`LockProvider::acquire_with`](distlock_api::LockProvider::acquire_with):
/// * [`Timeout`](distlock_api::ErrorKind::Timeout) with [`Phase::Wait`](distlock_api::Phase::Wait)
///   for a wait that ended without the lock: see
///   [`is_not_granted`](distlock_api::LockError::is_not_granted);
/// * [`NotFound`](distlock_api::ErrorKind::NotFound) if there is no such document, and no default;
/// * [`InvalidKey`](distlock_api::ErrorKind::InvalidKey) for an `_id` of another kind than the
///   collection's, before any I/O;
/// * [`Corrupt`](distlock_api::ErrorKind::Corrupt) if the lock's field contains something else, or
///   the document is no `T`. The document is left as it is.
///
/// A guard that is [`shared`](Self::shared), or has [`permits`](Self::permits), reads the document:
/// it can be released, but neither [commits](DocumentGuard::commit) nor saves.
///
/// Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
#[must_use = "nothing is locked until this is awaited"]
pub struct LockDocument<'a, T> {
    locks: &'a DocumentLocks<T>,
    id: Bson,
    options: AcquireOptions,
    default: Option<Result<Document>>,
}

/// The acquisition of a document without a wait; await it to get the [`DocumentGuard`], or `None`
/// if the document is busy. Or call [`run`](Self::run). Made by [`DocumentLocks::try_lock`].
///
/// Errors are the other ones of [`LockDocument`]: a missing document is one. Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
#[must_use = "nothing is locked until this is awaited"]
pub struct TryLockDocument<'a, T> {
    locks: &'a DocumentLocks<T>,
    id: Bson,
    options: AcquireOptions,
    default: Option<Result<Document>>,
}

/// Defines the setter of the default document, on both acquisitions.
macro_rules! default_setter {
    () => {
        /// Sets the document that is inserted, locked, if there is none. Defaults to the
        /// [collection's](super::DocumentLocksBuilder::default_document).
        pub fn or_insert(mut self, document: &T) -> Self
        where
            T: Serialize,
        {
            self.default = Some(default_document(document));
            self
        }
    };
}

impl<'a, T> LockDocument<'a, T> {
    fn new(locks: &'a DocumentLocks<T>, id: Bson) -> Self {
        Self { locks, id, options: AcquireOptions::new(), default: None }
    }

    acquire_setters!();
    mode_setters!();
    wait_setters!();
    default_setter!();
}

impl<T: DeserializeOwned> LockDocument<'_, T> {
    /// Locks the document, and runs what `work` returns while the lock is held. `work` gets the
    /// guard, and usually ends with a [commit](DocumentGuard::commit). If it drops the guard, the
    /// document is unlocked in the background, without a change.
    ///
    /// # Errors
    /// Those of the acquisition; [`ErrorKind::Lost`](distlock_api::ErrorKind::Lost) when the lock
    /// was lost before the work had ended. A lost lock has changed nothing since the last
    /// [save](DocumentGuard::save).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and its guard.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use distlock_api::LockError;
    /// use distlock_mongo::{Change, DocumentLocks};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { paid: f64 }
    /// # async fn charge(_: &Order) -> f64 { 0.0 }
    ///
    /// async fn pay(orders: &DocumentLocks<Order>, id: i64) -> Result<(), LockError> {
    ///     orders
    ///         .lock(id)
    ///         .timeout(Duration::from_secs(5))
    ///         .run(async |order| {
    ///             let paid = charge(&order).await;
    ///             order.commit(Change::new().set("state", "paid").set("paid", paid)).await
    ///         })
    ///         .await??;
    ///     Ok(())
    /// }
    /// ```
    pub async fn run<F: Future>(self, work: impl FnOnce(DocumentGuard<T>) -> F) -> Result<F::Output> {
        run(self.await?, work).await
    }
}

impl<'a, T: DeserializeOwned> IntoFuture for LockDocument<'a, T> {
    type Output = Result<DocumentGuard<T>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { locks, id, options, default } = self;
            let checked = locks.key(id).and_then(|key| Ok((key, if_missing(locks, default)?)));
            let (key, if_missing) = yield_on_error(ready(checked)).await?;
            let locked = locks.acquire(key.clone(), options, if_missing).await?;
            locked.ok_or_else(|| LockError::not_granted().with_key(key))
        })
    }
}

impl<'a, T> TryLockDocument<'a, T> {
    fn new(locks: &'a DocumentLocks<T>, id: Bson) -> Self {
        Self { locks, id, options: AcquireOptions::try_once(), default: None }
    }

    acquire_setters!();
    mode_setters!();
    try_setters!();
    default_setter!();
}

impl<T: DeserializeOwned> TryLockDocument<'_, T> {
    /// Locks the document, and runs what `work` returns while the lock is held, as
    /// [`LockDocument::run`]. Returns `None`, without a call of `work`, if the document is busy.
    ///
    /// # Errors
    /// As [`LockDocument::run`], except that a busy document is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and its guard.
    pub async fn run<F: Future>(self, work: impl FnOnce(DocumentGuard<T>) -> F) -> Result<Option<F::Output>> {
        match self.await? {
            Some(guard) => run(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

impl<'a, T: DeserializeOwned> IntoFuture for TryLockDocument<'a, T> {
    type Output = Result<Option<DocumentGuard<T>>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { locks, id, options, default } = self;
            let checked = locks.key(id).and_then(|key| Ok((key, if_missing(locks, default)?)));
            let (key, if_missing) = yield_on_error(ready(checked)).await?;
            locks.acquire(key, options, if_missing).await
        })
    }
}

/// Returns what an acquisition with this default does if there is no document; `None` for what the
/// collection has configured.
fn if_missing<T>(locks: &DocumentLocks<T>, default: Option<Result<Document>>) -> Result<Option<IfMissing>> {
    let field = locks.store().records.layout.field();
    default.map(|default| checked(default?, field).map(IfMissing::InsertDefault)).transpose()
}

async fn run<T, F: Future>(guard: DocumentGuard<T>, work: impl FnOnce(DocumentGuard<T>) -> F) -> Result<F::Output> {
    let (lost, key) = (guard.lost(), guard.key().clone());
    until_lost(lost, work(guard)).await.map_err(|loss| LockError::lost(loss).with_key(key))
}

impl<T> fmt::Debug for LockDocument<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDocument").field("id", &self.id).field("options", &self.options).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for TryLockDocument<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLockDocument").field("id", &self.id).field("options", &self.options).finish_non_exhaustive()
    }
}
