//! Over real TCP: what one client can keep from the others with the settings that a layer has by
//! default.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use bytes::Bytes;
use distlock_api::{
    AcquireOptions, Acquired, Instrumented, LockAdmin, LockError, LockKey, LockProvider, LockProviderExt, Mode,
    Namespaced, delegate_provider,
};
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::http::ReadAheadLayer;
use distlock_tower::{HeldLock, LockLayer, Monitor, PermitLayer, Reason};
use futures_util::stream;
use http::request::Parts;
use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::{Layer, ServiceExt};

use crate::common::{Answer, Client, Events, Protocol, Server, Stage, request, soon, until};
use crate::timed::{key, post as post_request, secs, status, working};

over_both!(
    free_keys_are_served_while_all_waiting_places_are_taken,
    one_client_gets_a_share,
    one_client_leaves_room_in_the_queue_of_a_key,
    a_peer_is_a_client,
    slow_clients_close_a_key_for_a_bounded_time,
    an_answer_that_is_not_read_closes_a_key_for_a_bounded_time,
    detached_handlers_whose_clients_have_gone_are_bounded,
    preflights_never_wait,
    a_request_never_waits_for_itself,
    a_lock_is_recognized_through_wrappers_and_other_providers,
    locks_of_other_stores_are_no_mistake,
    a_lock_that_is_not_recognized_is_waited_for_no_longer_than_others,
    a_handler_that_acquires_its_own_lock_waits_for_itself,
);

/// A router with layers.
type Stack<'a> = Box<dyn Fn(Router) -> Router + 'a>;

fn path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    LockKey::new(parts.uri.path()).map(Some)
}

/// Handlers enter the stage with their path.
async fn serve<L>(layer: L) -> (Server, Stage, Events)
where
    L: Fn(Router) -> Router,
{
    let (stage, events) = Stage::new();
    let visiting = stage.clone();
    let visit = move |Path(id): Path<String>| async move { visiting.visit(id).await };
    (Server::start(layer(Router::new().route("/{id}", post(visit)))).await, stage, events)
}

/// The attack: each of the keys is held, and as many requests wait for each as may. With HTTP/1
/// each takes a connection, so there it is a small one.
async fn take_all_places(server: &Server, monitor: &Monitor, events: &mut Events, protocol: Protocol) -> Vec<Client> {
    let (keys, waiters) = if protocol == Protocol::Http1 { (4, 8) } else { (16, 64) };
    let mut clients = Vec::new();
    let mut sent = 0;
    for round in 0..=waiters {
        for key in 0..keys {
            // A server lets an HTTP/2 client have 200 requests at once.
            if protocol == Protocol::Http1 || sent % 150 == 0 {
                clients.push(server.client(protocol).await);
            }
            sent += 1;
            clients.last().unwrap().spawn_post(&format!("/held-{key}"));
            if round == 0 {
                events.entered(&format!("held-{key}")).await;
            }
        }
    }
    until("all places are taken", || monitor.waiting() == keys * waiters).await;
    clients
}

/// A key that no request waits for is served, whether or not another request holds it. Each key may
/// have a fair share of the places.
async fn free_keys_are_served_while_all_waiting_places_are_taken(protocol: Protocol) {
    let providers: [Arc<dyn LockProvider>; 2] =
        [Arc::new(MemoryProvider::new()), Arc::new(MemoryStore::new().provider())];
    for provider in providers {
        let layer = LockLayer::new(provider, path).wait_up_to(secs(600));
        let layer = if protocol == Protocol::Http1 { layer.max_waiters_per_key(8).max_waiters(32) } else { layer };
        let monitor = layer.monitor();
        let (server, stage, mut events) = serve(|app| app.route_layer(layer.clone())).await;
        let attackers = take_all_places(&server, &monitor, &mut events, protocol).await;
        let taken = monitor.waiting();
        let [holder, waiter, other] =
            [server.client(protocol).await, server.client(protocol).await, server.client(protocol).await];
        let holding = holder.spawn_post("/free");
        events.entered("free").await;
        let waiting = waiter.spawn_post("/free");
        until("the first waiter of a key is let in", || monitor.waiting() == taken + 1).await;
        other.post("/held-3").await.assert_problem(503, "full", true);
        assert_eq!(monitor.refused(Reason::Full), 1);
        drop(attackers);
        until("the attackers are gone", || (monitor.waiting(), monitor.held()) == (1, 1)).await;
        stage.let_go(2);
        for answer in [holding, waiting] {
            assert_eq!(soon("an answer", answer).await.unwrap().unwrap().status(), 200);
        }
    }
}

async fn one_client_gets_a_share(protocol: Protocol) {
    let name = |parts: &Parts| Some(parts.headers.get("x-client")?.to_str().ok()?.to_owned());
    let layer = LockLayer::new(MemoryProvider::new(), path).client(name).max_requests_per_client(3);
    let monitor = layer.monitor();
    let (server, stage, mut events) = serve(|app| app.route_layer(layer.clone())).await;
    let of = |client: &str, path: &str| {
        let mut request = request(Method::POST, path);
        request.headers_mut().insert("x-client", client.parse().unwrap());
        request
    };
    let clients = [(); 4].map(|()| server.client(protocol));
    let [first, second, third, other] = join(clients).await;
    let holding = [first.spawn(of("a", "/1")), second.spawn(of("a", "/2"))];
    for _ in &holding {
        events.next().await;
    }
    let waiting = third.spawn(of("a", "/1"));
    until("it waits", || monitor.waiting() == 1).await;
    let refused = Answer::read(other.send(of("a", "/3")).await.unwrap()).await;
    refused.assert_problem(429, "client-limit", true);
    assert_eq!(monitor.refused(Reason::ClientLimit), 1);
    stage.let_go(7);
    assert_eq!(other.send(of("b", "/3")).await.unwrap().status(), 200);
    for answer in holding.into_iter().chain([waiting]) {
        assert_eq!(read(answer).await.status, 200);
    }
    soon("idle", monitor.idle()).await;
    for number in 0..3 {
        assert_eq!(Answer::read(other.send(of("a", &format!("/{number}"))).await.unwrap()).await.status, 200);
    }
}

/// The share of a client is greater than what may wait for one key.
async fn one_client_leaves_room_in_the_queue_of_a_key(protocol: Protocol) {
    let name = |parts: &Parts| Some(parts.headers.get("x-client")?.to_str().ok()?.to_owned());
    let layer = LockLayer::new(MemoryProvider::new(), path).client(name).wait_up_to(secs(600));
    let monitor = layer.monitor();
    let (server, stage, mut events) = serve(|app| app.route_layer(layer.clone())).await;
    let of = |client: &str| {
        let mut request = request(Method::POST, "/x");
        request.headers_mut().insert("x-client", client.parse().unwrap());
        request
    };
    let [flooding, asking] = join([server.client(Protocol::Http2), server.client(Protocol::Http2)]).await;
    let mut flood = vec![flooding.spawn(of("a"))];
    events.entered("x").await;
    flood.extend((0..80).map(|_| flooding.spawn(of("a"))));
    until("its share is taken", || monitor.refused(Reason::Full) + monitor.waiting() as u64 == 80).await;
    let taken = monitor.waiting();
    let other = server.client(protocol).await;
    let waiting = other.spawn(of("b"));
    until("another client is let in", || monitor.waiting() == taken + 1 || waiting.is_finished()).await;
    Answer::read(asking.send(of("a")).await.unwrap()).await.assert_problem(503, "full", true);
    stage.let_go(taken + 2);
    assert_eq!(read(waiting).await.status, 200);
    assert_eq!(taken, 48);
    for answer in flood {
        read(answer).await;
    }
}

async fn join<const N: usize>(clients: [impl Future<Output = Client>; N]) -> [Client; N] {
    let clients: Vec<_> = futures_util::future::join_all(clients).await;
    clients.try_into().ok().unwrap()
}

async fn a_peer_is_a_client(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = LockLayer::new(MemoryProvider::new(), path).max_requests_per_client(1);
    let visiting = stage.clone();
    let visit = post(move |Path(id): Path<String>| async move { visiting.visit(id).await });
    let server = Server::start_with_peers(Router::new().route("/{id}", visit).route_layer(layer)).await;
    let [first, second] = join([(); 2].map(|()| server.client(protocol))).await;
    let holding = first.spawn_post("/1");
    events.entered("1").await;
    second.post("/2").await.assert_problem(429, "client-limit", true);
    stage.let_go(1);
    assert_eq!(read(holding).await.status, 200);
}

/// Sends the head of a request, and less of its body than it declares.
async fn upload(server: &Server, path: &str, head: &str, body: &[u8]) -> TcpStream {
    let mut io = TcpStream::connect(server.address()).await.unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: 100000\r\n\r\n");
    io.write_all(head.as_bytes()).await.unwrap();
    io.write_all(body).await.unwrap();
    io
}

const SHORT: Duration = Duration::from_millis(300);

/// One slow body, an expectation that is not used, four slow bodies where four permits are, a body
/// that is longer than what is read ahead. All clients stay connected.
async fn slow_clients_close_a_key_for_a_bounded_time(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let lock = || LockLayer::new(locks.clone(), path).max_hold(SHORT).wait_up_to(secs(600));
    let [one, expecting, ahead] = [lock(), lock(), lock()];
    let permits = PermitLayer::new(locks.clone(), path, 4).max_hold(SHORT).wait_up_to(secs(600));
    let stacks: [(u64, &str, Monitor, Stack<'_>); 4] = [
        (1, "", one.monitor(), Box::new(|app| app.route_layer(one.clone()))),
        (1, "expect: 100-continue\r\n", expecting.monitor(), Box::new(|app| app.route_layer(expecting.clone()))),
        (4, "", permits.monitor(), Box::new(|app| app.route_layer(permits.clone()))),
        (1, "", ahead.monitor(), Box::new(|app| app.route_layer(ahead.clone()).route_layer(ReadAheadLayer::new(1)))),
    ];
    for (clients, head, monitor, stack) in stacks {
        let reading = post(|body: String| async move { body });
        let server = Server::start(stack(Router::new().route("/{id}", reading))).await;
        let mut slow = Vec::new();
        for held in 1..=clients {
            let body: &[u8] = if head.is_empty() { b"1" } else { b"" };
            slow.push(upload(&server, "/key", head, body).await);
            until("it holds", || monitor.granted() == held).await;
        }
        let other = server.client(protocol).await;
        assert_eq!(soon("the key is free again", other.post("/key")).await.status, 200);
        for mut io in slow {
            let mut answer = Vec::new();
            while !String::from_utf8_lossy(&answer).contains("held-too-long") {
                let read = soon("the answer", io.read_buf(&mut answer)).await.unwrap();
                assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            }
        }
        until("all is released", || locks.keys_in_use() == 0).await;
    }
}

async fn an_answer_that_is_not_read_closes_a_key_for_a_bounded_time(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let layer = LockLayer::new(locks.clone(), path).max_hold(SHORT).wait_up_to(secs(600));
    let chunk = Bytes::from(vec![b'x'; 1 << 20]);
    let flood = move || {
        let chunk = chunk.clone();
        async { Body::from_stream(stream::iter(std::iter::repeat_n(Ok::<_, Infallible>(chunk), 64))) }
    };
    let app = Router::new().route("/key", post(flood).put(|| async {})).route_layer(layer);
    let server = Server::start(app).await;
    let [unread, other] = join([(); 2].map(|()| server.client(protocol))).await;
    let response = unread.send(request(Method::POST, "/key")).await.unwrap();
    assert_eq!((response.status(), locks.keys_in_use()), (StatusCode::OK, 1));
    let answer = soon("the key is free again", other.send(request(Method::PUT, "/key"))).await.unwrap();
    assert_eq!(answer.status(), 200);
    // Its reader cannot take the part for the whole.
    assert!(soon("the end of the body", response.into_body().collect()).await.is_err());
}

/// A handler that goes on without its client counts until it has ended.
async fn detached_handlers_whose_clients_have_gone_are_bounded(protocol: Protocol) {
    for (layer, limit) in [
        (LockLayer::new(MemoryProvider::new(), path).detach(), 1024),
        (LockLayer::new(MemoryStore::new().provider(), path).detach().max_held(10), 10),
    ] {
        let monitor = layer.monitor();
        let (server, stage, mut events) = serve(|app| app.route_layer(layer.clone())).await;
        for number in 0..limit {
            let client = server.client(protocol).await;
            let left = client.spawn_post(&format!("/{number}"));
            events.entered(&number.to_string()).await;
            left.abort();
            client.disconnect();
        }
        let other = server.client(protocol).await;
        other.post("/other").await.assert_problem(503, "full", true);
        assert_eq!((stage.inside(), monitor.refused(Reason::Full)), (limit, 1));
        stage.let_go(limit + 1);
        soon("idle", monitor.idle()).await;
        assert_eq!(other.post("/other").await.status, 200);
    }
}

/// No answer depends on the lock: a browser asks before it sends the request.
async fn preflights_never_wait(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let key = || |_: &mut Parts| LockKey::new("key").map(Some);
    let layers: [Stack<'_>; 4] = [
        Box::new(|app| app.route_layer(LockLayer::new(locks.clone(), key()).only_if(|_| true).fail_fast())),
        Box::new(|app| app.route_layer(LockLayer::new(locks.clone(), key()).shared_for_safe_methods().fail_fast())),
        Box::new(|app| app.route_layer(LockLayer::new(locks.clone(), key()).mode(|_| Mode::Exclusive).fail_fast())),
        Box::new(|app| app.route_layer(PermitLayer::new(locks.clone(), key(), 1).fail_fast())),
    ];
    for layer in layers {
        let (server, stage, mut events) = serve(|app| layer(app.route("/any", axum::routing::any(|| async {})))).await;
        let [holder, other] = [server.client(protocol).await, server.client(protocol).await];
        let holding = holder.spawn_post("/x");
        events.entered("x").await;
        let mut preflight = request(Method::OPTIONS, "/any");
        preflight.headers_mut().insert("origin", "http://a.example".parse().unwrap());
        preflight.headers_mut().insert("access-control-request-method", "POST".parse().unwrap());
        assert_eq!(other.send(preflight).await.unwrap().status(), StatusCode::OK);
        stage.let_go(1);
        let answer = soon("an answer", holding).await.unwrap().unwrap();
        answer.into_body().collect().await.unwrap();
    }
}

/// Two layers of one request with the same key would wait for each other. That is a mistake of the
/// server: it is answered at once, and another try is not suggested.
async fn a_request_never_waits_for_itself(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let lock = |class: &'static str| LockLayer::new(locks.clone(), path).class(class).wait_up_to(secs(600));
    let other = || LockLayer::new(locks.clone(), |_: &mut Parts| LockKey::new("other").map(Some));
    let permit = || PermitLayer::new(locks.clone(), path, 1).wait_up_to(secs(600));
    let stacks: [Stack<'_>; 7] = [
        Box::new(|app| app.route_layer(lock("inner")).route_layer(lock("outer"))),
        Box::new(|app| app.route_layer(lock("inner")).route_layer(other()).route_layer(lock("outer"))),
        Box::new(|app| app.route_layer(permit()).route_layer(lock("outer"))),
        Box::new(|app| app.route_layer(lock("inner")).route_layer(permit())),
        Box::new(|app| app.route_layer(permit()).route_layer(permit()).route_layer(other())),
        Box::new(|app| app.route_layer(lock("inner")).route_layer(lock("outer").mode(|_| Mode::Shared))),
        Box::new(|app| app.route_layer(lock("inner").fail_fast()).route_layer(lock("outer"))),
    ];
    for stack in stacks {
        let (server, _, mut events) = serve(stack).await;
        let client = server.client(protocol).await;
        client.post("/x").await.assert_problem(500, "misconfigured", false);
        events.nothing();
        until("all is released", || locks.keys_in_use() == 0).await;
    }
    // Permits may be enough for both.
    let two = || PermitLayer::new(locks.clone(), path, 2);
    let (server, stage, _) = serve(|app| app.route_layer(two()).route_layer(two())).await;
    stage.let_go(1);
    assert_eq!(server.client(protocol).await.post("/x").await.status, 200);
}

fn shared(provider: impl LockProvider) -> Arc<dyn LockProvider> {
    Arc::new(provider)
}

/// It is the same lock whatever is in between: clones, wrappers, another provider of the store.
async fn a_lock_is_recognized_through_wrappers_and_other_providers(protocol: Protocol) {
    let (locks, store) = (MemoryProvider::new(), MemoryStore::new());
    let in_a = || Namespaced::new(store.provider(), "a").unwrap();
    let pairs = [
        (shared(locks.clone()), shared(Instrumented::new(locks.clone()).named("locks"))),
        (shared(store.provider()), shared(store.provider())),
        (shared(in_a()), shared(Instrumented::new(in_a()))),
    ];
    for (outer, inner) in pairs {
        for fail_fast in [false, true] {
            let layer = |locks: &Arc<dyn LockProvider>| LockLayer::new(locks.clone(), path).wait_up_to(secs(600));
            let (outer, inner) = (layer(&outer), layer(&inner));
            let inner = if fail_fast { inner.fail_fast() } else { inner };
            let (server, _, mut events) = serve(|app| app.route_layer(inner.clone()).route_layer(outer.clone())).await;
            server.client(protocol).await.post("/x").await.assert_problem(500, "misconfigured", false);
            events.nothing();
        }
    }
}

/// Providers of one name may have different locks, and each waits for the holders of its own.
async fn locks_of_other_stores_are_no_mistake(protocol: Protocol) {
    let (locks, store) = (MemoryProvider::new(), MemoryStore::new());
    let namespace = |name: &str| shared(Namespaced::new(locks.clone(), name).unwrap());
    let pairs = [
        (shared(MemoryProvider::new()), shared(MemoryProvider::new())),
        (shared(MemoryStore::new().provider()), shared(MemoryStore::new().provider())),
        (namespace("a"), namespace("b")),
        (shared(Namespaced::new(store.provider(), "a").unwrap()), shared(store.provider())),
        (shared(WithoutAdmin(MemoryProvider::new())), shared(WithoutAdmin(MemoryProvider::new()))),
    ];
    for (outer, inner) in pairs {
        let held = inner.acquire("/x").await.unwrap();
        let layer = |locks: &Arc<dyn LockProvider>| LockLayer::new(locks.clone(), path).wait_up_to(secs(600));
        let (outer, waiting) = (layer(&outer), layer(&inner));
        let monitor = waiting.monitor();
        let (server, stage, mut events) =
            serve(|app| app.route_layer(waiting.clone()).route_layer(outer.clone())).await;
        let client = server.client(protocol).await;
        let answer = client.spawn_post("/x");
        until("it waits", || monitor.waiting() == 1 || answer.is_finished()).await;
        events.nothing();
        held.release().await.unwrap();
        stage.let_go(1);
        assert_eq!(read(answer).await.status, 200);
        // Without a wait it is refused like any other request.
        let _held = inner.acquire("/x").await.unwrap();
        let refusing = layer(&inner).fail_fast();
        let (server, ..) = serve(|app| app.route_layer(refusing.clone()).route_layer(outer.clone())).await;
        server.client(protocol).await.post("/x").await.assert_problem(409, "busy", true);
    }
}

/// Providers that cannot tell what they hold: the wait has its usual bound. Only clones of one
/// layer are known to have the same locks.
async fn a_lock_that_is_not_recognized_is_waited_for_no_longer_than_others(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let layer = || LockLayer::new(WithoutAdmin(locks.clone()), path).wait_up_to(Duration::from_millis(20));
    let (server, _, mut events) = serve(|app| app.route_layer(layer()).route_layer(layer())).await;
    server.client(protocol).await.post("/x").await.assert_problem(503, "timeout", true);
    let one = layer();
    let (server, ..) = serve(|app| app.route_layer(one.clone()).route_layer(one.clone())).await;
    server.client(protocol).await.post("/x").await.assert_problem(500, "misconfigured", false);
    events.nothing();
}

/// A provider without administration.
#[derive(Debug)]
struct WithoutAdmin(MemoryProvider);

impl fmt::Display for WithoutAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithoutAdmin")
    }
}

#[async_trait]
impl LockProvider for WithoutAdmin {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired, LockError> {
        self.0.acquire_with(key, options).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }

    delegate_provider!(this => this.0; capabilities, accounting, close);
}

/// Nothing recognizes such a handler: the documentation says how its requests end. With a try it
/// learns at once that the lock is held. With the lock that its request carries it need not wait.
async fn a_handler_that_acquires_its_own_lock_waits_for_itself(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let acquire = {
        let locks = locks.clone();
        post(move |held: HeldLock, how: String| async move {
            let acquire = locks.acquire(held.key());
            let granted = match how.as_str() {
                "wait" => acquire.await.map(Some),
                "timeout" => acquire.timeout(Duration::from_millis(20)).await.map(Some),
                "try" => locks.try_acquire(held.key()).await,
                _ => return format!("token {}", held.fencing_token()),
            };
            match granted {
                Ok(Some(_)) => "granted".to_owned(),
                Ok(None) => "busy".to_owned(),
                Err(error) => format!("not granted: {}", error.is_not_granted()),
            }
        })
    };
    let layer = LockLayer::new(locks.clone(), path).max_hold(SHORT);
    let monitor = layer.monitor();
    let server = Server::start(Router::new().route("/key", acquire).route_layer(layer)).await;
    let client = server.client(protocol).await;
    let ask = async |how: &'static str| {
        let request = request(Method::POST, "/key").map(|_| how.into());
        Answer::read(client.send(request).await.unwrap()).await
    };
    for held_too_long in 1..=2 {
        ask("wait").await.assert_problem(503, "held-too-long", true);
        assert_eq!(monitor.refused(Reason::HeldTooLong), held_too_long);
    }
    for (how, answer) in [("timeout", "not granted: true"), ("try", "busy"), ("use", "token ")] {
        let text = ask(how).await.text().to_owned();
        assert!(text.starts_with(answer), "{how}: {text}");
    }
    soon("idle", monitor.idle()).await;
    let accounting = locks.accounting();
    assert_eq!((locks.keys_in_use(), accounting.held, accounting.waiting), (0, 0, 0));
}

/// Without a setting, a hold ends after a minute: in the handler, and in a body that is not read.
#[tokio::test(start_paused = true)]
async fn a_hold_ends_after_a_minute() {
    let locks = MemoryProvider::new();
    let layer = LockLayer::new(locks.clone(), key());
    let started = tokio::time::Instant::now();
    assert_eq!(status(layer.layer(working(secs(3600))).oneshot(post_request())).await.0, 503);
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (60, 0));
    let unread = layer.layer(working(secs(1))).oneshot(post_request()).await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(locks.keys_in_use(), 0, "its body was not read");
    drop(unread);
    let permits = PermitLayer::new(locks.clone(), key(), 4);
    let slow = permits.layer(working(secs(3600)));
    let four = [(); 4].map(|()| tokio::spawn(status(slow.clone().oneshot(post_request()))));
    tokio::time::sleep(secs(58)).await;
    let fifth = permits.layer(working(secs(1))).oneshot(post_request()).await.unwrap();
    assert_eq!(fifth.status(), 200);
    for answer in four {
        assert_eq!(answer.await.unwrap().0, 503);
    }
}

async fn read(answer: tokio::task::JoinHandle<hyper::Result<hyper::Response<hyper::body::Incoming>>>) -> Answer {
    Answer::read(soon("an answer", answer).await.unwrap().unwrap()).await
}
