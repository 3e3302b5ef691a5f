//! Over real TCP: what a client can take from the others with the settings that a layer has by
//! default, and what it can learn of them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use distlock_memory::MemoryOnce;
use distlock_recipes::idempotency::{AfterAnswer, IdempotencyLayer, Reason};
use http_body_util::Full;
use hyper::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::common::{Answer, Client, Protocol, Server, Stage, request as plain, soon, until};
use crate::over_tcp::{Play, is_replay, new_once, per_user, play, post_with, request, send};

over_both!(
    handlers_whose_clients_have_gone_are_bounded,
    one_client_gets_a_share,
    a_peer_is_a_client,
    a_limit_outside_does_not_see_handlers_whose_clients_have_gone,
    replays_are_as_safe_as_first_answers,
    another_host_or_content_type_is_another_request,
    a_form_that_is_sent_again_is_the_same_request,
    the_first_result_is_kept_by_choice,
);

/// Sends a request, and goes away when its handler has begun.
async fn hit_and_run(play: &mut Play, protocol: Protocol, key: &str) {
    let client = play.server.client(protocol).await;
    let left = client.spawn(request(Method::POST, "/visit/a", Some(key), "x"));
    play.events.entered("a").await;
    left.abort();
    client.disconnect();
}

async fn handlers_whose_clients_have_gone_are_bounded(protocol: Protocol) {
    let mut play = play(IdempotencyLayer::for_everyone(MemoryOnce::new())).await;
    for number in 0..256 {
        hit_and_run(&mut play, protocol, &format!("k-{number}")).await;
    }
    let client = play.server.client(protocol).await;
    post_with(&client, "/visit/a", "k-256", "x").await.assert_problem(503, "full", true);
    assert_eq!((play.stage.inside(), play.monitor.running(), play.monitor.refused(Reason::Full)), (256, 256, 1));
    play.stage.let_go(257);
    soon("idle", play.monitor.idle()).await;
    assert_eq!(post_with(&client, "/visit/a", "k-256", "x").await.status, 201);
}

async fn one_client_gets_a_share(protocol: Protocol) {
    let mut play = play(per_user(&MemoryOnce::new())).await;
    for number in 0..64 {
        hit_and_run(&mut play, protocol, &format!("k-{number}")).await;
    }
    let client = play.server.client(protocol).await;
    post_with(&client, "/visit/a", "k-64", "x").await.assert_problem(429, "client-limit", true);
    play.stage.let_go(66);
    let mut other = request(Method::POST, "/visit/a", Some("k"), "x");
    other.headers_mut().insert("x-user", "bob".parse().unwrap());
    assert_eq!(send(&client, other).await.status, 201);
    soon("idle", play.monitor.idle()).await;
    assert_eq!(post_with(&client, "/visit/a", "k-64", "x").await.status, 201);
}

async fn a_peer_is_a_client(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).max_requests_per_client(1);
    let visiting = stage.clone();
    let visit = post(move || async move { visiting.visit("a").await });
    let server = Server::start_with_peers(Router::new().route("/", visit).route_layer(layer)).await;
    let [first, second] = [server.client(protocol).await, server.client(protocol).await];
    let with_key = |key| {
        let mut request = plain(Method::POST, "/");
        request.headers_mut().insert("idempotency-key", key);
        request
    };
    let running = first.spawn(with_key("a".parse().unwrap()));
    events.entered("a").await;
    send(&second, with_key("b".parse().unwrap())).await.assert_problem(429, "client-limit", true);
    stage.let_go(1);
    assert_eq!(soon("an answer", running).await.unwrap().unwrap().status(), 200);
}

/// The permit of a limit outside falls with the future of the request, and the handler goes on.
async fn a_limit_outside_does_not_see_handlers_whose_clients_have_gone(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).max_requests(3);
    let visiting = stage.clone();
    let visit = post(move || async move { visiting.visit("a").await });
    let app = Router::new().route("/", visit).route_layer(layer).route_layer(GlobalConcurrencyLimitLayer::new(1));
    let server = Server::start(app).await;
    let hit = |client: &Client, key: &str| {
        let mut request = plain(Method::POST, "/");
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        client.spawn(request)
    };
    for key in ["a", "b", "c"] {
        let client = server.client(protocol).await;
        let left = hit(&client, key);
        events.entered("a").await;
        left.abort();
        client.disconnect();
    }
    assert_eq!(stage.inside(), 3, "in spite of the limit outside");
    let client = server.client(protocol).await;
    let refused = soon("an answer", hit(&client, "d")).await.unwrap().unwrap();
    Answer::read(refused).await.assert_problem(503, "full", true);
}

/// Uploads that lack their last byte.
#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let layer = per_user(&MemoryOnce::new()).read_timeout(Duration::from_millis(200)).max_requests(2);
    let play = play(layer).await;
    play.stage.let_go(1);
    let mut uploads = Vec::new();
    for key in ["a", "b"] {
        let mut io = TcpStream::connect(play.server.address()).await.unwrap();
        let head = format!("POST /tenant/1/visit/a HTTP/1.1\r\nhost: localhost\r\nx-user: {key}\r\n");
        let rest = format!("idempotency-key: {key}\r\ncontent-length: 10\r\n\r\n123456789");
        io.write_all((head + &rest).as_bytes()).await.unwrap();
        uploads.push(io);
    }
    for mut io in uploads {
        let mut answer = Vec::new();
        while !String::from_utf8_lossy(&answer).contains("body-too-slow") {
            let read = soon("the answer", io.read_buf(&mut answer)).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        }
        assert!(answer.starts_with(b"HTTP/1.1 408 "));
    }
    let client = play.server.client(Protocol::Http1).await;
    assert_eq!(post_with(&client, "/visit/a", "c", "x").await.status, 201);
    assert_eq!(play.monitor.refused(Reason::BodyTooSlow), 2);
}

const SAFE: [(&str, &str); 5] = [
    ("content-security-policy", "default-src 'none'"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("vary", "accept"),
    ("www-authenticate", "Basic"),
];

async fn replays_are_as_safe_as_first_answers(protocol: Protocol) {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).keep(Duration::from_secs(3600));
    let answer = || async { (SAFE, "<script>alert(1)</script>") };
    let server = Server::start(Router::new().route("/", post(answer)).route_layer(layer)).await;
    let client = server.client(protocol).await;
    for replayed in [false, true] {
        let mut request = plain(Method::POST, "/");
        request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
        let answer = send(&client, request).await;
        assert_eq!(is_replay(&answer), replayed);
        for (name, value) in SAFE {
            assert_eq!(answer.header(name), Some(value));
        }
        assert_eq!(answer.header("idempotency-keep"), Some("3600"), "the client is told");
    }
}

async fn another_host_or_content_type_is_another_request(protocol: Protocol) {
    let play = play(per_user(&new_once().0)).await;
    play.stage.let_go(10);
    let client = play.server.client(protocol).await;
    let sent = |host: &str, kind: &'static str| {
        let mut request = request(Method::POST, "/visit/a", Some("k"), "{}");
        *request.uri_mut() = format!("http://{host}/tenant/1/visit/a").parse().unwrap();
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        request
    };
    assert_eq!(send(&client, sent("one.example", "application/json")).await.status, 201);
    for other in [sent("two.example", "application/json"), sent("one.example", "text/plain")] {
        send(&client, other).await.assert_problem(422, "idempotency-key-reused", false);
    }
    assert!(is_replay(&send(&client, sent("one.example:80", "application/json")).await));
    assert_eq!(play.calls.load(Ordering::SeqCst), 1);
}

/// A client chooses another boundary for each try.
async fn a_form_that_is_sent_again_is_the_same_request(protocol: Protocol) {
    let play = play(per_user(&new_once().0)).await;
    play.stage.let_go(10);
    let client = play.server.client(protocol).await;
    let form = |boundary: &str, value: &str| {
        let body =
            format!("--{boundary}\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n");
        let mut request: Request<Full<_>> = request(Method::POST, "/visit/a", Some("k"), "").map(|_| Full::from(body));
        let kind = format!("multipart/form-data; boundary={boundary}");
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        request
    };
    assert_eq!(send(&client, form("first", "5 EUR")).await.status, 201);
    assert!(is_replay(&send(&client, form("second", "5 EUR")).await));
    send(&client, form("third", "6 EUR")).await.assert_problem(422, "idempotency-key-reused", false);
}

async fn the_first_result_is_kept_by_choice(protocol: Protocol) {
    let play = play(per_user(&new_once().0).after_answer(AfterAnswer::first_result)).await;
    let client = play.server.client(protocol).await;
    for (status, kept) in [(500, true), (402, true), (200, true), (400, false), (422, false), (429, false)] {
        let path = format!("/status/{status}");
        let key = format!("k-{status}");
        assert_eq!(post_with(&client, &path, &key, "").await.status, status);
        let second = post_with(&client, &path, &key, "").await;
        assert_eq!((second.status.as_u16(), is_replay(&second)), (status, kept));
    }
    assert_eq!(play.calls.load(Ordering::SeqCst), 9);
    until("nothing runs", || play.monitor.running() == 0).await;
}
