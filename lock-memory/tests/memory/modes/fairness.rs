//! C28: one queue for all modes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::Waker;

use distlock_api::{LockGuard, LockProviderExt, Mode};
use distlock_memory::MemoryProvider;

use super::kit::{
    Counting, Exclusive, KEY, Shared, assert_idle, held, is_busy, permits, ready, release, waiter, waiter_with, waits,
};

#[test]
fn c28_a_reader_behind_a_waiting_writer_waits() {
    let locks = MemoryProvider::new();
    let readers = [held(&locks, Shared), held(&locks, Shared)];
    let mut writer = waiter(&locks, Exclusive);
    let mut behind = [waiter(&locks, Shared), waiter(&locks, Shared)];
    assert!(is_busy(&locks, Shared), "an attempt does not overtake the writer either");
    for reader in readers {
        assert!(waits(&mut writer));
        drop(reader);
    }
    assert!(behind.iter_mut().all(waits));
    let guard = ready(&mut writer);
    assert!(behind.iter_mut().all(waits));
    let token = guard.fencing_token();
    drop(guard);
    // Both together, and a third one beside them.
    let guards: Vec<LockGuard> = behind.iter_mut().map(ready).chain([held(&locks, Shared)]).collect();
    assert!(guards[0].fencing_token() > token);
    assert!(guards.windows(2).all(|pair| pair[0].fencing_token() < pair[1].fencing_token()));
    drop((guards, writer, behind));
    assert_idle(&locks);
}

#[test]
fn c28_a_release_wakes_the_whole_run_and_no_other() {
    let locks = MemoryProvider::new();
    let (run, others) = (Counting::new(&locks), Counting::new(&locks));
    let (woken, asleep) = (Waker::from(run.clone()), Waker::from(others.clone()));
    let writer = held(&locks, Exclusive);
    let mut readers: Vec<_> = (0..100).map(|_| waiter_with(&locks, Shared, &woken)).collect();
    let mut next = waiter_with(&locks, Exclusive, &asleep);
    let mut last = waiter_with(&locks, Shared, &asleep);
    assert!(release(writer));
    assert_eq!((run.count(), others.count()), (100, 0));
    // Some leave without a look; the writer waits for the last one.
    readers.truncate(50);
    let guards: Vec<_> = readers.iter_mut().map(ready).collect();
    assert!(waits(&mut next) && waits(&mut last));
    drop(guards);
    assert_eq!(others.count(), 0, "they were asked to use another waker");
    drop(ready(&mut next));
    drop(ready(&mut last));
    drop((readers, next, last));
    assert_idle(&locks);
}

#[test]
fn c28_the_exit_of_the_writer_ahead_lets_the_readers_in_at_once() {
    let locks = MemoryProvider::new();
    let counting = Counting::new(&locks);
    let waker = Waker::from(counting.clone());
    let reader = held(&locks, Shared);
    let (first, second) = (waiter(&locks, Exclusive), waiter(&locks, Exclusive));
    let mut behind = [waiter_with(&locks, Shared, &waker), waiter_with(&locks, Shared, &waker)];
    let last = waiter_with(&locks, permits(1, 2), &waker);
    // In either order: only when none is ahead.
    drop(second);
    assert_eq!(counting.count(), 0);
    drop(first);
    assert_eq!(counting.count(), 2, "beside the reader that is there");
    let guards = behind.each_mut().map(ready);
    drop(last);
    drop((reader, guards, behind));
    assert_idle(&locks);
}

#[test]
fn c28_a_large_request_is_not_overtaken_by_small_ones() {
    let locks = MemoryProvider::new();
    let holders = [held(&locks, permits(1, 3)), held(&locks, permits(1, 3))];
    let mut large = waiter(&locks, permits(3, 3));
    let mut small = waiter(&locks, permits(1, 3));
    assert!(waits(&mut small) && is_busy(&locks, permits(1, 3)), "one is left, and it is kept for the large request");
    let [one, two] = holders;
    drop(one);
    assert!(waits(&mut large));
    drop(two);
    let guard = ready(&mut large);
    assert!(waits(&mut small));
    drop(guard);
    drop(ready(&mut small));
    drop((large, small));
    assert_idle(&locks);
}

#[test]
fn c28_a_large_request_that_leaves_lets_the_small_ones_in() {
    let locks = MemoryProvider::new();
    let holder = held(&locks, permits(1, 3));
    let large = waiter(&locks, permits(3, 3));
    let mut small = [waiter(&locks, permits(1, 3)), waiter(&locks, permits(1, 3)), waiter(&locks, permits(1, 3))];
    drop(large);
    let [first, second, third] = &mut small;
    let guards = [ready(first), ready(second)];
    assert!(waits(third));
    drop(holder);
    drop(ready(third));
    drop((guards, small));
    assert_idle(&locks);
}

#[test]
fn c28_a_run_ends_where_a_request_does_not_fit() {
    let locks = MemoryProvider::new();
    let holder = held(&locks, Exclusive);
    let modes = [permits(1, 3), permits(1, 3), permits(2, 3), permits(1, 3), Shared, Shared, Exclusive, Shared];
    let mut waiting: Vec<_> = modes.into_iter().map(|mode| waiter(&locks, mode)).collect();
    drop(holder);
    // The fourth would fit, but the third is ahead.
    for run in [&[0, 1][..], &[2, 3], &[4, 5], &[6], &[7]] {
        let guards: Vec<_> = run.iter().map(|at| ready(&mut waiting[*at])).collect();
        assert!(waiting[run.last().unwrap() + 1..].iter_mut().all(waits));
        drop(guards);
    }
    drop(waiting);
    assert_idle(&locks);
}

/// Tasks request the key again and again in one mode, so that it is never free. One caller of
/// another mode waits for those that were ahead of it, and no longer.
async fn is_served_among(crowd: Mode, one: Mode) {
    const TASKS: u64 = 4;
    let locks = MemoryProvider::new();
    let (granted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (locks, granted, stop) = (locks.clone(), granted.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let guard = locks.acquire(KEY).mode(crowd).await.unwrap();
                    granted.fetch_add(1, Relaxed);
                    tokio::task::yield_now().await;
                    drop(guard);
                }
            })
        })
        .collect();
    for _ in 0..200 {
        tokio::task::yield_now().await;
        let before = granted.load(Relaxed);
        let guard = locks.acquire(KEY).mode(one).await.unwrap();
        let meanwhile = granted.load(Relaxed) - before;
        assert!(meanwhile <= 2 * TASKS, "{one} waited for {meanwhile} grants of {crowd}");
        drop(guard);
    }
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert_idle(&locks);
}

#[tokio::test]
async fn c28_no_mode_starves_another() {
    let modes = [Exclusive, Shared, permits(1, 3), permits(3, 3)];
    for crowd in modes {
        for one in modes {
            is_served_among(crowd, one).await;
        }
    }
}
