//! The builder of locks in documents. It makes no I/O.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::Collection;
use mongodb::bson::{Bson, Document};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DocumentLocks;
use crate::bson::to_bson;
use crate::builder::common::{Common, common_setters};
use crate::ids::{IntegerIds, KeyMap, ObjectIds, TextIds, UuidIds};
use crate::index::Indexes;
use crate::lease::Layout;
use crate::records::IfMissing;
use crate::store::MongoStore;

const DEFAULT_FIELD: &str = "lock";

impl<T> DocumentLocks<T> {
    /// Returns the builder of locks in the documents of a collection. The read and write concerns
    /// of the collection are not used: locks need majority writes and the primary.
    ///
    /// The type of the documents must be `Deserialize`:
    ///
    /// ```compile_fail,E0277
    /// # use distlock_mongo::{DocumentLocks, mongodb::Collection};
    /// struct Order;
    ///
    /// fn locks(orders: &Collection<Order>) {
    ///     DocumentLocks::builder(orders); // `Order: Deserialize` is not satisfied
    /// }
    /// ```
    pub fn builder(collection: &Collection<T>) -> DocumentLocksBuilder<T>
    where
        T: DeserializeOwned + Send + Sync,
    {
        DocumentLocksBuilder::new(collection)
    }
}

/// The builder of [`DocumentLocks`]. Made by [`DocumentLocks::builder`].
///
/// ```no_run
/// use std::time::Duration;
///
/// use distlock_api::LockError;
/// use distlock_mongo::DocumentLocks;
/// use distlock_mongo::mongodb::{Collection, bson::Document};
///
/// async fn locks(orders: &Collection<Document>) -> Result<DocumentLocks<Document>, LockError> {
///     let builder = DocumentLocks::builder(orders).object_ids().field("_lock");
///     builder.ttl(Duration::from_secs(20)).connect().await
/// }
/// ```
///
/// [`build`](Self::build) sends nothing; [`connect`](Self::connect) reports a wrong address,
/// credential or privilege.
#[derive(Clone)]
#[must_use = "nothing is made until `build` is called"]
pub struct DocumentLocksBuilder<T> {
    common: Common,
    field: String,
    ids: Arc<dyn KeyMap>,
    default: Option<Result<Document>>,
    owner_index: bool,
    documents: PhantomData<fn() -> T>,
}

impl<T: Send + Sync> DocumentLocksBuilder<T> {
    fn new(collection: &Collection<T>) -> Self {
        let namespace = collection.namespace();
        Self {
            common: Common::new(collection.client().clone(), &namespace.db, &namespace.coll),
            field: DEFAULT_FIELD.to_owned(),
            ids: Arc::new(TextIds),
            default: None,
            owner_index: false,
            documents: PhantomData,
        }
    }
}

impl<T> DocumentLocksBuilder<T> {
    /// Sets the field of each document that contains its lock. All programs that lock these
    /// documents must name the same. Defaults to `lock`.
    ///
    /// It is a field at the top of the document. Its name is not empty and not `_id`, does not
    /// begin with `$`, and has neither `.` nor NUL.
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = name.into();
        self
    }

    /// Sets the mapping between `_id`s and lock keys. Defaults to [`TextIds`].
    pub fn ids(mut self, ids: impl KeyMap) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// Sets the mapping for `_id`s that are `ObjectId`s: [`ObjectIds`].
    pub fn object_ids(self) -> Self {
        self.ids(ObjectIds)
    }

    /// Sets the mapping for `_id`s that are UUIDs: [`UuidIds`].
    pub fn uuid_ids(self) -> Self {
        self.ids(UuidIds)
    }

    /// Sets the mapping for `_id`s that are whole numbers: [`IntegerIds`].
    pub fn integer_ids(self) -> Self {
        self.ids(IntegerIds)
    }

    /// Sets the document that is inserted, locked, if there is none, in the same step. If two
    /// callers insert the same one, one gets the lock, and the other waits or gets `Busy`. The
    /// `_id` is always the lock's. A document with nothing but an `_id` counts as missing.
    ///
    /// The default is part of every acquisition's command, so keep it small. Defaults to none: then
    /// the lock of a missing document is an error of kind [`NotFound`](ErrorKind::NotFound). For a
    /// single acquisition see [`LockDocument::or_insert`](super::LockDocument::or_insert).
    pub fn default_document(mut self, document: &T) -> Self
    where
        T: Serialize,
    {
        self.default = Some(default_document(document));
        self
    }

    /// Creates an owner index in the collection, of the locked documents only. It makes
    /// [listing and releasing](distlock_api::LockAdmin::release_owner) by owner fast, and costs
    /// each acquisition and release a little on the server. Defaults to no index, because the
    /// collection is yours.
    pub fn owner_index(mut self) -> Self {
        self.owner_index = true;
        self
    }

    common_setters!();

    /// Makes the locks.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a name that MongoDB does not allow, or a
    /// default that is no document or has the lock's field. Also for a request timeout of zero, or
    /// an option that the lease engine refuses.
    pub fn build(self) -> Result<DocumentLocks<T>> {
        let store = self.store()?;
        Ok(DocumentLocks::new(self.common.provider(store)?))
    }

    /// Makes the locks, and [prepares](crate::MongoProvider::prepare) the deployment.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`MongoProvider::prepare`](crate::MongoProvider::prepare).
    ///
    /// # Cancel safety
    /// As [`MongoProvider::prepare`](crate::MongoProvider::prepare).
    pub async fn connect(self) -> Result<DocumentLocks<T>> {
        let locks = self.build()?;
        locks.provider().prepare().await?;
        Ok(locks)
    }

    /// Makes the store alone, for an engine of your own. Lease terms, owner, queue, hand-off and
    /// poll interval belong to the engine, and are ignored.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for options of the engine.
    pub fn build_store(self) -> Result<MongoStore> {
        self.store()
    }

    fn store(&self) -> Result<MongoStore> {
        check_field(&self.field)?;
        let if_missing = match &self.default {
            Some(default) => IfMissing::InsertDefault(checked(default.clone()?, &self.field)?),
            None => IfMissing::Fail,
        };
        let layout = Layout::within(&self.field, self.ids.clone());
        self.common.store(layout, if_missing, Indexes::new(None, self.owner_index))
    }
}

/// Makes the document to insert, without its `_id`, which the lock has.
pub(super) fn default_document<T: Serialize + ?Sized>(document: &T) -> Result<Document> {
    match to_bson(document) {
        Ok(Bson::Document(mut document)) => {
            document.remove("_id");
            Ok(document)
        }
        Ok(_) => refuse("the default is no document: its type must serialize to a struct or a map".into()),
        Err(error) => {
            Err(LockError::new(ErrorKind::InvalidOptions, "the default cannot be stored as BSON").with_source(error))
        }
    }
}

/// Checks that the default does not have the lock's field.
pub(super) fn checked(document: Document, field: &str) -> Result<Document> {
    if document.contains_key(field) {
        return refuse(format!(
            "the default has a field {field:?}, which is that of the lock: leave it out, or keep the lock in another \
             field (`DocumentLocksBuilder::field`)"
        ));
    }
    Ok(document)
}

fn check_field(name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) || name == "_id" {
        return refuse(format!(
            "{name:?} cannot be the field of a lock: a name is not empty and not `_id`, does not begin with $, and has \
             neither . nor NUL"
        ));
    }
    Ok(())
}

fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::invalid_options(message))
}

impl<T> fmt::Debug for DocumentLocksBuilder<T> {
    /// Without the client, whose options contain credentials, and without the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DocumentLocksBuilder");
        shown.field("field", &self.field).field("ids", &self.ids);
        self.common.describe(&mut shown);
        shown.field("owner_index", &self.owner_index).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_checked() {
        for name in ["", "$lock", "a.b", "a\0", "_id"] {
            assert_eq!(check_field(name).unwrap_err().kind(), ErrorKind::InvalidOptions, "{name:?}");
        }
        for name in ["lock", "_lock", "lo$ck", "a b", "7", "é"] {
            check_field(name).unwrap();
        }
    }
}
