//! Over real TCP: responses of all kinds look as they do without the layer.

use std::convert::Infallible;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::{any, get};
use bytes::Bytes;
use distlock_memory::MemoryProvider;
use distlock_tower::{HeldLock, LockLayer, key::RouteKey};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{Protocol, Server, soon, until};

fn routes() -> Router {
    let streaming = || async { Body::from_stream(stream::iter([Ok::<_, Infallible>("a"), Ok("b")])) };
    let trailers = || async {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "2".parse().unwrap());
        let frames = [Frame::data(Bytes::from("ab")), Frame::trailers(trailers)];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
        ([("trailer", "x-sum")], Body::new(body)).into_response()
    };
    Router::new()
        .route("/empty", any(|| async {}))
        .route("/no-content", any(|| async { StatusCode::NO_CONTENT }))
        .route("/not-modified", any(|| async { StatusCode::NOT_MODIFIED }))
        .route("/full", any(|| async { "full" }))
        .route("/empty-chunk", any(|| async { Body::from_stream(stream::iter([Ok::<_, Infallible>("")])) }))
        .route("/stream", any(streaming))
        .route("/trailers", any(trailers))
        .route("/echo", any(|body: Bytes| async { body }))
}

async fn servers() -> (Server, Server, MemoryProvider) {
    let provider = MemoryProvider::new();
    let layer = LockLayer::new(provider.clone(), RouteKey::per_method()).only_if(|_| true);
    (Server::start(routes()).await, Server::start(routes().route_layer(layer)).await, provider)
}

over_both!(responses_look_as_without_the_layer);

async fn responses_look_as_without_the_layer(protocol: Protocol) {
    let (bare, locked, provider) = servers().await;
    for path in ["/empty", "/no-content", "/not-modified", "/full", "/empty-chunk", "/stream", "/trailers", "/echo"] {
        for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
            let mut seen = Vec::new();
            for server in [&bare, &locked] {
                let request = crate::common::request(method.clone(), path).map(|_| match method {
                    Method::POST => Full::from("echo"),
                    _ => Full::default(),
                });
                let (mut parts, ()) = request.clone().map(drop).into_parts();
                parts.headers.insert("te", "trailers".parse().unwrap());
                let request = Request::from_parts(parts, request.into_body());
                let client = server.client(protocol).await;
                let response = client.send(request).await.unwrap();
                let (mut head, body) = response.into_parts();
                head.headers.remove("date");
                let body = soon("the end", body.collect()).await.unwrap();
                let trailers = body.trailers().cloned();
                seen.push((head.status, head.headers, body.to_bytes(), trailers));
            }
            assert_eq!(seen[0], seen[1], "{method} {path}");
            if path == "/trailers" && method == Method::GET {
                assert_eq!(seen[1].3.as_ref().unwrap()["x-sum"], "2");
            }
            until("it is released", || provider.keys_in_use() == 0).await;
        }
    }
}

#[tokio::test]
async fn upgrades_work_and_do_not_hold_the_lock() {
    let provider = MemoryProvider::new();
    let upgrade = |mut request: axum::extract::Request| async move {
        answer_a_ping(&mut request);
        (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "ping")])
    };
    let layer = LockLayer::new(provider.clone(), RouteKey::any_method()).only_if(|_| true);
    let server = Server::start(Router::new().route("/", get(upgrade)).route_layer(layer)).await;
    let client = server.client(Protocol::Http1).await;
    let mut request = crate::common::request(Method::GET, "/");
    request.headers_mut().insert("connection", "upgrade".parse().unwrap());
    request.headers_mut().insert("upgrade", "ping".parse().unwrap());
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(provider.keys_in_use(), 0);
    ensure_ping(response).await;
}

fn answer_a_ping(request: &mut axum::extract::Request) {
    let upgrading = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgrading.await.unwrap());
        let mut ping = [0; 4];
        io.read_exact(&mut ping).await.unwrap();
        io.write_all(b"pong").await.unwrap();
    });
}

/// Ensures that what follows the head goes both ways.
async fn ensure_ping(response: Response<Incoming>) {
    let mut io = TokioIo::new(soon("the upgrade", hyper::upgrade::on(response)).await.unwrap());
    io.write_all(b"ping").await.unwrap();
    let mut pong = [0; 4];
    soon("the pong", io.read_exact(&mut pong)).await.unwrap();
    assert_eq!(&pong, b"pong");
}

/// A WebSocket over HTTP/2, for example: CONNECT with a protocol.
#[tokio::test]
async fn extended_connects_work_and_do_not_hold_the_lock() {
    let provider = MemoryProvider::new();
    let connect = |held: Option<HeldLock>, mut request: axum::extract::Request| async move {
        if request.method() == Method::OPTIONS {
            return;
        }
        assert!(held.is_some(), "the lock covers the head");
        answer_a_ping(&mut request);
    };
    let layer = LockLayer::new(provider.clone(), RouteKey::any_method());
    let server = Server::start(Router::new().route("/", any(connect)).route_layer(layer)).await;
    let client = server.client(Protocol::Http2).await;
    // The server's settings, which allow it, come before the answer to a first request.
    client.send(crate::common::request(Method::OPTIONS, "/")).await.unwrap();
    let mut request = crate::common::request(Method::CONNECT, "/");
    request.extensions_mut().insert(hyper::ext::Protocol::from_static("ping"));
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    until("it is released", || provider.keys_in_use() == 0).await;
    ensure_ping(response).await;
}

#[tokio::test]
async fn an_expectation_is_met_when_the_body_is_wanted() {
    let (_, locked, _) = servers().await;
    let mut io = TcpStream::connect(locked.address()).await.unwrap();
    io.write_all(b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n").await.unwrap();
    let mut read = vec![0; 4096];
    let length = soon("the 1xx", io.read(&mut read)).await.unwrap();
    assert!(read[..length].starts_with(b"HTTP/1.1 100 Continue\r\n\r\n"));
    io.write_all(b"ok").await.unwrap();
    let length = soon("the answer", io.read(&mut read)).await.unwrap();
    let answer = String::from_utf8_lossy(&read[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
}
