//! Lost replies change nothing (C10), and a release is truthful (C9).

use std::sync::Arc;

use distlock_api::{LockProvider, LockProviderExt, Phase, ReleaseOutcome};
use distlock_memory::Operation;
use tokio::time::{Instant, sleep};

use crate::kit::{accounting_when, acquire, assert_pending, memory, ms, provider, quick, quick_setup, secs};
use crate::store::{Fate, ScriptedStore};

#[tokio::test(start_paused = true)]
async fn c10_a_lost_grant_is_requested_again_under_the_same_id() {
    let (store, [provider]) = quick_setup();
    for _ in 0..3 {
        store.drop_reply_next(Operation::TryAcquire);
        let guard = provider.try_acquire("k").await.unwrap().expect("its own grant does not make it busy");
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(store.calls(Operation::Withdraw), 0);
    assert_eq!(store.calls(Operation::TryAcquire), 6);
}

#[tokio::test(start_paused = true)]
async fn c10_a_grant_whose_reply_was_lost_is_found_again_with_one_token() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::TryAcquire, 1) => Fate::LoseReply,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.try_acquire("k").await.unwrap().expect("no other caller wants it");
    assert_eq!((guard.fencing_token().get(), store.count(Operation::Withdraw)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn c10_where_stragglers_are_not_refused_an_id_is_never_used_again() {
    let store = memory(|capabilities| capabilities.ordered_claims = false);
    let provider = quick(&store);
    store.drop_reply_next(Operation::TryAcquire);
    let guard = acquire(&provider, "k").await;
    assert!(store.calls(Operation::Withdraw) >= 1, "the first id was cleaned up");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn c10_without_ordered_claims_a_lost_reply_is_no_self_deadlock() {
    let store = ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::TryAcquire, 1) => Fate::LoseReply,
        (Operation::Withdraw, 1) => Fate::fail(),
        (Operation::Withdraw, 2) => Fate::LoseReply,
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities.ordered_claims = false);
    let provider = provider(&store);
    let start = Instant::now();
    let guard = provider.acquire("k").await.unwrap();
    assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn c10_a_release_whose_reply_was_lost_is_repeated_and_returns_released() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    store.drop_reply_next(Operation::Release);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let guard = acquire(&provider, "k").await;
    store.drop_reply_next(Operation::Renew);
    assert_pending(&mut guard.lost(), ms(3000)).await;
}

#[tokio::test(start_paused = true)]
async fn c10_lost_replies_of_renewal_and_release_change_nothing() {
    let store = Arc::new(ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::Renew, 1..=3) | (Operation::Release, 1..=2) => Fate::LoseReply,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    sleep(secs(30)).await;
    assert!(!guard.is_lost());
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!((store.count(Operation::Release), provider.accounting().released), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn c9_an_unconfirmed_release_is_an_error_and_continues() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    let hang = store.hang_next(Operation::Release);
    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_outcome_unknown() && error.phase() == Some(Phase::Release), "{error}");
    assert!(started.elapsed() <= ms(502));
    hang.proceed();
    assert_eq!(accounting_when(&provider, |accounting| accounting.held == 0).await.released, 1);
}
