//! Describing locks in documents, without I/O.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockError, Result};
use distlock_engine::{HandOff, QueueOptions};
use mongodb::Collection;
use mongodb::bson::{Bson, Document, to_bson};
use serde::Serialize;

use super::DocumentLocks;
use crate::builder::common::{Common, common_setters};
use crate::ids::{IntegerIds, KeyMap, ObjectIds, TextIds, UuidIds};
use crate::index::Indexes;
use crate::lease::Layout;
use crate::records::Absent;
use crate::store::MongoStore;

const DEFAULT_FIELD: &str = "lock";

/// Describes [`DocumentLocks`]. Nothing is sent before the first document is locked.
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
    pub(super) fn new(collection: &Collection<T>) -> Self {
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
    /// The field of each document that holds its lock. All who lock these documents name the same.
    /// Defaults to `lock`.
    ///
    /// Any name of a field at the top of the document: not empty, not `_id`, without `.` and NUL,
    /// not beginning with `$`.
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.field = name.into();
        self
    }

    /// How `_id`s and lock keys stand for each other. Defaults to [`TextIds`].
    pub fn ids(mut self, ids: impl KeyMap) -> Self {
        self.ids = Arc::new(ids);
        self
    }

    /// The `_id`s are `ObjectId`s: [`ObjectIds`].
    pub fn object_ids(self) -> Self {
        self.ids(ObjectIds)
    }

    /// The `_id`s are UUIDs: [`UuidIds`].
    pub fn uuid_ids(self) -> Self {
        self.ids(UuidIds)
    }

    /// The `_id`s are whole numbers: [`IntegerIds`].
    pub fn integer_ids(self) -> Self {
        self.ids(IntegerIds)
    }

    /// What a document that is locked and not there becomes: it is made, locked, in the same step.
    /// Of two that make the same one, one gets the lock, and the other waits or is told busy. Its
    /// `_id` is that of the lock, whatever the default says. A document with nothing but an `_id`
    /// counts as not there.
    ///
    /// It goes along with every acquisition, so keep it small. Defaults to none: what is not there
    /// is [missing](super::Locked::Missing). For one acquisition alone see
    /// [`LockDocument::or_insert`](super::LockDocument::or_insert).
    pub fn default_document(mut self, document: &T) -> Self
    where
        T: Serialize,
    {
        self.default = Some(default_document(document));
        self
    }

    /// Creates an index of the owners of locks in the collection, of the locked documents only. It
    /// makes [listing and releasing](distlock_api::LockAdmin::release_owner) by owner quick, and
    /// costs each acquisition and release a little on the server. Defaults to no index: the
    /// collection is yours.
    pub fn owner_index(mut self) -> Self {
        self.owner_index = true;
        self
    }

    common_setters!();

    /// The locks.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions): a name that is not one, a default that is no
    /// document or has the lock's field itself, a request timeout of zero, or what the lease engine
    /// refuses.
    pub fn build(self) -> Result<DocumentLocks<T>> {
        let store = self.store()?;
        Ok(DocumentLocks::new(self.common.provider(store)?))
    }

    /// The store alone, for an engine of one's own; lease terms, owner and poll interval are not
    /// its business.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for what concerns the engine.
    pub fn build_store(self) -> Result<MongoStore> {
        self.store()
    }

    fn store(&self) -> Result<MongoStore> {
        check_field(&self.field)?;
        let absent = match &self.default {
            Some(default) => Absent::Default(checked(default.clone()?, &self.field)?),
            None => Absent::Nothing,
        };
        let layout = Layout::within(&self.field, self.ids.clone());
        self.common.store(layout, absent, Indexes::new(None, self.owner_index))
    }
}

/// A document that is to be made, whose `_id` is that of the lock.
pub(super) fn default_document<T: Serialize + ?Sized>(document: &T) -> Result<Document> {
    match to_bson(document) {
        Ok(Bson::Document(mut document)) => {
            document.remove("_id");
            Ok(document)
        }
        Ok(_) => refuse("the default is not a document".into()),
        Err(error) => {
            Err(LockError::new(ErrorKind::InvalidOptions, "the default cannot be stored as BSON").with_source(error))
        }
    }
}

/// The default, if it leaves the lock's field alone.
pub(super) fn checked(document: Document, field: &str) -> Result<Document> {
    if document.contains_key(field) {
        return refuse(format!("the default has a field {field:?} itself, where the lock is to be"));
    }
    Ok(document)
}

fn check_field(name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) || name == "_id" {
        return refuse(format!("{name:?} cannot be the field of a lock"));
    }
    Ok(())
}

fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::invalid_options(message))
}

impl<T> fmt::Debug for DocumentLocksBuilder<T> {
    /// Without the client, whose options hold credentials, and without the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentLocksBuilder")
            .field("common", &self.common)
            .field("field", &self.field)
            .field("ids", &self.ids)
            .field("owner_index", &self.owner_index)
            .finish_non_exhaustive()
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
