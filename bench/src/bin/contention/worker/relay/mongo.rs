//! Majority writes to one record, and a change stream.

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;

use super::{Client, Task};
use crate::Outcome;
use crate::locks::{self, Contender, raw};

pub(super) struct Records {
    task: Task,
    records: Collection<Document>,
    events: ChangeStream<ChangeStreamEvent<Document>>,
}

impl Records {
    pub(super) async fn open(uri: &str, task: &Task) -> Outcome<Self> {
        let client = locks::client(uri, None).await?;
        let records = raw::majority(&client, Contender::Raw.database(), "relay");
        records.update_one(doc! { "_id": &task.key }, doc! { "$set": { "number": 0_i64 } }).upsert(true).await?;
        let written = doc! { "$match": {
            "documentKey._id": &task.key,
            "operationType": "update",
            "updateDescription.updatedFields.number": { "$exists": true },
        } };
        let events = records.watch().pipeline([written]).await?;
        Ok(Self { task: task.clone(), records, events })
    }
}

#[async_trait]
impl Client for Records {
    async fn received(&mut self) -> Outcome<u64> {
        loop {
            let event = self.events.next().await.ok_or("the change stream ended")??;
            if let Some(number) = number(&event) {
                return Ok(number);
            }
        }
    }

    fn write(&self, number: u64) -> BoxFuture<'static, Outcome<()>> {
        let (records, task) = (self.records.clone(), self.task.clone());
        async move {
            let filter = doc! { "_id": task.key };
            records.update_one(filter.clone(), doc! { "$set": { "number": number as i64 } }).await?;
            if task.second_write {
                let queued = doc! { "$set": { format!("queued.{}", task.place): number as i64 } };
                records.find_one_and_update(filter, queued).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

fn number(event: &ChangeStreamEvent<Document>) -> Option<u64> {
    let updated = &event.update_description.as_ref()?.updated_fields;
    u64::try_from(updated.get_i64("number").ok()?).ok()
}
