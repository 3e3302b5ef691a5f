//! B19: the primary is stopped by `SIGSTOP` and continues after a while. Another member takes its
//! place meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock_api::{LockGuard, LockProviderExt};
use distlock_mongo::MongoProvider;
use mongodb::bson::doc;
use mongodb::{Client, Collection, bson::Document};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::{Bench, isolated};
use crate::Outcome;
use crate::clock::{self, Nanos, millis};
use crate::deployment::{self, Deployment};
use crate::faults::Frozen;
use crate::locks::{Contender, Settings, ours, raw};
use crate::report::{Bound, Figure};

const FREEZE: Duration = Duration::from_secs(30);
/// Acquisitions and writes before the freeze.
const UNDISTURBED: Duration = Duration::from_secs(2);
/// A contender without a success when the old primary continues gets this much more time.
const GRACE: Duration = Duration::from_secs(45);
/// What ends later than this was not done by the frozen member. No other member is elected earlier.
const IN_FLIGHT: Duration = Duration::from_secs(1);
/// Between two acquisitions: 25 per second.
const EVERY: Duration = Duration::from_millis(40);
const TIMEOUT: Duration = Duration::from_secs(3);
const RAW_TIMEOUT: Duration = Duration::from_secs(1);
/// Acquisitions per second that start, which a set that takes writes at full speed can do.
const OFFERED: f64 = 25.0;
/// Acquisitions per second of ten connections if a majority write takes 2 s; see the figure's
/// notes.
const STALLED: f64 = 10.0 / 2.0 / 2.0;
/// Majority writes per second of the raw driver below which the set itself is stalled. Observed: 36
/// if it is not, 0.4 if it is.
const HEALTHY: f64 = 10.0;
/// From the first majority write until acquisitions should succeed at the rate at which they start.
const SETTLED: Duration = Duration::from_secs(2);
const TTLS: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

const RAW_FIRST: &str = "freeze → first majority write";
const OURS_FIRST: &str = "freeze → first acquisition";
const DIFFERENCE: &str = "first majority write → first acquisition";
const WORST: &str = "first majority write → first acquisition, worst run";
const SUSTAINED: &str = "acquisitions from 2 s after the first majority write to the end of the freeze";
const RAW_SUSTAINED: &str = "majority writes from 2 s after the first one to the end of the freeze";
const SHARE: &str = "acquisitions after the election, share of the capacity";
const LEAST_SHARE: &str = "acquisitions after the election, share of the capacity, worst run";
const LOST: &str = "leases lost";
const LOST_IN_ALL: &str = "leases lost, all runs";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(19, "a frozen primary");
    let runs = bench.choose(2, 10);
    let deployment = Deployment::start().await?;
    let measured = measure(bench, &mut figure, deployment.uri(), runs).await;
    deployment.stop().await;
    measured?;

    let rounds = |figure: &Figure, what: &str| -> Vec<f64> {
        let found = figure.measurements.iter().find(|one| one.who == Contender::Ours.name() && one.what == what);
        found.map(|one| one.rounds.clone()).unwrap_or_default()
    };
    let worst = rounds(&figure, DIFFERENCE).into_iter().fold(f64::NAN, f64::max);
    figure.judge(WORST, worst, "s", Bound::Most(2.0));
    let least = rounds(&figure, SHARE).into_iter().fold(f64::NAN, f64::min);
    figure.judge(LEAST_SHARE, least, "", Bound::Least(0.8));
    let lost = rounds(&figure, LOST).iter().sum();
    figure.judge(LOST_IN_ALL, lost, "", Bound::Most(0.0));
    figure.note(format!(
        "{runs} runs on one replica set, with new clients in each; elections after 2 s. The primary is stopped for \
         {} s. Meanwhile 25 acquisitions per second start, each of another key with a timeout of 3 s, and are released \
         at once. Two leases are held, with ttls of 30 s and 60 s.",
        FREEZE.as_secs()
    ));
    figure.note(
        "raw driver: one majority write after the other on a client of its own, each with a timeout of 1 s on the \
         caller's side. Successes within 1 s of the freeze do not count: their replies were on the way.",
    );
    figure.note(
        "In some runs majority writes of every client take up to 2 s until the old primary continues: the third \
         member still waits for it to accept its progress reports, so that the new primary learns of that progress \
         only by heartbeats, every 2 s. The capacity is that of 10 connections then, with two calls per acquisition: \
         2.5 acquisitions per second. It is 25 per second, all that start, in runs in which the raw driver does at \
         least 10 writes per second.",
    );
    Ok(figure)
}

async fn measure(bench: &Bench<'_>, figure: &mut Figure, uri: &str, runs: usize) -> Outcome<()> {
    for run in 0..runs {
        deployment::until_healthy(uri).await?;
        let address = uri.to_owned();
        let seen = isolated(async move { one(&address, run).await }).await?;
        bench.progress(format_args!("run {} of {runs}: {seen}", run + 1));
        seen.describe(figure, run + 1);
    }
    Ok(())
}

/// When a contender succeeded.
#[derive(Clone, Default)]
struct Successes(Arc<Mutex<Vec<Nanos>>>);

impl Successes {
    fn add(&self) {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.push(clock::now());
    }

    fn after(&self, from: Nanos) -> Vec<Nanos> {
        let times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times.iter().copied().filter(|&at| at >= from).collect()
    }
}

async fn one(uri: &str, run: usize) -> Outcome<Seen> {
    let primary = deployment::primary(uri).await?;
    let provider =
        ours::provider(&Client::with_uri_str(uri).await?, Contender::Ours.database(), Settings::new(true)).await?;
    let records = raw::majority(&Client::with_uri_str(uri).await?, Contender::Raw.database(), "writes");
    let mut leases = Vec::new();
    for ttl in TTLS {
        leases.push(provider.acquire(format!("frozen-{run}-{}", ttl.as_secs())).ttl(ttl).await?);
    }
    let (acquired, wrote, lost) = (Successes::default(), Successes::default(), Successes::default());
    let mut running = JoinSet::new();
    for lease in &leases {
        let (signal, lost) = (lease.lost(), lost.clone());
        running.spawn(async move {
            signal.await;
            lost.add();
        });
    }
    running.spawn(acquire(provider, run, acquired.clone()));
    running.spawn(write(records, wrote.clone()));

    sleep(UNDISTURBED).await;
    let frozen = Frozen::new(primary.pid)?;
    let from = clock::now();
    sleep(FREEZE).await;
    drop(frozen);
    let to = clock::now();
    let counted_from = from + IN_FLIGHT.as_nanos() as u64;
    let deadline = to + GRACE.as_nanos() as u64;
    // Also lets a lease be lost whose end a late renewal could not prevent.
    sleep(UNDISTURBED).await;
    while clock::now() < deadline && [&acquired, &wrote].iter().any(|one| one.after(counted_from).is_empty()) {
        sleep(EVERY).await;
    }
    let stop = clock::now();
    running.abort_all();
    leases.into_iter().for_each(LockGuard::abandon);
    Ok(Seen {
        acquired: acquired.after(counted_from),
        wrote: wrote.after(counted_from),
        lost: lost.after(from),
        from,
        to,
        stop,
    })
}

/// Starts acquisitions at a steady rate, whether or not the earlier ones have ended.
async fn acquire(provider: MongoProvider, run: usize, acquired: Successes) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = JoinSet::new();
    for number in 0_u64.. {
        ticks.tick().await;
        while running.try_join_next().is_some() {}
        let (provider, acquired) = (provider.clone(), acquired.clone());
        running.spawn(async move {
            if let Ok(guard) = provider.acquire(format!("frozen-{run}-key-{number}")).timeout(TIMEOUT).await {
                acquired.add();
                // A release that fails changes nothing here: no other task wants the key.
                let _ = guard.release().await;
            }
        });
    }
}

/// One majority write after the other.
async fn write(records: Collection<Document>, wrote: Successes) {
    loop {
        let update = records.update_one(doc! { "_id": "raw" }, doc! { "$inc": { "writes": 1 } }).upsert(true);
        if let Ok(Ok(_)) = timeout(RAW_TIMEOUT, async { update.await }).await {
            wrote.add();
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// What was observed in one run.
struct Seen {
    acquired: Vec<Nanos>,
    wrote: Vec<Nanos>,
    lost: Vec<Nanos>,
    from: Nanos,
    to: Nanos,
    stop: Nanos,
}

impl Seen {
    fn seconds(&self, at: Nanos) -> f64 {
        millis(at - self.from) / 1_000.0
    }

    /// From the freeze to the first success, or to the end of the run if there was none.
    fn first(&self, successes: &[Nanos]) -> f64 {
        self.seconds(successes.first().copied().unwrap_or(self.stop))
    }

    /// Successes per second while the old primary was frozen and a new one took writes.
    fn sustained(&self, successes: &[Nanos]) -> f64 {
        let first = self.wrote.first().copied().unwrap_or(self.from);
        let from = first + SETTLED.as_nanos() as u64;
        let count = successes.iter().filter(|&&at| at >= from && at < self.to).count();
        count as f64 / (millis(self.to.saturating_sub(from)) / 1_000.0)
    }

    fn describe(&self, figure: &mut Figure, run: usize) {
        let (raw, ours) = (self.first(&self.wrote), self.first(&self.acquired));
        figure.push(Contender::Raw, RAW_FIRST, "s", raw);
        figure.push(Contender::Ours, OURS_FIRST, "s", ours);
        figure.push(Contender::Ours, DIFFERENCE, "s", ours - raw);
        figure.push(Contender::Raw, RAW_SUSTAINED, "/s", self.sustained(&self.wrote));
        figure.push(Contender::Ours, SUSTAINED, "/s", self.sustained(&self.acquired));
        let capacity = if self.sustained(&self.wrote) >= HEALTHY { OFFERED } else { STALLED };
        figure.push(Contender::Ours, SHARE, "", self.sustained(&self.acquired) / capacity);
        figure.push(Contender::Ours, LOST, "", self.lost.len() as f64);
        figure.note(format!("Run {run}: {self}"));
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "first majority write after {:.2} s, first acquisition ", self.first(&self.wrote))?;
        if self.acquired.is_empty() {
            write!(f, "not within {:.0} s", self.seconds(self.stop))?;
        } else {
            write!(f, "after {:.2} s", self.first(&self.acquired))?;
        }
        let during = |successes: &[Nanos]| successes.iter().filter(|&&at| at < self.to).count();
        let (writes, acquisitions) = (during(&self.wrote), during(&self.acquired));
        write!(f, ", {writes} writes and {acquisitions} acquisitions during the freeze")?;
        write!(f, ", {} leases lost", self.lost.len())?;
        for &lost in &self.lost {
            write!(f, ", one after {:.1} s", self.seconds(lost))?;
        }
        f.write_str(".")
    }
}
