//! Loss is prompt and final (C4).

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_api::{
    AcquireOptions, ErrorKind, FencingToken, LeaseOptions, LockGuard, LockKey, LockProvider, LockProviderExt, Loss,
    ReleaseOutcome, RenewalPolicy, Result,
};
use distlock_engine::LeaseProvider;
use distlock_engine::store::StoreEvent;
use distlock_memory::{MemoryStore, Operation};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::kit::{
    accounting_when, acquire, by_hand, holding, holding_at, in_task, ms, poll_once, poll_without_budget, process,
    provider, quick_setup, quiet, secs, setup, waiter, waiting,
};
use crate::store::{Fate, Gate, ScriptedStore, Stream};

#[tokio::test(start_paused = true)]
async fn c4_lost_comes_at_the_deadline_even_if_every_renewal_hangs() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    let hangs: Vec<_> = (0..100).map(|_| store.hang_next(Operation::Renew)).collect();
    let started = Instant::now();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(started.elapsed() <= ms(902), "{:?}", started.elapsed());
    for hang in hangs {
        hang.proceed();
    }
    sleep(ms(2000)).await;
    assert!(guard.is_lost(), "final");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(accounting_when(&provider, |accounting| accounting.held == 0).await.lost, 1);
}

#[tokio::test(start_paused = true)]
async fn c4_lost_resolves_at_the_deadline_while_every_renewal_hangs_and_stays_lost() {
    let gate = Gate::default();
    let hung = gate.clone();
    let store = ScriptedStore::new(move |op, _, _| match op {
        Operation::Renew => Fate::HoldReply(hung.clone()),
        Operation::Withdraw => Fate::Never,
        _ => Fate::Serve,
    });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(start.elapsed(), ms(900));
    // All the hung renewals were applied: at the store the lease lives on.
    gate.open();
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Expired));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    let accounting = provider.accounting();
    assert!(accounting.balances() && accounting.lost == 1 && accounting.held == 0, "{accounting:?}");
}

#[tokio::test(start_paused = true)]
async fn c4_the_keeper_notices_a_loss_that_no_caller_looks_at() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    let next = in_task(&provider, "k");
    sleep(ms(1500)).await;
    assert_eq!(provider.accounting().lost, 1);
    assert!(next.is_finished(), "the next caller of this process continued");
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c3_the_margin_of_a_lost_lease_is_for_its_guard() {
    let expires = LeaseOptions::new().ttl(secs(1)).safety_margin(ms(100)).renewal(RenewalPolicy::Never);
    let is_limited = LeaseOptions::new().ttl(secs(1)).safety_margin(ms(100)).max_hold(ms(300));
    for (options, end) in [(expires, ms(900)), (is_limited, ms(300))] {
        for keeps in [true, false] {
            let (_, [holder, other]) = setup();
            let start = Instant::now();
            let guard = holder.acquire("k").options(AcquireOptions::new().with_lease(options)).await.unwrap();
            let next = in_task(&other, "k");
            guard.lost().await;
            assert_eq!(start.elapsed(), end);
            let _kept = keeps.then_some(guard);
            drop(next.await.unwrap().unwrap());
            let margin = start.elapsed() - end;
            assert_eq!(margin >= ms(100), keeps, "after {margin:?}");
            assert!(margin < ms(150), "{margin:?}");
        }
    }
}

/// A hung job keeps its guard, and its process ends.
#[tokio::test(start_paused = true)]
async fn c24_a_lost_lease_in_its_margin_is_given_back_by_close() {
    let (store, [holder, other]) = setup();
    let lease = LeaseOptions::new().ttl(secs(30)).safety_margin(secs(1)).max_hold(ms(300));
    let guard = holder.acquire("k").options(AcquireOptions::new().with_lease(lease)).await.unwrap();
    assert_eq!(guard.lost().await, Loss::HeldTooLong);
    assert_eq!(store.calls(Operation::Withdraw), 0, "the guard has its margin");
    holder.close().await.unwrap();
    assert_eq!(store.calls(Operation::Withdraw), 1);
    assert!(other.try_acquire("k").await.unwrap().is_some());
    drop(guard);
}

#[test]
fn c24_close_gives_back_a_lost_lease_of_a_runtime_that_does_not_run() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let lease = LeaseOptions::new().ttl(secs(30)).safety_margin(secs(5)).max_hold(ms(50));
    for is_noticed in [true, false] {
        let (one, two, store) = (runtime(), runtime(), MemoryStore::new());
        let holder = process(&store);
        let options = AcquireOptions::new().with_lease(lease);
        let guard = one.block_on(holder.acquire("k").options(options).into_future()).unwrap();
        two.block_on(async {
            sleep(ms(60)).await;
            assert!(!is_noticed || guard.is_lost());
            holder.close().await.unwrap();
        });
        assert_eq!(store.calls(Operation::Withdraw), 1, "noticed before: {is_noticed}");
    }
}

#[tokio::test(start_paused = true)]
async fn c4_a_lost_shared_guard_that_is_gone_has_told_all_its_signals() {
    let (store, [provider]) = quick_setup();
    let reads = || provider.acquire("k").shared();
    let (first, second) = (reads().await.unwrap(), reads().await.unwrap());
    store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    let (early, late) = (first.lost(), first.lost());
    assert_eq!(early.await, Loss::Expired);
    drop(first);
    assert_eq!(timeout(secs(1), late).await.unwrap(), Loss::Expired);
    assert_eq!(store.calls(Operation::Withdraw), 0, "the other reader has its margin");
    drop(second);
    quiet().await;
    assert_eq!(store.calls(Operation::Withdraw), 1);
}

#[tokio::test(start_paused = true)]
async fn c25_a_guard_that_goes_while_its_provider_closes_sends_nothing() {
    let (store, [provider]) = setup();
    let guard = provider.acquire("k").hold_at_least(ms(500)).await.unwrap();
    let hangs = store.hang_next(Operation::Release);
    let closer = provider.clone();
    let closing = tokio::spawn(async move { closer.close().await });
    assert_eq!(guard.lost().await, Loss::Closed);
    drop(guard);
    quiet().await;
    assert_eq!(store.calls(Operation::Withdraw), 0, "the release keeps the minimum hold");
    hangs.proceed();
    closing.await.unwrap().unwrap();
    assert!(process(&store).try_acquire("k").await.unwrap().is_none(), "the minimum hold has not passed");
}

#[tokio::test(start_paused = true)]
async fn c4_a_pushed_loss_is_signalled_at_once_and_counted_once() {
    let (store, provider, guard) = holding("k").await;
    let start = Instant::now();
    let lost = guard.lost();
    let id = store.take_away("k");
    let key = LockKey::new("k").unwrap();
    for loss in [Loss::ForceReleased, Loss::Gone] {
        store.memory.push(StoreEvent::Gone { key: key.clone(), id: id.clone(), token: AFTER, loss });
    }
    assert_eq!(lost.await, Loss::ForceReleased);
    assert_eq!(start.elapsed(), Duration::ZERO);
    advance(secs(60)).await;
    quiet().await;
    assert_eq!((guard.loss(), provider.accounting().lost), (Some(Loss::ForceReleased), 1));
}

/// A sibling of the signal in its task, such as a channel that is never empty, uses up the budget
/// of every poll.
#[tokio::test(start_paused = true)]
async fn c4_a_loss_is_noticed_by_the_next_poll_whatever_the_task_has_polled_before() {
    for by_force in [true, false] {
        let (store, [provider]) = quick_setup();
        let guard = acquire(&provider, "k").await;
        let (mut lost, mut first_polled_after) = (guard.lost(), guard.lost());
        assert!(poll_without_budget(Pin::new(&mut lost)).await.is_pending());
        let expected = if by_force {
            assert!(store.force_release("k").is_some());
            // A renewal finds it.
            advance(ms(301)).await;
            Loss::ForceReleased
        } else {
            store.fail_always(Operation::Renew, ErrorKind::Unavailable);
            advance(ms(901)).await;
            Loss::Expired
        };
        quiet().await;
        assert_eq!(poll_without_budget(Pin::new(&mut lost)).await, Poll::Ready(expected));
        assert_eq!(poll_without_budget(Pin::new(&mut first_polled_after)).await, Poll::Ready(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn c4_a_signal_that_was_polled_without_budget_wakes_its_task() {
    let (store, [provider]) = quick_setup();
    let guard = acquire(&provider, "k").await;
    let mut lost = guard.lost();
    let start = Instant::now();
    let signalled = tokio::spawn(async move {
        assert!(poll_without_budget(Pin::new(&mut lost)).await.is_pending());
        lost.await
    });
    // It outlives several deadlines.
    sleep(ms(2500)).await;
    assert!(!signalled.is_finished());
    store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    assert_eq!(signalled.await.unwrap(), Loss::Expired);
    assert!(start.elapsed() <= ms(2500 + 902), "{:?}", start.elapsed());
}

/// A runtime that is busy runs its timers late.
#[tokio::test]
async fn c4_a_poll_of_the_signal_looks_at_the_clock() {
    let terms = LeaseOptions::new().ttl(secs(2)).safety_margin(ms(5)).renewal(RenewalPolicy::Never);
    let provider = MemoryStore::new().builder().lease(terms).build().unwrap();
    let guard = provider.acquire("k").await.unwrap();
    let mut lost = guard.lost();
    assert!(poll_once(Pin::new(&mut lost)).is_pending());
    std::thread::sleep(ms(2100));
    assert_eq!(poll_once(Pin::new(&mut lost)), Poll::Ready(Loss::Expired));
    assert_eq!(provider.accounting().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn c14_a_store_that_panics_in_a_subscription_gets_another_one() {
    let store = ScriptedStore::new(|op, _, nth| match (op, nth) {
        (Operation::Watch, 1) => Fate::Panic,
        _ => Fate::Serve,
    });
    let (store, _provider, guard) = holding_at(store, "k").await;
    sleep(secs(3)).await;
    assert_eq!(store.count(Operation::Watch), 2, "the listener continues after a panic of the store");
    let id = store.take_away("k");
    let key = LockKey::new("k").unwrap();
    store.memory.push(StoreEvent::Gone { key, id, token: AFTER, loss: Loss::Gone });
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone));
}

#[tokio::test(start_paused = true)]
async fn c14_a_stream_of_events_that_panics_is_opened_again() {
    let mut store = ScriptedStore::honest();
    store.stream = Stream::Panics;
    let (store, _provider, guard) = holding_at(store, "k").await;
    sleep(secs(3)).await;
    assert!(store.count(Operation::Watch) > 1, "the listener continues after a panic of the stream");
    assert_eq!(guard.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn c4_after_a_gap_holders_renew_at_once() {
    let (store, _provider, guard) = holding("k").await;
    store.take_away("k");
    store.memory.push(StoreEvent::Gap);
    quiet().await;
    advance(secs(1)).await;
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone), "R20: after a gap holders renew, too");
}

#[tokio::test(start_paused = true)]
async fn c4_a_holder_renews_at_once_when_an_event_reports_its_key_free() {
    let (store, provider, guard) = holding("k").await;
    let kept = provider.acquire("kept").await.unwrap();
    sleep(secs(2)).await;
    store.take_away("k");
    for key in ["k", "kept"] {
        store.memory.push(StoreEvent::Freed { key: LockKey::new(key).unwrap() });
    }
    quiet().await;
    sleep(ms(300)).await;
    assert_eq!((guard.loss(), kept.loss()), (Some(Loss::Gone), None), "an event is a hint; the renewal decides");
}

#[tokio::test(start_paused = true)]
async fn c4_an_event_of_the_release_before_costs_a_new_lease_no_renewal() {
    let (store, provider, _listens) = holding("other").await;
    let guard = provider.acquire("k").await.unwrap();
    let renewals = store.count(Operation::Renew);
    store.memory.push(StoreEvent::Freed { key: LockKey::new("k").unwrap() });
    quiet().await;
    sleep(ms(500)).await;
    assert!(guard.release().await.unwrap().is_released());
    sleep(secs(3)).await;
    assert_eq!(store.count(Operation::Renew), renewals);
}

#[tokio::test(start_paused = true)]
async fn c13_a_loss_of_an_earlier_lease_of_the_same_claim_does_not_end_the_present_one() {
    let (store, _provider, guard) = holding("k").await;
    let (key, id) = (LockKey::new("k").unwrap(), store.memory.peek("k").unwrap().id.unwrap());
    // A take-over of the claim's own, expired lease reports the token of the present one.
    let gone = |token| StoreEvent::Gone { key: key.clone(), id: id.clone(), token, loss: Loss::Gone };
    store.memory.push(gone(guard.fencing_token()));
    quiet().await;
    assert_eq!(guard.loss(), None);
    store.memory.push(gone(FencingToken::new(guard.fencing_token().get() + 1)));
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone));
}

/// A token greater than all that these tests have granted.
const AFTER: FencingToken = FencingToken::new(1 << 40);

/// A provider with an open stream has been granted `k`, and the answer is held back by the gate.
struct Unanswered {
    store: Arc<ScriptedStore>,
    provider: LeaseProvider,
    gate: Gate,
    acquiring: JoinHandle<Result<LockGuard>>,
    _opens_the_stream: LockGuard,
}

impl Unanswered {
    async fn grant() -> Self {
        let gate = Gate::default();
        let late = gate.clone();
        let store = ScriptedStore::new(move |op, key, nth| match (op, key, nth) {
            (Operation::TryAcquire, "k", 1) => Fate::HoldReply(late.clone()),
            _ => Fate::Serve,
        });
        let (store, provider, _opens_the_stream) = holding_at(store, "other").await;
        let acquiring = waiter(&provider);
        quiet().await;
        Self { store, provider, gate, acquiring, _opens_the_stream }
    }

    /// Lets the answer through.
    async fn answered(self) -> LockGuard {
        quiet().await;
        self.gate.open();
        self.acquiring.await.unwrap().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn c4_a_loss_pushed_before_the_grants_answer_is_not_forgotten() {
    let unanswered = Unanswered::grant().await;
    let (store, provider) = (unanswered.store.clone(), unanswered.provider.clone());
    // Granted, and force-released before the holder knows of its grant.
    let id = store.take_away("k");
    store.memory.push(StoreEvent::Gone {
        key: LockKey::new("k").unwrap(),
        id,
        token: AFTER,
        loss: Loss::ForceReleased,
    });
    // A lease that was lost before its answer arrived is none: the caller gets another grant.
    let guard = unanswered.answered().await;
    quiet().await;
    assert_eq!((guard.loss(), store.count(Operation::TryAcquire)), (None, 3));
    assert_eq!(provider.accounting().acquired, 2, "no caller ever had the lost one");
}

#[tokio::test(start_paused = true)]
async fn c4_a_grant_that_was_in_transit_during_a_gap_is_renewed_at_once() {
    let unanswered = Unanswered::grant().await;
    let (store, _provider) = (unanswered.store.clone(), unanswered.provider.clone());
    // Granted, and taken away while the stream delivered nothing.
    store.take_away("k");
    store.memory.push(StoreEvent::Gap);
    let guard = unanswered.answered().await;
    advance(ms(100)).await;
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone), "R20: not a cadence later");
}

#[tokio::test(start_paused = true)]
async fn c4_a_lease_lost_in_transit_is_no_loss_of_the_guard_that_handed_it_on() {
    let (store, [a]) = setup();
    let first = a.acquire("k").await.unwrap();
    sleep(ms(10)).await;
    let mut past = first.lost();
    let mut leaves = by_hand(&a);
    assert!(poll_once(leaves.as_mut()).is_pending());
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    store.force_release("k").unwrap();
    sleep(ms(10)).await;
    drop(leaves);
    assert!(timeout(secs(5), &mut past).await.is_err(), "it was released");
    assert!(a.accounting().balances());
    assert!(a.try_acquire("k").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn c4_a_loss_hits_the_guard_in_use_and_no_earlier_one() {
    let (store, [provider]) = quick_setup();
    let first = provider.acquire("k").await.unwrap();
    let mut past = first.lost();
    let (second, third) = (waiter(&provider), waiter(&provider));
    waiting(&provider, 2).await;
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert!(store.force_release("k").is_some());
    assert_eq!(second.lost().await, Loss::ForceReleased);
    assert!(timeout(ms(5000), &mut past).await.is_err(), "what was handed on is not lost");
    let third = third.await.unwrap().unwrap();
    assert!(third.fencing_token() > second.fencing_token(), "a fresh lease");
    assert_eq!(second.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert!(!third.is_lost() && provider.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_the_lock_is_lost() {
    let (store, [provider]) = quick_setup();
    assert_eq!(provider.acquire("k").run(|_| async { 7 }).await.unwrap(), 7);
    let error = provider
        .acquire("k")
        .run(|_| async {
            store.force_release("k");
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.key().unwrap().as_str(), "k");
}

/// A runtime that stalls runs no timer, and the store frees the lease meanwhile.
#[tokio::test]
async fn c10_a_lease_that_expired_unnoticed_is_not_reported_as_busy() {
    let terms = LeaseOptions::new().ttl(ms(60)).safety_margin(ms(5)).renewal(RenewalPolicy::Never);
    let provider = MemoryStore::new().builder().lease(terms).build().unwrap();
    let expired = provider.acquire("k").await.unwrap();
    std::thread::sleep(ms(100));
    assert!(provider.try_acquire("k").await.unwrap().is_some(), "the store has freed it");
    assert!(expired.is_lost());
}
