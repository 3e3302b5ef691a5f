//! T1 to T4 and B16: the middleware over HTTP.

pub(super) mod disconnects;
pub(super) mod hot_key;
pub(super) mod latency;
pub(super) mod over_mongo;
pub(super) mod throughput;

use std::net::SocketAddr;

use super::Bench;
use crate::Outcome;
use crate::fleet::Worker;
use crate::locks::{Contender, Settings};
use crate::worker::protocol::{Serve, Spec, Task};

const BARE: &str = "the bare service";
/// axum's share of what any layer of a route costs.
const IDLE: &str = "with a layer that does nothing";
const LOCKED: &str = "with LockLayer";

/// Starts a replica in a process of its own, and waits until it serves.
async fn replica(bench: &Bench<'_>, who: Contender, settings: Settings, serve: Serve) -> Outcome<(Worker, SocketAddr)> {
    serving(&bench.spec(who, settings, Task::Serve(serve))).await
}

async fn serving(spec: &Spec) -> Outcome<(Worker, SocketAddr)> {
    let mut worker = Worker::start(spec).await?;
    let address = worker.address().await?;
    worker.ready().await?;
    Ok((worker, address))
}

/// A replica whose locks are those of the memory backend.
async fn in_memory(bench: &Bench<'_>, work_us: u64) -> Outcome<(Worker, SocketAddr)> {
    replica(bench, Contender::Ours, Settings::new(true), Serve { in_memory: true, work_us }).await
}
