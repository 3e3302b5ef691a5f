//! Leases that carry a resource: a register beside the lease, read by the acquisition, changed and
//! released by a commit.

pub(crate) mod resource;

use std::future::Future;
use std::sync::Arc;

use distlock_api::{
    AcquireOptions, ErrorKind, LeaseOptions, LockError, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome,
    RenewalPolicy, Result, Wait, async_trait,
};
use distlock_engine::LeaseProvider;
use distlock_engine::store::{AcquireOp, Attempt, Reply, Written};
use distlock_memory::{MemoryStore, Operation};
use futures_util::FutureExt;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::kit::{guard, ms, queued, waiter, waiting};
use crate::store::{Fate, Gate};

use self::resource::{Style, rejected, unavailable, unknown};

fn totals(provider: &LeaseProvider) -> (u64, u64, u64, u64) {
    let accounting = provider.accounting();
    assert!(accounting.balances(), "{accounting:?}");
    (accounting.released, accounting.lost, accounting.abandoned, accounting.held)
}

/// Waits until the lock is free.
async fn is_free(store: &MemoryStore) {
    while store.peek("k").is_some() {
        sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_brings_what_its_own_answer_brought() {
    let (style, provider) = Style::with_provider();
    for n in 0..3 {
        let lease = style.lock(&provider).await;
        assert_eq!((style.brought(&lease), style.attempts()), (n, u32::try_from(n).unwrap() + 1));
        assert_eq!(lease.key().as_str(), "k");
        assert!(lease.loss().is_none() && lease.valid_until() > Instant::now());
        assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(totals(&provider), (3, 0, 0, 0));
    assert_eq!(style.store.calls(Operation::Release), 3, "the commits release by themselves");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_on_brings_nothing_and_is_released_first() {
    let (style, provider) = Style::with_provider();
    let plain = provider.acquire("k").await.unwrap();
    let (token, waits) = (plain.fencing_token(), style.lock_in_task(&provider));
    waiting(&provider, 1).await;
    *style.value.lock().unwrap() = 7;
    assert_eq!(plain.release().await.unwrap(), ReleaseOutcome::Released);
    let lease = waits.await.unwrap();
    assert_eq!((style.brought(&lease), style.attempts()), (7, 1));
    assert!(lease.fencing_token() > token);
    // Nor is its own lease handed on.
    let (attempts, waits) = (style.store.calls(Operation::TryAcquire), waiter(&provider));
    waiting(&provider, 1).await;
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    drop(guard(waits).await);
    assert!(style.store.calls(Operation::TryAcquire) > attempts);
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_leads_to_an_attempt() {
    let style = Style::new();
    let (provider, other) = (style.provider(), style.provider());
    let held = other.acquire("k").await.unwrap();
    let waits = style.lock_in_task(&provider);
    queued(&style.store, 1).await;
    sleep(ms(100)).await; // the stream is open, and it has made another attempt
    let attempts = style.attempts();
    *style.value.lock().unwrap() = 7;
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
    let start = Instant::now();
    let lease = waits.await.unwrap();
    assert_eq!(start.elapsed(), ms(0), "pushed, not polled");
    assert_eq!((style.brought(&lease), style.attempts()), (7, attempts + 1));
    assert!(lease.valid_until() - start >= ms(900), "for the full ttl, not for a claim");
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_ends_the_wait_and_leaves_nothing() {
    struct Missing;
    #[async_trait]
    impl AcquireOp for Missing {
        async fn try_acquire(&self, _: &Attempt) -> Result<Reply> {
            Err(LockError::new(ErrorKind::NotFound, "nothing to lock"))
        }
    }
    let (style, provider) = Style::with_provider();
    for wait in [Wait::Forever, Wait::Try, Wait::UpTo(ms(100))] {
        let key = LockKey::new("k").unwrap();
        let options = AcquireOptions::new().with_wait(wait);
        let error = provider.acquire_via(key, options, Arc::new(Missing)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.key().is_some());
    }
    assert_eq!(provider.accounting().waiting, 0);
    let lease = timeout(ms(1), style.lock(&provider)).await.expect("the turn is free");
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn c25_a_commit_that_discards_leaves_no_minimum_hold() {
    let (style, provider) = Style::with_provider();
    let options = AcquireOptions::new().with_lease(LeaseOptions::new().hold_at_least(ms(60_000)));
    let lock = || style.lock_with(&provider, options.clone());
    let start = Instant::now();
    // Also if its outcome is not known, and the write is repeated in the background.
    for fates in [vec![], vec![Fate::Hold(Gate::default())]] {
        let _ = lock().await.discard_via(style.adds(true, fates)).await;
    }
    assert_eq!(lock().await.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::Released);
    assert!(start.elapsed() < ms(60_000), "{:?}", start.elapsed());
    drop(style.lock(&provider).await);
    assert!(start.elapsed() >= ms(60_000), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c10_a_commit_whose_reply_is_lost_is_made_once() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let lost = lease.lost();
    let op = style.adds(true, [unavailable(), Fate::LoseReply]);
    assert_eq!(lease.release_via(op.clone()).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!((op.made(), style.value()), (3, 1));
    assert_eq!(totals(&provider), (1, 0, 0, 0));
    sleep(ms(2000)).await;
    assert!(lost.now_or_never().is_none(), "released, not lost");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_commit_gives_the_lease_back_as_it_was() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let (token, id) = (lease.fencing_token(), lease.claim().id().clone());
    let lost = tokio::spawn(lease.lost()); // polled while the commit is under way
    let not = lease.release_via(style.adds(true, [unknown(), rejected()])).await.unwrap_err();
    assert_eq!(not.error.kind(), ErrorKind::Rejected);
    let lease = not.guard.expect("held");
    assert_eq!((lease.fencing_token(), lease.claim().id()), (token, &id));
    sleep(ms(5000)).await;
    assert!(lease.loss().is_none() && !lost.is_finished(), "it is renewed");
    style.store.force_release("k");
    assert_eq!(timeout(ms(1000), lost).await.unwrap().unwrap(), Loss::ForceReleased, "and its loss is still signalled");
    assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!((style.value(), totals(&provider)), (0, (0, 1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_after_an_unknown_one_is_no_rejection() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let denied = Fate::Fail(LockError::new(ErrorKind::PermissionDenied, "no more"));
    let not = lease.release_via(style.adds(true, [Fate::LoseReply, denied])).await.unwrap_err();
    assert!(not.guard.is_none() && not.error.is_outcome_unknown(), "{not:?}");
    is_free(&style.store).await;
    assert_eq!(style.value(), 1);
}

#[tokio::test(start_paused = true)]
async fn c8_a_commit_that_finds_the_lease_lost_changes_nothing_and_reports_it() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let lost = lease.lost();
    style.store.lose_events(true);
    style.store.force_release("k");
    assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(lost.now_or_never(), Some(Loss::Gone));
    assert_eq!((style.value(), totals(&provider)), (0, (0, 1, 0, 0)));
    drop(timeout(ms(100), style.lock(&provider)).await.expect("the next one"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_deadline() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    style.store.fail_always(Operation::Renew, ErrorKind::Unavailable);
    sleep(ms(900)).await;
    let op = style.adds(true, []);
    assert_eq!(lease.release_via(op.clone()).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(op.made(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_commit_is_under_way() {
    let style = Style::new();
    let terms = LeaseOptions::new().ttl(ms(300)).safety_margin(ms(30)).renewal(RenewalPolicy::Every(ms(100)));
    let provider = style.store.builder().lease(terms).request_timeout(ms(5000)).build().unwrap();
    let lease = style.lock(&provider).await;
    let go_on = Gate::default();
    let op = style.adds(true, [Fate::Hold(go_on.clone())]);
    let commit = tokio::spawn(lease.release_via(op.clone()));
    op.reached.notified().await;
    sleep(ms(2000)).await;
    go_on.open();
    assert_eq!(commit.await.unwrap().unwrap(), ReleaseOutcome::Released);
    assert_eq!((style.value(), totals(&provider)), (1, (1, 0, 0, 0)));
}

/// The commit may have been applied, so "gone" from the store is no loss until it is known that it
/// was not.
#[tokio::test(start_paused = true)]
async fn a_loss_during_a_commit_counts_when_the_commit_was_refused() {
    for is_refused in [false, true] {
        let (style, provider) = Style::with_provider();
        let lease = style.lock(&provider).await;
        let mut lost = lease.lost();
        // The stream is opened when the lease is a second old.
        sleep(ms(1010)).await;
        let go_on = Gate::default();
        let calls = [Fate::LoseReply, Fate::Hold(go_on.clone())];
        let op = if is_refused { style.adds(true, [unknown()]) } else { style.adds(true, calls) };
        let commit = tokio::spawn(lease.release_via(op.clone()));
        op.reached.notified().await;
        if is_refused {
            style.store.force_release("k");
            op.fates.lock().unwrap().push_back(rejected());
            let not = commit.await.unwrap().unwrap_err();
            assert_eq!(not.guard.expect("back").loss(), Some(Loss::ForceReleased));
            assert_eq!((&mut lost).now_or_never(), Some(Loss::ForceReleased));
            assert_eq!(totals(&provider), (0, 1, 0, 0));
        } else {
            sleep(ms(400)).await;
            assert!((&mut lost).now_or_never().is_none(), "renewals find the lease gone, but the reason is unknown");
            go_on.open();
            assert_eq!(commit.await.unwrap().unwrap(), ReleaseOutcome::Released);
            assert_eq!(totals(&provider), (1, 0, 0, 0));
        }
    }
}

/// Polls a future `times` times, then drops it. Returns whether it had ended by then.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..times {
        if future.as_mut().now_or_never().is_some() {
            return true;
        }
        // What it waits for continues.
        sleep(ms(50)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn c11_commits_dropped_at_any_poll_leave_nothing() {
    let first: [fn() -> Fate; 5] = [|| Fate::Yield, || Fate::LoseReply, rejected, unavailable, unknown];
    for first in first {
        for polls in 0..=20 {
            let style = Style::new();
            let (here, there) = (style.provider(), style.provider());
            let lease = style.lock(&here).await;
            let ended = polled(polls, lease.release_via(style.adds(true, [first(), Fate::Yield]))).await;
            sleep(ms(500)).await;
            assert!(style.store.peek("k").is_none(), "after {polls} polls");
            assert!(style.value() <= 1, "applied twice");
            drop(timeout(ms(100), style.lock(&there)).await.expect("another one"));
            let (_, lost, abandoned, held) = totals(&here);
            assert_eq!((lost, abandoned, held), (0, 0, 0), "after {polls} polls");
            if ended {
                break;
            }
            assert!(polls < 20, "it does not end");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_dropped_commit_leaves_nothing() {
    let refused = || LockError::new(ErrorKind::Rejected, "not allowed");
    let unknown = || LockError::new(ErrorKind::Unavailable, "perhaps").outcome_unknown();
    // Never polled; between two calls; in flight, and then applied, refused, or of unknown outcome.
    for (polled, calls, value) in [
        (false, vec![], 0),
        (true, vec![unavailable()], 0),
        (true, vec![Fate::Hold(Gate::default())], 1),
        (true, vec![Fate::HoldThenFail(Gate::default(), refused())], 0),
        (true, vec![Fate::HoldThenFail(Gate::default(), unknown())], 0),
    ] {
        let (style, provider) = Style::with_provider();
        let lease = style.lock(&provider).await;
        let go_on = calls.iter().find_map(|call| match call {
            Fate::Hold(go_on) | Fate::HoldThenFail(go_on, _) => Some(go_on.clone()),
            _ => None,
        });
        let op = style.adds(true, calls);
        let mut commit = Box::pin(lease.release_via(op.clone()));
        if polled {
            assert!((&mut commit).now_or_never().is_none());
        }
        drop(commit);
        assert_eq!(provider.accounting().held, 1);
        if let Some(go_on) = &go_on {
            sleep(ms(100)).await;
            assert!(style.store.peek("k").is_some(), "the call in flight is finished first");
            go_on.open();
        }
        timeout(ms(100), is_free(&style.store)).await.expect("released at once");
        assert_eq!((style.value(), op.made()), (value, u32::from(polled)));
        provider.close().await.unwrap();
        assert_eq!(totals(&provider), (1, 0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn c9_a_commit_without_an_answer_is_unknown_and_made_later() {
    // The first call is swallowed, alone or with some that fail, and given up after a while.
    for then in [vec![], vec![unavailable(), unknown(), Fate::LoseReply]] {
        let (style, provider) = Style::with_provider();
        let lease = style.lock(&provider).await;
        let start = Instant::now();
        let op = style.adds(true, [Fate::Hold(Gate::default())].into_iter().chain(then));
        let not = lease.release_via(op.clone()).await.unwrap_err();
        assert!(not.error.is_outcome_unknown() && not.guard.is_none(), "{not:?}");
        assert_eq!((start.elapsed(), style.value()), (ms(500), 0), "C18");
        timeout(ms(1100), is_free(&style.store)).await.expect("the call is given up, and made again");
        assert_eq!(style.value(), 1, "a lost request costs no outcome while the lease lasts");
        provider.close().await.unwrap();
        assert_eq!(totals(&provider), (1, 0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_commit_without_an_answer_ends_with_a_refusal_or_the_lease() {
    for refused in [true, false] {
        let (style, provider) = Style::with_provider();
        let lease = style.lock(&provider).await;
        let fates = std::iter::repeat_with(|| if refused { rejected() } else { unknown() });
        let op = style.adds(true, [Fate::Hold(Gate::default())].into_iter().chain(fates.take(100)));
        let _ = lease.release_via(op.clone()).await.unwrap_err();
        let until = if refused { ms(1100) } else { ms(30_000) };
        timeout(until, is_free(&style.store)).await.expect("it ends");
        let made = op.made();
        sleep(ms(30_000)).await;
        assert_eq!((style.value(), op.made()), (0, made), "nothing follows");
        assert!(if refused { made == 2 } else { (3..100).contains(&made) }, "{made}");
        provider.close().await.unwrap();
        assert_eq!(provider.accounting().held, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_commit_under_way_is_waited_for_and_one_that_is_refused_then_is_released() {
    for is_refused in [false, true] {
        let (style, provider) = Style::with_provider();
        let lease = style.lock(&provider).await;
        let go_on = Gate::default();
        let call = if is_refused { unknown() } else { Fate::Hold(go_on.clone()) };
        let op = style.adds(true, [call]);
        if is_refused {
            op.fates.lock().unwrap().push_back(rejected());
        }
        let commit = tokio::spawn(lease.release_via(op.clone()));
        op.reached.notified().await;
        let closing = {
            let provider = provider.clone();
            tokio::spawn(async move { provider.close().await })
        };
        sleep(ms(10)).await;
        go_on.open();
        let answer = commit.await.unwrap();
        closing.await.unwrap().unwrap();
        assert!(style.store.peek("k").is_none());
        assert_eq!(totals(&provider), (1, 0, 0, 0));
        match answer {
            Ok(outcome) => assert!(!is_refused && outcome.is_released()),
            Err(not) => assert_eq!(not.guard.expect("back").loss(), Some(Loss::Closed)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_keeps_the_lease() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let op = style.adds(false, [Fate::LoseReply]);
    assert_eq!(lease.write_via(op.clone()).await.unwrap(), Written::Applied);
    assert_eq!((op.made(), style.value()), (2, 1));
    assert_eq!(lease.write_via(style.adds(false, [rejected()])).await.unwrap_err().kind(), ErrorKind::Rejected);
    let error = lease.write_via(style.adds(false, [Fate::Hold(Gate::default())])).await.unwrap_err();
    assert!(error.is_outcome_unknown() && lease.loss().is_none(), "{error:?}");

    // Dropped, it is finished all the same.
    let go_on = Gate::default();
    let op = style.adds(false, [Fate::Hold(go_on.clone())]);
    {
        let mut write = Box::pin(lease.write_via(op.clone()));
        tokio::select! {
            _ = &mut write => panic!("it hangs"),
            () = op.reached.notified() => {}
        }
    }
    go_on.open();
    while style.value() < 2 {
        sleep(ms(1)).await;
    }
    style.store.lose_events(true);
    style.store.force_release("k");
    assert_eq!(lease.write_via(style.adds(false, [])).await.unwrap(), Written::AlreadyLost);
    assert_eq!((lease.loss(), style.value()), (Some(Loss::Gone), 2));
    let op = style.adds(false, []);
    assert_eq!(lease.write_via(op.clone()).await.unwrap(), Written::AlreadyLost);
    assert_eq!(op.made(), 0, "known as lost");
    assert_eq!(totals(&provider), (0, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_same_lease_is_the_guard_of_a_plain_lock() {
    let (style, provider) = Style::with_provider();
    let lease = style.lock(&provider).await;
    let token = lease.fencing_token();
    let guard = lease.into_guard();
    assert_eq!((guard.key().as_str(), guard.fencing_token()), ("k", token));
    advance(ms(100)).await;
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(totals(&provider), (1, 0, 0, 0));
}
