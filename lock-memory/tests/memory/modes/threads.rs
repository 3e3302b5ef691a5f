//! Several threads, and a check beside the locks: what is inside at each moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use distlock_api::{LockProvider, LockProviderExt, Mode};
use distlock_memory::MemoryProvider;

use super::kit::{Exclusive, KEY, Shared, assert_idle, call, permits, poll};

/// The guards inside, in one number: writers, readers and permits, 16 bits each.
#[derive(Default)]
struct Inside(AtomicU64);

impl Inside {
    fn of(mode: Mode) -> u64 {
        match mode {
            Exclusive => 1,
            Shared => 1 << 16,
            Mode::Permits { take, .. } => u64::from(take) << 32,
            other => panic!("{other} is not tested"),
        }
    }

    fn enter(&self, mode: Mode) {
        let before = self.0.fetch_add(Self::of(mode), Ordering::SeqCst);
        let (writers, readers, taken) = (before & 0xffff, before >> 16 & 0xffff, before >> 32);
        let allowed = match mode {
            Mode::Permits { take, of } => writers == 0 && readers == 0 && taken + u64::from(take) <= u64::from(of),
            Shared => writers == 0 && taken == 0,
            _ => before == 0,
        };
        assert!(allowed, "{mode} beside {writers} writers, {readers} readers and {taken} permits");
    }

    fn leave(&self, mode: Mode) {
        self.0.fetch_sub(Self::of(mode), Ordering::SeqCst);
    }
}

#[test]
fn c26_c27_no_thread_is_inside_beside_one_that_excludes_it() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 3_000;
    const MODES: [Mode; 5] = [Exclusive, Shared, Shared, permits(1, 3), permits(2, 3)];
    let locks = MemoryProvider::new();
    let inside = Inside::default();
    thread::scope(|scope| {
        // Guards that are dropped elsewhere.
        let (elsewhere, guards) = channel();
        let (locks, inside) = (&locks, &inside);
        scope.spawn(move || {
            while let Ok((mode, guard)) = guards.recv() {
                inside.leave(mode);
                drop(guard);
            }
        });
        for thread in 0..THREADS {
            let elsewhere = elsewhere.clone();
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(async {
                    let mut last = None;
                    for round in 0..ROUNDS {
                        let mode = MODES[(thread * 7 + round * 3) % MODES.len()];
                        let guard = match (thread + round) % 11 {
                            0 => locks.try_acquire(KEY).mode(mode).await.unwrap(),
                            1 => {
                                let limit = Duration::from_millis(1);
                                locks.try_acquire(KEY).mode(mode).within(limit).await.unwrap()
                            }
                            // It leaves after one poll, granted or not.
                            2 => {
                                let _ = poll(&mut call(locks, mode), Waker::noop()).map(drop);
                                None
                            }
                            // Long enough for all, and a waiter that is forgotten still fails.
                            _ => {
                                let limit = Duration::from_secs(30);
                                Some(locks.acquire(KEY).mode(mode).timeout(limit).await.unwrap())
                            }
                        };
                        let Some(guard) = guard else { continue };
                        inside.enter(mode);
                        assert!(last < Some(guard.fencing_token()), "C5");
                        last = Some(guard.fencing_token());
                        if round % 3 == 0 {
                            thread::yield_now();
                        }
                        assert!(locks.accounting().balances());
                        if round % 5 == 0 {
                            elsewhere.send((mode, guard)).unwrap();
                            continue;
                        }
                        inside.leave(mode);
                        assert!(guard.release().await.unwrap().is_released());
                    }
                });
            });
        }
        drop(elsewhere);
    });
    assert_eq!(inside.0.into_inner(), 0);
    assert_idle(&locks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c28_tasks_that_are_dropped_while_they_wait_leave_none_behind_forgotten() {
    const TASKS: usize = 64;
    let locks = MemoryProvider::new();
    for round in 0..100 {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locks = locks.clone();
                let mode = [Exclusive, Shared, permits(1, 2), Shared][(task + round) % 4];
                tokio::spawn(async move {
                    for _ in 0..3 {
                        let guard = locks.acquire(KEY).mode(mode).await.unwrap();
                        tokio::task::yield_now().await;
                        drop(guard);
                    }
                })
            })
            .collect();
        for task in tasks.iter().skip(round % 3).step_by(3) {
            tokio::task::yield_now().await;
            task.abort();
        }
        for task in tasks {
            let ended = tokio::time::timeout(Duration::from_secs(30), task).await.expect("no waiter is forgotten");
            assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()));
        }
        assert_idle(&locks);
    }
}
