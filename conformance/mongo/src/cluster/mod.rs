//! A replica set of three members to which everything may happen.
//!
//! The members are local `mongod` processes, each behind a [`FaultProxy`] whose address is the member's in the replica set's configuration: clients reach
//! members through the proxies, and so do members each other. Faults of the proxies hit only connections of clients, which say in their
//! first bytes who they are. Where the test may make network namespaces – on Linux, as root – each member has a network of its own that can be cut, and the first
//! one a disk small enough to be filled.

mod faults;
mod member;
mod place;
mod set;

use std::sync::Arc;

use async_trait::async_trait;
use distlock_api::LockKey;
use distlock_conformance::{Arena, Fault, FixtureError, Hook};
use futures_util::future::join_all;
use mongodb::bson::Document;

use self::member::Member;
use self::set::Cluster;

/// Makes the argument of [`Fixture::connect`](distlock_conformance::Fixture::connect) out of a connection string.
type AddressOf = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Three local servers as an [`Arena`]: proxies, half-open connections, failing and slow commands,
/// step-downs, kills and stops of the primary or of a majority, stalled disks, and as root cut
/// networks and full disks.
///
/// Servers and their data are gone when it is stopped or dropped, and with this process, however that ends.
pub struct ClusterArena {
    cluster: Arc<Cluster>,
    address_of: AddressOf,
    /// Database and collection of records that a TTL index sweeps.
    swept: Option<(String, String)>,
}

impl std::fmt::Debug for ClusterArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterArena").field("uri", &self.cluster.uri()).finish_non_exhaustive()
    }
}

impl ClusterArena {
    /// Starts the servers, which takes some seconds. `address_of` makes the argument of [`Fixture::connect`](distlock_conformance::Fixture::connect) out of a connection
    /// string. The `appName` in that string must be kept: client faults are aimed at it.
    ///
    /// # Errors
    /// When there is no `mongod` on `PATH` or from PyPI, or it does not start.
    pub async fn start(address_of: impl Fn(&str) -> String + Send + Sync + 'static) -> Result<Self, FixtureError> {
        Ok(Self { cluster: Arc::new(Cluster::start().await?), address_of: Box::new(address_of), swept: None })
    }

    /// The store's records are in this collection, and a TTL index on their field `expiresAt` removes them in the end. Then the server's TTL monitor, which runs every second, is part of the
    /// arena: records of locks at rest are made two hours older, and must vanish.
    #[must_use]
    pub fn swept(mut self, database: impl Into<String>, collection: impl Into<String>) -> Self {
        self.swept = Some((database.into(), collection.into()));
        self
    }

    /// The connection string for clients under faults.
    #[must_use]
    pub fn uri(&self) -> String {
        self.cluster.uri()
    }
}

#[async_trait]
impl Arena for ClusterArena {
    fn address(&self) -> String {
        (self.address_of)(&self.cluster.uri())
    }

    fn faults(&self) -> Vec<Arc<dyn Fault>> {
        faults::all(&self.cluster)
    }

    fn hook(&self, hook: Hook, _: &LockKey) -> Option<Arc<dyn Fault>> {
        match hook {
            Hook::Cut => Some(self.cluster.proxy_faults().reset()),
            Hook::Stall => Some(self.cluster.proxy_faults().black_hole()),
            Hook::Delay => Some(self.cluster.proxy_faults().late_requests()),
            Hook::Restart => Some(faults::crash(&self.cluster)),
            // Nothing blocks one record of MongoDB for all who use it.
            _ => None,
        }
    }

    fn impossible(&self) -> Vec<(&'static str, String)> {
        let Some(reason) = &self.cluster.no_network else { return Vec::new() };
        faults::OF_NAMESPACES.map(|kind| (kind, reason.clone())).to_vec()
    }

    async fn healthy(&self) -> Result<(), FixtureError> {
        self.cluster.healthy().await
    }

    async fn age(&self) -> Result<Option<String>, FixtureError> {
        let Some((database, collection)) = &self.swept else { return Ok(None) };
        let records = self.cluster.client.database(database).collection::<Document>(collection);
        faults::sweep(&records).await.map(Some)
    }

    async fn stop(&self) {
        join_all(self.cluster.members.iter().map(Member::stop)).await;
    }
}
