//! Locks in an application's own documents.

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

use distlock_api::{AcquireOptions, ErrorKind, LockError, LockKey, Result};
use distlock_engine::AcquiredLease;
use mongodb::Namespace;
use mongodb::bson::Bson;
use serde::de::DeserializeOwned;

use crate::claim::claim_state;
use crate::provider::MongoProvider;
use crate::records::IfMissing;
use crate::store::MongoStore;

pub use acquire::{LockDocument, TryLockDocument};
pub use all::{LockAllDocuments, TryLockAllDocuments};
pub use builder::DocumentLocksBuilder;
pub use change::Change;
pub use guard::{DocumentGuard, NotCommitted};
pub use refusal::CommitError;

/// Locks in your own documents: locking returns the document, and a commit changes and unlocks it
/// in one atomic step. Clones share everything.
///
/// The lease is a sub-document in a field of its own, [`lock`](DocumentLocksBuilder::field) by
/// default, of each document that has ever been locked. Readers that ignore this field find their
/// documents unchanged.
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
///     // One round trip: the lock and the order.
///     let order = orders.lock(id).timeout(Duration::from_secs(5)).await?;
///     let paid = charge(&order).await;
///     // One more: the change and the release.
///     order.commit(Change::new().set("state", "paid").set("paid", paid)).await?;
///     Ok(())
/// }
/// ```
///
/// # Late holders
/// Through its guard a late holder can do nothing. A [commit](DocumentGuard::commit) or a
/// [save](DocumentGuard::save) is filtered by the acquisition and its expiry, by the server's
/// clock, in the same step. After any pause of the process it gets
/// [`AlreadyLost`](CommitError::AlreadyLost), and the document is untouched. This needs no check of
/// a fencing token; for other resources the guard [has one](DocumentGuard::fencing_token).
///
/// # Writers that do not lock
/// The lock is advisory: an update by a writer that does not lock is carried out, whether or not
/// the document is locked.
///
/// * An update of single fields does not affect the lock.
/// * An update that **replaces the whole document** removes the lock: `replaceOne`, or a `save` of
///   an object-document mapper that does not know the field. The holder loses the lock, the queue
///   is gone, and the next token grows only with the server's clock. Let such writers lock, or let
///   their type keep unknown fields.
/// * A deletion removes the lock with the document.
///
/// # Your own transactions
/// Do not change a locked document in a transaction of your own, except in one that takes far less
/// than a third of the ttl. The lease is in the same document:
///
/// * Its renewal waits until your transaction ends. If that takes too long, the lock is lost, and
///   the transaction commits nevertheless, perhaps beside the next holder. A renewal that waits is
///   logged as "renewal failed".
/// * A renewal that comes first makes your change a write conflict, and aborts your transaction.
/// * A [commit](DocumentGuard::commit) or [save](DocumentGuard::save) waits for it, too.
///
/// A change of this document alone needs no transaction: commit or save it. For several documents,
/// take a lock that is not in them, of a [`MongoProvider`] in a collection of its own, and change
/// all in its [`FencedTransaction`](crate::FencedTransaction). Then renewals do not wait, and only
/// the present holder commits.
///
/// # Requirements
/// * All `_id`s are of one kind, [`TextIds`](crate::TextIds) by default, and each has a key. The
///   server never makes an `_id`.
/// * A field name that nothing else uses. If a document has another value in it, locking fails with
///   [`Corrupt`](ErrorKind::Corrupt) and leaves the document as it is.
/// * Space: up to 2 KB per document that has been locked, and 165 bytes per waiter. A validator
///   with `additionalProperties: false` must allow the field; otherwise locking is
///   [rejected](ErrorKind::Rejected).
/// * The collation `simple`, and the privileges `find`, `update`, `insert` (for
///   [defaults](DocumentLocksBuilder::default_document)) and `changeStream`, without which waiters
///   poll.
/// * No index. Only [listing](distlock_api::LockAdmin::list) reads the whole collection; listing by
///   owner can have [an index](DocumentLocksBuilder::owner_index). **Nothing is ever removed**:
///   this style has no TTL index. A TTL index of the application removes a locked document like a
///   deletion. One on a date of the lock other than `expiresAt` is refused, and so is a capped
///   collection: two holders could have one lock.
///
/// # The same locks without the documents
/// [`provider`](Self::provider) returns a [`LockProvider`](distlock_api::LockProvider) of the same
/// locks, with the same turns, queue and tokens. It is for code that works with keys, and for
/// [administration](distlock_api::LockProvider::admin).
pub struct DocumentLocks<T> {
    provider: MongoProvider,
    documents: PhantomData<fn() -> T>,
}

impl<T> DocumentLocks<T> {
    pub(crate) fn new(provider: MongoProvider) -> Self {
        Self { provider, documents: PhantomData }
    }

    /// Returns the same locks without their documents. The provider shares everything with this,
    /// and its [`close`](distlock_api::LockProvider::close) closes both.
    ///
    /// Without a default document, the lock of a missing document is an error of kind
    /// [`NotFound`](ErrorKind::NotFound).
    ///
    /// ```no_run
    /// use distlock_api::{LockError, LockProvider};
    /// use distlock_mongo::DocumentLocks;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { paid: f64 }
    ///
    /// /// Releases all locks of a session that has ended.
    /// async fn end(orders: &DocumentLocks<Order>, session: &str) -> Result<u64, LockError> {
    ///     let provider = orders.provider();
    ///     let admin = provider.admin().expect("MongoDB has administration");
    ///     admin.release_owner(session, "the session has ended").await
    /// }
    /// ```
    #[must_use]
    pub fn provider(&self) -> MongoProvider {
        self.provider.clone()
    }

    /// Returns the key of an `_id` in [`provider`](Self::provider).
    ///
    /// # Errors
    /// [`InvalidKey`](ErrorKind::InvalidKey) for an `_id` that is not of the collection's kind.
    pub fn key(&self, id: impl Into<Bson>) -> Result<LockKey> {
        let id = id.into();
        let key = self.store().records.layout.key(&id);
        key.ok_or_else(|| {
            let message = format!(
                "{id} is no `_id` of this collection, whose `_id`s are {:?}: see `DocumentLocksBuilder::ids`",
                self.store().records.layout.ids()
            );
            LockError::invalid_key(message)
        })
    }

    /// Returns the namespace of the documents.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        self.store().records.collection.namespace()
    }

    pub(crate) fn store(&self) -> &Arc<MongoStore> {
        self.provider.store()
    }
}

impl<T: DeserializeOwned> DocumentLocks<T> {
    /// Locks a document, and returns `None` if it is busy. `if_missing` is for this acquisition;
    /// `None` for what the collection has configured.
    pub(crate) async fn acquire(
        &self,
        key: LockKey,
        options: AcquireOptions,
        if_missing: Option<IfMissing>,
    ) -> Result<Option<DocumentGuard<T>>> {
        let if_missing = if_missing.unwrap_or_else(|| self.store().records.if_missing.clone());
        let op = ops::AcquireDocument { store: self.store().clone(), if_missing };
        let lease = match self.provider.engine().acquire_via(key, options, Arc::new(op)).await {
            Ok(AcquiredLease::Held(lease)) => lease,
            Ok(AcquiredLease::Busy(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let brought = claim_state(lease.claim()).document.lock().expect("no code in here panics").take();
        let document = brought.map(|document| guard::read(&document));
        match document {
            Some(Ok(document)) => Ok(Some(DocumentGuard::new(lease, self.store().clone(), document))),
            // No work was done under the lock.
            Some(Err(error)) => {
                let key = lease.key().clone();
                drop(lease.discard());
                Err(error.with_key(key))
            }
            None => Err(LockError::new(ErrorKind::Other, "the answer to an acquisition lacks the document")),
        }
    }
}

impl<T> Clone for DocumentLocks<T> {
    fn clone(&self) -> Self {
        Self::new(self.provider.clone())
    }
}

impl<T> fmt::Debug for DocumentLocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store().describe(f, "DocumentLocks", Some(self.provider.engine()))
    }
}

impl<T> fmt::Display for DocumentLocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.provider, f)
    }
}
