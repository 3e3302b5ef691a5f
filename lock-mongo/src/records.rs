//! The records of one store: their collection, the options, and the state of the connection.
//!
//! Every request is a function of these. `calls.rs` sends the commands that a request has built.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use distlock_engine::store::Claim;
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use tokio::time::timeout;

use crate::budget::Budget;
use crate::client_resources::ClientResources;
use crate::error::{Effect, translate, unanswered};
use crate::index::Indexes;
use crate::key_memory::KeyMemory;
use crate::lease::{Clock, Layout};
use crate::numbers::millis;
use crate::server_clock::ServerClock;
use crate::topology::{Deployment, Kept, Topology};

/// The records of one store.
pub(crate) struct Records {
    pub(crate) database: Database,
    pub(crate) collection: Collection<Document>,
    pub(crate) layout: Layout,
    pub(crate) if_missing: IfMissing,
    /// Whether expired locks of another program become records.
    pub(crate) adopts_foreign: bool,
    pub(crate) topology: Topology,
    pub(crate) indexes: Indexes,
    /// The limit of a request that has none of its own.
    pub(crate) request_timeout: Duration,
    pub(crate) retryable_writes: bool,
    /// The smallest token; zero for no floor.
    pub(crate) token_floor: i64,
    pub(crate) min_ttl: Duration,
    /// How many calls may be in flight; `None` for the default.
    pub(crate) calls_at_once: Option<NonZeroUsize>,
    /// The pool and the streams that all stores of the client share.
    pub(crate) resources: OnceLock<ClientResources>,
    pub(crate) key_memory: KeyMemory,
    pub(crate) server_clock: ServerClock,
    /// The length of the document that was brought last, or of the longest that came with it.
    pub(crate) document_len: AtomicUsize,
}

/// What an acquisition does if there is no document with the `_id`.
#[derive(Clone, Debug)]
pub(crate) enum IfMissing {
    /// It inserts a lock record. Only in a lock collection.
    InsertRecord,
    /// It inserts this document, locked.
    InsertDefault(Document),
    /// It inserts this document, locked. A document that does not match the filter is refused.
    InsertOwned { default: Document, filter: Document },
    /// It fails.
    Fail,
}

impl Records {
    /// Returns the pool and the streams of the client; see [`ClientResources::of`].
    pub(crate) fn resources(&self) -> Option<&ClientResources> {
        if self.resources.get().is_none() {
            let resources = ClientResources::of(self.database.client(), self.calls_at_once)?;
            return Some(self.resources.get_or_init(|| resources));
        }
        self.resources.get()
    }

    /// Returns the pool and the streams of the client, and waits for them if need be.
    pub(crate) async fn resources_within(&self, budget: Budget) -> Result<&ClientResources> {
        if let Some(resources) = self.resources() {
            return Ok(resources);
        }
        let found = timeout(budget.left(), ClientResources::wait_for(self.database.client(), self.calls_at_once)).await;
        let found = found.map_err(|_| unanswered(budget.limit(), Effect::None))?;
        let resources = found.map_err(|error| translate(&error, Effect::None))?;
        Ok(self.resources.get_or_init(|| resources))
    }

    /// Creates missing indexes in the background, now and then.
    pub(crate) fn ensure_indexes(&self) {
        if let Some(resources) = self.resources() {
            self.indexes.ensure(&resources.pool, &self.collection, &self.layout);
        }
    }

    pub(crate) async fn deployment_within(&self, budget: Budget) -> Result<Deployment> {
        self.topology.of(self.kept(), &self.server_clock, budget.left()).await
    }

    /// Returns the collection, as far as it decides whether locks can be kept in it.
    pub(crate) fn kept(&self) -> Kept<'_> {
        let has_outcomes = matches!(self.if_missing, IfMissing::InsertOwned { .. });
        Kept { database: &self.database, collection: self.collection.name(), layout: &self.layout, has_outcomes }
    }

    /// Returns the server's time from which on a command of this budget must do nothing (R31). The
    /// call is cut off by then, unless the latest reading of the clock is outdated.
    pub(crate) async fn bound(&self, budget: Budget) -> Result<Duration> {
        let now = match self.server_clock.not_before() {
            Some(now) => now,
            None => self.read_server_clock(budget).await?,
        };
        Ok(now + budget.left())
    }

    /// Reads the server's clock: the time since the epoch.
    pub(crate) async fn read_server_clock(&self, budget: Budget) -> Result<Duration> {
        let reading = self.server_clock.reading();
        let call = async { self.database.run_command(doc! { "hello": 1 }).await };
        let hello = self.run(budget, Effect::None, call).await?;
        let time = hello.get_datetime("localTime").map(|time| millis(time.timestamp_millis()));
        let time = time.map_err(|_| LockError::new(ErrorKind::Unavailable, "MongoDB's `hello` has no `localTime`"))?;
        reading.shows(time);
        Ok(time)
    }

    pub(crate) async fn deployment(&self, claim: &Claim, budget: Budget) -> Result<Deployment> {
        self.deployment_within(budget).await.map_err(|error| error.with_key(claim.key().clone()))
    }

    /// Returns the source of tokens in a deployment.
    pub(crate) fn clock(&self, deployment: Deployment) -> Clock {
        Clock { source: deployment.clock(), floor: self.token_floor }
    }

    /// Returns whether the server refuses a call of a claim that arrives after a later call of it
    /// (R11).
    pub(crate) fn orders_sessions(&self, deployment: Deployment) -> bool {
        self.retryable_writes && deployment.numbers_writes()
    }
}
