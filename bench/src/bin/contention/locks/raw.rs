//! The least that a lock in MongoDB can do: one majority write to take it, one write to give it
//! back. It has no waiters.

use std::sync::Arc;

use async_trait::async_trait;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{CollectionOptions, WriteConcern};
use mongodb::{Client, Collection};

use super::{Held, Locks};
use crate::Outcome;

struct Raw {
    records: Collection<Document>,
    /// The same, as a release writes them.
    releasing: Collection<Document>,
}

/// Locks whose releases wait for the majority.
pub(super) fn new(client: &Client, database: &str) -> Arc<dyn Locks> {
    let records = majority(client, database, "locks");
    Arc::new(Raw { releasing: records.clone(), records })
}

/// Locks whose releases wait for the primary alone.
pub(super) fn early(client: &Client, database: &str) -> Arc<dyn Locks> {
    let options = CollectionOptions::builder().write_concern(WriteConcern::nodes(1)).build();
    let releasing = client.database(database).collection_with_options("locks", options);
    Arc::new(Raw { records: majority(client, database, "locks"), releasing })
}

/// A collection that is written with `w: majority`.
pub fn majority(client: &Client, database: &str, collection: &str) -> Collection<Document> {
    let options = CollectionOptions::builder().write_concern(WriteConcern::majority()).build();
    client.database(database).collection_with_options(collection, options)
}

/// Writes the record of a key as an acquisition would, without the condition that it is free.
pub async fn take(records: &Collection<Document>, key: &str) -> Result<(), mongodb::error::Error> {
    let set = doc! { "$set": { "acquiredAt": DateTime::now() } };
    records.find_one_and_update(doc! { "_id": key }, set).upsert(true).await?;
    Ok(())
}

/// Writes it as a release would.
pub async fn give_back(records: &Collection<Document>, key: &str) -> Result<(), mongodb::error::Error> {
    records.find_one_and_update(doc! { "_id": key }, doc! { "$unset": { "acquiredAt": 1 } }).await?;
    Ok(())
}

#[async_trait]
impl Locks for Raw {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        let id = ObjectId::new();
        let set = doc! { "$set": { "lockId": id, "acquiredAt": DateTime::now() } };
        self.records.find_one_and_update(doc! { "_id": key, "lockId": null }, set).upsert(true).await?;
        Ok(Box::new(Taken { records: self.releasing.clone(), key: key.to_owned(), id }))
    }
}

struct Taken {
    records: Collection<Document>,
    key: String,
    id: ObjectId,
}

#[async_trait]
impl Held for Taken {
    async fn release(self: Box<Self>) -> Outcome<()> {
        let filter = doc! { "_id": self.key, "lockId": self.id };
        let updated = self.records.update_one(filter, doc! { "$unset": { "lockId": 1 } }).await?;
        if updated.matched_count == 1 { Ok(()) } else { Err("the lock belongs to another task".into()) }
    }
}
