//! The real driver behind a proxy that drops, delays, cuts and holds what the two say to each other.
//!
//! Whatever happens to an acquisition or a release: nobody else holds the lock at the same time, what is not known is withdrawn – the ttl is far too long to be waited for –, and
//! as soon as the network is well everybody can go on.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_api::{LockGuard, LockKey, LockProvider, LockProviderExt, Result};
use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::mongodb::options::{ClientOptions, ServerAddress};

use super::Checks;
use super::world::{LONG, World, key, random_name};

/// A part of the ttl, so that whatever is free by then has been given back.
const SOON: Duration = Duration::from_secs(30);
/// How long callers wait during the fault.
const WAIT: Duration = Duration::from_secs(2);
/// How long a fault goes on after the call that it hit.
const FAULT: Duration = Duration::from_millis(500);

pub(super) fn add(checks: &mut Checks<'_>) {
    // Without sessions a straggler is not refused: what it leaves is bounded by the ttl only.
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
}

/// More often than the driver tries again.
fn dropped(way: Way) -> NetworkFault {
    NetworkFault::Drop { way, times: 3, containing: Some("findAndModify".to_owned()) }
}

/// Where the member that takes writes listens.
async fn primary(world: &World) -> SocketAddr {
    let hosts = match world.options.direct_connection {
        Some(true) => world.options.hosts[0].to_string(),
        _ => world.admin(doc! { "hello": 1 }).await.get_str("primary").expect("a primary").to_owned(),
    };
    tokio::net::lookup_host(hosts).await.expect("an address").find(SocketAddr::is_ipv4).expect("an IPv4 address")
}

async fn behind(world: &World, proxy: &FaultProxy) -> Client {
    let (host, port) = (proxy.address().ip().to_string(), Some(proxy.address().port()));
    let change = |options: &mut ClientOptions| {
        options.hosts = vec![ServerAddress::Tcp { host, port }];
        (options.direct_connection, options.repl_set_name) = (Some(true), None);
    };
    world.connect(change).await.0
}

fn provider(client: &Client, collection: &str) -> MongoProvider {
    let builder = MongoProvider::builder(client.database("distlock_test")).collection(collection);
    let lease = distlock_api::LeaseOptions::new().ttl(LONG);
    builder.lease(lease).request_timeout(Duration::from_secs(1)).build().expect("valid options")
}

async fn take(provider: &MongoProvider, key: &LockKey) -> Result<LockGuard> {
    provider.acquire(key).timeout(SOON).await
}

async fn disturbed(world: World, fault: NetworkFault) {
    let proxy = FaultProxy::start(primary(&world).await).await.unwrap();
    let collection = random_name("locks");
    let (meant, other) = (provider(&behind(&world, &proxy).await, &collection), provider(&world.client, &collection));
    let (acquired, released) = (key(), key());
    let mut last = take(&meant, &acquired).await.unwrap().fencing_token();
    let held = take(&meant, &released).await.unwrap();
    let of_held = held.fencing_token();

    // A grant that may not be heard of.
    proxy.strike(fault.clone());
    let acquiring = meant.acquire(&acquired).timeout(WAIT).await;
    if let Ok(guard) = &acquiring {
        let another = other.try_acquire(&acquired).await.unwrap();
        assert!(another.is_none() || guard.is_lost(), "two hold one lock");
        last = guard.fencing_token();
    }
    drop(acquiring);
    tokio::time::sleep(FAULT).await;
    assert!(proxy.heal() > 0, "{fault:?} hit nothing");
    // Nothing is left of it: the ttl would keep the others out for much longer.
    let guard = take(&other, &acquired).await.expect("the lock was not given back");
    assert!(guard.fencing_token() > last);
    drop(guard);

    // A release that may not be heard of.
    proxy.strike(fault.clone());
    let releasing = tokio::time::timeout(WAIT, held.release()).await;
    tokio::time::sleep(FAULT).await;
    assert!(proxy.heal() > 0, "{fault:?} hit nothing");
    let guard = take(&other, &released).await.expect("the lock was not released");
    assert!(guard.fencing_token() > of_held, "{releasing:?}");
    drop(guard);

    // Health came back.
    for key in [&acquired, &released] {
        let guard = take(&meant, key).await.expect("the client does not recover");
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
    meant.close().await.unwrap();
    other.close().await.unwrap();
}
