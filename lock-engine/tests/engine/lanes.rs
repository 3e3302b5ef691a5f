//! The engine over a store that is slow, and takes only so many calls at once.

use std::future::IntoFuture;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::{
    ErrorKind, LockError, LockGuard, LockProvider, LockProviderExt, Phase, ReleaseOutcome, Result, async_trait,
};
use distlock_engine::store::{
    Attempt, Claim, EventStream, Lanes, Release, Renewal, Reply, Standing, StoreCapabilities, Watch,
};
use distlock_engine::{LeaseProvider, LeaseStore};
use distlock_memory::MemoryStore;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long each kind of call takes. A call that would take longer than its time limit ends there,
/// without effect, as one that a server has given up.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    acquire: Duration,
    release: Duration,
    renew: Duration,
}

#[derive(Debug)]
struct Slow {
    inner: MemoryStore,
    lanes: Lanes,
    pace: watch::Sender<Pace>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
    acquires: AtomicUsize,
    renewals: AtomicUsize,
}

impl Slow {
    fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryStore::new(),
            lanes: Lanes::new(NonZeroUsize::new(at_once).unwrap()),
            pace: watch::Sender::new(Pace::default()),
            in_flight: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            acquires: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
        })
    }

    fn is_now(&self, pace: Pace) {
        self.pace.send_replace(pace);
    }

    async fn call<T>(
        &self,
        takes: fn(&Pace) -> Duration,
        limit: Duration,
        effect: impl Future<Output = T>,
    ) -> Result<T> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let _ended = Ended(&self.in_flight);
        let begun = Instant::now();
        let mut pace = self.pace.subscribe();
        // A server that becomes quick again answers what it was slow with.
        let answered = async {
            loop {
                let left = takes(&pace.borrow_and_update()).saturating_sub(begun.elapsed());
                if left.is_zero() || timeout(left, pace.changed()).await.is_err() {
                    return;
                }
            }
        };
        match timeout(limit, answered).await {
            Ok(()) => Ok(effect.await),
            Err(_) => Err(LockError::timeout(Phase::Request, "the server gave up").outcome_unknown()),
        }
    }
}

struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl LeaseStore for Slow {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn name(&self) -> &str {
        "slow"
    }

    fn lanes(&self) -> Option<Lanes> {
        Some(self.lanes.clone())
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.call(|pace| pace.acquire, attempt.timeout, self.inner.try_acquire(attempt)).await?
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.renew_many(std::slice::from_ref(renewal)).await.remove(0)
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        self.renewals.fetch_add(1, Ordering::Relaxed);
        let limit = renewals.iter().map(|renewal| renewal.timeout).min().unwrap();
        match self.call(|pace| pace.renew, limit, self.inner.renew_many(renewals)).await {
            Ok(answers) => answers,
            Err(error) => renewals.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.call(|pace| pace.release, release.timeout, self.inner.release(release)).await?
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.call(|pace| pace.release, timeout, self.inner.withdraw(claim, timeout)).await?
    }

    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        self.inner.subscribe(watch).await
    }
}

fn provider(store: &Arc<Slow>) -> LeaseProvider {
    LeaseProvider::new(Arc::<Slow>::clone(store))
}

/// Acquires in a task of its own.
fn in_task(provider: &LeaseProvider, key: impl Into<String>) -> JoinHandle<Result<LockGuard>> {
    let (provider, key) = (provider.clone(), key.into());
    tokio::spawn(async move { provider.acquire(key).await })
}

/// Acquires and releases a key of its own again and again; counts the acquisitions, and the errors
/// that are not those of an overloaded store.
async fn works(provider: &LeaseProvider, key: String, until: Instant, done: &AtomicUsize, errors: &AtomicUsize) {
    while Instant::now() < until {
        match provider.acquire(&key).timeout(secs(3)).await {
            Ok(guard) => {
                done.fetch_add(1, Ordering::Relaxed);
                let _ = guard.release().await;
            }
            Err(error) => {
                let known = matches!(error.kind(), ErrorKind::Overloaded | ErrorKind::Timeout);
                errors.fetch_add(usize::from(!known), Ordering::Relaxed);
                sleep(ms(50 + fastrand::u64(..50))).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c14_leases_are_kept_and_goodput_holds_while_acquisitions_are_slow() {
    for (tasks, pace, capacity) in [
        // Six of eight calls are acquisitions, 500 ms each.
        (60, Pace { acquire: ms(500), ..Pace::default() }, 12.0),
        (600, Pace { acquire: ms(500), ..Pace::default() }, 12.0),
        // Each acquisition has a release, and these share eight.
        (600, Pace { acquire: ms(500), release: ms(500), renew: ms(500) }, 8.0),
    ] {
        let store = Slow::new(8);
        let provider = provider(&store);
        let held = provider.acquire("held").ttl(secs(15)).await.unwrap();
        store.is_now(pace);
        let (done, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let until = Instant::now() + secs(60);
        join_all((0..tasks).map(|n| works(&provider, format!("key {n}"), until, &done, &errors))).await;
        assert_eq!(held.loss(), None, "{tasks} {pace:?}");
        assert!(store.most.load(Ordering::Relaxed) <= 8);
        let goodput = done.load(Ordering::Relaxed) as f64 / 60.0;
        assert!(goodput >= 0.8 * capacity, "{goodput} of {capacity} /s with {tasks} tasks, {pace:?}");
        assert_eq!(errors.load(Ordering::Relaxed), 0);

        // And as soon as the server is well, so are they.
        store.is_now(Pace { acquire: ms(2), release: ms(2), renew: ms(2) });
        let begun = Instant::now();
        done.store(0, Ordering::Relaxed);
        works(&provider, "afterwards".into(), begun + secs(1), &done, &errors).await;
        assert!(done.load(Ordering::Relaxed) > 0 && begun.elapsed() < secs(2));
        assert!(held.release().await.unwrap().is_released());
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_for_a_caller_that_left() {
    let store = Slow::new(1);
    store.is_now(Pace { acquire: secs(2), ..Pace::default() });
    let provider = provider(&store);
    let first = in_task(&provider, "first");
    tokio::task::yield_now().await;
    let leaves = join_all((0..100).map(|n| {
        let provider = provider.clone();
        async move { timeout(secs(1), provider.acquire(format!("{n}")).into_future()).await }
    }));
    assert!(leaves.await.iter().all(|left| left.is_err()));
    drop(first.await.unwrap().unwrap());
    sleep(secs(60)).await;
    assert_eq!(store.acquires.load(Ordering::Relaxed), 1);
    assert!(provider.accounting().balances());
    provider.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overload_is_an_error_at_once_that_can_be_retried() {
    let store = Slow::new(2);
    store.is_now(Pace { acquire: secs(1), ..Pace::default() });
    let provider = provider(&store);
    // One acquisition at once, a second each.
    let mut warm = provider.acquire("warm").await.unwrap();
    for n in 0..3 {
        warm = provider.acquire(format!("warm {n}")).await.unwrap();
    }
    let patient: Vec<_> = (0..5).map(|n| in_task(&provider, format!("{n}"))).collect();
    tokio::task::yield_now().await;
    let begun = Instant::now();
    let error = provider.acquire("hasty").timeout(secs(3)).await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(
        (error.kind(), error.is_retryable(), error.in_line()),
        (ErrorKind::Overloaded, true, Some(4)),
        "{error}"
    );
    assert!(error.to_string().contains("4 calls wait before this one"), "{error}");
    let error = provider.try_acquire("hasty").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
    for patient in patient {
        drop(patient.await.unwrap().unwrap());
    }
    assert!(provider.acquire("hasty").timeout(secs(3)).await.is_ok());
    drop(warm);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_does_not_poll_keeps_no_permit_from_others() {
    let store = Slow::new(1);
    store.is_now(Pace { acquire: ms(100), ..Pace::default() });
    let provider = provider(&store);
    let mut stalls = std::pin::pin!(provider.acquire("stalls").into_future());
    let mut stands = std::pin::pin!(provider.acquire("stands in line").into_future());
    assert!(timeout(ms(1), &mut stalls).await.is_err());
    assert!(timeout(ms(1), &mut stands).await.is_err());
    // Neither of the two is polled while this one waits.
    let others = timeout(secs(2), provider.acquire("other").into_future()).await;
    assert!(others.expect("not kept out").is_ok());
    assert!(stalls.await.is_ok() && stands.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_before_the_acquisitions_in_line() {
    let store = Slow::new(1);
    let provider = provider(&store);
    let guard = provider.acquire("mine").await.unwrap();
    store.is_now(Pace { acquire: secs(1), release: secs(1), ..Pace::default() });
    let _line: Vec<_> = (0..10).map(|n| in_task(&provider, format!("{n}"))).collect();
    tokio::task::yield_now().await;
    let begun = Instant::now();
    assert!(guard.release().await.unwrap().is_released());
    assert!(begun.elapsed() <= ms(2010), "behind one acquisition: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_knows_the_lock_is_busy_is_told_that_at_its_limit() {
    let store = Slow::new(1);
    let (here, there) = (provider(&store), LeaseProvider::new(Arc::new(store.inner.clone())));
    let _held = there.acquire("k").ttl(secs(60)).await.unwrap();
    let waits = tokio::spawn({
        let here = here.clone();
        async move { here.acquire("k").timeout(secs(8)).await.map(|_| ()) }
    });
    sleep(secs(1)).await;
    store.is_now(Pace { acquire: secs(4), ..Pace::default() });
    let _line: Vec<_> = (0..50).map(|n| in_task(&here, format!("{n}"))).collect();
    let error = waits.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn c14_many_leases_pass_through_a_stall_and_a_slow_server() {
    let store = Slow::new(8);
    let provider = provider(&store);
    let acquired = (0..5_000).map(|n| provider.acquire(format!("{n}")).ttl(secs(60)).into_future());
    let guards: Vec<_> = join_all(acquired).await.into_iter().map(Result::unwrap).collect();
    let calls = |store: &Slow| store.renewals.swap(0, Ordering::Relaxed);
    sleep(secs(60)).await;
    let usual = calls(&store);
    // Nothing is answered for 20 s, and then ten times as slowly as a batch of 100 takes.
    store.is_now(Pace { acquire: secs(99), release: secs(99), renew: secs(99) });
    sleep(secs(20)).await;
    let stalled = calls(&store);
    store.is_now(Pace { acquire: ms(100), release: ms(100), renew: ms(100) });
    sleep(secs(60)).await;
    let slow = calls(&store);
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0, "calls per minute: {usual}, stalled {stalled}, slow {slow}");
    assert!(stalled <= 100 && slow <= 2 * usual + 200, "{usual}, stalled {stalled}, slow {slow}");
    store.is_now(Pace::default());
    drop(guards);
    provider.close().await.unwrap();
}

/// Withdrawals are made again by 64 at a time, however many a slow server has left open.
#[tokio::test(start_paused = true)]
async fn clean_ups_that_are_made_again_are_bounded() {
    let store = Slow::new(1000);
    let provider = LeaseProvider::builder(store.clone()).request_timeout(secs(1)).build().unwrap();
    store.is_now(Pace { acquire: ms(50), release: secs(3600), renew: Duration::ZERO });
    let leaving: Vec<_> = (0..300)
        .map(|n| {
            let provider = provider.clone();
            tokio::spawn(async move { provider.acquire(format!("key {n}")).await.map(drop) })
        })
        .collect();
    sleep(ms(20)).await;
    leaving.iter().for_each(JoinHandle::abort);
    // The first withdrawal of each waits for no other.
    sleep(ms(500)).await;
    assert_eq!(store.in_flight.load(Ordering::Relaxed), 300);
    sleep(secs(2)).await;
    store.most.store(0, Ordering::Relaxed);
    sleep(secs(10)).await;
    let most = store.most.load(Ordering::Relaxed);
    assert!((1..=64).contains(&most), "{most} at once");
    store.is_now(Pace::default());
    sleep(secs(20)).await;
    for n in 0..300 {
        assert!(store.inner.peek(format!("key {n}")).is_none(), "{n}");
    }
}
