//! B11, B12 and S7: locks within one process, without any server.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use distlock_api::LockKey;
use distlock_bench::modes::{BarePermit, BareRead, Permit, Shared};
use distlock_bench::{Bare, Contender, Fluent, Keyed, Lockable, Plain};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use super::{Bench, Id, rotated};
use crate::Outcome;
use crate::report::{Bound, Figure};

const ALONE: &str = "acquire + release";
const THREADS: &str = "2 threads: acquisitions";
const APART: &str = "2 threads, a key each: acquisitions";
const QUEUE: &str = "16 tasks: time per acquisition";
const OURS: [&str; 2] = [Plain::NAME, Fluent::NAME];
const TASKS: usize = 16;
/// Between two looks at the clock.
const BATCH: u32 = 64;

/// A measurement of one contender: its name, and what gives a value.
type Measurer = (&'static str, fn(Duration) -> Outcome<f64>);

/// B11.
pub(super) async fn uncontended(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(11, "in memory, one key, acquire + release");
    let all: [Measurer; 5] = [
        (Bare::NAME, alone::<Bare>),
        (Keyed::NAME, alone::<Keyed>),
        (Lockable::NAME, alone::<Lockable>),
        (Plain::NAME, alone::<Plain>),
        (Fluent::NAME, alone::<Fluent>),
    ];
    measure(bench, &mut figure, ALONE, "ns", &all).await?;
    for ours in OURS {
        let best = faster(&figure, ALONE, false);
        figure.judge_ratio(format!("{ours}: {ALONE}"), figure.median(ours, ALONE), "ns", best, Bound::Most(0.8));
    }
    Ok(figure)
}

/// B12.
pub(super) async fn contended(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(12, "in memory, contended");
    let threads: [Measurer; 5] = [
        (Bare::NAME, two_threads::<Bare, 1>),
        (Keyed::NAME, two_threads::<Keyed, 1>),
        (Lockable::NAME, two_threads::<Lockable, 1>),
        (Plain::NAME, two_threads::<Plain, 1>),
        (Fluent::NAME, two_threads::<Fluent, 1>),
    ];
    measure(bench, &mut figure, THREADS, "/s", &threads).await?;
    let apart: [Measurer; 4] = [
        (Keyed::NAME, two_threads::<Keyed, 2>),
        (Lockable::NAME, two_threads::<Lockable, 2>),
        (Plain::NAME, two_threads::<Plain, 2>),
        (Fluent::NAME, two_threads::<Fluent, 2>),
    ];
    measure(bench, &mut figure, APART, "/s", &apart).await?;
    let queue: [Measurer; 5] = [
        (Bare::NAME, queue::<Bare>),
        (Keyed::NAME, queue::<Keyed>),
        (Lockable::NAME, queue::<Lockable>),
        (Plain::NAME, queue::<Plain>),
        (Fluent::NAME, queue::<Fluent>),
    ];
    measure(bench, &mut figure, QUEUE, "ns", &queue).await?;
    for ours in OURS {
        let best = faster(&figure, THREADS, true);
        figure.judge_ratio(format!("{ours}: {THREADS}"), figure.median(ours, THREADS), "/s", best, Bound::Least(1.5));
        let best = faster(&figure, APART, true);
        figure.compare(format!("{ours}: {APART}"), figure.median(ours, APART), "/s", best);
        let best = faster(&figure, QUEUE, false);
        figure.judge_ratio(format!("{ours}: {QUEUE}"), figure.median(ours, QUEUE), "ns", best, Bound::Most(1.0));
    }
    figure.note("2 threads: each with a runtime of its own, nothing done under the lock. 16 tasks: on one thread, each gives way once while it holds the lock, so that all others queue up.");
    Ok(figure)
}

/// S7.
pub(super) async fn modes(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = Figure::new(Id::S(7), "in memory, one key, acquire + release, shared and permits", bench.quick);
    let all: [Measurer; 5] = [
        (Fluent::NAME, alone::<Fluent>),
        (Shared::NAME, alone::<Shared>),
        (Permit::NAME, alone::<Permit>),
        (BareRead::NAME, alone::<BareRead>),
        (BarePermit::NAME, alone::<BarePermit>),
    ];
    measure(bench, &mut figure, ALONE, "ns", &all).await?;
    let of = |figure: &Figure, name: &str| (name.to_owned(), figure.median(name, ALONE));
    for (ours, bare) in [(Shared::NAME, BareRead::NAME), (Permit::NAME, BarePermit::NAME)] {
        let what = format!("{ours}: {ALONE}");
        let (_, time) = of(&figure, ours);
        let (exclusive, bare) = (of(&figure, Fluent::NAME), of(&figure, bare));
        if ours == Shared::NAME {
            figure.judge_ratio(&what, time, "ns", exclusive, Bound::Most(1.1));
        } else {
            figure.compare(&what, time, "ns", exclusive);
        }
        figure.compare(&what, time, "ns", bare);
    }
    Ok(figure)
}

async fn measure(
    bench: &Bench<'_>,
    figure: &mut Figure,
    what: &str,
    unit: &'static str,
    all: &[Measurer],
) -> Outcome<()> {
    let (rounds, length) = bench.choose((5, 200), (15, 300));
    bench.progress(format_args!("{what}: {rounds} rounds"));
    for round in 0..rounds {
        for (name, measure) in rotated(all, round) {
            let value = spawn_blocking(move || measure(Duration::from_millis(length))).await??;
            figure.push(name, what, unit, value);
        }
    }
    Ok(())
}

/// The faster of the two crates that lock keys.
fn faster(figure: &Figure, what: &str, greatest: bool) -> (String, f64) {
    let [one, other] = [Keyed::NAME, Lockable::NAME].map(|name| (name.to_owned(), figure.median(name, what)));
    if (one.1 > other.1) == greatest { one } else { other }
}

/// Nanoseconds per acquisition of one task that is alone.
fn alone<C: Contender>(length: Duration) -> Outcome<f64> {
    let (locks, key) = (C::default(), LockKey::new("orders/4711")?);
    Builder::new_current_thread().build()?.block_on(async {
        let start = Instant::now();
        let mut done = 0_u32;
        while start.elapsed() < length {
            for _ in 0..BATCH {
                locks.locked(&key, || black_box(())).await;
            }
            done += BATCH;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(done))
    })
}

/// Acquisitions per second of two threads together, which take turns on this many keys.
fn two_threads<C: Contender, const KEYS: usize>(length: Duration) -> Outcome<f64> {
    let (locks, keys) = (C::default(), [LockKey::new("orders/4711")?, LockKey::new("orders/4712")?]);
    let (stop, done, start) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(3));
    let runtimes = [Builder::new_current_thread().build()?, Builder::new_current_thread().build()?];
    let seconds = thread::scope(|scope| {
        for (thread, runtime) in runtimes.into_iter().enumerate() {
            let (locks, key, stop, done, start) = (&locks, &keys[thread % KEYS], &stop, &done, &start);
            scope.spawn(move || {
                start.wait();
                let acquired = runtime.block_on(async {
                    let mut acquired = 0;
                    while !stop.load(Ordering::Relaxed) {
                        locks.locked(key, || black_box(())).await;
                        acquired += 1;
                    }
                    acquired
                });
                done.fetch_add(acquired, Ordering::Relaxed);
            });
        }
        start.wait();
        let started = Instant::now();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        started.elapsed().as_secs_f64()
    });
    Ok(done.into_inner() as f64 / seconds)
}

/// Nanoseconds per acquisition when sixteen tasks of one thread stand in line.
fn queue<C: Contender>(length: Duration) -> Outcome<f64> {
    let (locks, key) = (Arc::new(C::default()), LockKey::new("orders/4711")?);
    Builder::new_current_thread().build()?.block_on(async {
        let start = Instant::now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (locks, key) = (Arc::clone(&locks), key.clone());
                tokio::spawn(async move {
                    let mut done = 0_u32;
                    while start.elapsed() < length {
                        locks.locked_during(&key, tokio::task::yield_now()).await;
                        done += 1;
                    }
                    done
                })
            })
            .collect();
        let mut done = 0;
        for task in tasks {
            done += task.await?;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(done))
    })
}
