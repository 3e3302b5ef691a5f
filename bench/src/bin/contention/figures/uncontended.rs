//! B1: a lock without contention.

use std::sync::Arc;

use super::{Bench, rotated};
use crate::Outcome;
use crate::clock::{self, millis};
use crate::commands::{self, Monitor};
use crate::locks::{self, Contender, Locks, Settings};
use crate::report::{Bound, Figure};
use crate::stats::quantile;

const WHAT: &str = "acquire + release, p50";
const SLOWEST: &str = "acquire + release, p99";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(1, "uncontended acquire + release");
    let all = [
        Contender::Raw,
        Contender::RawEarly,
        Contender::Ours,
        Contender::DistributedLock,
        Contender::MongodbLock,
        Contender::MongoLock,
        Contender::RawPostgres,
        Contender::OursPostgres,
    ];
    let mut ready = Vec::new();
    for who in all {
        let monitor = Arc::new(Monitor::default());
        let settings = Settings::new(true);
        let counted = locks::connect(who, bench.uri(who), settings, &monitor).await?;
        cycle(&*counted, 5).await?;
        let before = monitor.counts();
        cycle(&*counted, 10).await?;
        let sent = commands::difference(&before, &monitor.counts());
        figure.push(who, "commands per acquisition", "", commands::without_get_more(&sent) as f64 / 10.0);

        let monitor = Arc::new(Monitor::default());
        let locks = locks::connect(who, bench.uri(who), settings.uncounted(), &monitor).await?;
        cycle(&*locks, 5).await?;
        ready.push((who, locks));
    }
    let (rounds, cycles) = bench.choose((3, 40), (9, 100));
    let order: Vec<usize> = (0..ready.len()).collect();
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for place in rotated(&order, round) {
            let (who, locks) = &ready[place];
            let times = cycle(&**locks, cycles).await?;
            figure.push(who, WHAT, "ms", quantile(&times, 0.5));
            figure.push(who, SLOWEST, "ms", quantile(&times, 0.99));
        }
    }
    let raw = |figure: &Figure, who: Contender| (who.to_string(), figure.median(who, WHAT));
    let (on_mongo, on_postgres) = (raw(&figure, Contender::Raw), raw(&figure, Contender::RawPostgres));
    figure.judge_ratio(WHAT, figure.median(Contender::Ours, WHAT), "ms", on_mongo, Bound::Most(0.80));
    let early = raw(&figure, Contender::RawEarly);
    figure.compare(WHAT, figure.median(Contender::Ours, WHAT), "ms", early);
    let slowest = (Contender::Raw.to_string(), figure.median(Contender::Raw, SLOWEST));
    figure.judge_ratio(SLOWEST, figure.median(Contender::Ours, SLOWEST), "ms", slowest, Bound::Most(1.30));
    let ours = figure.median(Contender::OursPostgres, WHAT);
    figure.compare(format!("on PostgreSQL: {WHAT}"), ours, "ms", on_postgres);
    figure.note(
        "raw driver: `findOneAndUpdate` and `updateOne` of one record, both with w: majority, or the second one with \
         w: 1, as distlock releases.",
    );
    figure.note(
        "raw driver on PostgreSQL: `INSERT … ON CONFLICT … DO UPDATE … WHERE` and `UPDATE` of one record, each a \
         transaction of its own, prepared and on one connection.",
    );
    Ok(figure)
}

async fn cycle(locks: &dyn Locks, cycles: usize) -> Outcome<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..cycles {
        let start = clock::now();
        locks.acquire("uncontended").await?.release().await?;
        times.push(millis(clock::now() - start));
    }
    Ok(times)
}
