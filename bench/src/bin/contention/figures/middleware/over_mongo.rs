//! B16: many keys over MongoDB, so that hardly any request waits, beside two writes by hand.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Bench, serving};
use crate::Outcome;
use crate::commands::{self, Counts};
use crate::deployment;
use crate::figures::rotated;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::stats::quantile;
use crate::web::load::{self, Load};
use crate::web::service;
use crate::worker::protocol::{Serve, Task, Window};

const KEYS: u32 = 10_000;
const CONNECTIONS: usize = 64;
const REPLICAS: usize = 2;
const SERVE: Serve = Serve { in_memory: false, work_us: 0 };
/// The handlers of both use all connections of HTTP at once with the first, and share the driver's
/// default with the second.
const POOLS: [u32; 2] = [100, 10];
const CONTENDERS: [Contender; 2] = [Contender::Raw, Contender::Ours];
/// Most keys are used in it, and connections are opened.
const WARM_UP: Duration = Duration::from_secs(2);
const COUNTED: Duration = Duration::from_secs(2);

const RATE: &str = "requests";
const REFUSED: &str = "requests refused";
const P50: &str = "time of a request, p50";
const P99: &str = "time of a request, p99";
const COMMANDS: &str = "commands per request";

pub(in crate::figures) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(16, "HTTP with 10,000 random keys over MongoDB, 2 replicas, 64 connections");
    let (rounds, length) = bench.choose((1, Duration::from_secs(3)), (5, Duration::from_secs(5)));
    for pool in POOLS {
        for round in 0..rounds {
            bench.progress(format_args!("pools of {pool}, round {} of {rounds}", round + 1));
            for who in rotated(&CONTENDERS, round) {
                let (window, load, _) = one(bench, who, pool, length, Settings::new(true).uncounted()).await?;
                figure.push(who, what(pool, RATE), "/s", load.total() as f64 / window.seconds());
                figure.push(who, what(pool, REFUSED), "", load.refused as f64);
                figure.push(who, what(pool, P50), "ms", quantile(&load.times, 0.5));
                figure.push(who, what(pool, P99), "ms", quantile(&load.times, 0.99));
            }
        }
        // Counting takes time, so it has a window of its own.
        for who in CONTENDERS {
            let (_, load, sent) = one(bench, who, pool, COUNTED, Settings::new(true)).await?;
            let sent = commands::without_get_more(&sent) as f64;
            figure.push(who, what(pool, COMMANDS), "", sent / load.total() as f64);
        }
    }
    judge(&mut figure);
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    bench.deployment.drop_database(Contender::Raw.database()).await?;
    figure.note(format!(
        "{REPLICAS} processes serve HTTP/1.1 on axum, with a client each; the {CONNECTIONS} connections of the process \
         that measures are shared evenly. The handler does nothing. Raw: it calls `findOneAndUpdate` twice, with an \
         upsert and with w: majority, without the condition that the key is free and without indexes."
    ));
    Ok(figure)
}

fn judge(figure: &mut Figure) {
    let raw = |figure: &Figure, what: &str| (Contender::Raw.to_string(), figure.median(Contender::Raw, what));
    let ours = |figure: &Figure, what: &str| figure.median(Contender::Ours, what);
    let [pool, default] = POOLS;
    let (rate, reference) = (ours(figure, &what(pool, RATE)), raw(figure, &what(pool, RATE)));
    figure.judge_ratio(what(pool, RATE), rate, "/s", reference, Bound::Least(2.0));
    let [p50, p99] = [P50, P99].map(|quantity| ours(figure, &what(pool, quantity)));
    figure.judge_ratio(what(pool, P99), p99, "ms", ("our p50".to_owned(), p50), Bound::Most(4.0));
    figure.judge(what(pool, REFUSED), ours(figure, &what(pool, REFUSED)), "", Bound::Most(0.0));
    for quantity in [RATE, P99] {
        let what = what(default, quantity);
        let unit = if quantity == RATE { "/s" } else { "ms" };
        let (ours, reference) = (ours(figure, &what), raw(figure, &what));
        figure.compare(what, ours, unit, reference);
    }
}

fn what(pool: u32, quantity: &str) -> String {
    format!("pools of {pool}: {quantity}")
}

/// Lets two replicas serve for a while, and returns what was sent by them meanwhile.
async fn one(
    bench: &Bench<'_>,
    who: Contender,
    pool: u32,
    length: Duration,
    settings: Settings,
) -> Outcome<(Window, Load, Counts)> {
    bench.deployment.drop_database(who.database()).await?;
    let mut spec = bench.spec(who, settings, Task::Serve(SERVE));
    spec.uri = deployment::with_options(&spec.uri, &format!("maxPoolSize={pool}"));
    let (mut workers, mut addresses): (Vec<Worker>, Vec<SocketAddr>) = Default::default();
    for _ in 0..REPLICAS {
        let (worker, address) = serving(&spec).await?;
        workers.push(worker);
        addresses.push(address);
    }
    let path = |random: &mut fastrand::Rng| format!("{}{}", service::LOCKED, random.u32(0..KEYS));
    load::run(&addresses, CONNECTIONS, fleet::window(WARM_UP), path).await?;
    let window = fleet::measure_all(&mut workers, length).await?;
    let load = load::run(&addresses, CONNECTIONS, window, path).await?;
    let reports = fleet::reports(workers, window).await?;
    let mut sent = Counts::new();
    reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));
    Ok((window, load, sent))
}
