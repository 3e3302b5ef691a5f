//! `MemoryStore` through its store interface: clock, faults, order of calls, push, counters.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockAdmin, LockKey, Loss, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, Claim, EventStore, Grant, ProviderId, QueueStanding, Release, Renewal, Reply, Standing,
    StoreCapabilities, StoreEvent, Ticket, Watch,
};
use distlock_memory::{MemoryStore, Operation};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use crate::kit::store::{claim, claim_of};

const TTL: Duration = Duration::from_secs(10);

fn attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), TTL)
}

async fn acquire(store: &MemoryStore, claim: &Claim) -> Grant {
    match store.try_acquire(&attempt(claim)).await.unwrap() {
        Reply::Granted(grant) => grant,
        reply => panic!("expected a grant, got {reply:?}"),
    }
}

fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Begins an attempt that hangs.
fn pending_attempt<'a>(store: &'a MemoryStore, request: &'a Attempt) -> BoxFuture<'a, Result<Reply>> {
    let mut call = store.try_acquire(request);
    assert!(poll_once(call.as_mut()).is_pending());
    call
}

#[tokio::test(start_paused = true)]
async fn leases_expire_by_tokios_clock() {
    let store = MemoryStore::new();
    let (first, second) = (claim("k"), claim("k"));
    let grant = acquire(&store, &first).await;
    tokio::time::advance(TTL - Duration::from_millis(1)).await;
    assert!(matches!(store.clone().try_acquire(&attempt(&second)).await.unwrap(), Reply::Busy(_)));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(acquire(&store, &second).await.token > grant.token);
}

#[tokio::test]
async fn a_manual_clock_stands_still() {
    let store = MemoryStore::with_manual_clock();
    let holder = claim("k");
    let grant = acquire(&store, &holder).await;
    assert_eq!((store.now(), grant.remaining), (Duration::ZERO, TTL));
    store.advance(TTL);
    assert_eq!(store.now(), TTL);
    let renewal = Renewal::lease(holder, grant.token, TTL);
    assert_eq!(store.renew(&renewal).await.unwrap(), Standing::Gone(Loss::Gone));
}

#[tokio::test]
async fn c5_a_purged_record_does_not_reset_tokens() {
    let store = MemoryStore::new();
    for key in ["a", "a", "b"] {
        let claim = claim(key);
        let _ = acquire(&store, &claim).await;
        let _ = store.release(&Release::new(claim)).await.unwrap();
    }
    assert!(store.purge("a") && !store.purge("a"));
    assert_eq!(acquire(&store, &claim("a")).await.token, FencingToken::new(3));
    assert_eq!(acquire(&store, &claim("b")).await.token, FencingToken::new(2), "an existing record counts for itself");
}

#[tokio::test]
async fn a_failed_call_is_not_applied_and_a_lost_reply_is() {
    let store = MemoryStore::new();
    let holder = claim("k");
    store.fail_next(Operation::TryAcquire, ErrorKind::Unavailable);
    store.drop_reply_next(Operation::TryAcquire);
    let failed = store.try_acquire(&attempt(&holder)).await.unwrap_err();
    assert!(failed.is_retryable() && store.peek("k").is_none());
    let lost = store.try_acquire(&attempt(&holder)).await.unwrap_err();
    assert!(lost.is_outcome_unknown());
    assert_eq!(store.peek("k").unwrap().id.as_ref(), Some(holder.id()));
    assert_eq!(acquire(&store, &holder).await.token, FencingToken::new(1), "C10: the same grant");
    assert_eq!(store.calls(Operation::TryAcquire), 3);
}

#[tokio::test]
async fn an_outage_lasts_until_it_is_cleared() {
    let store = MemoryStore::new();
    store.fail_always(Operation::Release, ErrorKind::Unavailable);
    let release = Release::new(claim("k"));
    for _ in 0..3 {
        assert_eq!(store.release(&release).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    store.clear_faults();
    assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::AlreadyLost);
}

#[tokio::test]
async fn a_fault_may_concern_one_key_alone() {
    let store = MemoryStore::new();
    let (a, b) = (claim("a"), claim("b"));
    let renewals: Vec<_> = [&a, &b].map(|claim| Renewal::lease(claim.clone(), FencingToken::new(1), TTL)).into();
    let (_, _) = (acquire(&store, &a).await, acquire(&store, &b).await);
    store.fail_next(Operation::Renew.of("b"), ErrorKind::PermissionDenied);
    let answers = store.renew_many(&renewals).await;
    assert_eq!(answers[0].as_ref().unwrap(), &Standing::Held { remaining: TTL });
    assert_eq!(answers[1].as_ref().unwrap_err().kind(), ErrorKind::PermissionDenied);
    store.drop_reply_next(Operation::Renew);
    assert!(store.renew_many(&renewals).await.iter().all(|answer| answer.as_ref().unwrap_err().is_outcome_unknown()));
    assert_eq!((store.calls(Operation::Renew), store.calls(Operation::Renew.of("a"))), (2, 2));
}

#[tokio::test]
async fn a_hanging_call_continues_fails_or_is_dropped() {
    let store = MemoryStore::new();
    let holder = claim("k");

    let mut handle = store.hang_next(Operation::TryAcquire);
    let task = tokio::spawn({
        let (store, attempt) = (store.clone(), attempt(&holder));
        async move { store.try_acquire(&attempt).await }
    });
    store.called(Operation::TryAcquire, 1).await;
    handle.reached().await;
    handle.reached().await;
    assert!(store.peek("k").is_none() && !task.is_finished());
    handle.proceed();
    assert!(matches!(task.await.unwrap().unwrap(), Reply::Granted(_)));

    drop(store.hang_next(Operation::Release.of("k")));
    assert!(store.release(&Release::new(holder.clone())).await.unwrap_err().is_retryable());

    let handle = store.hang_next(Operation::Release);
    {
        let release = Release::new(holder.clone());
        let mut given_up = pin!(store.release(&release));
        assert!(poll_once(given_up.as_mut()).is_pending());
    }
    handle.proceed();
    assert!(store.peek("k").is_some(), "a dropped call takes no effect later");
}

#[tokio::test]
async fn a_late_answer_belongs_to_a_call_that_was_applied() {
    let store = MemoryStore::new();
    let holder = claim("k");
    let request = attempt(&holder);
    let handle = store.hang_reply_next(Operation::TryAcquire);
    let call = pending_attempt(&store, &request);
    assert!(store.peek("k").is_some());
    handle.proceed();
    assert!(matches!(call.await.unwrap(), Reply::Granted(_)));
    drop(store.hang_reply_next(Operation::Release));
    assert!(store.release(&Release::new(holder)).await.unwrap_err().is_outcome_unknown());
    assert!(store.peek("k").is_none());
}

#[tokio::test]
async fn ordered_claims_refuse_a_straggler() {
    let store = MemoryStore::new();
    let holder = claim("k");
    let request = attempt(&holder);
    let handle = store.hang_next(Operation::TryAcquire);
    let straggler = pending_attempt(&store, &request);
    store.withdraw(&holder, TTL).await.unwrap();
    handle.proceed();
    let refused = straggler.await.unwrap_err();
    assert!(!refused.is_outcome_unknown() && store.peek("k").is_none());
    let _ = acquire(&store, &holder).await;
}

#[tokio::test]
async fn watchers_get_free_keys_and_their_own_losses() {
    let store = MemoryStore::new();
    let (mine, other) = (ProviderId::random(), ProviderId::random());
    let mut events = EventStore::subscribe(&store, &Watch::provider(mine)).await.unwrap();
    let (victim, stranger) = (claim_of(mine, "a"), claim_of(other, "b"));
    let _ = (acquire(&store, &victim).await, acquire(&store, &stranger).await);
    let info = LockAdmin::force_release(&store, stranger.key(), "test").await.unwrap().unwrap();
    assert_eq!(info.id.as_ref(), Some(stranger.id()));
    assert!(store.force_release("a").is_some() && store.force_release("a").is_none());
    let mut next = async || events.next().await.unwrap().unwrap();
    assert_eq!(next().await, StoreEvent::Freed { key: stranger.key().clone() });
    let (key, id) = (victim.key().clone(), victim.id().clone());
    assert_eq!(
        next().await,
        StoreEvent::Gone { key: key.clone(), id, token: FencingToken::new(2), loss: Loss::ForceReleased }
    );
    assert_eq!(next().await, StoreEvent::Freed { key });
}

#[tokio::test]
async fn events_can_be_missed_lost_and_cut() {
    let store = MemoryStore::new();
    let watch = Watch::provider(ProviderId::random());
    let mut events = EventStore::subscribe(&store, &watch).await.unwrap();
    let free = async |key: &str| {
        let claim = claim(key);
        let _ = acquire(&store, &claim).await;
        let _ = store.release(&Release::new(claim)).await.unwrap();
    };
    for _ in 0..1000 {
        free("many").await;
    }
    assert_eq!(events.next().await.unwrap().unwrap(), StoreEvent::Gap);
    store.cut_watchers();
    while let Some(event) = events.next().await {
        assert!(matches!(event, Ok(StoreEvent::Freed { .. })));
    }
    let mut events = EventStore::subscribe(&store, &watch).await.unwrap();
    store.lose_events(true);
    free("lost").await;
    store.lose_events(false);
    free("received").await;
    let received = StoreEvent::Freed { key: LockKey::new("received").unwrap() };
    assert_eq!(events.next().await.unwrap().unwrap(), received);
}

#[tokio::test(start_paused = true)]
async fn a_stream_can_be_refused_and_can_break() {
    let store = MemoryStore::new();
    let watch = Watch::provider(ProviderId::random());
    store.fail_next(Operation::Watch, ErrorKind::PermissionDenied);
    store.fail_next(Operation::WatchLocks, ErrorKind::Unavailable);
    let refused = EventStore::subscribe(&store, &watch).await.err().unwrap();
    assert_eq!((refused.kind(), store.calls(Operation::Watch)), (ErrorKind::PermissionDenied, 1));
    assert_eq!(LockAdmin::watch(&store).await.err().unwrap().kind(), ErrorKind::Unavailable);

    let mut events = EventStore::subscribe(&store, &watch).await.unwrap();
    let mut lock_events = LockAdmin::watch(&store).await.unwrap();
    store.push(StoreEvent::Gap);
    store.break_watchers(ErrorKind::Unavailable);
    store.push(StoreEvent::Gap);
    assert_eq!(events.next().await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable, "nothing else is received");
    let mut lock_events = || lock_events.next().now_or_never().unwrap();
    assert_eq!(lock_events().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(events.next().await.is_none() && lock_events().is_none());

    // A stream with a reader, whose events take long.
    let mut events = EventStore::subscribe(&store, &watch).await.unwrap();
    store.delay_events(Duration::from_secs(3600));
    store.push(StoreEvent::Gap);
    let mut next = pin!(events.next());
    assert!(poll_once(next.as_mut()).is_pending());
    store.cut_watchers();
    let Poll::Ready(None) = poll_once(next.as_mut()) else { panic!("it ends at once, without an error") };
    drop(EventStore::subscribe(&store, &watch).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn events_can_be_delayed() {
    let store = MemoryStore::new();
    let provider = ProviderId::random();
    let mut events = EventStore::subscribe(&store, &Watch::provider(provider)).await.unwrap();
    let freed = |key: &str| StoreEvent::Freed { key: LockKey::new(key).unwrap() };
    let started = tokio::time::Instant::now();
    store.push(freed("at once"));
    store.delay_events(Duration::from_secs(3));
    store.push(freed("late"));
    tokio::time::advance(Duration::from_secs(1)).await;
    store.push(freed("later"));
    store.delay_events(Duration::ZERO);
    store.push(freed("in order"));
    let mut received = Vec::new();
    for _ in 0..4 {
        received.push((events.next().await.unwrap().unwrap(), started.elapsed().as_secs()));
    }
    assert_eq!(received, [(freed("at once"), 1), (freed("late"), 3), (freed("later"), 4), (freed("in order"), 4)]);
}

#[tokio::test]
async fn a_handle_can_declare_less() {
    let store = MemoryStore::with_manual_clock();
    let poor = store.clone().with_capabilities(StoreCapabilities::default()).with_queue(false).with_events(false);
    let (all, extras) = (store.capabilities(), store.extras());
    assert!(all.token_blocks && all.minimum_hold && all.ordered_claims);
    assert!(extras.queue.is_some() && extras.events.is_some());
    assert!(poor.extras().queue.is_none() && poor.extras().events.is_none());
    let (old, waiter) = (claim("k"), claim("k"));

    let ticket = Ticket::new(TTL, TTL, 10);
    let wants = |claim: &Claim| attempt(claim).with_ticket(ticket).with_tokens(NonZeroU32::new(7).unwrap());
    let Reply::Granted(grant) = poor.try_acquire(&wants(&old)).await.unwrap() else { panic!("free") };
    assert_eq!(grant.tokens, NonZeroU32::MIN);
    let Reply::Busy(busy) = poor.try_acquire(&wants(&waiter)).await.unwrap() else { panic!("held") };
    assert_eq!((busy.standing, store.waiting("k")), (QueueStanding::NotQueued, vec![]));
    let refreshed = poor.renew(&Renewal::ticket(waiter.clone(), ticket)).await.unwrap();
    assert_eq!(refreshed, Standing::Gone(Loss::Gone));

    // Together with processes that have more: it neither hands over nor waits for its turn.
    let _ = store.try_acquire(&wants(&waiter)).await.unwrap();
    let release = Release::new(old).with_hold_at_least(TTL);
    assert_eq!(poor.release(&release).await.unwrap(), ReleaseOutcome::Released);
    assert!(store.peek("k").is_none(), "neither granted nor closed");
    let Reply::Busy(_) = store.try_acquire(&attempt(&claim("k"))).await.unwrap() else { panic!("it is not its turn") };
    let rude = claim("k");
    assert_eq!(acquire(&poor, &rude).await.tokens, NonZeroU32::MIN);
    assert_eq!(store.waiting("k"), [waiter.id().clone()]);
    poor.withdraw(&rude, TTL).await.unwrap();
    let Reply::Granted(grant) = store.try_acquire(&wants(&waiter)).await.unwrap() else { panic!("its turn") };
    assert_eq!(grant.tokens.get(), 7);
}

#[tokio::test]
async fn without_ordered_claims_a_straggler_takes_effect() {
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    capabilities.ordered_claims = false;
    let store = store.with_capabilities(capabilities);
    let holder = claim("k");
    let request = attempt(&holder);
    let handle = store.hang_next(Operation::TryAcquire);
    let straggler = pending_attempt(&store, &request);
    store.withdraw(&holder, TTL).await.unwrap();
    handle.proceed();
    assert!(matches!(straggler.await.unwrap(), Reply::Granted(_)));
    assert!(store.peek("k").is_some());
}

#[tokio::test]
async fn a_purged_key_leaves_no_counts() {
    let store = MemoryStore::new();
    acquire(&store, &claim("a")).await;
    assert_eq!(store.calls(Operation::TryAcquire.of("a")), 1);
    store.purge("a");
    assert_eq!((store.calls(Operation::TryAcquire.of("a")), store.calls(Operation::TryAcquire)), (0, 1));
}
