//! Handing a lease on within one process (R21).

use distlock_api::{ErrorKind, FencingToken, LockProvider, LockProviderExt, ReleaseOutcome, RenewalPolicy};
use distlock_engine::{HandOff, LeaseProvider, LeaseStore};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::{advance, sleep};

use crate::kit::{guard, holds_nothing, memory, ms, quick, quick_terms, quiet, secs, terms, waiter, waiting};
use crate::store::{Fate, ScriptedStore};

/// Calls that reached the store, without renewals.
fn requests(store: &MemoryStore) -> (u64, u64) {
    (store.calls(Operation::TryAcquire), store.calls(Operation::Release))
}

#[tokio::test(start_paused = true)]
async fn the_next_one_gets_the_lease_with_the_next_token_and_no_request() {
    let store = MemoryStore::new();
    let provider = quick(&store);
    let first = provider.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..3).map(|_| waiter(&provider)).collect();
    waiting(&provider, 3).await;
    let mut token = first.fencing_token();
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    for waiter in waiters {
        let guard = waiter.await.unwrap().unwrap();
        assert_eq!(guard.fencing_token(), FencingToken::new(token.get() + 1), "one after the other");
        token = guard.fencing_token();
        drop(guard);
    }
    holds_nothing(&provider).await;
    assert_eq!(requests(&store), (1, 1));
    let accounting = provider.accounting();
    assert!(accounting.balances() && (accounting.acquired, accounting.released) == (4, 4), "{accounting:?}");
    assert!(provider.acquire("k").await.unwrap().fencing_token() > token, "C5: beyond the block");
}

#[tokio::test(start_paused = true)]
async fn switched_off_every_release_goes_to_the_store() {
    let store = MemoryStore::new();
    let provider = store.builder().lease(quick_terms()).without_hand_off().build().unwrap();
    let first = provider.acquire("k").await.unwrap();
    let waiter = waiter(&provider);
    waiting(&provider, 1).await;
    assert!(first.release().await.unwrap().is_released());
    assert!(guard(waiter).await.release().await.unwrap().is_released());
    assert_eq!(requests(&store), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_count_waiters_gets_the_lease_back_after_the_count() {
    let store = memory(|capabilities| capabilities.queue = false);
    store.fail_always(Operation::Waiters, ErrorKind::Unsupported);
    let provider = store.builder().lease(quick_terms()).hand_off(HandOff::new().max_count(2)).build().unwrap();
    let first = provider.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..6).map(|_| waiter(&provider)).collect();
    waiting(&provider, 6).await;
    drop(first);
    for waiter in waiters {
        let guard = waiter.await.unwrap().unwrap();
        sleep(ms(1)).await; // so that the query is answered
        drop(guard);
    }
    holds_nothing(&provider).await;
    // 1 + 2 handed on, 1 + 2, 1.
    assert_eq!(requests(&store), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn while_no_other_process_waits_it_continues_without_end_and_is_renewed() {
    for (section, sections) in [(1, 4000), (20, 400), (500, 40)] {
        let store = MemoryStore::new();
        let provider = quick(&store);
        let mut guard = provider.acquire("k").await.unwrap();
        for _ in 0..sections {
            let next = waiter(&provider);
            waiting(&provider, 1).await;
            sleep(ms(section)).await;
            drop(guard);
            guard = next.await.unwrap().unwrap();
            assert!(!guard.is_lost());
        }
        assert_eq!(requests(&store), (1, 0), "many seconds on one lease of one second");
        assert!(store.calls(Operation::RenewMany) >= 8);
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_not_handed_on() {
    let store = MemoryStore::new();
    let provider = quick(&store);
    let first = provider.acquire("k").renewal(RenewalPolicy::Never).await.unwrap();
    let next = waiter(&provider);
    waiting(&provider, 1).await;
    advance(ms(950)).await;
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    let _next = next.await.unwrap().unwrap();
    assert_eq!(requests(&store).0, 2, "a new attempt");
}

#[tokio::test(start_paused = true)]
async fn c19_a_lease_that_is_never_renewed_is_not_handed_on_with_what_is_left_of_it() {
    let store = MemoryStore::new();
    let limits = HandOff::new().max_time(secs(60));
    let a = store.builder().lease(terms().renewal(RenewalPolicy::Never)).hand_off(limits).build().unwrap();
    let first = a.acquire("k").await.unwrap();
    let next = waiter(&a);
    quiet().await;
    sleep(ms(2600)).await;
    drop(first);
    let next = next.await.unwrap().unwrap();
    assert!(next.remaining().unwrap() > ms(2600), "{:?} of 2.7 s", next.remaining());
}

/// A lease that does not meet the next caller's requirements is not handed on: between the end of
/// its guard and its release the key would be busy, although no caller holds it.
#[tokio::test(start_paused = true)]
async fn c9_a_release_is_complete_before_a_caller_with_other_terms_gets_the_turn() {
    let store = ScriptedStore::new(|operation, _, _| match operation {
        Operation::Release => Fate::After(ms(100)),
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities = MemoryStore::new().capabilities());
    let provider = LeaseProvider::builder(store.clone()).lease(quick_terms()).build().unwrap();
    let first = provider.acquire("k").await.unwrap();
    let waits = provider.clone();
    let next = tokio::spawn(async move { waits.acquire("k").owner("another").await.unwrap() });
    waiting(&provider, 1).await;
    assert!(first.release().await.unwrap().is_released());
    let holder = store.memory.peek("k");
    assert!(holder.is_none_or(|holder| holder.owner.as_deref() == Some("another")), "released, and still held");
    drop(next.await.unwrap());
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn other_terms_or_another_owner_get_a_lease_of_their_own() {
    let store = MemoryStore::new();
    let provider = quick(&store);
    let first = provider.acquire("k").await.unwrap();
    let (longer, other) = (provider.clone(), provider.clone());
    let longer = tokio::spawn(async move { longer.acquire("k").ttl(ms(5000)).await.unwrap() });
    waiting(&provider, 1).await;
    let other = tokio::spawn(async move { other.acquire("k").ttl(ms(5000)).owner("another").await.unwrap() });
    waiting(&provider, 2).await;
    drop(first);
    let longer = longer.await.unwrap();
    assert!(longer.remaining().unwrap() > ms(4000));
    drop(longer);
    let other = other.await.unwrap();
    assert_eq!(store.peek("k").unwrap().owner.as_deref(), Some("another"));
    drop(other);
    holds_nothing(&provider).await;
    assert_eq!(requests(&store), (3, 3));
    assert!(provider.accounting().balances());
}
