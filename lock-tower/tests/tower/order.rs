//! Over real TCP: the usual layers of tower and tower-http, outside and inside of a lock. The
//! documentation of the crate says in which order they belong.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use distlock_api::{LockError, LockKey, LockProviderExt};
use distlock_memory::MemoryProvider;
use distlock_tower::key::FixedKey;
use distlock_tower::{HoldUntil, LockLayer};
use futures_util::stream::{self, StreamExt};
use http::header::{
    ACCEPT_ENCODING, ACCESS_CONTROL_REQUEST_METHOD, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, ORIGIN, RETRY_AFTER,
};
use http::request::Parts;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

use crate::common::{Answer, Client, LONG, Protocol, Server, Stage, request, soon, until};
use crate::play::{Play, one_key, play};

over_both!(
    cors_outside_marks_refusals,
    compression_keeps_the_lock_in_either_place,
    a_timeout_outside_ends_the_wait_and_the_handler,
    a_timeout_inside_ends_the_handler_alone,
    fewer_waiters_than_a_concurrency_limit_leave_room_for_other_keys,
    a_body_limit_outside_refuses_without_the_lock,
    caught_panics_release_in_either_place,
    events_hold_the_lock_while_the_client_listens,
);

type Lock = LockLayer<FixedKey>;

/// The service of `play`, whose layer does not wait.
async fn impatient(layers: impl Fn(Router, Lock) -> Router) -> Play {
    patient(Duration::ZERO, layers).await
}

/// The service of `play`, whose layer waits this long.
async fn patient(wait: Duration, layers: impl Fn(Router, Lock) -> Router) -> Play {
    play(|provider, app| {
        let lock = one_key(provider);
        let lock = if wait.is_zero() { lock.fail_fast() } else { lock.wait_up_to(wait) };
        let monitor = lock.monitor();
        (layers(app, lock), monitor)
    })
    .await
}

/// Sends a POST with these headers.
async fn ask(client: &Client, path: &str, headers: &[(HeaderName, &'static str)]) -> Answer {
    let mut request = request(Method::POST, path);
    request.headers_mut().extend(headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())));
    Answer::read(client.send(request).await.unwrap()).await
}

/// A script sees the answers that the CORS layer has marked, and of their headers those that are
/// exposed. A preflight needs no lock in either place.
async fn cors_outside_marks_refusals(protocol: Protocol) {
    let cors = || CorsLayer::new().allow_origin(Any).allow_methods(Any).expose_headers([RETRY_AFTER]);
    for outside in [true, false] {
        let site = impatient(|app, lock| match outside {
            true => app.route_layer(lock).layer(cors()),
            false => app.route_layer(cors()).route_layer(lock),
        })
        .await;
        let client = site.server.client(protocol).await;
        let _elsewhere = site.provider.acquire("the key").await.unwrap();
        let refused = ask(&client, "/visit/x", &[(ORIGIN, "http://a.example")]).await;
        refused.assert_problem(409, "busy", true);
        assert_eq!(refused.header("access-control-allow-origin"), outside.then_some("*"));
        assert_eq!(refused.header("access-control-expose-headers"), outside.then_some("retry-after"));
        let mut preflight = request(Method::OPTIONS, "/visit/x");
        preflight.headers_mut().insert(ORIGIN, "http://a.example".parse().unwrap());
        preflight.headers_mut().insert(ACCESS_CONTROL_REQUEST_METHOD, "POST".parse().unwrap());
        let allowed = Answer::read(client.send(preflight).await.unwrap()).await;
        assert_eq!((allowed.status, allowed.header("access-control-allow-methods")), (StatusCode::OK, Some("*")));
    }
}

/// The lock is held until the compressed body has ended. Refusals are compressed only by a layer
/// outside.
async fn compression_keeps_the_lock_in_either_place(protocol: Protocol) {
    for outside in [true, false] {
        let compression = CompressionLayer::new();
        let mut site = impatient(|app, lock| match outside {
            true => app.route_layer(lock).layer(compression.clone()),
            false => app.route_layer(compression.clone()).route_layer(lock),
        })
        .await;
        let [client, other] = [site.server.client(protocol).await, site.server.client(protocol).await];
        let mut streaming = request(Method::POST, "/stream/x");
        streaming.headers_mut().insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
        let response = client.send(streaming).await.unwrap();
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        site.events.entered("x").await;
        let refused = ask(&other, "/visit/y", &[(ACCEPT_ENCODING, "gzip")]).await;
        assert_eq!(refused.status, StatusCode::CONFLICT);
        assert_eq!(refused.header("content-encoding"), outside.then_some("gzip"));
        site.stage.let_go(1);
        let body = soon("the end of the body", response.into_body().collect()).await.unwrap().to_bytes();
        assert!(body.starts_with(&[0x1f, 0x8b]), "no gzip: {body:?}");
        site.assert_nothing_left().await;
    }
}

fn timeout(after: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, after)
}

const SHORT: Duration = Duration::from_millis(100);

/// What it ends leaves nothing behind. Callers get 503 with `Retry-After` if the wait is shorter.
async fn a_timeout_outside_ends_the_wait_and_the_handler(protocol: Protocol) {
    let mut site = patient(LONG, |app, lock| app.route_layer(lock).layer(timeout(SHORT))).await;
    let client = site.server.client(protocol).await;
    let elsewhere = site.provider.acquire("the key").await.unwrap();
    let ended = client.post("/visit/x").await;
    assert_eq!((ended.status, ended.header("retry-after")), (StatusCode::GATEWAY_TIMEOUT, None));
    assert_eq!(site.monitor.waiting(), 0);
    drop(elsewhere);
    let handling = client.spawn_post("/visit/x");
    site.events.entered("x").await;
    assert_eq!(soon("an answer", handling).await.unwrap().unwrap().status(), StatusCode::GATEWAY_TIMEOUT);
    site.events.dropped("x").await;
    site.assert_nothing_left().await;

    let site = patient(SHORT, |app, lock| app.route_layer(lock).layer(timeout(LONG))).await;
    let client = site.server.client(protocol).await;
    let _elsewhere = site.provider.acquire("the key").await.unwrap();
    client.post("/visit/x").await.assert_problem(503, "timeout", true);
}

/// The wait has its own end, although it is longer than the timeout.
async fn a_timeout_inside_ends_the_handler_alone(protocol: Protocol) {
    let mut site = patient(2 * SHORT, |app, lock| app.route_layer(timeout(SHORT)).route_layer(lock)).await;
    let client = site.server.client(protocol).await;
    let elsewhere = site.provider.acquire("the key").await.unwrap();
    client.post("/visit/x").await.assert_problem(503, "timeout", true);
    drop(elsewhere);
    let handling = client.spawn_post("/visit/x");
    site.events.entered("x").await;
    assert_eq!(soon("an answer", handling).await.unwrap().unwrap().status(), StatusCode::GATEWAY_TIMEOUT);
    site.events.dropped("x").await;
    site.assert_nothing_left().await;
}

fn path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    LockKey::new(parts.uri.path()).map(Some)
}

/// With the limit outside, waiting requests occupy its permits.
async fn fewer_waiters_than_a_concurrency_limit_leave_room_for_other_keys(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let lock = LockLayer::new(MemoryProvider::new(), path).max_waiters_per_key(1);
    let monitor = lock.monitor();
    let visiting = stage.clone();
    let visit = move |Path(id): Path<String>| async move { visiting.visit(id).await };
    let app = Router::new().route("/{id}", post(visit)).route_layer(lock).layer(GlobalConcurrencyLimitLayer::new(3));
    let server = Server::start(app).await;
    let [first, second, third] =
        [server.client(protocol).await, server.client(protocol).await, server.client(protocol).await];
    let holding = first.spawn_post("/hot");
    events.entered("hot").await;
    let waiting = second.spawn_post("/hot");
    until("it waits", || monitor.waiting() == 1).await;
    third.post("/hot").await.assert_problem(503, "full", true);
    let elsewhere = third.spawn_post("/cold");
    events.entered("cold").await;
    stage.let_go(3);
    for answer in [holding, waiting, elsewhere] {
        assert_eq!(soon("an answer", answer).await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

/// Inside, such a request takes the lock first, and waits for it.
async fn a_body_limit_outside_refuses_without_the_lock(protocol: Protocol) {
    for outside in [true, false] {
        let limit = RequestBodyLimitLayer::new(8);
        let site = impatient(|app, lock| match outside {
            true => app.route_layer(lock).layer(limit),
            false => app.route_layer(limit).route_layer(lock),
        })
        .await;
        let client = site.server.client(protocol).await;
        let long = async || {
            let request = request(Method::POST, "/visit/x").map(|_| "longer than eight bytes".into());
            Answer::read(client.send(request).await.unwrap()).await.status
        };
        let elsewhere = site.provider.acquire("the key").await.unwrap();
        let status = if outside { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::CONFLICT };
        assert_eq!(long().await, status);
        drop(elsewhere);
        assert_eq!((long().await, site.monitor.granted()), (StatusCode::PAYLOAD_TOO_LARGE, u64::from(!outside)));
        site.assert_nothing_left().await;
    }
}

async fn caught_panics_release_in_either_place(protocol: Protocol) {
    for outside in [true, false] {
        let site = impatient(|app, lock| match outside {
            true => app.route_layer(lock).layer(CatchPanicLayer::new()),
            false => app.route_layer(CatchPanicLayer::new()).route_layer(lock),
        })
        .await;
        let client = site.server.client(protocol).await;
        assert_eq!(client.post("/panic/x").await.status, StatusCode::INTERNAL_SERVER_ERROR);
        site.assert_nothing_left().await;
    }
}

/// A stream of events is a body. As it begins with a GET, it needs no lock by default. A layer that
/// locks it holds the lock until the client has gone, or by choice until the stream begins.
async fn events_hold_the_lock_while_the_client_listens(protocol: Protocol) {
    let locks = MemoryProvider::new();
    let lock = || LockLayer::new(locks.clone(), FixedKey::new("the key").unwrap());
    let layers =
        [(lock(), 0), (lock().only_if(|_| true), 1), (lock().only_if(|_| true).hold_until(HoldUntil::Head), 0)];
    for (layer, held) in layers {
        let (stage, mut events) = Stage::new();
        let listen = get(move || async move {
            let first = stream::iter([Ok(Event::default().data("first"))]);
            let rest = stream::once(async move {
                stage.visit("listening").await;
                Ok::<_, Infallible>(Event::default().data("last"))
            });
            Sse::new(first.chain(rest))
        });
        let monitor = layer.monitor();
        let server = Server::start(Router::new().route("/events", listen).route_layer(layer)).await;
        let client = server.client(protocol).await;
        let mut response = client.send(request(Method::GET, "/events")).await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "text/event-stream");
        let event = soon("an event", response.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(event.into_data().unwrap(), "data: first\n\n");
        events.entered("listening").await;
        assert_eq!(locks.keys_in_use(), held);
        drop(response);
        client.disconnect();
        events.dropped("listening").await;
        soon("idle", monitor.idle()).await;
        assert_eq!(locks.keys_in_use(), 0);
    }
}
