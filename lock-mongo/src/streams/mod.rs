//! The change streams of one client: one per database, shared by all its stores.
//!
//! An open stream takes a connection of the client's pool, because there is always one question to
//! the server under way. The number of streams is therefore bounded, see [`Streams::new`]. A user
//! who may not watch the database gets one stream per collection instead, within the same bound.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::{EventStream, Lanes, SetAside};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

mod hub;
mod subscriber;

use hub::{Hub, Join, Source};
use subscriber::subscribe;

use crate::budget::Budget;
use crate::error::{Effect, unanswered};
use crate::lease::Subject;
use crate::shared::Shared;
use crate::store::MongoStore;

/// How long a new stream waits for one that is just closing.
const CLOSING: Duration = Duration::from_secs(1);

/// The change streams of one client.
#[derive(Debug)]
pub(crate) struct Streams {
    /// One permit for each connection that streams may take.
    permits: Arc<Semaphore>,
    at_most: usize,
    /// Where the connection of an open stream is set aside.
    lanes: Option<Lanes>,
    hubs: Mutex<HashMap<Target, UnboundedSender<Join>>>,
    /// The databases that the user may not watch.
    refused: Mutex<HashSet<String>>,
}

/// What a stream watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Target {
    database: String,
    /// `None`: all collections that are subscribed to.
    collection: Option<String>,
}

impl Streams {
    pub(crate) fn new(at_most: usize, lanes: Option<Lanes>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(at_most)),
            at_most,
            lanes,
            hubs: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Whether there may be any stream.
    pub(crate) fn any(&self) -> bool {
        self.at_most > 0
    }

    /// Subscribes to the changes of a store's collection. When this returns, the server has a
    /// stream that includes it.
    pub(crate) async fn subscribe(
        shared: &Arc<Shared>,
        store: &MongoStore,
        subject: Subject,
        budget: Budget,
    ) -> Result<EventStream> {
        let this = &shared.streams;
        if !this.any() {
            let message = "the client's pool is too small for a change stream: maxPoolSize is below 4";
            return Err(LockError::new(ErrorKind::Unsupported, message));
        }
        let database = store.database.name();
        let subscribing = async {
            loop {
                let whole = !this.refused.lock().expect("no code in here panics").contains(database);
                let (source, collection) = if whole {
                    (Source::Database(store.database.clone()), None)
                } else {
                    (Source::Collection(store.records.clone()), Some(subject.collection().to_owned()))
                };
                let target = Target { database: database.to_owned(), collection };
                let (subscriber, events) = subscribe(subject.clone(), store.request_timeout);
                let (reply, answered) = oneshot::channel();
                Self::join(shared, target, source, Join { subscriber, reply }).await?;
                match answered.await {
                    Ok(Ok(leaving)) => return Ok(events.stream(leaving)),
                    Ok(Err(error)) if whole && error.kind() == ErrorKind::PermissionDenied => {
                        tracing::info!(database, "the user may not watch the database; each collection is watched");
                        this.refused.lock().expect("no code in here panics").insert(database.to_owned());
                    }
                    Ok(Err(error)) => return Err(error),
                    // It ended, or its runtime did.
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let answer = timeout(budget.left(), subscribing).await;
        answer.unwrap_or_else(|_| Err(unanswered(store.request_timeout, Effect::None)))
    }

    /// Hands a new subscriber to the stream of the target, which is opened if there is none.
    async fn join(shared: &Arc<Shared>, target: Target, source: Source, join: Join) -> Result<()> {
        let this = &shared.streams;
        let Some(join) = this.hand_over(&target, join) else { return Ok(()) };
        let permit = timeout(CLOSING, Arc::clone(&this.permits).acquire_owned()).await.ok().and_then(Result::ok);
        // Meanwhile another subscriber may have opened it.
        let Some(join) = this.hand_over(&target, join) else { return Ok(()) };
        let Some(permit) = permit else {
            let message = "all connections that the client's pool has for change streams are in use";
            return Err(LockError::new(ErrorKind::Unsupported, message));
        };
        let (sender, joins) = mpsc::unbounded_channel();
        {
            let mut hubs = this.hubs.lock().expect("no code in here panics");
            if let Some(other) = hubs.get(&target) {
                // If that one ends just now, the caller tries again.
                drop(other.send(join));
                return Ok(());
            }
            hubs.insert(target.clone(), sender.clone());
        }
        let _set_aside = this.lanes.as_ref().map(Lanes::set_aside);
        let place = Place { shared: Arc::clone(shared), target, sender, _permit: permit, _set_aside };
        tokio::spawn(Hub::new(source, joins, place).run(join));
        Ok(())
    }

    /// Returns the subscriber if there is no stream.
    fn hand_over(&self, target: &Target, join: Join) -> Option<Join> {
        let mut hubs = self.hubs.lock().expect("no code in here panics");
        let Some(hub) = hubs.get(target) else { return Some(join) };
        let rejected = hub.send(join).err()?;
        hubs.remove(target);
        Some(rejected.0)
    }
}

/// The place of a stream among those of its client.
#[derive(Debug)]
struct Place {
    /// As long as there is a stream, stores of the client find what they share.
    shared: Arc<Shared>,
    target: Target,
    sender: UnboundedSender<Join>,
    _permit: OwnedSemaphorePermit,
    _set_aside: Option<SetAside>,
}

impl Place {
    /// Gives the place up, unless `joins` returns a new subscriber.
    fn close(&self, joins: impl FnOnce() -> Option<Join>) -> Option<Join> {
        let mut hubs = self.shared.streams.hubs.lock().expect("no code in here panics");
        let join = joins();
        if join.is_none() && hubs.get(&self.target).is_some_and(|hub| hub.same_channel(&self.sender)) {
            hubs.remove(&self.target);
        }
        join
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.close(|| None);
    }
}
