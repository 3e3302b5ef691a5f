//! The deadline of a guard is conservative (C3), even of a pushed grant (R18). A dead holder's key
//! becomes free soon after its expiry (C19).

use std::sync::Arc;

use distlock_api::{
    AcquisitionId, ErrorKind, FencingToken, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, Phase,
    RenewalPolicy, Result,
};
use distlock_engine::store::{Attempt, Claim, Grant, StoreEvent, StoreTime};
use distlock_engine::{LeaseProvider, LeaseStore};
use distlock_memory::{MemoryStore, Operation};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};

use crate::kit::{
    accounting_when, acquire, guard, memory, ms, process, provider, queued, queueing, quick, quick_setup, quick_terms,
    quiet, secs, waiter,
};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c3_the_deadline_counts_from_before_the_request() {
    let store = MemoryStore::new();
    let provider = store.builder().lease(quick_terms().renewal(RenewalPolicy::Never)).build().unwrap();
    let mut hang = store.hang_reply_next(Operation::TryAcquire);
    let started = Instant::now();
    let acquiring = tokio::spawn({
        let provider = provider.clone();
        async move { acquire(&provider, "k").await }
    });
    hang.reached().await;
    advance(ms(700)).await;
    hang.proceed();
    let guard = acquiring.await.unwrap();
    assert!(guard.remaining().unwrap() <= ms(200), "{:?}", guard.remaining());
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(started.elapsed() >= ms(900) && started.elapsed() <= ms(902));
}

#[tokio::test(start_paused = true)]
async fn c3_the_deadline_counts_from_before_the_sending() {
    let store =
        ScriptedStore::new(|op, _, _| if op == Operation::TryAcquire { Fate::Late(ms(300)) } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    assert_eq!(guard.remaining(), Some(ms(600)));
}

#[tokio::test(start_paused = true)]
async fn c4_a_lease_ends_with_its_maximum_hold_and_is_given_back() {
    let (store, [a, b]) = quick_setup();
    let started = Instant::now();
    let held = a.acquire("k").max_hold(secs(5)).await.unwrap();
    // It is renewed until then, and not handed on.
    let waiting = [a.clone(), b].map(|provider| tokio::spawn(async move { drop(acquire(&provider, "k").await) }));
    assert_eq!(held.lost().await, Loss::HeldTooLong);
    let passed = started.elapsed();
    assert!(passed >= secs(5) && passed < ms(5010), "{passed:?}");
    assert!(store.calls(Operation::Renew) >= 4, "a lease of a second");
    assert_eq!(held.loss(), Some(Loss::HeldTooLong));
    for waiter in waiting {
        waiter.await.unwrap();
    }
    assert!(started.elapsed() < ms(6500), "{:?}: before the lease would have expired", started.elapsed());
    let error = held.run(async {}).await.unwrap_err();
    assert!(error.to_string().contains("max_hold"), "{error}");
    accounting_when(&a, |accounting| accounting.lost == 1 && accounting.balances()).await;
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_that_comes_too_late_is_withdrawn_not_returned() {
    let (store, [provider]) = quick_setup();
    let _hang = store.hang_reply_next(Operation::TryAcquire);
    let started = Instant::now();
    let error = provider.try_acquire("k").await.unwrap_err();
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Request)));
    assert!(error.is_outcome_unknown() && started.elapsed() <= ms(510), "{error} after {:?}", started.elapsed());
    assert!(store.peek("k").is_some(), "granted, and no caller knows");
    store.called(Operation::Withdraw, 1).await;
    accounting_when(&provider, |_| store.peek("k").is_none()).await;
    assert_eq!(provider.accounting().acquired, 0);
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_that_comes_too_late_is_given_back() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::TryAcquire, 1) => Fate::Late(ms(950)),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let started = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).timeout(secs(5)).await.unwrap();
    assert!(guard.fencing_token().get() == 2 && started.elapsed() < ms(1200), "{:?}", started.elapsed());
    assert_eq!(store.count(Operation::Withdraw), 1);
    assert_eq!(provider.accounting().acquired, 1);
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_of_no_length_is_never_handed_out() {
    let store = ScriptedStore::honest().with(|store| store.bend_grants(ms(100)));
    let provider = provider(&store);
    let refused = provider.try_acquire("k").ttl(secs(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout);
    store.called(Operation::Withdraw, 1).await;
    quiet().await;
    assert!(store.is_free("k") && provider.accounting().acquired == 0);
}

#[tokio::test(start_paused = true)]
async fn c3_a_late_answer_to_a_renewal_extends_from_its_sending_only() {
    let store = ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::Renew, 1) => Fate::Late(ms(400)),
        (Operation::Renew, _) => Fate::Never,
        _ => Fate::Serve,
    });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).renewal(RenewalPolicy::Every(ms(300))).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(start.elapsed(), ms(300 + 900));
}

/// One process holds `k` for a minute, and a caller of another one is queued for it.
async fn long_lease_and_waiter(store: &MemoryStore) -> ([LeaseProvider; 2], LockGuard, JoinHandle<Result<LockGuard>>) {
    let processes = [process(store), process(store)];
    let first = processes[0].acquire("k").ttl(secs(60)).await.unwrap();
    let next = waiter(&processes[1]);
    queued(store, 1).await;
    sleep(ms(50)).await;
    (processes, first, next)
}

#[tokio::test(start_paused = true)]
async fn r18_a_grant_that_is_pushed_late_starts_no_lease_beyond_its_claim() {
    for late in [ms(500), ms(900), ms(999), ms(1000), ms(1200), ms(1300), ms(1301), ms(2500)] {
        let store = MemoryStore::new();
        let (_processes, first, next) = long_lease_and_waiter(&store).await;
        store.delay_events(late);
        drop(first);
        let guard = next.await.unwrap().unwrap();
        let info = store.peek("k").expect("the store has a lease");
        assert!(guard.remaining().unwrap() + ms(300) <= info.remaining, "{late:?} {:?} {info:?}", guard.remaining());
        assert_eq!(info.token.get() & 0xffff, (guard.fencing_token().get() + 0xffff) & 0xffff);
        sleep(secs(10)).await;
        assert!(guard.loss().is_none() && store.peek("k").is_some(), "{late:?} {:?}", guard.loss());
    }
}

#[tokio::test(start_paused = true)]
async fn r18_an_old_grant_is_not_believed() {
    let store = MemoryStore::new();
    let (_processes, first, next) = long_lease_and_waiter(&store).await;
    let id = store.waiting("k").remove(0);
    for token in [1, first.fencing_token().get(), store.peek("k").unwrap().token.get()] {
        let expires_at = StoreTime::since_origin(store.now() + secs(50));
        let (key, grant) = (LockKey::new("k").unwrap(), Grant::new(FencingToken::new(token), ms(0)));
        store.push(StoreEvent::Granted { key, id: id.clone(), grant, expires_at });
        sleep(ms(50)).await;
        assert!(!next.is_finished(), "{token}");
    }
    assert!(!first.is_lost());
    drop(first);
    let _guard = next.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn r19_a_pushed_lease_starts_at_once_and_is_renewed_to_its_full_ttl() {
    let store = MemoryStore::new();
    let [a, b, c] = queueing(&store);
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
        let renewals = store.calls(Operation::Renew);
        sleep(ms(5000)).await;
        assert_eq!(guard.is_lost(), never, "a lease that is never renewed lasts one ttl");
        assert_eq!(store.calls(Operation::Renew) == renewals, never);
        drop(guard);
        drop(c.acquire("k").await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn c19_a_lock_whose_holder_is_gone_is_taken_soon_after_its_expiry() {
    for push in [true, false] {
        let store = memory(|capabilities| capabilities.push = push);
        // A process that was killed: it has a lease, but no engine.
        let claim = Claim::new(LockKey::new("k").unwrap(), AcquisitionId::new("dead"));
        store.try_acquire(&Attempt::new(claim, ms(20_000))).await.unwrap();
        let started = Instant::now();
        let _guard = acquire(&quick(&store), "k").await;
        assert!(started.elapsed() >= ms(20_000) && started.elapsed() <= ms(20_300), "{:?}", started.elapsed());
    }
}
