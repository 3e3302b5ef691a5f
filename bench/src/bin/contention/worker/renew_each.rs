//! Leases kept alive with an update each, evenly spread over the cadence: the cost
//! without batches.

use std::sync::Arc;
use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{DateTime, Document, doc};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::protocol::{Report, Window};
use crate::Outcome;
use crate::clock;
use crate::commands::Monitor;
use crate::locks::{self, Contender, raw};

pub(super) struct Renewing {
    records: Collection<Document>,
    leases: usize,
    pace: Duration,
}

pub(super) async fn start(uri: &str, leases: usize, cadence_ms: u64, monitor: &Arc<Monitor>) -> Outcome<Renewing> {
    let client = locks::client(uri, Some(monitor)).await?;
    let records = raw::majority(&client, Contender::Raw.database(), "leases");
    records.drop().await?;
    records.insert_many((0..leases).map(|lease| doc! { "_id": lease as i64, "expiresAt": DateTime::now() })).await?;
    let pace = Duration::from_millis(cadence_ms) / u32::try_from(leases)?;
    Ok(Renewing { records, leases, pace })
}

impl Renewing {
    pub(super) async fn run(self, window: Window) -> Outcome<Report> {
        let mut calls = JoinSet::new();
        let mut due = interval(self.pace);
        // What is late is sent all the same.
        due.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for lease in (0..self.leases).cycle() {
            due.tick().await;
            if clock::now() >= window.stop {
                break;
            }
            while calls.try_join_next().is_some() {}
            let records = self.records.clone();
            calls.spawn(async move {
                let later = DateTime::from_millis(DateTime::now().timestamp_millis() + 30_000);
                records.update_one(doc! { "_id": lease as i64 }, doc! { "$set": { "expiresAt": later } }).await
            });
        }
        Ok(Report::default())
    }
}
