//! Fenced writes to an application's own documents, which a late holder cannot make.

mod answer;
mod fence;
mod transaction;

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, UpdateModifications, WriteConcern,
};
use serde::de::DeserializeOwned;

use crate::error::{Effect, is_lost_race};
use crate::topology::{check_kept, translate_for};
use fence::FenceState;

pub use answer::Fenced;
pub use fence::Fence;
pub use transaction::{FencedTransaction, TransactionError, TransactionWork};

/// How often a write is tried if its document changes between the refusal and the query after it,
/// or does not exist.
const ATTEMPTS: usize = 6;
/// How long the server may take to describe a collection.
const DESCRIPTION_LIMIT: Duration = Duration::from_secs(5);

impl Fence {
    /// Applies an update to the one document that matches, unless a later holder has written to it.
    ///
    /// The filter must match one document only, by `_id` or another unique field. Of several
    /// documents, one that no later holder has written would be updated.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for an update that the fence refuses;
    /// [`Corrupt`](ErrorKind::Corrupt) for a document whose fence is no number; any error of
    /// MongoDB. After an unknown outcome the call can be repeated, if the update itself can be
    /// applied twice.
    ///
    /// # Cancel safety
    /// When the future is dropped, the update may be applied nevertheless.
    pub async fn update_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<Fenced<()>> {
        let update = self.stamped(update)?;
        let documents = collection.clone_with_type::<Document>();
        let written = self.write(&documents, filter, update, Some(doc! { "_id": 1 }), false).await?;
        Ok(written.map(|_| ()))
    }

    /// Applies an update as [`update_one`](Self::update_one), and returns the updated document.
    ///
    /// # Errors
    /// As [`update_one`](Self::update_one). If the document is no `T`, the error is
    /// [`Corrupt`](ErrorKind::Corrupt) of unknown outcome, and the update has been applied.
    ///
    /// # Cancel safety
    /// As [`update_one`](Self::update_one).
    pub async fn find_one_and_update<T: DeserializeOwned + Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> Result<Fenced<T>> {
        let update = self.stamped(update)?;
        self.write(collection, filter, update, None, false).await
    }

    /// Applies an update as [`update_one`](Self::update_one), by `_id`, and inserts the document if
    /// there is none. The answer is never [`Fenced::NoDocument`].
    ///
    /// Two callers that insert the same document at once are served one after the other, in either
    /// order, if their tokens allow it. Neither gets an error of a duplicate key.
    ///
    /// An insertion takes four round trips: the document is looked for first, and the collection is
    /// examined.
    ///
    /// # Errors
    /// As [`update_one`](Self::update_one);
    /// [`Unsupported`](ErrorKind::Unsupported) for an insertion into a collection that removes
    /// documents by itself, such as a capped one: the stamp would be lost. If the new document
    /// violates a unique index of another field, that is an error of MongoDB.
    ///
    /// # Cancel safety
    /// As [`update_one`](Self::update_one).
    pub async fn upsert_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        id: impl Into<Bson>,
        update: impl Into<UpdateModifications>,
    ) -> Result<Fenced<()>> {
        let update = self.stamped(update)?;
        let documents = collection.clone_with_type::<Document>();
        let filter = doc! { "_id": { "$eq": id.into() } };
        let written = self.write(&documents, filter, update, Some(doc! { "_id": 1 }), true).await?;
        Ok(written.map(|_| ()))
    }

    /// Stamps a document with the token and changes nothing else. From now on every earlier holder
    /// is fenced off, although this one has not written yet. Returns the document, for decisions
    /// that no earlier holder can invalidate.
    ///
    /// # Errors
    /// As [`find_one_and_update`](Self::find_one_and_update).
    ///
    /// # Cancel safety
    /// As [`update_one`](Self::update_one).
    pub async fn claim<T: DeserializeOwned + Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
    ) -> Result<Fenced<T>> {
        self.find_one_and_update(collection, filter, doc! { "$set": {} }).await
    }

    async fn write<T: DeserializeOwned + Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        update: UpdateModifications,
        projection: Option<Document>,
        upsert: bool,
    ) -> Result<Fenced<T>> {
        // A document that does not exist is only inserted where it stays.
        let mut may_insert = false;
        for _ in 0..ATTEMPTS {
            let mut action = collection
                .find_one_and_update(self.filter(filter.clone()), update.clone())
                .upsert(may_insert)
                .return_document(ReturnDocument::After)
                .write_concern(WriteConcern::majority());
            if let Some(projection) = &projection {
                action = action.projection(projection.clone());
            }
            match action.await {
                Ok(Some(document)) => return Ok(Fenced::Accepted(document)),
                Ok(None) => {}
                // The document exists: it is fenced, or another caller has just inserted it.
                Err(error) if may_insert && is_lost_race(&error) => {}
                Err(error) => return Err(translate_for(collection.client(), &error, Effect::Write)),
            }
            match self.query(collection, filter.clone()).await? {
                Some(FenceState::Newer(newest)) => return Ok(Fenced::FencedOff { newest }),
                None if !upsert => return Ok(Fenced::NoDocument),
                None if !may_insert => {
                    check_inserts(collection).await?;
                    may_insert = true;
                }
                // It was inserted or changed since.
                None | Some(FenceState::Open) => {}
            }
        }
        let message = format!("the document changed {ATTEMPTS} times between the write and its check: try again");
        Err(LockError::new(ErrorKind::Unavailable, message))
    }

    /// Queries the fence of the document, after a write that matched nothing.
    async fn query<T: Send + Sync>(&self, collection: &Collection<T>, filter: Document) -> Result<Option<FenceState>> {
        let documents = collection.clone_with_type::<Document>();
        let found = documents
            .find_one(filter)
            .projection(doc! { "_id": 0, &self.field: 1 })
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
            .map_err(|error| translate_for(collection.client(), &error, Effect::None))?;
        let Some(document) = found else { return Ok(None) };
        fence::read(document.get(&self.field), self.token).map(Some)
    }
}

/// Refuses a collection that removes documents by itself, before a document with a fence is
/// inserted: the next one would have no stamp, and stop no late holder.
async fn check_inserts<T: Send + Sync>(collection: &Collection<T>) -> Result<()> {
    let database = collection.client().database(&collection.namespace().db);
    check_kept(&database, collection.name(), DESCRIPTION_LIMIT).await
}
