//! The counters, which all replicas read and write over HTTP. No request does both, so only a lock
//! makes the two one step. Server and client are in this file.

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::routing::get;
use distlock_examples::HttpClient;
use serde::Deserialize;

use crate::board::Board;

/// The reader or writer, for the display.
#[derive(Deserialize)]
struct Caller {
    request: u64,
    replica: String,
    token: u64,
    /// Whether it only reads.
    #[serde(default)]
    reads: bool,
}

pub(crate) fn router(board: Board) -> Router {
    Router::new().route("/sold/{item}", get(read).put(write)).with_state(board)
}

async fn read(
    State(board): State<Board>,
    Path(item): Path<String>,
    Query(caller): Query<Caller>,
) -> Result<String, StatusCode> {
    let Caller { request, replica, token, reads } = caller;
    let sold = board.change(|state, now| match reads {
        true => state.look(&item, request, &replica, token, now),
        false => state.read(&item, request, &replica, token, now),
    });
    sold.map(|sold| sold.to_string()).ok_or(StatusCode::NOT_FOUND)
}

async fn write(
    State(board): State<Board>,
    Path(item): Path<String>,
    Query(caller): Query<Caller>,
    sold: String,
) -> StatusCode {
    let Ok(sold) = sold.parse() else { return StatusCode::BAD_REQUEST };
    match board.change(|state, now| state.write(&item, caller.request, sold, now)) {
        Some(()) => StatusCode::NO_CONTENT,
        None => StatusCode::NOT_FOUND,
    }
}

/// A counter, for one request of one replica.
pub(crate) struct Counter<'a> {
    client: &'a HttpClient,
    uri: String,
}

impl<'a> Counter<'a> {
    pub(crate) fn new(
        client: &'a HttpClient,
        (warehouse, item): (&str, &str),
        (request, replica, token): (&str, &str, u64),
    ) -> Self {
        Self { client, uri: format!("{warehouse}/sold/{item}?request={request}&replica={replica}&token={token}") }
    }

    /// Tells the warehouse that the request only reads.
    pub(crate) fn only_reading(mut self) -> Self {
        self.uri.push_str("&reads=true");
        self
    }

    /// Reads the counter. Returns `None` if there is no such counter, or no warehouse.
    pub(crate) async fn read(&self) -> Option<u64> {
        let reply = self.client.call(Method::GET, &self.uri, String::new()).await.ok()?;
        String::from_utf8_lossy(reply.body()).parse().ok()
    }

    pub(crate) async fn write(&self, sold: u64) -> Option<()> {
        let reply = self.client.call(Method::PUT, &self.uri, sold.to_string()).await.ok()?;
        reply.status().is_success().then_some(())
    }
}
