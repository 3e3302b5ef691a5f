//! T1: what the layer adds to a request without contention.

use std::sync::Arc;
use std::time::Instant;

use distlock_api::LockProvider;
use distlock_bench::tower::{per_path, request, serve};
use distlock_memory::MemoryProvider;
use distlock_tower::LockLayer;
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tower::{Layer, service_fn};

use super::{BARE, Bench, IDLE, LOCKED, in_memory};
use crate::Outcome;
use crate::figures::Id;
use crate::report::{Bound, Figure};
use crate::stats::quantile;
use crate::web::client::Connection;
use crate::web::service;

const DETACHED: &str = "with LockLayer, detached";
const CALL: &str = "without a network, p50";
const TCP: &str = "over TCP, p50";
const ADDED_TO_CALL: &str = "added without a network, p50";
const ADDED_TO_TCP: &str = "added over TCP, p50";
const MOST: Bound = Bound::Most(2.0);

pub(in crate::figures) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = Figure::new(Id::T(1), "a request without competitors, memory backend", bench.quick);
    let (rounds, requests) = bench.choose((5, 4_000), (21, 20_000));
    let (server, address) = in_memory(bench, 0).await?;
    let mut connection = Connection::open(address).await?;
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        let [bare, locked, detached] = spawn_blocking(move || calls(requests)).await??;
        figure.push(BARE, CALL, "µs", bare);
        figure.push(LOCKED, CALL, "µs", locked);
        figure.push(DETACHED, CALL, "µs", detached);
        figure.push(LOCKED, ADDED_TO_CALL, "µs", locked - bare);
        figure.push(DETACHED, ADDED_TO_CALL, "µs", detached - bare);

        let [bare, locked, idle] = over_tcp(&mut connection, requests).await?;
        figure.push(BARE, TCP, "µs", bare);
        figure.push(LOCKED, TCP, "µs", locked);
        figure.push(IDLE, TCP, "µs", idle);
        figure.push(LOCKED, ADDED_TO_TCP, "µs", locked - bare);
        figure.push(IDLE, ADDED_TO_TCP, "µs", idle - bare);
    }
    server.kill().await?;
    for what in [ADDED_TO_CALL, ADDED_TO_TCP] {
        figure.judge(what, figure.median(LOCKED, what), "µs", MOST);
    }
    figure.note(
        "Each request is timed by itself, those with the layer and those without take turns one by one, and what is added is the difference between the medians of a round. Over TCP: \
         one connection to a process that serves both, HTTP/1.1 on axum; there the layer is a `RouteKey`'s, and each round's difference is that of two times some fifty times as long.",
    );
    Ok(figure)
}

/// Medians of calls of the service itself, in µs: bare, locked, detached.
fn calls(requests: usize) -> Outcome<[f64; 3]> {
    let locks: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
    let mut bare = service_fn(serve);
    let mut locked = LockLayer::new(Arc::clone(&locks), per_path).layer(service_fn(serve));
    let mut detached = LockLayer::new(locks, per_path).detach().layer(service_fn(serve));
    let mut times = [const { Vec::new() }; 3];
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        for _ in 0..requests {
            let start = Instant::now();
            request(&mut bare).await;
            let between = Instant::now();
            request(&mut locked).await;
            let then = Instant::now();
            request(&mut detached).await;
            let end = Instant::now();
            for (times, time) in times.iter_mut().zip([between - start, then - between, end - then]) {
                times.push(time.as_nanos() as f64 / 1e3);
            }
        }
    });
    Ok(times.map(|times| quantile(&times, 0.5)))
}

/// Medians of requests over a connection, in µs: bare, locked, idle.
async fn over_tcp(connection: &mut Connection, requests: usize) -> Outcome<[f64; 3]> {
    let paths = [service::BARE, service::LOCKED, service::IDLE].map(|path| format!("{path}4711"));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..requests / 2 {
        for (path, times) in paths.iter().zip(&mut times) {
            let start = Instant::now();
            if !connection.post(path).await?.is_success() {
                return Err("a request was refused".into());
            }
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
    }
    Ok(times.map(|times| quantile(&times, 0.5)))
}
