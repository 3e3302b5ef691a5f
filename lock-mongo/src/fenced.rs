//! Writes to the user's own documents that a late holder cannot make.

mod answer;
mod stamp;

use distlock_api::{ErrorKind, FencingToken, LockError, LockGuard, Result};
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{
    ReadConcern, ReadPreference, ReturnDocument, SelectionCriteria, UpdateModifications, WriteConcern,
};
use serde::de::DeserializeOwned;

use crate::error::{Effect, is_lost_race, translate};

pub use answer::Fenced;

/// How often a write is tried whose document changes between being refused and being looked at.
const ATTEMPTS: usize = 5;

/// The fencing token of a guard, as a condition and a stamp on documents of the application's own collections.
///
/// A lease cannot stop a holder that was paused beyond it; the documents that it writes to can. Each write goes only to a document whose field `_fence` is
/// missing or not greater than the token, and sets the field to the token, in one atomic step at the server. As soon as a later holder
/// has written, every earlier one hears [`Fenced::FencedOff`], and the document is untouched.
///
/// ```no_run
/// use distlock_api::{LockError, LockProvider, LockProviderExt};
/// use distlock_mongo::mongodb::Collection;
/// use distlock_mongo::mongodb::bson::{Document, doc};
/// use distlock_mongo::{Fence, Fenced};
///
/// async fn pay(locks: &dyn LockProvider, invoices: &Collection<Document>) -> Result<(), LockError> {
///     let guard = locks.acquire("invoices/7").await?;
///     // … the work, however long the process is paused in it …
///     let paid = Fence::of(&guard)?.update_one(invoices, doc! { "_id": 7 }, doc! { "$set": { "paid": true } }).await?;
///     match paid {
///         Fenced::Accepted(()) => {}
///         Fenced::FencedOff { newest } => println!("token {newest} has been here: the lock was lost"),
///         Fenced::NoDocument => println!("there is no such invoice"),
///     }
///     guard.release().await?;
///     Ok(())
/// }
/// ```
///
/// # What it rests on
/// * **One lock for a document.** Tokens of different keys must not be compared, so all who write to a document hold the same key.
/// * **Every writer does it.** A plain update that leaves the field alone is not stopped; one that removes or lowers it opens the door again.
/// * **Nothing is fenced before the first write.** A later holder that has only read so far does not stop an earlier one. Let it begin with
///   a write – [`claim`](Self::claim) – if it decides by what it reads.
/// * **Majority writes.** Whatever the collection's own write concern is, since a stamp that is rolled back stops nobody.
///
/// # Updates
/// * **Operators** (`{ "$set": … }`): values are data; a string that begins with `$` is stored as that string.
/// * **Pipelines**, for experts: there a string that begins with `$` is an expression. Put what comes from elsewhere into `{ "$literal": … }`. The
///   stamp is the last stage.
/// * Replacement documents, and updates that touch the fence's field themselves, are refused before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Fence {
    field: String,
    token: i64,
}

impl Fence {
    /// The field when nobody says: `_fence`.
    pub const DEFAULT_FIELD: &str = "_fence";

    /// The fence of a guard's token. Whether the guard is lost plays no part: that is what the fence is for.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of(guard: &LockGuard) -> Result<Self> {
        Self::new(guard.fencing_token()).map_err(|error| error.with_key(guard.key().clone()))
    }

    /// The fence of a token.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a token above `i64::MAX`, which BSON cannot hold. No backend of this project makes one.
    pub fn new(token: FencingToken) -> Result<Self> {
        match i64::try_from(token.get()) {
            Ok(token) => Ok(Self { field: Self::DEFAULT_FIELD.to_owned(), token }),
            Err(_) => refuse(format!("token {token} does not fit into a number of MongoDB")),
        }
    }

    /// Keeps the token in another field, at the top of the document. Defaults to [`DEFAULT_FIELD`](Self::DEFAULT_FIELD).
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for a name that is empty, begins with `$`, contains `.` or NUL, or is `_id`.
    pub fn field(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) || name == "_id" {
            return refuse(format!("{name:?} cannot be the field of a fence"));
        }
        self.field = name;
        Ok(self)
    }

    /// Applies an update to the one document that matches, unless a later holder has been there.
    ///
    /// The filter must be about one document – by `_id` or another unique field: of several the one that no later holder has written would be taken.
    ///
    /// # Errors
    /// [`InvalidOptions`](ErrorKind::InvalidOptions) for an update that is refused here; [`Corrupt`](ErrorKind::Corrupt) for a document whose fence is something else than a
    /// number; whatever MongoDB fails with. If the outcome is unknown the same call can be made again, as far as the update itself can be applied twice.
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
    /// As [`update_one`](Self::update_one), and [`Corrupt`](ErrorKind::Corrupt) of unknown outcome if the document is no `T`: then the update has been applied.
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

    /// As [`update_one`](Self::update_one) by `_id`, and makes the document if there is none: the answer is never [`Fenced::NoDocument`].
    ///
    /// Two that make the same document at once come one after the other, in either order, if their tokens allow it; neither hears of a duplicate key.
    ///
    /// # Errors
    /// As [`update_one`](Self::update_one). A unique index of another field that the new document violates is an error of MongoDB's.
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

    /// Stamps a document and changes nothing else: from now on every earlier holder is fenced off, although this one has not written yet.
    /// Returns the document as it is under the fence, to decide by.
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
        stamp::seen(document.get(&self.field), self.token).map(Some)
    }
}

/// A fence, as a writer finds it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// A later holder has been here.
    Newer(FencingToken),
    /// Nobody, or an earlier one, or this one.
    Open,
}

fn refuse<T>(message: String) -> Result<T> {
    Err(LockError::invalid_options(message))
}
