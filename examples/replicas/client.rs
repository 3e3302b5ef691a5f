//! Real requests over real connections: the HTTP client of the proxy and the replicas, and the customers.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::ITEMS;

/// More than any body in here.
const LONGEST: usize = 64 * 1024;
/// More are not begun before others have been answered.
const AT_ONCE: usize = 256;
const TWICE: u32 = 2;

/// Why there was no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// There was no connection, so nobody has seen the request.
    Unconnected,
    /// The connection ended before the answer did. Nobody knows what was done.
    Broken,
}

#[derive(Clone)]
pub(crate) struct Client(legacy::Client<HttpConnector, Body>);

impl Client {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self(legacy::Client::builder(TokioExecutor::new()).build(connector))
    }

    /// Sends a request and reads all of the answer.
    pub(crate) async fn send(&self, parts: Parts, body: Bytes) -> Result<Response<Bytes>, NoAnswer> {
        let request = Request::from_parts(parts, Body::from(body));
        let response = self.0.request(request).await.map_err(|error| match error.is_connect() {
            true => NoAnswer::Unconnected,
            false => NoAnswer::Broken,
        })?;
        let (parts, body) = response.into_parts();
        let body = to_bytes(Body::new(body), LONGEST).await.map_err(|_| NoAnswer::Broken)?;
        Ok(Response::from_parts(parts, body))
    }

    /// Sends a request without special headers.
    pub(crate) async fn call(&self, method: Method, uri: &str, body: String) -> Result<Response<Bytes>, NoAnswer> {
        let request = Request::builder().method(method).uri(uri).body(()).map_err(|_| NoAnswer::Unconnected)?;
        self.send(request.into_parts().0, body.into()).await
    }
}

/// The customers: every order comes twice at once, as double clicks do, at a steady rate – for a time, or until Ctrl-C. Waits for the answers.
pub(crate) async fn order(client: Client, shop: String, rate: u32, length: Option<Duration>) {
    let end = length.map(|length| Instant::now() + length);
    let mut ticks = interval(Duration::from_secs(1) * TWICE / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut orders = JoinSet::new();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            now = ticks.tick() => {
                if end.is_some_and(|end| now >= end) {
                    break;
                }
                if orders.len() < AT_ONCE {
                    let uri = format!("{shop}/orders/{}", item());
                    for _ in 0..TWICE {
                        let (client, uri) = (client.clone(), uri.clone());
                        // The proxy counts the answers.
                        orders.spawn(async move { client.call(Method::POST, &uri, String::new()).await.is_ok() });
                    }
                }
            }
            Some(_) = orders.join_next() => {}
            _ = &mut interrupted => break,
        }
    }
    while orders.join_next().await.is_some() {}
}

/// Half of the orders are for the first item, the hot one.
fn item() -> &'static str {
    if fastrand::bool() { ITEMS[0] } else { ITEMS[fastrand::usize(1..ITEMS.len())] }
}
