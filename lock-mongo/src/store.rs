//! The store: the requests of the lease engine and of operators. Each request is a file in
//! `requests`.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{
    AcquisitionId, FencingToken, ForcedRelease, LockAdmin, LockError, LockEvents, LockFilter, LockInfo, LockKey,
    ReleaseOutcome, Result,
};
use distlock_engine::LeaseProvider;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, Connecting, EventStore, EventStream, Lanes, LeaseStore, QueueStore,
    Release, RemoteStore, Renewal, Reply, Standing, StoreCapabilities, StoreExtras, Watch,
};

use crate::budget::Budget;
use crate::calls::BATCH;
use crate::records::{IfMissing, Records};
use crate::requests::batch::KEYS;
use crate::requests::{acquire, admin, batch, connect, release, renew, waiters, watch};
use crate::topology::{Deployment, left_unanswered, server};

/// Leases in a lock collection, one record per key, or in the documents of your own collection.
///
/// Under an engine it is a [`MongoProvider`](crate::MongoProvider). By itself it is for programs
/// that compose their own provider. Made by
/// [`MongoProviderBuilder::build_store`](crate::MongoProviderBuilder::build_store) and
/// [`DocumentLocksBuilder::build_store`](crate::DocumentLocksBuilder::build_store).
pub struct MongoStore {
    pub(crate) records: Records,
}

impl MongoStore {
    /// Connects, determines the deployment, tries the privileges `find`, `update` and `insert`, and
    /// creates the indexes. A wrong address, credential or privilege is thus reported early.
    ///
    /// Optional: the first request also determines the deployment, and the indexes are made in the
    /// background. Locks work without the indexes, and also after this has failed.
    ///
    /// # Errors
    /// * [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) if
    ///   [`calls_at_once`](crate::MongoProviderBuilder::calls_at_once) is above the size of the
    ///   client's pool;
    /// * [`Unavailable`](distlock_api::ErrorKind::Unavailable) if no server can be used. The error
    ///   names the cause for each server. Also for a connection to a secondary alone;
    /// * [`PermissionDenied`](distlock_api::ErrorKind::PermissionDenied) if the credentials are
    ///   missing or wrong, or a privilege is missing. The error names it: `find`, `update`,
    ///   `insert` or `createIndex`;
    /// * [`Unsupported`](distlock_api::ErrorKind::Unsupported) for a server before MongoDB 6.0 or
    ///   one that is not MongoDB and lacks something (the error names it), and for a collection
    ///   with a collation, or one that [loses records](crate#what-it-needs), such as a capped one;
    /// * any error of the creation of the TTL index.
    pub async fn prepare(&self) -> Result<()> {
        connect::prepare(&self.records).await
    }

    /// Raises the tokens of all records of the collection to `floor`, and returns how many were
    /// below. The next grant of each key has a greater one. **Takes every lock away** whose tokens
    /// are below, as [`force_release`](LockAdmin::force_release) does.
    ///
    /// For data that was restored, together with
    /// [`token_floor`](crate::MongoProviderBuilder::token_floor), which also covers keys without a
    /// record: see [the runbook](crate#after-a-restore).
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for a floor that leaves no room
    /// for tokens. After any other error some records may be raised; it can be called again.
    pub async fn raise_tokens(&self, floor: FencingToken) -> Result<u64> {
        admin::raise_tokens(&self.records, floor).await
    }

    /// The debug output of everything that has this store, with the provider's load. The client is
    /// left out, because its options contain credentials.
    pub(crate) fn describe(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        engine: Option<&LeaseProvider>,
    ) -> fmt::Result {
        let Records { collection, topology, layout, .. } = &self.records;
        let mut shown = f.debug_struct(name);
        shown.field("collection", &format_args!("{}", collection.namespace()));
        if layout.is_within() {
            shown.field("field", &layout.field());
        }
        match topology.known() {
            Some(deployment) => shown.field("deployment", &deployment),
            None => shown.field("deployment", &format_args!("not connected yet")),
        };
        match engine {
            Some(engine) => shown.field("engine", engine),
            None => shown.field("lanes", &self.lanes()),
        };
        shown.finish_non_exhaustive()
    }
}

/// Returns how many keys may go in one command: one for the documents of
/// [`MongoOnce`](crate::MongoOnce), which are always new, and where updates cannot be counted. On a
/// sharded cluster a record that moves between shards may be updated twice, and be counted twice.
fn acquire_batch(deployment: Option<Deployment>, if_missing: &IfMissing) -> NonZeroUsize {
    let can_count = deployment.is_some_and(|known| known != Deployment::Sharded);
    let keys = if can_count && !matches!(if_missing, IfMissing::InsertOwned { .. }) { KEYS } else { 1 };
    NonZeroUsize::new(keys).expect("not zero")
}

#[async_trait]
impl LeaseStore for MongoStore {
    fn capabilities(&self) -> StoreCapabilities {
        let records = &self.records;
        let deployment = records.topology.known();
        let mut capabilities = StoreCapabilities::default();
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        capabilities.shared = true;
        capabilities.permits = true;
        // It is known with the first answer, and no caller waits before that.
        capabilities.min_ttl = records.min_ttl;
        capabilities.ordered_claims = deployment.is_some_and(|known| records.orders_sessions(known));
        capabilities
    }

    fn name(&self) -> &str {
        "mongodb"
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

    fn extras(&self) -> StoreExtras<'_> {
        let records = &self.records;
        let pushes = records.topology.known().is_some_and(|known| known != Deployment::Standalone)
            && records.resources().is_none_or(|resources| resources.streams.any());
        let mut extras = StoreExtras::default();
        extras.events = pushes.then_some(self as &dyn EventStore);
        extras.queue = Some(self);
        extras.batch_renew = Some(self);
        extras.batch = Some(self);
        extras.remote = Some(self);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for MongoStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        waiters::waiters(&self.records, claim, timeout).await
    }
}

#[async_trait]
impl EventStore for MongoStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        watch::subscribe(&self.records, watch.provider).await
    }
}

#[async_trait]
impl BatchRenewStore for MongoStore {
    fn renew_batch(&self) -> NonZeroUsize {
        BATCH
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        renew::renew_many(&self.records, renewals).await
    }
}

#[async_trait]
impl BatchStore for MongoStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        acquire_batch(self.records.topology.known(), &self.records.if_missing)
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        batch::try_acquire_many(&self.records, attempts).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        batch::release_many(&self.records, releases).await
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        batch::withdraw_many(&self.records, claims, timeout).await
    }

    fn may_gather(&self, attempt: &Attempt) -> bool {
        batch::may_gather(&self.records, attempt, &self.records.if_missing)
    }

    fn may_gather_release(&self, release: &Release) -> bool {
        batch::may_gather_release(release)
    }

    fn may_gather_withdrawal(&self, claim: &Claim) -> bool {
        batch::may_gather_withdrawal(claim)
    }

    fn may_act_for(&self, claim: &Claim) -> Duration {
        batch::may_act_for(&self.records, claim)
    }
}

#[async_trait]
impl RemoteStore for MongoStore {
    fn lanes(&self) -> Option<Lanes> {
        self.records.resources().map(|resources| resources.pool.lanes.clone())
    }

    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let records = &self.records;
        if records.topology.known().is_none() {
            return Some(Box::pin(async move { records.deployment_within(Budget::new(limit)).await.map(drop) }));
        }
        let pool = &records.resources()?.pool;
        if pool.reachability.is_certain() {
            return None;
        }
        Some(Box::pin(server(records.database.client(), &pool.reachability, limit)))
    }

    fn why_unanswered(&self, waited: Duration) -> Option<LockError> {
        let Records { database, topology, .. } = &self.records;
        let reachability = &self.records.resources()?.pool.reachability;
        Some(left_unanswered(database.client(), reachability, topology.known(), waited))
    }

    async fn close(&self) -> Result<()> {
        self.records.indexes.close(self.records.request_timeout).await;
        Ok(())
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
    /// The record keeps the last five: the acquisition and the owner that lost the lease, its
    /// token, the time, and up to 1,024 bytes of the reason.
    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        admin::force_release(&self.records, key, reason).await
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        admin::force_release_holder(&self.records, key, id, reason).await
    }

    /// One query. With an owner in the filter it reads the owner indexes; otherwise it reads every
    /// record within the prefix that has not been purged.
    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        admin::page(&self.records, filter, after, limit).await
    }

    /// A change stream: it needs a replica set or a sharded cluster, and the privilege
    /// `changeStream`.
    ///
    /// The driver resumes it after a failure of the network or of a member. An expiry is reported
    /// when another holder takes the lock over. If this stream has reported the grant, it is
    /// reported when the record is purged, at the latest.
    async fn watch(&self) -> Result<LockEvents> {
        watch::events(&self.records).await
    }

    /// Works in batches, in the order of the identities: a query finds the next batch, and an
    /// update releases those that still match, each as a forced release does. Locks that are
    /// granted meanwhile may stay.
    ///
    /// After an error the locks of earlier batches are released; the error has their number. Call
    /// it again for the others.
    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        admin::release_matching(&self.records, filter, reason).await
    }

    /// Returns the last five, which the record keeps; none once the record is purged.
    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        admin::history(&self.records, key).await
    }
}

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f, "MongoStore", None)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn keys_go_together_only_where_updates_can_be_counted() {
        let batch = |deployment| acquire_batch(deployment, &IfMissing::InsertRecord).get();
        assert_eq!([Deployment::Standalone, Deployment::ReplicaSet].map(|known| batch(Some(known))), [KEYS; 2]);
        assert_eq!([None, Some(Deployment::Sharded)].map(batch), [1; 2]);
        let of = |if_missing| acquire_batch(Some(Deployment::ReplicaSet), &if_missing).get();
        assert_eq!([IfMissing::Fail, IfMissing::InsertDefault(doc! {})].map(of), [KEYS; 2]);
        assert_eq!(of(IfMissing::InsertOwned { default: doc! {}, filter: doc! {} }), 1);
    }
}
