//! Two mechanisms at once, for the pairs that no other module has. `DESIGN.md` lists all pairs.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;

use distlock_api::{ErrorKind, LockGuard, LockProvider, LockProviderExt, Loss, ReleaseOutcome};
use distlock_engine::store::Lanes;
use distlock_engine::{HandOff, LeaseProvider};
use distlock_memory::Operation;
use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::commit::resource::Style;
use crate::kit::{
    Deployment, accounting_when, acquire, assert_pending, guard, holds_nothing, in_task, ms, process, queued, quick,
    quick_setup, quick_terms, quiet, secs, waiter,
};
use crate::store::{Abilities, Fate, Gate, ScriptedStore};

/// As many calls as are made before others wait for company.
const AT_ONCE: usize = 2;

const LINGER: std::time::Duration = ms(200);

/// A store that takes batches, and can do all that the memory store can.
fn store(
    batch: usize,
    script: impl Fn(Operation, &str, usize) -> Fate + Send + Sync + 'static,
    change: impl FnOnce(&mut ScriptedStore),
) -> Arc<ScriptedStore> {
    ScriptedStore::new(script).with(|store| {
        store.capabilities = Abilities::all();
        store.capabilities.acquire_batch = NonZeroUsize::new(batch).unwrap();
        change(store);
    })
}

fn lingering(store: &impl Deployment) -> LeaseProvider {
    let builder = store.provider_builder().lease(quick_terms()).request_timeout(ms(500));
    builder.hand_off(HandOff::new().linger(LINGER)).build().unwrap()
}

fn batches(store: &ScriptedStore) -> Vec<usize> {
    std::mem::take(&mut store.batches.lock().unwrap())
}

/// Acquires this many keys in tasks. The first ones go alone, and the others in a batch.
fn callers(provider: &LeaseProvider, keys: usize) -> Vec<JoinHandle<distlock_api::Result<LockGuard>>> {
    (0..keys).map(|key| in_task(provider, key.to_string())).collect()
}

/// Whether all keys of [`callers`] are free.
fn are_free(store: &ScriptedStore, keys: usize) -> bool {
    (0..keys).all(|key| store.is_free(&key.to_string()))
}

/// How many requests came after the store was closed.
fn after_close(store: &ScriptedStore) -> usize {
    let requests = store.requests();
    let close = requests.iter().position(|(operation, _)| *operation == Operation::Close).expect("closed");
    requests.len() - close - 1
}

/// Linger and batches, linger and `acquire_all`.
#[tokio::test(start_paused = true)]
async fn a_group_takes_the_leases_that_linger_and_requests_the_others_together() {
    let store = store(8, |_, _, _| Fate::After(ms(5)), |_| {});
    let provider = lingering(&store);
    let first = provider.acquire_all(0..3).await.unwrap();
    let before = first.fencing_tokens();
    assert!(first.release().await.unwrap().is_released());
    assert_eq!((batches(&store), store.count(Operation::Release)), (vec![3], 0), "they linger");
    let all = provider.acquire_all(0..6).await.unwrap();
    assert_eq!((batches(&store), store.count(Operation::TryAcquire)), (vec![3], 6));
    let tokens = all.fencing_tokens();
    assert!(before.iter().all(|(key, token)| tokens.get(key.as_str()).unwrap() > token), "C5");
    assert!(all.release().await.unwrap().is_released());
    sleep(LINGER + ms(100)).await;
    assert!(are_free(&store, 6));
    let accounting = provider.accounting();
    assert!(accounting.balances() && (accounting.released, accounting.held) == (9, 0), "{accounting:?}");
}

/// Hand-off and batches: the caller of a batched attempt leaves, and another caller of its process
/// waits for the same key.
#[tokio::test(start_paused = true)]
async fn c15_a_local_waiter_behind_a_caller_that_has_left_its_batch_is_served() {
    const KEYS: usize = AT_ONCE + 4;

    let late = Gate::default();
    let held = late.clone();
    let script = move |operation, _: &str, nth| match operation {
        Operation::TryAcquire if nth == 1 => Fate::Hold(held.clone()),
        _ => Fate::Serve,
    };
    let store = store(8, script, |_| {});
    let provider = process(&store);
    let leave = callers(&provider, KEYS);
    store.called(Operation::TryAcquire, KEYS).await;
    assert_eq!(batches(&store), [KEYS - AT_ONCE]);
    let stay = callers(&provider, KEYS);
    quiet().await;
    leave.iter().for_each(JoinHandle::abort);
    late.open();
    let guards = timeout(secs(2), join_all(stay)).await.expect("each is served");
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.unwrap().unwrap()).collect();
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    drop(guards);
    holds_nothing(&provider).await;
    accounting_when(&provider, |accounting| accounting.unsettled == 0).await;
    assert!(are_free(&store, KEYS));
}

/// `close` and batches.
#[tokio::test(start_paused = true)]
async fn c24_close_waits_for_a_batch_of_acquisitions_under_way() {
    const KEYS: usize = AT_ONCE + 6;

    let slow = |operation, _: &str, _| match operation {
        Operation::TryAcquire => Fate::Late(ms(100)),
        _ => Fate::Serve,
    };
    let store = store(8, slow, |_| {});
    let provider = process(&store);
    let callers = callers(&provider, KEYS);
    store.called(Operation::TryAcquire, KEYS).await;
    assert_eq!(batches(&store), [KEYS - AT_ONCE]);
    provider.close().await.unwrap();
    assert!(are_free(&store, KEYS));
    for caller in join_all(callers).await {
        assert_eq!(caller.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
    sleep(secs(10)).await;
    assert!(are_free(&store, KEYS) && after_close(&store) == 0, "{:?}", store.requests());
    assert_eq!((provider.accounting().unsettled, provider.accounting().held), (0, 0));
}

/// `close`, batches and lost replies: the batch may act for longer than its callers live.
#[tokio::test(start_paused = true)]
async fn c24_close_withdraws_a_lost_batch_when_it_can_no_longer_act() {
    const KEYS: usize = AT_ONCE + 6;

    let acts_for = ms(700);
    let loses = |operation, _: &str, nth| match operation {
        Operation::TryAcquire if nth == 1 => Fate::LoseReplyAfter(ms(100)),
        _ => Fate::Serve,
    };
    let store = store(8, loses, |store| store.first_batch_acts_for = acts_for);
    let provider = process(&store);
    let callers = callers(&provider, KEYS);
    store.called(Operation::TryAcquire, KEYS).await;
    let since = Instant::now();
    provider.close().await.unwrap();
    assert!(since.elapsed() >= acts_for, "the batch could still act: {:?}", since.elapsed());
    for caller in join_all(callers).await {
        assert_eq!(caller.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
    sleep(secs(10)).await;
    assert!(are_free(&store, KEYS) && after_close(&store) == 0, "{:?}", store.requests());
}

#[tokio::test(start_paused = true)]
async fn c24_close_waits_for_batches_of_releases_and_renewals_under_way() {
    const KEYS: usize = AT_ONCE + 6;

    let gate = Gate::default();
    let held = gate.clone();
    let slow = move |operation, _: &str, _| match operation {
        Operation::Renew => Fate::Hold(held.clone()),
        Operation::Release => Fate::After(ms(100)),
        _ => Fate::Serve,
    };
    let store = store(8, slow, |_| {});
    let provider = quick(&store);
    let mut guards: Vec<_> =
        join_all(callers(&provider, KEYS)).await.into_iter().map(|it| it.unwrap().unwrap()).collect();
    store.called(Operation::Renew, KEYS).await;
    // Half of them are being released when the provider is closed.
    let releasing: Vec<_> = guards.drain(..KEYS / 2).map(|guard| tokio::spawn(guard.release())).collect();
    store.called(Operation::Release, AT_ONCE).await;
    provider.close().await.unwrap();
    assert!(are_free(&store, KEYS));
    for outcome in join_all(releasing).await {
        assert_eq!(outcome.unwrap().unwrap(), ReleaseOutcome::Released);
    }
    assert!(guards.iter().all(|guard| guard.loss() == Some(Loss::Closed)));
    gate.open();
    sleep(secs(10)).await;
    assert!(are_free(&store, KEYS) && after_close(&store) == 0, "a renewal revives nothing");
    let accounting = provider.accounting();
    assert_eq!((accounting.released, accounting.lost, accounting.abandoned), (KEYS as u64, 0, 0), "{accounting:?}");
}

/// Linger and commits: what an acquisition brings comes from its own answer.
#[tokio::test(start_paused = true)]
async fn a_lingering_lease_is_released_before_an_acquisition_that_brings_something() {
    let style = Style::new();
    let provider = lingering(&style.store);
    let plain = acquire(&provider, "k").await;
    let token = plain.fencing_token();
    drop(plain);
    quiet().await;
    assert!(style.store.peek("k").is_some(), "it lingers");
    *style.value.lock().unwrap() = 7;
    let lease = style.lock(&provider).await;
    assert_eq!((style.brought(&lease), style.attempts(), style.store.calls(Operation::Release)), (7, 1, 1));
    assert!(lease.fencing_token() > token, "C5");
    assert!(lease.release().await.unwrap().is_released());
    assert_eq!(style.store.peek("k"), None, "nor does its own lease linger");
    let lease = style.lock(&provider).await;
    assert!(lease.release_via(style.adds(true, [])).await.unwrap().is_released());
    assert_eq!((style.value(), style.store.peek("k")), (8, None));
}

/// Linger and lost replies: the release of a lease that has lingered has no caller.
#[tokio::test(start_paused = true)]
async fn a_lingering_lease_is_given_back_although_replies_are_lost() {
    for fate in [|| Fate::LoseReply, || Fate::LoseReplyAfter(ms(450)), Fate::fail, || Fate::Never] {
        let script = move |operation, _: &str, nth| match operation {
            Operation::Release if nth == 1 => fate(),
            _ => Fate::Serve,
        };
        let store = store(8, script, |_| {});
        let (here, there) = (lingering(&store), process(&store));
        drop(acquire(&here, "k").await);
        let since = Instant::now();
        let next = timeout(secs(10), acquire(&there, "k")).await.expect("it is given back");
        assert!(since.elapsed() <= LINGER + ms(1200), "{:?}", since.elapsed());
        accounting_when(&here, |accounting| accounting.held == 0).await;
        assert!(!next.is_lost() && here.accounting().lost == 0);
    }
}

/// `acquire_all` and the queue, in modes: a writer of another process waits for one of the keys.
#[tokio::test(start_paused = true)]
async fn c28_a_group_of_readers_overtakes_no_writer_in_the_queue() {
    for batch in [1, 8] {
        let store = store(batch, |_, _, _| Fate::Serve, |_| {});
        let [a, b, c] = [(); 3].map(|()| quick(&store));
        let reader = a.acquire("k").shared().await.unwrap();
        let writer = waiter(&b);
        queued(&store.memory, 1).await;
        assert!(c.try_acquire_all(["a", "k", "z"]).shared().await.unwrap().is_none(), "batches of {batch}");
        quiet().await;
        assert!(store.is_free("a") && store.is_free("z"), "all or nothing");
        assert_eq!(store.memory.waiting("k").len(), 1, "a try takes no ticket");
        let locks = c.clone();
        let mut group = tokio::spawn(async move { locks.acquire_all(["a", "k", "z"]).shared().await });
        queued(&store.memory, 2).await;
        assert_pending(&mut group, ms(300)).await;
        drop(reader);
        let writer = guard(writer).await;
        assert_pending(&mut group, ms(300)).await;
        drop(writer);
        let all = timeout(secs(5), group).await.expect("its turn comes").unwrap().unwrap();
        assert!(all.guards().len() == 3 && !all.is_lost());
        assert!(all.release().await.unwrap().is_released());
        assert!(["a", "k", "z"].iter().all(|key| store.is_free(key)));
    }
}

/// `acquire_all` and releases by force.
#[tokio::test(start_paused = true)]
async fn c22_a_group_is_lost_with_one_of_its_keys_and_the_others_are_released() {
    let store = store(8, |_, _, _| Fate::Serve, |_| {});
    let provider = quick(&store);
    let all = provider.acquire_all(0..4).await.unwrap();
    // The stream is opened when the lease is a second old.
    sleep(ms(1010)).await;
    let lost = all.lost();
    store.memory.force_release("2").unwrap();
    assert_eq!(timeout(ms(10), lost).await.unwrap(), Loss::ForceReleased);
    assert_eq!(all.guards().iter().filter(|guard| guard.is_lost()).count(), 1);
    assert_eq!(all.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert!(are_free(&store, 4));
    let accounting = provider.accounting();
    assert_eq!((accounting.released, accounting.lost, accounting.held), (3, 1, 0), "{accounting:?}");
}

/// `acquire_all` and `close`.
#[tokio::test(start_paused = true)]
async fn c24_close_ends_a_group_that_waits_for_one_of_its_keys() {
    let store = store(8, |_, _, _| Fate::Serve, |_| {});
    let (provider, other) = (process(&store), process(&store));
    let held = acquire(&other, "k").await;
    let locks = provider.clone();
    let group = tokio::spawn(async move { locks.acquire_all(["a", "k", "z"]).await });
    queued(&store.memory, 1).await;
    assert!(!store.is_free("a"), "it holds the smaller key");
    provider.close().await.unwrap();
    assert_eq!(group.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(store.is_free("a") && store.is_free("z") && store.memory.waiting("k").is_empty());
    let accounting = provider.accounting();
    assert!(accounting.balances() && (accounting.held, accounting.waiting) == (0, 0), "{accounting:?}");
    assert!(!held.is_lost());
}

/// Releases by force and `close`: the holder has not heard that its lease was taken.
#[tokio::test(start_paused = true)]
async fn c8_c24_close_touches_no_lease_that_follows_one_taken_by_force() {
    let (store, [a, b]) = quick_setup();
    let held = acquire(&a, "k").await;
    store.lose_events(true);
    store.force_release("k").unwrap();
    let next = acquire(&b, "k").await;
    a.close().await.unwrap();
    assert!(held.is_lost());
    assert!(store.peek("k").is_some(), "that of the next holder");
    let accounting = a.accounting();
    assert!(accounting.balances() && accounting.held == 0, "{accounting:?}");
    sleep(secs(5)).await;
    assert!(!next.is_lost());
}

/// The queue and a purge: the record goes with its holder and all tickets.
#[tokio::test(start_paused = true)]
async fn c5_c16_a_purge_under_waiters_leaves_none_behind() {
    let (store, [a, b, c]) = quick_setup();
    let first = acquire(&a, "k").await;
    let waiters = [waiter(&b), waiter(&c)];
    queued(&store, 2).await;
    // The stream is opened when the lease is a second old.
    sleep(ms(1010)).await;
    let mut tokens = vec![first.fencing_token()];
    assert!(store.purge("k"));
    timeout(secs(1), first.lost()).await.expect("its lease is gone");
    let served = waiters.map(|waiter| {
        tokio::spawn(async move {
            let guard = waiter.await.unwrap().unwrap();
            let token = guard.fencing_token();
            assert!(guard.release().await.unwrap().is_released());
            token
        })
    });
    for served in served {
        tokens.push(timeout(secs(5), served).await.expect("each is served").unwrap());
    }
    tokens[1..].sort_unstable();
    assert!(tokens.is_sorted_by(|a, b| a < b), "C5: {tokens:?}");
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert!(store.waiting("k").is_empty() && store.peek("k").is_none());
}

/// Commits and overload: a commit is in the lane of releases, and never refused.
#[tokio::test(start_paused = true)]
async fn a_commit_goes_before_the_acquisitions_in_line() {
    let slow = |operation, _: &str, _| match operation {
        Operation::TryAcquire => Fate::After(ms(400)),
        _ => Fate::Serve,
    };
    let store = store(1, slow, |store| store.lanes = Some(Lanes::new(NonZeroUsize::new(1).unwrap())));
    let mut style = Style::new();
    style.store = store.memory.clone();
    let provider = store.provider_builder().build().unwrap();
    let lease = style.lock(&provider).await;
    let line = callers(&provider, 10);
    store.called(Operation::TryAcquire, 1).await;
    let since = Instant::now();
    assert!(lease.release_via(style.adds(true, [])).await.unwrap().is_released());
    assert!(since.elapsed() <= ms(410), "behind one acquisition: {:?}", since.elapsed());
    assert_eq!(style.value(), 1);
    for caller in line {
        drop(caller.await.unwrap().unwrap());
    }
}

/// Overload and linger, hand-off, modes: what needs no request is not refused.
#[tokio::test(start_paused = true)]
async fn an_overloaded_store_refuses_no_caller_that_needs_no_request() {
    let slow = |operation, key: &str, _| match operation {
        Operation::TryAcquire if !key.starts_with('k') => Fate::After(secs(1)),
        _ => Fate::Serve,
    };
    let store = store(1, slow, |store| store.lanes = Some(Lanes::new(NonZeroUsize::new(2).unwrap())));
    let builder = store.provider_builder().hand_off(HandOff::new().linger(secs(2)));
    let provider = builder.build().unwrap();
    let reader = provider.acquire("k read").shared().await.unwrap();
    let [parked, handed_on] = [acquire(&provider, "k parked").await, acquire(&provider, "k handed on").await];
    for n in 0..4 {
        drop(acquire(&provider, &format!("warm {n}")).await);
    }
    // One acquisition at once, a second each.
    let line = callers(&provider, 5);
    quiet().await;
    assert_eq!(provider.try_acquire("hasty").await.unwrap_err().kind(), ErrorKind::Overloaded);
    let since = Instant::now();
    drop(parked);
    let again = provider.acquire("k parked").timeout(ms(100)).await.unwrap();
    let joined = provider.acquire("k read").shared().timeout(ms(100)).await.unwrap();
    let waits = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.acquire("k handed on").timeout(ms(100)).into_future().await })
    };
    quiet().await;
    drop(handed_on);
    let next = waits.await.unwrap().unwrap();
    assert_eq!(since.elapsed(), ms(0));
    let asked = |(operation, key): &&(Operation, String)| *operation == Operation::TryAcquire && key.starts_with('k');
    assert_eq!(store.requests().iter().filter(asked).count(), 3, "{:?}", store.requests());
    drop((reader, again, joined, next));
    for caller in line {
        drop(caller.await.unwrap().unwrap());
    }
}
