//! Over real TCP: at most `n` requests of a key are served at the same time, over all replicas.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use distlock_api::{LockProvider, Mode};
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::key::{FixedKey, ParamKey};
use distlock_tower::{HeldLock, LockLayer, Monitor, PermitLayer, Reason};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use tower::{Layer, ServiceExt};

use crate::common::{Client, Protocol, Server, Stage, panic_of, request, soon, until};
use crate::play::{Play, play};
use crate::timed::{key, ms, post as post_request, secs, status, working};
use crate::without_modes::WithoutModes;

const TENANT: &str = "/tenants/{id}";

fn tenant(provider: impl LockProvider, n: u32) -> PermitLayer<ParamKey> {
    let key = ParamKey::typed::<u64>("tenant", "id").unwrap().checked_for([TENANT]).unwrap();
    PermitLayer::new(provider, key, n)
}

/// Handlers enter the stage with the id in their path.
async fn serve(stage: &Stage, layer: PermitLayer<ParamKey>) -> (Server, Monitor) {
    let monitor = layer.monitor();
    let stage = stage.clone();
    let visit = move |Path(id): Path<String>| async move { stage.visit(id).await };
    (Server::start(Router::new().route(TENANT, post(visit.clone()).get(visit)).route_layer(layer)).await, monitor)
}

over_both!(
    c27_n_requests_are_served_at_once_and_no_more,
    c27_n_counts_over_all_replicas,
    c27_many_clients_never_exceed_n,
    keys_have_permits_of_their_own,
    a_permit_is_held_until_the_body_has_ended,
    a_client_that_disconnects_while_waiting_leaves_no_waiter,
    a_client_that_disconnects_returns_its_permit,
    without_a_permit_it_is_429_and_by_choice_503,
    a_full_queue_is_503,
    a_permit_does_not_hide_the_lock_of_another_layer,
);

async fn c27_n_requests_are_served_at_once_and_no_more(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let (server, monitor) = serve(&stage, tenant(MemoryProvider::new(), 3)).await;
    let mut clients = Vec::new();
    // Safe methods need a permit, too.
    for method in [Method::POST, Method::GET, Method::POST] {
        let client = server.client(protocol).await;
        client.spawn(request(method, "/tenants/7"));
        clients.push(client);
        events.entered("7").await;
    }
    for waiting in [1, 2] {
        let client = server.client(protocol).await;
        client.spawn_post("/tenants/7");
        clients.push(client);
        until("it waits", || monitor.waiting() == waiting).await;
    }
    assert_eq!((stage.inside(), monitor.held()), (3, 3));
    for _ in 0..2 {
        events.nothing();
        stage.let_go(1);
        events.finished("7").await;
        events.entered("7").await;
        assert_eq!(stage.inside(), 3);
    }
    stage.let_go(3);
    soon("idle", monitor.idle()).await;
    assert_eq!((monitor.granted(), monitor.refused_in_total()), (5, 0));
}

async fn c27_n_counts_over_all_replicas(protocol: Protocol) {
    let (store, (stage, mut events)) = (MemoryStore::new(), Stage::new());
    let replicas = [serve(&stage, tenant(store.provider(), 3)).await, serve(&stage, tenant(store.provider(), 3)).await];
    let mut clients = Vec::new();
    for replica in [0, 1, 0] {
        let client = replicas[replica].0.client(protocol).await;
        client.spawn_post("/tenants/7");
        clients.push(client);
        events.entered("7").await;
    }
    for (server, monitor) in &replicas {
        let client = server.client(protocol).await;
        client.spawn_post("/tenants/7");
        clients.push(client);
        until("it waits", || monitor.waiting() == 1).await;
    }
    for _ in 0..2 {
        events.nothing();
        stage.let_go(1);
        events.finished("7").await;
        events.entered("7").await;
        assert_eq!(stage.inside(), 3);
    }
    stage.let_go(3);
    for (_, monitor) in &replicas {
        soon("idle", monitor.idle()).await;
    }
}

async fn c27_many_clients_never_exceed_n(protocol: Protocol) {
    const N: usize = 4;
    let store = MemoryStore::new();
    // Outside of the locks: how many handlers are at work.
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut servers = Vec::new();
    for _ in 0..2 {
        let (inside, most) = (inside.clone(), most.clone());
        let work = move || async move {
            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(ms(2)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        let layer = tenant(store.provider(), N as u32);
        servers.push(Server::start(Router::new().route(TENANT, post(work)).route_layer(layer)).await);
    }
    let clients = (0..12).map(|client| {
        let server = &servers[client % servers.len()];
        async move {
            let client = server.client(protocol).await;
            for _ in 0..8 {
                assert_eq!(client.post("/tenants/7").await.status, 200);
            }
        }
    });
    join_all(clients).await;
    let most = most.load(Ordering::SeqCst);
    assert!((1..=N).contains(&most), "{most} at once");
}

async fn keys_have_permits_of_their_own(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let (server, monitor) = serve(&stage, tenant(MemoryProvider::new(), 1)).await;
    let clients = [server.client(protocol).await, server.client(protocol).await, server.client(protocol).await];
    clients[0].spawn_post("/tenants/1");
    events.entered("1").await;
    clients[1].spawn_post("/tenants/2");
    events.entered("2").await;
    // Another spelling of a key that is in use.
    clients[2].spawn_post("/tenants/01");
    until("it waits", || monitor.waiting() == 1).await;
    assert_eq!(stage.inside(), 2);
}

/// Has two clients served, which have all permits.
async fn two_visitors(play: &mut Play, protocol: Protocol) -> Vec<Client> {
    let mut clients = Vec::new();
    for name in ["first", "second"] {
        let client = play.server.client(protocol).await;
        client.spawn_post(&format!("/visit/{name}"));
        clients.push(client);
        play.events.entered(name).await;
    }
    clients
}

async fn two_permits() -> Play {
    play(|provider, app| {
        let layer = PermitLayer::new(provider.clone(), FixedKey::new("the key").unwrap(), 2);
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await
}

async fn a_permit_is_held_until_the_body_has_ended(protocol: Protocol) {
    let mut play = two_permits().await;
    let [first, second, third] =
        [play.server.client(protocol).await, play.server.client(protocol).await, play.server.client(protocol).await];
    let read = first.spawn_post("/stream/first").await.unwrap().unwrap();
    play.events.entered("first").await;
    let dropped = second.spawn_post("/stream/second").await.unwrap().unwrap();
    play.events.entered("second").await;
    let waiting = third.spawn_post("/visit/third");
    until("it waits", || play.monitor.waiting() == 1).await;
    assert_eq!(play.monitor.held(), 2);
    play.stage.let_go(1);
    play.events.finished("first").await;
    play.events.entered("third").await;
    assert_eq!(soon("the end", read.collect()).await.unwrap().to_bytes(), "begin end");
    // A body that is dropped returns its permit as well.
    drop(dropped);
    second.disconnect();
    play.events.dropped("second").await;
    until("it is returned", || play.monitor.held() == 1).await;
    play.stage.let_go(1);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn a_client_that_disconnects_while_waiting_leaves_no_waiter(protocol: Protocol) {
    let mut play = two_permits().await;
    let _clients = two_visitors(&mut play, protocol).await;
    let [leaver, stayer] = [play.server.client(protocol).await, play.server.client(protocol).await];
    let _left = leaver.spawn_post("/visit/left");
    until("it waits", || play.monitor.waiting() == 1).await;
    let staying = stayer.spawn_post("/visit/stayed");
    until("it waits", || play.monitor.waiting() == 2).await;
    leaver.disconnect();
    until("the waiter is gone", || play.monitor.waiting() == 1).await;
    assert_eq!(play.provider.accounting().waiting, 1);
    play.stage.let_go(1);
    play.events.finished("first").await;
    play.events.entered("stayed").await;
    play.stage.let_go(2);
    assert_eq!(staying.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

async fn a_client_that_disconnects_returns_its_permit(protocol: Protocol) {
    let mut play = two_permits().await;
    let mut clients = two_visitors(&mut play, protocol).await;
    let last = play.server.client(protocol).await;
    let waiting = last.spawn_post("/visit/third");
    until("it waits", || play.monitor.waiting() == 1).await;
    clients.pop().unwrap().disconnect();
    // First the handler, then the permit.
    play.events.dropped("second").await;
    play.events.entered("third").await;
    play.stage.let_go(2);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    play.assert_nothing_left().await;
}

/// A handler at work, which holds the permit while its client is there.
async fn holding(layer: PermitLayer<ParamKey>, protocol: Protocol) -> (Server, Monitor, Stage, Client) {
    let (stage, mut events) = Stage::new();
    let (server, monitor) = serve(&stage, layer).await;
    let client = server.client(protocol).await;
    client.spawn_post("/tenants/4711");
    events.entered("4711").await;
    (server, monitor, stage, client)
}

async fn without_a_permit_it_is_429_and_by_choice_503(protocol: Protocol) {
    for layer in [
        tenant(MemoryProvider::new(), 1).fail_fast(),
        tenant(MemoryProvider::new(), 1).wait_up_to(Duration::from_millis(20)),
    ] {
        let (server, monitor, _stage, _client) = holding(layer, protocol).await;
        server.client(protocol).await.post("/tenants/4711").await.assert_problem(429, "no-permit", true);
        assert_eq!((monitor.waiting(), monitor.refused(Reason::NoPermit), monitor.refused_in_total()), (0, 1, 1));
    }
    let layer = tenant(MemoryProvider::new(), 1).fail_fast().status(Reason::NoPermit, StatusCode::SERVICE_UNAVAILABLE);
    let (server, _, _stage, _client) = holding(layer, protocol).await;
    server.client(protocol).await.post("/tenants/4711").await.assert_problem(503, "no-permit", true);
}

async fn a_full_queue_is_503(protocol: Protocol) {
    let layer = tenant(MemoryProvider::new(), 1).max_waiters_per_key(1);
    let (server, monitor, stage, _client) = holding(layer, protocol).await;
    let second = server.client(protocol).await;
    let waiting = second.spawn_post("/tenants/4711");
    until("it waits", || monitor.waiting() == 1).await;
    server.client(protocol).await.post("/tenants/4711").await.assert_problem(503, "full", true);
    stage.let_go(2);
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
}

async fn a_permit_does_not_hide_the_lock_of_another_layer(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let lock = || LockLayer::new(locks.clone(), FixedKey::new("lock").unwrap());
    let permit = || PermitLayer::new(locks.clone(), FixedKey::new("permit").unwrap(), 2);
    let handler = || post(|held: HeldLock| async move { held.key().to_string() });
    let app = Router::new()
        .route("/permit-inside", handler().layer::<_, Infallible>(permit()).layer(lock()))
        .route("/permit-outside", handler().layer::<_, Infallible>(lock()).layer(permit()))
        .route("/permit", handler().layer(permit()));
    let server = Server::start(app).await;
    let client = server.client(protocol).await;
    for (path, key) in [("/permit-inside", "lock"), ("/permit-outside", "lock"), ("/permit", "permit")] {
        assert_eq!(client.post(path).await.text(), key);
    }
    assert_eq!(locks.keys_in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_the_measured_hold_rounded_up() {
    let locks = MemoryProvider::new();
    let layer = PermitLayer::new(locks.clone(), key(), 2).fail_fast();
    let service = layer.layer(working(ms(1600)));
    let send = || tokio::spawn(status(service.clone().oneshot(post_request())));
    let served = [send(), send()];
    tokio::task::yield_now().await;
    // No hold has ended yet.
    let (code, retry) = status(service.clone().oneshot(post_request())).await;
    assert!(code == 429 && retry >= Some(1), "{code} {retry:?}");
    for served in served {
        assert_eq!(served.await.unwrap().0, 200);
    }
    let served = [send(), send()];
    tokio::task::yield_now().await;
    assert_eq!(status(service.clone().oneshot(post_request())).await, (429, Some(2)), "holds take 1.6 s");
    for served in served {
        assert_eq!(served.await.unwrap().0, 200);
    }
    let quick = PermitLayer::new(locks.clone(), key(), 1).fail_fast();
    let service = quick.layer(working(ms(30)));
    assert_eq!(status(service.clone().oneshot(post_request())).await.0, 200);
    let serving = tokio::spawn(status(service.clone().oneshot(post_request())));
    tokio::task::yield_now().await;
    assert_eq!(status(service.oneshot(post_request())).await, (429, Some(1)), "at least a second");
    assert_eq!(serving.await.unwrap().0, 200);
}

#[tokio::test(start_paused = true)]
async fn retry_after_counts_that_permits_are_passed_on_together() {
    let layer = PermitLayer::new(MemoryProvider::new(), key(), 2).max_waiters(3);
    let monitor = layer.monitor();
    let service = layer.layer(working(ms(1600)));
    let send = || tokio::spawn(status(service.clone().oneshot(post_request())));
    assert_eq!(send().await.unwrap().0, 200, "the first hold, which takes 1.6 s");
    let served = [send(), send(), send(), send(), send()];
    tokio::task::yield_now().await;
    assert_eq!((monitor.held(), monitor.waiting()), (2, 3));
    // Behind three waiters, two of which are served at a time: 2 × 1.6 s = 3.2 s.
    assert_eq!(status(service.clone().oneshot(post_request())).await, (503, Some(4)));
    for served in served {
        assert_eq!(served.await.unwrap().0, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_is_bounded_and_the_maximum_hold_returns_the_permit() {
    let locks = MemoryProvider::new();
    let layer = PermitLayer::new(locks.clone(), key(), 1).max_hold(secs(20));
    let service = layer.layer(working(secs(60)));
    let held = tokio::spawn(status(service.clone().oneshot(post_request())));
    tokio::task::yield_now().await;
    let started = tokio::time::Instant::now();
    assert_eq!(status(service.oneshot(post_request())).await.0, 429);
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!(held.await.unwrap().0, 503);
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (20, 0));
}

#[tokio::test]
async fn c30_impossible_permits_are_refused_when_the_layer_is_made() {
    let text = panic_of(|| PermitLayer::new(MemoryProvider::new(), key(), 0));
    assert!(text.contains("permits of 0"), "{text}");
    let most = u32::try_from(Mode::MAX_HOLDERS).unwrap();
    let text = panic_of(|| PermitLayer::new(MemoryProvider::new(), key(), most + 1));
    assert!(text.contains("at most 256"), "{text}");
    let text = panic_of(|| PermitLayer::new(WithoutModes(MemoryProvider::new()), key(), 2));
    assert!(text.contains("WithoutModes does not support permits"), "{text}");
    for n in [1, most] {
        drop(PermitLayer::new(MemoryProvider::new(), key(), n));
    }
}
