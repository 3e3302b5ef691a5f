//! Faults of the network: between clients and members by the proxies, and of one member by its
//! interface.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_conformance::proxy::{NetworkFault, Way};
use distlock_conformance::{Fault, FixtureError};
use mongodb::bson::{Bson, doc};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::super::set::{Cluster, HEALTH_LIMIT, MARK, POLL};

pub(in super::super) const CUT: &str = "network-cut";

/// How long it may take until a client sends the request that a fault waits for.
const HIT_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn half_open(cluster: &Arc<Cluster>) -> [Arc<dyn Fault>; 2] {
    [("half-open-reply", Way::ToClient), ("half-open-request", Way::ToServer)].map(|(kind, way)| -> Arc<dyn Fault> {
        Arc::new(HalfOpen { kind, way, cluster: Arc::clone(cluster), running: Mutex::default() })
    })
}

/// What the request of a half-open connection contains, by turns: a command for one key, and one
/// with a list of statements, for many.
const STRUCK: [&str; 2] = ["findAndModify", "updates"];

/// The proxy in front of the primary swallows one request of one client, or the reply to it. That
/// connection stays open and silent, even after the fault. All others work.
struct HalfOpen {
    kind: &'static str,
    way: Way,
    cluster: Arc<Cluster>,
    running: Mutex<Struck>,
}

#[derive(Clone, Copy, Default)]
struct Struck {
    turn: usize,
    member: usize,
    text: &'static str,
}

#[async_trait]
impl Fault for HalfOpen {
    fn kind(&self) -> &'static str {
        self.kind
    }

    /// Longer than a few request timeouts of the client that waits for an answer.
    fn duration(&self) -> Duration {
        Duration::from_secs(8)
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let member = self.cluster.until_primary("a primary", |_| true).await?.number;
        let text = {
            let mut running = self.running.lock().expect("not poisoned");
            let text = STRUCK[running.turn % STRUCK.len()];
            *running = Struck { turn: running.turn + 1, member, text };
            text
        };
        let proxy = &self.cluster.proxies[member];
        proxy.strike_marked(NetworkFault::half_open(self.way, text), MARK);
        let hit = timeout(HIT_LIMIT, proxy.until_hit(1)).await;
        hit.map_err(|_| format!("no client sent a request with {text} to member {member} within {HIT_LIMIT:?}").into())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let Struck { member, text, .. } = *self.running.lock().expect("not poisoned");
        let what = if self.way == Way::ToServer { "request" } else { "reply" };
        match self.cluster.proxies[member].heal() {
            1 => Ok(format!("one {what} of {text} was swallowed, its connection to member {member} is half-open")),
            hits => Err(format!("it hit {hits} connections").into()),
        }
    }
}

pub(super) fn inbound_cut(cluster: &Arc<Cluster>) -> Arc<dyn Fault> {
    Arc::new(InboundCut { cluster: Arc::clone(cluster), running: Mutex::default() })
}

/// Cuts all connections to the primary, old and new, from clients and members. Its own requests to
/// other members, and their answers, still pass. This is half a partition, and needs no separate
/// network.
struct InboundCut {
    cluster: Arc<Cluster>,
    running: Mutex<usize>,
}

#[async_trait]
impl Fault for InboundCut {
    fn kind(&self) -> &'static str {
        "inbound-cut"
    }

    /// Longer than an election takes.
    fn duration(&self) -> Duration {
        Duration::from_secs(6)
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let primary = self.cluster.until_primary("a primary", |_| true).await?.number;
        *self.running.lock().expect("not poisoned") = primary;
        self.cluster.proxies[primary].strike(NetworkFault::BlackHole { way: Way::Both });
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let member = *self.running.lock().expect("not poisoned");
        match self.cluster.proxies[member].heal() {
            0 => Err(format!("no traffic was sent to member {member}").into()),
            hits => Ok(format!("{hits} connections to member {member}, the primary, were cut")),
        }
    }
}

pub(super) fn cut(cluster: &Arc<Cluster>) -> Arc<dyn Fault> {
    Arc::new(Cut { cluster: Arc::clone(cluster), running: Mutex::default() })
}

/// Takes the interface of one member down, by turns of the primary and of a secondary. No traffic
/// passes to or from clients and members.
struct Cut {
    cluster: Arc<Cluster>,
    running: Mutex<Running>,
}

#[derive(Clone, Copy, Default)]
struct Running {
    turn: usize,
    member: usize,
    was_primary: bool,
}

#[async_trait]
impl Fault for Cut {
    fn kind(&self) -> &'static str {
        CUT
    }

    /// Longer than an election takes.
    fn duration(&self) -> Duration {
        Duration::from_secs(6)
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        let turn = self.running.lock().expect("not poisoned").turn + 1;
        let (member, was_primary) = self.cluster.member_of_turn(turn).await?;
        *self.running.lock().expect("not poisoned") = Running { turn, member, was_primary };
        let meant = &self.cluster.members[member];
        meant.place.unplug().await?;
        match timeout(Duration::from_millis(500), TcpStream::connect(meant.address())).await {
            Ok(Ok(_)) => Err(format!("member {member} can still be reached").into()),
            _ => Ok(()),
        }
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let Running { member, was_primary, .. } = *self.running.lock().expect("not poisoned");
        let seen = self.until_missed(member).await;
        self.cluster.members[member].place.plug().await?;
        seen?;
        let role = if was_primary { "the primary" } else { "a secondary" };
        Ok(format!("the others missed member {member}, {role}"))
    }
}

impl Cut {
    /// Waits until a primary among the others reports that the member does not answer.
    async fn until_missed(&self, member: usize) -> Result<(), FixtureError> {
        let deadline = Instant::now() + HEALTH_LIMIT;
        while Instant::now() < deadline {
            let primary = self.cluster.until_primary("another primary", |primary| primary.number != member).await?;
            let status = primary.admin(doc! { "replSetGetStatus": 1 }).await?;
            let members = status.get_array("members")?.iter().filter_map(Bson::as_document);
            let mut missed = members.filter(|seen| seen.get_f64("health").is_ok_and(|health| health == 0.0));
            if missed.any(|seen| seen.get_i32("_id").is_ok_and(|id| usize::try_from(id) == Ok(member))) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        Err(format!("the others never missed member {member}").into())
    }
}
