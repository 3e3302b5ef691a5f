//! The queue of a `MemoryStore` through its store interface: grants by release, pushes, tickets,
//! faults.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, Holder, LockAdmin, LockEvent, Loss, Mode, ReleaseOutcome};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BusyReply, Claim, EventStore, EventStream, ProviderId, QueueStanding, QueueStore,
    Release, Renewal, Reply, Standing, StoreEvent, Ticket, Watch,
};
use distlock_memory::{MemoryStore, Operation};
use futures_util::{FutureExt, StreamExt};

use crate::kit::store::{claim, claim_of};

const TTL: Duration = Duration::from_secs(30);
const CLAIM_TTL: Duration = Duration::from_secs(1);
const TICKET: Ticket = Ticket::new(Duration::from_secs(15), CLAIM_TTL, 100);

fn wants(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), TTL).with_ticket(TICKET)
}

async fn hold(store: &MemoryStore, claim: &Claim) {
    assert!(matches!(store.try_acquire(&wants(claim)).await.unwrap(), Reply::Granted(_)));
}

async fn queue_up(store: &MemoryStore, claim: &Claim) -> BusyReply {
    match store.try_acquire(&wants(claim)).await.unwrap() {
        Reply::Busy(busy) => busy,
        granted => panic!("expected to wait, got {granted:?}"),
    }
}

async fn release(store: &MemoryStore, claim: &Claim) -> ReleaseOutcome {
    store.release(&Release::new(claim.clone())).await.unwrap()
}

/// Returns the events that can be received now.
fn received(events: &mut EventStream) -> Vec<StoreEvent> {
    std::iter::from_fn(|| events.next().now_or_never().flatten()).map(Result::unwrap).collect()
}

#[tokio::test]
async fn c15_a_hand_over_is_one_call_and_pushed_to_the_waiter() {
    let store = MemoryStore::with_manual_clock();
    let (mine, other) = (ProviderId::random(), ProviderId::random());
    let [mut to_me, mut to_other] =
        [mine, other].map(|id| EventStore::subscribe(&store, &Watch::provider(id)).now_or_never().unwrap().unwrap());
    let mut lock_events = LockAdmin::watch(&store).await.unwrap();
    let (holder, first, second) = (claim_of(other, "k"), claim_of(mine, "k"), claim_of(other, "k"));
    hold(&store, &holder).await;
    store.advance(Duration::from_secs(3));
    let told_first = store.try_acquire(&wants(&first).with_holder(Holder::new().with_owner("me"))).await.unwrap();
    let Reply::Busy(anchor) = told_first else { panic!("held") };
    assert_eq!(queue_up(&store, &second).await.standing, QueueStanding::Queued { ahead: 1 });
    assert_eq!(store.waiting("k"), [first.id().clone(), second.id().clone()]);
    store.advance(Duration::from_secs(2));
    let calls = store.calls(Operation::TryAcquire);
    assert_eq!(release(&store, &holder).await, ReleaseOutcome::Released);

    let granted = received(&mut to_me);
    let [StoreEvent::Granted { key, id, grant, expires_at }] = &granted[..] else { panic!("got {granted:?}") };
    assert_eq!((key, id), (first.key(), first.id()));
    assert!(grant.token > anchor.token.unwrap(), "R18: a grant after the answer");
    assert_eq!(expires_at.saturating_since(anchor.now.unwrap()), Duration::from_secs(2) + CLAIM_TTL);
    assert!(received(&mut to_other).is_empty(), "neither another's grant nor a free key");
    assert_eq!(store.peek("k").unwrap().id.as_ref(), Some(first.id()));
    assert_eq!(store.calls(Operation::TryAcquire), calls, "no attempt was needed");

    let renewal = Renewal::lease(first.clone(), grant.token, TTL);
    assert_eq!(store.renew(&renewal).await.unwrap(), Standing::Held { remaining: TTL });
    // Once more: the key is not free, and nothing is granted again.
    assert_eq!(release(&store, &holder).await, ReleaseOutcome::Released);
    assert!(received(&mut to_me).is_empty());

    let lock_events: Vec<_> =
        std::iter::from_fn(|| lock_events.next().now_or_never().flatten()).map(Result::unwrap).collect();
    let (key, owner) = (first.key().clone(), Some("me".to_owned()));
    let released = LockEvent::Released { key: key.clone(), id: holder.id().clone() };
    let granted = LockEvent::Granted { key, id: first.id().clone(), token: grant.token, owner, mode: Mode::Exclusive };
    assert_eq!(lock_events[1..], [released, granted]);
}

#[tokio::test]
async fn a_free_key_is_pushed_to_all_only_if_no_waiter_was_granted_it() {
    let store = MemoryStore::new();
    let mut events = EventStore::subscribe(&store, &Watch::provider(ProviderId::random())).await.unwrap();
    let (holder, waiter) = (claim("k"), claim("k"));
    let freed = StoreEvent::Freed { key: holder.key().clone() };
    hold(&store, &holder).await;
    let _ = queue_up(&store, &waiter).await;
    let release = Release::new(holder.clone()).with_hold_at_least(TTL);
    assert_eq!(store.release(&release).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(received(&mut events), std::slice::from_ref(&freed), "after a minimum hold");
    assert!(store.force_release("k").is_some());
    assert_eq!(received(&mut events), std::slice::from_ref(&freed), "after force: the waiters make attempts");
    assert_eq!(store.waiting("k"), [waiter.id().clone()]);
    assert_eq!(queue_up(&store, &claim("k")).await.standing, QueueStanding::Queued { ahead: 1 }, "no claim overtakes");
    hold(&store, &waiter).await;
    assert!(!store.drop_tickets("k").is_empty());
    for _ in 0..2 {
        assert_eq!(self::release(&store, &waiter).await, ReleaseOutcome::Released);
    }
    assert_eq!(received(&mut events), [freed], "and once");
}

#[tokio::test]
async fn c11_a_waiter_that_leaves_with_a_grant_in_transit_hands_it_over() {
    let store = MemoryStore::new();
    let (holder, first, second) = (claim("k"), claim("k"), claim("k"));
    hold(&store, &holder).await;
    let _ = (queue_up(&store, &first).await, queue_up(&store, &second).await);
    assert_eq!(release(&store, &holder).await, ReleaseOutcome::Released);
    store.withdraw(&first, TTL).await.unwrap();
    assert_eq!(store.peek("k").unwrap().id.as_ref(), Some(second.id()));
    store.withdraw(&second, TTL).await.unwrap();
    assert!(store.peek("k").is_none() && store.waiting("k").is_empty());
}

#[tokio::test]
async fn c11_a_straggler_leaves_no_ticket() {
    let store = MemoryStore::new();
    let waiter = claim("k");
    hold(&store, &claim("k")).await;
    let request = wants(&waiter);
    let handle = store.hang_next(Operation::TryAcquire);
    let mut straggler = pin!(store.try_acquire(&request));
    assert!(straggler.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    store.withdraw(&waiter, TTL).await.unwrap();
    handle.proceed();
    assert!(straggler.await.is_err() && store.waiting("k").is_empty());
}

#[tokio::test]
async fn waiters_can_be_queried_and_the_query_can_fail() {
    let store = MemoryStore::with_manual_clock();
    let (holder, waiter) = (claim("k"), claim("k"));
    assert_eq!(store.waiters(&holder, TTL).await.unwrap(), 0);
    hold(&store, &holder).await;
    let _ = (queue_up(&store, &waiter).await, queue_up(&store, &claim("k")).await);
    let _ = store.try_acquire(&Attempt::new(claim("k"), TTL)).await.unwrap();
    assert_eq!(store.waiters(&holder, TTL).await.unwrap(), 2, "a claim that only tries does not wait");
    assert_eq!(store.waiters(&claim("else"), TTL).await.unwrap(), 0);
    store.advance(TICKET.ttl / 2);
    let _ = queue_up(&store, &waiter).await;
    store.advance(TICKET.ttl / 2);
    assert_eq!(store.waiters(&holder, TTL).await.unwrap(), 1, "the live ones");
    store.fail_next(Operation::Waiters.of("k"), ErrorKind::Unavailable);
    assert_eq!(store.waiters(&holder, TTL).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!((store.calls(Operation::Waiters), store.calls(Operation::Waiters.of("k"))), (5, 4));
}

#[tokio::test]
async fn a_batch_renews_leases_and_refreshes_tickets() {
    let store = MemoryStore::with_manual_clock();
    let [mine, elsewhere, waiter, also] = ["mine", "k", "k", "k"].map(claim);
    hold(&store, &mine).await;
    hold(&store, &elsewhere).await;
    let first = queue_up(&store, &waiter).await;
    let _ = queue_up(&store, &also).await;
    store.advance(Duration::from_secs(10));
    let token = store.peek("mine").unwrap().token;
    let renewals = [
        Renewal::lease(mine.clone(), token, TTL),
        Renewal::ticket(waiter.clone(), TICKET),
        Renewal::ticket(claim("k"), TICKET),
    ];
    let answers: Vec<_> = store.renew_many(&renewals).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers[0], Standing::Held { remaining: TTL });
    let Standing::Waiting(busy) = &answers[1] else { panic!("it waits") };
    assert_eq!((busy.standing, busy.token), (QueueStanding::Queued { ahead: 0 }, first.token));
    assert_eq!(busy.holder_remaining, Some(TTL - Duration::from_secs(10)));
    assert_eq!(busy.now.unwrap().saturating_since(first.now.unwrap()), Duration::from_secs(10));
    assert_eq!(answers[2], Standing::Gone(Loss::Gone), "R15: never added");

    store.fail_next(Operation::Renew.of("k"), ErrorKind::Unavailable);
    let answers = store.renew_many(&renewals[..2]).await;
    assert!(answers[0].is_ok() && answers[1].is_err());
    store.advance(Duration::from_secs(5));
    assert_eq!(store.waiting("k"), [waiter.id().clone()], "the other one was not refreshed");
    store.drop_reply_next(Operation::Renew);
    let lost = store.renew(&renewals[1]).await.unwrap_err();
    assert!(lost.is_outcome_unknown());
    store.advance(TICKET.ttl - Duration::from_millis(1));
    assert_eq!(store.waiting("k").len(), 1, "it was applied");
}

#[tokio::test]
async fn tests_can_end_leases_and_tickets() {
    let store = MemoryStore::with_manual_clock();
    let waiter = claim("k");
    assert!(store.waiting("k").is_empty() && store.drop_tickets("k").is_empty());
    hold(&store, &claim("k")).await;
    let _ = queue_up(&store, &waiter).await;
    assert!(store.expire("k"));
    assert_eq!(store.waiting("k"), [waiter.id().clone()]);
    assert_eq!(store.drop_tickets("k"), [waiter.id().clone()]);
    assert_eq!(store.renew(&Renewal::ticket(waiter.clone(), TICKET)).await.unwrap(), Standing::Gone(Loss::Gone));
    hold(&store, &claim("k")).await;
    let _ = queue_up(&store, &waiter).await;
    assert!(store.purge("k") && store.waiting("k").is_empty());
    hold(&store, &claim("k")).await;
}

#[tokio::test]
async fn a_test_can_push_any_event() {
    let store = MemoryStore::new();
    let (mine, other) = (claim("k"), claim("k"));
    let provider = ProviderId::random();
    let own = claim_of(provider, "k");
    let mut events = EventStore::subscribe(&store, &Watch::provider(provider)).await.unwrap();
    let token = FencingToken::new(7);
    let gone =
        |claim: &Claim| StoreEvent::Gone { key: claim.key().clone(), id: claim.id().clone(), token, loss: Loss::Gone };
    for event in [StoreEvent::Gap, gone(&mine), gone(&own), gone(&other), gone(&own)] {
        store.push(event);
    }
    assert_eq!(received(&mut events), [StoreEvent::Gap, gone(&own), gone(&own)]);
    store.lose_events(true);
    store.push(StoreEvent::Gap);
    assert!(received(&mut events).is_empty());
}
