//! Calls are bounded (C18): in time, whatever the store does, and in what they leave behind.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquireOptions, Acquired, ErrorKind, LockProvider, LockProviderExt, Phase, Wait};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::{Instant, sleep};

use crate::kit::{
    acquire, by_hand, ms, poll_once, process, provider, queued, queueing, quick_setup, secs, setup, waiter,
};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c18_every_call_is_bounded_when_the_store_hangs() {
    let (store, [provider]) = quick_setup();
    let hangs: Vec<_> = (0..1000).map(|_| store.hang_next(Operation::TryAcquire)).collect();
    let started = Instant::now();
    let error = provider.try_acquire("k").await.unwrap_err();
    assert_eq!(error.phase(), Some(Phase::Request));
    assert!(started.elapsed() >= ms(500) && started.elapsed() <= ms(502));
    for wait in [1, 40, 1200, 3000] {
        let started = Instant::now();
        let error = provider.acquire("k").timeout(ms(wait)).await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Request)), "{error}");
        assert!(started.elapsed() >= ms(wait) && started.elapsed() <= ms(wait + 2), "{:?}", started.elapsed());
    }
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn c18_calls_are_bounded_when_the_store_hangs() {
    let store = ScriptedStore::new(|op, key, _| match (op, key) {
        (Operation::TryAcquire, "free") => Fate::Serve,
        _ => Fate::Never,
    });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    assert!(provider.acquire("k").timeout(ms(700)).await.is_err());
    assert_eq!(start.elapsed(), ms(700));
    let start = Instant::now();
    assert!(provider.try_acquire("k").await.is_err());
    assert_eq!(start.elapsed(), secs(5));
    let guard = provider.acquire("free").await.unwrap();
    let start = Instant::now();
    assert!(guard.release().await.unwrap_err().is_outcome_unknown());
    assert_eq!(start.elapsed(), secs(5));
    let _held = provider.acquire("free 2").timeout(secs(1)).await;
    let start = Instant::now();
    assert!(provider.close().await.is_err());
    // Half a millisecond more for each of the three that are open.
    assert!(start.elapsed() <= secs(15) + ms(2));
    assert!(provider.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn c18_every_request_has_a_bound_that_is_not_zero() {
    for seed in 0..200 {
        fastrand::seed(seed);
        // Fails so late that a pause of 10 to 20 ms may use up the time left.
        let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
            (Operation::Release, 1) => Fate::FailAfter(ms(4988)),
            (Operation::Release, _) => Fate::fail(),
            _ => Fate::Serve,
        }));
        let provider = provider(&store);
        let guard = provider.acquire("k").await.unwrap();
        assert!(guard.release().await.is_err());
        assert!(!store.shortest_timeout().is_zero(), "{seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn c18_a_waiter_leaves_at_its_limit_although_the_store_hangs() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
    let _first = a.acquire("k").await.unwrap();
    let start = Instant::now();
    let waiter = {
        let b = b.clone();
        tokio::spawn(async move { b.acquire("k").timeout(ms(2000)).await })
    };
    queued(&store, 1).await;
    let _hangs = (store.hang_next(Operation::TryAcquire), store.hang_next(Operation::Renew));
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(start.elapsed(), ms(2000));
}

#[tokio::test(start_paused = true)]
async fn c18_a_wait_ends_in_time_at_a_local_and_at_a_remote_holder() {
    let (store, [here, there]) = quick_setup();
    let _guard = acquire(&here, "k").await;
    for waiter in [&here, &there] {
        let started = Instant::now();
        let error = waiter.acquire("k").timeout(ms(700)).await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)));
        assert_eq!(error.key().unwrap().as_str(), "k");
        assert!(started.elapsed() >= ms(700) && started.elapsed() <= ms(702));
        let at_once =
            waiter.acquire_with(error.key().unwrap().clone(), AcquireOptions::new().with_wait(Wait::UpTo(ms(0)))).await;
        assert!(matches!(at_once, Ok(Acquired::Busy(_))));
    }
    let calls = store.calls(Operation::TryAcquire);
    assert!(there.try_acquire("k").await.unwrap().is_none());
    assert_eq!(store.calls(Operation::TryAcquire), calls + 1, "one round trip");
}

#[tokio::test(start_paused = true)]
async fn c18_contention_at_a_slow_store_is_an_answer_and_no_error() {
    let store =
        Arc::new(ScriptedStore::new(
            |op, _, _| if op == Operation::TryAcquire { Fate::After(ms(50)) } else { Fate::Serve },
        ));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let mut errors = Vec::new();
    for within in (900..1200).step_by(10) {
        let answer = provider.try_acquire("k").within(ms(within)).await;
        errors.extend(answer.err().map(|error| error.to_string()));
    }
    assert!(errors.is_empty(), "{} of 30, such as {:?}", errors.len(), errors.first());
}

#[tokio::test(start_paused = true)]
async fn c18_a_caller_without_time_for_an_attempt_after_the_local_queue_gets_busy() {
    let store =
        Arc::new(ScriptedStore::new(
            |op, _, _| if op == Operation::TryAcquire { Fate::After(ms(50)) } else { Fate::Serve },
        ));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let waits = [0, 10].map(|later| {
        let provider = provider.clone();
        tokio::spawn(async move {
            sleep(ms(later)).await;
            provider.try_acquire("k").within(secs(1)).await.map(|guard| guard.is_some())
        })
    });
    for wait in waits {
        assert!(matches!(wait.await.unwrap(), Ok(false)));
    }
}

#[tokio::test(start_paused = true)]
async fn c18_acquire_all_does_not_begin_with_another_key_when_its_time_is_up() {
    let store =
        ScriptedStore::new(|op, _, _| if op == Operation::TryAcquire { Fate::After(secs(1)) } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let all = provider.acquire_all(["a", "b", "c", "d", "e", "f"]).timeout(secs(1)).await;
    assert!(start.elapsed() <= secs(2), "answered after {:?}: {:?}", start.elapsed(), all.map(drop));
}

#[tokio::test(start_paused = true)]
async fn c18_a_try_beside_a_lease_that_was_lost_in_transit_makes_an_attempt() {
    let (store, [a]) = setup();
    let first = a.acquire("k").await.unwrap();
    // The stream is opened when the lease is a second old.
    sleep(ms(1010)).await;
    let mut sleeps = by_hand(&a);
    assert!(poll_once(sleeps.as_mut()).is_pending());
    drop(first);
    assert!(a.try_acquire("k").await.unwrap().is_none(), "in transit");
    store.force_release("k").unwrap();
    sleep(ms(10)).await;
    let taken = a.try_acquire("k").await.unwrap();
    assert!(taken.is_some(), "no caller has it");
    drop((taken, sleeps));
}

/// A lease that was taken away before its grant arrived has no turn: a try makes an attempt.
#[tokio::test(start_paused = true)]
async fn c18_a_try_beside_a_grant_that_was_lost_in_transit_makes_an_attempt() {
    let (store, [a, b]) = setup();
    // A lease that is held for long opens the stream.
    let _other = a.acquire("other").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let mut hangs = store.hang_reply_next(Operation::TryAcquire);
    let waiting = waiter(&a);
    hangs.reached().await;
    store.force_release("k").unwrap();
    let held = b.acquire("k").await.unwrap();
    hangs.proceed();
    queued(&store, 1).await;
    let before = store.calls(Operation::TryAcquire);
    assert!(a.try_acquire("k").await.unwrap().is_none());
    assert_eq!(store.calls(Operation::TryAcquire), before + 1, "only the store knows");
    assert!(held.release().await.unwrap().is_released());
    assert!(waiting.await.unwrap().unwrap().release().await.unwrap().is_released());
}

#[tokio::test(start_paused = true)]
async fn c18_nothing_is_left_when_provider_and_guards_are_gone() {
    let store = ScriptedStore::new(|op, _, nth| match (op, nth % 3) {
        (Operation::Renew, 1) => Fate::Never,
        (Operation::TryAcquire, 2) => Fate::Late(ms(20)),
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities.push = true);
    let weak = {
        let provider = provider(&store);
        let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
        drop(provider.acquire("k").timeout(secs(5)).await);
        let mut waiting = pin!(provider.acquire("k").into_future());
        assert!(poll_once(waiting.as_mut()).is_pending());
        let lost = guard.lost();
        drop(guard.release().await);
        drop(lost);
        Arc::downgrade(&store)
    };
    sleep(secs(60)).await;
    drop(store);
    sleep(secs(60)).await;
    assert!(weak.upgrade().is_none(), "{} references", weak.strong_count());
}

#[tokio::test(start_paused = true)]
async fn leaks_nothing_keeps_the_store_alive_when_all_have_left() {
    let store = MemoryStore::new();
    let stepped = ScriptedStore::over(&store).with(|store| store.yields = 1);
    {
        let (a, b) = (process(&stepped), process(&stepped));
        let first = a.acquire("k").await.unwrap();
        let signal = first.lost();
        let mut on_its_way = by_hand(&a);
        assert!(poll_once(on_its_way.as_mut()).is_pending());
        let next = waiter(&b);
        queued(&store, 1).await;
        drop(first);
        drop(a);
        drop(on_its_way);
        let guard = next.await.unwrap().unwrap();
        drop((guard, signal));
    }
    sleep(secs(2)).await;
    assert_eq!(Arc::strong_count(&stepped), 1);
}
