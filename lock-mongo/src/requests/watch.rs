//! Events: the hints of one provider, and what an operator watches.

use std::collections::VecDeque;

use distlock_api::{ErrorKind, LockError, LockEvents, Result};
use distlock_engine::store::{EventStream, ProviderId};
use futures_util::{StreamExt, stream};
use mongodb::options::ReadConcern;

use crate::budget::Budget;
use crate::error::{Effect, translate};
use crate::lease::{Subject, Watcher};
use crate::records::Records;
use crate::streams;
use crate::topology::Deployment;

/// Subscribes to the change stream that the stores of the client share: when this returns, the
/// server has it, and what happens from then on is reported. It ends when the collection is dropped
/// or renamed, and when the shared stream does.
pub(crate) async fn hints(records: &Records, provider: ProviderId) -> Result<EventStream> {
    let Records { database, collection, layout, indexes, .. } = records;
    let budget = Budget::new(records.request_timeout);
    refuse_standalone(records, budget).await?;
    // A subscription also begins again after the collection was dropped, and its indexes with it.
    indexes.forget();
    let shared = records.shared_within(budget).await?;
    let subject = Subject::new(collection.name(), layout.clone(), provider);
    streams::subscribe(&shared.streams, database, collection, subject, budget).await.map_err(without_privilege)
}

/// Opens a change stream of its own, and reads what happens to all keys of the collection.
pub(crate) async fn events(records: &Records) -> Result<LockEvents> {
    let budget = Budget::new(records.request_timeout);
    refuse_standalone(records, budget).await?;
    let (collection, pipeline) = (records.collection.clone(), records.layout.changes());
    let open = async move { collection.watch().pipeline(pipeline).read_concern(ReadConcern::majority()).await };
    let changes = records.run(budget, Effect::None, open).await?;
    let watcher = Watcher::new(records.layout.clone());
    let events = stream::unfold((Some(changes), watcher, VecDeque::new()), async |(changes, mut watcher, mut read)| {
        let mut changes = changes;
        loop {
            if let Some(event) = read.pop_front() {
                return Some((Ok(event), (changes, watcher, read)));
            }
            match changes.as_mut()?.next().await? {
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
            Err(LockError::new(ErrorKind::Unsupported, "a standalone MongoDB server has no change streams"))
        }
    }
}

/// A user who may not watch does without (C16), and need not try again.
fn without_privilege(error: LockError) -> LockError {
    if error.kind() != ErrorKind::PermissionDenied {
        return error;
    }
    let message = "the MongoDB user may watch neither the database nor the lock collection: \
                   the privilege changeStream is missing";
    LockError::new(ErrorKind::Unsupported, message).with_source(error)
}
