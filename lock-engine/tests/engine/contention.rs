//! Waiters of several providers in the queue of one store, whose clock, pushes and faults are in the test's hands. Time is paused.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::{
    ErrorKind, LeaseOptions, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, RenewalPolicy, Result,
};
use distlock_engine::store::{Attempt, Claim, ProviderId, QueueStanding, Reply, Ticket};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions, WhenFull};
use distlock_memory::{MemoryStore, Operation};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Three seconds of ttl, 300 ms of margin, renewed every second.
fn terms() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(3000))
}

/// As another process.
fn provider(store: &MemoryStore) -> LeaseProvider {
    store.builder().lease(terms()).request_timeout(ms(500)).without_hand_off().build().unwrap()
}

fn providers<const N: usize>(store: &MemoryStore) -> [LeaseProvider; N] {
    std::array::from_fn(|_| provider(store))
}

fn waiter(provider: &LeaseProvider) -> JoinHandle<Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").await })
}

/// Until so many have a place.
async fn queued(store: &MemoryStore, tickets: usize) {
    while store.waiting("k").len() != tickets {
        sleep(ms(1)).await;
    }
}

async fn guard(waiter: JoinHandle<Result<LockGuard>>) -> LockGuard {
    waiter.await.unwrap().unwrap()
}

/// A place in the queue that nobody looks after.
async fn dead_waiter(store: &MemoryStore, ttl: Duration) -> Claim {
    let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let attempt = Attempt::new(claim.clone(), ms(3000)).with_ticket(Ticket::new(ttl, ms(1300), 64));
    let reply = store.try_acquire(&attempt).await.unwrap();
    assert!(matches!(reply, Reply::Busy(busy) if matches!(busy.standing, QueueStanding::Queued { .. })));
    claim
}

#[tokio::test(start_paused = true)]
async fn c15_first_come_first_served_with_one_request_to_queue_up_and_one_to_hand_over() {
    let store = MemoryStore::new();
    let [a, b, c, d] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let mut waiters = Vec::new();
    for (place, provider) in [&b, &c, &d].into_iter().enumerate() {
        waiters.push(waiter(provider));
        queued(&store, place + 1).await;
    }
    sleep(ms(100)).await; // the streams are open, and everybody has asked once more
    let asked = store.calls(Operation::TryAcquire);
    let mut token = first.fencing_token();
    let mut held = Some(first);
    for waiter in waiters {
        let start = Instant::now();
        drop(held.take());
        let guard = guard(waiter).await;
        assert_eq!(start.elapsed(), ms(0), "pushed, not polled");
        assert!(guard.fencing_token() > token, "C5");
        token = guard.fencing_token();
        held = Some(guard);
    }
    assert_eq!(store.calls(Operation::TryAcquire), asked, "nobody asks");
    assert_eq!(store.calls(Operation::Release), 3, "C17: one write each");
}

#[tokio::test(start_paused = true)]
async fn c17_what_woke_a_guard_that_waited_does_not_make_the_next_caller_here_ask_twice() {
    let store = MemoryStore::new();
    let [elsewhere, here] = providers(&store);
    // A stream for both, so that nobody polls.
    drop((elsewhere.acquire("another").await.unwrap(), here.acquire("yet another").await.unwrap()));
    let mut foreign = elsewhere.acquire("k").await.unwrap();
    let mut own = waiter(&here);
    queued(&store, 1).await;
    sleep(ms(100)).await; // it has asked once more since its stream is open
    for turn in 1..=5 {
        let next_own = waiter(&here);
        drop(foreign);
        let guard = guard(own).await;
        let next_foreign = waiter(&elsewhere);
        queued(&store, 1).await;
        let asked = store.calls(Operation::TryAcquire);
        assert!(guard.release().await.unwrap().is_released());
        foreign = self::guard(next_foreign).await;
        queued(&store, 1).await;
        sleep(ms(100)).await;
        assert_eq!(store.calls(Operation::TryAcquire), asked + 1, "turn {turn}: one question for a place");
        own = next_own;
    }
}

#[tokio::test(start_paused = true)]
async fn r19_a_pushed_lease_starts_at_once_and_is_renewed_to_its_full_ttl() {
    let store = MemoryStore::new();
    let [a, b, c] = providers(&store);
    for never in [false, true] {
        let first = a.acquire("k").await.unwrap();
        let policy = if never { RenewalPolicy::Never } else { RenewalPolicy::Auto };
        let other = b.clone();
        let next = tokio::spawn(async move { other.acquire("k").renewal(policy).await });
        queued(&store, 1).await;
        sleep(ms(1500)).await;
        drop(first);
        let guard = guard(next).await;
        let remaining = guard.remaining().unwrap();
        assert!(remaining > ms(800) && remaining <= ms(1000), "a claim of 1 s: {remaining:?}");
        sleep(ms(900)).await;
        assert!(guard.remaining().unwrap() > ms(1500), "renewed");
        let renewals = store.calls(Operation::RenewMany);
        sleep(ms(5000)).await;
        assert_eq!(guard.is_lost(), never, "a lease that is never renewed lasts one ttl");
        assert_eq!(store.calls(Operation::RenewMany) == renewals, never);
        drop(guard);
        drop(c.acquire("k").await.unwrap());
    }
}

/// Waits in several providers, one after the other; each holds the lock for a moment. In which order they had it, and how long after the first release.
async fn turns(store: &MemoryStore) -> (Vec<usize>, Duration) {
    let providers: [_; 4] = providers(store);
    let first = providers[0].acquire("k").await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (place, provider) in providers.into_iter().skip(1).enumerate() {
        let (waiter, sender) = (waiter(&provider), sender.clone());
        tokio::spawn(async move {
            let guard = guard(waiter).await;
            sender.send(place).unwrap();
            sleep(ms(10)).await;
            drop(guard);
        });
        queued(store, place + 1).await;
    }
    drop(sender);
    sleep(ms(100)).await;
    let start = Instant::now();
    drop(first);
    let mut had = Vec::new();
    while let Some(place) = order.recv().await {
        had.push(place);
    }
    (had, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn c15_without_a_stream_everybody_polls_and_keeps_the_place() {
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    capabilities.push = false;
    let (order, took) = turns(&store.with_capabilities(capabilities)).await;
    assert_eq!(order, [0, 1, 2]);
    assert!(took < ms(3 * 260), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn c16_nobody_is_forgotten_when_no_push_arrives() {
    let store = MemoryStore::new();
    store.lose_events(true);
    let (order, took) = turns(&store).await;
    assert_eq!(order.len(), 3);
    // Each refresh, at the latest after 5 s, finds that the claim was granted, and whoever has missed it stands behind the others.
    assert!(took < ms(3 * 5000), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn c16_a_stream_that_breaks_is_opened_again_and_everybody_asks() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let next = waiter(&b);
    queued(&store, 1).await;
    sleep(ms(100)).await;
    let hang = store.hang_next(Operation::Watch);
    store.cut_watchers();
    sleep(ms(100)).await;
    let start = Instant::now();
    drop(first);
    let _guard = guard(next).await;
    assert!(start.elapsed() < ms(300), "it polls meanwhile: {:?}", start.elapsed());
    drop(hang);
}

#[tokio::test(start_paused = true)]
async fn c15_a_dead_waiter_costs_one_claim_window() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let dead = dead_waiter(&store, ms(60_000)).await;
    let next = waiter(&b);
    queued(&store, 2).await;
    sleep(ms(2500)).await;
    let start = Instant::now();
    drop(first);
    let _guard = guard(next).await;
    assert!(start.elapsed() >= ms(1300), "the dead one was granted its claim");
    assert!(start.elapsed() < ms(1300 + 50), "{:?}", start.elapsed());
    assert!(!store.waiting("k").contains(dead.id()));
}

#[tokio::test(start_paused = true)]
async fn c15_dead_waiters_before_a_dead_holder_cost_a_turn_window_each() {
    let store = MemoryStore::new();
    let b = provider(&store);
    let holder = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let start = Instant::now();
    let reply = store.try_acquire(&Attempt::new(holder, ms(3000))).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)));
    dead_waiter(&store, ms(60_000)).await;
    dead_waiter(&store, ms(60_000)).await;
    let next = waiter(&b);
    queued(&store, 3).await;
    let _guard = guard(next).await;
    let took = start.elapsed();
    assert!(took >= ms(3000 + 400 - 10) && took < ms(3000 + 400 + 50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_nobody_refreshes_disappears_and_one_that_is_refreshed_stays() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    dead_waiter(&store, ms(5000)).await;
    let next = waiter(&b);
    queued(&store, 2).await;
    sleep(ms(60_000)).await;
    let start = Instant::now();
    drop(first);
    let _guard = guard(next).await;
    assert_eq!(start.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn c11_giving_up_leaves_the_queue_in_one_operation() {
    let store = MemoryStore::new();
    let [a, b, c] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let leaves = waiter(&b);
    queued(&store, 1).await;
    let stays = waiter(&c);
    queued(&store, 2).await;
    leaves.abort();
    queued(&store, 1).await;
    assert_eq!(store.calls(Operation::Withdraw), 1);
    let limit = b.acquire("k").timeout(ms(200)).await;
    assert_eq!(limit.unwrap_err().kind(), ErrorKind::Timeout);
    queued(&store, 1).await;
    drop(first);
    let _guard = guard(stays).await;
}

#[tokio::test(start_paused = true)]
async fn c11_a_grant_that_crosses_the_leaving_is_passed_on() {
    let store = MemoryStore::new();
    let [a, b, c] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let leaves = waiter(&b);
    queued(&store, 1).await;
    let stays = waiter(&c);
    queued(&store, 2).await;
    sleep(ms(100)).await;
    let mut hang = store.hang_next(Operation::Withdraw);
    leaves.abort();
    hang.reached().await;
    assert!(first.release().await.unwrap().is_released());
    assert!(store.peek("k").is_some_and(|info| info.id.is_some()), "granted to the one who is leaving");
    let start = Instant::now();
    hang.proceed();
    let _guard = guard(stays).await;
    assert_eq!(start.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_an_error_or_a_poll_as_configured() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let small = QueueOptions::new().capacity(1);
    let refuses = store.builder().lease(terms()).queue(small.when_full(WhenFull::Refuse)).build().unwrap();
    let polls = store.builder().lease(terms()).queue(small).build().unwrap();
    let first = a.acquire("k").await.unwrap();
    let next = waiter(&b);
    queued(&store, 1).await;
    let error = refuses.acquire("k").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::QueueFull, true), "{error}");
    let last = waiter(&polls);
    sleep(ms(1000)).await;
    assert_eq!(store.waiting("k").len(), 1);
    drop(first);
    let next = guard(next).await;
    sleep(ms(1000)).await;
    assert!(!last.is_finished());
    drop(next);
    let _guard = guard(last).await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_queue_excludes_and_stands_back() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let older = store.builder().lease(terms()).without_queue().build().unwrap();
    let first = a.acquire("k").await.unwrap();
    let polls = waiter(&older);
    let next = waiter(&b);
    queued(&store, 1).await;
    sleep(ms(500)).await;
    drop(first);
    let next = guard(next).await;
    assert!(!polls.is_finished());
    drop(next);
    let _guard = guard(polls).await;
    assert!(older.capabilities() != b.capabilities() && !older.capabilities().fair && b.capabilities().fair);
}

#[tokio::test(start_paused = true)]
async fn c22_a_lease_taken_by_force_goes_to_the_head_of_the_queue() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let first = a.acquire("k").await.unwrap();
    let next = waiter(&b);
    queued(&store, 1).await;
    sleep(ms(100)).await;
    store.force_release("k").unwrap();
    let start = Instant::now();
    let next = guard(next).await;
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    assert_eq!(first.lost().await, Loss::ForceReleased);
    assert!(next.fencing_token() > first.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn tickets_are_refreshed_in_batches_and_nobody_asks_meanwhile() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for n in 0..200 {
        let key = n.to_string();
        guards.push(a.acquire(&*key).ttl(ms(30_000)).await.unwrap());
        let b = b.clone();
        waiters.push(tokio::spawn(async move { b.acquire(&*key).await }));
    }
    while b.accounting().waiting < 200 {
        sleep(ms(1)).await;
    }
    sleep(ms(1000)).await;
    let (asked, renewed) = (store.calls(Operation::TryAcquire), store.calls(Operation::RenewMany));
    sleep(ms(60_000)).await;
    assert_eq!(store.calls(Operation::TryAcquire), asked);
    let calls = store.calls(Operation::RenewMany) - renewed;
    // Two calls of 100 every 10 s for the leases, and every 5 s for the tickets.
    assert!(calls <= 2 * 6 + 2 * 13 + 8, "{calls}");
    waiters.iter().for_each(JoinHandle::abort);
    while b.accounting().waiting > 0 {
        sleep(ms(1)).await;
    }
    b.close().await.unwrap();
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn c18_a_waiter_leaves_at_its_limit_although_the_store_hangs() {
    let store = MemoryStore::new();
    let [a, b] = providers(&store);
    let _first = a.acquire("k").await.unwrap();
    let start = Instant::now();
    let waiter = {
        let b = b.clone();
        tokio::spawn(async move { b.acquire("k").timeout(ms(2000)).await })
    };
    queued(&store, 1).await;
    let _hangs = (store.hang_next(Operation::TryAcquire), store.hang_next(Operation::RenewMany));
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(start.elapsed(), ms(2000));
}

#[tokio::test(start_paused = true)]
async fn blocks_of_tokens_never_overlap() {
    let store = MemoryStore::new();
    let claim = || Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let first = claim();
    let block = NonZeroU32::new(100).unwrap();
    let Reply::Granted(grant) =
        store.try_acquire(&Attempt::new(first.clone(), ms(1000)).with_tokens(block)).await.unwrap()
    else {
        panic!("free")
    };
    let b = provider(&store);
    let next = waiter(&b);
    queued(&store, 1).await;
    assert!(store.release(&distlock_engine::store::Release::new(first)).await.unwrap().is_released());
    assert!(guard(next).await.fencing_token().get() >= grant.token.get() + 100);
}

#[tokio::test]
async fn wild_waiters_of_four_processes_keep_exclusion_order_and_books() {
    let store = MemoryStore::new();
    let providers: Vec<_> = (0..4)
        .map(|n| {
            // Time is real here: nothing may expire because the machine has stalled.
            let queue = QueueOptions::new().claim(ms(30_000));
            let builder = store.builder().lease(terms().ttl(ms(60_000))).queue(queue);
            if n % 2 == 0 { builder.build().unwrap() } else { builder.without_hand_off().build().unwrap() }
        })
        .collect();
    let last = std::sync::Arc::new(std::sync::Mutex::new(0));
    let tasks: Vec<_> = (0..16usize)
        .map(|n| {
            let (provider, last) = (providers[n % 4].clone(), last.clone());
            tokio::spawn(async move {
                for round in 0..100 {
                    if fastrand::u8(..) < 40 {
                        let limit = Duration::from_micros(fastrand::u64(0..2000));
                        if let Ok(guard) = provider.acquire("k").timeout(limit).await {
                            assert!(!guard.is_lost());
                        }
                        continue;
                    }
                    let guard = provider.acquire("k").await.unwrap();
                    let token = guard.fencing_token().get();
                    let before = std::mem::replace(&mut *last.lock().unwrap(), token);
                    assert!(token > before, "C5");
                    tokio::task::yield_now().await;
                    assert_eq!(*last.lock().unwrap(), token, "C1");
                    if round % 2 == 0 { drop(guard) } else { assert!(guard.release().await.unwrap().is_released()) }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for provider in &providers {
        provider.close().await.unwrap();
        let books = provider.accounting();
        assert!(books.balances() && (books.held, books.waiting, books.abandoned) == (0, 0, 0), "{books:?}");
    }
    assert!(store.waiting("k").is_empty() && store.peek("k").is_none_or(|info| info.id.is_none()), "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn who_takes_free_locks_for_a_moment_does_not_listen() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    for _ in 0..30 {
        let held = provider.acquire("k").await.unwrap();
        sleep(ms(100)).await;
        assert!(held.release().await.unwrap().is_released());
    }
    assert_eq!(store.calls(Operation::Watch), 0);

    let held = provider.acquire("k").await.unwrap();
    let waiter = waiter(&self::provider(&store));
    queued(&store, 1).await;
    sleep(ms(10)).await;
    assert_eq!(store.calls(Operation::Watch), 1, "who waits listens at once");
    sleep(ms(1000)).await;
    assert_eq!(store.calls(Operation::Watch), 2, "who holds listens when the lease is a second old");
    assert!(held.release().await.unwrap().is_released());
    assert!(guard(waiter).await.release().await.unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn c22_what_happens_to_a_young_lease_is_heard_as_soon_as_it_is_listened_for() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let held = provider.acquire("k").ttl(Duration::from_secs(3600)).await.unwrap();
    sleep(ms(300)).await;
    let (since, _) = (Instant::now(), store.force_release("k").unwrap());
    assert_eq!(held.lost().await, Loss::ForceReleased);
    assert!(since.elapsed() < ms(1000), "{:?}", since.elapsed());
}
