//! Locks in the documents themselves.

mod acquire;
mod all;
mod builder;
mod change;
mod guard;
mod ops;
mod refusal;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use distlock_api::{AcquireOptions, Busy, ErrorKind, LockError, LockKey, Result};
use distlock_engine::AcquiredLease;
use mongodb::bson::Bson;
use mongodb::{Collection, Namespace};
use serde::de::DeserializeOwned;

use crate::claim::claim_state;
use crate::provider::MongoProvider;
use crate::records::Absent;
use crate::store::MongoStore;

pub use acquire::{LockDocument, TryLockDocument};
pub use all::LockAllDocuments;
pub use builder::DocumentLocksBuilder;
pub use change::Change;
pub use guard::{DocumentGuard, NotCommitted};
pub use refusal::CommitError;

/// Locks that live in your own documents: locking one brings it along, and committing changes it
/// and unlocks it in one atomic step. Clones share everything.
///
/// The lease is a sub-document under a field of its own, `lock` unless
/// [told otherwise](DocumentLocksBuilder::field), in each document that has ever been locked.
/// Readers that know nothing of it find their documents as they were, and one field more.
///
/// ```no_run
/// use std::time::Duration;
///
/// use distlock_api::LockError;
/// use distlock_mongo::mongodb::Database;
/// use distlock_mongo::{Change, DocumentLocks};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     _id: i64,
///     state: String,
///     paid: f64,
/// }
///
/// # async fn charge(_: &Order) -> f64 { 0.0 }
/// async fn pay(app: &Database, id: i64) -> Result<(), LockError> {
///     let orders = DocumentLocks::<Order>::builder(&app.collection("orders")).integer_ids().build()?;
///     let order = orders.lock(id).timeout(Duration::from_secs(5)).await?; // one round trip: the lock and the order
///     let paid = charge(&order).await;
///     order.commit(Change::new().set("state", "paid").set("paid", paid)).await?; // one more: the change and the unlocking
///     Ok(())
/// }
/// ```
///
/// # What a late holder can do
/// Nothing, through its guard: a [commit](DocumentGuard::commit) or a [save](DocumentGuard::save)
/// is filtered by the acquisition and its expiry, by the server's clock, in the same step. However
/// long the process was paused, it hears [`AlreadyLost`](CommitError::AlreadyLost), and the
/// document is untouched. No fencing token needs to be checked for this; for other resources the
/// guard [has one](DocumentGuard::fencing_token).
///
/// # What plain writers can do
/// Everything. The lock is advice for those who ask for it: an update that does not ask is carried
/// out, held or not. One that changes single fields does no harm to the lock. One that **replaces
/// the whole document** – `replaceOne`, or a `save` of an object-document mapper that knows no
/// `lock` – removes the lock: the holder loses it, nobody waits in line any more, and the next
/// token is only as much greater as the server's clock is. Let such writers lock, or let their type
/// keep unknown fields. A document that is deleted takes its lock with it.
///
/// # What it needs
/// * The `_id`s of one kind: [`TextIds`](crate::TextIds) unless told otherwise, and every key names
///   one. An `_id` is never made by the server.
/// * A field name that nothing else uses. If a document has it for something else, locking fails
///   with [`Corrupt`](ErrorKind::Corrupt) and leaves it as it is.
/// * Room: up to 2 KB per document that has been locked, and 150 bytes for each who waits. A
///   validator with `additionalProperties: false` must allow the field, or locking fails as the
///   validator's refusal.
/// * No collation but `simple`; the privileges `find`, `insert` (for
///   [defaults](DocumentLocksBuilder::default_document)), `update`, and `changeStream`, without
///   which waiters poll.
/// * No index. Only [listing](distlock_api::LockAdmin::list) reads the collection from end to end;
///   [by owner](DocumentLocksBuilder::owner_index) it can have one. **Nothing is ever removed**:
///   there is no TTL index in this style.
///
/// # The same locks without the documents
/// [`provider`](Self::provider) is a [`LockProvider`](distlock_api::LockProvider) of the same
/// locks, with the same turns, queue and tokens, for code that knows only keys, for
/// [several at once](distlock_api::LockProviderExt::acquire_all), and for
/// [administration](distlock_api::LockProvider::admin).
pub struct DocumentLocks<T> {
    provider: MongoProvider,
    documents: PhantomData<fn() -> T>,
}

/// The answer to a [`try_lock`](DocumentLocks::try_lock).
#[derive(Debug)]
#[must_use]
pub enum Locked<T> {
    /// The lock is ours, and here is the document.
    Held(DocumentGuard<T>),
    /// It was not granted within the wait.
    Busy(Busy),
    /// There is no such document, and no default for one.
    Missing,
}

impl<T> Locked<T> {
    /// The guard, if there is one.
    #[must_use]
    pub fn held(self) -> Option<DocumentGuard<T>> {
        match self {
            Self::Held(guard) => Some(guard),
            Self::Busy(_) | Self::Missing => None,
        }
    }

    /// Whether there is no such document.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

impl<T> DocumentLocks<T> {
    /// Locks in the documents of a collection, to be configured. The collection's own read and
    /// write concerns are not used: locks need majority writes and the primary.
    pub fn builder(collection: &Collection<T>) -> DocumentLocksBuilder<T>
    where
        T: Send + Sync,
    {
        DocumentLocksBuilder::new(collection)
    }

    fn new(provider: MongoProvider) -> Self {
        Self { provider, documents: PhantomData }
    }

    /// Locks a document and brings it along, in one round trip; waits for ever unless told
    /// otherwise. See [`LockDocument`] for what can be set, and await it.
    ///
    /// The id is whatever the collection's `_id`s are: text, an `ObjectId`, a `Uuid`, a number.
    pub fn lock(&self, id: impl Into<Bson>) -> LockDocument<'_, T> {
        LockDocument::new(self, id.into())
    }

    /// Locks a document if that can be done at once, and brings it along. See [`TryLockDocument`]
    /// for what can be set, and await it.
    pub fn try_lock(&self, id: impl Into<Bson>) -> TryLockDocument<'_, T> {
        TryLockDocument::new(self, id.into())
    }

    /// Locks several documents, all or nothing, in an order that cannot deadlock ([C21]), and
    /// brings them along. See [`LockAllDocuments`].
    ///
    /// [C21]: distlock_api::contract#c21
    pub fn lock_all<I: Into<Bson>>(&self, ids: impl IntoIterator<Item = I>) -> LockAllDocuments<'_, T> {
        LockAllDocuments::new(self, ids.into_iter().map(|id| self.key(id)).collect())
    }

    /// The same locks without their documents. It shares everything with this, and its
    /// [`close`](distlock_api::LockProvider::close) closes both.
    ///
    /// Without a default document, the lock of a document that is not there is an error of kind
    /// [`NotFound`](ErrorKind::NotFound).
    #[must_use]
    pub fn provider(&self) -> MongoProvider {
        self.provider.clone()
    }

    /// The key of an `_id` in [`provider`](Self::provider).
    ///
    /// # Errors
    /// [`InvalidKey`](ErrorKind::InvalidKey) for an `_id` that is not of the collection's kind.
    pub fn key(&self, id: impl Into<Bson>) -> Result<LockKey> {
        let id = id.into();
        let key = self.store().records.layout.key(&id);
        key.ok_or_else(|| LockError::invalid_key(format!("the `_id`s of this collection are not like {id}")))
    }

    /// Where the documents are.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.store().records.collection.namespace()
    }

    fn store(&self) -> &Arc<MongoStore> {
        self.provider.store()
    }
}

impl<T: DeserializeOwned> DocumentLocks<T> {
    /// Locks a document, and makes of an absent one what is said, or what all acquisitions do.
    async fn acquire(&self, key: LockKey, options: AcquireOptions, absent: Option<Absent>) -> Result<Locked<T>> {
        let absent = absent.unwrap_or_else(|| self.store().records.absent.clone());
        let op = ops::AcquireDocument { store: self.store().clone(), absent };
        let lease = match self.provider.engine().acquire_via(key, options, Arc::new(op)).await {
            Ok(AcquiredLease::Held(lease)) => lease,
            Ok(AcquiredLease::Busy(busy)) => return Ok(Locked::Busy(busy)),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Locked::Missing),
            Err(error) => return Err(error),
        };
        let brought = claim_state(lease.claim()).document.lock().expect("no code in here panics").take();
        let document = brought.map(|document| guard::read(&document));
        match document {
            Some(Ok(document)) => Ok(Locked::Held(DocumentGuard::new(lease, self.store().clone(), document))),
            // Nothing was done under the lock.
            Some(Err(error)) => {
                let key = lease.key().clone();
                drop(lease.discard());
                Err(error.with_key(key))
            }
            None => Err(LockError::new(ErrorKind::Other, "a grant came without its document")),
        }
    }
}

/// Busy or missing as the errors that they are where a guard is the only answer.
fn or_error<T>(locked: Locked<T>, key: LockKey) -> Result<DocumentGuard<T>> {
    let error = match locked {
        Locked::Held(guard) => return Ok(guard),
        Locked::Busy(_) => LockError::not_granted(),
        Locked::Missing => missing(),
    };
    Err(error.with_key(key))
}

fn missing() -> LockError {
    LockError::new(ErrorKind::NotFound, "there is no document with this `_id`")
}

impl<T> Clone for DocumentLocks<T> {
    fn clone(&self) -> Self {
        Self::new(self.provider.clone())
    }
}

impl<T> fmt::Debug for DocumentLocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentLocks").field("store", self.store()).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for DocumentLocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.provider, f)
    }
}
