//! `MemoryProvider` with wakers that panic: code of the caller's executor, which the provider runs.
//! The panic costs the wake-up in which it happens, and nothing else.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use distlock_api::{ErrorKind, LockError, LockGuard, LockKey, LockProvider, LockProviderExt, Loss};
use distlock_memory::MemoryProvider;
use futures_util::StreamExt;

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

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing to wait for"),
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send + 'a>>;

/// A waiter in the queue, to be woken by this waker.
fn waiter<'a>(locks: &'a MemoryProvider, key: &'a str, waker: &Waker) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Box::pin(locks.acquire(key).into_future());
    assert!(poll(&mut waiting, waker).is_pending());
    waiting
}

fn held(locks: &MemoryProvider, key: &str) -> LockGuard {
    block_on(locks.acquire(key).into_future()).unwrap()
}

fn ready(waiting: &mut Waiting<'_>) -> LockGuard {
    match poll(waiting, Waker::noop()) {
        Poll::Ready(guard) => guard.unwrap(),
        Poll::Pending => panic!("the turn should have come"),
    }
}

fn assert_idle(locks: &MemoryProvider) {
    let accounting = locks.accounting();
    assert!(accounting.balances() && accounting.held == 0 && accounting.waiting == 0, "{accounting:?}");
    assert_eq!(locks.keys_in_use(), 0);
}

#[test]
fn c14_a_release_survives_the_waker_of_the_next_in_line() {
    let locks = MemoryProvider::new();
    let guard = held(&locks, "k");
    let mut next = waiter(&locks, "k", &panicking());
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
    assert!(poll(&mut lost, &panicking()).is_pending());
    let mut next = waiter(&locks, "k", &panicking());
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
    let granted = waiter(&locks, "k", Waker::noop());
    let mut next = waiter(&locks, "k", &panicking());
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
        assert!(poll(signal, waker).is_pending());
    }
    let mut waiting = Vec::new();
    for key in ["a", "b", "c"] {
        waiting.extend([&panicking(), &woken, &panicking(), &woken].map(|waker| waiter(&locks, key, waker)));
    }
    block_on(locks.close()).unwrap();
    assert_eq!(counting.count(), 7, "one signal and two waiters of each key");
    for guard in &guards {
        assert_eq!(guard.loss(), Some(Loss::Closed));
    }
    for waiting in &mut waiting {
        assert!(matches!(poll(waiting, Waker::noop()), Poll::Ready(Err(error)) if error.kind() == ErrorKind::Closed));
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
    assert!(poll(&mut lost, &panicking()).is_pending());
    let mut next = waiter(&locks, "k", &counting.clone().into());
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
    assert!(poll(&mut Box::pin(events.next()), &panicking()).is_pending());
    let guard = held(&locks, "k");
    drop(events);
    assert_eq!(locks.accounting().held, 1);
    assert!(block_on(guard.release()).unwrap().is_released());
    assert_idle(&locks);
}
