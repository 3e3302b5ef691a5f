//! The change streams of one client: one per database, shared by all its stores.
//!
//! An open stream takes a connection of the client's pool, because one request for changes is
//! in flight while any subscriber waits for events. The number of streams is therefore bounded, see
//! [`Pool::connections_of_streams`](crate::pool::Pool::connections_of_streams). Without the
//! privilege to watch the database there is one stream per collection, within the same bound.

use std::sync::Arc;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::EventStream;
use mongodb::bson::Document;
use mongodb::{Collection, Database};
use tokio::sync::oneshot;
use tokio::time::timeout;

mod hub;
mod registry;
mod subscriber;

use hub::{Hub, Source};
use registry::{Join, Target};
use subscriber::subscriber;

use crate::budget::Budget;
use crate::error::{Effect, unanswered};
use crate::lease::Subject;

pub(crate) use registry::Streams;

/// Subscribes to the changes of a collection. When this returns, the server has a stream that
/// includes it.
pub(crate) async fn subscribe(
    streams: &Arc<Streams>,
    database: &Database,
    collection: &Collection<Document>,
    subject: Subject,
    budget: Budget,
) -> Result<EventStream> {
    if !streams.any() {
        let message =
            "the client's pool is too small for a change stream: raise maxPoolSize to 4 or more. Waiters poll";
        return Err(LockError::new(ErrorKind::Unsupported, message));
    }
    let name = database.name();
    let subscribing = async {
        loop {
            let whole = streams.may_watch(name);
            let (source, only) = if whole {
                (Source::Database(database.clone()), None)
            } else {
                (Source::Collection(collection.clone()), Some(subject.collection().to_owned()))
            };
            let target = Target { database: name.to_owned(), collection: only };
            let (subscriber, events) = subscriber(subject.clone(), budget.limit());
            let (reply, answered) = oneshot::channel();
            join(streams, target, source, Join { subscriber, reply }).await?;
            match answered.await {
                Ok(Ok(signals)) => return Ok(events.stream(signals)),
                Ok(Err(error)) if whole && error.kind() == ErrorKind::PermissionDenied => {
                    contained(|| {
                        tracing::info!(
                            database = name,
                            "the user lacks the privilege to watch the database: each lock collection is watched instead"
                        );
                    });
                    streams.refuse(name);
                }
                Ok(Err(error)) => return Err(error),
                // The stream ended, or its runtime did.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let answer = timeout(budget.left(), subscribing).await;
    answer.unwrap_or_else(|_| Err(unanswered(budget.limit(), Effect::None)))
}

/// Passes a new subscriber to the stream of the target, and opens the stream if there is none.
async fn join(streams: &Arc<Streams>, target: Target, source: Source, join: Join) -> Result<()> {
    let Some(join) = streams.hand_over(&target, join) else { return Ok(()) };
    let permit = streams.connection().await;
    // Meanwhile another subscriber may have opened the stream.
    let Some(join) = streams.hand_over(&target, join) else { return Ok(()) };
    let Some(permit) = permit else {
        let message = "all connections that the client's pool has for change streams are in use: raise maxPoolSize, or \
                       grant changeStream on the database, so that one stream serves all collections. Waiters poll";
        return Err(LockError::new(ErrorKind::Unsupported, message));
    };
    if let Some((slot, joins, first)) = streams.open(target, permit, join) {
        tokio::spawn(Hub::new(source, joins, slot).run(first));
    }
    Ok(())
}
