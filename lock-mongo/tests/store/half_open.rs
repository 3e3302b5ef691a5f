//! A connection becomes half-open under many calls at once: one command of a batch, or its reply,
//! is lost, and the connection is silent from then on.
//!
//! Each key can be taken by another provider within two request timeouts, as if its call had been
//! alone, and no lease is lost whose time is not over.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use distlock_api::{LockGuard, LockKey, LockProvider, LockProviderExt};
use distlock_conformance::Level;
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{DocumentLocks, MongoProvider};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::lateness::Lateness;
use super::proxied::{behind, primary};
use super::world::{LONG, World, random_name};
use super::{Checks, PARTS};

/// How long a check waits for what has no bound of its own.
const AT_LAST: Duration = Duration::from_secs(120);
const REQUEST: Duration = Duration::from_secs(2);
/// How long a message takes to the server of the first provider, and as long back. Without that a
/// hundred commands one after the other, each for one key, take no time worth mentioning.
const FAR: Duration = Duration::from_millis(20);
const KEYS: usize = 400;
/// At the level standard.
const MANY: usize = 2000;

/// The calls that the fault hits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Calls {
    Acquire,
    Release,
    Renew,
    AcquireAll,
    LockAll,
}

#[derive(Clone, Copy)]
struct Case {
    calls: Calls,
    keys: usize,
    /// What is lost: the request or the reply.
    way: Way,
    request_timeout: Duration,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, keys, way, request_timeout } = self;
        let calls = match calls {
            Calls::Acquire => "acquisitions",
            Calls::Release => "releases",
            Calls::Renew => "renewals",
            Calls::AcquireAll => "locks_of_one_call",
            Calls::LockAll => "documents_of_one_call",
        };
        let lost = if *way == Way::ToServer { "request" } else { "reply" };
        write!(f, "C18_half_open_{keys}_{calls}_{lost}_{request_timeout:?}")
    }
}

pub(super) fn add(checks: &mut Checks<'_>) {
    // Without sessions a late call is not refused: only the ttl bounds its effect.
    if !checks.is_replica_set() {
        return;
    }
    let all = Level::from_env().expect("a level") >= Level::Standard;
    for calls in [Calls::Acquire, Calls::Release, Calls::Renew, Calls::AcquireAll, Calls::LockAll] {
        for way in [Way::ToServer, Way::ToClient] {
            // What took longest before batches were withdrawn as batches.
            let is_quick = match calls {
                Calls::Acquire | Calls::Release => way == Way::ToServer,
                Calls::AcquireAll => way == Way::ToClient,
                Calls::Renew | Calls::LockAll => false,
            };
            let (keys, parts) = match (all, is_quick) {
                (true, _) => (MANY, PARTS),
                (false, true) => (KEYS, 1),
                (false, false) => continue,
            };
            let case = Case { calls, keys, way, request_timeout: REQUEST };
            checks.add_heavy(parts, &case.to_string(), move |world| half_open(world, case));
        }
    }
}

/// Two providers of the same keys. The first is far away, behind a proxy. Both have made calls
/// before.
struct Parties {
    case: Case,
    proxy: FaultProxy,
    _far: FaultProxy,
    meant: MongoProvider,
    /// The first one's locks in documents, if its keys are documents.
    documents: Option<DocumentLocks<Document>>,
    other: MongoProvider,
    keys: Vec<LockKey>,
    lateness: Lateness,
}

async fn half_open(world: World, case: Case) {
    let parties = Parties::new(&world, case).await;
    match case.calls {
        Calls::Acquire => parties.acquisitions().await,
        Calls::Release => parties.releases().await,
        Calls::Renew => parties.renewals().await,
        Calls::AcquireAll | Calls::LockAll => parties.group().await,
    }
    parties.end().await;
}

impl Parties {
    async fn new(world: &World, case: Case) -> Self {
        let far = FaultProxy::start(primary(world).await).await.unwrap();
        far.strike(NetworkFault::Delay { way: Way::Both, by: FAR });
        let proxy = FaultProxy::start(far.address()).await.unwrap();
        let (collection, client) = (random_name("locks"), behind(world, &proxy).await);
        let keys: Vec<String> = (0..case.keys).map(|number| format!("{number:05}")).collect();
        let (meant, other, documents) = if case.calls == Calls::LockAll {
            let raw = world.raw(&collection);
            raw.insert_many(keys.iter().map(|id| doc! { "_id": id, "balance": 10 })).await.unwrap();
            raw.insert_one(doc! { "_id": "warm" }).await.unwrap();
            let [meant, other] = [&client, &world.client].map(|client| documents(client, &collection, case));
            (meant.provider(), other.provider(), Some(meant))
        } else {
            let [meant, other] = [&client, &world.client].map(|client| locks(client, &collection, case));
            (meant, other, None)
        };
        for provider in [&meant, &other] {
            provider.acquire("warm").await.unwrap().release().await.unwrap();
        }
        let keys = keys.into_iter().map(|key| LockKey::new(key).unwrap()).collect();
        Self { case, proxy, _far: far, meant, documents, other, keys, lateness: Lateness::watch() }
    }

    /// Twice the request timeout, and by how much later than it should a task of this process has
    /// run.
    fn bound(&self) -> Duration {
        2 * self.case.request_timeout + self.lateness.worst()
    }

    /// Makes the connection of the next command half-open that is meant.
    fn strike(&self) {
        let text = match self.case.calls {
            Calls::Acquire | Calls::AcquireAll => "documents",
            Calls::Release | Calls::Renew | Calls::LockAll => "updates",
        };
        self.proxy.strike(NetworkFault::half_open(self.case.way, text));
    }

    /// Waits until the fault has hit a command. Returns when.
    async fn hit(&self) -> Instant {
        tokio::time::timeout(AT_LAST, self.proxy.until_hit(1)).await.expect("no batch was sent");
        let hit = Instant::now();
        assert_eq!(self.proxy.heal(), 1);
        hit
    }

    /// The other provider takes each of these keys within the bound after the fault, and releases
    /// it again.
    async fn come_back(&self, keys: impl Iterator<Item = &LockKey>, hit: Instant) {
        sleep_until(hit + self.case.request_timeout / 2).await;
        let taken = join_all(keys.map(async |key| {
            let guard = self.other.acquire(key).timeout(AT_LAST).await.unwrap();
            let after = hit.elapsed();
            drop(guard);
            after
        }));
        self.judge("another provider has the key", taken.await);
    }

    fn judge(&self, what: &str, mut times: Vec<Duration>) {
        times.sort_unstable();
        let (last, bound) = (*times.last().expect("some"), self.bound());
        let late = times.iter().filter(|time| **time > bound).count();
        let middle = times[times.len() / 2];
        println!("{}: {what} after {middle:?}, the last after {last:?} of {bound:?}", self.case);
        assert!(late == 0, "{late} of {}: {what} after {last:?}, with a bound of {bound:?}", times.len());
    }

    /// Takes all keys before the fault.
    async fn take_all(&self) -> Vec<LockGuard> {
        let guards = join_all(self.keys.iter().map(|key| self.meant.acquire(key).into_future())).await;
        guards.into_iter().map(Result::unwrap).collect()
    }

    /// Every second caller leaves as soon as the fault has hit; the others stay.
    async fn acquisitions(&self) {
        self.strike();
        let calls = self.keys.iter().map(|key| {
            let (meant, key) = (self.meant.clone(), key.clone());
            tokio::spawn(async move { (meant.acquire(&key).await, Instant::now()) })
        });
        let calls: Vec<_> = calls.collect();
        let hit = self.hit().await;
        let mut staying = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            if number % 2 == 0 {
                // If it has ended, this drops its guard.
                call.abort();
            } else {
                staying.push(call);
            }
        }
        let left = self.keys.iter().step_by(2);
        let (granted, ()) = tokio::join!(join_all(staying), self.come_back(left, hit));
        let (mut guards, mut times) = (Vec::new(), Vec::new());
        for granted in granted {
            let (guard, at) = granted.unwrap();
            guards.push(guard.unwrap());
            times.push(at - hit);
        }
        self.judge("the caller has the key", times);
        sleep(self.case.request_timeout).await;
        self.release(guards).await;
    }

    async fn releases(&self) {
        let guards = self.take_all().await;
        self.strike();
        let releases: Vec<_> = guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
        let hit = self.hit().await;
        self.come_back(self.keys.iter(), hit).await;
        for outcome in join_all(releases).await {
            // An unknown outcome is also a correct report.
            let _ = outcome.unwrap();
        }
    }

    /// Each lease lasts for longer than two unanswered calls.
    async fn renewals(&self) {
        let guards = self.take_all().await;
        self.strike();
        self.hit().await;
        // By then it has been renewed, or it has ended.
        sleep(self.case.ttl() + REQUEST).await;
        self.release(guards).await;
    }

    /// The caller of one acquisition of all keys leaves when the fault has hit. By then it has half
    /// of them.
    async fn group(&self) {
        let (keys, half) = (self.keys.clone(), self.keys.len() as u64 / 2);
        let call = match self.documents.clone() {
            Some(documents) => tokio::spawn(async move {
                let ids = keys.iter().map(LockKey::as_str);
                drop(documents.lock_all(ids).await.unwrap());
            }),
            None => {
                let meant = self.meant.clone();
                tokio::spawn(async move { drop(meant.acquire_all(&keys).await.unwrap()) })
            }
        };
        while self.meant.accounting().held < half {
            assert!(!call.is_finished(), "no batch was left to be hit");
            sleep(Duration::from_millis(1)).await;
        }
        self.strike();
        let hit = self.hit().await;
        call.abort();
        self.come_back(self.keys.iter(), hit).await;
    }

    /// No lease was lost, and none is left.
    async fn release(&self, guards: Vec<LockGuard>) {
        let lost = guards.iter().filter(|guard| guard.is_lost()).count();
        assert_eq!(lost, 0, "leases were lost, of {}", guards.len());
        let keys: Vec<LockKey> = guards.iter().map(|guard| guard.key().clone()).collect();
        let released = Instant::now();
        for outcome in join_all(guards.into_iter().map(LockGuard::release)).await {
            assert!(outcome.unwrap().is_released());
        }
        self.come_back(keys.iter(), released).await;
    }

    async fn end(self) {
        // A batch without an answer may take effect until its bound, and is withdrawn again.
        let settled = async {
            while self.meant.accounting().unsettled > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(AT_LAST, settled).await.unwrap_or_else(|_| panic!("{:?}", self.meant.accounting()));
        self.meant.close().await.unwrap();
        self.other.close().await.unwrap();
        let accounting = self.meant.accounting();
        assert!(accounting.balances(), "{accounting:?}");
        println!("{}: tasks ran up to {:?} late", self.case, self.lateness.worst());
    }
}

impl Case {
    fn ttl(self) -> Duration {
        if self.calls == Calls::Renew { 6 * self.request_timeout } else { LONG }
    }
}

fn locks(client: &Client, collection: &str, case: Case) -> MongoProvider {
    let lease = distlock_api::LeaseOptions::new().ttl(case.ttl());
    let builder = MongoProvider::builder(client.database("distlock_test")).collection(collection);
    builder.lease(lease).request_timeout(case.request_timeout).build().expect("valid options")
}

fn documents(client: &Client, collection: &str, case: Case) -> DocumentLocks<Document> {
    let lease = distlock_api::LeaseOptions::new().ttl(case.ttl());
    let documents = client.database("distlock_test").collection(collection);
    DocumentLocks::builder(&documents)
        .lease(lease)
        .request_timeout(case.request_timeout)
        .build()
        .expect("valid options")
}
