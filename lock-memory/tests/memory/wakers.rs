//! `MemoryProvider` with wakers that panic: code of the caller's executor, which the provider runs.
//! The panic costs the wake-up in which it happens, and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use distlock_api::{ErrorKind, LockGuard, LockKey, LockProvider, LockProviderExt, Loss};
use distlock_memory::MemoryProvider;
use futures_util::StreamExt;

use crate::kit::calls::{assert_idle, block_on, poll_with, ready, waiter_with};

/// Panics each time.
struct Panicking;

impl Wake for Panicking {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counting {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn panicking() -> Waker {
    Arc::new(Panicking).into()
}

fn held(locks: &MemoryProvider, key: &str) -> LockGuard {
    block_on(locks.acquire(key).into_future()).unwrap()
}

#[test]
fn c14_a_release_survives_the_waker_of_the_next_in_line() {
    let locks = MemoryProvider::new();
    let guard = held(&locks, "k");
    let mut next = waiter_with(&locks, "k", &panicking());
    assert!(block_on(guard.release()).unwrap().is_released());
    drop(ready(&mut next));
    drop(next);
    assert_idle(&locks);
}

#[test]
fn c14_a_guard_that_is_dropped_by_a_panic_survives_the_waker_of_the_next_in_line() {
    let locks = MemoryProvider::new();
    let guard = held(&locks, "k");
    // A loss is awaited too, so that the turn has a follow-up.
    let mut lost = Box::pin(guard.lost());
    assert!(poll_with(&mut lost, &panicking()).is_pending());
    let mut next = waiter_with(&locks, "k", &panicking());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        panic!("the work panics");
    }));
    assert!(panicked.is_err());
    drop(ready(&mut next));
    drop((lost, next));
    assert_idle(&locks);
}

#[test]
fn c14_a_waiter_that_leaves_survives_the_waker_of_the_next_in_line() {
    let locks = MemoryProvider::new();
    let guard = held(&locks, "k");
    let granted = waiter_with(&locks, "k", Waker::noop());
    let mut next = waiter_with(&locks, "k", &panicking());
    drop(guard);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(granted))).is_ok());
    drop(ready(&mut next));
    drop(next);
    assert_idle(&locks);
}

#[test]
fn c24_close_wakes_all_although_a_waker_panics() {
    let locks = MemoryProvider::new();
    let (guards, counting) = (["a", "b", "c"].map(|key| held(&locks, key)), Arc::new(Counting::default()));
    let woken = Waker::from(counting.clone());
    let mut signals = guards.each_ref().map(|guard| Box::pin(guard.lost()));
    for (signal, waker) in signals.iter_mut().zip([&panicking(), &woken, &panicking()]) {
        assert!(poll_with(signal, waker).is_pending());
    }
    let mut waiting = Vec::new();
    for key in ["a", "b", "c"] {
        waiting.extend([&panicking(), &woken, &panicking(), &woken].map(|waker| waiter_with(&locks, key, waker)));
    }
    block_on(locks.close()).unwrap();
    assert_eq!(counting.count(), 7, "one signal and two waiters of each key");
    for guard in &guards {
        assert_eq!(guard.loss(), Some(Loss::Closed));
    }
    for waiting in &mut waiting {
        assert!(
            matches!(poll_with(waiting, Waker::noop()), Poll::Ready(Err(error)) if error.kind() == ErrorKind::Closed)
        );
    }
    drop((signals, waiting, guards));
    assert_idle(&locks);
}

#[test]
fn c22_a_release_by_force_passes_the_key_on_although_a_waker_panics() {
    let locks = MemoryProvider::new();
    let key = LockKey::new("k").unwrap();
    let (victim, counting) = (held(&locks, "k"), Arc::new(Counting::default()));
    let mut lost = Box::pin(victim.lost());
    assert!(poll_with(&mut lost, &panicking()).is_pending());
    let mut next = waiter_with(&locks, "k", &counting.clone().into());
    assert!(block_on(locks.admin().unwrap().force_release(&key, "test")).unwrap().is_some());
    assert_eq!(counting.count(), 1);
    assert_eq!(victim.loss(), Some(Loss::ForceReleased));
    drop(ready(&mut next));
    drop((lost, next, victim));
    assert_idle(&locks);
}

#[test]
fn c23_a_watcher_whose_waker_panics_costs_no_acquisition() {
    let locks = MemoryProvider::new();
    let mut events = block_on(locks.admin().unwrap().watch()).unwrap();
    assert!(poll_with(&mut Box::pin(events.next()), &panicking()).is_pending());
    let guard = held(&locks, "k");
    drop(events);
    assert_eq!(locks.accounting().held, 1);
    assert!(block_on(guard.release()).unwrap().is_released());
    assert_idle(&locks);
}
