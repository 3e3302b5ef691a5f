//! The members of the replica set, their proxies, and the state of the set.

use std::sync::Arc;
use std::time::Duration;

use distlock_conformance::proxy::FaultProxy;
use distlock_conformance::{FixtureError, ProxyFaults};
use futures_util::future::{join_all, try_join_all};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::options::WriteConcern;
use tokio::time::{Instant, sleep, timeout};

use super::member::Member;
use super::place::{Network, Place};
use crate::server::{mongod, replica_set};

const MEMBERS: usize = 3;
/// A small disk: two and a half times the space of an idle server.
const DISK: &str = "768m";
/// How long the set may take to be healthy again.
pub(super) const HEALTH_LIMIT: Duration = Duration::from_secs(90);
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How long one write may take before another one is tried.
const WRITE_LIMIT: Duration = Duration::from_secs(1);
/// The `appName` of clients, by which faults find them.
pub(super) const MARK: &str = "distlock-arena";

/// The members and their proxies.
pub(super) struct Cluster {
    pub(super) members: Vec<Member>,
    pub(super) proxies: Arc<[FaultProxy]>,
    /// For the suite itself: through the proxies, but not affected by their faults.
    pub(super) client: Client,
    /// Why members have no separate networks, if they have none.
    pub(super) no_network: Option<String>,
}

impl Cluster {
    pub(super) async fn start() -> Result<Self, FixtureError> {
        let (program, _) = tokio::task::spawn_blocking(mongod::find).await??;
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

    pub(super) fn uri(&self) -> String {
        let addresses: Vec<String> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        // With a driver's defaults, 10 s each, there would be few faults: it would spend most of
        // the time in server selection.
        format!("{}&connectTimeoutMS=3000&heartbeatFrequencyMS=1000&appName={MARK}", replica_set::set_uri(&addresses))
    }

    /// Returns the faults of the proxies, which affect only clients.
    pub(super) fn proxy_faults(&self) -> ProxyFaults {
        ProxyFaults::new(Arc::clone(&self.proxies)).of_marked(MARK).of_requests("findAndModify")
    }

    /// Returns the member that reports itself as the primary; of several, the one of the last
    /// election.
    async fn primary(&self) -> Option<&Member> {
        let hellos = join_all(self.members.iter().map(|member| async move { (member, member.hello().await) })).await;
        let elected = |hello: &Document| hello.get_object_id("electionId").map(|id| id.bytes()).unwrap_or_default();
        let primaries = hellos.into_iter().filter_map(|(member, hello)| {
            let hello = hello.ok().filter(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))?;
            Some((elected(&hello), member))
        });
        primaries.max_by_key(|(elected, _)| *elected).map(|(_, member)| member)
    }

    /// Waits for a primary that `is_meant` accepts.
    pub(super) async fn until_primary(
        &self,
        what: &str,
        is_meant: impl Fn(&Member) -> bool,
    ) -> Result<&Member, FixtureError> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        while Instant::now() < deadline {
            if let Some(primary) = self.primary().await.filter(|primary| is_meant(primary)) {
                return Ok(primary);
            }
            sleep(POLL).await;
        }
        Err(format!("timed out after {HEALTH_LIMIT:?} waiting for {what}").into())
    }

    /// Returns the number of the primary in odd turns, and of another member in even ones, and
    /// whether it is the primary.
    pub(super) async fn member_of_turn(&self, turn: usize) -> Result<(usize, bool), FixtureError> {
        let primary = self.until_primary("a primary", |_| true).await?.number;
        let is_primary = turn % 2 == 1;
        Ok((if is_primary { primary } else { (primary + 1) % self.members.len() }, is_primary))
    }

    /// Returns the number of the last election in a member's status.
    pub(super) async fn term(&self, member: &Member) -> Result<i64, FixtureError> {
        Ok(member.admin(doc! { "replSetGetStatus": 1 }).await?.get_i64("term")?)
    }

    /// Waits until all members are up, one of them is the primary, and a majority acknowledges a
    /// write.
    pub(super) async fn healthy(&self) -> Result<(), FixtureError> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        loop {
            let Err(problem) = timeout(HEALTH_LIMIT, self.is_healthy()).await.unwrap_or(Err("no answer".into())) else {
                return Ok(());
            };
            if Instant::now() > deadline {
                return Err(format!("the replica set is not healthy after {HEALTH_LIMIT:?}: {problem}").into());
            }
            sleep(POLL).await;
        }
    }

    /// Measures the time from now until a majority acknowledges a write of a plain driver. `None`
    /// if none is acknowledged within the limit.
    pub(super) async fn until_written(&self) -> Option<Duration> {
        let started = Instant::now();
        let probes = self.client.database("distlock_arena").collection::<Document>("probes");
        while started.elapsed() < HEALTH_LIMIT {
            let probe = probes.insert_one(doc! {}).write_concern(WriteConcern::majority());
            // A write may have been sent to a member that is away.
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
