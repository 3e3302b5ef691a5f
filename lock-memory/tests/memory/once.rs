//! `MemoryOnce` beyond the clauses of the conformance suite.

use std::time::Duration;

use distlock_api::{ErrorKind, LockKey, LockProvider, RenewalPolicy};
use distlock_memory::{MemoryOnce, MemoryProvider, MemoryStore};
use distlock_recipes::once::{NotCompleted, Once, OnceProvider, OnceProviderExt, OnceState};

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_taken_away_interrupts_the_work() {
    let once = MemoryOnce::new();
    let mut guard = once.once("job").await.unwrap().begun().unwrap();
    let key = LockKey::new("job").unwrap();
    once.locks().admin().unwrap().force_release(&key, "stuck").await.unwrap();
    assert!(guard.is_lost());
    assert!(matches!(once.inspect(&key).await.unwrap().state, OnceState::Interrupted(_)));
    assert!(matches!(guard.complete("late").await, Err(NotCompleted::Lost(_))));
    let next = once.once("job").await.unwrap().begun().unwrap();
    assert_eq!(next.interrupted().unwrap().token, guard.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn the_time_that_is_left_ends_with_the_lease() {
    let plain = MemoryOnce::new().once("job").await.unwrap().begun().unwrap();
    assert_eq!(plain.remaining(), None);

    let ttl = Duration::from_secs(10);
    let once = MemoryOnce::with_locks(MemoryStore::new().provider());
    let guard = once.once("job").ttl(ttl).renewal(RenewalPolicy::Never).await.unwrap().begun().unwrap();
    let at_first = guard.remaining().unwrap();
    assert!(at_first > ttl / 2 && at_first <= ttl, "{at_first:?}");
    tokio::time::advance(at_first / 2).await;
    assert_eq!(guard.remaining(), Some(at_first - at_first / 2));
    tokio::time::advance(ttl).await;
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_no_longer_count_take_no_memory() {
    let once = MemoryOnce::new();
    let keep = Duration::from_secs(60);
    for round in 0..10 {
        for n in 0..1000 {
            let key = format!("{round}/{n}");
            let mut work = once.once(&key).keep(keep).await.unwrap().begun().unwrap();
            work.complete("done").await.unwrap();
        }
        tokio::time::advance(2 * keep).await;
    }
    let shown = format!("{once:?}");
    let keys: usize =
        shown.rsplit("keys: ").next().unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!(keys <= 2048, "{keys} of 10000 outcomes are kept, and 1000 count at most");
}

#[tokio::test(start_paused = true)]
async fn bad_options_are_refused_before_anything_is_begun() {
    let once = MemoryOnce::with_locks(MemoryProvider::new());
    let refused = [
        once.once("job").keep(Duration::ZERO).await,
        once.once("job").keep(Duration::MAX).await,
        once.once("job").fingerprint(vec![0; 1025]).await,
        once.once("job").ttl(Duration::ZERO).await,
    ];
    for answer in refused {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidOptions);
    }
    assert_eq!(once.once("").await.unwrap_err().kind(), ErrorKind::InvalidKey);
    assert!(matches!(once.once("job").await.unwrap(), Once::Begun(_)));
}
