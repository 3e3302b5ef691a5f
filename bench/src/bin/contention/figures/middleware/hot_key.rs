//! T3: all requests are for one key, and two replicas serve.

use std::time::Duration;

use super::{Bench, in_memory, replica};
use crate::Outcome;
use crate::commands::{self, Counts};
use crate::figures::{Id, best_peer, rotated};
use crate::fleet;
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::stats::{least_of_even, quantile};
use crate::web::{load, service};
use crate::worker::protocol::Serve;

const CONNECTIONS: usize = 64;
const REPLICAS: usize = 2;
const WORK: Duration = Duration::from_millis(1);
const SERVE: Serve = Serve { in_memory: false, work_us: WORK.as_micros() as u64 };
const RATE: &str = "requests";
const IDEAL: &str = "the ideal, 1 / hold";
const IN_MEMORY: &str = "one replica, memory backend";

/// Ours as it is, and without its parts for contention.
const OURS: [(&str, Settings); 4] = [
    ("distlock", Settings::new(true)),
    ("distlock without hand-off", Settings::new(false)),
    ("distlock without queue", Settings { queue: false, ..Settings::new(true) }),
    ("distlock without either", Settings { queue: false, ..Settings::new(false) }),
];

pub(in crate::figures) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = Figure::new(Id::T(3), "one key, 64 connections, 2 replicas, hold 1 ms", bench.quick);
    let ours = OURS.map(|(name, settings)| (name, Contender::Ours, settings));
    let peers = Contender::PEERS.map(|who| (who.name(), who, Settings::new(true)));
    let all: Vec<_> = ours.into_iter().chain(peers).collect();
    let (rounds, seconds) = bench.choose((1, 4), (3, 10));
    for round in 0..rounds {
        for (name, who, settings) in rotated(&all, round) {
            bench.progress(format_args!("round {} of {rounds}: {name}", round + 1));
            let mut servers = Vec::new();
            for _ in 0..REPLICAS {
                servers.push(replica(bench, who, settings, SERVE).await?);
            }
            measure(&mut figure, name, round, servers, seconds).await?;
        }
        let alone = vec![in_memory(bench, SERVE.work_us).await?];
        measure(&mut figure, IN_MEMORY, round, alone, seconds).await?;
    }
    let ideal = (IDEAL.to_owned(), 1.0 / WORK.as_secs_f64());
    figure.judge_ratio(RATE, figure.median(Contender::Ours, RATE), "/s", ideal.clone(), Bound::Least(0.7));
    let best = best_peer(&figure, RATE, true);
    let before = figure.median(OURS[3].0, RATE);
    figure.note(format!(
        "The best peer, called per request, is {} with {:.3} × the ideal; ours before the contention work – neither queue nor hand-off – reaches {:.3} ×.",
        best.0,
        best.1 / ideal.1,
        before / ideal.1,
    ));
    figure.note(
        "A handler holds the lock for 1 ms by the kernel's timer and answers; what is on top of that – waking, reading, writing and the next request – runs on the processors that also run the \
         clients and the servers of MongoDB. *One replica, memory backend* is what that leaves when no other process takes part. Peers are called by the handler, which releases before it answers.",
    );
    Ok(figure)
}

async fn measure(
    figure: &mut Figure,
    name: &str,
    round: usize,
    servers: Vec<(fleet::Worker, std::net::SocketAddr)>,
    seconds: u64,
) -> Outcome<()> {
    let (mut workers, addresses): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    let window = fleet::measure_all(&mut workers, Duration::from_secs(seconds)).await?;
    // A key of its own, so that no contender finds what the one before has left.
    let path = format!("{}{}-{round}", service::LOCKED, name.replace(' ', "-"));
    let load = load::run(&addresses, CONNECTIONS, window, move |_| path.clone()).await?;
    let reports = fleet::reports(workers, window).await?;
    let mut sent = Counts::new();
    reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));

    let total = load.total() as f64;
    figure.push(name, RATE, "/s", total / window.seconds());
    figure.push(name, "requests refused", "", load.refused as f64);
    figure.push(name, "time of a request, p50", "ms", quantile(&load.times, 0.5));
    figure.push(name, "time of a request, p99", "ms", quantile(&load.times, 0.99));
    figure.push(name, "commands per request", "", commands::without_get_more(&sent) as f64 / total);
    let of_replica = |place: usize| load.served.iter().skip(place).step_by(addresses.len()).sum();
    let shares: Vec<u64> = (0..addresses.len()).map(of_replica).collect();
    figure.push(name, "least replica / even share", "", least_of_even(&shares));
    Ok(())
}
