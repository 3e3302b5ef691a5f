//! Handing a lease on within one process (R21), with the store's clock and faults in the test's hands.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use distlock_api::{
    ErrorKind, FencingToken, LeaseOptions, LockGuard, LockProvider, LockProviderExt, Loss, ReleaseOutcome,
    RenewalPolicy,
};
use distlock_engine::{HandOff, LeaseProvider, LeaseStore};
use distlock_memory::{MemoryStore, Operation};
use tokio::task::JoinHandle;
use tokio::time::{advance, sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One second of ttl, 100 ms of margin, renewed every 300 ms.
fn quick() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(300)))
}

/// A store that grants blocks of tokens.
fn store() -> MemoryStore {
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    capabilities.token_blocks = true;
    store.with_capabilities(capabilities)
}

fn provider(store: &MemoryStore) -> LeaseProvider {
    store.builder().lease(quick()).request_timeout(ms(500)).build().unwrap()
}

fn waiter(provider: &LeaseProvider) -> JoinHandle<LockGuard> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").await.unwrap() })
}

async fn waiting(provider: &LeaseProvider, waiters: u64) {
    while provider.accounting().waiting < waiters {
        sleep(ms(1)).await;
    }
}

/// Calls that reached the store, without renewals.
fn requests(store: &MemoryStore) -> (u64, u64) {
    (store.calls(Operation::TryAcquire), store.calls(Operation::Release))
}

#[tokio::test(start_paused = true)]
async fn the_next_one_gets_the_lease_with_the_next_token_and_no_request() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..3).map(|_| waiter(&provider)).collect();
    waiting(&provider, 3).await;
    let mut token = first.fencing_token();
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    for waiter in waiters {
        let guard = waiter.await.unwrap();
        assert_eq!(guard.fencing_token(), FencingToken::new(token.get() + 1), "one after the other");
        token = guard.fencing_token();
        drop(guard);
    }
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
    assert_eq!(requests(&store), (1, 1));
    let books = provider.accounting();
    assert!(books.balances() && (books.acquired, books.released) == (4, 4), "{books:?}");
    assert!(provider.acquire("k").await.unwrap().fencing_token() > token, "C5: beyond the block");
}

#[tokio::test(start_paused = true)]
async fn switched_off_every_release_goes_to_the_store() {
    let store = store();
    let provider = store.builder().lease(quick()).without_hand_off().build().unwrap();
    let first = provider.acquire("k").await.unwrap();
    let waiter = waiter(&provider);
    waiting(&provider, 1).await;
    assert!(first.release().await.unwrap().is_released());
    assert!(waiter.await.unwrap().release().await.unwrap().is_released());
    assert_eq!(requests(&store), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_tell_who_waits_gets_the_lease_back_after_the_count() {
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    (capabilities.token_blocks, capabilities.queue) = (true, false);
    let store = store.with_capabilities(capabilities);
    store.fail_always(Operation::Waiters, ErrorKind::Unsupported);
    let provider = store.builder().lease(quick()).hand_off(HandOff::new().max_count(2)).build().unwrap();
    let first = provider.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..6).map(|_| waiter(&provider)).collect();
    waiting(&provider, 6).await;
    drop(first);
    for waiter in waiters {
        let guard = waiter.await.unwrap();
        sleep(ms(1)).await; // so that the question is answered
        drop(guard);
    }
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
    // 1 + 2 handed on, 1 + 2, 1.
    assert_eq!(requests(&store), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn while_nobody_else_waits_it_goes_on_without_end_and_is_renewed() {
    for (section, sections) in [(1, 4000), (20, 400), (500, 40)] {
        let store = store();
        let provider = provider(&store);
        let mut guard = provider.acquire("k").await.unwrap();
        for _ in 0..sections {
            let next = waiter(&provider);
            waiting(&provider, 1).await;
            sleep(ms(section)).await;
            drop(guard);
            guard = next.await.unwrap();
            assert!(!guard.is_lost());
        }
        assert_eq!(requests(&store), (1, 0), "many seconds on one lease of one second");
        assert!(store.calls(Operation::RenewMany) >= 8);
    }
}

#[tokio::test(start_paused = true)]
async fn c4_a_loss_hits_the_guard_in_use_and_no_earlier_one() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").await.unwrap();
    let mut past = first.lost();
    let (second, third) = (waiter(&provider), waiter(&provider));
    waiting(&provider, 2).await;
    drop(first);
    let second = second.await.unwrap();
    assert!(store.force_release("k").is_some());
    assert_eq!(second.lost().await, Loss::ForceReleased);
    assert!(timeout(ms(5000), &mut past).await.is_err(), "what was handed on is not lost");
    let third = third.await.unwrap();
    assert!(third.fencing_token() > second.fencing_token(), "a fresh lease");
    assert_eq!(second.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert!(!third.is_lost() && provider.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_not_handed_on() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").renewal(RenewalPolicy::Never).await.unwrap();
    let next = waiter(&provider);
    waiting(&provider, 1).await;
    advance(ms(950)).await;
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    let _next = next.await.unwrap();
    assert_eq!(requests(&store).0, 2, "asked afresh");
}

#[tokio::test(start_paused = true)]
async fn c11_a_waiter_that_leaves_with_the_lease_on_its_way_passes_it_on_or_back() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").await.unwrap();
    let (leaves, stays) = (waiter(&provider), waiter(&provider));
    waiting(&provider, 2).await;
    leaves.abort();
    drop(first);
    let token = stays.await.unwrap().fencing_token();
    assert!(token.get() > 0);

    // Nobody left: back to the store.
    let guard = provider.acquire("k").await.unwrap();
    let leaves = waiter(&provider);
    waiting(&provider, 1).await;
    drop(guard); // on its way now, the task has not run yet
    leaves.abort();
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
    assert!(provider.accounting().balances());
    let other = store.builder().build().unwrap();
    assert!(other.try_acquire("k").await.unwrap().is_some(), "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn other_terms_or_another_owner_get_a_lease_of_their_own() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").await.unwrap();
    let (longer, other) = (provider.clone(), provider.clone());
    let longer = tokio::spawn(async move { longer.acquire("k").ttl(ms(5000)).await.unwrap() });
    waiting(&provider, 1).await;
    let other = tokio::spawn(async move { other.acquire("k").ttl(ms(5000)).owner("somebody else").await.unwrap() });
    waiting(&provider, 2).await;
    drop(first);
    let longer = longer.await.unwrap();
    assert!(longer.remaining().unwrap() > ms(4000));
    drop(longer);
    let other = other.await.unwrap();
    assert_eq!(store.peek("k").unwrap().owner.as_deref(), Some("somebody else"));
    drop(other);
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
    assert_eq!(requests(&store), (3, 3));
    assert!(provider.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_is_not_handed_on() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").hold_at_least(ms(500)).await.unwrap();
    let start = tokio::time::Instant::now();
    let next = waiter(&provider);
    waiting(&provider, 1).await;
    drop(first);
    let _next = next.await.unwrap();
    assert!(start.elapsed() >= ms(490));
}

#[tokio::test(start_paused = true)]
async fn c24_closing_ends_a_lease_that_is_handed_on() {
    let store = store();
    let provider = provider(&store);
    let first = provider.acquire("k").await.unwrap();
    let closing = provider.clone();
    let waiter = tokio::spawn(async move { closing.acquire("k").await });
    waiting(&provider, 1).await;
    drop(first); // on its way
    provider.close().await.unwrap();
    if let Ok(guard) = waiter.await.unwrap() {
        assert_eq!(guard.lost().await, Loss::Closed);
    }
    let other = store.builder().build().unwrap();
    assert!(other.try_acquire("k").await.unwrap().is_some(), "it was released");
    assert!(provider.accounting().balances());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wild_hand_overs_keep_order_and_books() {
    let store = store();
    // Time is real here: nothing may expire because the machine has stalled.
    let provider = store.builder().lease(LeaseOptions::new().ttl(ms(60_000))).build().unwrap();
    let last = std::sync::Arc::new(std::sync::Mutex::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (provider, last) = (provider.clone(), last.clone());
            tokio::spawn(async move {
                for round in 0..200 {
                    if (n + round) % 7 == 0 {
                        let limit = Duration::from_micros(u64::from(fastrand::u8(..)));
                        let _ = timeout(limit, provider.acquire("k").into_future()).await;
                        continue;
                    }
                    let guard = provider.acquire("k").await.unwrap();
                    let token = guard.fencing_token().get();
                    let before = std::mem::replace(&mut *last.lock().unwrap(), token);
                    assert!(token > before, "C5");
                    tokio::task::yield_now().await;
                    assert_eq!(*last.lock().unwrap(), token, "C1");
                    assert!(provider.accounting().balances(), "C23");
                    if round % 2 == 0 { drop(guard) } else { assert!(guard.release().await.unwrap().is_released()) }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    provider.close().await.unwrap();
    let books = provider.accounting();
    assert!(books.balances() && (books.held, books.waiting, books.lost, books.abandoned) == (0, 0, 0, 0), "{books:?}");
    assert!(store.peek("k").is_none_or(|info| info.remaining.is_zero()), "nothing is left behind");
}

/// Between a guard's hand and the next there is time for a loss: here it is made long by a waker that takes its time.
#[test]
fn c16_a_lease_that_is_lost_while_nobody_takes_it_on_does_not_keep_its_turn() {
    struct Stalls(std::thread::ThreadId);
    impl std::task::Wake for Stalls {
        fn wake(self: std::sync::Arc<Self>) {
            if std::thread::current().id() == self.0 {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    capabilities.token_blocks = true;
    let provider = LeaseProvider::new(std::sync::Arc::new(store.with_capabilities(capabilities)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let acquiring = provider.acquire("k").ttl(Duration::from_millis(200)).renewal(RenewalPolicy::Never);
        let guard = acquiring.await.unwrap();
        let mut lost = Box::pin(guard.lost());
        let waker = std::sync::Arc::new(Stalls(std::thread::current().id())).into();
        assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        let _ = guard.release().await.unwrap();
        let next = provider.acquire("k").timeout(Duration::from_secs(10)).await;
        assert!(next.is_ok(), "the lease is long over: {next:?}");
        drop(lost);
    });
}
