//! Together with layers of tower on paused time, and without axum.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use distlock_memory::MemoryProvider;
use distlock_tower::LockLayer;
use distlock_tower::key::FixedKey;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use crate::common::{Answer, Client, Protocol, Stage, until};

fn key() -> FixedKey {
    FixedKey::new("key").unwrap()
}

over_both!(plain_hyper_serves_one_at_a_time_across_connections);

async fn plain_hyper_serves_one_at_a_time_across_connections(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let layer = LockLayer::new(MemoryProvider::new(), key()).max_waiters(1);
    let monitor = layer.monitor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let visiting = stage.clone();
    let accepting = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let stage = visiting.clone();
            let handler = service_fn(move |_: Request<Incoming>| {
                let stage = stage.clone();
                async move {
                    stage.visit("plain").await;
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
                }
            });
            // The layer is applied again for each connection. Its limits are those of all of them.
            let service = TowerToHyperService::new(layer.layer(handler));
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    let [first, second, third] = [
        Client::connect(address, protocol).await,
        Client::connect(address, protocol).await,
        Client::connect(address, protocol).await,
    ];
    let holding = first.spawn_post("/");
    events.entered("plain").await;
    let waiting = second.spawn_post("/");
    until("it waits", || monitor.waiting() == 1).await;
    third.post("/").await.assert_problem(503, "full", true);
    stage.let_go(2);
    for answer in [holding, waiting] {
        assert_eq!(Answer::read(answer.await.unwrap().unwrap()).await.text(), "done");
    }
    monitor.idle().await;
    accepting.abort();
}

async fn working(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    sleep(Duration::from_secs(10)).await;
    Ok(Response::default())
}

fn post() -> Request<()> {
    Request::post("/").body(()).unwrap()
}

/// Outside, a timeout covers the wait and the handler. What it ends leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_timeout_outside_ends_wait_and_handler() {
    let locks = MemoryProvider::new();
    let layer = LockLayer::new(locks.clone(), key());
    let monitor = layer.monitor();
    let service = ServiceBuilder::new().timeout(Duration::from_secs(2)).layer(layer).service_fn(working);
    let calls = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(post())));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((monitor.held(), monitor.waiting()), (1, 1));
    for call in calls {
        assert!(call.await.unwrap().is_err());
    }
    assert_eq!((monitor.held(), monitor.waiting(), locks.keys_in_use()), (0, 0, 0));
}

/// Inside, it covers the handler alone: a request that has waited still has all of it.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_ends_the_handler() {
    let locks = MemoryProvider::new();
    let layer = LockLayer::new(locks.clone(), key());
    let service = ServiceBuilder::new()
        .map_err(|error: tower::BoxError| error.to_string())
        .layer(layer)
        .timeout(Duration::from_secs(2))
        .service_fn(working);
    let started = tokio::time::Instant::now();
    let calls = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(post())));
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err(), "request timed out");
    }
    assert_eq!((started.elapsed().as_secs(), locks.keys_in_use()), (4, 0));
}

/// Outside of detached handlers, a timeout answers the client while the handler continues under the
/// lock.
#[tokio::test(start_paused = true)]
async fn a_timeout_outside_of_detached_handlers_only_answers() {
    let layer = LockLayer::new(MemoryProvider::new(), key()).detach();
    let monitor = layer.monitor();
    let service = ServiceBuilder::new().timeout(Duration::from_secs(2)).layer(layer).service_fn(working);
    let started = tokio::time::Instant::now();
    assert!(service.oneshot(post()).await.is_err());
    assert_eq!(monitor.held(), 1);
    monitor.idle().await;
    assert_eq!((started.elapsed().as_secs(), monitor.held()), (10, 0));
}

/// A waiting request keeps the readiness it was given, so a permit of a limit inside is taken while
/// it waits.
#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_inside_counts_waiting_requests() {
    let layer = LockLayer::new(MemoryProvider::new(), key()).only_if(|parts| parts.uri.path() == "/");
    let monitor = layer.monitor();
    let service = ServiceBuilder::new().layer(layer).concurrency_limit(2).service_fn(working);
    let _calls = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(post())));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((monitor.held(), monitor.waiting()), (1, 1));
    let started = tokio::time::Instant::now();
    service.oneshot(Request::post("/other").body(()).unwrap()).await.unwrap();
    assert!(started.elapsed() > Duration::from_secs(10), "it had to wait for a permit");
}
