//! Locking a document, described and then awaited.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use distlock_api::{AcquireOptions, LockKey, Result, Wait, acquire_setters};
use mongodb::bson::{Bson, Document};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::builder::{checked, default_document};
use super::{DocumentGuard, DocumentLocks, Locked, or_error};
use crate::records::Absent;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The locking of a document being described; await it to get the [`DocumentGuard`].
///
/// Errors, besides those of
/// [`LockProvider::acquire_with`](distlock_api::LockProvider::acquire_with):
/// * [`Timeout`](distlock_api::ErrorKind::Timeout) with [`Phase::Wait`](distlock_api::Phase::Wait)
///   for a wait that ended without the lock;
/// * [`NotFound`](distlock_api::ErrorKind::NotFound) if there is no such document, and no default
///   for one;
/// * [`InvalidKey`](distlock_api::ErrorKind::InvalidKey) for an `_id` of another kind than the
///   collection's, before any I/O;
/// * [`Corrupt`](distlock_api::ErrorKind::Corrupt) if the document's field for the lock is
///   something else, or the document is no `T`. It is untouched.
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

/// The locking of a document without waiting being described; await it to get [`Locked`]: the
/// guard, or that it is busy, or that it is missing. Errors are the other ones of [`LockDocument`].
/// Cancel safe ([C11]).
///
/// [C11]: distlock_api::contract#c11
#[must_use = "nothing is locked until this is awaited"]
pub struct TryLockDocument<'a, T> {
    locks: &'a DocumentLocks<T>,
    id: Bson,
    options: AcquireOptions,
    default: Option<Result<Document>>,
}

impl<'a, T> LockDocument<'a, T> {
    pub(super) fn new(locks: &'a DocumentLocks<T>, id: Bson) -> Self {
        Self { locks, id, options: AcquireOptions::new(), default: None }
    }

    acquire_setters!();

    /// All options at once, the wait included.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = options;
        self
    }

    /// Wait at most this long. Defaults to waiting for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
    }

    /// What the document becomes if it is not there, in this acquisition. Defaults to the
    /// [collection's](super::DocumentLocksBuilder::default_document).
    pub fn or_insert(mut self, document: &T) -> Self
    where
        T: Serialize,
    {
        self.default = Some(default_document(document));
        self
    }
}

impl<'a, T: DeserializeOwned> IntoFuture for LockDocument<'a, T> {
    type Output = Result<DocumentGuard<T>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { locks, id, options, default } = self;
            let key = locks.key(id)?;
            or_error(acquire(locks, key.clone(), options, default).await?, key)
        })
    }
}

impl<'a, T> TryLockDocument<'a, T> {
    pub(super) fn new(locks: &'a DocumentLocks<T>, id: Bson) -> Self {
        Self { locks, id, options: AcquireOptions::try_once(), default: None }
    }

    acquire_setters!();

    /// All options at once. The wait counts only if it has an end: without one this is still a try.
    pub fn options(mut self, options: AcquireOptions) -> Self {
        self.options = match options.wait() {
            Wait::Forever => options.with_wait(Wait::Try),
            Wait::Try | Wait::UpTo(_) => options,
        };
        self
    }

    /// Wait at most this long before answering busy. Defaults to not at all.
    #[doc(alias = "timeout")]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.options = self.options.with_wait(Wait::UpTo(timeout));
        self
    }

    /// As [`LockDocument::or_insert`].
    pub fn or_insert(mut self, document: &T) -> Self
    where
        T: Serialize,
    {
        self.default = Some(default_document(document));
        self
    }
}

impl<'a, T: DeserializeOwned> IntoFuture for TryLockDocument<'a, T> {
    type Output = Result<Locked<T>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { locks, id, options, default } = self;
            acquire(locks, locks.key(id)?, options, default).await
        })
    }
}

async fn acquire<T: DeserializeOwned>(
    locks: &DocumentLocks<T>,
    key: LockKey,
    options: AcquireOptions,
    default: Option<Result<Document>>,
) -> Result<Locked<T>> {
    let field = locks.store().records.layout.field();
    let default = default.map(|default| checked(default?, field)).transpose()?;
    locks.acquire(key, options, default.map(Absent::Default)).await
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
