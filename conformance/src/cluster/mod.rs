//! A replica set of three members to which everything may happen.
//!
//! The members are local `mongod` processes, each behind a [`FaultProxy`] whose address is the member's in the replica set's configuration: clients reach
//! members through the proxies, and so do members each other. Faults of the proxies hit only connections of clients, which say in their
//! first bytes who they are. Where the test may make network namespaces – on Linux, as root – each member has a network of its own that can be cut, and the first
//! one a disk small enough to be filled.

mod faults;
mod member;
mod place;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::LockKey;
use futures_util::future::{join_all, try_join_all};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;
use tokio::time::{Instant, sleep, timeout};

use self::member::Member;
use self::place::{Network, Place};
use crate::arena::{Arena, Fault, Hook, network};
use crate::fixture::FixtureError;
use crate::proxy::FaultProxy;
use crate::server::{local, replica_set};

const MEMBERS: usize = 3;
/// A small disk: two and a half times what an idle server takes.
const DISK: &str = "768m";
/// How long the set may take to be well again.
const HEALTH_LIMIT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// How long one write may take before another one is tried.
const WRITE_LIMIT: Duration = Duration::from_secs(1);
/// The `appName` of clients: faults are aimed at it.
const MARK: &str = "distlock-arena";

/// Makes the argument of [`Fixture::connect`](crate::Fixture::connect) out of a connection string.
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
    /// Starts the servers, which takes some seconds. `address_of` makes the argument of [`Fixture::connect`](crate::Fixture::connect) out of a connection
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
            Hook::Cut => Some(self.cluster.network().reset()),
            Hook::Stall => Some(self.cluster.network().black_hole()),
            Hook::Delay => Some(self.cluster.network().late_requests()),
            Hook::Restart => Some(faults::crash(&self.cluster)),
            Hook::Block => None,
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

/// The members and their proxies.
pub(crate) struct Cluster {
    members: Vec<Member>,
    proxies: Arc<[FaultProxy]>,
    /// For the suite itself: through the proxies, and not hit by their faults.
    client: Client,
    /// Why members have no networks of their own, if they have none.
    no_network: Option<String>,
}

impl Cluster {
    async fn start() -> Result<Self, FixtureError> {
        let (program, _) = tokio::task::spawn_blocking(local::find).await??;
        let (network, no_network) = match Network::find().await {
            Ok(network) => (Some(network), None),
            Err(reason) => (None, Some(reason)),
        };
        let starting = (0..MEMBERS).map(|number| {
            let place = Place::new(network, number, (number == 0).then_some(DISK));
            Member::start(&program, number, place)
        });
        let members = try_join_all(starting).await?;
        let mut proxies = Vec::new();
        for member in &members {
            let proxy = match network {
                Some(network) => FaultProxy::listen((network.here(), 0).into(), member.address()).await?,
                None => FaultProxy::start(member.address()).await?,
            };
            proxies.push(proxy);
        }
        let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        replica_set::initiate(members[0].client(), &addresses).await?;
        let client = Client::with_uri_str(replica_set::set_uri(&addresses)).await?;
        let cluster = Self { members, proxies: proxies.into(), client, no_network };
        cluster.healthy().await?;
        Ok(cluster)
    }

    fn uri(&self) -> String {
        let addresses: Vec<String> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        // A driver's defaults, 10 s each, would make the faults few: it would look for a server most of the time.
        format!("{}&connectTimeoutMS=3000&heartbeatFrequencyMS=1000&appName={MARK}", replica_set::set_uri(&addresses))
    }

    fn network(&self) -> network::Network {
        network::Network { proxies: Arc::clone(&self.proxies), mark: Some(MARK), request: Some("findAndModify") }
    }

    /// The member that takes writes, as it says itself; of several that of the last election.
    async fn primary(&self) -> Option<&Member> {
        let hellos = join_all(self.members.iter().map(|member| async move { (member, member.hello().await) })).await;
        let elected = |hello: &Document| hello.get_object_id("electionId").map(|id| id.bytes()).unwrap_or_default();
        let primaries = hellos.into_iter().filter_map(|(member, hello)| {
            let hello = hello.ok().filter(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))?;
            Some((elected(&hello), member))
        });
        primaries.max_by_key(|(elected, _)| *elected).map(|(_, member)| member)
    }

    /// The member that takes writes, as soon as there is one that is meant.
    async fn until_primary(&self, what: &str, is_meant: impl Fn(&Member) -> bool) -> Result<&Member, FixtureError> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        while Instant::now() < deadline {
            if let Some(primary) = self.primary().await.filter(|primary| is_meant(primary)) {
                return Ok(primary);
            }
            sleep(POLL).await;
        }
        Err(format!("waited {HEALTH_LIMIT:?} in vain for {what}").into())
    }

    /// The number of the primary in odd turns, and of another member in even ones; and whether it is
    /// the primary.
    async fn member_of_turn(&self, turn: usize) -> Result<(usize, bool), FixtureError> {
        let primary = self.until_primary("a primary", |_| true).await?.number;
        let is_primary = turn % 2 == 1;
        Ok((if is_primary { primary } else { (primary + 1) % self.members.len() }, is_primary))
    }

    /// The number of the last election that a member knows of.
    async fn term(&self, member: &Member) -> Result<i64, FixtureError> {
        Ok(member.admin(doc! { "replSetGetStatus": 1 }).await?.get_i64("term")?)
    }

    /// Waits until all members are there, one of them is the primary, and a majority takes a write.
    async fn healthy(&self) -> Result<(), FixtureError> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        loop {
            let Err(problem) = timeout(HEALTH_LIMIT, self.is_healthy()).await.unwrap_or(Err("no answer".into())) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(format!("the replica set is not well after {HEALTH_LIMIT:?}: {problem}").into());
            }
            sleep(POLL).await;
        }
    }

    /// How long it takes from now until a majority acknowledges a write of a plain driver. `None`
    /// if none does within the limit.
    async fn until_written(&self) -> Option<Duration> {
        let started = Instant::now();
        let probes = self.client.database("distlock_arena").collection::<Document>("probes");
        while started.elapsed() < HEALTH_LIMIT {
            let probe = probes.insert_one(doc! {}).write_concern(WriteConcern::majority());
            // A write may be on its way to a member that is away.
            if matches!(timeout(WRITE_LIMIT, async { probe.await }).await, Ok(Ok(_))) {
                return Some(started.elapsed());
            }
            sleep(POLL).await;
        }
        None
    }

    async fn is_healthy(&self) -> Result<(), FixtureError> {
        for hello in join_all(self.members.iter().map(Member::hello)).await {
            let hello = hello?;
            let is = |field: &str| hello.get_bool(field).unwrap_or(false);
            if !is("isWritablePrimary") && !is("secondary") {
                return Err(format!("member {:?} is neither primary nor secondary", hello.get_str("me")).into());
            }
        }
        replica_set::wait_until_writable(&self.client).await?;
        let probes = self.client.database("distlock_arena").collection::<Document>("probes");
        let probe = probes.insert_one(doc! {}).write_concern(WriteConcern::majority());
        timeout(Duration::from_secs(10), async { probe.await }).await??;
        Ok(())
    }
}
