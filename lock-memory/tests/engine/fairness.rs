//! First come, first served, in one process and across processes (C15), without a herd (C17).

use std::future::IntoFuture;
use std::time::Duration;

use distlock_api::{ErrorKind, LockKey, LockProvider, LockProviderExt};
use distlock_engine::store::{Attempt, Claim, ProviderId, QueueStanding, Reply, Ticket};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions, WhenFull};
use distlock_memory::{MemoryStore, Operation};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{
    acquire, by_hand, guard, holder_and_waiter, holds_nothing, in_task, memory, ms, poll_once, process, queued,
    queueing, quick_setup, secs, setup, terms, waiter, waiting,
};

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_served_in_order_and_make_attempts_one_at_a_time() {
    let (store, [here, there]) = quick_setup();
    let guard = acquire(&there, "k").await;
    let (sender, mut order) = mpsc::unbounded_channel();
    for n in 0..20 {
        let (here, sender) = (here.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = acquire(&here, "k").await;
            sender.send(n).unwrap();
            guard.release().await.unwrap();
        });
        yield_now().await;
    }
    assert_eq!(here.accounting().waiting, 20);
    sleep(ms(100)).await;
    guard.release().await.unwrap();
    for n in 0..20 {
        assert_eq!(order.recv().await, Some(n));
    }
    assert!(store.calls(Operation::TryAcquire) < 50, "{}", store.calls(Operation::TryAcquire));
}

#[tokio::test(start_paused = true)]
async fn c15_first_come_first_served_with_one_request_to_queue_up_and_one_to_hand_over() {
    let store = MemoryStore::new();
    let [a, b, c, d] = queueing(&store);
    let first = a.acquire("k").await.unwrap();
    let mut waiters = Vec::new();
    for (place, provider) in [&b, &c, &d].into_iter().enumerate() {
        waiters.push(waiter(provider));
        queued(&store, place + 1).await;
    }
    sleep(ms(100)).await; // the streams are open, and each waiter has made another attempt
    let attempts = store.calls(Operation::TryAcquire);
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
    assert_eq!(store.calls(Operation::TryAcquire), attempts, "no attempt");
    assert_eq!(store.calls(Operation::Release), 3, "C17: one write each");
}

#[tokio::test(start_paused = true)]
async fn c17_what_woke_a_guard_that_waited_gives_the_next_caller_no_second_attempt() {
    let store = MemoryStore::new();
    let [elsewhere, here] = queueing(&store);
    // Both have a stream, so that neither polls.
    drop((elsewhere.acquire("another").await.unwrap(), here.acquire("yet another").await.unwrap()));
    let mut foreign = elsewhere.acquire("k").await.unwrap();
    let mut own = waiter(&here);
    queued(&store, 1).await;
    sleep(ms(100)).await; // it has made another attempt since its stream is open
    for turn in 1..=5 {
        let next_own = waiter(&here);
        drop(foreign);
        let guard = guard(own).await;
        let next_foreign = waiter(&elsewhere);
        queued(&store, 1).await;
        let attempts = store.calls(Operation::TryAcquire);
        assert!(guard.release().await.unwrap().is_released());
        foreign = self::guard(next_foreign).await;
        queued(&store, 1).await;
        sleep(ms(100)).await;
        assert_eq!(store.calls(Operation::TryAcquire), attempts + 1, "turn {turn}: one attempt for a ticket");
        own = next_own;
    }
}

/// A ticket in the queue that is never refreshed.
async fn dead_waiter(store: &MemoryStore, ttl: Duration) -> Claim {
    let claim = Claim::new(LockKey::new("k").unwrap(), ProviderId::random().acquisition_id());
    let attempt = Attempt::new(claim.clone(), ms(3000)).with_ticket(Ticket::new(ttl, ms(1300), 64));
    let reply = store.try_acquire(&attempt).await.unwrap();
    assert!(matches!(reply, Reply::Busy(busy) if matches!(busy.standing, QueueStanding::Queued { .. })));
    claim
}

/// One waiter in each of several providers, one after the other; each holds the lock for a moment.
/// Returns the order in which they had it, and the time from the first release to the end.
async fn turns(store: &MemoryStore) -> (Vec<usize>, Duration) {
    let providers: [_; 4] = queueing(store);
    let first = providers[0].acquire("k").await.unwrap();
    let (sender, mut order) = mpsc::unbounded_channel();
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
async fn c15_without_a_stream_all_waiters_poll_and_keep_their_position() {
    let (order, took) = turns(&memory(|capabilities| capabilities.push = false)).await;
    assert_eq!(order, [0, 1, 2]);
    assert!(took < ms(3 * 260), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn c16_no_waiter_is_forgotten_when_no_push_arrives() {
    let store = MemoryStore::new();
    store.lose_events(true);
    let (order, took) = turns(&store).await;
    assert_eq!(order.len(), 3);
    // A refresh, at the latest after 5 s, finds that the claim was granted. A waiter that has
    // missed its grant starts again behind the others.
    assert!(took < ms(3 * 5000), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn c15_a_dead_waiter_costs_one_claim_window() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
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
    let [b] = queueing(&store);
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
async fn a_ticket_without_refreshes_disappears_and_one_with_refreshes_stays() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
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
async fn tickets_are_refreshed_in_batches_without_attempts_meanwhile() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for n in 0..200 {
        let key = n.to_string();
        guards.push(a.acquire(&*key).ttl(ms(30_000)).await.unwrap());
        waiters.push(in_task(&b, key));
    }
    waiting(&b, 200).await;
    sleep(ms(1000)).await;
    let (attempts, renewed) = (store.calls(Operation::TryAcquire), store.calls(Operation::Renew));
    sleep(ms(60_000)).await;
    assert_eq!(store.calls(Operation::TryAcquire), attempts);
    let calls = store.calls(Operation::Renew) - renewed;
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
async fn a_full_queue_is_an_error_or_a_poll_as_configured() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
    let small = QueueOptions::new().capacity(1);
    let refuses = store.builder().lease(terms()).queue(small.when_full(WhenFull::Refuse)).build().unwrap();
    let polls = store.builder().lease(terms()).queue(small).build().unwrap();
    let (first, next) = holder_and_waiter(&store, &a, &b).await;
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
async fn a_provider_without_queue_excludes_and_comes_last() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
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
async fn c15_a_lease_in_transit_to_a_caller_that_is_not_polled_ends_with_its_ttl() {
    let (_, [a, b]) = setup();
    let first = a.acquire("k").await.unwrap();
    let mut sleeps = by_hand(&a);
    assert!(poll_once(sleeps.as_mut()).is_pending());
    drop(first); // in transit
    let start = Instant::now();
    let other = timeout(secs(30), b.acquire("k").into_future()).await.expect("after the ttl at the latest").unwrap();
    assert!(start.elapsed() <= ms(3500), "{:?}", start.elapsed());
    drop(other);
    let guard = sleeps.await.unwrap();
    assert!(!guard.is_lost());
    drop(guard);
    holds_nothing(&a).await;
    assert!(a.accounting().balances());
}

/// Returns how long a caller of another process waits while this process hands its lease on without
/// a pause.
async fn waits_beside_a_busy_process(store: &MemoryStore, a: LeaseProvider) -> Duration {
    let b = process(store);
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let a = a.clone();
            tokio::spawn(async move {
                loop {
                    let guard = a.acquire("k").await.unwrap();
                    sleep(ms(1)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    sleep(ms(1000)).await;
    let start = Instant::now();
    let guard = timeout(secs(10), b.acquire("k").into_future()).await;
    let took = start.elapsed();
    drop(guard);
    busy.iter().for_each(JoinHandle::abort);
    took
}

#[tokio::test(start_paused = true)]
async fn c15_the_hand_off_ends_in_time_whatever_becomes_of_the_query_for_waiters() {
    for what in 0..4 {
        let (store, [a]) = setup();
        let mut hangs = Vec::new();
        match what {
            0 => {}
            1 => store.fail_always(Operation::Waiters, ErrorKind::Unavailable),
            2 => hangs.extend((0..200).map(|_| store.hang_next(Operation::Waiters))),
            _ => hangs.extend((0..200).map(|_| store.hang_reply_next(Operation::Waiters))),
        }
        let took = waits_beside_a_busy_process(&store, a).await;
        assert!(took <= ms(320), "{what} {took:?}");
    }
}
