//! B5 and B6: many tasks that want the same lock all the time, and release it at once.

use std::time::Duration;

use super::{Bench, best_peer, note_errors, rotated};
use crate::Outcome;
use crate::commands::{self, Counts};
use crate::fleet;
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::stats::{evenness, least_of_even, quantile};
use crate::worker::protocol::Contend;

const RATE: &str = "acquisitions";
const WAIT_P50: &str = "wait, p50";
const WAIT_P99: &str = "wait, p99";
/// The last one shows how even waits can be on the machine, and thus how much of the 99th
/// percentile is due to its scheduler.
const WITH_MUTEX: [Contender; 6] = {
    let [a, b, c, d, e] = Contender::WITH_POSTGRES;
    [a, b, c, d, e, Contender::Mutex]
};

const LEAST_PROCESS: &str = "least process / even share";

/// B5.
pub(super) async fn one_process(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(5, "64 waiters in one process, hold 0, in-process hand-off on");
    run(bench, &mut figure, &WITH_MUTEX, 1, 64).await?;
    judge_rate(&mut figure, Bound::Least(100.0));
    let mutex = |what| figure.median(Contender::Mutex, what);
    let evenness = mutex(WAIT_P99) / mutex(WAIT_P50);
    figure.note(format!(
        "A bare mutex in the same process, with no lock service at all: p99 {evenness:.2} × its own median wait."
    ));
    let (p50, p99) = (figure.median(Contender::Ours, WAIT_P50), figure.median(Contender::Ours, WAIT_P99));
    figure.judge_ratio(WAIT_P99, p99, "ms", ("our median wait".to_owned(), p50), Bound::Most(2.0));
    show_on_postgres(&mut figure, RATE, "/s");
    let [p50, p99] = [WAIT_P50, WAIT_P99].map(|what| figure.median(Contender::OursPostgres, what));
    figure.compare(format!("on PostgreSQL: {WAIT_P99}"), p99, "ms", ("our median wait there".to_owned(), p50));
    Ok(figure)
}

/// B6.
pub(super) async fn four_processes(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(6, "4 processes × 16 waiters, one key, hold 0");
    run(bench, &mut figure, &Contender::WITH_POSTGRES, 4, 16).await?;
    judge_rate(&mut figure, Bound::Least(20.0));
    figure.judge(LEAST_PROCESS, figure.median(Contender::Ours, LEAST_PROCESS), "", Bound::Least(0.5));
    show_on_postgres(&mut figure, RATE, "/s");
    show_on_postgres(&mut figure, LEAST_PROCESS, "");
    Ok(figure)
}

/// There is no reference for it: the raw driver has no waiters.
fn show_on_postgres(figure: &mut Figure, what: &str, unit: &'static str) {
    let ours = figure.median(Contender::OursPostgres, what);
    figure.compare(format!("on PostgreSQL: {what}"), ours, unit, None);
}

fn judge_rate(figure: &mut Figure, bound: Bound) {
    let best = best_peer(figure, RATE, true);
    figure.judge_ratio(RATE, figure.median(Contender::Ours, RATE), "/s", best, bound);
}

async fn run(
    bench: &Bench<'_>,
    figure: &mut Figure,
    contenders: &[Contender],
    processes: usize,
    waiters: usize,
) -> Outcome<()> {
    let (rounds, length) = bench.choose((2, 3), (5, 5));
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for who in rotated(contenders, round) {
            let key = format!("queue-{processes}-{round}");
            let task = Contend { key, waiters, ..Contend::default() };
            let specs = bench.contenders(who, Settings::new(true), processes, &task);
            let (window, reports) = fleet::run(&specs, Duration::from_secs(length)).await?;
            let all = || reports.iter().flat_map(|report| &report.waiters);
            let turns: Vec<u64> = all().map(|waiter| waiter.acquired).collect();
            let acquired = turns.iter().sum::<u64>() as f64;
            let waits: Vec<f64> = all().flat_map(|waiter| &waiter.waits_ns).map(|&wait| wait as f64 / 1e6).collect();
            let mut sent = Counts::new();
            reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));
            figure.push(who, RATE, "/s", acquired / window.seconds());
            figure.push(who, WAIT_P50, "ms", quantile(&waits, 0.5));
            figure.push(who, WAIT_P99, "ms", quantile(&waits, 0.99));
            figure.push(who, "commands per acquisition", "", commands::without_get_more(&sent) as f64 / acquired);
            figure.push(who, "fewest / most turns", "", evenness(&turns));
            if processes > 1 {
                let sum =
                    |report: &crate::worker::protocol::Report| report.waiters.iter().map(|one| one.acquired).sum();
                let shares: Vec<u64> = reports.iter().map(sum).collect();
                figure.push(who, LEAST_PROCESS, "", least_of_even(&shares));
            }
            note_errors(figure, who, &reports);
        }
    }
    figure.note("Waits that the end of the window cut off count with the time until then, so that waiters that never got the lock are among them.");
    Ok(())
}
