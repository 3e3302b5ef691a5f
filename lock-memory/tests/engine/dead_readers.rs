//! What a reader that has died costs others (C29), beside readers that live.

use distlock_api::{LockProviderExt, Mode};
use distlock_engine::store::{Attempt, Claim, LeaseStore, ProviderId, Reply};
use distlock_memory::MemoryStore;
use tokio::time::{Instant, sleep};

use crate::kit::{guard, ms, provider, queued, secs, waiter};

/// A reader that takes a lease of 32 s and dies.
async fn dead_reader(store: &MemoryStore) {
    let claim = Claim::new("k".parse().unwrap(), ProviderId::random().acquisition_id()).with_mode(Mode::Shared);
    let reply = store.try_acquire(&Attempt::new(claim, secs(32))).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
}

#[tokio::test(start_paused = true)]
async fn c29_a_dead_reader_delays_a_writer_no_longer_than_its_own_expiry() {
    for leaves_at in [1, 12, 24, 29, 31] {
        let store = MemoryStore::new();
        let [living, writing] = [(); 2].map(|()| provider(&store));
        let reader = living.acquire("k").shared().await.unwrap();
        dead_reader(&store).await;
        let died = Instant::now();
        let writer = waiter(&writing);
        queued(&store, 1).await;
        sleep(secs(leaves_at)).await;
        drop(reader);
        drop(guard(writer).await);
        let took = died.elapsed();
        assert!(took >= secs(32) && took < secs(33), "{took:?}, left at {leaves_at} s");
    }
}

#[tokio::test(start_paused = true)]
async fn c28_readers_are_served_soon_after_a_writer_before_them_has_died() {
    let store = MemoryStore::new();
    let living = provider(&store);
    let _reader = living.acquire("k").shared().await.unwrap();
    let claim = Claim::new("k".parse().unwrap(), ProviderId::random().acquisition_id());
    let ticket = distlock_engine::store::Ticket::new(secs(15), ms(1100), 64);
    let reply = store.try_acquire(&Attempt::new(claim, secs(30)).with_ticket(ticket)).await.unwrap();
    assert!(matches!(reply, Reply::Busy(_)));
    let others: Vec<_> = (0..12).map(|_| provider(&store)).collect();
    let start = Instant::now();
    let waiters: Vec<_> = others
        .iter()
        .map(|other| {
            let other = other.clone();
            tokio::spawn(async move { other.acquire("k").shared().await })
        })
        .collect();
    let mut took = Vec::new();
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(guard(waiter).await);
        took.push(start.elapsed().as_millis());
    }
    assert!(*took.iter().max().unwrap() < 20_000, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn c29_permits_of_several_dead_holders_are_free_each_at_its_own_expiry() {
    let store = MemoryStore::new();
    for after in [0, 7, 11] {
        sleep(secs(after)).await;
        let mode = Mode::Permits { take: 1, of: 3 };
        let claim = Claim::new("k".parse().unwrap(), ProviderId::random().acquisition_id()).with_mode(mode);
        let reply = store.try_acquire(&Attempt::new(claim, secs(30))).await.unwrap();
        assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
    }
    let start = Instant::now();
    let mut guards = Vec::new();
    let mut took = Vec::new();
    let others: Vec<_> = (0..3).map(|_| provider(&store)).collect();
    let waiters: Vec<_> = others
        .iter()
        .map(|other| {
            let other = other.clone();
            tokio::spawn(async move { other.acquire("k").permits(1, 3).await })
        })
        .collect();
    for waiter in waiters {
        guards.push(guard(waiter).await);
        took.push(start.elapsed().as_millis());
    }
    for (took, expiry) in took.iter().zip([12_000, 19_000, 30_000]) {
        assert!((expiry..expiry + 1500).contains(took), "{took:?}");
    }
}
