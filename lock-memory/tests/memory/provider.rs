//! `MemoryProvider`: order, cancellation, loss, accounting, and what it leaves behind.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use distlock_api::{
    AcquireOptions, Acquired, ErrorKind, LeaseOptions, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome,
    Wait,
};
use distlock_memory::MemoryProvider;
use tokio::time::Instant;

use crate::kit::calls::{Waiting, assert_idle, block_on, poll_with, ready, waiter_with};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

fn waiter<'a>(locks: &'a MemoryProvider, key: &'a str) -> Waiting<'a> {
    waiter_with(locks, key, Waker::noop())
}

#[test]
fn c15_waiters_are_served_in_the_order_of_their_calls() {
    let locks = MemoryProvider::new();
    let mut guard = block_on(locks.acquire("k").into_future()).unwrap();
    let mut waiting: Vec<_> = (0..5).map(|_| waiter(&locks, "k")).collect();
    assert_eq!(locks.accounting().waiting, 5);
    for mut next in waiting.drain(..) {
        let token = guard.fencing_token();
        assert!(block_on(guard.release()).unwrap().is_released());
        // Handed over already: no other caller overtakes, not even before the waiter has looked.
        assert!(block_on(locks.try_acquire("k").into_future()).unwrap().is_none());
        guard = ready(&mut next);
        assert!(guard.fencing_token() > token);
    }
    drop(guard);
    assert_idle(&locks);
}

#[test]
fn c11_a_waiter_may_leave_at_any_stage() {
    let locks = MemoryProvider::new();
    let held = || block_on(locks.acquire("k").into_future()).unwrap();

    // Before it was polled.
    drop(locks.acquire("k").into_future());
    assert_idle(&locks);

    // In the queue, first and in the middle.
    let guard = held();
    let (first, mut second, third, mut fourth) =
        (waiter(&locks, "k"), waiter(&locks, "k"), waiter(&locks, "k"), waiter(&locks, "k"));
    drop(first);
    drop(third);
    assert_eq!(locks.accounting().waiting, 2);
    let key = LockKey::new("k").unwrap();
    let Acquired::Busy(busy) = block_on(locks.acquire_with(key.clone(), AcquireOptions::try_once())).unwrap() else {
        panic!("held")
    };
    assert_eq!(busy.ahead, Some(2), "waiters that left are not in the queue");
    drop(guard);
    drop(ready(&mut second));

    // Granted, but it has not looked: the lock passes to the next.
    let guard = ready(&mut fourth);
    let (granted, mut next) = (waiter(&locks, "k"), waiter(&locks, "k"));
    drop(guard);
    drop(granted);
    drop(ready(&mut next));

    // Granted, and no waiter is next: the key is free.
    let guard = held();
    let granted = waiter(&locks, "k");
    drop(guard);
    drop(granted);
    assert_idle(&locks);
    assert_eq!(locks.accounting().acquired, 5, "grants that no caller got are not acquisitions");
    assert_eq!(locks.accounting().released, 5);
}

#[test]
fn c11_many_that_leave_at_once_do_not_overflow_the_stack() {
    let locks = MemoryProvider::new();
    let guard = block_on(locks.acquire("k").into_future()).unwrap();
    let waiting: Vec<_> = (0..100_000).map(|_| waiter(&locks, "k")).collect();
    drop(guard);
    drop(waiting);
    assert_idle(&locks);
}

#[test]
fn c5_tokens_grow_although_nothing_is_left_of_the_key() {
    let locks = MemoryProvider::new();
    let mut last = None;
    for _ in 0..3 {
        let guard = block_on(locks.acquire("k").into_future()).unwrap();
        assert!(last < Some(guard.fencing_token()));
        last = Some(guard.fencing_token());
        drop(guard);
        assert_idle(&locks);
    }
}

#[test]
fn c20_keys_do_not_interfere() {
    let locks = MemoryProvider::new();
    let guards: Vec<_> =
        ["a", "A", "a\0", "a ", "é", "e\u{301}"].map(|key| block_on(locks.try_acquire(key).into_future())).into();
    assert!(guards.iter().all(|guard| guard.as_ref().unwrap().is_some()));
    assert_eq!(locks.keys_in_use(), 6);
}

#[test]
fn options_are_checked_before_anything_is_done() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let refusal = |options| block_on(locks.acquire_with(key.clone(), options)).unwrap_err().kind();
    let lease = |lease| AcquireOptions::new().with_lease(lease);
    assert_eq!(refusal(lease(LeaseOptions::new().ttl(Duration::ZERO))), ErrorKind::InvalidOptions);
    assert_eq!(refusal(AcquireOptions::new().with_owner("o".repeat(300))), ErrorKind::InvalidOptions);
    // Without a runtime there is no timer.
    assert_eq!(refusal(lease(LeaseOptions::new().hold_at_least(MS(1)))), ErrorKind::Unsupported);
    assert_idle(&locks);
    let bounded = AcquireOptions::new().with_wait(Wait::UpTo(MS(1)));
    let guard = block_on(locks.acquire_with(key.clone(), bounded.clone())).unwrap();
    assert_eq!(refusal(bounded), ErrorKind::Unsupported);
    drop(guard);
    assert_idle(&locks);
}

#[tokio::test(start_paused = true)]
async fn c18_a_bounded_wait_ends_on_time() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let guard = locks.acquire(&key).await.unwrap();
    for (wait, expected) in [(Wait::Try, MS(0)), (Wait::UpTo(MS(0)), MS(0)), (Wait::UpTo(MS(70)), MS(70))] {
        let start = Instant::now();
        let answer = locks.acquire_with(key.clone(), AcquireOptions::new().with_wait(wait)).await.unwrap();
        assert!(matches!(answer, Acquired::Busy(_)));
        let waited = start.elapsed();
        assert!(waited >= expected && waited <= expected + MS(2), "{wait:?} took {waited:?}");
    }
    let for_ever = locks.acquire(&key).timeout(Duration::MAX).into_future();
    let release = async {
        tokio::time::sleep(MS(500)).await;
        drop(guard);
    };
    let (acquired, ()) = tokio::join!(for_ever, release);
    drop(acquired.unwrap());
    assert_idle(&locks);
}

#[tokio::test]
async fn c24_close_refuses_wakes_and_takes_away() {
    let locks = MemoryProvider::new();
    let guard = locks.acquire("k").await.unwrap();
    let (mut asked_before, first_polled_after) = (Box::pin(guard.lost()), guard.lost());
    assert!(poll(&mut asked_before).is_pending());
    let mut waiting = waiter(&locks, "k");
    // One more, whose turn is in transit.
    let other = locks.acquire("other").await.unwrap();
    let mut on_its_way = waiter(&locks, "other");
    drop(other);

    locks.close().await.unwrap();
    assert_eq!(guard.loss(), Some(Loss::Closed));
    assert_eq!(
        (asked_before.await, first_polled_after.await, guard.lost().await),
        (Loss::Closed, Loss::Closed, Loss::Closed)
    );
    for waiting in [&mut waiting, &mut on_its_way] {
        let Poll::Ready(Err(error)) = poll(waiting) else { panic!("waiters get an error") };
        assert_eq!((error.kind(), error.key().is_some()), (ErrorKind::Closed, true));
    }
    drop((waiting, on_its_way));
    assert_eq!(locks.clone().try_acquire("new").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    let accounting = locks.accounting();
    assert_eq!((accounting.acquired, accounting.released, accounting.lost), (2, 2, 0));
    assert_idle(&locks);
    locks.close().await.unwrap();
}

#[tokio::test]
async fn c22_a_force_release_is_signalled_at_once_and_hands_over() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let admin = locks.admin().unwrap();
    assert_eq!(admin.inspect(&key).await.unwrap(), None);
    assert_eq!(admin.force_release(&key, "free").await.unwrap(), None);

    let victim = locks.acquire(&key).owner("o").metadata("why", "test").await.unwrap();
    let mut next = waiter(&locks, "k");
    let seen = admin.inspect(&key).await.unwrap().unwrap();
    assert_eq!((seen.owner.as_deref(), seen.token), (Some("o"), victim.fencing_token()));
    assert_eq!((seen.metadata["why"].as_str(), seen.remaining), ("test", Duration::MAX));

    let mut lost = Box::pin(victim.lost());
    assert!(poll(&mut lost).is_pending());
    assert_eq!(admin.force_release(&key, "test").await.unwrap(), Some(seen.clone()));
    assert_eq!(lost.await, Loss::ForceReleased);
    let guard = ready(&mut next);
    assert!(guard.fencing_token() > victim.fencing_token());
    assert_ne!(admin.inspect(&key).await.unwrap().unwrap().id, seen.id);
    // C8: the victim's late release changes nothing.
    assert_eq!(victim.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert!(!guard.is_lost());
    drop(guard);
    assert_idle(&locks);
}

#[tokio::test]
async fn a_turn_that_is_taken_away_in_transit_makes_a_lost_guard() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let guard = locks.acquire(&key).await.unwrap();
    let mut waiting = waiter(&locks, "k");
    drop(guard);
    assert!(locks.admin().unwrap().force_release(&key, "test").await.unwrap().is_some());
    let late = ready(&mut waiting);
    assert_eq!(late.loss(), Some(Loss::ForceReleased));
    drop((late, waiting));
    assert_idle(&locks);
}

#[tokio::test]
async fn a_loss_is_never_signalled_after_a_release() {
    let locks = MemoryProvider::new();
    let guard = locks.acquire("k").await.unwrap();
    let (mut polled_before, mut first_polled_after) = (Box::pin(guard.lost()), Box::pin(guard.lost()));
    assert!(poll(&mut polled_before).is_pending());
    assert!(guard.release().await.unwrap().is_released());
    let _again = locks.acquire("k").await.unwrap();
    locks.close().await.unwrap();
    assert!(poll(&mut polled_before).is_pending() && poll(&mut first_polled_after).is_pending());
}

#[tokio::test(start_paused = true)]
async fn c25_a_discarded_lock_has_no_minimum_hold() {
    let locks = MemoryProvider::new();
    let guard = locks.acquire("k").hold_at_least(MS(1000)).await.unwrap();
    assert!(guard.discard().await.unwrap().is_released());
    assert!(locks.try_acquire("k").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_outlasts_the_guard() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let start = Instant::now();
    let guard = locks.acquire(&key).hold_at_least(MS(1000)).await.unwrap();
    tokio::time::advance(MS(400)).await;
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(locks.accounting().held, 0);
    let Acquired::Busy(busy) = locks.acquire_with(key.clone(), AcquireOptions::try_once()).await.unwrap() else {
        panic!("kept closed")
    };
    assert_eq!(busy.retry_after, Some(MS(600)));
    assert_eq!(locks.admin().unwrap().inspect(&key).await.unwrap().unwrap().id, None);
    let guard = locks.acquire(&key).await.unwrap();
    let waited = start.elapsed();
    assert!(waited >= MS(1000) && waited <= MS(1002), "{waited:?}");
    drop(guard);

    // A guard that outlives its minimum hold leaves nothing to wait for; a force-release opens at
    // once.
    let guard = locks.acquire(&key).hold_at_least(MS(1000)).await.unwrap();
    tokio::time::advance(MS(1000)).await;
    drop(guard);
    assert_idle(&locks);
    drop(locks.acquire(&key).hold_at_least(MS(1000)).await.unwrap());
    assert!(locks.admin().unwrap().force_release(&key, "test").await.unwrap().is_some());
    assert_idle(&locks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c23_two_threads_never_meet_and_every_acquisition_is_accounted_for() {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 2_000;
    let locks = MemoryProvider::new();
    // Read, then written: without the lock updates get lost.
    let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, counters) = (locks.clone(), counters.clone());
            tokio::spawn(async move {
                let (mut done, mut last) = ([0, 0], [0, 0]);
                for round in 0..ROUNDS {
                    let which = ((task + round) % 2) as usize;
                    let waiting = locks.acquire(["a", "b"][which]).into_future();
                    let guard = match (task * 7 + round) % 5 {
                        // Sometimes it leaves after one poll, granted or not.
                        0 => {
                            let mut waiting: Waiting<'_> = Box::pin(waiting);
                            let _ = poll(&mut waiting);
                            continue;
                        }
                        _ => waiting.await.unwrap(),
                    };
                    assert!(guard.fencing_token().get() > last[which]);
                    last[which] = guard.fencing_token().get();
                    let seen = counters[which].load(Ordering::Relaxed);
                    if round % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                    counters[which].store(seen + 1, Ordering::Relaxed);
                    done[which] += 1;
                    assert!(locks.accounting().balances());
                    assert!(guard.release().await.unwrap().is_released());
                }
                done
            })
        })
        .collect();
    let mut expected = [0, 0];
    for task in tasks {
        let done = task.await.unwrap();
        expected = [expected[0] + done[0], expected[1] + done[1]];
    }
    assert_eq!([0, 1].map(|which| counters[which].load(Ordering::Relaxed)), expected);
    assert_idle(&locks);
}

/// Threads that look again before they sleep, with waits that end, waits that are given up, and
/// holders that take their time.
#[test]
fn c1_c16_threads_pass_a_key_to_each_other_and_no_waiter_is_forgotten() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 4_000;
    let locks = MemoryProvider::new();
    let counter = AtomicU64::new(0);
    let done: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (locks, counter) = (&locks, &counter);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    runtime.block_on(async {
                        let mut done = 0;
                        for round in 0..ROUNDS {
                            let guard = match (thread + round) % 11 {
                                0 => locks.try_acquire("k").within(MS(1)).await.unwrap(),
                                1 => match poll(&mut Box::pin(locks.acquire("k").into_future())) {
                                    Poll::Ready(guard) => Some(guard.unwrap()),
                                    Poll::Pending => None,
                                },
                                // Long enough for all, and a waiter that is forgotten still fails.
                                _ => Some(locks.acquire("k").timeout(MS(30_000)).await.unwrap()),
                            };
                            let Some(guard) = guard else { continue };
                            let seen = counter.load(Ordering::Relaxed);
                            if round % 16 == 0 {
                                tokio::time::sleep(MS(1)).await;
                            }
                            counter.store(seen + 1, Ordering::Relaxed);
                            done += 1;
                            assert!(guard.release().await.unwrap().is_released());
                        }
                        done
                    })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(counter.into_inner(), done);
    assert_idle(&locks);
}

#[tokio::test(start_paused = true)]
async fn c4_a_guard_is_lost_after_its_maximum_hold_and_the_key_passes_on() {
    let locks = MemoryProvider::new();
    let started = Instant::now();
    let held = locks.acquire("k").max_hold(MS(50)).await.unwrap();
    assert_eq!((held.remaining(), held.loss()), (Some(MS(50)), None));
    let next = locks.acquire("k").await.unwrap();
    assert!(started.elapsed() >= MS(50) && started.elapsed() < MS(60), "{:?}", started.elapsed());
    assert_eq!((held.loss(), held.lost().await), (Some(Loss::HeldTooLong), Loss::HeldTooLong));
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    drop(next);
    // The timer of a guard that was released in time ends with it.
    drop(locks.acquire("k").max_hold(MS(50)).await.unwrap());
    let other = locks.acquire("k").await.unwrap();
    tokio::time::advance(MS(1000)).await;
    assert_eq!(other.loss(), None);
    drop(other);
    let accounting = locks.accounting();
    assert!(accounting.lost == 1 && accounting.acquired == 4 && accounting.balances(), "{accounting:?}");
    assert_idle(&locks);
}

/// Returns a runtime that runs only within `block_on`.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

#[test]
fn c4_a_maximum_hold_ends_although_the_runtime_of_its_timer_does_not_run() {
    let locks = MemoryProvider::new();
    let (one, two) = (runtime(), runtime());
    let held = one.block_on(locks.acquire("k").max_hold(MS(20)).into_future()).unwrap();
    let signal = held.lost();
    assert_eq!(two.block_on(async { tokio::time::timeout(MS(20_000), signal).await }), Ok(Loss::HeldTooLong));
    assert!(block_on(locks.try_acquire("k").into_future()).unwrap().is_some(), "the key was taken away");
    drop(held);
    for looks in [true, false] {
        let held = one.block_on(locks.acquire("k").max_hold(MS(20)).into_future()).unwrap();
        std::thread::sleep(MS(30));
        if looks {
            assert!(held.is_lost());
            assert!(block_on(locks.try_acquire("k").into_future()).unwrap().is_some());
        }
        assert_eq!(two.block_on(held.release()).unwrap(), ReleaseOutcome::AlreadyLost);
    }
    let accounting = locks.accounting();
    assert!(accounting.lost == 3 && accounting.balances(), "{accounting:?}");
    assert_idle(&locks);
}

#[test]
fn c25_a_minimum_hold_outlasts_the_runtime_that_acquired_the_lock() {
    let locks = MemoryProvider::new();
    let (one, two) = (runtime(), runtime());
    let held = one.block_on(locks.acquire("k").hold_at_least(MS(60_000)).into_future()).unwrap();
    drop(one);
    assert!(two.block_on(async { held.release().await }).unwrap().is_released());
    assert!(block_on(locks.try_acquire("k").into_future()).unwrap().is_none());
}

#[test]
fn a_maximum_hold_needs_a_runtime() {
    let error = block_on(MemoryProvider::new().acquire("k").max_hold(MS(50)).into_future()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("maximum hold"), "{error}");
}

#[test]
fn c21_several_locks_need_no_runtime_unless_they_need_its_timer() {
    let locks = MemoryProvider::new();
    let all = block_on(locks.acquire_all(["a", "b", "c"]).into_future()).unwrap();
    assert!(block_on(all.release()).unwrap().is_released());
    let holder = block_on(locks.acquire("b").into_future()).unwrap();
    assert!(block_on(locks.try_acquire_all(["a", "b", "c"]).into_future()).unwrap().is_none());
    assert_eq!(locks.keys_in_use(), 1, "all or nothing");
    let bounded = locks.acquire_all(["a", "b", "c"]).timeout(MS(20)).into_future();
    assert_eq!(block_on(bounded).map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(locks.keys_in_use(), 1, "all or nothing");
    // Without a limit the busy one is waited for, whatever the executor.
    let mut all = Box::pin(locks.acquire_all(["a", "b", "c"]).into_future());
    assert!(poll(&mut all).is_pending());
    assert!(block_on(holder.release()).unwrap().is_released());
    let Poll::Ready(all) = poll(&mut all) else { panic!("all are free") };
    drop(all.unwrap());
    assert_idle(&locks);
}
