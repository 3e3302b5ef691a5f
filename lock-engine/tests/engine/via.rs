//! The engine under a typed style: a register that is kept beside the lease, brought by an acquisition, changed and released by a commit.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{
    AcquireOptions, AcquisitionId, ErrorKind, LeaseOptions, LockError, LockKey, LockProvider, LockProviderExt, Loss,
    ReleaseOutcome, RenewalPolicy, Result, Wait, async_trait,
};
use distlock_engine::store::{AcquireOp, Attempt, Release, Reply, Write, WriteOp, Written};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider, LeaseStore};
use distlock_memory::{MemoryStore, Operation};
use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{advance, sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a call of a write does.
enum Call {
    /// It is carried out, and answered.
    Works,
    /// So it is, and stands still for a poll before and after that.
    Steps,
    /// It is carried out, and nobody hears of it.
    ReplyLost,
    /// Nothing happens.
    Fails(LockError),
    /// It waits, and works then.
    Hangs(Arc<Notify>),
    /// It waits, and fails then.
    HangsAndFails(Arc<Notify>, LockError),
}

/// A resource that is kept with the lease.
#[derive(Clone)]
struct Style {
    store: MemoryStore,
    value: Arc<Mutex<u64>>,
    brought: Arc<Mutex<HashMap<AcquisitionId, u64>>>,
    asked: Arc<Mutex<u32>>,
}

#[async_trait]
impl AcquireOp for Style {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        *self.asked.lock().unwrap() += 1;
        assert_eq!(attempt.tokens.get(), 1, "what it brings is for one guard");
        let reply = self.store.try_acquire(attempt).await?;
        if matches!(reply, Reply::Granted(_)) {
            let value = *self.value.lock().unwrap();
            self.brought.lock().unwrap().insert(attempt.claim.id().clone(), value);
        }
        Ok(reply)
    }
}

/// One write: adds one.
struct Adds {
    style: Style,
    releases: bool,
    done: Mutex<bool>,
    calls: Mutex<VecDeque<Call>>,
    made: Mutex<u32>,
    reached: Notify,
}

impl Adds {
    fn made(&self) -> u32 {
        *self.made.lock().unwrap()
    }

    async fn apply(&self, write: &Write) -> Result<Written> {
        if *self.done.lock().unwrap() {
            return Ok(Written::Applied);
        }
        let Style { store, value, .. } = &self.style;
        let holder = store.peek(write.claim.key()).and_then(|info| info.id);
        if holder.as_ref() != Some(write.claim.id()) {
            return Ok(Written::AlreadyLost);
        }
        *value.lock().unwrap() += 1;
        *self.done.lock().unwrap() = true;
        if self.releases {
            let _ = store.release(&Release::new(write.claim.clone())).await?;
        }
        Ok(Written::Applied)
    }
}

#[async_trait]
impl WriteOp for Adds {
    async fn write(&self, write: &Write) -> Result<Written> {
        *self.made.lock().unwrap() += 1;
        let call = self.calls.lock().unwrap().pop_front().unwrap_or(Call::Works);
        self.reached.notify_one();
        match call {
            Call::Works => self.apply(write).await,
            Call::Steps => {
                yield_now().await;
                let written = self.apply(write).await;
                yield_now().await;
                written
            }
            Call::ReplyLost => {
                let _ = self.apply(write).await?;
                Err(LockError::new(ErrorKind::Unavailable, "the reply got lost").outcome_unknown())
            }
            Call::Fails(error) => Err(error),
            Call::Hangs(go_on) => {
                go_on.notified().await;
                self.apply(write).await
            }
            Call::HangsAndFails(go_on, error) => {
                go_on.notified().await;
                Err(error)
            }
        }
    }
}

impl Style {
    fn new() -> Self {
        Self::over(MemoryStore::new())
    }

    fn over(store: MemoryStore) -> Self {
        Self { store, value: Arc::default(), brought: Arc::default(), asked: Arc::default() }
    }

    fn provider(&self) -> LeaseProvider {
        // One second of ttl, 100 ms of margin, renewed every 300 ms.
        let quick = LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(300)));
        self.store.builder().lease(quick).request_timeout(ms(500)).build().unwrap()
    }

    fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }

    fn value(&self) -> u64 {
        *self.value.lock().unwrap()
    }

    async fn lock(&self, provider: &LeaseProvider) -> LeaseGuard {
        let key = LockKey::new("k").unwrap();
        match provider.acquire_via(key, AcquireOptions::new(), Arc::new(self.clone())).await.unwrap() {
            AcquiredLease::Held(lease) => lease,
            AcquiredLease::Busy(busy) => panic!("{busy:?}"),
        }
    }

    /// What came with a guard.
    fn brought(&self, lease: &LeaseGuard) -> u64 {
        self.brought.lock().unwrap()[lease.claim().id()]
    }

    fn adds(&self, releases: bool, calls: impl IntoIterator<Item = Call>) -> Arc<Adds> {
        Arc::new(Adds {
            style: self.clone(),
            releases,
            done: Mutex::default(),
            calls: Mutex::new(calls.into_iter().collect()),
            made: Mutex::default(),
            reached: Notify::new(),
        })
    }
}

fn rejected() -> Call {
    Call::Fails(LockError::new(ErrorKind::Rejected, "not allowed"))
}

fn unavailable() -> Call {
    Call::Fails(LockError::new(ErrorKind::Unavailable, "not now"))
}

fn unknown() -> Call {
    Call::Fails(LockError::new(ErrorKind::Unavailable, "perhaps").outcome_unknown())
}

fn books(provider: &LeaseProvider) -> (u64, u64, u64, u64) {
    let books = provider.accounting();
    assert!(books.balances(), "{books:?}");
    (books.released, books.lost, books.abandoned, books.held)
}

/// A lock that anybody can have again at once.
async fn is_free(store: &MemoryStore) {
    while store.peek("k").is_some() {
        sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_brings_what_its_own_answer_brought() {
    let style = Style::new();
    let provider = style.provider();
    for n in 0..3 {
        let lease = style.lock(&provider).await;
        assert_eq!((style.brought(&lease), style.asked()), (n, u32::try_from(n).unwrap() + 1));
        assert_eq!(lease.key().as_str(), "k");
        assert!(lease.loss().is_none() && lease.valid_until() > tokio::time::Instant::now());
        assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::Released);
    }
    assert_eq!(books(&provider), (3, 0, 0, 0));
    assert_eq!(style.store.calls(Operation::Release), 3, "the commits' own");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_on_brings_nothing_and_is_released_first() {
    let store = MemoryStore::new();
    let mut can = store.capabilities();
    can.token_blocks = true;
    let style = Style::over(store.with_capabilities(can));
    let provider = style.provider();
    let plain = provider.acquire("k").await.unwrap();
    let (token, waits) = (plain.fencing_token(), {
        let (style, provider) = (style.clone(), provider.clone());
        tokio::spawn(async move { style.lock(&provider).await })
    });
    while provider.accounting().waiting == 0 {
        sleep(ms(1)).await;
    }
    *style.value.lock().unwrap() = 7;
    assert_eq!(plain.release().await.unwrap(), ReleaseOutcome::Released);
    let lease = waits.await.unwrap();
    assert_eq!((style.brought(&lease), style.asked()), (7, 1));
    assert!(lease.fencing_token() > token);
    // Nor is its own lease handed on.
    let (asked, waits) = (style.store.calls(Operation::TryAcquire), {
        let provider = provider.clone();
        tokio::spawn(async move { provider.acquire("k").await.unwrap() })
    });
    while provider.accounting().waiting == 0 {
        sleep(ms(1)).await;
    }
    assert_eq!(lease.release().await.unwrap(), ReleaseOutcome::Released);
    drop(waits.await.unwrap());
    assert!(style.store.calls(Operation::TryAcquire) > asked);
}

#[tokio::test(start_paused = true)]
async fn a_pushed_grant_is_asked_for() {
    let style = Style::new();
    let (provider, other) = (style.provider(), style.provider());
    let held = other.acquire("k").await.unwrap();
    let waits = {
        let (style, provider) = (style.clone(), provider.clone());
        tokio::spawn(async move { style.lock(&provider).await })
    };
    while style.store.waiting("k").is_empty() {
        sleep(ms(1)).await;
    }
    sleep(ms(100)).await; // the stream is open, and it has asked once more
    let asked = style.asked();
    *style.value.lock().unwrap() = 7;
    assert_eq!(held.release().await.unwrap(), ReleaseOutcome::Released);
    let start = tokio::time::Instant::now();
    let lease = waits.await.unwrap();
    assert_eq!(start.elapsed(), ms(0), "pushed, not polled");
    assert_eq!((style.brought(&lease), style.asked()), (7, asked + 1));
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
    let style = Style::new();
    let provider = style.provider();
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
async fn c10_a_commit_whose_reply_is_lost_is_made_once() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let lost = lease.lost();
    let op = style.adds(true, [unavailable(), Call::ReplyLost]);
    assert_eq!(lease.release_via(op.clone()).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!((op.made(), style.value()), (3, 1));
    assert_eq!(books(&provider), (1, 0, 0, 0));
    sleep(ms(2000)).await;
    assert!(lost.now_or_never().is_none(), "released, not lost");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_commit_gives_the_lease_back_as_it_was() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let (token, id) = (lease.fencing_token(), lease.claim().id().clone());
    let lost = tokio::spawn(lease.lost()); // which looks while the commit is under way
    let not = lease.release_via(style.adds(true, [unknown(), rejected()])).await.unwrap_err();
    assert_eq!(not.error.kind(), ErrorKind::Rejected);
    let lease = not.guard.expect("held");
    assert_eq!((lease.fencing_token(), lease.claim().id()), (token, &id));
    sleep(ms(5000)).await;
    assert!(lease.loss().is_none() && !lost.is_finished(), "it is renewed");
    style.store.force_release("k");
    assert_eq!(timeout(ms(1000), lost).await.unwrap().unwrap(), Loss::ForceReleased, "and its loss is still heard");
    assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!((style.value(), books(&provider)), (0, (0, 1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_after_an_unknown_one_is_no_rejection() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let denied = Call::Fails(LockError::new(ErrorKind::PermissionDenied, "no more"));
    let not = lease.release_via(style.adds(true, [Call::ReplyLost, denied])).await.unwrap_err();
    assert!(not.guard.is_none() && not.error.is_outcome_unknown(), "{not:?}");
    is_free(&style.store).await;
    assert_eq!(style.value(), 1);
}

#[tokio::test(start_paused = true)]
async fn c8_a_commit_that_finds_the_lease_lost_changes_nothing_and_says_so() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let lost = lease.lost();
    style.store.lose_events(true);
    style.store.force_release("k");
    assert_eq!(lease.release_via(style.adds(true, [])).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(lost.now_or_never(), Some(Loss::Gone));
    assert_eq!((style.value(), books(&provider)), (0, (0, 1, 0, 0)));
    drop(timeout(ms(100), style.lock(&provider)).await.expect("the next one"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_deadline() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    style.store.fail_always(Operation::RenewMany, ErrorKind::Unavailable);
    sleep(ms(900)).await;
    let op = style.adds(true, []);
    assert_eq!(lease.release_via(op.clone()).await.unwrap(), ReleaseOutcome::AlreadyLost);
    assert_eq!(op.made(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_commit_is_under_way() {
    let style = Style::new();
    let quick = LeaseOptions::new().ttl(ms(300)).safety_margin(ms(30)).renewal(RenewalPolicy::Every(ms(100)));
    let provider = style.store.builder().lease(quick).request_timeout(ms(5000)).build().unwrap();
    let lease = style.lock(&provider).await;
    let go_on = Arc::new(Notify::new());
    let op = style.adds(true, [Call::Hangs(go_on.clone())]);
    let commit = tokio::spawn(lease.release_via(op.clone()));
    op.reached.notified().await;
    sleep(ms(2000)).await;
    go_on.notify_one();
    assert_eq!(commit.await.unwrap().unwrap(), ReleaseOutcome::Released);
    assert_eq!((style.value(), books(&provider)), (1, (1, 0, 0, 0)));
}

/// The commit may have been carried out, so the store's "gone" is no loss – until it is known that it was not.
#[tokio::test(start_paused = true)]
async fn a_loss_during_a_commit_counts_when_the_commit_was_refused() {
    for is_refused in [false, true] {
        let style = Style::new();
        let provider = style.provider();
        let lease = style.lock(&provider).await;
        let mut lost = lease.lost();
        // Who holds listens when the lease is a second old.
        sleep(ms(1010)).await;
        let go_on = Arc::new(Notify::new());
        let calls = [Call::ReplyLost, Call::Hangs(go_on.clone())];
        let op = if is_refused { style.adds(true, [unknown()]) } else { style.adds(true, calls) };
        let commit = tokio::spawn(lease.release_via(op.clone()));
        op.reached.notified().await;
        if is_refused {
            style.store.force_release("k");
            op.calls.lock().unwrap().push_back(rejected());
            let not = commit.await.unwrap().unwrap_err();
            assert_eq!(not.guard.expect("back").loss(), Some(Loss::ForceReleased));
            assert_eq!((&mut lost).now_or_never(), Some(Loss::ForceReleased));
            assert_eq!(books(&provider), (0, 1, 0, 0));
        } else {
            sleep(ms(400)).await;
            assert!((&mut lost).now_or_never().is_none(), "renewals find the lease gone, but nobody knows why");
            go_on.notify_one();
            assert_eq!(commit.await.unwrap().unwrap(), ReleaseOutcome::Released);
            assert_eq!(books(&provider), (1, 0, 0, 0));
        }
    }
}

/// Polls a future so many times, and drops it then. Whether it had ended by then.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..times {
        if future.as_mut().now_or_never().is_some() {
            return true;
        }
        // What it waits for goes on.
        sleep(ms(50)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn c11_commits_dropped_at_any_poll_leave_nothing() {
    let first: [fn() -> Call; 5] = [|| Call::Steps, || Call::ReplyLost, rejected, unavailable, unknown];
    for first in first {
        for polls in 0..=20 {
            let style = Style::new();
            let (here, there) = (style.provider(), style.provider());
            let lease = style.lock(&here).await;
            let ended = polled(polls, lease.release_via(style.adds(true, [first(), Call::Steps]))).await;
            sleep(ms(500)).await;
            assert!(style.store.peek("k").is_none(), "after {polls} polls");
            assert!(style.value() <= 1, "carried out twice");
            drop(timeout(ms(100), style.lock(&there)).await.expect("another one"));
            let (_, lost, abandoned, held) = books(&here);
            assert_eq!((lost, abandoned, held), (0, 0, 0), "after {polls} polls");
            if ended {
                break;
            }
            assert!(polls < 20, "no end is in sight");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_dropped_commit_leaves_nothing() {
    let refused = || LockError::new(ErrorKind::Rejected, "not allowed");
    let unknown = || LockError::new(ErrorKind::Unavailable, "perhaps").outcome_unknown();
    // Never polled; between two calls; in flight, and then carried out, refused, or not known to be either.
    for (polled, calls, value) in [
        (false, vec![], 0),
        (true, vec![unavailable()], 0),
        (true, vec![Call::Hangs(Arc::default())], 1),
        (true, vec![Call::HangsAndFails(Arc::default(), refused())], 0),
        (true, vec![Call::HangsAndFails(Arc::default(), unknown())], 0),
    ] {
        let style = Style::new();
        let provider = style.provider();
        let lease = style.lock(&provider).await;
        let go_on = calls.iter().find_map(|call| match call {
            Call::Hangs(go_on) | Call::HangsAndFails(go_on, _) => Some(go_on.clone()),
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
            go_on.notify_one();
        }
        timeout(ms(100), is_free(&style.store)).await.expect("released at once");
        assert_eq!((style.value(), op.made()), (value, u32::from(polled)));
        provider.close().await.unwrap();
        assert_eq!(books(&provider), (1, 0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn c9_a_commit_without_an_answer_is_unknown_and_cleaned_up() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let start = tokio::time::Instant::now();
    let not = lease.release_via(style.adds(true, [Call::Hangs(Arc::default())])).await.unwrap_err();
    assert!(not.error.is_outcome_unknown() && not.guard.is_none(), "{not:?}");
    assert_eq!(start.elapsed(), ms(500), "C18");
    timeout(ms(1100), is_free(&style.store)).await.expect("the call is given up after a while, and the lease released");
    provider.close().await.unwrap();
    assert_eq!(books(&provider), (1, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn c24_a_commit_under_way_is_waited_for_and_one_that_is_refused_then_is_released() {
    for is_refused in [false, true] {
        let style = Style::new();
        let provider = style.provider();
        let lease = style.lock(&provider).await;
        let go_on = Arc::new(Notify::new());
        let call = if is_refused { unknown() } else { Call::Hangs(go_on.clone()) };
        let op = style.adds(true, [call]);
        if is_refused {
            op.calls.lock().unwrap().push_back(rejected());
        }
        let commit = tokio::spawn(lease.release_via(op.clone()));
        op.reached.notified().await;
        let closing = {
            let provider = provider.clone();
            tokio::spawn(async move { provider.close().await })
        };
        sleep(ms(10)).await;
        go_on.notify_one();
        let answer = commit.await.unwrap();
        closing.await.unwrap().unwrap();
        assert!(style.store.peek("k").is_none());
        assert_eq!(books(&provider), (1, 0, 0, 0));
        match answer {
            Ok(outcome) => assert!(!is_refused && outcome.is_released()),
            Err(not) => assert_eq!(not.guard.expect("back").loss(), Some(Loss::Closed)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_keeps_the_lease() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let op = style.adds(false, [Call::ReplyLost]);
    assert_eq!(lease.write_via(op.clone()).await.unwrap(), Written::Applied);
    assert_eq!((op.made(), style.value()), (2, 1));
    assert_eq!(lease.write_via(style.adds(false, [rejected()])).await.unwrap_err().kind(), ErrorKind::Rejected);
    let error = lease.write_via(style.adds(false, [Call::Hangs(Arc::default())])).await.unwrap_err();
    assert!(error.is_outcome_unknown() && lease.loss().is_none(), "{error:?}");

    // Dropped, it is finished all the same.
    let go_on = Arc::new(Notify::new());
    let op = style.adds(false, [Call::Hangs(go_on.clone())]);
    {
        let mut write = Box::pin(lease.write_via(op.clone()));
        tokio::select! {
            _ = &mut write => panic!("it hangs"),
            () = op.reached.notified() => {}
        }
    }
    go_on.notify_one();
    while style.value() < 2 {
        sleep(ms(1)).await;
    }
    style.store.lose_events(true);
    style.store.force_release("k");
    assert_eq!(lease.write_via(style.adds(false, [])).await.unwrap(), Written::AlreadyLost);
    assert_eq!((lease.loss(), style.value()), (Some(Loss::Gone), 2));
    let op = style.adds(false, []);
    assert_eq!(lease.write_via(op.clone()).await.unwrap(), Written::AlreadyLost);
    assert_eq!(op.made(), 0, "lost by our own account");
    assert_eq!(books(&provider), (0, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_same_lease_is_the_guard_of_a_plain_lock() {
    let style = Style::new();
    let provider = style.provider();
    let lease = style.lock(&provider).await;
    let token = lease.fencing_token();
    let guard = lease.into_guard();
    assert_eq!((guard.key().as_str(), guard.fencing_token()), ("k", token));
    advance(ms(100)).await;
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(books(&provider), (1, 0, 0, 0));
}
