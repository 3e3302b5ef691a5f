//! Over real TCP: request bodies that are read before the wait.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use bytes::Bytes;
use distlock_memory::MemoryProvider;
use distlock_tower::LockLayer;
use distlock_tower::http::ReadAheadLayer;
use distlock_tower::key::FixedKey;
use http_body_util::Full;
use hyper::Method;

use crate::common::{Answer, Protocol, Server, Stage, request, until};

over_both!(a_client_with_a_body_that_disconnects_while_waiting_leaves_no_waiter, bodies_arrive_complete,);

/// An HTTP/1 server does not notice that a client has gone while a request body is unread.
async fn a_client_with_a_body_that_disconnects_while_waiting_leaves_no_waiter(protocol: Protocol) {
    let (stage, mut events) = Stage::new();
    let visit = move |body: String| async move { stage.visit(body).await };
    let layer = LockLayer::new(MemoryProvider::new(), FixedKey::new("key").unwrap());
    let monitor = layer.monitor();
    let app = Router::new().route("/", post(visit)).route_layer(layer).route_layer(ReadAheadLayer::new(1 << 16));
    let server = Server::start(app).await;
    let [holder, leaver] = [server.client(protocol).await, server.client(protocol).await];
    let with_body = |body: &'static str| request(Method::POST, "/").map(|_| Full::from(body));
    let _first = holder.spawn(with_body("first"));
    events.entered("first").await;
    let _left = leaver.spawn(with_body("second"));
    until("it waits", || monitor.waiting() == 1).await;
    leaver.disconnect();
    until("the waiter is gone", || monitor.waiting() == 0).await;
}

async fn bodies_arrive_complete(protocol: Protocol) {
    for limit in [0, 1, 100_000, usize::MAX] {
        let echo = post(|body: Bytes| async move { body }).layer(DefaultBodyLimit::disable());
        let server = Server::start(Router::new().route("/", echo).layer(ReadAheadLayer::new(limit))).await;
        let client = server.client(protocol).await;
        for length in [0, 1, 3_000_000] {
            let body = Bytes::from((0..length).map(|byte| byte as u8).collect::<Vec<_>>());
            let sent = request(Method::POST, "/").map(|_| Full::from(body.clone()));
            assert!(Answer::read(client.send(sent).await.unwrap()).await.body == body, "{length} with {limit}");
        }
    }
}
