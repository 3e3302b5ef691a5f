//! A provider that is used from several runtimes, from one that ends, or from none (C11, C13, C16,
//! C23). Time is real where a test has more than one runtime.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LeaseOptions, LockKey, LockProvider, LockProviderExt};
use distlock_engine::store::StoreEvent;
use distlock_engine::{LeaseProvider, QueueOptions};
use distlock_memory::{MemoryStore, Operation};
use futures_util::FutureExt;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::kit::{
    acquire, assert_pending, by_hand, ends_within, holds_nothing, ms, one_thread, process, provider, queued,
    quick_setup, quiet, secs, terms, waiter,
};
use crate::store::{Fate, ScriptedStore};

/// How soon a lease must pass on: far below its ttl, and far above the pauses of a busy machine.
const SOON: Duration = secs(10);

/// A provider whose leases outlive [`SOON`], and whose tickets are refreshed later than that.
fn lasting(store: &MemoryStore) -> LeaseProvider {
    let queue = QueueOptions::new().ticket_ttl(secs(60));
    store.builder().lease(LeaseOptions::new().ttl(secs(30))).queue(queue).build().unwrap()
}

#[test]
fn c11_c23_without_a_runtime_the_lease_is_left_to_its_ttl_and_counted() {
    let (_, [provider]) = quick_setup();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(acquire(&provider, "k"));
    drop(runtime);
    drop(guard);
    let accounting = provider.accounting();
    assert_eq!((accounting.acquired, accounting.abandoned, accounting.held), (1, 1, 0));
    // Another runtime: everything works, the keeper included.
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let guard = acquire(&provider, "other").await;
        assert_pending(&mut guard.lost(), ms(10_000)).await;
    });
}

#[test]
fn outside_a_runtime_calls_are_errors_and_no_panics() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    // A refusal lets other tasks run once.
    let mut acquired = provider.acquire_with(LockKey::new("k").unwrap(), AcquireOptions::new());
    let acquired = acquired.as_mut().now_or_never().or_else(|| acquired.now_or_never());
    let mut closed = provider.close();
    let closed = closed.as_mut().now_or_never().or_else(|| closed.now_or_never());
    for error in [acquired.unwrap().map(drop).unwrap_err(), closed.unwrap().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("outside a tokio runtime"), "{error}");
    }
    assert_eq!(store.count(Operation::TryAcquire), 0);
    // Nothing has been closed.
    one_thread().block_on(async {
        assert!(provider.acquire("k").await.unwrap().release().await.unwrap().is_released());
    });
}

#[test]
fn c11_c23_a_runtime_that_ends_leaves_a_balanced_accounting() {
    let store = ScriptedStore::new(|op, _, _| if op == Operation::Release { Fate::Never } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let runtime = one_thread();
    let (guard, release) = runtime.block_on(async {
        tokio::spawn({
            let provider = provider.clone();
            async move {
                let _guard = provider.acquire("in a task").await.unwrap();
                std::future::pending::<()>().await;
            }
        });
        drop(provider.acquire("released in the background").await.unwrap());
        let release = provider.acquire("released").await.unwrap().release();
        yield_now().await;
        (provider.acquire("outside").await.unwrap(), release)
    });
    drop(runtime);
    drop((guard, release));
    let accounting = provider.accounting();
    assert!(accounting.balances() && accounting.held == 0 && accounting.abandoned == 4, "{accounting:?}");
}

#[test]
fn c11_a_guard_dropped_on_a_short_lived_runtime_is_released_on_the_one_that_acquired_it() {
    let store = ScriptedStore::honest().with(|store| store.yields = 1);
    let provider = provider(&store);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    let passing = one_thread();
    passing.block_on(async move { drop(guard) });
    drop(passing);
    home.block_on(quiet());
    let accounting = provider.accounting();
    assert!(store.is_free("k") && accounting.released == 1, "{accounting:?}");
}

#[test]
fn c11_a_guard_dropped_on_a_runtime_without_time_is_released() {
    let store = ScriptedStore::honest().with(|store| store.yields = 1);
    let provider = provider(&store);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    let timeless = Builder::new_current_thread().build().unwrap();
    timeless.block_on(async move {
        drop(guard);
        quiet().await;
    });
    home.block_on(quiet());
    let accounting = provider.accounting();
    assert!(store.is_free("k") && accounting.released == 1, "{accounting:?}");
}

#[test]
fn c11_a_guard_dropped_outside_of_runtimes_is_released_on_the_one_that_acquired_it() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let first = one_thread();
    first.block_on(async { drop(provider.acquire("other").await.unwrap()) });
    drop(first);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    drop(guard);
    home.block_on(quiet());
    assert!(store.is_free("k"), "{:?}", provider.accounting());
}

#[test]
fn c11_a_runtime_that_ends_with_the_lease_in_transit_to_it_releases_it() {
    assert!(ends_within(secs(30), || {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let (a, b) = (lasting(&store), lasting(&store));
        let first = here.block_on(async { a.acquire("k").await.unwrap() });
        let inside = there.enter();
        let waits = waiter(&a);
        drop(inside);
        there.block_on(quiet());
        here.block_on(async { assert!(first.release().await.unwrap().is_released()) });
        drop(there);
        here.block_on(async {
            let start = std::time::Instant::now();
            let guard = b.acquire("k").await.unwrap();
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            drop(guard);
            holds_nothing(&a).await;
            assert!(waits.await.is_err());
            let accounting = a.accounting();
            assert!(accounting.balances() && accounting.released == 1 && accounting.waiting == 0, "{accounting:?}");
        });
    }));
}

#[test]
fn c11_a_lease_whose_runtime_has_ended_is_not_handed_on_but_released() {
    assert!(ends_within(secs(30), || {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let a = lasting(&store);
        let first = there.block_on(async { a.acquire("k").await.unwrap() });
        drop(there);
        here.block_on(async {
            let next = waiter(&a);
            quiet().await;
            let start = std::time::Instant::now();
            drop(first);
            let guard = next.await.unwrap().unwrap();
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            assert_eq!((store.calls(Operation::TryAcquire), store.calls(Operation::Release)), (2, 1));
            drop(guard);
            holds_nothing(&a).await;
            assert!(a.accounting().balances());
        });
    }));
}

/// Two runtimes share a provider; the first one, which got the keeper, ends or stands still.
fn renewed_on_the_second_runtime(first_dies: bool) {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let first = one_thread();
    let second = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _one = first.block_on(async { provider.acquire("one").await.unwrap() });
    let two = second.block_on(async { provider.acquire("two").await.unwrap() });
    let _first = (!first_dies).then_some(first);
    second.block_on(async {
        sleep(secs(60)).await;
        assert_eq!(two.loss(), None, "its runtime and its store work");
        let _ = two.release().await;
    });
}

#[test]
fn c13_renewal_continues_when_the_runtime_of_the_first_acquisition_has_ended() {
    renewed_on_the_second_runtime(true);
}

#[test]
fn c13_renewal_continues_while_the_runtime_of_the_first_acquisition_stands_still() {
    renewed_on_the_second_runtime(false);
}

#[test]
fn c16_events_arrive_again_after_the_runtime_of_the_first_acquisition_has_ended() {
    let store = ScriptedStore::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    // The stream is opened when a lease is a second old.
    let listens = async |times| {
        let _guard = provider.acquire("k").ttl(secs(2)).await.unwrap();
        timeout(secs(30), store.called(Operation::Watch, times)).await.expect("no stream is open");
    };
    let first = one_thread();
    first.block_on(listens(1));
    drop(first);
    one_thread().block_on(listens(2));
    assert_eq!(store.count(Operation::Watch), 2);
}

#[test]
fn c16_the_stream_ends_with_the_runtime_that_opened_it() {
    assert!(ends_within(secs(30), || {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let (a, b) = (lasting(&store), lasting(&store));
        let first = here.block_on(async { a.acquire("k").ttl(secs(60)).await.unwrap() });
        let opened = there.block_on(async {
            let guard = b.acquire("elsewhere").await.unwrap();
            sleep(ms(10)).await;
            guard
        });
        here.block_on(async {
            let next = waiter(&b);
            queued(&store, 1).await;
            sleep(ms(20)).await;
            drop(opened);
            there.shutdown_background();
            sleep(ms(20)).await;
            let start = std::time::Instant::now();
            drop(first);
            let _guard = next.await.unwrap().unwrap();
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        });
    }));
}

#[test]
fn c16_a_waiter_that_moves_to_another_runtime_keeps_no_keeper_busy() {
    let (here, there) = (one_thread(), one_thread());
    let store = here.block_on(async { MemoryStore::new() });
    let a = process(&store);
    let queue = QueueOptions::new().ticket_ttl(ms(150));
    let b = store.builder().lease(terms()).queue(queue).build().unwrap();
    let first = here.block_on(async { a.acquire("k").ttl(secs(60)).await.unwrap() });
    let mut next = by_hand(&b);
    here.block_on(async {
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    assert_eq!(store.waiting("k").len(), 1);
    there.block_on(async {
        store.push(StoreEvent::Gap); // so that it makes another attempt
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    here.block_on(async {
        store.push(StoreEvent::Gap);
        sleep(ms(5)).await;
    });
    there.block_on(async {
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    let before = store.calls(Operation::Renew);
    here.block_on(async { sleep(ms(200)).await });
    let calls = store.calls(Operation::Renew) - before;
    assert!(calls < 50, "{calls} refreshes within 200 ms");
    there.block_on(async { drop((first, next)) });
}
