//! A chain of writes through several clients by hand: who sees the other's number in its change stream writes the next one. This is what a hand-over that is
//! pushed cannot do without.

use std::time::Duration;

use futures_util::StreamExt;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use tokio::task::JoinSet;

use super::protocol::{Hop, Relay as Task, Report, Window};
use crate::Outcome;
use crate::clock;
use crate::locks::{self, Contender, raw};

pub(super) struct Relay {
    task: Task,
    records: Collection<Document>,
    events: ChangeStream<ChangeStreamEvent<Document>>,
}

impl Relay {
    pub(super) async fn open(uri: &str, task: Task) -> Outcome<Self> {
        let client = locks::client(uri, None).await?;
        let records = raw::majority(&client, Contender::Raw.database(), "relay");
        records.update_one(doc! { "_id": &task.key }, doc! { "$set": { "number": 0_i64 } }).upsert(true).await?;
        let written = doc! { "$match": {
            "documentKey._id": &task.key,
            "operationType": "update",
            "updateDescription.updatedFields.number": { "$exists": true },
        } };
        let events = records.watch().pipeline([written]).await?;
        Ok(Self { task, records, events })
    }

    pub(super) async fn run(mut self, window: Window) -> Outcome<Report> {
        clock::sleep_until(window.start).await;
        let mut hops = Vec::new();
        let mut writes = JoinSet::new();
        if self.task.place == 1 {
            self.write(1, &mut hops, &mut writes).await;
        }
        loop {
            let event = tokio::select! {
                event = self.events.next() => event.ok_or("the change stream ended")??,
                () = clock::sleep_until(window.stop) => break,
            };
            let heard = clock::now();
            let Some(number) = number(&event) else { continue };
            // Each number is for the one after its writer.
            if (number + 1) % self.task.of != self.task.place % self.task.of {
                continue;
            }
            hops.push(Hop { number, heard: Some(heard), sent: None });
            if self.task.hold_ms > 0 {
                tokio::time::sleep(Duration::from_millis(self.task.hold_ms)).await;
            }
            self.write(number + 1, &mut hops, &mut writes).await;
        }
        Ok(Report { hops, ..Report::default() })
    }

    /// Writes in the background, so that the own event, too, is heard at once.
    async fn write(&self, number: u64, hops: &mut Vec<Hop>, writes: &mut JoinSet<mongodb::error::Result<()>>) {
        while writes.try_join_next().is_some() {}
        let (records, key, place) = (self.records.clone(), self.task.key.clone(), self.task.place);
        let second = self.task.second_write;
        hops.push(Hop { number, heard: None, sent: Some(clock::now()) });
        writes.spawn(async move {
            let filter = doc! { "_id": key };
            records.update_one(filter.clone(), doc! { "$set": { "number": number as i64 } }).await?;
            if second {
                let queued = doc! { "$set": { format!("queued.{place}"): number as i64 } };
                records.find_one_and_update(filter, queued).await?;
            }
            Ok(())
        });
    }
}

fn number(event: &ChangeStreamEvent<Document>) -> Option<u64> {
    let updated = &event.update_description.as_ref()?.updated_fields;
    u64::try_from(updated.get_i64("number").ok()?).ok()
}
