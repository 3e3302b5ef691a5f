//! Writes to the user's own documents that a late holder cannot make.

mod answer;
mod fence;

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, UpdateModifications, WriteConcern,
};
use serde::de::DeserializeOwned;

use crate::error::{Effect, is_lost_race, translate};
use fence::Seen;

pub use answer::Fenced;
pub use fence::Fence;

/// How often a write is tried whose document changes between being refused and being looked at.
const ATTEMPTS: usize = 5;

impl Fence {
    /// Applies an update to the one document that matches, unless a later holder has been there.
    ///
    /// The filter must be about one document – by `_id` or another unique field: of several the one
    /// that no later holder has written would be taken.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for an update that is refused here;
    /// [`Corrupt`](ErrorKind::Corrupt) for a document whose fence is something else than a number;
    /// whatever MongoDB fails with. If the outcome is unknown the same call can be made again, as
    /// far as the update itself can be applied twice.
    ///
    /// # Cancel safety
    /// When the future is dropped the update may be applied nevertheless.
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

    /// As [`update_one`](Self::update_one), and returns the document as it is then.
    ///
    /// # Errors
    /// As [`update_one`](Self::update_one), and [`Corrupt`](ErrorKind::Corrupt) of unknown outcome
    /// if the document is no `T`: then the update has been applied.
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

    /// As [`update_one`](Self::update_one) by `_id`, and makes the document if there is none: the
    /// answer is never [`Fenced::NoDocument`].
    ///
    /// Two that make the same document at once come one after the other, in either order, if their
    /// tokens allow it; neither hears of a duplicate key.
    ///
    /// # Errors
    /// As [`update_one`](Self::update_one). A unique index of another field that the new document
    /// violates is an error of MongoDB's.
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

    /// Stamps a document and changes nothing else: from now on every earlier holder is fenced off,
    /// although this one has not written yet. Returns the document as it is under the fence, to
    /// decide by.
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
        for _ in 0..ATTEMPTS {
            let mut action = collection
                .find_one_and_update(self.filter(filter.clone()), update.clone())
                .upsert(upsert)
                .return_document(ReturnDocument::After)
                .write_concern(WriteConcern::majority());
            if let Some(projection) = &projection {
                action = action.projection(projection.clone());
            }
            match action.await {
                Ok(Some(document)) => return Ok(Fenced::Accepted(document)),
                Ok(None) => {}
                // The document is there, and either fenced or made at this moment by somebody else.
                Err(error) if upsert && is_lost_race(&error) => {}
                Err(error) => return Err(translate(&error, Effect::Write)),
            }
            match self.look(collection, filter.clone()).await? {
                Some(Seen::Newer(newest)) => return Ok(Fenced::FencedOff { newest }),
                None if !upsert => return Ok(Fenced::NoDocument),
                // It has come or changed since.
                None | Some(Seen::Open) => {}
            }
        }
        Err(LockError::new(ErrorKind::Unavailable, "the document changed each time between writing and looking"))
    }

    /// What stands before the fence, after a write that found nothing to change.
    async fn look<T: Send + Sync>(&self, collection: &Collection<T>, filter: Document) -> Result<Option<Seen>> {
        let documents = collection.clone_with_type::<Document>();
        let found = documents
            .find_one(filter)
            .projection(doc! { "_id": 0, &self.field: 1 })
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await
            .map_err(|error| translate(&error, Effect::None))?;
        let Some(document) = found else { return Ok(None) };
        fence::seen(document.get(&self.field), self.token).map(Some)
    }
}
