//! Exclusion, one owner per acquisition, growing tokens and independent keys (C1, C5, C7, C20).

use std::num::NonZeroU32;

use distlock_api::{LockKey, LockProvider, LockProviderExt, Namespaced, ReleaseOutcome};
use distlock_engine::LeaseStore;
use distlock_engine::store::{Attempt, Claim, ProviderId, Release, Reply};
use distlock_memory::MemoryStore;

use crate::kit::{accounting_when, acquire, guard, ms, queued, queueing, quick, quick_setup, waiter};

#[tokio::test(start_paused = true)]
async fn one_holder_at_a_time_and_growing_tokens() {
    let (_, [here, there]) = quick_setup();
    let first = acquire(&here, "k").await;
    assert!(there.try_acquire("k").await.unwrap().is_none());
    assert!(here.try_acquire("k").await.unwrap().is_none(), "C7: not re-entrant");
    let token = first.fencing_token();
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    let second = acquire(&there, "k").await;
    assert!(second.fencing_token() > token, "C5");
    drop(second);
    accounting_when(&there, |accounting| accounting.released == 1 && accounting.held == 0).await;
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
    let [b] = queueing(&store);
    let next = waiter(&b);
    queued(&store, 1).await;
    assert!(store.release(&Release::new(first)).await.unwrap().is_released());
    assert!(guard(next).await.fencing_token().get() >= grant.token.get() + 100);
}

#[tokio::test(start_paused = true)]
async fn namespaces_share_nothing_but_the_store() {
    let store = MemoryStore::new();
    let users = Namespaced::new(quick(&store), "users").unwrap();
    let orders = Namespaced::new(quick(&store), "orders").unwrap();
    let guard = users.acquire("1").await.unwrap();
    let _other = orders.try_acquire("1").await.unwrap().expect("another lock");
    assert_eq!(guard.key().as_str(), "1");
    assert!(store.peek("users/1").is_some());
    assert_eq!(orders.acquire("1").timeout(ms(1)).await.unwrap_err().key().unwrap().as_str(), "1");
    assert_eq!(users.admin().unwrap().inspect(guard.key()).await.unwrap().unwrap().key.as_str(), "1");
    assert!(Namespaced::new(quick(&store), "a/b").is_err());
}
