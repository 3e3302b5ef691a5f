//! Shared locks and permits across processes (C26 – C31).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use distlock_api::{AcquireOptions, ErrorKind, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, Mode, Result};
use distlock_engine::store::{Attempt, Claim, ProviderId, Reply};
use distlock_engine::{AcquiredLease, LeaseProvider, LeaseStore};
use distlock_memory::Operation;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{
    acquire, assert_pending, guard, holds_nothing, memory, ms, queued, quick, quick_setup, secs, setup, waiter, waiting,
};

async fn hold(provider: &LeaseProvider, mode: Mode) -> LockGuard {
    provider.acquire("k").mode(mode).await.unwrap()
}

/// Acquires `k` in a task of its own.
fn in_mode(provider: &LeaseProvider, mode: Mode) -> JoinHandle<Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").mode(mode).await })
}

const fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take, of }
}

#[tokio::test(start_paused = true)]
async fn c26_readers_of_two_processes_hold_together_and_a_writer_alone() {
    let (store, [a, b]) = quick_setup();
    let (first, second) = (hold(&a, Mode::Shared).await, hold(&b, Mode::Shared).await);
    assert_eq!(store.peek("k").unwrap().holders.len(), 2);
    let mut writer = waiter(&a);
    assert_pending(&mut writer, secs(3)).await;
    let read = [&first, &second].map(LockGuard::fencing_token);
    drop(first);
    assert_pending(&mut writer, ms(500)).await;
    drop(second);
    let writer = guard(writer).await;
    assert!(read.iter().all(|token| writer.fencing_token() > *token), "C5");
    for mode in [Mode::Shared, permits(1, 9)] {
        assert!(b.try_acquire("k").mode(mode).await.unwrap().is_none(), "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn c28_readers_after_a_writer_are_granted_together() {
    let (store, [a, b, c]) = quick_setup();
    let writer = acquire(&a, "k").await;
    let second = in_mode(&b, Mode::Exclusive);
    queued(&store, 1).await;
    let readers = [in_mode(&a, Mode::Shared), in_mode(&c, Mode::Shared)];
    queued(&store, 2).await; // of `a` none: its writer has the turn
    drop(writer);
    let second = guard(second).await;
    queued(&store, 2).await;
    drop(second);
    let [first, second] = readers;
    let _guards = (guard(first).await, guard(second).await);
    assert_eq!(store.peek("k").unwrap().holders.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn c27_permits_of_two_processes_never_exceed_their_number_and_reach_it() {
    let (store, providers): (_, [_; 2]) = setup();
    let (held, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..12_u32)
        .map(|task| {
            let (provider, held, most) = (providers[task as usize % 2].clone(), held.clone(), most.clone());
            tokio::spawn(async move {
                for round in 0..20 {
                    let take = 1 + (task + round) % 2;
                    let guard = hold(&provider, permits(take, 5)).await;
                    let now = held.fetch_add(take, Ordering::Relaxed) + take;
                    most.fetch_max(now, Ordering::Relaxed);
                    assert!(now <= 5 && !guard.is_lost(), "{now} of 5 permits");
                    sleep(ms(u64::from(3 + (task * 7 + round) % 10))).await;
                    held.fetch_sub(take, Ordering::Relaxed);
                    assert!(guard.release().await.unwrap().is_released());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((most.load(Ordering::Relaxed), store.peek("k")), (5, None));
    for provider in providers {
        let accounting = provider.accounting();
        assert!(accounting.balances() && accounting.released == 120, "{accounting:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c27_permits_of_one_process_are_held_together() {
    let (store, [provider]) = quick_setup();
    let waiting_ones: Vec<_> = (0..4).map(|_| in_mode(&provider, permits(1, 3))).collect();
    queued(&store, 1).await;
    assert_eq!(store.peek("k").unwrap().holders.len(), 3);
    let mut guards = Vec::new();
    for one in waiting_ones {
        if guards.len() == 3 {
            drop(guards.remove(0));
        }
        guards.push(guard(one).await);
    }
    assert!(guards.is_sorted_by(|a, b| a.fencing_token() < b.fencing_token()));
    drop(guards);
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn c28_large_permits_are_not_overtaken_by_small_ones() {
    let (store, [a, b]) = quick_setup();
    let small = [hold(&a, permits(1, 3)).await, hold(&a, permits(1, 3)).await];
    let mut large = in_mode(&b, permits(3, 3));
    queued(&store, 1).await;
    let mut late = in_mode(&a, permits(1, 3));
    queued(&store, 2).await;
    let [first, second] = small;
    drop(first);
    assert_pending(&mut large, secs(1)).await;
    assert_pending(&mut late, ms(1)).await;
    drop(second);
    drop(guard(large).await);
    let _ = guard(late).await;
}

#[tokio::test(start_paused = true)]
async fn c29_a_dead_reader_delays_a_writer_until_its_own_expiry() {
    let (store, [lives, writes]) = quick_setup();
    let dead = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let attempt = Attempt::new(dead.with_mode(Mode::Shared), ms(1000));
    assert!(matches!(store.try_acquire(&attempt).await.unwrap(), Reply::Granted(_)));
    let died = Instant::now();
    let alive = hold(&lives, Mode::Shared).await;
    let writer = waiter(&writes);
    queued(&store, 1).await;
    sleep(ms(300)).await;
    drop(alive);
    let writer = guard(writer).await;
    assert!(died.elapsed() >= ms(1000) && died.elapsed() < ms(1600), "{:?}", died.elapsed());
    assert!(!writer.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c22_force_takes_one_of_two_readers_and_the_other_stays() {
    let (_, [a, b]) = quick_setup();
    let (first, second) = (hold(&a, Mode::Shared).await, hold(&b, Mode::Shared).await);
    let info = a.admin().unwrap().inspect(first.key()).await.unwrap().unwrap();
    sleep(secs(2)).await; // the streams are open
    a.admin().unwrap().force_release_holder(first.key(), &info.holders[0].id, "test").await.unwrap().unwrap();
    assert_eq!(timeout(ms(10), first.lost()).await.unwrap(), Loss::ForceReleased);
    sleep(secs(2)).await;
    assert!(!second.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c30_modes_are_refused_before_any_request() {
    let store = memory(|can| can.permits = false);
    let provider = quick(&store);
    assert!(provider.capabilities().shared && !provider.capabilities().permits);
    for (mode, expected) in [
        (permits(1, 2), ErrorKind::Unsupported),
        (permits(0, 2), ErrorKind::InvalidOptions),
        (permits(3, 2), ErrorKind::InvalidOptions),
    ] {
        assert_eq!(provider.acquire("k").mode(mode).await.unwrap_err().kind(), expected, "{mode}");
        assert_eq!(provider.try_acquire("k").mode(mode).await.unwrap_err().kind(), expected, "{mode}");
    }
    assert_eq!(store.calls(Operation::TryAcquire), 0);
    assert!(!hold(&provider, Mode::Shared).await.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c31_a_reader_that_requests_the_key_again_waits_for_itself() {
    let (store, [provider]) = quick_setup();
    let reading = hold(&provider, Mode::Shared).await;
    let error = provider.acquire("k").timeout(ms(300)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    queued(&store, 0).await; // nothing is left of the wait
    assert!(!reading.is_lost() && reading.release().await.unwrap().is_released());
    assert!(provider.try_acquire("k").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn c11_a_permit_that_is_waited_for_leaves_no_ticket() {
    let (store, [provider]) = quick_setup();
    let first = hold(&provider, permits(1, 1)).await;
    assert!(timeout(ms(100), hold(&provider, permits(1, 1))).await.is_err());
    queued(&store, 0).await;
    let next = in_mode(&provider, permits(1, 1));
    waiting(&provider, 1).await;
    drop(first);
    drop(guard(next).await);
    holds_nothing(&provider).await;
    assert_eq!(store.peek("k"), None);
}

#[tokio::test(start_paused = true)]
async fn c21_keys_of_different_modes_are_acquired_together() {
    let (store, [a, b]) = quick_setup();
    let reading = a.acquire("a").shared().await.unwrap();
    let both = b.acquire_all(["a", "b"]).mode_of("a", Mode::Shared).await.unwrap();
    assert_eq!(store.peek("a").unwrap().holders.len(), 2);
    assert_eq!(store.peek("b").unwrap().mode(), Mode::Exclusive);
    assert!(!reading.is_lost());
    drop(both);
}

/// A lease that carries a resource can be shared, but its writes need an exclusive one.
#[tokio::test(start_paused = true)]
async fn a_write_under_a_shared_lease_is_refused_before_any_request() {
    use crate::commit::resource::Style;

    let (style, provider) = Style::with_provider();
    let options = AcquireOptions::new().with_mode(Mode::Shared);
    let lease = style.lock_with(&provider, options.clone()).await;
    let AcquiredLease::Held(second) =
        provider.acquire_via(lease.key().clone(), options, Arc::new(style.clone())).await.unwrap()
    else {
        panic!("readers hold it together")
    };
    assert_eq!(style.attempts(), 2, "each brings its own");
    let write = style.adds(false, []);
    assert_eq!(lease.write_via(write.clone()).await.unwrap_err().kind(), ErrorKind::Unsupported);
    let refused = lease.release_via(write.clone()).await.unwrap_err();
    assert_eq!((refused.error.kind(), write.made()), (ErrorKind::Unsupported, 0));
    assert!(refused.guard.unwrap().release().await.unwrap().is_released());
    assert!(second.release().await.unwrap().is_released());
    assert_eq!(style.store.peek("k"), None);
}
