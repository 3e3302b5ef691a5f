//! The real driver behind a proxy that drops, delays, cuts and holds its messages and those of the
//! server.
//!
//! After any fault of an acquisition or a release three things hold. No other caller holds the lock
//! at the same time. Unknown outcomes are withdrawn, long before the ttl ends. As soon as the
//! network is well, all callers can continue.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use distlock_api::{LockGuard, LockKey, LockProvider, LockProviderExt, ReleaseOutcome, Result};
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::mongodb::options::{ClientOptions, ServerAddress};
use tokio::task::JoinHandle;

use super::Checks;
use super::world::{LONG, World, key, random_name};

/// A part of the ttl, so that a key that is free by then was released, and did not expire.
const SOON: Duration = Duration::from_secs(30);
/// How long callers wait during a fault that may hit several requests, of [`BRIEF`] each.
const WAIT: Duration = Duration::from_secs(5);
const BRIEF: Duration = Duration::from_secs(2);
/// How long a fault continues after the call that it hit.
const FAULT: Duration = Duration::from_millis(500);
/// How long the clients behind a proxy wait for one answer: well above what a busy machine needs.
pub(super) const REQUEST: Duration = Duration::from_secs(6);
/// How long a half-open connection may delay a call: two unanswered requests, and five seconds for
/// busy machines, which are too few for a third request.
pub(super) const BOUND: Duration = REQUEST.saturating_mul(2).saturating_add(Duration::from_secs(5));

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C18 an_outage_has_its_cause_and_a_known_outcome);
    // Without sessions a late call is not refused: only the ttl bounds its effect.
    if !checks.is_replica_set() {
        return;
    }
    checks.add("proxy_drops_requests", |world| disturbed(world, dropped(Way::ToServer)));
    checks.add("proxy_drops_replies", |world| disturbed(world, dropped(Way::ToClient)));
    checks.add("proxy_delays", |world| {
        disturbed(world, NetworkFault::Delay { way: Way::Both, by: Duration::from_millis(100) })
    });
    checks.add("proxy_splits", |world| disturbed(world, NetworkFault::Split { bytes: 32 }));
    checks.add("proxy_resets", |world| disturbed(world, NetworkFault::Reset));
    checks.add("proxy_is_a_black_hole", |world| disturbed(world, NetworkFault::BlackHole { way: Way::Both }));
    checks.add("proxy_holds_requests", |world| disturbed(world, NetworkFault::BlackHole { way: Way::ToServer }));
    checks.add("proxy_holds_replies", |world| disturbed(world, NetworkFault::BlackHole { way: Way::ToClient }));
    checks.add("C18_half_open_connection_reply", |world| half_open_acquisition(world, Way::ToClient));
    checks.add("C18_half_open_connection_request", |world| half_open_acquisition(world, Way::ToServer));
    check!(checks, C18 half_open_connection_release_request);
    checks.add("C18_half_open_batch_reply", |world| half_open_batch(world, Way::ToClient, "updates"));
    checks.add("C18_half_open_batch_request", |world| half_open_batch(world, Way::ToServer, "updates"));
    checks.add("C18_half_open_batch_of_new_keys_reply", |world| half_open_batch(world, Way::ToClient, "documents"));
    checks.add("C18_half_open_batch_of_new_keys_request", |world| half_open_batch(world, Way::ToServer, "documents"));
}

/// More tries than the driver makes.
fn dropped(way: Way) -> NetworkFault {
    NetworkFault::Drop { way, times: 3, containing: Some("findAndModify".to_owned()) }
}

/// The address of the member that takes writes.
pub(crate) async fn primary(world: &World) -> SocketAddr {
    let hosts = match world.options.direct_connection {
        Some(true) => world.options.hosts[0].to_string(),
        _ => world.admin(doc! { "hello": 1 }).await.get_str("primary").expect("a primary").to_owned(),
    };
    tokio::net::lookup_host(hosts).await.expect("an address").find(SocketAddr::is_ipv4).expect("an IPv4 address")
}

pub(super) async fn behind(world: &World, proxy: &FaultProxy) -> Client {
    let (host, port) = (proxy.address().ip().to_string(), Some(proxy.address().port()));
    let change = |options: &mut ClientOptions| {
        options.hosts = vec![ServerAddress::Tcp { host, port }];
        (options.direct_connection, options.repl_set_name) = (Some(true), None);
    };
    world.connect(change).await.0
}

fn provider(client: &Client, collection: &str) -> MongoProvider {
    provider_with(client, collection, REQUEST)
}

fn provider_with(client: &Client, collection: &str, request_timeout: Duration) -> MongoProvider {
    let builder = MongoProvider::builder(client.database("distlock_test")).collection(collection);
    let lease = distlock_api::LeaseOptions::new().ttl(LONG);
    builder.lease(lease).request_timeout(request_timeout).build().expect("valid options")
}

async fn take(provider: &MongoProvider, key: &LockKey) -> Result<LockGuard> {
    provider.acquire(key).timeout(SOON).await
}

async fn disturbed(world: World, fault: NetworkFault) {
    let proxy = FaultProxy::start(primary(&world).await).await.unwrap();
    let collection = random_name("locks");
    let meant = provider_with(&behind(&world, &proxy).await, &collection, BRIEF);
    let other = provider(&world.client, &collection);
    let (acquired, released) = (key(), key());
    let mut last = take(&meant, &acquired).await.unwrap().fencing_token();
    let held = take(&meant, &released).await.unwrap();
    let of_held = held.fencing_token();

    // The reply with the grant may be lost.
    proxy.strike(fault.clone());
    let acquiring = meant.acquire(&acquired).timeout(WAIT).into_future();
    let (acquiring, hit) = tokio::join!(acquiring, tokio::time::timeout(SOON, proxy.until_hit(1)));
    hit.unwrap_or_else(|_| panic!("{fault:?} hit nothing"));
    if let Ok(guard) = &acquiring {
        let another = other.try_acquire(&acquired).await.unwrap();
        assert!(another.is_none() || guard.is_lost(), "two hold one lock");
        last = guard.fencing_token();
    }
    drop(acquiring);
    tokio::time::sleep(FAULT).await;
    assert!(proxy.heal() > 0, "{fault:?} hit nothing");
    // Nothing of it is left: the ttl would keep the others out for much longer.
    let guard = take(&other, &acquired).await.expect("the lock was not given back");
    assert!(guard.fencing_token() > last);
    drop(guard);

    // The reply to the release may be lost.
    proxy.strike(fault.clone());
    let releasing = tokio::time::timeout(WAIT, held.release());
    let (releasing, hit) = tokio::join!(releasing, tokio::time::timeout(SOON, proxy.until_hit(1)));
    hit.unwrap_or_else(|_| panic!("{fault:?} hit nothing"));
    tokio::time::sleep(FAULT).await;
    assert!(proxy.heal() > 0, "{fault:?} hit nothing");
    let guard = take(&other, &released).await.expect("the lock was not released");
    assert!(guard.fencing_token() > of_held, "{releasing:?}");
    drop(guard);

    is_well(&meant, &[&acquired, &released]).await;
    meant.close().await.unwrap();
    other.close().await.unwrap();
}

/// After the fault: the client can use each key, and nothing of its calls is left.
async fn is_well(meant: &MongoProvider, keys: &[&LockKey]) {
    for key in keys {
        let guard = take(meant, key).await.expect("the client does not recover");
        assert!(guard.release().await.unwrap().is_released());
    }
    let is_idle = || {
        let now = meant.accounting();
        now.held == 0 && now.waiting == 0 && now.balances()
    };
    let idle = async {
        while !is_idle() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, idle).await.unwrap_or_else(|_| panic!("{:?}", meant.accounting()));
}

/// Two providers of one collection. The first is behind a proxy, and has made calls before.
async fn two(world: &World) -> (FaultProxy, MongoProvider, MongoProvider) {
    let proxy = FaultProxy::start(primary(world).await).await.unwrap();
    let collection = random_name("locks");
    let (meant, other) = (provider(&behind(world, &proxy).await, &collection), provider(&world.client, &collection));
    for provider in [&meant, &other] {
        assert!(take(provider, &key()).await.unwrap().release().await.unwrap().is_released());
    }
    (proxy, meant, other)
}

/// Starts a call, and makes the connection of its next `findAndModify` half-open. Returns the call
/// and the time of the fault.
pub(super) async fn struck<T: Send + 'static>(
    proxy: &FaultProxy,
    way: Way,
    call: impl Future<Output = T> + Send + 'static,
) -> (JoinHandle<T>, Instant) {
    proxy.strike(NetworkFault::half_open(way, "findAndModify"));
    let call = tokio::spawn(call);
    tokio::time::timeout(SOON, proxy.until_hit(1)).await.expect("the call sent no findAndModify");
    let hit = Instant::now();
    assert_eq!(proxy.heal(), 1);
    (call, hit)
}

/// Other keys of the client work at once.
async fn others_work(meant: &MongoProvider) {
    for _ in 0..5 {
        let works = async { take(meant, &key()).await?.release().await };
        let outcome = tokio::time::timeout(REQUEST, works).await.expect("another key had to wait");
        assert!(outcome.unwrap().is_released());
    }
}

/// One request of an acquisition, or its reply, is lost, and the connection stays open. The
/// acquisition has no time limit.
async fn half_open_acquisition(world: World, way: Way) {
    let (proxy, meant, other) = two(&world).await;
    let (contended, acquirer) = (key(), meant.clone());
    let acquired = contended.clone();
    let (acquiring, hit) = struck(&proxy, way, async move { acquirer.acquire(&acquired).await }).await;
    others_work(&meant).await;
    let left = BOUND.saturating_sub(hit.elapsed());
    let acquired = tokio::time::timeout(left, acquiring).await;
    let guard = acquired.expect("the acquisition hangs on a half-open connection").unwrap().unwrap();
    let token = guard.fencing_token();
    assert!(other.try_acquire(&contended).await.unwrap().is_none(), "two hold one lock");
    assert!(guard.release().await.unwrap().is_released());
    // Nothing of the lost exchange is left: another process gets the key at once.
    let next = other.try_acquire(&contended).await.unwrap().expect("the key is not free after its release");
    assert!(next.fencing_token() > token);
    assert!(next.release().await.unwrap().is_released());

    is_well(&meant, &[&contended]).await;
    meant.close().await.unwrap();
    other.close().await.unwrap();
}

/// One command of a batch of acquisitions, or its reply, is lost in the same way: no key of the
/// batch waits longer than a key that is acquired alone. `text` occurs only in the command that is
/// meant.
async fn half_open_batch(world: World, way: Way, text: &'static str) {
    const TASKS: usize = 64;

    let (proxy, meant, other) = two(&world).await;
    let keys: Vec<LockKey> = (0..TASKS).map(|_| key()).collect();
    proxy.strike(NetworkFault::half_open(way, text));
    let acquiring: Vec<_> = keys
        .iter()
        .map(|key| {
            let (meant, key) = (meant.clone(), key.clone());
            tokio::spawn(async move { meant.acquire(&key).await })
        })
        .collect();
    tokio::time::timeout(SOON, proxy.until_hit(1)).await.expect("no batch was sent");
    let hit = Instant::now();
    assert_eq!(proxy.heal(), 1);
    others_work(&meant).await;
    let mut guards = Vec::new();
    for acquiring in acquiring {
        let acquired = tokio::time::timeout(BOUND.saturating_sub(hit.elapsed()), acquiring).await;
        guards.push(acquired.expect("an acquisition hangs on a half-open connection").unwrap().unwrap());
    }
    // Outside the bound: what follows is 64 times two round trips.
    let mut tokens = Vec::new();
    for (guard, key) in guards.into_iter().zip(&keys) {
        // A withdrawal grants to a waiter for a short time at first. A slow machine may lose that.
        let another = other.try_acquire(key).await.unwrap();
        assert!(another.is_none() || guard.is_lost(), "two hold one lock");
        tokens.push(another.as_ref().unwrap_or(&guard).fencing_token());
        if let Some(another) = another {
            assert!(another.release().await.unwrap().is_released());
        }
        guard.release().await.unwrap();
    }
    for (key, token) in keys.iter().zip(tokens) {
        let next = other.try_acquire(key).await.unwrap().expect("the key is not free after its release");
        assert!(next.fencing_token() > token);
        assert!(next.release().await.unwrap().is_released());
    }
    is_well(&meant, &[&keys[0], &keys[TASKS - 1]]).await;
    meant.close().await.unwrap();
    other.close().await.unwrap();
}

/// The request of a release is lost in the same way: the lock is free long before its ttl ends.
async fn half_open_connection_release_request(world: World) {
    let (proxy, meant, other) = two(&world).await;
    let contended = key();
    let held = take(&meant, &contended).await.unwrap();
    let token = held.fencing_token();
    let (releasing, hit) = struck(&proxy, Way::ToServer, held.release()).await;
    others_work(&meant).await;
    // Another process waits meanwhile.
    let taking = tokio::time::timeout(BOUND.saturating_sub(hit.elapsed()), take(&other, &contended));
    let next = taking.await.expect("the release hangs on a half-open connection").unwrap();
    assert!(next.fencing_token() > token);
    let left = BOUND.saturating_sub(hit.elapsed());
    let outcome = tokio::time::timeout(left, releasing).await.expect("the release is not back").unwrap();
    // An unknown outcome is also a correct report.
    assert!(matches!(outcome, Ok(ReleaseOutcome::Released) | Err(_)), "{outcome:?}");
    assert!(next.release().await.unwrap().is_released());

    is_well(&meant, &[&contended]).await;
    meant.close().await.unwrap();
    other.close().await.unwrap();
}

/// The servers go away after the first lock, and return. The outcome of a call that was not sent is
/// never unknown, and the error names why no server can be used: whether the request ends first or
/// the wait.
async fn an_outage_has_its_cause_and_a_known_outcome(world: World) {
    let outage = async |request_timeout| an_outage(&world, request_timeout).await;
    tokio::join!(outage(Duration::from_secs(1)), outage(LONG));
}

async fn an_outage(world: &World, request_timeout: Duration) {
    // By its end the driver must have seen the refusal.
    const WAIT: Duration = Duration::from_secs(5);

    let target = primary(world).await;
    let proxy = FaultProxy::start(target).await.expect("a proxy");
    let (at, client) = (proxy.address(), behind(world, &proxy).await);
    let locks = provider_with(&client, &random_name("locks"), request_timeout);
    locks.acquire(key()).timeout(SOON).await.unwrap().release().await.unwrap();
    proxy.close().await;
    let names_the_cause = |error: &distlock_api::LockError| {
        let source = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("Connection refused"), "{error}: {source}");
        assert!(error.to_string().contains(&at.to_string()), "{error}");
        crate::guide::lists(error);
    };
    // The first call may have been sent.
    names_the_cause(&locks.acquire(key()).timeout(WAIT).await.unwrap_err());
    for _ in 0..2 {
        let error = locks.acquire(key()).timeout(WAIT).await.unwrap_err();
        names_the_cause(&error);
        let (kind, unknown) = (error.kind(), error.is_outcome_unknown());
        assert_eq!((kind, unknown), (distlock_api::ErrorKind::Unavailable, false), "{error}");
    }
    let _back = FaultProxy::listen(at, target).await.expect("the same address");
    let again = locks.acquire(key()).timeout(SOON).await.expect("the server is back");
    again.release().await.unwrap();
    locks.close().await.unwrap();
}
