//! A small load balancer: sends requests to the living replicas in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode, Uri};
use axum::routing::post;

use crate::board::Board;
use crate::replica::REQUEST;
use crate::tally::label;
use distlock_examples::{HttpClient, NoAnswer};

struct Upstream {
    address: String,
    dead: AtomicBool,
}

pub(crate) struct Proxy {
    upstreams: Vec<Upstream>,
    next: AtomicUsize,
    client: HttpClient,
    board: Board,
}

/// A request, until it is answered or its client has gone away.
struct Ticket<'a> {
    board: &'a Board,
    number: u64,
    reads: bool,
    label: String,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.board.change(|state, now| state.answered(self.number, self.reads, &self.label, now));
    }
}

pub(crate) fn router(proxy: Arc<Proxy>) -> Router {
    Router::new().route("/orders/{item}", post(forward).get(forward)).with_state(proxy)
}

async fn forward(
    State(proxy): State<Arc<Proxy>>,
    Path(item): Path<String>,
    request: Request<axum::body::Body>,
) -> Result<Response<axum::body::Body>, StatusCode> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1024).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let number = proxy.board.change(|state, now| state.arrived(&item, now)).ok_or(StatusCode::NOT_FOUND)?;
    let reads = parts.method == Method::GET;
    let mut ticket = Ticket { board: &proxy.board, number, reads, label: "client gone".to_owned() };
    match proxy.forward(parts, body, number).await {
        Ok(response) => {
            ticket.label = label(response.status().as_u16(), response.body());
            Ok(response.map(axum::body::Body::from))
        }
        Err((status, why)) => {
            ticket.label = format!("{} {why}", status.as_u16());
            Err(status)
        }
    }
}

impl Proxy {
    pub(crate) fn new(addresses: Vec<String>, client: HttpClient, board: Board) -> Self {
        let upstreams =
            addresses.into_iter().map(|address| Upstream { address, dead: AtomicBool::new(false) }).collect();
        Self { upstreams, next: AtomicUsize::new(0), client, board }
    }

    /// Tries the next living replica. Tries another only if the first cannot have seen the request.
    async fn forward(
        &self,
        mut parts: Parts,
        body: Bytes,
        number: u64,
    ) -> Result<Response<Bytes>, (StatusCode, &'static str)> {
        parts.headers.insert(REQUEST, number.into());
        let path = parts.uri.path().to_owned();
        for _ in 0..self.upstreams.len() {
            let Some(upstream) = self.choose() else { break };
            let uri = format!("{}{path}", upstream.address);
            parts.uri = Uri::try_from(uri).map_err(|_| (StatusCode::BAD_REQUEST, "not a path"))?;
            match self.client.send(parts.clone(), body.clone()).await {
                Ok(response) => return Ok(response),
                Err(failure) => {
                    upstream.dead.store(true, Relaxed);
                    if matches!(failure, NoAnswer::Broken) {
                        return Err((StatusCode::BAD_GATEWAY, "replica died"));
                    }
                }
            }
        }
        Err((StatusCode::SERVICE_UNAVAILABLE, "no replica"))
    }

    fn choose(&self) -> Option<&Upstream> {
        let turn = self.next.fetch_add(1, Relaxed);
        let count = self.upstreams.len();
        (0..count).map(|step| &self.upstreams[(turn + step) % count]).find(|upstream| !upstream.dead.load(Relaxed))
    }
}
