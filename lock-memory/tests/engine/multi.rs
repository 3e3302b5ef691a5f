//! Several keys at once: all or nothing, and without deadlock (C21).

use std::future::IntoFuture;
use std::sync::Arc;

use distlock_api::{
    AcquireOptions, Disposition, ErrorKind, LockError, LockGuard, LockKey, LockProvider, LockProviderExt,
    ReleaseOutcome,
};
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{in_task, ms, provider, quick_setup, quiet, secs, setup};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c21_several_locks_at_once() {
    let (store, [provider]) = quick_setup();
    let all = provider.acquire_all(["b", "a", "b"]).await.unwrap();
    assert_eq!(all.guards().iter().map(|guard| guard.key().as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let started = Instant::now();
    let error = provider.acquire_all(["0", "b"]).timeout(ms(300)).await.unwrap_err();
    assert!(error.is_not_granted() && error.is_retryable(), "{error:?}");
    assert_eq!(error.key().map(LockKey::as_str), Some("b"));
    assert!(started.elapsed() <= ms(302));
    assert!(store.peek("0").is_none(), "all or nothing");
    assert!(provider.try_acquire_all(["0", "b"]).await.unwrap().is_none());
    assert!(store.peek("0").is_none(), "all or nothing");
    assert_eq!(all.release().await.unwrap(), ReleaseOutcome::Released);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let provider = provider.clone();
        let keys = if n % 2 == 0 { ["x", "y", "z"] } else { ["z", "x", "y"] };
        tasks.spawn(async move { drop(provider.acquire_all(keys).await.unwrap()) });
    }
    timeout(ms(600_000), tasks.join_all()).await.expect("no deadlock");
    assert!(provider.acquire_all(Vec::<&str>::new()).await.unwrap().guards().is_empty());
    let error = provider.acquire_all(["fine", ""]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
}

#[tokio::test(start_paused = true)]
async fn c21_a_rolled_back_acquisition_does_not_keep_its_keys_closed() {
    let store = Arc::new(ScriptedStore::honest());
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("b").await.unwrap();
    let all = provider.try_acquire_all(["a", "b"]).hold_at_least(secs(3600)).within(ms(50)).await.unwrap();
    assert!(all.is_none());
    quiet().await;
    assert!(store.is_free("a"), "all or nothing: the work was not done, and could not be for an hour");
}

/// With what it had acquired before the key that it waited for, and with what a round of tries has
/// granted when it is dropped within one.
#[tokio::test(start_paused = true)]
async fn c21_an_acquisition_that_is_dropped_does_not_keep_its_keys_closed() {
    for slow in ["b", "d"] {
        let store = Arc::new(ScriptedStore::new(move |op, key, _| match op {
            Operation::TryAcquire if key == slow => Fate::After(ms(200)),
            _ => Fate::Serve,
        }));
        let (provider, other) = (provider(&store), provider(&store));
        let held = other.acquire("b").await.unwrap();
        let acquiring = provider.acquire_all(["a", "b", "c", "d"]).hold_at_least(secs(3600)).into_future();
        assert!(timeout(ms(100), acquiring).await.is_err(), "b is held");
        quiet().await;
        assert!(["a", "c", "d"].iter().all(|key| store.is_free(key)), "no work was done, {slow} is slow");
        drop(held);
    }
}

#[tokio::test(start_paused = true)]
async fn c21_opposite_orders_do_not_deadlock() {
    let store = Arc::new(ScriptedStore::honest());
    let providers = [provider(&store), provider(&store)];
    let rounds = (0..40).map(|n| {
        let provider = providers[n % 2].clone();
        tokio::spawn(async move {
            let keys = if n % 3 == 0 { ["a", "b", "a"] } else { ["b", "a", "b"] };
            let all = provider.acquire_all(keys).await.unwrap();
            yield_now().await;
            all.release().await.unwrap()
        })
    });
    for outcome in join_all(rounds).await {
        assert_eq!(outcome.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn c21_opposite_orders_do_not_deadlock_while_leases_are_handed_on() {
    let (_, [a, b]) = setup();
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let provider = if n % 3 == 0 { b.clone() } else { a.clone() };
            tokio::spawn(async move {
                let keys = if n % 2 == 0 { ["x", "y", "z"] } else { ["z", "y", "x"] };
                for _ in 0..5 {
                    let all = provider.acquire_all(keys).await.unwrap();
                    sleep(ms(1)).await;
                    assert!(!all.is_lost());
                    all.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(secs(60), task).await.expect("a deadlock").unwrap();
    }
    assert!(a.accounting().balances() && b.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn c21_free_locks_are_asked_for_at_once() {
    let store =
        ScriptedStore::new(|op, _, _| if op == Operation::TryAcquire { Fate::After(ms(100)) } else { Fate::Serve });
    let store = Arc::new(store);
    let provider = provider(&store);
    let started = Instant::now();
    let all = provider.acquire_all(0..100).await.unwrap();
    assert_eq!(started.elapsed(), ms(200), "64, then the others");
    let keys: Vec<&LockKey> = all.guards().iter().map(LockGuard::key).collect();
    assert!(keys.len() == 100 && keys.is_sorted());
    assert_eq!(store.count(Operation::TryAcquire), 100);
    assert_eq!(all.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn c21_a_caller_that_waits_holds_only_smaller_keys() {
    let store = Arc::new(ScriptedStore::honest());
    let (provider, other) = (provider(&store), provider(&store));
    let held = other.acquire("b").await.unwrap();
    let waiting = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire_all(["d", "c", "b", "a"]).timeout(secs(60)).await }
    });
    sleep(ms(100)).await;
    let free = ["a", "c", "d"].map(|key| store.is_free(key));
    assert_eq!(free, [false, true, true]);
    let asked = store.count(Operation::TryAcquire);
    let c = other.try_acquire("c").await.unwrap().expect("it is free");
    drop(held);
    sleep(secs(1)).await;
    assert!(!store.is_free("b") && store.is_free("d"), "it waits for c");
    assert!(store.count(Operation::TryAcquire) > asked);
    drop(c);
    let all = waiting.await.unwrap().unwrap();
    assert_eq!(all.guards().len(), 4);
}

/// Without this, callers under contention took free keys behind a busy one again and again, and
/// served half of what they serve one by one.
#[tokio::test(start_paused = true)]
async fn c21_a_key_that_was_busy_is_requested_by_itself() {
    let store = Arc::new(ScriptedStore::honest());
    let (provider, other) = (provider(&store), provider(&store));
    let held = other.acquire("b").await.unwrap();
    assert!(provider.try_acquire_all(["b", "c", "d"]).await.unwrap().is_none());
    let asked = store.count(Operation::TryAcquire);
    for _ in 0..10 {
        assert!(provider.try_acquire_all(["b", "c", "d"]).await.unwrap().is_none());
    }
    assert_eq!(store.count(Operation::TryAcquire), asked + 10, "no key behind it is taken");
    drop(held);
    quiet().await;
    let all = provider.try_acquire_all(["b", "c", "d"]).await.unwrap().expect("all are free");
    assert_eq!(all.release().await.unwrap(), ReleaseOutcome::Released);
    // After a while it is tried with the others again.
    for _ in 0..100 {
        drop(provider.acquire_all(["b", "c", "d"]).await.unwrap());
        quiet().await;
    }
    let _held = other.acquire("b").await.unwrap();
    let asked = store.count(Operation::TryAcquire);
    assert!(provider.try_acquire_all(["b", "c", "d"]).await.unwrap().is_none());
    assert_eq!(store.count(Operation::TryAcquire), asked + 4, "three tries, and one of the busy key");
}

/// A discard that is not confirmed yet makes a key of the group itself seem busy.
#[tokio::test(start_paused = true)]
async fn c21_a_group_is_not_refused_because_of_its_own_discards() {
    let store = Arc::new(ScriptedStore::new(|op, key, nth| match (op, key, nth) {
        // By itself, after the holder and the round.
        (Operation::TryAcquire, "a", 3) => Fate::After(ms(100)),
        (Operation::Release, "b" | "c", _) => Fate::After(ms(300)),
        _ => Fate::Serve,
    }));
    let (provider, other) = (provider(&store), provider(&store));
    let held = other.acquire("a").await.unwrap();
    let released = tokio::spawn(async move {
        sleep(ms(50)).await;
        held.release().await.unwrap()
    });
    let all = provider.try_acquire_all(["a", "b", "c"]).await.unwrap();
    assert_eq!(released.await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(all.expect("all are free").guards().len(), 3);
}

/// Locks behind a busy one are given back in the background while that one is waited for, and
/// before the answer.
#[tokio::test(start_paused = true)]
async fn c21_nothing_is_held_after_a_refusal() {
    let store =
        ScriptedStore::new(|op, _, _| if op == Operation::Release { Fate::After(ms(300)) } else { Fate::Serve });
    let store = Arc::new(store);
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("b").await.unwrap();
    let refused = provider.acquire_all(["a", "b", "c", "d"]).timeout(ms(100)).await;
    assert!(refused.unwrap_err().is_not_granted());
    assert!(["a", "c", "d"].iter().all(|key| store.is_free(key)), "all or nothing");
}

#[tokio::test(start_paused = true)]
async fn c18_several_locks_at_a_store_that_does_not_answer_end_as_one_does() {
    let provider = provider(&Arc::new(ScriptedStore::new(|_, _, _| Fate::Never)));
    let one = provider.acquire("a").timeout(secs(2)).await.unwrap_err();
    let started = Instant::now();
    let all = provider.acquire_all(["a", "b", "c"]).timeout(secs(2)).await.unwrap_err();
    assert!(started.elapsed() <= secs(3), "{:?}", started.elapsed());
    assert_eq!((all.kind(), all.is_not_granted()), (one.kind(), one.is_not_granted()), "{all}");
}

#[tokio::test(start_paused = true)]
async fn c21_an_error_of_one_try_is_final_only_if_it_is_permanent() {
    let failing = |error: fn() -> LockError| {
        Arc::new(ScriptedStore::new(move |op, key, nth| match (op, key, nth) {
            (Operation::TryAcquire, "b", 1 | 2) => Fate::Fail(error()),
            _ => Fate::Serve,
        }))
    };
    let store = failing(|| LockError::new(ErrorKind::PermissionDenied, "no").with_disposition(Disposition::Permanent));
    let error = provider(&store).acquire_all(["a", "b", "c"]).timeout(secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(["a", "b", "c"].iter().all(|key| store.is_free(key)));
    let store = failing(|| LockError::new(ErrorKind::Unavailable, "not now"));
    assert!(provider(&store).acquire_all(["a", "b", "c"]).timeout(secs(60)).await.is_ok());
    let store = failing(|| LockError::new(ErrorKind::Unavailable, "not now"));
    assert!(provider(&store).try_acquire_all(["a", "b", "c"]).await.is_err());
    quiet().await;
    assert!(["a", "b", "c"].iter().all(|key| store.is_free(key)));
}

#[tokio::test(start_paused = true)]
async fn c15_a_try_of_several_overtakes_no_caller_that_waits() {
    let store = Arc::new(ScriptedStore::honest());
    let (provider, other) = (provider(&store), provider(&store));
    let held = other.acquire("b").await.unwrap();
    let waits = in_task(&provider, "b");
    // The caller that waits polls, and has just done so: it does not know yet that the lock is
    // free.
    while store.count(Operation::TryAcquire) < 3 {
        sleep(ms(1)).await;
    }
    assert!(held.release().await.unwrap().is_released());
    let asked = store.count(Operation::TryAcquire);
    let batched = AcquireOptions::try_once().batched();
    assert!(provider.acquire_with(LockKey::new("b").unwrap(), batched).await.unwrap().held().is_none());
    assert_eq!(store.count(Operation::TryAcquire), asked);
    assert!(waits.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn c25_what_a_group_got_before_its_time_was_up_is_not_kept_closed() {
    let store = Arc::new(ScriptedStore::new(|op, key, _| match (op, key) {
        (Operation::TryAcquire, "b") => Fate::Never,
        _ => Fate::Serve,
    }));
    let all = provider(&store).acquire_all(["a", "b", "c"]).hold_at_least(secs(3600)).timeout(secs(4)).await;
    assert!(all.is_err());
    sleep(secs(1)).await;
    assert!(store.is_free("a") && store.is_free("c"));
}
