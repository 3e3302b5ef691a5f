//! Administration of keys with several holders.

use std::time::Duration;

use distlock_api::{
    AcquisitionId, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockGuard, LockProvider, LockProviderExt,
    Loss, Mode, Namespaced,
};
use distlock_memory::MemoryProvider;
use futures_util::{FutureExt, StreamExt, TryStreamExt};

use super::kit::{Exclusive, KEY, Shared, assert_idle, held, key, permits, ready, waiter, waits};

async fn owned(locks: &MemoryProvider, owner: &str, mode: Mode) -> LockGuard {
    locks.acquire(KEY).owner(owner).metadata("by", owner).mode(mode).await.unwrap()
}

/// The events that can be received now: what happened, and how the key is held.
fn received(events: &mut LockEvents) -> Vec<(&'static str, Option<Mode>)> {
    let mut received = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        let event = event.unwrap();
        let mode = if let LockEvent::Granted { mode, .. } = &event { Some(*mode) } else { None };
        received.push((event.as_str(), mode));
    }
    received
}

#[tokio::test]
async fn all_holders_are_shown_in_the_order_of_their_grants() {
    let locks = MemoryProvider::new();
    let alone = owned(&locks, "a", permits(1, 5)).await;
    let info = locks.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((info.mode(), info.holders.len(), info.token), (permits(1, 5), 1, alone.fencing_token()));
    assert_eq!((info.id.as_ref(), info.remaining), (Some(&info.holders[0].id), Duration::MAX));

    let second = owned(&locks, "b", permits(2, 5)).await;
    let third = owned(&locks, "a", permits(2, 5)).await;
    let info = locks.inspect(&key()).await.unwrap().unwrap();
    assert_eq!(info.token, third.fencing_token());
    assert_eq!((info.owner.as_deref(), &*info.metadata["by"]), (Some("a"), "a"));
    let shown = info.holders.iter().map(|holder| {
        assert_eq!(holder.metadata["by"], *holder.owner.as_ref().unwrap());
        (holder.owner.as_deref().unwrap(), holder.mode, holder.token)
    });
    let expected = [
        ("a", permits(1, 5), alone.fencing_token()),
        ("b", permits(2, 5), second.fencing_token()),
        ("a", permits(2, 5), third.fencing_token()),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);

    // The first holder leaves: the token is still the last that was granted.
    drop((alone, third));
    let info = locks.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), info.holders.len()), (Some("b"), 1));
    assert!(info.token > second.fencing_token());
    // The owner of any of the holders finds the lock.
    let first = owned(&locks, "c", permits(1, 5)).await;
    for owner in ["b", "c"] {
        let list: Vec<_> = locks.list(ListOptions::new().owner(owner)).try_collect().await.unwrap();
        assert_eq!(list.len(), 1, "{owner}");
    }
    assert!(locks.list(ListOptions::new().owner("a")).try_next().await.unwrap().is_none());
    drop((first, second));
    assert_idle(&locks);
}

#[tokio::test]
async fn c22_all_holders_lose_the_key_by_force() {
    let locks = MemoryProvider::new();
    let guards = [owned(&locks, "a", Shared).await, owned(&locks, "b", Shared).await];
    let lost = guards.each_ref().map(LockGuard::lost);
    let mut next = waiter(&locks, Exclusive);
    let before = locks.inspect(&key()).await.unwrap();
    assert_eq!(locks.force_release(&key(), "all").await.unwrap(), before);
    for lost in lost {
        assert_eq!(lost.await, Loss::ForceReleased);
    }
    let writer = ready(&mut next);
    assert!(guards.iter().all(|guard| guard.is_lost() && guard.fencing_token() < writer.fencing_token()));
    let history = locks.history(&key()).await.unwrap();
    assert_eq!(history.iter().map(|entry| entry.owner.as_deref()).collect::<Vec<_>>(), [Some("a"), Some("b")]);
    // C8: their late releases change nothing.
    drop(guards);
    assert_eq!(locks.accounting().held, 1);
    drop((writer, next));
    assert_eq!(locks.accounting().lost, 2);
    assert_idle(&locks);
}

#[tokio::test]
async fn c22_one_of_several_holders_loses_its_share() {
    let locks = MemoryProvider::new();
    let mut guards = vec![owned(&locks, "a", permits(1, 3)).await, owned(&locks, "b", permits(2, 3)).await];
    let mut next = waiter(&locks, permits(2, 3));
    let before = locks.inspect(&key()).await.unwrap().unwrap();
    let unknown = AcquisitionId::new("nobody");
    assert_eq!(locks.force_release_holder(&key(), &unknown, "test").await.unwrap(), None);
    let victim = before.holders[1].id.clone();
    assert_eq!(locks.force_release_holder(&key(), &victim, "one").await.unwrap(), Some(before));
    assert_eq!((guards[0].loss(), guards[1].loss()), (None, Some(Loss::ForceReleased)));
    assert_eq!(locks.history(&key()).await.unwrap()[0].owner.as_deref(), Some("b"));
    assert_eq!(locks.force_release_holder(&key(), &victim, "again").await.unwrap(), None);
    // What it had is the next waiter's.
    guards.push(ready(&mut next));
    drop((guards, next));

    // An exclusive holder is one of one.
    let writer = held(&locks, Exclusive);
    let id = locks.inspect(&key()).await.unwrap().unwrap().id.unwrap();
    assert!(locks.force_release_holder(&key(), &id, "test").await.unwrap().is_some());
    assert_eq!(writer.loss(), Some(Loss::ForceReleased));
    drop(writer);
    assert_idle(&locks);
}

#[tokio::test]
async fn only_the_shares_of_an_owner_are_released() {
    let locks = MemoryProvider::new();
    let guards = [owned(&locks, "a", Shared).await, owned(&locks, "b", Shared).await, owned(&locks, "a", Shared).await];
    let mut writer = waiter(&locks, Exclusive);
    assert_eq!(locks.release_owner("a", "ended").await.unwrap(), 2);
    assert_eq!(guards.each_ref().map(LockGuard::is_lost), [true, false, true]);
    assert!(waits(&mut writer));
    assert_eq!(locks.release_matching(&LockFilter::new().prefix("k"), "rest").await.unwrap(), 1);
    drop(ready(&mut writer));
    drop((guards, writer));
    assert_idle(&locks);
}

#[tokio::test]
async fn c22_a_share_in_transit_becomes_a_lost_guard() {
    let locks = MemoryProvider::new();
    let writer = held(&locks, Exclusive);
    let mut readers = [waiter(&locks, Shared), waiter(&locks, Shared)];
    drop(writer);
    assert_eq!(locks.inspect(&key()).await.unwrap().unwrap().holders.len(), 2);
    assert!(locks.force_release(&key(), "test").await.unwrap().is_some());
    for reader in &mut readers {
        assert_eq!(ready(reader).loss(), Some(Loss::ForceReleased));
    }
    drop(readers);
    assert_idle(&locks);
}

#[tokio::test]
async fn events_name_the_mode_and_come_in_the_order_of_the_grants() {
    let locks = MemoryProvider::new();
    let mut events = locks.watch().await.unwrap();
    let writer = held(&locks, Exclusive);
    let (mut first, mut second) = (waiter(&locks, Shared), waiter(&locks, Shared));
    drop(writer);
    // The release grants both, whichever looks first.
    let granted = ("granted", Some(Shared));
    assert_eq!(received(&mut events), [("granted", Some(Exclusive)), ("released", None), granted, granted]);
    drop((ready(&mut second), ready(&mut first)));
    let _ = held(&locks, permits(1, 2));
    let released = ("released", None);
    assert_eq!(received(&mut events), [released, released, ("granted", Some(permits(1, 2))), released]);
    drop((first, second));
    assert_idle(&locks);
}

#[tokio::test]
async fn a_namespace_passes_modes_and_holders_on() {
    let inner = MemoryProvider::new();
    let locks = Namespaced::new(inner.clone(), "tenant").unwrap();
    let admin = locks.admin().unwrap();
    let guards = [locks.acquire("k").shared().await.unwrap(), locks.acquire("k").shared().await.unwrap()];
    assert!(locks.try_acquire("k").await.unwrap().is_none());
    let info = admin.inspect(&key()).await.unwrap().unwrap();
    assert_eq!((info.key.as_str(), info.mode(), info.holders.len()), ("k", Shared, 2));
    let other = inner.acquire("k").await.unwrap();
    assert!(admin.force_release_holder(&key(), &AcquisitionId::new("nobody"), "test").await.unwrap().is_none());
    let taken = admin.force_release_holder(&key(), &info.holders[0].id, "test").await.unwrap();
    assert_eq!(taken, Some(info));
    assert_eq!(guards.each_ref().map(LockGuard::is_lost), [true, false]);
    assert!(!other.is_lost(), "the same key outside of the namespace");
    drop((guards, other));
    assert_idle(&inner);
}
