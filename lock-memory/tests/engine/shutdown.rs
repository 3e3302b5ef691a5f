//! Closing a provider (C24).

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;

use distlock_api::{ErrorKind, LockGuard, LockProvider, LockProviderExt, Loss, ReleaseOutcome};
use distlock_engine::LeaseProvider;
use distlock_engine::store::Lanes;
use distlock_memory::{MemoryStore, Operation};
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{
    acquire, by_hand, holding, in_task, ms, poll_once, polled, process, provider, quick, quick_setup, quiet, secs,
    setup, waiter, waiting,
};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c24_close_releases_everything_wakes_all_waiters_and_is_bounded() {
    let (store, [provider, other]) = quick_setup();
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
    }
    let waiting = in_task(&provider, "k0");
    let elsewhere = acquire(&other, "elsewhere").await;
    let asking = in_task(&provider, "elsewhere");
    sleep(ms(50)).await;
    store.fail_next(Operation::Release, ErrorKind::PermissionDenied);
    let _hang = store.hang_next(Operation::Release);
    let lost = guards[0].lost();
    let started = Instant::now();
    let error = provider.close().await.unwrap_err();
    assert!(error.to_string().starts_with("2 of 100 leases"), "{error}");
    // Two request timeouts, and half a millisecond for each lease.
    assert!(started.elapsed() <= ms(1051), "{:?}", started.elapsed());
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lost.await, Loss::Closed);
    let accounting = provider.accounting();
    assert_eq!((accounting.acquired, accounting.released, accounting.abandoned, accounting.held), (100, 98, 2, 0));
    assert_eq!(provider.try_acquire("new").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(provider.close().await.unwrap_err().to_string(), error.to_string(), "the same at every call");
    assert_eq!(store.calls(Operation::Close), 1);
    drop(elsewhere);
}

const MANY: usize = 2_000;

/// Returns a provider of a store that takes so long for each release, and as many leases of it.
async fn many_leases(release: fn() -> Fate) -> (LeaseProvider, Vec<LockGuard>) {
    let store = ScriptedStore::new(move |operation, _, _| match operation {
        Operation::Release => release(),
        _ => Fate::Serve,
    })
    .with(|store| store.lanes = Some(Lanes::new(NonZeroUsize::new(4).unwrap())));
    let provider = quick(&store);
    let names: Vec<_> = (0..MANY).map(|n| format!("k{n}")).collect();
    let guards = join_all(names.iter().map(|name| provider.acquire(name).ttl(secs(600)).into_future())).await;
    (provider, guards.into_iter().map(Result::unwrap).collect())
}

/// A store that releases thousands per second needs more than two request timeouts for them all.
#[tokio::test(start_paused = true)]
async fn c24_close_takes_longer_for_many_leases() {
    for are_dropped_before in [false, true] {
        let (provider, mut guards) = many_leases(|| Fate::After(ms(2))).await;
        if are_dropped_before {
            guards.clear();
        }
        let started = Instant::now();
        provider.close().await.unwrap();
        assert!(started.elapsed() > ms(1_000), "the store was too fast for this test");
        assert_eq!(provider.accounting().released, MANY as u64);
        drop(guards);
    }
}

#[tokio::test(start_paused = true)]
async fn c24_many_leases_keep_no_shutdown_waiting_for_a_dead_store() {
    let (provider, guards) = many_leases(|| Fate::Never).await;
    let started = Instant::now();
    let error = provider.close().await.unwrap_err();
    assert!(error.to_string().starts_with("2000 of 2000 leases"), "{error}");
    // Two request timeouts, and one in which nothing ends.
    assert!(started.elapsed() <= ms(1_501), "{:?}", started.elapsed());
    assert_eq!((provider.accounting().abandoned, provider.accounting().held), (MANY as u64, 0));
    drop(guards);
}

/// The requests from the first `Close` on.
fn after_close(store: &ScriptedStore) -> Vec<Operation> {
    let operations = store.requests().into_iter().map(|(operation, _)| operation);
    operations.skip_while(|operation| *operation != Operation::Close).skip(1).collect()
}

#[tokio::test(start_paused = true)]
async fn c24_the_store_is_not_closed_before_an_attempt_in_flight_is_withdrawn() {
    let store =
        Arc::new(ScriptedStore::new(
            |op, _, _| if op == Operation::TryAcquire { Fate::Late(ms(100)) } else { Fate::Serve },
        ));
    let provider = provider(&store);
    let acquiring = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").await.map(drop) }
    });
    store.called(Operation::TryAcquire, 1).await;
    provider.close().await.unwrap();
    let free = store.is_free("k");
    assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    sleep(secs(1)).await;
    assert!(free && after_close(&store).is_empty(), "after the store was closed: {:?}", after_close(&store));
}

#[tokio::test(start_paused = true)]
async fn c24_close_waits_for_a_release_that_its_caller_awaits() {
    let store = Arc::new(ScriptedStore::new(
        |op, _, _| if op == Operation::Release { Fate::After(ms(100)) } else { Fate::Serve },
    ));
    let provider = provider(&store);
    let releasing = tokio::spawn(provider.acquire("k").await.unwrap().release());
    store.called(Operation::Release, 1).await;
    provider.close().await.unwrap();
    let accounting = provider.accounting();
    assert!(store.is_free("k") && accounting.held == 0, "the provider is closed, the store too: {accounting:?}");
    assert_eq!(releasing.await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn c24_no_waiter_makes_an_attempt_once_close_has_begun() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    let _held = provider.acquire("k").await.unwrap();
    let waiting = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").await.map(drop) }
    });
    quiet().await;
    let attempts = store.count(Operation::TryAcquire);
    provider.close().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    quiet().await;
    assert_eq!(store.count(Operation::TryAcquire), attempts, "after the store was closed: {:?}", after_close(&store));
}

#[tokio::test(start_paused = true)]
async fn c24_the_store_is_closed_once() {
    let store = Arc::new(ScriptedStore::honest());
    let provider = provider(&store);
    provider.close().await.unwrap();
    provider.close().await.unwrap();
    assert_eq!(store.count(Operation::Close), 1, "LeaseStore::close: \"called once\"");
}

#[tokio::test(start_paused = true)]
async fn c24_no_stream_stays_open_at_a_closed_store() {
    let (store, provider, guard) = holding("k").await;
    drop(guard);
    provider.close().await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(store.count(Operation::Watch), 1, "`close` ends the tasks");
}

#[tokio::test(start_paused = true)]
async fn c24_each_lease_is_released_whatever_becomes_of_the_others() {
    let store = Arc::new(ScriptedStore::new(|op, key, _| match op {
        Operation::Release if key.ends_with("hung") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let names: Vec<_> = (0..400).map(|n| if n % 5 == 0 { format!("{n}") } else { format!("{n} hung") }).collect();
    let guards = join_all(names.iter().map(|name| provider.acquire(name).ttl(secs(600)).into_future())).await;
    assert!(provider.close().await.is_err());
    let kept = names.iter().filter(|name| !name.ends_with("hung") && !store.is_free(name)).count();
    assert_eq!(kept, 0, "of 80 healthy ones");
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn c24_one_transient_error_does_not_leave_a_lease_behind() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::Release, 1) => Fate::fail(),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let _guard = provider.acquire("k").await.unwrap();
    let closed = provider.close().await;
    assert!(closed.is_ok() && store.is_free("k"), "{closed:?}");
}

/// A task that outlives `close` would keep connections and sessions of the store's client, for a
/// ttl.
#[tokio::test(start_paused = true)]
async fn c24_what_close_gave_up_is_over_when_it_returns() {
    for fate in [|| Fate::Never, || Fate::fail()] {
        let store = Arc::new(ScriptedStore::new(move |op, key, _| match (op, key) {
            (Operation::TryAcquire, "lost") => Fate::LoseReply,
            (Operation::Withdraw, _) | (Operation::Release, _) => fate(),
            _ => Fate::Serve,
        }));
        let provider = provider(&store);
        provider.acquire("released").ttl(secs(600)).await.unwrap().release().await.unwrap_err();
        drop(provider.acquire("dropped").ttl(secs(600)).await.unwrap());
        provider.acquire("lost").ttl(secs(600)).timeout(secs(7)).await.unwrap_err();
        provider.close().await.unwrap_err();
        let unsettled = provider.accounting().unsettled;
        sleep(secs(60)).await;
        assert_eq!((unsettled, after_close(&store)), (0, Vec::new()), "after the store was closed");
        assert_eq!(Arc::strong_count(&store), 2, "the provider and this test have it");
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_second_close_does_not_hide_what_the_first_one_left_behind() {
    let store =
        Arc::new(ScriptedStore::new(|op, _, _| if op == Operation::Release { Fate::fail() } else { Fate::Serve }));
    let provider = provider(&store);
    let _guard = provider.acquire("k").await.unwrap();
    let (first, second) = tokio::join!(provider.close(), provider.close());
    assert!(first.is_err());
    assert!(second.is_err(), "\"further calls wait for the same end\"");
}

#[tokio::test(start_paused = true)]
async fn c24_a_close_dropped_at_any_poll_continues() {
    for polls in 0..12 {
        let store = ScriptedStore::honest().with(|store| store.yields = 2);
        let provider = provider(&store);
        let guards = join_all((0..5).map(|n| provider.acquire(n.to_string()).into_future())).await;
        drop(polled(polls, provider.close()).await);
        assert!(provider.accounting().balances());
        if polls > 0 {
            assert!(guards.iter().flatten().all(|guard| guard.loss() == Some(Loss::Closed)), "{polls}");
        }
        provider.close().await.unwrap();
        let accounting = provider.accounting();
        assert!(accounting.balances() && accounting.held == 0 && accounting.released == 5, "{polls} {accounting:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c24_closed_at_any_moment_nothing_is_left_behind() {
    for own in [false, true] {
        for moment in 0..24 {
            let store = MemoryStore::new();
            let slow = ScriptedStore::over(&store).with(|store| store.yields = 1);
            let (a, b) = (process(&store), process(&slow));
            let first = if own { &b } else { &a }.acquire("k").await.unwrap();
            let waiters: Vec<_> = (0..3).map(|_| waiter(&b)).collect();
            for _ in 0..moment / 2 {
                yield_now().await;
            }
            drop(first);
            for _ in 0..moment {
                yield_now().await;
            }
            b.close().await.unwrap();
            assert!(store.waiting("k").is_empty(), "{own} {moment}");
            let guard = timeout(ms(100), a.acquire("k").into_future()).await;
            assert!(guard.is_ok(), "{own} {moment}");
            for waiter in waiters {
                if let Ok(guard) = waiter.await.unwrap() {
                    assert_eq!(guard.loss(), Some(Loss::Closed), "{own} {moment}");
                }
            }
            let accounting = b.accounting();
            assert!(
                accounting.balances() && (accounting.held, accounting.waiting) == (0, 0),
                "{own} {moment} {accounting:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_waiter_that_is_not_polled_delays_no_shutdown() {
    let (store, [a, b]) = setup();
    let first = a.acquire("k").await.unwrap();
    let mut sleeps = by_hand(&b);
    for _ in 0..3 {
        assert!(poll_once(sleeps.as_mut()).is_pending());
        sleep(ms(20)).await;
    }
    assert_eq!(store.waiting("k").len(), 1);
    let start = Instant::now();
    b.close().await.unwrap();
    assert!(start.elapsed() < ms(100) && store.waiting("k").is_empty(), "{:?}", start.elapsed());
    assert_eq!(sleeps.await.unwrap_err().kind(), ErrorKind::Closed);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn c24_closing_ends_a_lease_that_is_handed_on() {
    let (store, [provider]) = quick_setup();
    let first = provider.acquire("k").await.unwrap();
    let closing = provider.clone();
    let waiter = tokio::spawn(async move { closing.acquire("k").await });
    waiting(&provider, 1).await;
    drop(first); // in transit
    provider.close().await.unwrap();
    if let Ok(guard) = waiter.await.unwrap() {
        assert_eq!(guard.lost().await, Loss::Closed);
    }
    let other = store.builder().build().unwrap();
    assert!(other.try_acquire("k").await.unwrap().is_some(), "it was released");
    assert!(provider.accounting().balances());
}
