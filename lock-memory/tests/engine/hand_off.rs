//! Handing a lease on within one process (R21).

use distlock_api::{ErrorKind, FencingToken, LockKey, LockProvider, LockProviderExt, ReleaseOutcome, RenewalPolicy};
use distlock_engine::{HandOff, LeaseProvider};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::kit::{
    guard, holds_nothing, memory, ms, one_thread, quick, quick_setup, quick_terms, quiet, secs, terms, waiter, waiting,
};
use crate::store::{Abilities, Fate, ScriptedStore};

/// Calls that reached the store, without renewals.
fn requests(store: &MemoryStore) -> (u64, u64) {
    (store.calls(Operation::TryAcquire), store.calls(Operation::Release))
}

#[tokio::test(start_paused = true)]
async fn the_next_one_gets_the_lease_with_the_next_token_and_no_request() {
    let (store, [provider]) = quick_setup();
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
        let (store, [provider]) = quick_setup();
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
        assert!(store.calls(Operation::Renew) >= 8);
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_not_handed_on() {
    let (store, [provider]) = quick_setup();
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

/// A lease that does not meet the next caller's requirements is not handed on. Between the end of
/// its guard and its release the key would be busy, although no caller holds it.
#[tokio::test(start_paused = true)]
async fn c9_a_release_is_complete_before_a_caller_with_other_terms_gets_the_turn() {
    let store = ScriptedStore::new(|operation, _, _| match operation {
        Operation::Release => Fate::After(ms(100)),
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities = Abilities::all());
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
    let (store, [provider]) = quick_setup();
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

/// Providers of two processes whose leases linger.
fn lingering(store: &MemoryStore) -> [LeaseProvider; 2] {
    [(); 2].map(|()| {
        let limits = HandOff::new().linger(ms(200));
        store.builder().lease(quick_terms()).hand_off(limits).build().unwrap()
    })
}

#[tokio::test(start_paused = true)]
async fn a_lease_lingers_for_the_next_acquisition_of_its_process() {
    let store = MemoryStore::new();
    let [provider, _] = lingering(&store);
    let mut token = FencingToken::new(0);
    for _ in 0..1000 {
        let guard = provider.acquire("k").await.unwrap();
        assert!(guard.fencing_token() > token && !guard.is_lost(), "C5");
        token = guard.fencing_token();
        sleep(ms(7)).await;
        assert!(guard.release().await.unwrap().is_released());
        sleep(ms(50)).await;
    }
    assert_eq!(requests(&store), (1, 0), "a minute on one lease of one second");
    let accounting = provider.accounting();
    assert_eq!((accounting.acquired, accounting.released, accounting.held), (1000, 999, 1), "{accounting:?}");
    sleep(ms(201)).await;
    holds_nothing(&provider).await;
    assert_eq!(requests(&store), (1, 1));
    assert!(store.peek("k").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_says_how_long_its_lease_lingers() {
    let store = MemoryStore::new();
    let [lingers, _] = lingering(&store);
    drop(lingers.acquire("k").linger(ms(0)).await.unwrap());
    quiet().await;
    assert!(store.peek("k").is_none());
    let plain = quick(&store);
    drop(plain.acquire("k").linger(ms(50)).await.unwrap());
    drop(plain.acquire("k").await.unwrap());
    quiet().await;
    assert!(store.peek("k").is_none(), "the second one does not linger");
    assert_eq!(requests(&store), (2, 2));
    let error = plain.acquire("k").linger(secs(61)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let limits = HandOff::new().linger(secs(61));
    assert_eq!(store.builder().hand_off(limits).build().unwrap_err().kind(), ErrorKind::InvalidOptions);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_linger_ends_sooner_than_a_longer_one_before_it() {
    let (store, [provider]) = quick_setup();
    drop(provider.acquire("k").linger(ms(500)).await.unwrap());
    sleep(ms(400)).await;
    drop(provider.acquire("k").linger(ms(500)).await.unwrap());
    sleep(ms(150)).await;
    drop(provider.acquire("k").linger(ms(10)).await.unwrap());
    sleep(ms(11)).await;
    quiet().await;
    assert_eq!(requests(&store), (1, 1));
    assert!(store.peek("k").is_none());
}

/// The use comes when the time is over, on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_no_lease_lingers_for_ever() {
    let store = MemoryStore::new();
    let limits = HandOff::new().linger(ms(2));
    let provider = store.builder().hand_off(limits).build().unwrap();
    let users = (0..4).map(|user| {
        let provider = provider.clone();
        tokio::spawn(async move {
            for _ in 0..300 {
                drop(provider.acquire(user).await.unwrap());
                let period = std::time::Instant::now() + ms(2);
                while std::time::Instant::now() < period {
                    tokio::task::yield_now().await;
                }
            }
        })
    });
    for user in users.collect::<Vec<_>>() {
        user.await.unwrap();
    }
    timeout(secs(10), holds_nothing(&provider)).await.expect("it is parked, and nothing watches it");
}

/// A query for waiters takes longer than the guard works.
#[tokio::test(start_paused = true)]
async fn a_lease_lingers_while_waiters_are_queried() {
    let store = ScriptedStore::new(|operation, _, _| match operation {
        Operation::Waiters => Fate::After(ms(5)),
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities = Abilities::all());
    let limits = HandOff::new().linger(ms(200));
    let provider = LeaseProvider::builder(store.clone()).hand_off(limits).build().unwrap();
    for _ in 0..20 {
        drop(provider.acquire("k").await.unwrap());
        sleep(ms(150)).await;
    }
    assert_eq!((store.count(Operation::TryAcquire), store.count(Operation::Release)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lingering_lease_costs_another_process_no_more_than_its_time() {
    let store = MemoryStore::new();
    let [a, b] = lingering(&store);
    let started = Instant::now();
    assert!(a.acquire("k").await.unwrap().release().await.unwrap().is_released());
    assert!(b.try_acquire("k").await.unwrap().is_none());
    let waiting = b.acquire("k").await.unwrap();
    assert!(started.elapsed() >= ms(200) && started.elapsed() < ms(250), "{:?}", started.elapsed());
    assert!(waiting.release().await.unwrap().is_released());
}

/// The first process uses the key again and again. It learns of the other one from its queries.
#[tokio::test(start_paused = true)]
async fn c15_a_lingering_lease_passes_to_another_process_that_waits() {
    let store = MemoryStore::new();
    let [a, b] = lingering(&store);
    let busy = tokio::spawn({
        let a = a.clone();
        async move {
            for _ in 0..1000 {
                drop(a.acquire("k").await.unwrap());
                sleep(ms(3)).await;
            }
        }
    });
    sleep(ms(500)).await;
    for _ in 0..5 {
        let started = Instant::now();
        let guard = b.acquire("k").timeout(secs(10)).await.unwrap();
        assert!(started.elapsed() <= ms(200), "{:?}", started.elapsed());
        // Otherwise its own lease would linger.
        guard.discard().await.unwrap();
        sleep(ms(20)).await;
    }
    busy.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c9_a_lingering_lease_is_released_before_a_caller_with_other_terms_is_granted() {
    let store = MemoryStore::new();
    let [provider, _] = lingering(&store);
    drop(provider.acquire("k").await.unwrap());
    let other = provider.acquire("k").ttl(secs(5)).await.unwrap();
    assert_eq!(requests(&store), (2, 1));
    assert!(other.remaining().unwrap() > secs(4));
}

#[tokio::test(start_paused = true)]
async fn c22_a_lease_that_was_taken_away_while_it_lingered_is_not_used() {
    let store = MemoryStore::new();
    let [provider, other] = lingering(&store);
    let first = provider.acquire("k").await.unwrap();
    let token = first.fencing_token();
    sleep(ms(1200)).await; // The stream is open.
    drop(first);
    let admin = other.admin().unwrap();
    assert!(admin.force_release(&LockKey::new("k").unwrap(), "test").await.unwrap().is_some());
    quiet().await;
    let next = provider.acquire("k").await.unwrap();
    assert!(next.fencing_token() > token && !next.is_lost());
    assert_eq!(requests(&store).0, 2);
}

#[tokio::test(start_paused = true)]
async fn c24_close_gives_a_lingering_lease_back() {
    let store = MemoryStore::new();
    let [provider, _] = lingering(&store);
    drop(provider.acquire("k").await.unwrap());
    provider.close().await.unwrap();
    assert!(store.peek("k").is_none());
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_lingers_of_an_acquisition_that_is_rolled_back_or_has_a_minimum_hold() {
    let store = MemoryStore::new();
    let [provider, other] = lingering(&store);
    let _held = other.acquire("b").await.unwrap();
    assert!(provider.try_acquire_all(["a", "b"]).await.unwrap().is_none());
    quiet().await;
    assert!(store.peek("a").is_none());
    drop(provider.acquire("k").hold_at_least(ms(50)).await.unwrap());
    quiet().await;
    assert_eq!(requests(&store).1, 2);
    // A lease that would end before it has lingered.
    let limits = HandOff::new().linger(secs(5));
    let provider = store.builder().lease(quick_terms()).hand_off(limits).build().unwrap();
    drop(provider.acquire("s").await.unwrap());
    quiet().await;
    assert!(store.peek("s").is_none());
}

#[test]
fn c11_a_lease_that_lingers_on_a_runtime_that_ends_is_left_to_its_ttl() {
    let store = MemoryStore::new();
    let [provider, _] = lingering(&store);
    let first = one_thread();
    first.block_on(async { drop(provider.acquire("k").await.unwrap()) });
    let second = one_thread();
    second.block_on(async {
        first.shutdown_background();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let accounting = provider.accounting();
        assert!(accounting.held == 0 && accounting.balances(), "{accounting:?}");
        // No runtime is left to send the release: the store frees the key at the ttl.
        drop(provider.acquire("k").timeout(secs(5)).await.unwrap());
    });
}
