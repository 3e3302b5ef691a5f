//! Over real TCP: the answers to refused callers.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use distlock_api::{ErrorKind, LockProvider};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_tower::key::{HeaderKey, ParamKey, RouteKey};
use distlock_tower::{LockLayer, Reason};
use hyper::StatusCode;
use hyper::header::HeaderName;

use crate::common::{Client, Events, Protocol, Server, Stage, until};

const ORDER: &str = "/orders/{id}";

fn order(provider: impl LockProvider) -> LockLayer<ParamKey> {
    LockLayer::new(provider, ParamKey::typed::<u64>("order", "id").unwrap().checked_for([ORDER]).unwrap())
}

async fn serve(layer: LockLayer<ParamKey>) -> (Server, Stage, Events) {
    let (stage, events) = Stage::new();
    let visiting = stage.clone();
    let visit = move || async move {
        visiting.visit("order").await;
        "done"
    };
    (Server::start(Router::new().route(ORDER, post(visit)).route_layer(layer)).await, stage, events)
}

/// Two connections, on the first of which a handler holds the lock.
async fn held(server: &Server, events: &mut Events, protocol: Protocol) -> [Client; 2] {
    let clients = [server.client(protocol).await, server.client(protocol).await];
    clients[0].spawn_post("/orders/4711");
    events.entered("order").await;
    clients
}

over_both!(
    busy_is_409_and_by_choice_423,
    a_wait_that_is_over_is_503,
    a_full_queue_is_503,
    an_unreachable_store_is_503_and_fails_closed,
    failing_open_is_a_choice_and_is_counted,
    a_closed_provider_refuses_even_when_failing_open,
    an_answer_of_the_store_is_reported_and_never_fails_open,
    a_bad_key_is_400,
    a_layer_outside_of_the_router_is_500,
    a_route_key_without_a_type_is_500,
    answers_can_be_replaced,
);

async fn busy_is_409_and_by_choice_423(protocol: Protocol) {
    let (server, _, mut events) = serve(order(MemoryProvider::new()).fail_fast()).await;
    let [_holder, other] = held(&server, &mut events, protocol).await;
    other.post("/orders/4711").await.assert_problem(409, "busy", true);

    let layer = order(MemoryProvider::new()).fail_fast().status(Reason::Busy, StatusCode::LOCKED);
    let (server, _, mut events) = serve(layer).await;
    let [_holder, other] = held(&server, &mut events, protocol).await;
    other.post("/orders/4711").await.assert_problem(423, "busy", true);
}

async fn a_wait_that_is_over_is_503(protocol: Protocol) {
    let layer = order(MemoryProvider::new()).wait_up_to(Duration::from_millis(20));
    let monitor = layer.monitor();
    let (server, _, mut events) = serve(layer).await;
    let [_holder, other] = held(&server, &mut events, protocol).await;
    other.post("/orders/4711").await.assert_problem(503, "timeout", true);
    assert_eq!((monitor.waiting(), monitor.refused(Reason::Timeout), monitor.refused_in_total()), (0, 1, 1));
}

async fn a_full_queue_is_503(protocol: Protocol) {
    for layer in [order(MemoryProvider::new()).max_waiters_per_key(1), order(MemoryProvider::new()).max_waiters(1)] {
        let monitor = layer.monitor();
        let (server, stage, mut events) = serve(layer).await;
        let [_holder, second] = held(&server, &mut events, protocol).await;
        let waiting = second.spawn_post("/orders/4711");
        until("it waits", || monitor.waiting() == 1).await;
        let third = server.client(protocol).await;
        third.post("/orders/4711").await.assert_problem(503, "full", true);
        stage.let_go(2);
        assert_eq!(waiting.await.unwrap().unwrap().status(), 200, "the waiting request is not disturbed");
    }
}

fn unreachable() -> MemoryStore {
    let store = MemoryStore::new();
    store.fail_always(Operation::TryAcquire, ErrorKind::Unavailable);
    store
}

async fn an_unreachable_store_is_503_and_fails_closed(protocol: Protocol) {
    let (server, _, mut events) = serve(order(unreachable().provider()).fail_fast()).await;
    server.client(protocol).await.post("/orders/4711").await.assert_problem(503, "unavailable", true);
    events.nothing();
}

async fn failing_open_is_a_choice_and_is_counted(protocol: Protocol) {
    for outage in [ErrorKind::Unavailable, ErrorKind::Timeout] {
        let store = MemoryStore::new();
        store.fail_always(Operation::TryAcquire, outage);
        let layer = order(store.provider()).fail_fast().fail_open();
        let monitor = layer.monitor();
        let (server, stage, mut events) = serve(layer).await;
        stage.let_go(1);
        assert_eq!(server.client(protocol).await.post("/orders/4711").await.status, 200);
        events.entered("order").await;
        assert_eq!((monitor.failed_open(), monitor.granted(), monitor.refused_in_total()), (1, 0, 0));
    }
}

async fn a_closed_provider_refuses_even_when_failing_open(protocol: Protocol) {
    let provider = Arc::new(MemoryProvider::new());
    let (server, _, mut events) = serve(order(provider.clone()).fail_open()).await;
    provider.close().await.unwrap();
    server.client(protocol).await.post("/orders/4711").await.assert_problem(503, "unavailable", true);
    events.nothing();
}

async fn an_answer_of_the_store_is_reported_and_never_fails_open(protocol: Protocol) {
    for (kind, status, reason) in [
        (ErrorKind::NotFound, 404, "not-found"),
        (ErrorKind::Rejected, 409, "rejected"),
        (ErrorKind::PermissionDenied, 500, "misconfigured"),
        (ErrorKind::Unsupported, 500, "misconfigured"),
        (ErrorKind::Corrupt, 500, "misconfigured"),
        (ErrorKind::Other, 500, "misconfigured"),
    ] {
        let store = MemoryStore::new();
        store.fail_always(Operation::TryAcquire, kind);
        // Waiting would not help, so the answer comes long before the end of the wait.
        let patient = || order(store.provider()).wait_up_to(Duration::from_secs(3600));
        for layer in [patient(), patient().fail_open()] {
            let monitor = layer.monitor();
            let (server, _, mut events) = serve(layer).await;
            server.client(protocol).await.post("/orders/4711").await.assert_problem(status, reason, false);
            events.nothing();
            assert_eq!((monitor.failed_open(), monitor.refused_in_total()), (0, 1), "{kind:?}");
        }
    }
}

async fn a_bad_key_is_400(protocol: Protocol) {
    let (server, _, _) = serve(order(MemoryProvider::new())).await;
    let client = server.client(protocol).await;
    client.post(&format!("/orders/4711{}", "x".repeat(1100))).await.assert_problem(400, "bad-key", false);
    client.post("/orders/4711%ff").await.assert_problem(400, "bad-key", false);

    let tenant = HeaderKey::text("tenant", HeaderName::from_static("x-tenant")).unwrap();
    let layer = LockLayer::new(MemoryProvider::new(), tenant);
    let server = Server::start(Router::new().route("/", post(|| async {})).layer(layer)).await;
    server.client(protocol).await.post("/").await.assert_problem(400, "bad-key", false);
}

async fn a_layer_outside_of_the_router_is_500(protocol: Protocol) {
    let around = |key: RouteKey| {
        let app = Router::new().route("/orders/{id}", post(|| async { "unlocked" }));
        let locked = tower::Layer::layer(&LockLayer::new(MemoryProvider::new(), key), app);
        Router::new().fallback_service(locked)
    };
    let server = Server::start(around(RouteKey::any_method())).await;
    server.client(protocol).await.post("/orders/4711").await.assert_problem(500, "misconfigured", false);
    let server = Server::start(around(RouteKey::any_method().pass_unmatched())).await;
    assert_eq!(server.client(protocol).await.post("/orders/4711").await.text(), "unlocked");
}

async fn a_route_key_without_a_type_is_500(protocol: Protocol) {
    let layer = LockLayer::new(MemoryProvider::new(), RouteKey::any_method().typed::<u64>("order"));
    let app = Router::new().route("/orders/{order}/{line}", post(|| async {})).route_layer(layer);
    let server = Server::start(app).await;
    server.client(protocol).await.post("/orders/7/1").await.assert_problem(500, "misconfigured", false);
}

async fn answers_can_be_replaced(protocol: Protocol) {
    let layer = order(MemoryProvider::new()).fail_fast().refuse_with(|refusal| {
        let mut response = refusal.to_response().map(|_| Bytes::from(refusal.reason().as_str()));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let (server, _, mut events) = serve(layer).await;
    let [_holder, other] = held(&server, &mut events, protocol).await;
    let answer = other.post("/orders/4711").await;
    assert_eq!((answer.status.as_u16(), answer.text()), (418, "busy"));
    assert!(answer.header("retry-after").is_some());
}
