//! A minimum hold (C25).

use distlock_api::{ErrorKind, LockProviderExt, ReleaseOutcome};
use distlock_memory::Operation;
use tokio::time::{Instant, sleep};

use crate::kit::{acquire, ms, process, queued, quick, quick_setup, setup, waiter, waiting};
use crate::store::ScriptedStore;

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_outlives_the_guard() {
    let (store, [provider]) = quick_setup();
    let started = Instant::now();
    let guard = provider.acquire("k").hold_at_least(ms(5000)).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(provider.try_acquire("k").await.unwrap().is_none());
    drop(acquire(&provider, "k").await);
    assert!(started.elapsed() >= ms(5000) && started.elapsed() <= ms(5300), "{:?}", started.elapsed());
    let poor = ScriptedStore::over(&store).with(|store| store.capabilities.minimum_hold = false);
    let provider = quick(&poor);
    let calls = store.calls(Operation::TryAcquire);
    let error = provider.acquire("k").hold_at_least(ms(1)).await.unwrap_err();
    assert_eq!((error.kind(), store.calls(Operation::TryAcquire)), (ErrorKind::Unsupported, calls));
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_keeps_the_queue_waiting_and_its_order() {
    let (store, [a]) = setup();
    let first = a.acquire("k").hold_at_least(ms(700)).await.unwrap();
    let start = Instant::now();
    let (b, c) = (process(&store), process(&store));
    let second = waiter(&b);
    queued(&store, 1).await;
    let third = waiter(&c);
    queued(&store, 2).await;
    sleep(ms(100)).await;
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert!(start.elapsed() >= ms(700) && start.elapsed() < ms(720), "{:?}", start.elapsed());
    assert!(!third.is_finished());
    drop(second);
    let _third = third.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(720));
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_is_not_handed_on() {
    let (_, [provider]) = quick_setup();
    let first = provider.acquire("k").hold_at_least(ms(500)).await.unwrap();
    let start = Instant::now();
    let next = waiter(&provider);
    waiting(&provider, 1).await;
    drop(first);
    let _next = next.await.unwrap().unwrap();
    assert!(start.elapsed() >= ms(490));
}
