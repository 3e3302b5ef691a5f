//! Over real TCP: requests with an `Idempotency-Key` are processed once.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use distlock_api::{LockKey, LockProvider};
use distlock_memory::{MemoryOnce, MemoryProvider};
use distlock_recipes::idempotency::{
    AfterAnswer, IdempotencyLayer, IdempotencyMonitor, IdempotentRun, Reason, Refusal,
};
use distlock_recipes::once::{OnceProvider, OnceState};
use futures_util::stream;
use http_body_util::Full;
use hyper::{Method, Request, StatusCode};

use crate::common::{Answer, Client, Events, Protocol, Server, Stage, soon, until};

over_both!(
    duplicates_at_once_are_processed_once_and_answered_alike,
    answers_are_replayed_after_a_restart,
    another_body_path_or_query_is_a_mismatch,
    users_methods_and_routes_have_keys_of_their_own,
    keys_that_are_missing_or_invalid_are_refused,
    other_methods_and_requests_without_a_key_pass,
    a_panic_interrupts_and_is_not_repeated,
    interrupted_requests_run_again_by_choice,
    a_handler_finishes_although_its_client_has_gone,
    a_handler_is_cancelled_by_choice,
    long_and_streaming_answers_count_as_done,
    failures_are_processed_again,
    long_request_bodies_are_refused,
    an_answer_is_not_sent_when_the_lease_was_lost,
);

/// One replica, and what it shares with others.
pub(crate) struct Play {
    pub(crate) server: Server,
    pub(crate) monitor: IdempotencyMonitor,
    pub(crate) stage: Stage,
    pub(crate) events: Events,
    pub(crate) calls: Arc<AtomicUsize>,
}

fn app(stage: &Stage, calls: &Arc<AtomicUsize>) -> Router {
    let visit = {
        let (stage, calls) = (stage.clone(), calls.clone());
        move |Path((_, id)): Path<(String, String)>, body: String| async move {
            let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
            stage.visit(id).await;
            let headers = [("location", "/payments/1"), ("set-cookie", "session=secret"), ("x-other", "1")];
            (StatusCode::CREATED, headers, format!("call {call} with {body}"))
        }
    };
    let count = {
        let calls = calls.clone();
        move || calls.fetch_add(1, Ordering::SeqCst) + 1
    };
    let counted = count.clone();
    let status = move |Path((_, status)): Path<(String, u16)>| async move {
        (StatusCode::from_u16(status).unwrap(), format!("call {}", counted()))
    };
    let counted = count.clone();
    let long = move || async move {
        counted();
        "x".repeat(100_000)
    };
    let counted = count.clone();
    let streaming = move || async move {
        let call = format!("call {}", counted());
        Body::from_stream(stream::iter(["begin and ".to_owned(), call].map(Ok::<_, Infallible>)))
    };
    let counted = count.clone();
    let panicking = move || async move {
        counted();
        if true {
            panic!("in the handler, as planned");
        }
    };
    let counted = count;
    let run = move |run: Option<Extension<IdempotentRun>>| async move {
        let call = counted();
        match run {
            None => (StatusCode::OK, format!("call {call} without a key")),
            Some(Extension(run)) if run.interrupted().is_some() => (StatusCode::OK, format!("call {call} once more")),
            Some(Extension(run)) => {
                assert_eq!(run.client_key(), "k");
                assert!(run.key().as_str().ends_with("/k") && run.fencing_token().get() > 0);
                (StatusCode::INTERNAL_SERVER_ERROR, format!("call {call}"))
            }
        }
    };
    Router::new()
        .route("/visit/{id}", post(visit.clone()).patch(visit))
        .route("/status/{status}", post(status))
        .route("/long", post(long))
        .route("/stream", post(streaming))
        .route("/panic", post(panicking))
        .route("/run", post(run.clone()).put(run.clone()))
        .route("/get", get(run))
}

pub(crate) async fn play(layer: IdempotencyLayer) -> Play {
    let (stage, events) = Stage::new();
    let calls = Arc::default();
    let monitor = layer.monitor();
    // A nested router shows the handlers a part of the path only.
    let app = Router::new().nest("/tenant/{tenant}", app(&stage, &calls).route_layer(layer));
    Play { server: Server::start(app).await, monitor, stage, events, calls }
}

pub(crate) fn per_user(once: &MemoryOnce) -> IdempotencyLayer {
    IdempotencyLayer::new(once.clone(), |parts| {
        let user = parts.headers.get("x-user").and_then(|user| user.to_str().ok());
        user.map(str::to_owned).ok_or_else(|| Refusal::new(Reason::Misconfigured).with_source("no user"))
    })
}

pub(crate) fn new_once() -> (MemoryOnce, MemoryProvider) {
    let locks = MemoryProvider::new();
    (MemoryOnce::with_locks(locks.clone()), locks)
}

pub(crate) fn request(method: Method, path: &str, key: Option<&str>, body: &'static str) -> Request<Full<Bytes>> {
    let mut request = crate::common::request(method, &format!("/tenant/1{path}")).map(|_| Full::from(body));
    request.headers_mut().insert("x-user", "ann".parse().unwrap());
    if let Some(key) = key {
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    }
    request
}

pub(crate) async fn send(client: &Client, request: Request<Full<Bytes>>) -> Answer {
    Answer::read(client.send(request).await.unwrap()).await
}

pub(crate) async fn post_with(client: &Client, path: &str, key: &str, body: &'static str) -> Answer {
    send(client, request(Method::POST, path, Some(key), body)).await
}

pub(crate) fn is_replay(answer: &Answer) -> bool {
    match answer.header("idempotent-replayed") {
        None => false,
        Some(value) => value == "true",
    }
}

async fn duplicates_at_once_are_processed_once_and_answered_alike(protocol: Protocol) {
    const DUPLICATES: u64 = 8;
    let (once, locks) = new_once();
    let mut replicas = [play(per_user(&once)).await, play(per_user(&once)).await];
    let first = replicas[0].server.client(protocol).await;
    let answer = first.spawn(request(Method::POST, "/visit/a", Some("k"), "5 EUR"));
    replicas[0].events.entered("a").await;
    let mut clients = Vec::new();
    let mut duplicates = Vec::new();
    for number in 0..DUPLICATES {
        let client = replicas[usize::from(number % 2 == 1)].server.client(protocol).await;
        duplicates.push(client.spawn(request(Method::POST, "/visit/a", Some("\"k\""), "5 EUR")));
        clients.push(client);
    }
    until("all duplicates wait", || locks.accounting().waiting == DUPLICATES).await;
    replicas[0].stage.let_go(1);
    let answer = Answer::read(answer.await.unwrap().unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.text(), is_replay(&answer)), (201, "call 1 with 5 EUR", false));
    assert_eq!(answer.header("set-cookie"), Some("session=secret"));
    for duplicate in duplicates {
        let replay = Answer::read(soon("a replay", duplicate).await.unwrap().unwrap()).await;
        assert_eq!((replay.status, replay.text(), is_replay(&replay)), (answer.status, answer.text(), true));
        assert_eq!(replay.header("location"), Some("/payments/1"));
        assert_eq!(replay.header("content-type"), answer.header("content-type"));
        assert_eq!((replay.header("set-cookie"), replay.header("x-other")), (None, None));
    }
    let counted = |counter: fn(&IdempotencyMonitor) -> u64| -> u64 {
        replicas.iter().map(|replica| counter(&replica.monitor)).sum()
    };
    assert_eq!(counted(IdempotencyMonitor::begun), 1);
    assert_eq!(counted(IdempotencyMonitor::replayed), DUPLICATES);
    assert_eq!(replicas.iter().map(|replica| replica.calls.load(Ordering::SeqCst)).sum::<usize>(), 1);
}

async fn answers_are_replayed_after_a_restart(protocol: Protocol) {
    let (once, _) = new_once();
    let before = play(per_user(&once)).await;
    before.stage.let_go(1);
    let answer = post_with(&before.server.client(protocol).await, "/visit/a", "k", "x").await;
    drop(before);
    let after = play(per_user(&once)).await;
    let replay = post_with(&after.server.client(protocol).await, "/visit/a", "k", "x").await;
    assert_eq!((replay.status, replay.body.clone(), is_replay(&replay)), (answer.status, answer.body, true));
    assert_eq!(after.calls.load(Ordering::SeqCst), 0);
}

async fn another_body_path_or_query_is_a_mismatch(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    play.stage.let_go(10);
    let client = play.server.client(protocol).await;
    assert_eq!(post_with(&client, "/visit/a", "k", "5 EUR").await.status, 201);
    for (path, body) in [("/visit/a", "6 EUR"), ("/visit/b", "5 EUR"), ("/visit/a?q=1", "5 EUR")] {
        post_with(&client, path, "k", body).await.assert_problem(422, "idempotency-key-reused", false);
    }
    let mut tenant = request(Method::POST, "/visit/a", Some("k"), "5 EUR");
    *tenant.uri_mut() = "http://localhost/tenant/2/visit/a".parse().unwrap();
    send(&client, tenant).await.assert_problem(422, "idempotency-key-reused", false);
    assert_eq!((play.calls.load(Ordering::SeqCst), play.monitor.refused(Reason::KeyReused)), (1, 4));
}

async fn users_methods_and_routes_have_keys_of_their_own(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    play.stage.let_go(10);
    let client = play.server.client(protocol).await;
    let mut other = request(Method::POST, "/visit/a", Some("k"), "x");
    other.headers_mut().insert("x-user", "bob".parse().unwrap());
    let requests = [
        request(Method::POST, "/visit/a", Some("k"), "x"),
        other,
        request(Method::PATCH, "/visit/a", Some("k"), "x"),
        request(Method::POST, "/status/200", Some("k"), "x"),
        request(Method::POST, "/visit/a", Some("K"), "x"),
    ];
    for request in requests {
        let answer = send(&client, request).await;
        assert!(answer.status.is_success() && !is_replay(&answer), "{answer:?}");
    }
    assert_eq!(play.calls.load(Ordering::SeqCst), 5);
}

async fn keys_that_are_missing_or_invalid_are_refused(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once).required()).await;
    let client = play.server.client(protocol).await;
    send(&client, request(Method::POST, "/run", None, "")).await.assert_problem(400, "idempotency-key-missing", false);
    for key in ["a,b", "\"a", "", "a;b=c"] {
        post_with(&client, "/run", key, "").await.assert_problem(400, "idempotency-key-invalid", false);
    }
    let mut anonymous = request(Method::POST, "/run", Some("k"), "");
    anonymous.headers_mut().remove("x-user");
    send(&client, anonymous).await.assert_problem(500, "misconfigured", false);
    assert_eq!(play.calls.load(Ordering::SeqCst), 0);
}

async fn other_methods_and_requests_without_a_key_pass(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    let client = play.server.client(protocol).await;
    for call in 1..=2 {
        let answer = send(&client, request(Method::PUT, "/run", Some("k"), "")).await;
        assert_eq!(answer.text(), format!("call {call} without a key"));
    }
    assert_eq!(send(&client, request(Method::POST, "/run", None, "")).await.text(), "call 3 without a key");
    assert_eq!(send(&client, request(Method::GET, "/get", Some("k"), "")).await.text(), "call 4 without a key");
    assert_eq!(play.monitor.begun(), 0);
}

async fn a_panic_interrupts_and_is_not_repeated(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    let panicking = play.server.client(protocol).await.send(request(Method::POST, "/panic", Some("k"), "")).await;
    assert!(panicking.is_err());
    soon("idle", play.monitor.idle()).await;
    let client = play.server.client(protocol).await;
    post_with(&client, "/panic", "k", "").await.assert_problem(409, "request-interrupted", false);
    assert_eq!(play.calls.load(Ordering::SeqCst), 1);
}

async fn interrupted_requests_run_again_by_choice(protocol: Protocol) {
    let (once, _) = new_once();
    let in_doubt = |status: StatusCode| match status.as_u16() {
        500 => AfterAnswer::InDoubt,
        _ => AfterAnswer::usual(status),
    };
    let again = play(per_user(&once).after_answer(in_doubt).run_interrupted_again()).await;
    let never = play(per_user(&once).after_answer(in_doubt)).await;
    let client = again.server.client(protocol).await;
    assert_eq!(post_with(&client, "/run", "k", "").await.status, 500);
    let cautious = never.server.client(protocol).await;
    post_with(&cautious, "/run", "k", "").await.assert_problem(409, "request-interrupted", false);
    assert_eq!(post_with(&client, "/run", "k", "").await.text(), "call 2 once more");
    assert!(is_replay(&post_with(&cautious, "/run", "k", "").await));
}

async fn a_handler_finishes_although_its_client_has_gone(protocol: Protocol) {
    let (once, _) = new_once();
    let mut play = play(per_user(&once)).await;
    let leaver = play.server.client(protocol).await;
    let left = leaver.spawn(request(Method::POST, "/visit/a", Some("k"), "x"));
    play.events.entered("a").await;
    leaver.disconnect();
    assert!(left.await.unwrap().is_err());
    play.stage.let_go(1);
    play.events.finished("a").await;
    let replay = post_with(&play.server.client(protocol).await, "/visit/a", "k", "x").await;
    assert_eq!((replay.text(), is_replay(&replay)), ("call 1 with x", true));
}

async fn a_handler_is_cancelled_by_choice(protocol: Protocol) {
    let (once, _) = new_once();
    let mut play = play(per_user(&once).cancel_on_disconnect()).await;
    let leaver = play.server.client(protocol).await;
    let left = leaver.spawn(request(Method::POST, "/visit/a", Some("k"), "x"));
    play.events.entered("a").await;
    leaver.disconnect();
    assert!(left.await.unwrap().is_err());
    play.events.dropped("a").await;
    soon("idle", play.monitor.idle()).await;
    let client = play.server.client(protocol).await;
    post_with(&client, "/visit/a", "k", "x").await.assert_problem(409, "request-interrupted", false);
}

async fn long_and_streaming_answers_count_as_done(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    let client = play.server.client(protocol).await;
    let long = post_with(&client, "/long", "k", "").await;
    assert_eq!((long.body.len(), long.header("idempotency-status")), (100_000, Some("not-kept")));
    let streamed = post_with(&client, "/stream", "k", "").await;
    assert_eq!((streamed.text(), streamed.header("idempotency-status")), ("begin and call 2", Some("not-kept")));
    for path in ["/long", "/stream"] {
        post_with(&client, path, "k", "").await.assert_problem(409, "answer-not-kept", false);
    }
    assert_eq!((play.calls.load(Ordering::SeqCst), play.monitor.not_kept()), (2, 2));
}

async fn failures_are_processed_again(protocol: Protocol) {
    let (once, _) = new_once();
    let play = play(per_user(&once)).await;
    let client = play.server.client(protocol).await;
    let mut calls = 0;
    for status in [500, 503, 429, 408, 409, 425] {
        for _ in 0..2 {
            let answer = post_with(&client, &format!("/status/{status}"), "k", "").await;
            calls += 1;
            assert_eq!((answer.status.as_u16(), answer.text()), (status, &*format!("call {calls}")));
            assert!(!is_replay(&answer));
        }
    }
    for status in [200, 303, 404, 422] {
        let path = format!("/status/{status}");
        let first = post_with(&client, &path, &format!("k-{status}"), "").await;
        let second = post_with(&client, &path, &format!("k-{status}"), "").await;
        calls += 1;
        assert_eq!((first.status.as_u16(), first.text()), (status, &*format!("call {calls}")));
        assert_eq!((second.status, second.text()), (first.status, first.text()));
        assert!(is_replay(&second) && !is_replay(&first));
    }
    assert_eq!(play.calls.load(Ordering::SeqCst), calls);
}

async fn long_request_bodies_are_refused(protocol: Protocol) {
    let (once, _) = new_once();
    let refusing = play(per_user(&once).max_request_body(8)).await;
    refusing.stage.let_go(10);
    let client = refusing.server.client(protocol).await;
    assert_eq!(post_with(&client, "/visit/a", "k", "12345678").await.status, 201);
    let answer = post_with(&refusing.server.client(protocol).await, "/visit/a", "k9", "123456789").await;
    answer.assert_problem(413, "body-too-long", false);
    let passing = play(per_user(&once).max_request_body(8).pass_long_requests()).await;
    passing.stage.let_go(10);
    let client = passing.server.client(protocol).await;
    for call in 1..=2 {
        let answer = post_with(&client, "/visit/a", "k9", "123456789").await;
        assert_eq!(answer.text(), format!("call {call} with 123456789"));
        assert_eq!(answer.header("idempotency-status"), Some("not-covered"));
    }
}

async fn an_answer_is_not_sent_when_the_lease_was_lost(protocol: Protocol) {
    let (once, locks) = new_once();
    let mut play = play(per_user(&once)).await;
    let client = play.server.client(protocol).await;
    let answer = client.spawn(request(Method::POST, "/visit/a", Some("k"), "x"));
    play.events.entered("a").await;
    let key = LockKey::new("idempotency/=ann/POST/=%2Ftenant%2F{tenant}%2Fvisit%2F{id}/k").unwrap();
    assert!(matches!(once.inspect(&key).await.unwrap().state, OnceState::UnderWay(_)));
    assert!(locks.admin().unwrap().force_release(&key, "a test").await.unwrap().is_some());
    let answer = Answer::read(soon("an answer", answer).await.unwrap().unwrap()).await;
    answer.assert_problem(503, "answer-not-remembered", true);
    play.events.dropped("a").await;
    assert!(matches!(once.inspect(&key).await.unwrap().state, OnceState::Interrupted(_)));
}

/// The layer fits into a router whatever its responses are.
#[tokio::test]
async fn a_layer_on_a_whole_router() {
    let layer = IdempotencyLayer::for_everyone(MemoryOnce::new()).keep(Duration::from_secs(60));
    let app: Router = Router::new().route("/", post(|| async { "done".into_response() })).layer(layer);
    let server = Server::start(app).await;
    let client = server.client(Protocol::Http1).await;
    let mut request = crate::common::request(Method::POST, "/");
    request.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    assert!(!is_replay(&send(&client, request.clone()).await));
    assert!(is_replay(&send(&client, request).await));
}
