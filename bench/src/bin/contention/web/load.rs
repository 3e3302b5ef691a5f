//! Clients that send one request after the other for a while.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;

use super::client::Connection;
use crate::Outcome;
use crate::clock;
use crate::stats::Thinned;
use crate::worker::protocol::Window;

/// What clients have seen within a window.
pub struct Load {
    /// Requests served, of each connection.
    pub served: Vec<u64>,
    /// Requests with another answer.
    pub refused: u64,
    /// A sample of the times from a request to the end of its answer, in ms, those included that
    /// the end of the window cut off.
    pub times: Vec<f64>,
}

#[derive(Default)]
struct Log {
    served: u64,
    refused: u64,
    times: Thinned,
    requested: Option<clock::Nanos>,
}

/// Opens the connections, shared evenly among the addresses. Each has one request at a time, to
/// what `path` returns.
pub async fn run(
    addresses: &[SocketAddr],
    connections: usize,
    window: Window,
    path: impl Fn(&mut fastrand::Rng) -> String + Clone + Send + 'static,
) -> Outcome<Load> {
    let (mut clients, mut logs) = (JoinSet::<Outcome<()>>::new(), Vec::new());
    for number in 0..connections {
        let mut connection = Connection::open(addresses[number % addresses.len()]).await?;
        let (log, path) = (Arc::new(Mutex::new(Log::default())), path.clone());
        logs.push(Arc::clone(&log));
        clients.spawn(async move {
            let log = || log.lock().unwrap_or_else(PoisonError::into_inner);
            let mut random = fastrand::Rng::with_seed(number as u64);
            clock::sleep_until(window.start).await;
            loop {
                let requested = clock::now();
                log().requested = Some(requested);
                let answered = connection.post(&path(&mut random)).await;
                let now = clock::now();
                // A replica ends with its window, and takes its connections along.
                if now > window.stop {
                    return Ok(());
                }
                let status = answered?;
                let mut log = log();
                log.requested = None;
                match status.is_success() {
                    true => log.served += 1,
                    false => log.refused += 1,
                }
                log.times.push(now - requested);
            }
        });
    }
    clock::sleep_until(window.stop).await;
    while let Some(ended) = clients.try_join_next() {
        ended??;
    }
    clients.shutdown().await;

    let mut load = Load { served: Vec::new(), refused: 0, times: Vec::new() };
    for log in logs {
        let log = log.lock().unwrap_or_else(PoisonError::into_inner);
        load.served.push(log.served);
        load.refused += log.refused;
        let cut_off = log.requested.map(|requested| window.stop.saturating_sub(requested));
        load.times.extend(log.times.kept().iter().copied().chain(cut_off).map(clock::millis));
    }
    Ok(load)
}

impl Load {
    /// All requests served.
    pub fn total(&self) -> u64 {
        self.served.iter().sum()
    }
}
