//! A release by force (C22): the victim learns of it, the next holder has a greater token, and the
//! first in the queue goes first.

use std::time::Duration;

use distlock_api::{LockProviderExt, Loss, ReleaseOutcome};
use distlock_memory::MemoryStore;
use tokio::time::{Instant, sleep};

use crate::kit::{acquire, guard, holder_and_waiter, memory, ms, queueing, quick};

#[tokio::test(start_paused = true)]
async fn c4_c22_a_forced_release_is_noticed_at_once_by_push_and_with_the_next_renewal_without() {
    for push in [true, false] {
        let store = memory(|capabilities| capabilities.push = push);
        let (provider, other) = (quick(&store), quick(&store));
        let guard = acquire(&provider, "k").await;
        // The stream is opened when the lease is a second old.
        sleep(ms(1010)).await;
        let started = Instant::now();
        store.force_release("k");
        assert_eq!(guard.lost().await, Loss::ForceReleased);
        let bound = if push { ms(5) } else { ms(310) };
        assert!(started.elapsed() <= bound, "push {push}: {:?}", started.elapsed());
        let next = acquire(&other, "k").await;
        assert!(next.fencing_token() > guard.fencing_token(), "C5");
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
        assert!(!next.is_lost(), "C8");
    }
}

#[tokio::test(start_paused = true)]
async fn c22_a_loss_of_a_young_lease_is_noticed_as_soon_as_the_stream_is_open() {
    let store = MemoryStore::new();
    let [provider] = queueing(&store);
    let held = provider.acquire("k").ttl(Duration::from_secs(3600)).await.unwrap();
    sleep(ms(300)).await;
    let (since, _) = (Instant::now(), store.force_release("k").unwrap());
    assert_eq!(held.lost().await, Loss::ForceReleased);
    assert!(since.elapsed() < ms(1000), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c22_a_lease_taken_by_force_goes_to_the_first_in_the_queue() {
    let store = MemoryStore::new();
    let [a, b] = queueing(&store);
    let (first, next) = holder_and_waiter(&store, &a, &b).await;
    sleep(ms(100)).await;
    store.force_release("k").unwrap();
    let start = Instant::now();
    let next = guard(next).await;
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    assert_eq!(first.lost().await, Loss::ForceReleased);
    assert!(next.fencing_token() > first.fencing_token());
}
