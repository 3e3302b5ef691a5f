//! Modes through providers: readers of one process share a lease.

use std::collections::HashSet;

use distlock_api::{LockKey, LockProvider, LockProviderExt};
use distlock_mongo::MongoProvider;
use futures_util::future::join_all;

use super::record;
use crate::Checks;
use crate::world::{LONG, World, key, random_name, size};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C26 a_thousand_readers_of_eight_providers);
    check!(checks, R30 unused_tokens_of_the_latest_block_are_given_back);
    check!(checks, C28 a_writer_and_readers_take_turns);
}

async fn a_thousand_readers_of_eight_providers(world: World) {
    let name = random_name("locks");
    let key = key();
    let providers = [(); 8].map(|()| world.locks(&name));
    let acquisitions = (0..1000).map(|n| {
        let (provider, key) = (&providers[n % 8], &key);
        async move { provider.acquire(key).shared().timeout(LONG).await.unwrap() }
    });
    let guards = join_all(acquisitions).await;
    let tokens: HashSet<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
    assert_eq!(tokens.len(), 1000, "each has a token of its own");
    let held = record(&world, &name, &key).await;
    let size = size(&held);
    println!("{size} bytes, {} holders", held.get_array("holders").unwrap().len());
    assert!(size < 64 << 10, "{size} bytes");
    assert!(providers[0].try_acquire(&key).await.unwrap().is_none());
    for released in join_all(guards.into_iter().map(|guard| guard.release())).await {
        assert!(released.unwrap().is_released());
    }
    let last = tokens.iter().max().unwrap();
    let writer = providers[0].acquire(&key).await.unwrap();
    assert!(writer.fencing_token() > *last, "C5");
    drop(writer);
    for provider in providers {
        provider.close().await.unwrap();
    }
}

async fn unused_tokens_of_the_latest_block_are_given_back(world: World) {
    let name = random_name("locks");
    let token = async |key: &LockKey| record(&world, &name, key).await.get_i64("fencingToken").unwrap().unsigned_abs();
    let (one, other) = (world.locks(&name), world.locks(&name));
    for latest_first in [true, false] {
        let key = key();
        let first = one.acquire(&key).shared().await.unwrap();
        let second = other.acquire(&key).shared().await.unwrap();
        let used = second.fencing_token();
        assert!(used > first.fencing_token());
        let end = token(&key).await;
        assert!(end >= used.get());
        if latest_first {
            assert!(second.release().await.unwrap().is_released());
            assert_eq!(token(&key).await, used.get());
            assert!(first.release().await.unwrap().is_released());
            assert_eq!(token(&key).await, used.get(), "those of an older block are burnt");
        } else {
            assert!(first.release().await.unwrap().is_released());
            assert_eq!(token(&key).await, end, "those of an older block are burnt");
            assert!(second.release().await.unwrap().is_released());
            assert_eq!(token(&key).await, used.get());
        }
        let next = one.acquire(&key).await.unwrap();
        assert!(next.fencing_token() > used);
    }
    one.close().await.unwrap();
    other.close().await.unwrap();
}

/// Readers in two processes keep coming, and a writer in a third gets its turns.
async fn a_writer_and_readers_take_turns(world: World) {
    let name = random_name("locks");
    let key = key();
    let providers = [(); 3].map(|()| world.locks(&name));
    let done = std::sync::atomic::AtomicBool::new(false);
    let reads = |provider: &MongoProvider| {
        let (provider, key, done) = (provider.clone(), key.clone(), &done);
        async move {
            let mut read = 0_u32;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let guard = provider.acquire(&key).shared().timeout(LONG).await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                assert!(guard.release().await.unwrap().is_released());
                read += 1;
            }
            read
        }
    };
    let readers = (0..6).map(|n| reads(&providers[n % 2]));
    let writer = async {
        let mut last = 0;
        for _ in 0..10 {
            let guard = providers[2].acquire(&key).timeout(LONG).await.unwrap();
            assert!(guard.fencing_token().get() > last);
            last = guard.fencing_token().get();
            assert!(guard.release().await.unwrap().is_released());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let (read, ()) = tokio::join!(join_all(readers), writer);
    assert!(read.iter().all(|read| *read > 0), "{read:?}");
    for provider in providers {
        assert!(provider.close().await.is_ok());
    }
}
