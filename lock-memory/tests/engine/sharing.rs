//! Readers of one process share one lease (C26), in the order of the local queue (C28).

use distlock_api::{ErrorKind, LockGuard, LockProvider, LockProviderExt, Loss, Mode, ReleaseOutcome, Result};
use distlock_engine::{HandOff, LeaseProvider};
use distlock_memory::{MemoryStore, Operation};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::kit::{
    acquire, assert_pending, guard, holds_nothing, memory, ms, one_thread, poll_once, queued, quick, quick_setup,
    quick_terms, quiet, secs, setup, waiter, waiting,
};
use crate::store::{Abilities, Fate, ScriptedStore};

async fn read(provider: &LeaseProvider) -> LockGuard {
    provider.acquire("k").shared().await.unwrap()
}

/// Acquires `k` as a reader, in a task of its own.
fn reader(provider: &LeaseProvider) -> JoinHandle<Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").shared().await })
}

/// The same, of a reader that cannot join the lease of those.
fn reader_with_another_ttl(provider: &LeaseProvider) -> JoinHandle<Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").shared().ttl(secs(9)).await })
}

fn attempts(store: &MemoryStore) -> u64 {
    store.calls(Operation::TryAcquire)
}

fn token(guard: &LockGuard) -> u64 {
    guard.fencing_token().get()
}

/// The counts of a provider: acquired, released, lost, abandoned, held.
fn counts(provider: &LeaseProvider) -> [u64; 5] {
    let accounting = provider.accounting();
    assert!(accounting.balances(), "{accounting:?}");
    [accounting.acquired, accounting.released, accounting.lost, accounting.abandoned, accounting.held]
}

#[tokio::test(start_paused = true)]
async fn c26_readers_of_one_process_share_one_lease_without_a_request() {
    let (store, [provider]) = quick_setup();
    let first = read(&provider).await;
    let others = [read(&provider).await, provider.try_acquire("k").shared().await.unwrap().unwrap()];
    assert_eq!(counts(&provider), [3, 0, 0, 0, 3]);
    assert_eq!([&first, &others[0], &others[1]].map(token), [1, 2, 3], "C5: each its own, and they grow");
    sleep(secs(3)).await;
    assert!(!first.is_lost() && others.iter().all(|guard| !guard.is_lost()));
    assert_eq!(store.peek("k").unwrap().holders.len(), 1, "one lease, renewed as one");
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    let [second, last] = others;
    drop(second);
    quiet().await;
    assert_eq!((attempts(&store), store.calls(Operation::Release)), (1, 0));
    assert_eq!(counts(&provider), [3, 2, 0, 0, 1]);
    assert_eq!(last.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!((store.calls(Operation::Release), store.peek("k")), (1, None));
    assert_eq!(counts(&provider), [3, 3, 0, 0, 0]);
    assert_eq!(token(&acquire(&provider, "k").await), 1025, "C5: beyond the block");
}

#[tokio::test(start_paused = true)]
async fn c26_a_burst_of_waiting_readers_overlaps() {
    let (store, [provider]) = quick_setup();
    let writer = acquire(&provider, "k").await;
    let readers: Vec<_> = (0..20).map(|_| reader(&provider)).collect();
    waiting(&provider, 20).await;
    drop(writer);
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(guard(reader).await);
    }
    assert_eq!(attempts(&store), 2, "one for all readers");
    assert!(guards.is_sorted_by(|a, b| a.fencing_token() < b.fencing_token()), "in the order of the queue");
    assert_eq!(counts(&provider), [21, 1, 0, 0, 20]);
}

/// The first reader has returned its guard before the next ones are polled.
#[tokio::test(start_paused = true)]
async fn c26_a_reader_that_is_fast_does_not_release_between_two_others() {
    let (store, [provider]) = quick_setup();
    let writer = acquire(&provider, "k").await;
    let first = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").shared().await.unwrap().release().await.unwrap() }
    });
    waiting(&provider, 1).await;
    let readers: Vec<_> = (0..5).map(|_| reader(&provider)).collect();
    waiting(&provider, 6).await;
    drop(writer);
    assert!(first.await.unwrap().is_released());
    for reader in readers {
        drop(guard(reader).await);
    }
    holds_nothing(&provider).await;
    assert_eq!(
        (attempts(&store), store.calls(Operation::Release)),
        (2, 2),
        "one lease of the writer, one of all readers"
    );
}

/// The one that has the turn may be asleep, or wait for the store. All others would queue up behind
/// it, and the last of them would release the lease.
#[tokio::test(start_paused = true)]
async fn c26_a_reader_joins_beside_another_one_that_has_the_turn() {
    let (store, [provider]) = quick_setup();
    let first = read(&provider).await;
    let hangs = store.hang_next(Operation::TryAcquire);
    let other = reader_with_another_ttl(&provider);
    quiet().await;
    let second = timeout(ms(1), read(&provider)).await.expect("it joins");
    let joined = [second, provider.try_acquire("k").shared().await.unwrap().expect("it joins")];
    assert_eq!([&first, &joined[0], &joined[1]].map(token), [1, 2, 3]);
    let writer = waiter(&provider);
    waiting(&provider, 1).await;
    let mut late = reader(&provider);
    assert_pending(&mut late, ms(300)).await;
    hangs.proceed();
    let other = guard(other).await;
    assert!(token(&other) > 1024, "a lease of its own");
    assert_pending(&mut late, ms(300)).await;
    drop((first, joined, other));
    let writer = guard(writer).await;
    assert_pending(&mut late, ms(300)).await;
    drop(writer);
    drop(guard(late).await);
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn c28_no_reader_joins_beside_one_that_waits_in_the_store() {
    let (store, [here, there]) = quick_setup();
    let first = read(&here).await;
    let writer = waiter(&there);
    queued(&store, 1).await;
    let other = reader_with_another_ttl(&here);
    queued(&store, 2).await;
    let mut late = reader(&here);
    assert_pending(&mut late, ms(20)).await;
    drop(first);
    drop(guard(writer).await);
    drop((guard(other).await, guard(late).await));
    holds_nothing(&here).await;
}

/// It gets the turn from a reader that has given up.
#[tokio::test(start_paused = true)]
async fn c28_no_reader_joins_beside_a_writer_that_was_passed_the_turn() {
    let (store, [provider]) = quick_setup();
    let first = read(&provider).await;
    let hangs = store.hang_next(Operation::TryAcquire);
    let other = reader_with_another_ttl(&provider);
    quiet().await;
    let writer = waiter(&provider);
    waiting(&provider, 1).await;
    other.abort();
    let _ = other.await;
    queued(&store, 1).await;
    let mut late = reader(&provider);
    assert_pending(&mut late, ms(300)).await;
    hangs.proceed();
    drop(first);
    let writer = guard(writer).await;
    assert_pending(&mut late, ms(300)).await;
    drop(writer);
    drop(guard(late).await);
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn c28_a_local_writer_between_readers_keeps_its_place() {
    let (store, [provider]) = quick_setup();
    let first = read(&provider).await;
    let writer = waiter(&provider);
    queued(&store, 1).await;
    let mut late = reader(&provider);
    assert_pending(&mut late, ms(300)).await;
    assert!(provider.try_acquire("k").shared().await.unwrap().is_none(), "it does not overtake the writer either");
    drop(first);
    let writer = guard(writer).await;
    assert_pending(&mut late, ms(300)).await;
    let written = token(&writer);
    drop(writer);
    assert!(token(&guard(late).await) > written);
}

#[tokio::test(start_paused = true)]
async fn c28_joins_stop_while_a_writer_of_another_process_waits() {
    let (store, [here, there]) = quick_setup();
    let mut first = read(&here).await;
    let writer = waiter(&there);
    queued(&store, 1).await;
    // Each reader overlaps with the next one, so that the lease would never end.
    let begun = Instant::now();
    while !writer.is_finished() {
        let next = timeout(ms(40), read(&here)).await;
        sleep(ms(10)).await;
        match next {
            Ok(next) => first = next,
            Err(_) => break,
        }
        assert!(begun.elapsed() < secs(2), "readers join on and on");
    }
    let late = reader(&here);
    queued(&store, 2).await;
    drop(first);
    let writer = guard(writer).await;
    assert!(!late.is_finished());
    drop(writer);
    let late = guard(late).await;
    assert_eq!(store.peek("k").unwrap().mode(), Mode::Shared);
    drop(late);
}

#[tokio::test(start_paused = true)]
async fn c28_readers_that_never_stop_do_not_starve_a_writer_and_cost_few_queries() {
    let (store, [here, there]) = setup();
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let here = here.clone();
            tokio::spawn(async move {
                loop {
                    let guard = here.acquire("k").shared().await.unwrap();
                    sleep(ms(7)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    sleep(secs(20)).await;
    let (attempted, queries) = (attempts(&store), store.calls(Operation::Waiters));
    assert_eq!(attempted, 2, "one lease, and one with more tokens");
    assert!(queries <= 30, "{queries} queries in 20 s");
    for _ in 0..5 {
        let asked = Instant::now();
        let writer = acquire(&there, "k").await;
        assert!(asked.elapsed() < ms(2500), "{:?}", asked.elapsed());
        drop(writer);
    }
    readers.iter().for_each(JoinHandle::abort);
    let granted = counts(&here)[0];
    assert!(granted > 15_000, "{granted} readers");
}

#[tokio::test(start_paused = true)]
async fn c28_a_failed_query_counts_as_a_waiter() {
    let (store, [provider]) = quick_setup();
    store.fail_always(Operation::Waiters, ErrorKind::Unavailable);
    let mut guards = vec![read(&provider).await];
    sleep(ms(60)).await;
    guards.push(read(&provider).await);
    sleep(ms(60)).await;
    guards.push(read(&provider).await);
    assert_eq!((attempts(&store), store.calls(Operation::Waiters)), (2, 1), "a lease of its own");
    assert_eq!(store.peek("k").unwrap().holders.len(), 2);
    assert!(token(&guards[2]) > 1024);
    drop(guards);
    holds_nothing(&provider).await;
    assert_eq!(store.peek("k"), None);
}

#[tokio::test(start_paused = true)]
async fn c4_c22_a_loss_is_one_for_every_reader() {
    let (store, [provider]) = quick_setup();
    let guards = [read(&provider).await, read(&provider).await, read(&provider).await];
    let released = read(&provider).await;
    let silent = released.lost();
    assert!(released.release().await.unwrap().is_released());
    let lost: Vec<_> = guards.iter().map(LockGuard::lost).collect();
    sleep(secs(2)).await; // the stream is open
    store.force_release("k");
    for lost in lost {
        assert_eq!(timeout(ms(10), lost).await.unwrap(), Loss::ForceReleased);
    }
    assert!(guards.iter().all(LockGuard::is_lost));
    assert!(timeout(secs(5), silent).await.is_err(), "that guard has given the lease up");
    assert_eq!(counts(&provider), [4, 1, 3, 0, 0]);
    for guard in guards {
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    }
    assert_eq!(counts(&provider), [4, 1, 3, 0, 0]);
    let next = read(&provider).await;
    assert!(!next.is_lost() && attempts(&store) == 2, "a lost lease is not joined");
}

#[tokio::test(start_paused = true)]
async fn c3_a_lease_past_its_deadline_is_lost_for_every_reader_and_not_joined() {
    let (store, [provider]) = quick_setup();
    let guards = [read(&provider).await, read(&provider).await];
    store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    for guard in &guards {
        assert_eq!(guard.lost().await, Loss::Expired);
    }
    store.clear_faults();
    let _next = read(&provider).await;
    assert_eq!((counts(&provider), attempts(&store)), ([3, 0, 2, 0, 1], 2));
}

#[tokio::test(start_paused = true)]
async fn c11_a_reader_that_leaves_with_its_guard_in_transit_leaves_nothing_behind() {
    let (store, [provider]) = quick_setup();
    let writer = acquire(&provider, "k").await;
    let first = reader(&provider);
    waiting(&provider, 1).await;
    let by_hand = || {
        let provider = provider.clone();
        Box::pin(async move { provider.acquire("k").shared().await })
    };
    let [mut leaves, mut stays] = [by_hand(), by_hand()];
    assert!(poll_once(leaves.as_mut()).is_pending() && poll_once(stays.as_mut()).is_pending());
    drop(writer);
    let first = guard(first).await;
    assert_eq!(counts(&provider), [4, 1, 0, 0, 3], "both have joined, without being polled");
    drop(leaves);
    assert_eq!(counts(&provider), [4, 2, 0, 0, 2]);
    drop(first);
    assert_eq!(store.calls(Operation::Release), 1, "only the writer's");
    drop(stays);
    holds_nothing(&provider).await;
    assert_eq!((store.peek("k"), counts(&provider)), (None, [4, 4, 0, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn c15_a_reader_that_is_never_polled_does_not_keep_the_key() {
    let (_, [here, there]) = quick_setup();
    let writer = acquire(&here, "k").await;
    let first = reader(&here);
    waiting(&here, 1).await;
    let mut asleep = Box::pin({
        let here = here.clone();
        async move { here.acquire("k").shared().await }
    });
    assert!(poll_once(asleep.as_mut()).is_pending());
    drop(writer);
    drop(guard(first).await);
    let writer = timeout(secs(3), acquire(&there, "k")).await.expect("the lease has expired");
    assert_eq!(counts(&here), [3, 2, 1, 0, 0]);
    let woken = tokio::spawn(asleep);
    sleep(ms(100)).await;
    assert!(!woken.is_finished(), "its lease was lost on the way: it waits for another one");
    drop(writer);
    assert!(!guard(woken).await.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c24_close_releases_a_shared_lease_once_and_every_reader_has_lost_it() {
    let (store, [provider]) = quick_setup();
    let guards = [read(&provider).await, read(&provider).await, read(&provider).await];
    provider.close().await.unwrap();
    for guard in guards {
        assert_eq!(guard.loss(), Some(Loss::Closed));
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    }
    assert_eq!((store.peek("k"), store.calls(Operation::Release)), (None, 1));
    assert_eq!(counts(&provider), [3, 3, 0, 0, 0]);
    assert_eq!(provider.acquire("k").shared().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn c23_a_reader_that_abandons_leaves_the_lease_to_the_others() {
    let (store, [provider]) = quick_setup();
    let [first, second] = [read(&provider).await, read(&provider).await];
    first.abandon();
    assert_eq!(counts(&provider), [2, 0, 0, 1, 1]);
    sleep(secs(3)).await;
    assert!(!second.is_lost());
    second.abandon();
    assert_eq!((counts(&provider), store.calls(Operation::Release)), ([2, 0, 0, 2, 0], 0));
    sleep(secs(1)).await;
    assert_eq!(store.peek("k"), None, "its ttl has ended it");
}

#[tokio::test(start_paused = true)]
async fn c12_a_reader_that_comes_during_the_release_gets_a_lease_of_its_own() {
    let (store, [provider]) = quick_setup();
    let first = read(&provider).await;
    let hangs = store.hang_next(Operation::Release);
    let release = tokio::spawn(first.release());
    quiet().await;
    let second = read(&provider).await;
    assert_eq!(attempts(&store), 2);
    hangs.proceed();
    assert!(release.await.unwrap().unwrap().is_released());
    sleep(secs(3)).await;
    assert!(!second.is_lost() && store.peek("k").is_some());
}

#[tokio::test(start_paused = true)]
async fn c5_a_lease_whose_tokens_are_used_is_followed_by_one_with_more() {
    let (store, [provider]) = quick_setup();
    let mut guards = Vec::new();
    for _ in 0..1024 {
        guards.push(read(&provider).await);
    }
    assert_eq!(attempts(&store), 1);
    guards.push(read(&provider).await);
    let last = token(&guards[1024]);
    assert_eq!((attempts(&store), last), (2, 1025));
    assert!(guards.is_sorted_by(|a, b| a.fencing_token() < b.fencing_token()));
    assert_eq!(store.peek("k").unwrap().token.get(), 1024 + 65_536);
    drop(guards);
    holds_nothing(&provider).await;
    assert_eq!(counts(&provider), [1025, 1025, 0, 0, 0]);
}

/// A reader joins only a lease that is as it would request it.
#[tokio::test(start_paused = true)]
async fn c26_readers_with_other_terms_have_a_lease_of_their_own() {
    let (store, [provider]) = quick_setup();
    let mut guards = vec![read(&provider).await];
    guards.push(provider.acquire("k").shared().owner("another").await.unwrap());
    guards.push(provider.acquire("k").shared().ttl(secs(9)).await.unwrap());
    guards.push(provider.acquire("k").shared().hold_at_least(ms(10)).await.unwrap());
    guards.push(provider.acquire("k").shared().hold_at_least(ms(10)).await.unwrap());
    assert_eq!(attempts(&store), 5);
    let owners = store.peek("k").unwrap().holders.into_iter().filter_map(|holder| holder.owner);
    assert_eq!(owners.filter(|owner| owner == "another").count(), 1);
    let alone = store.builder().lease(quick_terms()).without_hand_off().build().unwrap();
    guards.extend([read(&alone).await, read(&alone).await]);
    assert_eq!(attempts(&store), 7, "hand-off is switched off");
    sleep(ms(10)).await;
    drop(guards);
    holds_nothing(&provider).await;
    holds_nothing(&alone).await;
    assert_eq!(store.peek("k"), None);
}

#[tokio::test(start_paused = true)]
async fn c26_a_store_without_token_blocks_grants_every_reader_a_lease() {
    let store = memory(|can| can.token_blocks = false);
    let provider = quick(&store);
    let guards = [read(&provider).await, read(&provider).await];
    assert_eq!((attempts(&store), guards.each_ref().map(token)), (2, [1, 2]));
    drop(guards);
    holds_nothing(&provider).await;
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_of_a_reader_keeps_writers_out() {
    let (_, [provider]) = quick_setup();
    let begun = Instant::now();
    let held = provider.acquire("k").shared().hold_at_least(secs(2)).await.unwrap();
    assert!(held.release().await.unwrap().is_released());
    assert!(!read(&provider).await.is_lost());
    let _writer = acquire(&provider, "k").await;
    assert!(begun.elapsed() >= secs(2) && begun.elapsed() < secs(3), "{:?}", begun.elapsed());
}

/// The linger of an exclusive lease is over when a reader comes.
#[tokio::test(start_paused = true)]
async fn c26_a_lingering_exclusive_lease_is_released_before_a_reader_asks() {
    let store = MemoryStore::new();
    let provider = store.builder().lease(quick_terms()).hand_off(HandOff::new().linger(ms(200))).build().unwrap();
    drop(acquire(&provider, "k").await);
    let reading = read(&provider).await;
    assert_eq!((store.calls(Operation::Release), store.peek("k").unwrap().mode()), (1, Mode::Shared));
    assert!(reading.release().await.unwrap().is_released());
    assert_eq!(store.calls(Operation::Release), 2, "a shared lease does not linger");
}

#[tokio::test(start_paused = true)]
async fn c10_a_lost_reply_of_a_readers_request_leaves_one_lease() {
    let store = ScriptedStore::new(|operation, _, nth| match (operation, nth) {
        (Operation::TryAcquire, 1) => Fate::LoseReply,
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities = Abilities::all());
    let provider = quick(&store);
    let first = read(&provider).await;
    let second = read(&provider).await;
    assert_eq!(store.memory.peek("k").unwrap().holders.len(), 1);
    drop((first, second));
    holds_nothing(&provider).await;
    assert_eq!(store.memory.peek("k"), None);
}

/// The readers of another runtime do not join: the lease is renewed on the one that acquired it.
#[test]
fn c26_readers_of_another_runtime_have_a_lease_of_their_own() {
    let (store, [provider]) = setup();
    let [here, there] = [one_thread(), one_thread()];
    let first = here.block_on(read(&provider));
    let second = there.block_on(read(&provider));
    assert_eq!(attempts(&store), 2);
    here.block_on(async { assert!(first.release().await.unwrap().is_released()) });
    there.block_on(async { assert!(second.release().await.unwrap().is_released()) });
    assert_eq!(counts(&provider), [2, 2, 0, 0, 0]);
}

/// The last reader leaves while another one joins, on several threads.
#[test]
fn c26_joins_and_leaves_of_many_threads_balance() {
    let (store, [provider]) = setup();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let provider = provider.clone();
                tokio::spawn(async move {
                    for round in 0..400 {
                        let guard = match (task + round) % 9 {
                            0 => provider.acquire("k").await.unwrap(),
                            _ => provider.acquire("k").shared().await.unwrap(),
                        };
                        assert!(!guard.is_lost());
                        if round % 3 == 0 {
                            tokio::task::yield_now().await;
                        }
                        if round % 2 == 0 {
                            assert!(guard.release().await.unwrap().is_released());
                        }
                        assert!(provider.accounting().balances());
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        while provider.accounting().held > 0 {
            sleep(ms(1)).await;
        }
    });
    let [acquired, released, lost, abandoned, held] = counts(&provider);
    assert_eq!([acquired, lost, abandoned, held], [3200, 0, 0, 0]);
    assert_eq!(released, acquired);
    assert_eq!(store.peek("k"), None);
}
