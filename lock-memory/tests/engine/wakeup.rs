//! No wake-up is lost (C16), without busy loops and without streams that are not needed (C17).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::LockProviderExt;
use distlock_engine::LeaseProvider;
use distlock_engine::store::{BusyReply, StoreCapabilities, StoreEvent};
use distlock_memory::{MemoryStore, Operation};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::kit::{
    assert_pending, by_hand, guard, holder_and_waiter, ms, poll_once, process, provider, queued, queueing, quiet, secs,
    setup, waiter,
};
use crate::store::{Fate, ScriptedStore, Stream};

#[tokio::test(start_paused = true)]
async fn c16_a_stream_that_breaks_is_reopened_and_all_waiters_make_attempts() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
    let (first, next) = holder_and_waiter(&store, &a, &b).await;
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
async fn c16_a_store_that_declares_queue_and_push_late_forgets_no_waiter() {
    let (store, [a]) = setup();
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let learns = ScriptedStore::over(&store).with(|store| {
        let mut little = StoreCapabilities::default();
        little.minimum_hold = true;
        store.at_first = Some(little);
    });
    let next = waiter(&process(&learns));
    queued(&store, 1).await;
    sleep(secs(20)).await;
    assert_eq!(store.waiting("k").len(), 1, "its ticket is refreshed");
    let start = Instant::now();
    drop(first);
    let _guard = next.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), ms(0), "and its grant arrives");
}

#[tokio::test(start_paused = true)]
async fn c16_a_grant_before_the_stream_is_open_and_an_answer_after_it() {
    let (store, [a, b]) = setup();
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    sleep(ms(10)).await;
    let mut opens = store.hang_next(Operation::Watch);
    let elsewhere = b.acquire("elsewhere").await.unwrap(); // begins to open the stream
    opens.reached().await;
    let mut answer = store.hang_reply_next(Operation::TryAcquire.of("k"));
    let next = waiter(&b);
    answer.reached().await;
    assert_eq!(store.waiting("k").len(), 1);
    assert!(first.release().await.unwrap().is_released());
    let start = Instant::now();
    opens.proceed();
    quiet().await;
    answer.proceed();
    let _guard = next.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    drop(elsewhere);
}

/// Processes that take turns on `k` and hold it for 20 ms, until they are aborted.
async fn others_take_turns(store: &MemoryStore, count: usize) -> JoinSet<()> {
    let mut others = JoinSet::new();
    for n in 1..=count {
        let other = process(store);
        others.spawn(async move {
            loop {
                let guard = other.acquire("k").await.unwrap();
                sleep(ms(20)).await;
                assert!(guard.release().await.unwrap().is_released());
            }
        });
        queued(store, n - 1).await;
    }
    others
}

/// A process that has taken a turn among others, and so knows how long one takes.
async fn experienced(store: &MemoryStore, others: usize) -> (Arc<ScriptedStore>, LeaseProvider, JoinSet<()>) {
    let mine = ScriptedStore::over(store).with(|_| ());
    let (provider, others) = (process(&mine), others_take_turns(store, others).await);
    assert!(guard(waiter(&provider)).await.release().await.unwrap().is_released());
    (mine, provider, others)
}

#[tokio::test(start_paused = true)]
async fn c17_a_waiter_far_from_the_head_needs_no_events_at_first() {
    let store = MemoryStore::new();
    let (mine, provider, _others) = experienced(&store, 21).await;
    let start = Instant::now();
    let mut next = waiter(&provider);
    assert_pending(&mut next, ms(5)).await;
    let asked = mine.asked.load(Ordering::Relaxed);
    assert_pending(&mut next, ms(150)).await;
    assert_eq!(mine.asked.load(Ordering::Relaxed), asked, "20 turns of 20 ms are ahead");
    let _guard = guard(next).await;
    assert!((ms(400)..ms(430)).contains(&start.elapsed()), "its turn comes in time: {:?}", start.elapsed());
    assert!(mine.asked.load(Ordering::Relaxed) > asked, "by an event");
}

#[tokio::test(start_paused = true)]
async fn c16_a_waiter_that_pauses_is_not_passed_over_if_all_others_leave() {
    let store = MemoryStore::new();
    let (mine, provider, mut others) = experienced(&store, 81).await;
    let next = waiter(&provider);
    queued(&store, 81).await;
    let (start, attempts) = (Instant::now(), mine.count(Operation::TryAcquire));
    others.abort_all();
    while others.join_next().await.is_some() {}
    queued(&store, 0).await;
    let granted = start.elapsed();
    let _guard = guard(next).await;
    assert!(granted < ms(10), "the lease is handed over at once: {granted:?}");
    // Half of the expected wait would be 800 ms, half of the claim is 650.
    assert!(start.elapsed() < ms(660), "it is used when the pause ends: {:?}", start.elapsed());
    assert!(mine.count(Operation::TryAcquire) <= attempts + 1, "the same turn, prolonged by an attempt");
}

#[tokio::test(start_paused = true)]
async fn c16_a_waiter_with_little_time_pauses_for_half_of_it() {
    let store = MemoryStore::new();
    let (_mine, provider, mut others) = experienced(&store, 41).await;
    let next = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").timeout(ms(380)).await }
    });
    let start = Instant::now();
    sleep(ms(200)).await;
    others.abort_all();
    while others.join_next().await.is_some() {}
    let _guard = guard(next).await;
    assert!(start.elapsed() < ms(210), "without a limit it pauses for 400 ms: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c16_after_a_caller_has_left_during_its_pause_there_is_none() {
    let store = MemoryStore::new();
    let (mine, provider, _others) = experienced(&store, 151).await;
    let asked = || mine.asked.load(Ordering::Relaxed);
    for (call, expected) in [(1, false), (2, true), (3, true)] {
        let before = asked();
        assert!(timeout(ms(140), provider.acquire("k")).await.is_err(), "150 turns of 20 ms are ahead");
        assert_eq!(asked() > before, expected, "call {call}");
    }
}

#[tokio::test(start_paused = true)]
async fn c16_a_stream_that_nothing_needs_does_not_fall_behind() {
    let store = MemoryStore::new();
    let (mine, other) = (ScriptedStore::over(&store).with(|_| ()), process(&store));
    let provider = process(&mine);
    let (first, next) = holder_and_waiter(&store, &other, &provider).await;
    drop(first);
    assert!(guard(next).await.release().await.unwrap().is_released());
    // The stream stays open, because there is nearly always a lease. None of them needs it.
    let _leases = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let _guard = provider.acquire("mine").await.unwrap();
            sleep(ms(500)).await;
        }
    }));
    let _changes = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            drop(other.acquire("theirs").await.unwrap());
            sleep(ms(10)).await;
        }
    }));
    sleep(secs(30)).await;
    let before = mine.asked.load(Ordering::Relaxed);
    sleep(secs(1)).await;
    let asked = mine.asked.load(Ordering::Relaxed) - before;
    assert!(asked >= 50, "100 changes per second, and the reader has asked {asked} times");
}

#[tokio::test(start_paused = true)]
async fn c16_a_gap_while_the_answer_is_in_transit() {
    let (store, [a, b]) = setup();
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let elsewhere = b.acquire("elsewhere").await.unwrap();
    sleep(ms(10)).await;
    let mut answer = store.hang_reply_next(Operation::TryAcquire.of("k"));
    let next = waiter(&b);
    answer.reached().await;
    store.lose_events(true);
    assert!(first.release().await.unwrap().is_released());
    store.lose_events(false);
    store.push(StoreEvent::Gap);
    quiet().await;
    let start = Instant::now();
    answer.proceed();
    let _guard = next.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn c16_a_grant_behind_an_answer_without_a_time() {
    let (store, [a]) = setup();
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let tells_no_time = ScriptedStore::over(&store).with(|store| {
        store.bend_busy(|busy| {
            BusyReply::new().with_standing(busy.standing).with_holder_remaining(busy.holder_remaining.unwrap())
        });
    });
    let b = process(&tells_no_time);
    let elsewhere = b.acquire("elsewhere").ttl(secs(60)).await.unwrap();
    sleep(ms(10)).await;
    let mut next = by_hand(&b);
    assert!(poll_once(next.as_mut()).is_pending());
    queued(&store, 1).await;
    let refreshed = store.calls(Operation::Renew.of("k"));
    while store.calls(Operation::Renew.of("k")) == refreshed {
        sleep(ms(100)).await;
    }
    quiet().await; // the answer to the refresh is ready
    drop(first);
    quiet().await; // and so is the grant
    let start = Instant::now();
    let _guard = timeout(ms(300), next).await.unwrap_or_else(|_| panic!("{:?}", start.elapsed())).unwrap();
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn c16_a_process_whose_stream_is_silent_gets_its_turn_among_others() {
    let store = MemoryStore::new();
    let deaf = ScriptedStore::over(&store).with(|store| store.stream = Stream::Silent);
    let (a, b, c) = (process(&store), process(&store), process(&deaf));
    let busy: Vec<_> = [&a, &b]
        .into_iter()
        .flat_map(|provider| [provider.clone(), provider.clone()])
        .map(|provider| {
            tokio::spawn(async move {
                loop {
                    let guard = provider.acquire("k").await.unwrap();
                    sleep(ms(1000)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    let mut worst = ms(0);
    for _ in 0..100 {
        sleep(ms(u64::from(fastrand::u8(..)) * 4)).await;
        let start = Instant::now();
        drop(c.acquire("k").await.unwrap());
        worst = worst.max(start.elapsed());
    }
    busy.iter().for_each(JoinHandle::abort);
    assert!(worst < secs(12), "{worst:?}");
}

#[tokio::test(start_paused = true)]
async fn c16_a_hung_release_does_not_delay_local_waiters_past_the_expiry() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::Release, 1) => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    let start = Instant::now();
    drop(guard);
    let _next = provider.acquire("k").await.unwrap();
    assert!(start.elapsed() < secs(2), "the key was free after 1 s, this waiter had it after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c16_a_release_that_is_not_polled_does_not_delay_local_waiters_for_ever() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let unpolled = provider.acquire("k").ttl(secs(1)).await.unwrap().release();
    let next = provider.acquire("k").timeout(secs(60)).await;
    assert!(next.is_ok(), "the lease has expired at the store 59 s ago");
    drop(unpolled);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_takes_free_locks_for_a_moment_opens_no_stream() {
    let store = MemoryStore::new();
    let [provider] = queueing(&store);
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
    assert_eq!(store.calls(Operation::Watch), 1, "a waiter opens it at once");
    sleep(ms(1000)).await;
    assert_eq!(store.calls(Operation::Watch), 2, "a holder opens it when the lease is a second old");
    assert!(held.release().await.unwrap().is_released());
    assert!(guard(waiter).await.release().await.unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn c17_a_stream_that_breaks_at_once_is_not_opened_in_a_busy_loop() {
    let store = ScriptedStore::honest().with(|store| {
        store.capabilities.push = true;
        store.stream = Stream::Ends;
    });
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    sleep(secs(60)).await;
    assert!(store.count(Operation::Watch) < 200, "opened {} times in a minute", store.count(Operation::Watch));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn c17_busy_with_nothing_remaining_is_not_polled_in_a_busy_loop() {
    let store =
        ScriptedStore::honest().with(|store| store.bend_busy(|busy| busy.with_holder_remaining(Duration::ZERO)));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    assert!(provider.acquire("k").timeout(secs(10)).await.is_err());
    let attempts = store.count(Operation::TryAcquire);
    assert!(attempts < 200, "{attempts} attempts in 10 s although the longest pause is 250 ms");
}
