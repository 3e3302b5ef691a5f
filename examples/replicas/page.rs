//! The live page: one file, and a stream of changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::time::sleep;

use crate::board::{Board, State};

/// How often the stream sends the state.
pub(crate) const EVERY: Duration = Duration::from_millis(150);

#[derive(Serialize)]
struct Snapshot {
    now: f64,
    locked: bool,
    ok: u64,
    reads: u64,
    torn: u64,
    most_readers: usize,
    refused: BTreeMap<String, u64>,
    lost: u64,
    wait_p50: Option<f64>,
    wait_p99: Option<f64>,
    items: Vec<ItemNow>,
    replicas: Vec<ReplicaNow>,
    /// Holds that have ended since the last snapshot.
    spans: Vec<SpanNow>,
    finished: Option<(bool, String)>,
}

#[derive(Serialize)]
struct ItemNow {
    name: String,
    sold: u64,
    lost: u64,
    queued: usize,
    longest_pause: f64,
    holds: Vec<HoldNow>,
}

#[derive(Serialize)]
struct HoldNow {
    replica: String,
    /// As text, because scripts have no 64-bit numbers.
    token: String,
    since: f64,
    reads: bool,
    dead: bool,
}

#[derive(Serialize)]
struct ReplicaNow {
    name: String,
    alive: bool,
    served: u64,
}

#[derive(Serialize)]
struct SpanNow {
    item: usize,
    replica: String,
    from: f64,
    to: f64,
    reads: bool,
    dead: bool,
}

fn snapshot(state: &State, now: Instant, seen: u64) -> Snapshot {
    let at = |time: Instant| time.saturating_duration_since(state.start).as_secs_f64();
    let millis = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
    let waits = &state.total.waits;
    let item = |item: &crate::board::Item| ItemNow {
        name: item.name.clone(),
        sold: item.sold,
        lost: item.lost(),
        queued: item.queued(),
        longest_pause: item.longest_pause.max(item.pause(now)).as_secs_f64(),
        holds: item
            .holds
            .iter()
            .map(|hold| HoldNow {
                replica: hold.replica.clone(),
                token: hold.token.to_string(),
                since: at(hold.since),
                reads: hold.seen.is_some(),
                dead: hold.dead,
            })
            .collect(),
    };
    Snapshot {
        now: at(now),
        locked: state.locked,
        ok: state.total.ok,
        reads: state.total.reads,
        torn: state.torn(),
        most_readers: state.most_readers(),
        refused: state.total.refused.clone(),
        lost: state.lost(),
        wait_p50: millis(waits.percentile(50)),
        wait_p99: millis(waits.percentile(99)),
        items: state.items.iter().map(item).collect(),
        replicas: state
            .replicas
            .iter()
            .map(|it| ReplicaNow { name: it.name.clone(), alive: it.killed.is_none(), served: it.served })
            .collect(),
        spans: state
            .spans
            .iter()
            .filter(|span| span.number > seen)
            .map(|span| SpanNow {
                item: span.item,
                replica: span.replica.clone(),
                from: at(span.from),
                to: at(span.to),
                reads: span.reads,
                dead: span.dead,
            })
            .collect(),
        finished: state.finished.clone(),
    }
}

pub(crate) fn router(board: Board) -> Router {
    Router::new().route("/", get(page)).route("/events", get(events)).with_state(board)
}

async fn page() -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], Html(include_str!("page.html")))
}

async fn events(Shared(board): Shared<Board>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // The last span that was sent, if any was, and whether the last snapshot was the final one.
    Sse::new(unfold((board, None, false), |(board, seen, last)| async move {
        if last {
            return None;
        }
        if seen.is_some() {
            sleep(EVERY).await;
        }
        let seen = seen.unwrap_or(0);
        let (snapshot, newest) =
            board.change(|state, now| (snapshot(state, now, seen), state.spans.back().map_or(0, |span| span.number)));
        let event = Event::default().json_data(&snapshot).expect("plain data");
        Some((Ok(event), (board, Some(newest), snapshot.finished.is_some())))
    }))
}
