//! A disposable replica set of three members for fault injection.
//!
//! The members are local `mongod` processes. Each is behind a [`FaultProxy`], whose address is that
//! of the member in the replica set's configuration. So clients reach members, and members reach
//! each other, through the proxies. Faults of the proxies hit only connections of clients, which
//! contain their name in their first bytes.
//!
//! If the test may make network namespaces – on Linux, as root – each member has its own network,
//! which can be cut. The first member has a disk that is small enough to be filled.

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

/// Makes the argument of [`Fixture::connect`](distlock_conformance::Fixture::connect) from a
/// connection string.
type AddressOf = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Three local servers as an [`Arena`]. Its faults are those of proxies, half-open connections,
/// failing and slow commands, step-downs, kills and stops of the primary or of a majority, and
/// stalled disks. As root it also has cut networks and full disks.
///
/// The servers end and their data is removed when this is stopped or dropped, or when this process
/// ends for any reason.
///
/// ```no_run
/// use distlock_conformance::{Arena, FixtureError};
/// use distlock_conformance_mongo::ClusterArena;
///
/// // In `Fixture::arena`:
/// # async fn arena() -> Result<Box<dyn Arena>, FixtureError> {
/// let arena = ClusterArena::start(|uri| uri.to_owned()).await?.swept("shop", "locks");
/// Ok(Box::new(arena))
/// # }
/// ```
pub struct ClusterArena {
    cluster: Arc<Cluster>,
    address_of: AddressOf,
    /// Database and collection of records that a TTL index removes.
    swept: Option<(String, String)>,
}

impl std::fmt::Debug for ClusterArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterArena").field("uri", &self.cluster.uri()).finish_non_exhaustive()
    }
}

impl ClusterArena {
    /// Starts the servers, which takes some seconds. `address_of` makes the argument of
    /// [`Fixture::connect`](distlock_conformance::Fixture::connect) from a connection string. It
    /// must keep the `appName` of that string, which the faults of clients use.
    ///
    /// # Errors
    /// There is no `mongod` on `PATH` or from PyPI, or it does not start.
    pub async fn start(address_of: impl Fn(&str) -> String + Send + Sync + 'static) -> Result<Self, FixtureError> {
        Ok(Self { cluster: Arc::new(Cluster::start().await?), address_of: Box::new(address_of), swept: None })
    }

    /// Declares that the store's records are in this collection, with a TTL index on their field
    /// `expiresAt`. The server's TTL monitor, which runs every second, then belongs to the arena:
    /// records of unused locks are made two hours older, and must disappear.
    #[must_use]
    pub fn swept(mut self, database: impl Into<String>, collection: impl Into<String>) -> Self {
        self.swept = Some((database.into(), collection.into()));
        self
    }

    /// Returns the connection string for clients under faults.
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
            Hook::Lag => Some(self.cluster.proxy_faults().lag()),
            Hook::LoseReplies => Some(self.cluster.proxy_faults().lost_replies()),
            Hook::Restart => Some(faults::crash(&self.cluster)),
            // MongoDB cannot block one record for all clients.
            _ => None,
        }
    }

    fn unavailable_faults(&self) -> Vec<(&'static str, String)> {
        let Some(reason) = &self.cluster.no_network else { return Vec::new() };
        faults::OF_NAMESPACES.map(|kind| (kind, reason.clone())).to_vec()
    }

    async fn healthy(&self) -> Result<(), FixtureError> {
        self.cluster.healthy().await
    }

    async fn age_records(&self) -> Result<Option<String>, FixtureError> {
        let Some((database, collection)) = &self.swept else { return Ok(None) };
        let records = self.cluster.client.database(database).collection::<Document>(collection);
        faults::sweep(&records).await.map(Some)
    }

    async fn stop(&self) {
        join_all(self.cluster.members.iter().map(Member::stop)).await;
    }
}
