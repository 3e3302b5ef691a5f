//! Over real TCP: readers of a resource are served together, writers alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use distlock_api::{LockError, LockKey, LockProvider, Mode};
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::key::{FixedKey, ParamKey};
use distlock_tower::{KeyedLockError, KeyedLockLayer, LockLayer, Monitor, Reason};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::Method;
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{Client, Protocol, Server, Stage, panic_of, request, soon, until};
use crate::play::{one_key, play};
use crate::without_modes::WithoutModes;

/// Every handler enters the stage with the name of its method, and waits there.
async fn orders(stage: &Stage, layer: LockLayer<ParamKey>) -> (Server, Monitor) {
    let monitor = layer.monitor();
    let stage = stage.clone();
    let visit = move |method: Method| async move { stage.visit(method.as_str()).await };
    let app = Router::new().route("/orders/{id}", get(visit.clone()).post(visit)).route_layer(layer);
    (Server::start(app).await, monitor)
}

fn order(provider: impl LockProvider) -> LockLayer<ParamKey> {
    LockLayer::new(provider, ParamKey::typed::<u64>("order", "id").unwrap())
}

over_both!(
    c26_readers_are_served_together_and_a_writer_alone,
    c26_readers_of_two_replicas_are_served_together,
    safe_methods_need_the_lock_unless_only_if_says_otherwise,
    a_mode_is_chosen_for_each_request,
    a_reader_holds_its_lock_until_its_body_has_ended,
    a_reader_that_disconnects_while_waiting_leaves_no_waiter,
    a_reader_that_disconnects_while_it_is_served_makes_way,
    c30_a_mode_that_the_provider_does_not_have_is_500,
);

/// Sends a request on a connection of its own.
async fn send(server: &Server, protocol: Protocol, method: Method) -> Client {
    let client = server.client(protocol).await;
    client.spawn(request(method, "/orders/4711"));
    client
}

async fn c26_readers_are_served_together_and_a_writer_alone(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = order(MemoryProvider::new()).shared_for_safe_methods();
    let (server, monitor) = orders(&stage, layer).await;
    let mut clients = Vec::new();
    for readers in 1..=3 {
        clients.push(send(&server, protocol, Method::GET).await);
        events.entered("GET").await;
        assert_eq!((stage.inside(), monitor.held()), (readers, readers as u64));
    }
    clients.push(send(&server, protocol, Method::POST).await);
    until("the writer waits", || monitor.waiting() == 1).await;
    // Readers behind a writer wait for it (C28).
    for waiting in [2, 3] {
        clients.push(send(&server, protocol, Method::GET).await);
        until("it waits", || monitor.waiting() == waiting).await;
    }
    events.nothing();
    stage.let_go(3);
    for _ in 0..3 {
        events.finished("GET").await;
    }
    events.entered("POST").await;
    assert_eq!((stage.inside(), monitor.held(), monitor.waiting()), (1, 1, 2));
    events.nothing();
    stage.let_go(1);
    events.finished("POST").await;
    events.entered("GET").await;
    events.entered("GET").await;
    assert_eq!(stage.inside(), 2, "the readers behind the writer are served together");
    stage.let_go(2);
    soon("idle", monitor.idle()).await;
}

async fn c26_readers_of_two_replicas_are_served_together(protocol: Protocol) {
    let (store, (stage, mut events)) = (MemoryStore::new(), Stage::new());
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let layer = order(store.provider()).shared_for_safe_methods();
        replicas.push(orders(&stage, layer).await);
    }
    let mut clients = Vec::new();
    for (server, _) in &replicas {
        for _ in 0..2 {
            clients.push(send(server, protocol, Method::GET).await);
            events.entered("GET").await;
        }
    }
    assert_eq!(stage.inside(), 4);
    clients.push(send(&replicas[0].0, protocol, Method::POST).await);
    until("the writer waits", || replicas[0].1.waiting() == 1).await;
    events.nothing();
    stage.let_go(4);
    for _ in 0..4 {
        events.finished("GET").await;
    }
    events.entered("POST").await;
    assert_eq!(stage.inside(), 1);
    stage.let_go(1);
    for (_, monitor) in &replicas {
        soon("idle", monitor.idle()).await;
    }
}

async fn safe_methods_need_the_lock_unless_only_if_says_otherwise(protocol: Protocol) {
    let shared = |provider| order(provider).shared_for_safe_methods();
    let posts = |parts: &http::request::Parts| parts.method == Method::POST;
    for (layer, waits) in [(shared(MemoryProvider::new()), true), (shared(MemoryProvider::new()).only_if(posts), false)]
    {
        let (stage, mut events) = Stage::new();
        let (server, monitor) = orders(&stage, layer).await;
        let _writer = send(&server, protocol, Method::POST).await;
        events.entered("POST").await;
        let _reader = send(&server, protocol, Method::GET).await;
        if waits {
            until("it waits", || monitor.waiting() == 1).await;
            events.nothing();
        } else {
            events.entered("GET").await;
        }
    }
}

async fn a_mode_is_chosen_for_each_request(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = order(MemoryProvider::new())
        .mode(|parts| if parts.headers.contains_key("x-reads") { Mode::Shared } else { Mode::Exclusive });
    let (server, monitor) = orders(&stage, layer).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let client = server.client(protocol).await;
        let mut reading = request(Method::POST, "/orders/4711");
        reading.headers_mut().insert("x-reads", "1".parse().unwrap());
        client.spawn(reading);
        clients.push(client);
        events.entered("POST").await;
    }
    clients.push(send(&server, protocol, Method::GET).await);
    until("it waits", || monitor.waiting() == 1).await;
    stage.let_go(2);
    events.finished("POST").await;
    events.finished("POST").await;
    events.entered("GET").await;
}

/// Streams are readers, all other requests writers.
fn streams_share(parts: &http::request::Parts) -> Mode {
    if parts.uri.path().starts_with("/stream") { Mode::Shared } else { Mode::Exclusive }
}

async fn a_reader_holds_its_lock_until_its_body_has_ended(protocol: Protocol) {
    let mut play = play(|provider, app| {
        let layer = one_key(provider).mode(streams_share);
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await;
    let [first, second, writer] =
        [play.server.client(protocol).await, play.server.client(protocol).await, play.server.client(protocol).await];
    let bodies = [
        first.spawn_post("/stream/first").await.unwrap().unwrap(),
        second.spawn_post("/stream/second").await.unwrap().unwrap(),
    ];
    play.events.entered("first").await;
    play.events.entered("second").await;
    let writing = writer.spawn_post("/visit/writer");
    until("it waits", || play.monitor.waiting() == 1).await;
    assert_eq!(play.monitor.held(), 2);
    play.stage.let_go(1);
    play.events.finished("first").await;
    until("one is released", || play.monitor.held() == 1).await;
    play.events.nothing();
    play.stage.let_go(2);
    play.events.finished("second").await;
    play.events.entered("writer").await;
    assert_eq!(writing.await.unwrap().unwrap().status(), 200);
    for body in bodies {
        assert_eq!(soon("the end", body.collect()).await.unwrap().to_bytes(), "begin end");
    }
    play.assert_nothing_left().await;
}

async fn a_reader_that_disconnects_while_waiting_leaves_no_waiter(protocol: Protocol) {
    let mut play = play(|provider, app| {
        let layer = one_key(provider).mode(streams_share);
        let monitor = layer.monitor();
        (app.route_layer(layer), monitor)
    })
    .await;
    let [writer, leaver, stayer] =
        [play.server.client(protocol).await, play.server.client(protocol).await, play.server.client(protocol).await];
    let writing = writer.spawn_post("/visit/writer");
    play.events.entered("writer").await;
    let _left = leaver.spawn_post("/stream/left");
    until("it waits", || play.monitor.waiting() == 1).await;
    let reading = stayer.spawn_post("/stream/stayed");
    until("it waits", || play.monitor.waiting() == 2).await;
    leaver.disconnect();
    until("the waiter is gone", || play.monitor.waiting() == 1).await;
    play.stage.let_go(2);
    assert_eq!(writing.await.unwrap().unwrap().status(), 200);
    play.events.finished("writer").await;
    play.events.entered("stayed").await;
    let body = reading.await.unwrap().unwrap();
    assert_eq!(soon("the end", body.collect()).await.unwrap().to_bytes(), "begin end");
    play.assert_nothing_left().await;
}

async fn a_reader_that_disconnects_while_it_is_served_makes_way(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = order(MemoryProvider::new()).shared_for_safe_methods();
    let (server, monitor) = orders(&stage, layer).await;
    let mut readers = Vec::new();
    for _ in 0..2 {
        readers.push(send(&server, protocol, Method::GET).await);
        events.entered("GET").await;
    }
    let _writer = send(&server, protocol, Method::POST).await;
    until("it waits", || monitor.waiting() == 1).await;
    readers.pop().unwrap().disconnect();
    events.dropped("GET").await;
    until("one is released", || monitor.held() == 1).await;
    events.nothing();
    readers.pop().unwrap().disconnect();
    events.dropped("GET").await;
    events.entered("POST").await;
    stage.let_go(1);
    soon("idle", monitor.idle()).await;
}

async fn c30_a_mode_that_the_provider_does_not_have_is_500(protocol: Protocol) {
    let provider = WithoutModes(MemoryProvider::new());
    let text = panic_of(|| order(provider.clone()).shared_for_safe_methods());
    assert!(text.contains("WithoutModes does not support shared locks"), "{text}");

    let (stage, mut events) = Stage::new();
    let (server, monitor) = orders(&stage, order(provider).mode(|_| Mode::Shared)).await;
    let client = server.client(protocol).await;
    client.post("/orders/4711").await.assert_problem(500, "misconfigured", false);
    assert_eq!(monitor.refused(Reason::Misconfigured), 1);
    events.nothing();
}

/// A job for one key: a reader or a writer.
struct Job {
    reads: bool,
}

#[tokio::test(start_paused = true)]
async fn c26_services_without_http_have_modes() {
    let key = |_: &Job| LockKey::new("report").map(Some);
    let mode = |job: &Job| if job.reads { Mode::Shared } else { Mode::Exclusive };
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let service = KeyedLockLayer::new(MemoryProvider::new(), key).mode(mode).layer(service_fn({
        let (inside, most) = (inside.clone(), most.clone());
        move |job: Job| {
            let (inside, most) = (inside.clone(), most.clone());
            async move {
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert!(job.reads || others == 0, "a writer beside others");
                most.fetch_max(others + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, LockError>(())
            }
        }
    }));
    let jobs = [true, true, true, false, true, true].map(|reads| service.clone().oneshot(Job { reads }));
    let started = tokio::time::Instant::now();
    for done in join_all(jobs).await {
        done.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
    assert_eq!(started.elapsed().as_secs(), 3, "readers, the writer, readers");

    let refusing = KeyedLockLayer::new(WithoutModes(MemoryProvider::new()), key).mode(mode);
    let service = refusing.layer(service_fn(|_: Job| async { Ok::<_, LockError>(()) }));
    let refused = service.oneshot(Job { reads: true }).await;
    assert!(matches!(refused, Err(KeyedLockError::Refused(refusal)) if refusal.reason() == Reason::Misconfigured));
}

#[tokio::test(start_paused = true)]
async fn the_mode_of_several_keys_is_that_of_each() {
    use crate::timed::{ms, post, secs, status, working};
    let locks = MemoryProvider::new();
    let both = |_: &mut http::request::Parts| Ok::<_, LockError>(Some([LockKey::new("a")?, LockKey::new("b")?]));
    let readers = LockLayer::new(locks.clone(), both).mode(|_| Mode::Shared).layer(working(secs(1)));
    let writer = LockLayer::new(locks.clone(), FixedKey::new("b").unwrap()).layer(working(ms(1)));
    let started = tokio::time::Instant::now();
    let reading =
        [tokio::spawn(status(readers.clone().oneshot(post()))), tokio::spawn(status(readers.oneshot(post())))];
    tokio::task::yield_now().await;
    assert_eq!(status(writer.oneshot(post())).await.0, 200);
    for reading in reading {
        assert_eq!(reading.await.unwrap().0, 200);
    }
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (1, 0));
}
