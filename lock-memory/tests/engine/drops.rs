//! What is dropped is cleaned up: acquisitions, guards and releases (C11). The matrix of all calls
//! is in `cancel`.

use std::future::IntoFuture;
use std::sync::Arc;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_memory::{MemoryStore, Operation};
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{
    accounting_when, acquire, by_hand, guard, holder_and_waiter, holds_nothing, in_task, ms, polled, process, provider,
    queued, queueing, quick_setup, quiet, secs, waiter, waiting,
};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c11_an_acquisition_dropped_at_any_await_leaves_nothing() {
    for (hang_reply, after) in [(false, 1), (false, 100), (true, 1), (true, 100)] {
        let (store, [provider]) = quick_setup();
        let hang = match hang_reply {
            true => store.hang_reply_next(Operation::TryAcquire),
            false => store.hang_next(Operation::TryAcquire),
        };
        assert!(timeout(ms(after), provider.acquire("k").into_future()).await.is_err());
        assert_eq!(store.peek("k").is_some(), hang_reply);
        // The cancelled caller does not delay the next one of the same process.
        let next = in_task(&provider, "k");
        sleep(ms(50)).await;
        hang.proceed();
        let guard = next.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        sleep(ms(3000)).await;
        assert!(store.peek("k").is_none());
        assert_eq!(provider.accounting().acquired, 1);
        assert_eq!(provider.accounting().waiting, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_dropped_guard_and_a_dropped_release_are_released_in_the_background() {
    let (store, [provider]) = quick_setup();
    drop(acquire(&provider, "k").await);
    accounting_when(&provider, |accounting| accounting.released == 1).await;
    drop(acquire(&provider, "k").await.release());
    accounting_when(&provider, |accounting| accounting.released == 2).await;
    let hang = store.hang_next(Operation::Release);
    assert!(timeout(ms(10), acquire(&provider, "k").await.release()).await.is_err());
    hang.proceed();
    accounting_when(&provider, |accounting| accounting.released == 3 && accounting.held == 0).await;
    assert_eq!(store.calls(Operation::Release), 3, "the call in flight was finished, not repeated");
}

#[tokio::test(start_paused = true)]
async fn c11_an_attempt_that_panicked_is_withdrawn() {
    for ordered in [true, false] {
        let store = ScriptedStore::new(|op, _, nth| match (op, nth) {
            (Operation::TryAcquire, 1) => Fate::Panic,
            _ => Fate::Serve,
        });
        let store = store.with(|store| store.capabilities.ordered_claims = ordered);
        let provider = provider(&store);
        // An unknown outcome like any other: the attempt is repeated, or withdrawn.
        let guard = provider.acquire("k").await.unwrap();
        sleep(secs(1)).await;
        assert_eq!(store.count(Operation::Withdraw), usize::from(!ordered));
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn c11_hung_clean_ups_do_not_delay_a_healthy_release() {
    let store = ScriptedStore::new(|op, key, _| match (op, key) {
        (Operation::Withdraw, _) => Fate::Never,
        _ => Fate::Serve,
    });
    let store = Arc::new(store);
    let provider = provider(&store);
    let healthy = provider.acquire("healthy").await.unwrap();
    let lost: Vec<_> =
        join_all((0..640).map(|n| provider.acquire(format!("lost {n}")).ttl(secs(1)).into_future())).await;
    for n in 0..640 {
        store.take_away(&format!("lost {n}"));
    }
    // All are found gone; the clean-up of each hangs.
    sleep(secs(1)).await;
    drop(lost);
    let start = Instant::now();
    drop(healthy);
    let next = provider.acquire("healthy").timeout(secs(60)).await;
    assert!(next.is_ok() && start.elapsed() < secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c11_a_waiter_dropped_at_any_poll_leaves_neither_ticket_nor_lease() {
    for own in [false, true] {
        for (push, ordered, queue, blocks) in [
            (true, true, true, true),
            (false, true, true, true),
            (true, false, true, true),
            (true, true, false, true),
            (true, true, true, false),
        ] {
            for polls in 0..24 {
                for released_after in [0, 1, 3, 6, 9, 12, 20] {
                    let store = MemoryStore::new();
                    let slow = ScriptedStore::over(&store).with(|store| {
                        store.yields = 2;
                        let can = &mut store.capabilities;
                        (can.push, can.ordered_claims, can.queue, can.token_blocks) = (push, ordered, queue, blocks);
                    });
                    let (a, b) = (process(&store), process(&slow));
                    let first = if own { &b } else { &a }.acquire("k").await.unwrap();
                    let release = tokio::spawn(async move {
                        for _ in 0..released_after {
                            yield_now().await;
                        }
                        let _ = first.release().await;
                    });
                    drop(polled(polls, by_hand(&b)).await);
                    release.await.unwrap();
                    quiet().await;
                    let what = format!("{own} {push} {ordered} {queue} {blocks} {polls} {released_after}");
                    assert!(store.waiting("k").is_empty(), "a ticket: {what}");
                    let accounting = b.accounting();
                    assert!(
                        accounting.balances() && accounting.held == 0 && accounting.waiting == 0,
                        "{what} {accounting:?}"
                    );
                    for next in [&a, &b] {
                        let start = Instant::now();
                        let guard = next.acquire("k").await.unwrap();
                        assert!(start.elapsed() <= ms(0), "{what} {:?}", start.elapsed());
                        guard.release().await.unwrap();
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c11_giving_up_leaves_the_queue_in_one_operation() {
    let store = MemoryStore::new();
    let [a, b, c] = queueing(&store);
    let (first, leaves) = holder_and_waiter(&store, &a, &b).await;
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
async fn c11_a_grant_in_transit_to_a_waiter_that_leaves_is_handed_over() {
    let store = MemoryStore::new();
    let [a, b, c] = queueing(&store);
    let (first, leaves) = holder_and_waiter(&store, &a, &b).await;
    let stays = waiter(&c);
    queued(&store, 2).await;
    sleep(ms(100)).await;
    let mut hang = store.hang_next(Operation::Withdraw);
    leaves.abort();
    hang.reached().await;
    assert!(first.release().await.unwrap().is_released());
    assert!(store.peek("k").is_some_and(|info| info.id.is_some()), "granted to the waiter that is leaving");
    let start = Instant::now();
    hang.proceed();
    let _guard = guard(stays).await;
    assert_eq!(start.elapsed(), ms(0));
}

#[tokio::test(start_paused = true)]
async fn c11_a_waiter_that_leaves_with_the_lease_in_transit_passes_it_on_or_back() {
    let (store, [provider]) = quick_setup();
    let first = provider.acquire("k").await.unwrap();
    let (leaves, stays) = (waiter(&provider), waiter(&provider));
    waiting(&provider, 2).await;
    leaves.abort();
    drop(first);
    let token = guard(stays).await.fencing_token();
    assert!(token.get() > 0);

    // No waiter is left: back to the store.
    let guard = provider.acquire("k").await.unwrap();
    let leaves = waiter(&provider);
    waiting(&provider, 1).await;
    drop(guard); // in transit now, the task has not run yet
    leaves.abort();
    holds_nothing(&provider).await;
    assert!(provider.accounting().balances());
    let other = store.builder().build().unwrap();
    assert!(other.try_acquire("k").await.unwrap().is_some(), "nothing is left behind");
}
