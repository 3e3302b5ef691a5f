//! Code of the caller that the engine runs: wakers, and subscribers to its log. It may use the
//! provider, panic, or take its time.

use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use distlock_api::{
    ErrorKind, LeaseOptions, LockGuard, LockProvider, LockProviderExt, Loss, ReleaseOutcome, RenewalPolicy,
};
use distlock_memory::{MemoryStore, Operation};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::kit::{by_hand, ends_within, ms, one_thread, poll_once, provider, quiet, secs, setup, subscribe};
use crate::store::{Fate, ScriptedStore};

struct Looks<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Looks<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn c4_a_waker_that_looks_at_the_guard_does_not_deadlock() {
    struct Looks(LockGuard);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let _ = self.0.is_lost();
        }
    }
    assert!(ends_within(secs(5), || {
        one_thread().block_on(async {
            let provider = provider(&Arc::new(ScriptedStore::honest()));
            let guard = provider.acquire("k").await.unwrap();
            let mut lost = Box::pin(guard.lost());
            let waker = Arc::new(Looks(guard)).into();
            assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            provider.close().await.unwrap();
        });
    }));
}

#[test]
fn c4_a_waker_that_reads_the_accounting_when_a_grant_is_pushed_does_not_deadlock() {
    assert!(ends_within(secs(30), || {
        one_thread().block_on(async {
            let (_, [a, b]) = setup();
            let first = a.acquire("k").await.unwrap();
            let (looks, looked) = (b.clone(), Arc::new(AtomicUsize::new(0)));
            let count = looked.clone();
            let waker: Waker = Arc::new(Looks(move || {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = looks.accounting();
            }))
            .into();
            let mut next = by_hand(&b);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            quiet().await;
            // The stream is open now, and it has been nudged.
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let before = looked.load(Ordering::Relaxed);
            drop(first);
            quiet().await;
            assert!(looked.load(Ordering::Relaxed) > before);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        });
    }));
}

#[test]
fn c11_a_waker_that_tries_when_a_waiter_leaves_the_local_queue_does_not_deadlock() {
    assert!(ends_within(secs(30), || {
        one_thread().block_on(async {
            let (_, [a]) = setup();
            let _first = a.acquire("k").await.unwrap();
            let tries = a.clone();
            let waker: Waker = Arc::new(Looks(move || {
                let _ = poll_once(pin!(tries.try_acquire("k").into_future()));
            }))
            .into();
            let mut next = by_hand(&a);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(next);
        });
    }));
}

#[test]
fn c16_a_lease_lost_while_no_caller_is_found_for_it_frees_the_local_queue() {
    assert!(ends_within(secs(30), || {
        let away = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = away.block_on(async { MemoryStore::new() });
        let a = store
            .builder()
            .lease(LeaseOptions::new().ttl(secs(2)).renewal(RenewalPolicy::Every(ms(500))))
            .build()
            .unwrap();
        store.fail_always(Operation::Renew, ErrorKind::Unavailable);
        let guard = away.block_on(async { a.acquire("k").await.unwrap() });
        // The keeper finds the deadline passed just while the guard looks for the next caller.
        let looking = a.clone();
        let waker: Waker = Arc::new(Looks(move || {
            while looking.accounting().lost == 0 {
                std::thread::sleep(ms(1));
            }
        }))
        .into();
        let here = one_thread();
        here.block_on(async {
            let mut lost = guard.lost();
            assert!(Pin::new(&mut lost).poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
            // The signal is still there.
            let next = timeout(secs(10), a.acquire("k").into_future()).await;
            assert!(next.is_ok(), "the local queue is blocked");
            drop(lost);
        });
    }));
}

/// A lease may be lost between one guard and the next. Here a waker that takes its time makes that
/// gap long.
#[test]
fn c16_a_lease_that_is_lost_in_transit_does_not_keep_its_turn() {
    struct Stalls(std::thread::ThreadId);
    impl Wake for Stalls {
        fn wake(self: Arc<Self>) {
            if std::thread::current().id() == self.0 {
                std::thread::sleep(secs(3));
            }
        }
    }
    let provider = provider(&MemoryStore::new());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let acquiring = provider.acquire("k").ttl(secs(2)).renewal(RenewalPolicy::Never);
        let guard = acquiring.await.unwrap();
        let mut lost = Box::pin(guard.lost());
        let waker = Arc::new(Stalls(std::thread::current().id())).into();
        assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        guard.release().await.unwrap();
        let next = provider.acquire("k").timeout(Duration::from_secs(10)).await;
        assert!(next.is_ok(), "the lease ended long ago: {next:?}");
        drop(lost);
    });
}

/// The engine wakes a task that awaits the loss of a lock, which runs code of the caller's
/// executor.
#[tokio::test(start_paused = true)]
async fn c14_c23_a_waker_that_panics_costs_no_lease() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let lost = provider.acquire("lost").ttl(secs(9)).await.unwrap();
    let other = provider.acquire("other").ttl(secs(9)).await.unwrap();
    let waker = Waker::from(Arc::new(Panicking));
    let mut signal = pin!(lost.lost());
    assert!(signal.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    store.take_away("lost");
    // Before the deadline, at which the runtime's timer would wake it.
    sleep(secs(5)).await;
    assert_eq!((lost.loss(), other.loss()), (Some(Loss::Gone), None));
    let accounting = provider.accounting();
    assert_eq!((accounting.held, accounting.lost), (1, 1), "{accounting:?}");
    drop(other);
    provider.close().await.unwrap();
    assert!(provider.accounting().balances());
}

/// Panics on each event.
struct Panicking(Arc<AtomicUsize>);

impl tracing::Subscriber for Panicking {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a subscriber panicked");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn c14_a_subscriber_that_panics_costs_no_lease() {
    let store = Arc::new(ScriptedStore::new(|op, key, nth| match (op, key, nth) {
        (Operation::Renew, "unlucky", 1) | (Operation::Release, "unreleased", 1..) => Fate::fail(),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let panics = Arc::new(AtomicUsize::new(0));
    let _subscriber = subscribe(|| Panicking(panics.clone()));
    let unlucky = provider.acquire("unlucky").ttl(secs(9)).await.unwrap();
    let other = provider.acquire("other").ttl(secs(9)).await.unwrap();
    let lost = provider.acquire("lost").ttl(secs(9)).await.unwrap();
    store.take_away("lost");
    drop(provider.acquire("unreleased").ttl(secs(9)).await.unwrap());
    assert_eq!(lost.lost().await, Loss::Gone);
    sleep(secs(60)).await;
    assert_eq!((unlucky.loss(), other.loss()), (None, None));
    let accounting = provider.accounting();
    assert_eq!((accounting.held, accounting.lost, accounting.abandoned), (2, 1, 1), "{accounting:?}");
    drop((unlucky, other, lost));
    provider.close().await.unwrap();
    assert!(panics.load(Ordering::Relaxed) > 0);
}
