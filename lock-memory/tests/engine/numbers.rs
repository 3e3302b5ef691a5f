//! Absurd numbers in answers and events are no reason to panic (C16, C18).

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockKey, LockProvider, LockProviderExt};
use distlock_engine::LeaseProvider;
use distlock_engine::store::{BusyReply, Grant, Reply, StoreEvent, StoreTime};
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{ms, process, provider, queued, quiet, secs, setup, waiter};
use crate::store::ScriptedStore;

#[tokio::test(start_paused = true)]
async fn c18_a_holder_that_never_expires_is_no_reason_to_panic() {
    let store = ScriptedStore::honest().with(|store| store.bend_busy(|busy| busy.with_holder_remaining(Duration::MAX)));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let waited = tokio::spawn(async move { provider.acquire("k").timeout(secs(1)).await.map(drop) });
    assert_eq!(waited.await.expect("no panic").unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn c18_a_poll_interval_of_absurd_length_does_not_panic() {
    let store = ScriptedStore::honest().with(|store| store.bend_busy(|_| BusyReply::new()));
    let other = provider(&store);
    let _held = other.acquire("k").await.unwrap();
    let built = LeaseProvider::builder(store).poll_interval(Duration::MAX, Duration::MAX).build();
    let Ok(provider) = built else { return };
    let waited = tokio::spawn(async move { provider.acquire("k").timeout(secs(1)).await.map(drop) });
    assert_eq!(waited.await.expect("no panic").unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn c18_the_highest_token_is_no_reason_to_panic() {
    let store = ScriptedStore::honest().with(|store| {
        store.reply = Box::new(|reply| match reply {
            Reply::Granted(grant) => Reply::Granted(Grant::new(FencingToken::new(u64::MAX), grant.remaining)),
            busy => busy,
        });
    });
    let provider = provider(&store);
    let acquired = tokio::spawn(async move { provider.acquire("k").await.map(|guard| guard.fencing_token()) });
    assert_eq!(acquired.await.expect("no panic").unwrap(), FencingToken::new(u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn c18_leases_of_absurd_length_are_no_reason_to_panic() {
    let (mut fits, mut too_far) = (0, u64::MAX);
    while too_far - fits > 1 {
        let middle = fits + (too_far - fits) / 2;
        let side = if Instant::now().checked_add(secs(middle)).is_some() { &mut fits } else { &mut too_far };
        *side = middle;
    }
    // The first one fits without the margin of 3 s, but not with it.
    for remaining in [secs(fits + 2), secs(fits - 2), Duration::MAX, secs(u64::MAX)] {
        let store = ScriptedStore::honest().with(|store| {
            store.bend_grants(remaining);
            store.bend_renewals(remaining);
        });
        let provider = provider(&store);
        let guard = provider.acquire("k").await.unwrap();
        assert!(timeout(secs(60), guard.lost()).await.is_err());
        drop(guard);
        quiet().await;
        assert_eq!(provider.accounting().released, 1, "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c16_absurd_times_are_no_panic() {
    let (store, [a]) = setup();
    let first = a.acquire("k").await.unwrap();
    let absurd = ScriptedStore::over(&store).with(|store| {
        store.bend_busy(|busy| busy.with_holder_remaining(Duration::MAX));
    });
    let b = process(&absurd);
    let next = waiter(&b);
    timeout(secs(1), queued(&store, 1)).await.expect("it waits");
    sleep(ms(100)).await;
    assert!(!next.is_finished());
    let id = store.waiting("k").remove(0);
    let grant = Grant::new(FencingToken::new(1 << 40), ms(0));
    store.push(StoreEvent::Granted {
        key: LockKey::new("k").unwrap(),
        id,
        grant,
        expires_at: StoreTime::since_origin(Duration::MAX),
    });
    sleep(ms(10)).await;
    drop(first);
    let guard = next.await.expect("no panic").unwrap();
    assert!(guard.remaining().unwrap() <= ms(2700));
}
