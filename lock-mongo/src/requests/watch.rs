//! Events: those for one provider, and those for an operator.

use std::collections::VecDeque;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, LockEvents, Result};
use distlock_engine::store::{EventStream, ProviderId};
use futures_util::{StreamExt, stream};
use mongodb::options::ReadConcern;

use crate::budget::Budget;
use crate::error::{Effect, lacks, translate, without_streams};
use crate::lease::{Subject, Watcher};
use crate::records::Records;
use crate::streams;
use crate::topology::Deployment;

/// Subscribes to the change stream that the stores of the client share. When this returns, the
/// stream is open at the server, and all later changes are reported. The subscription ends when the
/// collection is dropped or renamed, and with the shared stream.
pub(crate) async fn subscribe(records: &Records, provider: ProviderId) -> Result<EventStream> {
    let Records { database, collection, layout, indexes, .. } = records;
    let budget = Budget::new(records.request_timeout);
    refuse_standalone(records, budget).await?;
    // A new subscription may follow a drop of the collection, and of its indexes.
    indexes.forget();
    let resources = records.resources_within(budget).await?;
    let subject = Subject::new(collection.name(), layout.clone(), provider);
    let subscribed = streams::subscribe(&resources.streams, database, collection, subject, budget).await;
    subscribed.map_err(without_privilege).inspect_err(|error| {
        if error.kind() == ErrorKind::Unsupported {
            contained(|| tracing::info!(%error, database = database.name(), "waiters poll"));
        }
    })
}

/// Opens a change stream for an operator, and reads the events of all keys of the collection. The
/// stream has a connection of its own, which is no longer for calls.
pub(crate) async fn events(records: &Records) -> Result<LockEvents> {
    let budget = Budget::new(records.request_timeout);
    refuse_standalone(records, budget).await?;
    let (collection, pipeline) = (records.collection.clone(), records.layout.changes());
    let open = async move { collection.watch().pipeline(pipeline).read_concern(ReadConcern::majority()).await };
    let changes = records.attempt(budget, Effect::None, open).await?;
    let changes = changes.map_err(|error| {
        let namespace = records.collection.namespace().to_string();
        without_streams(&error).unwrap_or_else(|| lacks("changeStream", &namespace, &error))
    })?;
    let changes = (changes, records.resources_within(budget).await?.streams.set_aside());
    let watcher = Watcher::new(records.layout.clone());
    let events = stream::unfold((Some(changes), watcher, VecDeque::new()), async |(changes, mut watcher, mut read)| {
        let mut changes = changes;
        loop {
            if let Some(event) = read.pop_front() {
                return Some((Ok(event), (changes, watcher, read)));
            }
            match changes.as_mut()?.0.next().await? {
                Ok(change) => read.extend(watcher.events(&change)),
                Err(error) => return Some((Err(translate(&error, Effect::None)), (None, watcher, read))),
            }
        }
    });
    Ok(Box::pin(events))
}

async fn refuse_standalone(records: &Records, budget: Budget) -> Result<()> {
    match records.deployment_within(budget).await? {
        Deployment::ReplicaSet | Deployment::Sharded => Ok(()),
        Deployment::Standalone => {
            let message =
                "a standalone MongoDB server has no change streams: use a replica set, of one member if need be";
            Err(LockError::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Turns a missing privilege into "unsupported": the provider works without events (C16), and does
/// not try again.
fn without_privilege(error: LockError) -> LockError {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let message = "the MongoDB user lacks the privilege changeStream on the database and on the lock collection: \
                   waiters poll until it is granted";
    LockError::new(ErrorKind::Unsupported, message).with_source(error)
}
