//! T2: many keys, so that hardly any request waits.

use std::time::Duration;

use super::{BARE, Bench, IDLE, LOCKED, in_memory};
use crate::Outcome;
use crate::figures::{Id, rotated};
use crate::fleet;
use crate::report::{Bound, Figure};
use crate::stats::quantile;
use crate::web::{load, service};

const KEYS: u32 = 10_000;
const CONNECTIONS: usize = 32;
/// Where a process happens to have its memory moves its shares by some hundredths, so there are
/// several processes.
const ROUNDS_OF_A_PROCESS: usize = 5;
const RATE: &str = "requests";
const SHARE: &str = "requests, share of the bare service's";
const SHARE_OF_IDLE: &str = "requests, share of those with a layer that does nothing";

pub(in crate::figures) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = Figure::new(Id::T(2), "throughput over TCP with 10,000 random keys, memory backend", bench.quick);
    let (rounds, millis) = bench.choose((15, 200), (100, 400));
    let mut server = in_memory(bench, 0).await?;
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        if round > 0 && round % ROUNDS_OF_A_PROCESS == 0 {
            server.0.kill().await?;
            server = in_memory(bench, 0).await?;
        }
        let address = server.1;
        let mut rates = [f64::NAN; 3];
        for place in rotated(&[0, 1, 2], round) {
            let (who, path) = [(BARE, service::BARE), (LOCKED, service::LOCKED), (IDLE, service::IDLE)][place];
            let window = fleet::window(Duration::from_millis(millis));
            let path = move |random: &mut fastrand::Rng| format!("{path}{}", random.u32(0..KEYS));
            let load = load::run(&[address], CONNECTIONS, window, path).await?;
            if load.refused > 0 {
                return Err(format!("{} requests were refused", load.refused).into());
            }
            rates[place] = load.total() as f64 / window.seconds();
            figure.push(who, RATE, "/s", rates[place]);
            figure.push(who, "p50", "ms", quantile(&load.times, 0.5));
            figure.push(who, "p99", "ms", quantile(&load.times, 0.99));
        }
        figure.push(LOCKED, SHARE, "", rates[1] / rates[0]);
        figure.push(IDLE, SHARE, "", rates[2] / rates[0]);
        figure.push(LOCKED, SHARE_OF_IDLE, "", rates[1] / rates[2]);
    }
    server.0.kill().await?;
    figure.judge(SHARE, figure.median(LOCKED, SHARE), "", Bound::Least(0.95));
    figure.note(format!(
        "One process serves all three, HTTP/1.1 on axum, and after {ROUNDS_OF_A_PROCESS} rounds another one does; {CONNECTIONS} connections of the process that measures, on the same processors. The share is that of a round; the verdict is the median of the rounds."
    ));
    Ok(figure)
}
