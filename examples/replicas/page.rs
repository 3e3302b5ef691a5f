//! The live page: one file, and a stream of changes. It shows all values as text, never as HTML,
//! and a policy forbids it to load anything.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use axum::response::Html;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::time::sleep;

use crate::board::{Board, Span, State};

/// How often the page gets the state.
pub(crate) const EVERY: Duration = Duration::from_millis(150);
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

/// What the page gets at once: the state, and what has ended since the last time.
#[derive(Serialize)]
struct Snapshot<'a> {
    now: f64,
    wait_p50: Option<f64>,
    wait_p99: Option<f64>,
    spans: Vec<&'a Span>,
    #[serde(flatten)]
    state: &'a State,
}

pub(crate) fn router(board: Board) -> Router {
    let page = || async {
        let headers = [(CACHE_CONTROL, "no-store"), (CONTENT_SECURITY_POLICY, POLICY)];
        (headers, Html(include_str!("page.html")))
    };
    Router::new().route("/", get(page)).route("/events", get(events)).with_state(board)
}

async fn events(Shared(board): Shared<Board>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // The last span that was sent, if any was, and whether the last snapshot was the final one.
    Sse::new(unfold((board, None, false), |(board, seen, is_last)| async move {
        if is_last {
            return None;
        }
        if seen.is_some() {
            sleep(EVERY).await;
        }
        let (event, seen, is_last) = board.change(|state, now| {
            let spans = state.spans_after(seen.unwrap_or(0));
            let (wait_p50, wait_p99) = (state.wait(50), state.wait(99));
            let event = Event::default().json_data(Snapshot { now, wait_p50, wait_p99, spans, state });
            (event.expect("plain data"), state.newest_span(), state.finished.is_some())
        });
        Some((Ok(event), (board, Some(seen), is_last)))
    }))
}

#[test]
fn the_page_takes_nothing_as_html() {
    let page = include_str!("page.html");
    for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval("] {
        assert!(!page.contains(way), "{way}");
    }
    assert!(page.contains("made.textContent = text"));
}
