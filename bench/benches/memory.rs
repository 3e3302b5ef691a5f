//! What an acquisition with its release costs within one process.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use distlock_api::LockKey;
use distlock_bench::modes::{BarePermit, BareRead, Permit, Shared};
use distlock_bench::{Bare, Contender, Fluent, Keyed, Lockable, Plain};
use tokio::runtime::Builder;

fn key(name: &str) -> LockKey {
    LockKey::new(format!("orders/{name}")).expect("a valid key")
}

/// One thread, one key.
fn uncontended<C: Contender>(group: &mut BenchmarkGroup<'_, WallTime>) {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let (locks, key) = (C::default(), key("4711"));
    group.bench_function(C::NAME, |bencher| {
        bencher.iter_custom(|iterations| {
            runtime.block_on(async {
                let start = Instant::now();
                for _ in 0..iterations {
                    locks.locked(&key, || black_box(())).await;
                }
                start.elapsed()
            })
        });
    });
}

/// Two threads, each with a runtime of its own, that use their keys as fast as they can; the time
/// is per acquisition of both together.
fn two_threads<C: Contender>(group: &mut BenchmarkGroup<'_, WallTime>, keys: [&str; 2]) {
    let locks = C::default();
    group.bench_function(C::NAME, |bencher| {
        bencher.iter_custom(|iterations| {
            let start = Instant::now();
            thread::scope(|scope| {
                for name in keys {
                    let (locks, key) = (&locks, key(name));
                    scope.spawn(move || {
                        let runtime = Builder::new_current_thread().build().expect("a runtime");
                        runtime.block_on(async {
                            for _ in 0..iterations.div_ceil(2) {
                                locks.locked(&key, || black_box(())).await;
                            }
                        });
                    });
                }
            });
            start.elapsed()
        });
    });
}

/// Sixteen tasks of one thread in line, each giving way once while it holds the lock.
fn in_line<C: Contender>(group: &mut BenchmarkGroup<'_, WallTime>) {
    const TASKS: u64 = 16;
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let (locks, key) = (Arc::new(C::default()), key("4711"));
    group.bench_function(C::NAME, |bencher| {
        bencher.iter_custom(|iterations| {
            runtime.block_on(async {
                let start = Instant::now();
                let tasks = (0..TASKS).map(|_| {
                    let (locks, key) = (Arc::clone(&locks), key.clone());
                    tokio::spawn(async move {
                        for _ in 0..iterations.div_ceil(TASKS) {
                            locks.locked_during(&key, tokio::task::yield_now()).await;
                        }
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.expect("no panic");
                }
                start.elapsed()
            })
        });
    });
}

fn memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one thread");
    uncontended::<Bare>(&mut group);
    uncontended::<Keyed>(&mut group);
    uncontended::<Lockable>(&mut group);
    uncontended::<Plain>(&mut group);
    uncontended::<Fluent>(&mut group);
    group.finish();

    let mut group = criterion.benchmark_group("16 tasks, one key");
    in_line::<Bare>(&mut group);
    in_line::<Keyed>(&mut group);
    in_line::<Lockable>(&mut group);
    in_line::<Plain>(&mut group);
    in_line::<Fluent>(&mut group);
    group.finish();

    for (name, keys) in [("two threads, two keys", ["1", "2"]), ("two threads, one key", ["1", "1"])] {
        let mut group = criterion.benchmark_group(name);
        two_threads::<Bare>(&mut group, keys);
        two_threads::<Keyed>(&mut group, keys);
        two_threads::<Lockable>(&mut group, keys);
        two_threads::<Plain>(&mut group, keys);
        two_threads::<Fluent>(&mut group, keys);
        group.finish();
    }
}

/// S7: shared locks and permits beside exclusive locks. None of the callers ever waits, except for
/// the exclusive ones.
fn modes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("modes, one thread");
    uncontended::<Fluent>(&mut group);
    uncontended::<Shared>(&mut group);
    uncontended::<Permit>(&mut group);
    uncontended::<BareRead>(&mut group);
    uncontended::<BarePermit>(&mut group);
    group.finish();

    let mut group = criterion.benchmark_group("modes, 16 tasks, one key");
    in_line::<Fluent>(&mut group);
    in_line::<Shared>(&mut group);
    in_line::<Permit>(&mut group);
    in_line::<BareRead>(&mut group);
    in_line::<BarePermit>(&mut group);
    group.finish();

    let mut group = criterion.benchmark_group("modes, two threads, one key");
    two_threads::<Fluent>(&mut group, ["1", "1"]);
    two_threads::<Shared>(&mut group, ["1", "1"]);
    two_threads::<Permit>(&mut group, ["1", "1"]);
    two_threads::<BareRead>(&mut group, ["1", "1"]);
    two_threads::<BarePermit>(&mut group, ["1", "1"]);
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = memory, modes
}
criterion_main!(benches);
