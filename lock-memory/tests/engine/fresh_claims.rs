//! Leases that were just handed over: they start on a short claim, until the first renewal.

use std::time::Duration;

use distlock_api::{ErrorKind, LockGuard, LockProviderExt};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::sleep;

use crate::kit::{ms, provider, secs};

/// Returns the store, and the guard that a waiter was handed by a holder of this long.
async fn handed_over(held_for: Duration) -> (MemoryStore, LockGuard) {
    let store = MemoryStore::new();
    let (holder, waiter) = (provider(&store), provider(&store));
    let held = holder.acquire("k").await.unwrap();
    let waiting = tokio::spawn(async move { waiter.acquire("k").await.unwrap() });
    while store.waiting("k").is_empty() {
        sleep(ms(1)).await;
    }
    sleep(held_for).await;
    let before = store.calls(Operation::TryAcquire);
    held.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert_eq!(store.calls(Operation::TryAcquire), before, "the store has pushed the grant");
    (store, guard)
}

#[tokio::test(start_paused = true)]
async fn c13_a_lease_that_was_handed_over_survives_an_outage_soon_afterwards() {
    for held_for in [ms(20), secs(2)] {
        let (store, guard) = handed_over(held_for).await;
        sleep(ms(100)).await;
        assert!(guard.remaining().unwrap() > secs(25), "{:?}", guard.remaining());
        store.fail_always(Operation::Renew, ErrorKind::Unavailable);
        sleep(secs(5)).await;
        assert_eq!(guard.loss(), None);
        store.clear_faults();
        sleep(secs(60)).await;
        assert_eq!(guard.loss(), None);
    }
}

/// A renewal would be one more request for each turn of a busy key.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_handed_over_is_not_renewed_if_it_is_released_soon() {
    let (store, guard) = handed_over(ms(20)).await;
    let renewals = store.calls(Operation::Renew);
    sleep(ms(40)).await;
    guard.release().await.unwrap();
    sleep(secs(5)).await;
    assert_eq!(store.calls(Operation::Renew), renewals);
}
