//! Interleavings that try to break queueing, pushed grants and handing on, by clause. The store is the one of tests, bent where it must answer late or wrongly.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use distlock_api::{
    ErrorKind, FencingToken, LeaseOptions, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome,
    RenewalPolicy, Result, async_trait,
};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, EventStream, Grant, Release, Renewal, Reply, Standing, StoreCapabilities, StoreEvent,
    StoreTime, Watch,
};
use distlock_engine::{HandOff, LeaseProvider, LeaseStore, QueueOptions};
use distlock_memory::{MemoryStore, Operation};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::common::polled;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Three seconds of ttl, 300 ms of margin, renewed every second.
fn terms() -> LeaseOptions {
    LeaseOptions::new().ttl(ms(3000))
}

/// As another process.
fn provider(store: &MemoryStore) -> LeaseProvider {
    store.builder().lease(terms()).request_timeout(ms(500)).build().unwrap()
}

fn waiter(provider: &LeaseProvider) -> JoinHandle<Result<LockGuard>> {
    let provider = provider.clone();
    tokio::spawn(async move { provider.acquire("k").await })
}

/// A waiter that is polled by hand.
fn by_hand(provider: &LeaseProvider) -> Pin<Box<dyn Future<Output = Result<LockGuard>> + Send>> {
    let provider = provider.clone();
    Box::pin(async move { provider.acquire("k").await })
}

async fn queued(store: &MemoryStore, tickets: usize) {
    while store.waiting("k").len() != tickets {
        sleep(ms(1)).await;
    }
}

async fn settled(provider: &LeaseProvider) {
    while provider.accounting().held > 0 {
        sleep(ms(1)).await;
    }
}

async fn quiet() {
    for _ in 0..200 {
        yield_now().await;
    }
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs something that may deadlock or never end, on a thread of its own.
fn in_bounded_time(work: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done.recv_timeout(secs(30)).is_ok()
}

type Bend<T> = Box<dyn Fn(T) -> T + Send + Sync>;

/// The store of tests, with answers that are bent on their way back.
struct Bent {
    store: MemoryStore,
    can: Mutex<StoreCapabilities>,
    /// What it can do after its first answer.
    learns: Option<StoreCapabilities>,
    busy: Bend<BusyReply>,
    standing: Bend<Standing>,
    /// How often each call yields before and after its step.
    yields: usize,
    /// Its stream is open and says nothing.
    deaf: bool,
}

impl Bent {
    fn new(store: &MemoryStore) -> Self {
        Self {
            store: store.clone(),
            can: Mutex::new(store.capabilities()),
            learns: None,
            busy: Box::new(|busy| busy),
            standing: Box::new(|standing| standing),
            yields: 0,
            deaf: false,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Arc<Self> {
        change(&mut self);
        Arc::new(self)
    }

    async fn pause(&self) {
        for _ in 0..self.yields {
            yield_now().await;
        }
    }
}

impl fmt::Debug for Bent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bent")
    }
}

#[async_trait]
impl LeaseStore for Bent {
    fn capabilities(&self) -> StoreCapabilities {
        *self.can.lock().unwrap()
    }

    fn name(&self) -> &str {
        "bent"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.pause().await;
        let reply = self.store.try_acquire(attempt).await;
        if let Some(learnt) = self.learns {
            *self.can.lock().unwrap() = learnt;
        }
        self.pause().await;
        Ok(match reply? {
            Reply::Busy(busy) => Reply::Busy((self.busy)(busy)),
            granted => granted,
        })
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.store.renew(renewal).await
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        self.pause().await;
        let standings = self.store.renew_many(renewals).await;
        self.pause().await;
        let bent = standings.into_iter().map(|standing| {
            standing.map(|standing| match (self.standing)(standing) {
                Standing::Waiting(busy) => Standing::Waiting((self.busy)(busy)),
                other => other,
            })
        });
        bent.collect()
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.pause().await;
        let outcome = self.store.release(release).await;
        self.pause().await;
        outcome
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.pause().await;
        let outcome = self.store.withdraw(claim, timeout).await;
        self.pause().await;
        outcome
    }

    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        self.store.waiters(claim, timeout).await
    }

    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        if self.deaf {
            return Ok(Box::pin(futures_util::stream::pending()));
        }
        self.store.subscribe(watch).await
    }
}

fn over(store: &Arc<Bent>) -> LeaseProvider {
    LeaseProvider::builder(store.clone()).lease(terms()).request_timeout(ms(500)).build().unwrap()
}

// ---- C16: nobody is forgotten ----

#[tokio::test(start_paused = true)]
async fn c16_a_store_that_has_just_learnt_to_queue_and_push_forgets_no_waiter() {
    let store = MemoryStore::new();
    let a = provider(&store);
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let learns = Bent::new(&store).with(|bent| {
        let full = store.capabilities();
        let mut little = StoreCapabilities::default();
        little.minimum_hold = true;
        (bent.can, bent.learns) = (Mutex::new(little), Some(full));
    });
    let next = waiter(&over(&learns));
    queued(&store, 1).await;
    sleep(secs(20)).await;
    assert_eq!(store.waiting("k").len(), 1, "its ticket is refreshed");
    let start = Instant::now();
    drop(first);
    let _guard = next.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), ms(0), "and its grant is heard");
}

#[tokio::test(start_paused = true)]
async fn c16_a_grant_before_the_stream_is_open_and_an_answer_after_it() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    sleep(ms(10)).await;
    let mut opens = store.hang_next(Operation::Watch);
    let elsewhere = b.acquire("elsewhere").await.unwrap(); // begins to open the stream
    opens.reached().await;
    let mut answer = store.hang_reply_next(Operation::TryAcquire.of("k"));
    let next = waiter(&b);
    answer.reached().await;
    assert_eq!(store.waiting("k").len(), 1);
    assert!(first.release().await.unwrap().is_released());
    let start = Instant::now();
    opens.proceed();
    quiet().await;
    answer.proceed();
    let _guard = next.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn c16_a_gap_while_the_answer_is_on_its_way() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let elsewhere = b.acquire("elsewhere").await.unwrap();
    sleep(ms(10)).await;
    let mut answer = store.hang_reply_next(Operation::TryAcquire.of("k"));
    let next = waiter(&b);
    answer.reached().await;
    store.lose_events(true);
    assert!(first.release().await.unwrap().is_released());
    store.lose_events(false);
    store.push(StoreEvent::Gap);
    quiet().await;
    let start = Instant::now();
    answer.proceed();
    let _guard = next.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(300), "{:?}", start.elapsed());
    drop(elsewhere);
}

#[tokio::test(start_paused = true)]
async fn c16_a_grant_behind_an_answer_that_tells_no_time() {
    let store = MemoryStore::new();
    let a = provider(&store);
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let tells_no_time = Bent::new(&store).with(|bent| {
        bent.busy = Box::new(|busy| {
            BusyReply::new().with_standing(busy.standing).with_holder_remaining(busy.holder_remaining.unwrap())
        });
    });
    let b = over(&tells_no_time);
    let elsewhere = b.acquire("elsewhere").ttl(secs(60)).await.unwrap();
    sleep(ms(10)).await;
    let mut next = by_hand(&b);
    assert!(poll_once(next.as_mut()).is_pending());
    queued(&store, 1).await;
    let refreshed = store.calls(Operation::RenewMany.of("k"));
    while store.calls(Operation::RenewMany.of("k")) == refreshed {
        sleep(ms(100)).await;
    }
    quiet().await; // what the refresh was told waits for it
    drop(first);
    quiet().await; // and the grant, too
    let start = Instant::now();
    let _guard = timeout(ms(300), next).await.unwrap_or_else(|_| panic!("{:?}", start.elapsed())).unwrap();
    drop(elsewhere);
}

#[test]
fn c16_the_stream_dies_with_the_runtime_that_opened_it() {
    assert!(in_bounded_time(|| {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let (a, b) = (provider(&store), provider(&store));
        let first = here.block_on(async { a.acquire("k").ttl(secs(60)).await.unwrap() });
        let opened = there.block_on(async {
            let guard = b.acquire("elsewhere").await.unwrap();
            sleep(ms(10)).await;
            guard
        });
        here.block_on(async {
            let next = waiter(&b);
            queued(&store, 1).await;
            sleep(ms(20)).await;
            drop(opened);
            there.shutdown_background();
            sleep(ms(20)).await;
            let start = std::time::Instant::now();
            drop(first);
            let _guard = next.await.unwrap().unwrap();
            assert!(start.elapsed() < ms(2500), "{:?}", start.elapsed());
        });
    }));
}

#[test]
fn c16_a_waiter_that_moves_to_another_runtime_keeps_no_keeper_busy() {
    let (here, there) = (one_thread(), one_thread());
    let store = here.block_on(async { MemoryStore::new() });
    let a = provider(&store);
    let queue = QueueOptions::new().ticket_ttl(ms(150));
    let b = store.builder().lease(terms()).queue(queue).build().unwrap();
    let first = here.block_on(async { a.acquire("k").ttl(secs(60)).await.unwrap() });
    let mut next = by_hand(&b);
    here.block_on(async {
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    assert_eq!(store.waiting("k").len(), 1);
    there.block_on(async {
        store.push(StoreEvent::Gap); // so that it asks again
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    here.block_on(async {
        store.push(StoreEvent::Gap);
        sleep(ms(5)).await;
    });
    there.block_on(async {
        let _ = timeout(ms(5), next.as_mut()).await;
    });
    let before = store.calls(Operation::RenewMany);
    here.block_on(async { sleep(ms(200)).await });
    let calls = store.calls(Operation::RenewMany) - before;
    assert!(calls < 50, "{calls} refreshes within 200 ms");
    there.block_on(async { drop((first, next)) });
}

// ---- C11: a lease on its way ----

#[tokio::test(start_paused = true)]
async fn c15_a_lease_on_its_way_to_somebody_who_is_not_polled_ends_with_its_ttl() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let first = a.acquire("k").await.unwrap();
    let mut sleeps = by_hand(&a);
    assert!(poll_once(sleeps.as_mut()).is_pending());
    drop(first); // on its way
    let start = Instant::now();
    let other = timeout(secs(30), b.acquire("k").into_future()).await.expect("after the ttl at the latest").unwrap();
    assert!(start.elapsed() <= ms(3500), "{:?}", start.elapsed());
    drop(other);
    let guard = sleeps.await.unwrap();
    assert!(!guard.is_lost());
    drop(guard);
    settled(&a).await;
    assert!(a.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn c4_a_lease_lost_on_its_way_is_none_of_the_guard_that_let_it_go() {
    let store = MemoryStore::new();
    let a = provider(&store);
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
async fn c19_a_lease_that_is_never_renewed_is_not_handed_on_with_what_is_left_of_it() {
    let store = MemoryStore::new();
    let limits = HandOff::new().max_time(secs(60));
    let a = store.builder().lease(terms().renewal(RenewalPolicy::Never)).hand_off(limits).build().unwrap();
    let first = a.acquire("k").await.unwrap();
    let next = waiter(&a);
    quiet().await;
    sleep(ms(2600)).await;
    drop(first);
    let next = next.await.unwrap().unwrap();
    assert!(next.remaining().unwrap() > ms(2600), "{:?} of 2.7 s", next.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_never_renewed_ends_although_the_store_tells_lower_bounds() {
    let store = MemoryStore::new();
    let careful = Bent::new(&store).with(|bent| {
        bent.standing = Box::new(|standing| match standing {
            Standing::Held { remaining } => Standing::Held { remaining: remaining.saturating_sub(ms(1)) },
            other => other,
        });
    });
    let (a, b) = (provider(&store), over(&careful));
    let first = a.acquire("k").await.unwrap();
    let other = b.clone();
    let next = tokio::spawn(async move { other.acquire("k").renewal(RenewalPolicy::Never).await });
    queued(&store, 1).await;
    sleep(ms(100)).await;
    drop(first);
    let next = next.await.unwrap().unwrap();
    sleep(secs(20)).await;
    assert!(next.is_lost(), "{} renewals", store.calls(Operation::RenewMany));
}

// ---- Locks and wakers ----

struct Looks<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Looks<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[test]
fn c4_a_waker_that_looks_at_the_books_when_a_grant_is_pushed_does_not_deadlock() {
    assert!(in_bounded_time(|| {
        one_thread().block_on(async {
            let store = MemoryStore::new();
            let (a, b) = (provider(&store), provider(&store));
            let first = a.acquire("k").await.unwrap();
            let (looks, looked) = (b.clone(), Arc::new(AtomicUsize::new(0)));
            let count = looked.clone();
            let waker: Waker = Arc::new(Looks(move || {
                count.fetch_add(1, Ordering::Relaxed);
                let _ = looks.accounting();
            }))
            .into();
            let mut next = by_hand(&b);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            quiet().await;
            // The stream is open now, and it has been nudged.
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let before = looked.load(Ordering::Relaxed);
            drop(first);
            quiet().await;
            assert!(looked.load(Ordering::Relaxed) > before);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        });
    }));
}

#[test]
fn c11_a_waker_that_tries_when_a_place_in_the_line_is_left_does_not_deadlock() {
    assert!(in_bounded_time(|| {
        one_thread().block_on(async {
            let store = MemoryStore::new();
            let a = provider(&store);
            let _first = a.acquire("k").await.unwrap();
            let tries = a.clone();
            let waker: Waker = Arc::new(Looks(move || {
                let _ = poll_once(pin!(tries.try_acquire("k").into_future()));
            }))
            .into();
            let mut next = by_hand(&a);
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(next);
        });
    }));
}

#[test]
fn c16_a_lease_lost_while_nobody_is_found_to_hand_it_to_frees_the_line() {
    assert!(in_bounded_time(|| {
        let away = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store = away.block_on(async { MemoryStore::new() });
        let a = store
            .builder()
            .lease(LeaseOptions::new().ttl(ms(40)).renewal(RenewalPolicy::Every(ms(10))))
            .build()
            .unwrap();
        store.fail_always(Operation::RenewMany, ErrorKind::Unavailable);
        let guard = away.block_on(async { a.acquire("k").await.unwrap() });
        // The keeper finds the deadline passed just while the guard looks for somebody to hand the lease to.
        let books = a.clone();
        let waker: Waker = Arc::new(Looks(move || {
            while books.accounting().lost == 0 {
                std::thread::yield_now();
            }
        }))
        .into();
        let here = one_thread();
        here.block_on(async {
            let mut lost = guard.lost();
            assert!(Pin::new(&mut lost).poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
            // The signal is still there.
            let next = timeout(secs(2), a.acquire("k").into_future()).await;
            assert!(next.is_ok(), "the line is blocked");
            drop(lost);
        });
    }));
}

// ---- Absurd answers ----

#[tokio::test(start_paused = true)]
async fn c16_absurd_times_are_no_panic() {
    let store = MemoryStore::new();
    let a = provider(&store);
    let first = a.acquire("k").await.unwrap();
    let absurd = Bent::new(&store).with(|bent| {
        bent.busy = Box::new(|busy| busy.with_holder_remaining(Duration::MAX));
    });
    let b = over(&absurd);
    let next = waiter(&b);
    timeout(secs(1), queued(&store, 1)).await.expect("it waits");
    sleep(ms(100)).await;
    assert!(!next.is_finished());
    let id = store.waiting("k").remove(0);
    let grant = Grant::new(FencingToken::new(1 << 40), ms(0));
    store.push(StoreEvent::Granted {
        key: LockKey::new("k").unwrap(),
        id,
        grant,
        expires_at: StoreTime::since_origin(Duration::MAX),
    });
    sleep(ms(10)).await;
    drop(first);
    let guard = next.await.expect("no panic").unwrap();
    assert!(guard.remaining().unwrap() <= ms(2700));
}

// ---- R18: pushes ----

#[tokio::test(start_paused = true)]
async fn r18_a_grant_that_is_heard_late_starts_no_lease_beyond_its_claim() {
    for late in [ms(500), ms(900), ms(999), ms(1000), ms(1200), ms(1300), ms(1301), ms(2500)] {
        let store = MemoryStore::new();
        let (a, b) = (provider(&store), provider(&store));
        let first = a.acquire("k").ttl(secs(60)).await.unwrap();
        let next = waiter(&b);
        queued(&store, 1).await;
        sleep(ms(50)).await;
        store.delay_events(late);
        drop(first);
        let guard = next.await.unwrap().unwrap();
        let info = store.peek("k").expect("the store holds it for somebody");
        assert!(guard.remaining().unwrap() + ms(300) <= info.remaining, "{late:?} {:?} {info:?}", guard.remaining());
        assert_eq!(info.token.get() & 0xffff, (guard.fencing_token().get() + 0xffff) & 0xffff);
        sleep(secs(10)).await;
        assert!(guard.loss().is_none() && store.peek("k").is_some(), "{late:?} {:?}", guard.loss());
    }
}

#[tokio::test(start_paused = true)]
async fn r18_a_grant_of_long_ago_is_not_believed() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let first = a.acquire("k").ttl(secs(60)).await.unwrap();
    let next = waiter(&b);
    queued(&store, 1).await;
    sleep(ms(50)).await;
    let id = store.waiting("k").remove(0);
    for token in [1, first.fencing_token().get(), store.peek("k").unwrap().token.get()] {
        let expires_at = StoreTime::since_origin(store.now() + secs(50));
        let (key, grant) = (LockKey::new("k").unwrap(), Grant::new(FencingToken::new(token), ms(0)));
        store.push(StoreEvent::Granted { key, id: id.clone(), grant, expires_at });
        sleep(ms(50)).await;
        assert!(!next.is_finished(), "{token}");
    }
    assert!(!first.is_lost());
    drop(first);
    let _guard = next.await.unwrap().unwrap();
}

// ---- C15: bounds of handing on ----

/// How long somebody of another process waits while this process hands its lease on without a pause.
async fn waits_beside_a_busy_process(store: &MemoryStore, a: LeaseProvider) -> Duration {
    let b = provider(store);
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let a = a.clone();
            tokio::spawn(async move {
                loop {
                    let guard = a.acquire("k").await.unwrap();
                    sleep(ms(1)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    sleep(ms(1000)).await;
    let start = Instant::now();
    let guard = timeout(secs(10), b.acquire("k").into_future()).await;
    let took = start.elapsed();
    drop(guard);
    busy.iter().for_each(JoinHandle::abort);
    took
}

#[tokio::test(start_paused = true)]
async fn c15_handing_on_ends_in_time_whatever_becomes_of_the_question_who_waits() {
    for what in 0..4 {
        let store = MemoryStore::new();
        let a = provider(&store);
        let mut hangs = Vec::new();
        match what {
            0 => {}
            1 => store.fail_always(Operation::Waiters, ErrorKind::Unavailable),
            2 => hangs.extend((0..200).map(|_| store.hang_next(Operation::Waiters))),
            _ => hangs.extend((0..200).map(|_| store.hang_reply_next(Operation::Waiters))),
        }
        let took = waits_beside_a_busy_process(&store, a).await;
        assert!(took <= ms(320), "{what} {took:?}");
    }
}

// ---- C11: the cancellation matrix ----

#[tokio::test(start_paused = true)]
async fn c11_a_waiter_dropped_at_any_poll_leaves_neither_ticket_nor_lease() {
    for own in [false, true] {
        for (push, ordered, queue, blocks) in [
            (true, true, true, true),
            (false, true, true, true),
            (true, false, true, true),
            (true, true, false, true),
            (true, true, true, false),
        ] {
            for polls in 0..24 {
                for released_after in [0, 1, 3, 6, 9, 12, 20] {
                    let store = MemoryStore::new();
                    let mut can = store.capabilities();
                    (can.push, can.ordered_claims, can.queue, can.token_blocks) = (push, ordered, queue, blocks);
                    let slow = Bent::new(&store.clone().with_capabilities(can)).with(|bent| bent.yields = 2);
                    let (a, b) = (provider(&store), over(&slow));
                    let first = if own { &b } else { &a }.acquire("k").await.unwrap();
                    let release = tokio::spawn(async move {
                        for _ in 0..released_after {
                            yield_now().await;
                        }
                        let _ = first.release().await;
                    });
                    drop(polled(polls, by_hand(&b)).await);
                    release.await.unwrap();
                    quiet().await;
                    let what = format!("{own} {push} {ordered} {queue} {blocks} {polls} {released_after}");
                    assert!(store.waiting("k").is_empty(), "a ticket: {what}");
                    let books = b.accounting();
                    assert!(books.balances() && books.held == 0 && books.waiting == 0, "{what} {books:?}");
                    for next in [&a, &b] {
                        let start = Instant::now();
                        let guard = next.acquire("k").await.unwrap();
                        assert!(start.elapsed() <= ms(0), "{what} {:?}", start.elapsed());
                        let _ = guard.release().await.unwrap();
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c24_closed_at_any_moment_nothing_is_left_behind() {
    for own in [false, true] {
        for moment in 0..24 {
            let store = MemoryStore::new();
            let slow = Bent::new(&store).with(|bent| bent.yields = 1);
            let (a, b) = (provider(&store), over(&slow));
            let first = if own { &b } else { &a }.acquire("k").await.unwrap();
            let waiters: Vec<_> = (0..3).map(|_| waiter(&b)).collect();
            for _ in 0..moment / 2 {
                yield_now().await;
            }
            drop(first);
            for _ in 0..moment {
                yield_now().await;
            }
            b.close().await.unwrap();
            assert!(store.waiting("k").is_empty(), "{own} {moment}");
            let guard = timeout(ms(100), a.acquire("k").into_future()).await;
            assert!(guard.is_ok(), "{own} {moment}");
            for waiter in waiters {
                if let Ok(guard) = waiter.await.unwrap() {
                    assert_eq!(guard.loss(), Some(Loss::Closed), "{own} {moment}");
                }
            }
            let books = b.accounting();
            assert!(books.balances() && (books.held, books.waiting) == (0, 0), "{own} {moment} {books:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_waiter_that_is_not_polled_delays_no_shutdown() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let first = a.acquire("k").await.unwrap();
    let mut sleeps = by_hand(&b);
    for _ in 0..3 {
        assert!(poll_once(sleeps.as_mut()).is_pending());
        sleep(ms(20)).await;
    }
    assert_eq!(store.waiting("k").len(), 1);
    let start = Instant::now();
    b.close().await.unwrap();
    assert!(start.elapsed() < ms(100) && store.waiting("k").is_empty(), "{:?}", start.elapsed());
    assert_eq!(sleeps.await.unwrap_err().kind(), ErrorKind::Closed);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn leaks_nothing_keeps_the_store_alive_when_all_have_left() {
    let store = MemoryStore::new();
    let bent = Bent::new(&store).with(|bent| bent.yields = 1);
    {
        let (a, b) = (over(&bent), over(&bent));
        let first = a.acquire("k").await.unwrap();
        let signal = first.lost();
        let mut on_its_way = by_hand(&a);
        assert!(poll_once(on_its_way.as_mut()).is_pending());
        let next = waiter(&b);
        queued(&store, 1).await;
        drop(first);
        drop(a);
        drop(on_its_way);
        let guard = next.await.unwrap().unwrap();
        drop((guard, signal));
    }
    sleep(secs(2)).await;
    assert_eq!(Arc::strong_count(&bent), 1);
}

// ---- C21 ----

#[tokio::test(start_paused = true)]
async fn c21_opposite_orders_do_not_deadlock_while_leases_are_handed_on() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let provider = if n % 3 == 0 { b.clone() } else { a.clone() };
            tokio::spawn(async move {
                let keys = if n % 2 == 0 { ["x", "y", "z"] } else { ["z", "y", "x"] };
                for _ in 0..5 {
                    let all = provider.acquire_all(keys).await.unwrap().unwrap();
                    sleep(ms(1)).await;
                    assert!(!all.is_lost());
                    let _ = all.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(secs(60), task).await.expect("a deadlock").unwrap();
    }
    assert!(a.accounting().balances() && b.accounting().balances());
}

// ---- C25 ----

#[tokio::test(start_paused = true)]
async fn c25_a_minimum_hold_keeps_the_queue_waiting_and_its_order() {
    let store = MemoryStore::new();
    let a = provider(&store);
    let first = a.acquire("k").hold_at_least(ms(700)).await.unwrap();
    let start = Instant::now();
    let (b, c) = (provider(&store), provider(&store));
    let second = waiter(&b);
    queued(&store, 1).await;
    let third = waiter(&c);
    queued(&store, 2).await;
    sleep(ms(100)).await;
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert!(start.elapsed() >= ms(700) && start.elapsed() < ms(720), "{:?}", start.elapsed());
    assert!(!third.is_finished());
    drop(second);
    let _third = third.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(720));
}

// ---- C18 ----

#[tokio::test(start_paused = true)]
async fn c18_a_try_beside_a_lease_that_was_lost_on_its_way_asks_the_store() {
    let store = MemoryStore::new();
    let a = provider(&store);
    let first = a.acquire("k").await.unwrap();
    // Who holds listens when the lease is a second old.
    sleep(ms(1010)).await;
    let mut sleeps = by_hand(&a);
    assert!(poll_once(sleeps.as_mut()).is_pending());
    drop(first);
    assert!(a.try_acquire("k").await.unwrap().is_none(), "on its way");
    store.force_release("k").unwrap();
    sleep(ms(10)).await;
    let taken = a.try_acquire("k").await.unwrap();
    assert!(taken.is_some(), "nobody has it");
    drop((taken, sleeps));
}

// ---- Runtimes ----

#[test]
fn c11_a_runtime_that_dies_with_the_lease_on_its_way_to_it_gives_it_back() {
    assert!(in_bounded_time(|| {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let (a, b) = (provider(&store), provider(&store));
        let first = here.block_on(async { a.acquire("k").await.unwrap() });
        let inside = there.enter();
        let waits = waiter(&a);
        drop(inside);
        there.block_on(quiet());
        here.block_on(async { assert!(first.release().await.unwrap().is_released()) });
        drop(there);
        here.block_on(async {
            let start = std::time::Instant::now();
            let guard = b.acquire("k").await.unwrap();
            assert!(start.elapsed() < ms(2500), "{:?}", start.elapsed());
            drop(guard);
            settled(&a).await;
            assert!(waits.await.is_err());
            let books = a.accounting();
            assert!(books.balances() && books.released == 1 && books.waiting == 0, "{books:?}");
        });
    }));
}

#[test]
fn c11_a_lease_whose_runtime_has_died_is_not_handed_on_but_given_back() {
    assert!(in_bounded_time(|| {
        let (here, there) = (one_thread(), one_thread());
        let store = here.block_on(async { MemoryStore::new() });
        let a = provider(&store);
        let first = there.block_on(async { a.acquire("k").await.unwrap() });
        drop(there);
        here.block_on(async {
            let next = waiter(&a);
            quiet().await;
            let start = std::time::Instant::now();
            drop(first);
            let guard = next.await.unwrap().unwrap();
            assert!(start.elapsed() < ms(2500), "{:?}", start.elapsed());
            assert_eq!((store.calls(Operation::TryAcquire), store.calls(Operation::Release)), (2, 1));
            drop(guard);
            settled(&a).await;
            assert!(a.accounting().balances());
        });
    }));
}

// ---- Terms at the edge ----

#[tokio::test(start_paused = true)]
async fn c13_tiny_terms_with_a_queue_keep_nobody_busy_and_lose_nothing() {
    let edges = [
        LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(900)),
        LeaseOptions::new().ttl(ms(40)).safety_margin(ms(4)),
        LeaseOptions::new().ttl(ms(1000)).safety_margin(ms(0)),
        LeaseOptions::new().ttl(ms(1100)).safety_margin(ms(100)).renewal(RenewalPolicy::Every(ms(999))),
        LeaseOptions::new().ttl(secs(60)).safety_margin(secs(50)),
    ];
    for (n, terms) in edges.into_iter().enumerate() {
        let store = MemoryStore::new();
        let make = || store.builder().lease(terms).request_timeout(ms(500)).build().unwrap();
        let (a, b) = (make(), make());
        let first = a.acquire("k").await.unwrap();
        let next = waiter(&b);
        queued(&store, 1).await;
        sleep(secs(3)).await;
        assert!(!first.is_lost(), "{n}");
        let start = Instant::now();
        drop(first);
        let guard = next.await.unwrap().unwrap();
        assert!(start.elapsed() <= ms(1), "{n} {:?}", start.elapsed());
        sleep(secs(3)).await;
        assert!(!guard.is_lost(), "{n}");
        let calls = store.calls(Operation::RenewMany) + store.calls(Operation::TryAcquire);
        assert!(calls < 1500, "{n} {calls}");
    }
}

// ---- Silence ----

#[tokio::test(start_paused = true)]
async fn c16_a_process_whose_stream_is_silent_gets_its_turn_among_others_that_hear() {
    let store = MemoryStore::new();
    let deaf = Bent::new(&store).with(|bent| bent.deaf = true);
    let (a, b, c) = (provider(&store), provider(&store), over(&deaf));
    let busy: Vec<_> = [&a, &b]
        .into_iter()
        .flat_map(|provider| [provider.clone(), provider.clone()])
        .map(|provider| {
            tokio::spawn(async move {
                loop {
                    let guard = provider.acquire("k").await.unwrap();
                    sleep(ms(1000)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    let mut worst = ms(0);
    for _ in 0..100 {
        sleep(ms(u64::from(fastrand::u8(..)) * 4)).await;
        let start = Instant::now();
        drop(c.acquire("k").await.unwrap());
        worst = worst.max(start.elapsed());
    }
    busy.iter().for_each(JoinHandle::abort);
    assert!(worst < secs(12), "{worst:?}");
}

// ---- C1, C5, C23: wild ----

async fn wild(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let store = MemoryStore::new();
    let providers: Vec<_> = (0..3)
        .map(|n| {
            let mut can = store.capabilities();
            match random.u8(..6) {
                0 => can.push = false,
                1 => can.queue = false,
                2 => can.token_blocks = false,
                3 => can.ordered_claims = false,
                _ => {}
            }
            let handle = store.clone().with_capabilities(can);
            let builder = handle.builder().lease(terms()).request_timeout(ms(500));
            if n == 2 { builder.without_hand_off() } else { builder }.build().unwrap()
        })
        .collect();
    let held: Arc<Mutex<Vec<Option<LockGuard>>>> = Arc::new(Mutex::new((0..9).map(|_| None).collect()));
    let last = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..9usize)
        .map(|n| {
            let (provider, held, last) = (providers[n % 3].clone(), held.clone(), last.clone());
            let mut random = random.fork();
            tokio::spawn(async move {
                for _ in 0..12 {
                    sleep(ms(random.u64(..300))).await;
                    let limit = ms(random.u64(1..4000));
                    let Ok(Ok(guard)) = timeout(limit, provider.acquire("k").into_future()).await else { continue };
                    {
                        let mut held = held.lock().unwrap();
                        let others = held.iter().flatten().filter(|other| !other.is_lost()).count();
                        if !guard.is_lost() {
                            assert_eq!(others, 0, "C1 {seed}");
                        }
                        let before = std::mem::replace(&mut *last.lock().unwrap(), guard.fencing_token().get());
                        assert!(before < guard.fencing_token().get() || guard.is_lost(), "C5 {seed}");
                        held[n] = Some(guard);
                    }
                    sleep(ms(random.u64(..150) * u64::from(random.u8(..10) == 0) * 20 + random.u64(..5))).await;
                    let guard = held.lock().unwrap()[n].take().unwrap();
                    if random.bool() {
                        let _ = guard.release().await;
                    } else {
                        drop(guard);
                    }
                    assert!(provider.accounting().balances(), "C23 {seed}");
                }
            })
        })
        .collect();
    let faults = {
        let store = store.clone();
        tokio::spawn(async move {
            let operations = [
                Operation::TryAcquire,
                Operation::RenewMany,
                Operation::Release,
                Operation::Withdraw,
                Operation::Waiters,
                Operation::Watch,
            ];
            for _ in 0..60 {
                sleep(ms(random.u64(..200))).await;
                let operation = operations[random.usize(..operations.len())];
                match random.u8(..9) {
                    0 => store.fail_next(operation, ErrorKind::Unavailable),
                    1 => store.drop_reply_next(operation),
                    2 | 3 => {
                        let hang =
                            if random.bool() { store.hang_next(operation) } else { store.hang_reply_next(operation) };
                        let late = ms(random.u64(..2000));
                        tokio::spawn(async move {
                            sleep(late).await;
                            hang.proceed();
                        });
                    }
                    4 => store.cut_watchers(),
                    5 => store.lose_events(random.bool()),
                    6 => store.delay_events(ms(random.u64(..1500) * u64::from(random.bool()))),
                    7 => store.push(StoreEvent::Gap),
                    _ => {
                        store.drop_tickets("k");
                    }
                }
            }
            store.clear_faults();
            store.lose_events(false);
            store.delay_events(ms(0));
        })
    };
    faults.await.unwrap();
    for task in tasks {
        timeout(secs(300), task).await.unwrap_or_else(|_| panic!("stuck {seed}")).unwrap();
    }
    for provider in &providers {
        let _ = provider.close().await;
        let books = provider.accounting();
        assert!(books.balances() && (books.held, books.waiting) == (0, 0), "{seed} {books:?}");
    }
    sleep(secs(20)).await;
    assert!(store.waiting("k").is_empty() && store.peek("k").is_none(), "{seed}");
}

#[tokio::test(start_paused = true)]
async fn c1_c5_c23_wild_processes_at_a_wild_store() {
    for seed in 0..150 {
        wild(seed).await;
    }
}

/// A lease that was taken away before its grant arrived holds no turn: a try asks the store.
#[tokio::test(start_paused = true)]
async fn c18_a_try_beside_a_grant_that_was_lost_on_its_way_asks_the_store() {
    let store = MemoryStore::new();
    let (a, b) = (provider(&store), provider(&store));
    // Holding for long opens its stream.
    let _other = a.acquire("other").await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let mut hangs = store.hang_reply_next(Operation::TryAcquire);
    let waiting = waiter(&a);
    hangs.reached().await;
    store.force_release("k").unwrap();
    let held = b.acquire("k").await.unwrap();
    hangs.proceed();
    queued(&store, 1).await;
    let before = store.calls(Operation::TryAcquire);
    assert!(a.try_acquire("k").await.unwrap().is_none());
    assert_eq!(store.calls(Operation::TryAcquire), before + 1, "only the store knows");
    assert!(held.release().await.unwrap().is_released());
    assert!(waiting.await.unwrap().unwrap().release().await.unwrap().is_released());
}
