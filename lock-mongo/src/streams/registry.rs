//! The open change streams of one client, and the connections that are left for others.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::Result;
use distlock_engine::store::{Lanes, SetAside};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::subscriber::{Signals, Subscriber};
use crate::pool::Pool;

/// How long a new stream waits for a connection, in case another stream is closing.
const CLOSING: Duration = Duration::from_secs(1);

/// The change streams of one client.
#[derive(Debug)]
pub(crate) struct Streams {
    pool: Arc<Pool>,
    /// One permit for each connection that streams may take.
    permits: Arc<Semaphore>,
    at_most: usize,
    /// The lanes that give a connection to each open stream.
    lanes: Option<Lanes>,
    hubs: Mutex<HashMap<Target, UnboundedSender<Join>>>,
    /// The databases that the user lacks the privilege to watch.
    refused: Mutex<HashSet<String>>,
}

/// The database or the collection that a stream watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) database: String,
    /// `None`: all collections that are subscribed to.
    pub(super) collection: Option<String>,
}

/// A new subscriber. The answer is sent when the stream that includes it is open at the server.
#[derive(Debug)]
pub(super) struct Join {
    pub(super) subscriber: Subscriber,
    pub(super) reply: oneshot::Sender<Result<Signals>>,
}

impl Streams {
    pub(crate) fn new(pool: Arc<Pool>, lanes: Option<Lanes>) -> Self {
        let at_most = pool.connections_of_streams();
        Self {
            pool,
            permits: Arc::new(Semaphore::new(at_most)),
            at_most,
            lanes,
            hubs: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Takes a connection from the calls of the client, for a stream; `None` if the application has
    /// said how many calls there are.
    pub(crate) fn set_aside(&self) -> Option<SetAside> {
        self.lanes.as_ref().map(Lanes::set_aside)
    }

    /// The pool whose connections the streams take.
    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns whether the pool is large enough for a stream.
    pub(crate) fn any(&self) -> bool {
        self.at_most > 0
    }

    /// Returns whether the user may watch a database, unless it was refused before.
    pub(super) fn may_watch(&self, database: &str) -> bool {
        !self.refused.lock().expect("no code in here panics").contains(database)
    }

    /// Records that the user may not watch the database.
    pub(super) fn refuse(&self, database: &str) {
        self.refused.lock().expect("no code in here panics").insert(database.to_owned());
    }

    /// Passes a new subscriber to the stream of the target. Returns it if there is no such stream.
    pub(super) fn hand_over(&self, target: &Target, join: Join) -> Option<Join> {
        let mut hubs = self.hubs.lock().expect("no code in here panics");
        let Some(hub) = hubs.get(target) else { return Some(join) };
        let rejected = hub.send(join).err()?;
        hubs.remove(target);
        Some(rejected.0)
    }

    /// Returns a permit for the connection of a new stream; `None` if other streams keep all.
    pub(super) async fn connection(&self) -> Option<OwnedSemaphorePermit> {
        timeout(CLOSING, Arc::clone(&self.permits).acquire_owned()).await.ok().and_then(Result::ok)
    }

    /// Makes the slot of a new stream of the target, whose first subscriber is `join`. If another
    /// stream has been opened meanwhile, that one gets the subscriber.
    pub(super) fn open(
        self: &Arc<Self>,
        target: Target,
        permit: OwnedSemaphorePermit,
        join: Join,
    ) -> Option<(Slot, UnboundedReceiver<Join>, Join)> {
        let (sender, joins) = mpsc::unbounded_channel();
        {
            let mut hubs = self.hubs.lock().expect("no code in here panics");
            if let Some(other) = hubs.get(&target) {
                // If that stream is ending, the caller tries again.
                drop(other.send(join));
                return None;
            }
            hubs.insert(target.clone(), sender.clone());
        }
        let _set_aside = self.set_aside();
        Some((Slot { streams: Arc::clone(self), target, sender, _permit: permit, _set_aside }, joins, join))
    }
}

/// The slot of an open stream among those of its client.
#[derive(Debug)]
pub(super) struct Slot {
    /// Keeps the shared state of the client alive while there is a stream.
    streams: Arc<Streams>,
    target: Target,
    sender: UnboundedSender<Join>,
    _permit: OwnedSemaphorePermit,
    _set_aside: Option<SetAside>,
}

impl Slot {
    pub(super) fn pool(&self) -> &Pool {
        &self.streams.pool
    }

    /// Gives up the slot, unless `joins` returns a new subscriber.
    pub(super) fn close(&self, joins: impl FnOnce() -> Option<Join>) -> Option<Join> {
        let mut hubs = self.streams.hubs.lock().expect("no code in here panics");
        let join = joins();
        if join.is_none() && hubs.get(&self.target).is_some_and(|hub| hub.same_channel(&self.sender)) {
            hubs.remove(&self.target);
        }
        join
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.close(|| None);
    }
}
