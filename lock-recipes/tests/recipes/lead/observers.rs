//! Observers: all changes in their order, and what they do without events.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_memory::{MemoryProvider, MemoryStore, Operation};
use distlock_recipes::lead::{LeadExt, Leader, LeaderObserver};
use tokio::time::{Instant, sleep, timeout};

use super::kit::{Scripted, TTL};

async fn next(observer: &mut LeaderObserver<'_>) -> Option<Leader> {
    timeout(TTL * 10, observer.changed()).await.expect("a change").expect("an answer")
}

async fn owner(observer: &mut LeaderObserver<'_>) -> Option<String> {
    next(observer).await.map(|leader| leader.owner.expect("the leader has named one"))
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[tokio::test(start_paused = true)]
async fn l8_an_observer_sees_all_changes_in_their_order() {
    let (store, memory) = (MemoryStore::new(), MemoryProvider::new());
    let (one, other) = (store.provider(), store.provider());
    for (locks, second) in [(&one as &dyn LockProvider, &other as &dyn LockProvider), (&memory, &memory)] {
        let mut observer = locks.observe("k").unwrap();
        assert_eq!(next(&mut observer).await, None);
        // They all happen while the observer does not look.
        let mut terms = Vec::new();
        for (locks, name) in [(locks, "a"), (second, "b"), (locks, "c")] {
            let guard = locks.acquire("k").owner(name).await.unwrap();
            terms.push(guard.fencing_token());
            assert!(guard.release().await.unwrap().is_released());
            locks.acquire("another").await.unwrap().release().await.unwrap();
        }
        let _held = second.acquire("k").owner("d").await.unwrap();
        let mut seen = Vec::new();
        for name in ["a", "b", "c"] {
            let leader = next(&mut observer).await.expect("a leader");
            assert_eq!(leader.owner.as_deref(), Some(name));
            seen.push(leader.last_term);
            assert_eq!(next(&mut observer).await, None);
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        assert!(terms.iter().zip(&seen).all(|(term, last)| term <= last), "{terms:?} {seen:?}");
        assert_eq!(owner(&mut observer).await, some("d"));
        assert!(timeout(TTL, observer.changed()).await.is_err(), "nothing changes any longer");
    }
}

#[tokio::test(start_paused = true)]
async fn l8_the_first_report_is_the_present_leader() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let held = locks.acquire("k").owner("a").await.unwrap();
    let mut observer = locks.observe("k").unwrap();
    assert_eq!(owner(&mut observer).await, some("a"));
    held.release().await.unwrap();
    assert_eq!(owner(&mut observer).await, None);
}

#[tokio::test(start_paused = true)]
async fn l8_missed_events_and_a_cut_stream_hide_no_leader() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let mut observer = locks.observe("k").unwrap();
    assert_eq!(owner(&mut observer).await, None);
    store.lose_events(true);
    let held = locks.acquire("k").owner("a").await.unwrap();
    let lost = Instant::now();
    assert_eq!(owner(&mut observer).await, some("a"));
    assert!(lost.elapsed() <= Duration::from_secs(6), "{:?}", lost.elapsed());
    store.lose_events(false);
    held.release().await.unwrap();
    assert_eq!(owner(&mut observer).await, None);

    let held = locks.acquire("k").owner("b").await.unwrap();
    store.cut_watchers();
    let cut = Instant::now();
    assert_eq!(owner(&mut observer).await, some("b"));
    assert!(cut.elapsed() < Duration::from_secs(1), "by a read after the cut: {:?}", cut.elapsed());
    held.release().await.unwrap();
    let cut = Instant::now();
    assert_eq!(owner(&mut observer).await, None);
    assert!(cut.elapsed() < Duration::from_secs(1), "by an event of the new stream: {:?}", cut.elapsed());
}

#[tokio::test(start_paused = true)]
async fn l8_an_expiry_is_seen_soon_after_it() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let mut observer = locks.observe("k").unwrap();
    assert_eq!(owner(&mut observer).await, None);
    let granted = Instant::now();
    let guard = locks.acquire("k").owner("a").ttl(TTL).renewal(RenewalPolicy::Never).await.unwrap();
    guard.abandon();
    assert_eq!(owner(&mut observer).await, some("a"));
    assert_eq!(owner(&mut observer).await, None);
    let seen = granted.elapsed();
    assert!(seen >= TTL && seen < TTL + Duration::from_secs(6), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn l8_without_events_the_state_is_read() {
    let store = MemoryStore::new();
    let locks = store.provider();
    store.fail_always(Operation::WatchLocks, ErrorKind::Unsupported);
    let mut observer = locks.observe("k").unwrap().interval(Duration::from_secs(1));
    assert_eq!(owner(&mut observer).await, None);
    let _held = locks.acquire("k").owner("a").await.unwrap();
    let granted = Instant::now();
    assert_eq!(owner(&mut observer).await, some("a"));
    assert!(granted.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn l8_an_observer_survives_errors_and_is_slowed_by_them() {
    let store = MemoryStore::new();
    let locks = store.provider();
    store.fail_always(Operation::Administer, ErrorKind::Unavailable);
    let mut observer = locks.observe("k").unwrap();
    let began = Instant::now();
    for _ in 0..8 {
        assert_eq!(observer.changed().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(began.elapsed() > Duration::from_secs(10), "{:?}", began.elapsed());
    store.clear_faults();
    let _held = locks.acquire("k").owner("a").await.unwrap();
    assert_eq!(owner(&mut observer).await, some("a"));
}

#[tokio::test(start_paused = true)]
async fn l8_a_dropped_wait_misses_nothing() {
    let store = MemoryStore::new();
    let locks = store.provider();
    let mut observer = locks.observe("k").unwrap();
    assert_eq!(owner(&mut observer).await, None);
    for name in ["a", "b", "c"] {
        for _ in 0..5 {
            tokio::select! {
                biased;
                change = observer.changed() => panic!("{change:?}"),
                () = sleep(Duration::from_millis(3)) => {}
            }
        }
        let held = locks.acquire("k").owner(name).await.unwrap();
        held.release().await.unwrap();
        assert_eq!((owner(&mut observer).await, owner(&mut observer).await), (some(name), None));
    }
}

#[tokio::test]
async fn a_provider_without_administration_cannot_be_observed() {
    let locks = Scripted::new(&MemoryStore::new(), []);
    assert_eq!(locks.observe("k").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(MemoryProvider::new().observe("").unwrap_err().kind(), ErrorKind::InvalidKey);
}
