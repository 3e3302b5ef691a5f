//! The engine over a store whose clock and faults are in the test's hands. Time is paused: nothing here waits for real.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use distlock_api::{
    Accounting, AcquireOptions, Acquired, AcquisitionId, ErrorKind, LeaseOptions, LockGuard, LockKey, LockProvider,
    LockProviderExt, Loss, Namespaced, Phase, ReleaseOutcome, RenewalPolicy, Wait,
};
use distlock_engine::store::{Attempt, Claim};
use distlock_engine::{LeaseProvider, LeaseStore};
use distlock_memory::{MemoryStore, Operation};
use tokio::time::{Instant, advance, sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One second of ttl, 100 ms of margin, renewed every 300 ms.
fn quick() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(300)))
}

fn provider(store: &MemoryStore) -> LeaseProvider {
    store.builder().lease(quick()).request_timeout(ms(500)).build().unwrap()
}

async fn acquire(provider: &LeaseProvider, key: &str) -> LockGuard {
    provider.acquire(key).await.unwrap()
}

/// Waits, in paused time, until the books say what they should.
async fn books(provider: &LeaseProvider, check: impl Fn(&Accounting) -> bool) -> Accounting {
    for _ in 0..10_000 {
        let books = provider.accounting();
        assert!(books.balances(), "{books:?}");
        if check(&books) {
            return books;
        }
        sleep(ms(1)).await;
    }
    panic!("the books never came to that: {:?}", provider.accounting());
}

/// Waits for a lock in a task of its own.
fn in_task(provider: &LeaseProvider, key: &'static str) -> tokio::task::JoinHandle<distlock_api::Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire(key).await })
}

/// A future is pending now, and stays so for a while.
async fn assert_pending<F: Future + Unpin>(future: &mut F, time: Duration) {
    assert!(timeout(time, future).await.is_err(), "came too early");
}

#[tokio::test(start_paused = true)]
async fn one_holder_at_a_time_and_growing_tokens() {
    let store = MemoryStore::new();
    let (here, there) = (provider(&store), provider(&store));
    let first = acquire(&here, "k").await;
    assert!(there.try_acquire("k").await.unwrap().is_none());
    assert!(here.try_acquire("k").await.unwrap().is_none(), "C7: not re-entrant");
    let token = first.fencing_token();
    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);
    let second = acquire(&there, "k").await;
    assert!(second.fencing_token() > token, "C5");
    drop(second);
    books(&there, |books| books.released == 1 && books.held == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_held_lease_is_renewed_for_as_long_as_it_takes() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    let token = guard.fencing_token();
    assert_pending(&mut guard.lost(), ms(60_000)).await;
    assert!(!guard.is_lost() && guard.fencing_token() == token);
    assert!(guard.remaining().unwrap() <= ms(900));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let renewals = store.calls(Operation::RenewMany);
    assert!((150..=250).contains(&renewals), "one per cadence: {renewals}");
    sleep(ms(5000)).await;
    assert_eq!(store.calls(Operation::RenewMany), renewals, "C12: none after the release");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_leases_are_renewed_in_batches_without_a_task_each() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
        advance(ms(u64::from(n % 7 == 0))).await;
    }
    let before = store.calls(Operation::RenewMany);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks <= 3, "{tasks}");
    sleep(ms(3000)).await;
    let renewals = store.calls(Operation::RenewMany) - before;
    assert!((80..=150).contains(&renewals), "10 calls of 100 for each of 10 beats, {renewals}");
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

#[tokio::test(start_paused = true)]
async fn c3_the_deadline_counts_from_before_the_request() {
    let store = MemoryStore::new();
    let provider = store.builder().lease(quick().renewal(RenewalPolicy::Never)).build().unwrap();
    let mut hang = store.hang_reply_next(Operation::TryAcquire);
    let started = Instant::now();
    let acquiring = tokio::spawn({
        let provider = provider.clone();
        async move { acquire(&provider, "k").await }
    });
    hang.reached().await;
    advance(ms(700)).await;
    hang.proceed();
    let guard = acquiring.await.unwrap();
    assert!(guard.remaining().unwrap() <= ms(200), "{:?}", guard.remaining());
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(started.elapsed() >= ms(900) && started.elapsed() <= ms(902));
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_that_comes_too_late_is_withdrawn_not_returned() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let _hang = store.hang_reply_next(Operation::TryAcquire);
    let started = Instant::now();
    let error = provider.try_acquire("k").await.unwrap_err();
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Request)));
    assert!(error.is_outcome_unknown() && started.elapsed() <= ms(510), "{error} after {:?}", started.elapsed());
    assert!(store.peek("k").is_some(), "granted, and nobody knows");
    store.called(Operation::Withdraw, 1).await;
    books(&provider, |_| store.peek("k").is_none()).await;
    assert_eq!(provider.accounting().acquired, 0);
}

#[tokio::test(start_paused = true)]
async fn c4_lost_comes_at_the_deadline_even_if_every_renewal_hangs() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    let hangs: Vec<_> = (0..100).map(|_| store.hang_next(Operation::RenewMany)).collect();
    let started = Instant::now();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert!(started.elapsed() <= ms(902), "{:?}", started.elapsed());
    for hang in hangs {
        hang.proceed();
    }
    sleep(ms(2000)).await;
    assert!(guard.is_lost(), "final");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(books(&provider, |books| books.held == 0).await.lost, 1);
}

#[tokio::test(start_paused = true)]
async fn c4_the_keeper_notices_a_loss_that_nobody_looks_at() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    store.fail_always(Operation::RenewMany, ErrorKind::Unavailable);
    let next = in_task(&provider, "k");
    sleep(ms(1500)).await;
    assert_eq!(provider.accounting().lost, 1);
    assert!(next.is_finished(), "the next caller of this process went on");
    assert!(guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c4_c22_a_forced_release_is_heard_at_once_by_push_and_with_the_next_renewal_without() {
    for push in [true, false] {
        let store = MemoryStore::new();
        let mut capabilities = store.capabilities();
        capabilities.push = push;
        let store = store.with_capabilities(capabilities);
        let (provider, other) = (provider(&store), provider(&store));
        let guard = acquire(&provider, "k").await;
        // Who holds listens when the lease is a second old.
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
async fn c10_a_lost_grant_is_asked_for_again_under_the_same_id() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    for _ in 0..3 {
        store.drop_reply_next(Operation::TryAcquire);
        let guard = provider.try_acquire("k").await.unwrap().expect("ours, not busy by ourselves");
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(store.calls(Operation::Withdraw), 0);
    assert_eq!(store.calls(Operation::TryAcquire), 6);
}

#[tokio::test(start_paused = true)]
async fn c10_where_stragglers_are_not_refused_an_id_is_never_used_again() {
    let store = MemoryStore::new();
    let mut capabilities = store.capabilities();
    capabilities.ordered_claims = false;
    let store = store.with_capabilities(capabilities);
    let provider = provider(&store);
    store.drop_reply_next(Operation::TryAcquire);
    let guard = acquire(&provider, "k").await;
    assert!(store.calls(Operation::Withdraw) >= 1, "the first id was cleaned up");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn c10_a_release_whose_reply_was_lost_is_repeated_and_says_released() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    store.drop_reply_next(Operation::Release);
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let guard = acquire(&provider, "k").await;
    store.drop_reply_next(Operation::RenewMany);
    assert_pending(&mut guard.lost(), ms(3000)).await;
}

#[tokio::test(start_paused = true)]
async fn c9_an_unconfirmed_release_says_so_and_goes_on() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    let hang = store.hang_next(Operation::Release);
    let started = Instant::now();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_outcome_unknown() && error.phase() == Some(Phase::Release), "{error}");
    assert!(started.elapsed() <= ms(502));
    hang.proceed();
    assert_eq!(books(&provider, |books| books.held == 0).await.released, 1);
}

#[tokio::test(start_paused = true)]
async fn c11_an_acquisition_dropped_at_any_await_leaves_nothing() {
    for (hang_reply, after) in [(false, 1), (false, 100), (true, 1), (true, 100)] {
        let store = MemoryStore::new();
        let provider = provider(&store);
        let hang = match hang_reply {
            true => store.hang_reply_next(Operation::TryAcquire),
            false => store.hang_next(Operation::TryAcquire),
        };
        assert!(timeout(ms(after), provider.acquire("k").into_future()).await.is_err());
        assert_eq!(store.peek("k").is_some(), hang_reply);
        // The next caller of the same process is not held up by the cancelled one.
        let next = in_task(&provider, "k");
        sleep(ms(50)).await;
        hang.proceed();
        let guard = next.await.unwrap().unwrap();
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        sleep(ms(3000)).await;
        assert!(store.peek("k").is_none());
        assert_eq!(provider.accounting().acquired, 1);
        assert_eq!(provider.accounting().waiting, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_dropped_guard_and_a_dropped_release_are_released_in_the_background() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    drop(acquire(&provider, "k").await);
    books(&provider, |books| books.released == 1).await;
    drop(acquire(&provider, "k").await.release());
    books(&provider, |books| books.released == 2).await;
    let hang = store.hang_next(Operation::Release);
    assert!(timeout(ms(10), acquire(&provider, "k").await.release()).await.is_err());
    hang.proceed();
    books(&provider, |books| books.released == 3 && books.held == 0).await;
    assert_eq!(store.calls(Operation::Release), 3, "the call in flight was finished, not repeated");
}

#[test]
fn c11_c23_without_a_runtime_the_lease_is_left_to_its_ttl_and_counted() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(acquire(&provider, "k"));
    drop(runtime);
    drop(guard);
    let books = provider.accounting();
    assert_eq!((books.acquired, books.abandoned, books.held), (1, 1, 0));
    // Another runtime: everything works, the keeper included.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let guard = acquire(&provider, "other").await;
        assert_pending(&mut guard.lost(), ms(10_000)).await;
    });
}

#[tokio::test(start_paused = true)]
async fn c13_a_transient_error_neither_ends_the_renewal_nor_the_wait() {
    let store = MemoryStore::new();
    let (here, there) = (provider(&store), provider(&store));
    let guard = acquire(&here, "k").await;
    let waiting = in_task(&there, "k");
    for _ in 0..5 {
        store.fail_next(Operation::RenewMany, ErrorKind::Unavailable);
        store.fail_next(Operation::TryAcquire, ErrorKind::Unavailable);
        assert_pending(&mut guard.lost(), ms(1000)).await;
    }
    assert!(!waiting.is_finished());
    let _ = guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn c14_one_hanging_key_does_not_take_its_batch_with_it() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
    }
    let hangs: Vec<_> = (0..1000).map(|_| store.hang_next(Operation::RenewMany.of("k42"))).collect();
    sleep(ms(5000)).await;
    let lost: Vec<_> = guards.iter().filter(|guard| guard.is_lost()).map(|guard| guard.key().to_string()).collect();
    assert_eq!(lost, ["k42"]);
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn c18_every_call_is_bounded_when_the_store_hangs() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let hangs: Vec<_> = (0..1000).map(|_| store.hang_next(Operation::TryAcquire)).collect();
    let started = Instant::now();
    let error = provider.try_acquire("k").await.unwrap_err();
    assert_eq!(error.phase(), Some(Phase::Request));
    assert!(started.elapsed() >= ms(500) && started.elapsed() <= ms(502));
    for wait in [1, 40, 1200, 3000] {
        let started = Instant::now();
        let error = provider.acquire("k").timeout(ms(wait)).await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Request)), "{error}");
        assert!(started.elapsed() >= ms(wait) && started.elapsed() <= ms(wait + 2), "{:?}", started.elapsed());
    }
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn c18_a_wait_ends_in_time_whoever_holds_the_lock() {
    let store = MemoryStore::new();
    let (here, there) = (provider(&store), provider(&store));
    let _guard = acquire(&here, "k").await;
    for waiter in [&here, &there] {
        let started = Instant::now();
        let error = waiter.acquire("k").timeout(ms(700)).await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)));
        assert_eq!(error.key().unwrap().as_str(), "k");
        assert!(started.elapsed() >= ms(700) && started.elapsed() <= ms(702));
        let at_once =
            waiter.acquire_with(error.key().unwrap().clone(), AcquireOptions::new().with_wait(Wait::UpTo(ms(0)))).await;
        assert!(matches!(at_once, Ok(Acquired::Busy(_))));
    }
    let calls = store.calls(Operation::TryAcquire);
    assert!(there.try_acquire("k").await.unwrap().is_none());
    assert_eq!(store.calls(Operation::TryAcquire), calls + 1, "one round trip");
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_are_served_in_order_and_ask_one_at_a_time() {
    let store = MemoryStore::new();
    let (here, there) = (provider(&store), provider(&store));
    let guard = acquire(&there, "k").await;
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..20 {
        let (here, sender) = (here.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = acquire(&here, "k").await;
            sender.send(n).unwrap();
            let _ = guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    assert_eq!(here.accounting().waiting, 20);
    sleep(ms(100)).await;
    let _ = guard.release().await.unwrap();
    for n in 0..20 {
        assert_eq!(order.recv().await, Some(n));
    }
    assert!(store.calls(Operation::TryAcquire) < 50, "{}", store.calls(Operation::TryAcquire));
}

#[tokio::test(start_paused = true)]
async fn c19_a_lock_whose_holder_is_gone_is_taken_soon_after_its_expiry() {
    for push in [true, false] {
        let store = MemoryStore::new();
        let mut capabilities = store.capabilities();
        capabilities.push = push;
        let store = store.with_capabilities(capabilities);
        // A process that was killed: it has a lease, and no engine any more.
        let claim = Claim::new(LockKey::new("k").unwrap(), AcquisitionId::new("dead"));
        store.try_acquire(&Attempt::new(claim, ms(20_000))).await.unwrap();
        let started = Instant::now();
        let _guard = acquire(&provider(&store), "k").await;
        assert!(started.elapsed() >= ms(20_000) && started.elapsed() <= ms(20_300), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn c24_close_releases_everything_wakes_everybody_and_is_bounded() {
    let store = MemoryStore::new();
    let (provider, other) = (provider(&store), provider(&store));
    let mut guards = Vec::new();
    for n in 0..100 {
        guards.push(acquire(&provider, &format!("k{n}")).await);
    }
    let waiting = in_task(&provider, "k0");
    let elsewhere = acquire(&other, "elsewhere").await;
    let asking = in_task(&provider, "elsewhere");
    sleep(ms(50)).await;
    store.fail_next(Operation::Release, ErrorKind::PermissionDenied);
    let _hang = store.hang_next(Operation::Release);
    let lost = guards[0].lost();
    let started = Instant::now();
    let error = provider.close().await.unwrap_err();
    assert!(error.to_string().starts_with("2 of 100 leases"), "{error}");
    assert!(started.elapsed() <= ms(1001), "{:?}", started.elapsed());
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lost.await, Loss::Closed);
    let books = provider.accounting();
    assert_eq!((books.acquired, books.released, books.abandoned, books.held), (100, 98, 2, 0));
    assert_eq!(provider.try_acquire("new").await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(
        provider.close().await.unwrap_err().to_string(),
        error.to_string(),
        "the same, however often it is asked"
    );
    assert_eq!(store.calls(Operation::Close), 1);
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn c23_an_abandoned_lease_is_neither_renewed_nor_released_and_keeps_others_out_until_its_ttl_ends() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let guard = acquire(&provider, "k").await;
    sleep(ms(400)).await; // renewed once
    let renewals = store.calls(Operation::RenewMany);
    let next = tokio::spawn({
        let provider = provider.clone();
        async move { (provider.acquire("k").await.unwrap(), Instant::now()) }
    });
    sleep(ms(1)).await; // it waits in line
    let abandoned = Instant::now();
    guard.abandon();
    let books = provider.accounting();
    assert_eq!((books.acquired, books.abandoned, books.held, books.released), (1, 1, 0, 0));
    assert!(store.peek("k").is_some(), "nobody was told");
    let (next, granted) = next.await.unwrap();
    assert!(granted - abandoned >= ms(890), "{:?}", granted - abandoned);
    assert!(granted - abandoned <= ms(1100), "{:?}", granted - abandoned);
    assert_eq!((store.calls(Operation::RenewMany), store.calls(Operation::Release)), (renewals, 0));
    // A lease that is lost already stays counted as lost.
    store.force_release("k");
    assert_eq!(next.lost().await, Loss::ForceReleased);
    next.abandon();
    let books = provider.accounting();
    assert_eq!((books.acquired, books.abandoned, books.lost, books.held), (2, 1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_outlives_the_guard() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let started = Instant::now();
    let guard = provider.acquire("k").hold_at_least(ms(5000)).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert!(provider.try_acquire("k").await.unwrap().is_none());
    drop(acquire(&provider, "k").await);
    assert!(started.elapsed() >= ms(5000) && started.elapsed() <= ms(5300), "{:?}", started.elapsed());
    let mut poor = store.capabilities();
    poor.minimum_hold = false;
    let provider = self::provider(&store.clone().with_capabilities(poor));
    let calls = store.calls(Operation::TryAcquire);
    let error = provider.acquire("k").hold_at_least(ms(1)).await.unwrap_err();
    assert_eq!((error.kind(), store.calls(Operation::TryAcquire)), (ErrorKind::Unsupported, calls));
}

#[tokio::test(start_paused = true)]
async fn c21_several_locks_at_once() {
    let store = MemoryStore::new();
    let provider = provider(&store);
    let all = provider.acquire_all(["b", "a", "b"]).await.unwrap().unwrap();
    assert_eq!(all.guards().iter().map(|guard| guard.key().as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let started = Instant::now();
    assert!(provider.acquire_all(["0", "b"]).timeout(ms(300)).await.unwrap().is_none());
    assert!(started.elapsed() <= ms(302));
    assert!(store.peek("0").is_none(), "all or nothing");
    assert_eq!(all.release().await.unwrap(), ReleaseOutcome::Released);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let provider = provider.clone();
        let keys = if n % 2 == 0 { ["x", "y", "z"] } else { ["z", "x", "y"] };
        tasks.spawn(async move { drop(provider.acquire_all(keys).await.unwrap().unwrap()) });
    }
    timeout(ms(600_000), tasks.join_all()).await.expect("no deadlock");
    assert!(provider.acquire_all(Vec::<&str>::new()).await.unwrap().unwrap().guards().is_empty());
    let error = provider.acquire_all(["fine", ""]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_the_lock_is_lost() {
    let store = MemoryStore::new();
    let provider = provider(&store);
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

#[tokio::test(start_paused = true)]
async fn namespaces_share_nothing_but_the_store() {
    let store = MemoryStore::new();
    let users = Namespaced::new(provider(&store), "users").unwrap();
    let orders = Namespaced::new(provider(&store), "orders").unwrap();
    let guard = users.acquire("1").await.unwrap();
    let _other = orders.try_acquire("1").await.unwrap().expect("another lock");
    assert_eq!(guard.key().as_str(), "1");
    assert!(store.peek("users/1").is_some());
    assert_eq!(orders.acquire("1").timeout(ms(1)).await.unwrap_err().key().unwrap().as_str(), "1");
    assert_eq!(users.admin().unwrap().inspect(guard.key()).await.unwrap().unwrap().key.as_str(), "1");
    assert!(Namespaced::new(provider(&store), "a/b").is_err());
}
