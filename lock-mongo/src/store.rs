//! The store: what the lease engine and operators may request. Each request is a file in
//! `requests`.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{
    FencingToken, ForcedRelease, LockAdmin, LockEvents, LockFilter, LockInfo, LockKey, ReleaseOutcome, Result,
};
use distlock_engine::store::{
    Attempt, Claim, Connecting, EventStream, Lanes, LeaseStore, Release, Renewal, Reply, Standing, StoreCapabilities,
    Watch,
};

use crate::budget::Budget;
use crate::calls::BATCH;
use crate::records::Records;
use crate::requests::{acquire, admin, connect, release, renew, waiters, watch};
use crate::topology::{Deployment, server};

/// Leases in a lock collection, one record per key, or in the documents of another one. Under an
/// engine it is a [`MongoProvider`](crate::MongoProvider); by itself it is for those who compose
/// their own. Made by
/// [`MongoProviderBuilder::build_store`](crate::MongoProviderBuilder::build_store) and
/// [`DocumentLocksBuilder::build_store`](crate::DocumentLocksBuilder::build_store).
pub struct MongoStore {
    pub(crate) records: Records,
}

impl MongoStore {
    /// Finds out what the deployment is, tries the privileges `find`, `update` and `insert`, and
    /// creates the indexes, so that a wrong address, credentials or privileges are known early. Not
    /// needed otherwise: the first request finds out the deployment, too, and the indexes are made
    /// in the background.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) if
    /// [`calls_at_once`](crate::MongoProviderBuilder::calls_at_once) is above the size of the
    /// client's pool, [`Unavailable`](distlock_api::ErrorKind::Unavailable), also for a connection
    /// to a secondary alone, [`PermissionDenied`](distlock_api::ErrorKind::PermissionDenied), which
    /// names the privilege (`find`, `update`, `insert` or `createIndex`) or says that MongoDB
    /// requires authentication, [`Unsupported`](distlock_api::ErrorKind::Unsupported) for a server
    /// before MongoDB 6.0, a view, or a collection with a collation, or what creating the TTL index
    /// failed with. Locks work without the indexes, and after a failure too.
    pub async fn connect(&self) -> Result<()> {
        connect::connect(&self.records).await
    }

    /// Raises the tokens of all records of the collection to `floor`, and tells how many were
    /// below: the next grant of each key has a greater one. **Takes every lock away** whose tokens
    /// are below, as [`force_release`](LockAdmin::force_release) does. For data that was restored,
    /// together with [`token_floor`](crate::MongoProviderBuilder::token_floor), which also covers
    /// keys without a record: see [the runbook](crate#after-a-restore).
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a floor that leaves no room
    /// for tokens; when the store cannot be asked, or the outcome is unknown: then some records are
    /// raised. It can be called again.
    pub async fn raise_tokens(&self, floor: FencingToken) -> Result<u64> {
        admin::raise_tokens(&self.records, floor).await
    }
}

#[async_trait]
impl LeaseStore for MongoStore {
    fn capabilities(&self) -> StoreCapabilities {
        let records = &self.records;
        let deployment = records.topology.known();
        let mut capabilities = StoreCapabilities::default();
        capabilities.queue = true;
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        // Known with the first answer, and no caller waits before that.
        capabilities.push = deployment.is_some_and(|known| known != Deployment::Standalone)
            && records.shared().is_none_or(|shared| shared.streams.any());
        capabilities.renew_batch = BATCH;
        capabilities.ordered_claims = deployment.is_some_and(|known| records.orders_sessions(known));
        capabilities
    }

    fn name(&self) -> &str {
        "mongodb"
    }

    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let records = &self.records;
        if records.topology.known().is_none() {
            return Some(Box::pin(async move { records.deployment_within(Budget::new(limit)).await.map(drop) }));
        }
        let pool = &records.shared()?.pool;
        if pool.reachability.is_certain() {
            return None;
        }
        Some(Box::pin(server(records.database.client(), &pool.reachability, limit)))
    }

    fn lanes(&self) -> Option<Lanes> {
        self.records.shared().map(|shared| shared.pool.lanes.clone())
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        acquire::try_acquire(&self.records, attempt).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        renew::renew(&self.records, renewal).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        release::release(&self.records, release).await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        release::withdraw(&self.records, claim, timeout).await
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        renew::renew_many(&self.records, renewals).await
    }

    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        waiters::waiters(&self.records, claim, timeout).await
    }

    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        watch::hints(&self.records, watch.provider).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

/// Each call, and each page of a list, is bounded by the builder's request timeout.
#[async_trait]
impl LockAdmin for MongoStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        admin::inspect(&self.records, key).await
    }

    /// Also opens a key that only a minimum hold keeps closed.
    ///
    /// The record keeps the last five: who lost the lease (acquisition and owner), its token, when,
    /// and up to 1,024 bytes of the reason.
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        admin::force_release(&self.records, key, reason).await
    }

    /// One query. By owner it reads the index; without one, every record within the prefix that has
    /// not been purged.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        admin::page(&self.records, filter, after, limit).await
    }

    /// A change stream: needs a replica set or a sharded cluster, and the privilege `changeStream`.
    ///
    /// The driver resumes it after a failure of the network or of a member. An expiry is told when
    /// another holder takes the lock over, or, of a grant that this stream has told, when the
    /// record is purged.
    async fn watch(&self) -> Result<LockEvents> {
        watch::events(&self.records).await
    }

    /// In batches, in the order of their identities: one query finds the next, one update releases
    /// those that match still, each as by a forced release of it. Locks that are taken meanwhile
    /// may stay.
    ///
    /// After an error the locks of the batches before are released; the error says how many. Called
    /// again it goes on with the others.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        admin::release_matching(&self.records, filter, reason).await
    }

    /// The last five that the record remembers; none once it is purged.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        admin::history(&self.records, key).await
    }
}

impl fmt::Debug for MongoStore {
    /// Without the client, whose options hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore")
            .field("collection", &self.records.collection.namespace().to_string())
            .field("deployment", &self.records.topology.known())
            .finish_non_exhaustive()
    }
}
