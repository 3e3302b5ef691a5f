//! Interleavings that try to break the engine, by clause. The store is hostile: it answers late, never, twice over, wrongly, or panics.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use distlock_api::{
    AcquireOptions, AcquisitionId, ErrorKind, FencingToken, LeaseOptions, LockError, LockGuard, LockKey, LockProvider,
    LockProviderExt, Loss, ReleaseOutcome, Result, Wait, async_trait,
};
use distlock_engine::store::{
    Attempt, BusyReply, Claim, EventStream, Grant, Release, Renewal, RenewalSubject, Reply, Standing,
    StoreCapabilities, StoreEvent, Watch,
};
use distlock_engine::{LeaseProvider, LeaseStore};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore, mpsc as channel};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::common::polled;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    TryAcquire,
    Renew,
    Release,
    Withdraw,
    Watch,
    Close,
}

/// What the store does with one call.
#[derive(Clone)]
enum Fate {
    Serve,
    /// Not applied; a retryable error.
    Fail,
    /// The same after a while.
    FailAfter(Duration),
    /// Applied; an error of unknown outcome.
    Lose,
    /// Not applied, never answered.
    Never,
    /// Applied and answered after a while.
    After(Duration),
    /// Applied at once, answered after a while.
    Late(Duration),
    /// Applied at once, answered when told.
    LateGate(Arc<Semaphore>),
    Panic,
}

/// Of a key, after all that these tests have granted.
const AFTER: FencingToken = FencingToken::new(1 << 40);

struct Record {
    id: AcquisitionId,
    token: u64,
    expires: Instant,
    closed_until: Instant,
    granted: Instant,
}

type Script = Box<dyn Fn(Op, &str, usize) -> Fate + Send + Sync>;

/// A lease store as the contract wants it, except for its script and its lies.
struct Hostile {
    records: Mutex<HashMap<LockKey, Record>>,
    released: Mutex<HashSet<AcquisitionId>>,
    tokens: AtomicUsize,
    log: Mutex<Vec<(Op, String)>>,
    called: Notify,
    script: Script,
    capabilities: StoreCapabilities,
    /// How often each call yields before it does anything.
    yields: usize,
    grants_for: Option<Duration>,
    renews_for: Option<Duration>,
    busy_for: Option<Duration>,
    says_how_long: bool,
    first_token: Option<u64>,
    forgets_answers: AtomicBool,
    drains_budget: AtomicBool,
    streams_end: bool,
    events: Mutex<Option<channel::UnboundedSender<Result<StoreEvent>>>>,
}

impl Hostile {
    fn new(script: impl Fn(Op, &str, usize) -> Fate + Send + Sync + 'static) -> Self {
        let mut capabilities = StoreCapabilities::default();
        capabilities.ordered_claims = true;
        capabilities.minimum_hold = true;
        Self {
            records: Mutex::default(),
            released: Mutex::default(),
            tokens: AtomicUsize::new(0),
            log: Mutex::default(),
            called: Notify::new(),
            script: Box::new(script),
            capabilities,
            yields: 0,
            grants_for: None,
            renews_for: None,
            busy_for: None,
            says_how_long: true,
            first_token: None,
            forgets_answers: AtomicBool::new(false),
            drains_budget: AtomicBool::new(false),
            streams_end: false,
            events: Mutex::default(),
        }
    }

    fn honest() -> Self {
        Self::new(|_, _, _| Fate::Serve)
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Arc<Self> {
        change(&mut self);
        Arc::new(self)
    }

    fn count(&self, op: Op) -> usize {
        self.log.lock().unwrap().iter().filter(|(logged, ..)| *logged == op).count()
    }

    fn ops(&self) -> Vec<Op> {
        self.log.lock().unwrap().iter().map(|(op, ..)| *op).collect()
    }

    async fn called(&self, op: Op, times: usize) {
        loop {
            let mut called = pin!(self.called.notified());
            called.as_mut().enable();
            if self.count(op) >= times {
                return;
            }
            called.await;
        }
    }

    fn is_free(&self, key: &str) -> bool {
        let now = Instant::now();
        let key = LockKey::new(key).unwrap();
        self.records.lock().unwrap().get(&key).is_none_or(|r| r.expires <= now && r.closed_until <= now)
    }

    /// Takes the lease away, and says to whom it belonged.
    fn take_away(&self, key: &str) -> AcquisitionId {
        self.records.lock().unwrap().remove(&LockKey::new(key).unwrap()).expect("held").id
    }

    fn push(&self, event: StoreEvent) {
        let events = self.events.lock().unwrap();
        events.as_ref().expect("somebody watches").send(Ok(event)).expect("somebody watches");
    }

    fn arrive(&self, op: Op, key: &str) -> Fate {
        let nth = {
            let mut log = self.log.lock().unwrap();
            log.push((op, key.to_owned()));
            log.iter().filter(|(logged, name)| *logged == op && name == key).count()
        };
        self.called.notify_waiters();
        (self.script)(op, key, nth)
    }

    async fn serve<T>(&self, fate: Fate, step: impl FnOnce() -> T) -> Result<T> {
        for _ in 0..self.yields {
            yield_now().await;
        }
        match fate {
            Fate::Serve => Ok(step()),
            Fate::Fail => Err(LockError::new(ErrorKind::Unavailable, "not applied")),
            Fate::FailAfter(pause) => {
                sleep(pause).await;
                Err(LockError::new(ErrorKind::Unavailable, "not applied"))
            }
            Fate::Lose => {
                step();
                Err(LockError::new(ErrorKind::Unavailable, "reply lost").outcome_unknown())
            }
            Fate::Never => std::future::pending().await,
            Fate::After(pause) => {
                sleep(pause).await;
                Ok(step())
            }
            Fate::Late(pause) => {
                let reply = step();
                sleep(pause).await;
                Ok(reply)
            }
            Fate::LateGate(gate) => {
                let reply = step();
                gate.acquire().await.unwrap().forget();
                Ok(reply)
            }
            Fate::Panic => panic!("the store panics"),
        }
    }

    fn step_try(&self, attempt: &Attempt) -> Reply {
        let now = Instant::now();
        let mut records = self.records.lock().unwrap();
        let claim = &attempt.claim;
        if let Some(record) = records.get_mut(claim.key()) {
            if record.id == *claim.id() && record.expires > now {
                record.expires = record.expires.max(now + attempt.ttl);
                let remaining = self.grants_for.unwrap_or(record.expires - now);
                return Reply::Granted(Grant::new(FencingToken::new(record.token), remaining));
            }
            let opens = record.expires.max(record.closed_until);
            if opens > now {
                if !self.says_how_long {
                    return Reply::Busy(BusyReply::new());
                }
                return Reply::Busy(BusyReply::new().with_holder_remaining(self.busy_for.unwrap_or(opens - now)));
            }
        }
        let token = self.first_token.unwrap_or(self.tokens.fetch_add(1, Ordering::Relaxed) as u64 + 1);
        let expires = now + attempt.ttl;
        records.insert(
            claim.key().clone(),
            Record { id: claim.id().clone(), token, expires, closed_until: now, granted: now },
        );
        Reply::Granted(Grant::new(FencingToken::new(token), self.grants_for.unwrap_or(attempt.ttl)))
    }

    fn step_renew(&self, renewal: &Renewal) -> Standing {
        let now = Instant::now();
        let RenewalSubject::Lease { token, ttl } = renewal.subject else { unreachable!() };
        match self.records.lock().unwrap().get_mut(renewal.claim.key()) {
            Some(r) if r.id == *renewal.claim.id() && r.token == token.get() && r.expires > now => {
                r.expires = r.expires.max(now + ttl);
                Standing::Held { remaining: self.renews_for.unwrap_or(r.expires - now) }
            }
            _ => Standing::Gone(Loss::Gone),
        }
    }

    fn step_release(&self, claim: &Claim, hold: Option<Duration>) -> ReleaseOutcome {
        let now = Instant::now();
        match self.records.lock().unwrap().get_mut(claim.key()) {
            Some(r) if r.id == *claim.id() && r.expires > now => {
                r.expires = now;
                r.closed_until = hold.map_or(now, |hold| r.granted + hold);
                self.released.lock().unwrap().insert(claim.id().clone());
                ReleaseOutcome::Released
            }
            _ if self.released.lock().unwrap().contains(claim.id()) => ReleaseOutcome::Released,
            _ => ReleaseOutcome::AlreadyLost,
        }
    }
}

impl fmt::Debug for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hostile")
    }
}

#[async_trait]
impl LeaseStore for Hostile {
    fn capabilities(&self) -> StoreCapabilities {
        self.capabilities
    }

    fn name(&self) -> &str {
        "hostile"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        assert!(!attempt.timeout.is_zero(), "a timeout of zero");
        let fate = self.arrive(Op::TryAcquire, attempt.claim.key().as_str());
        self.serve(fate, || self.step_try(attempt)).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let fate = self.arrive(Op::Renew, renewal.claim.key().as_str());
        self.serve(fate, || self.step_renew(renewal)).await
    }

    /// As a batch at a real store: one member's fate is everybody's delay.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        if self.drains_budget.load(Ordering::Relaxed) {
            for renewal in renewals {
                self.arrive(Op::Renew, renewal.claim.key().as_str());
            }
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            return renewals.iter().map(|renewal| Ok(self.step_renew(renewal))).collect();
        }
        let answers = join_all(renewals.iter().map(|renewal| self.renew(renewal))).await;
        if self.forgets_answers.swap(false, Ordering::Relaxed) { Vec::new() } else { answers }
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        assert!(!release.timeout.is_zero(), "a timeout of zero");
        let fate = self.arrive(Op::Release, release.claim.key().as_str());
        self.serve(fate, || self.step_release(&release.claim, release.hold_at_least)).await
    }

    async fn withdraw(&self, claim: &Claim, _: Duration) -> Result<()> {
        let fate = self.arrive(Op::Withdraw, claim.key().as_str());
        let _ = self.serve(fate, || self.step_release(claim, None)).await?;
        Ok(())
    }

    async fn subscribe(&self, _: &Watch) -> Result<EventStream> {
        self.arrive(Op::Watch, "");
        if self.streams_end {
            return Ok(Box::pin(futures_util::stream::empty()));
        }
        let (sender, receiver) = channel::unbounded_channel();
        *self.events.lock().unwrap() = Some(sender);
        Ok(Box::pin(futures_util::stream::unfold(receiver, |mut receiver| async {
            Some((receiver.recv().await?, receiver))
        })))
    }

    async fn close(&self) -> Result<()> {
        let fate = self.arrive(Op::Close, "");
        // What the store opened ends with it.
        self.events.lock().unwrap().take();
        self.serve(fate, || ()).await
    }
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn provider(store: &Arc<Hostile>) -> LeaseProvider {
    LeaseProvider::new(store.clone())
}

/// Everything that can run without time passing has run.
async fn quiet() {
    for _ in 0..200 {
        yield_now().await;
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs something that may deadlock, on a thread of its own.
fn within_5s(work: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    is_done.recv_timeout(secs(5)).is_ok()
}

// ---- C3: the deadline is conservative ----

#[tokio::test(start_paused = true)]
async fn c3_the_deadline_counts_from_before_the_sending() {
    let store = Hostile::new(|op, _, _| if op == Op::TryAcquire { Fate::Late(ms(300)) } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    assert_eq!(guard.remaining(), Some(ms(600)));
}

#[tokio::test(start_paused = true)]
async fn c23_what_is_settled_in_the_background_is_counted() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::TryAcquire, 1) | (Op::Withdraw, 1) => Fate::Late(ms(300)),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let unsettled = || provider.accounting().unsettled;
    assert!(timeout(ms(100), provider.acquire("k")).await.is_err());
    assert_eq!(provider.accounting().waiting, 0);
    assert_eq!(unsettled(), 1);
    sleep(ms(400)).await;
    assert_eq!(unsettled(), 1, "the grant is withdrawn");
    sleep(ms(200)).await;
    assert_eq!(unsettled(), 0);
    assert_eq!((store.count(Op::TryAcquire), store.count(Op::Withdraw)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_that_comes_too_late_is_given_back() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::TryAcquire, 1) => Fate::Late(ms(950)),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let started = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).timeout(secs(5)).await.unwrap();
    assert!(guard.fencing_token().get() == 2 && started.elapsed() < ms(1200), "{:?}", started.elapsed());
    assert_eq!(store.count(Op::Withdraw), 1);
    assert_eq!(provider.accounting().acquired, 1);
}

#[tokio::test(start_paused = true)]
async fn c3_a_grant_of_no_length_is_never_handed_out() {
    let store = Hostile::honest().with(|store| store.grants_for = Some(ms(100)));
    let provider = provider(&store);
    let refused = provider.try_acquire("k").ttl(secs(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout);
    store.called(Op::Withdraw, 1).await;
    quiet().await;
    assert!(store.is_free("k") && provider.accounting().acquired == 0);
}

#[tokio::test(start_paused = true)]
async fn c3_a_late_answer_to_a_renewal_extends_from_its_sending_only() {
    let store = Hostile::new(|op, _, nth| match (op, nth) {
        (Op::Renew, 1) => Fate::Late(ms(400)),
        (Op::Renew, _) => Fate::Never,
        _ => Fate::Serve,
    });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).renewal(distlock_api::RenewalPolicy::Every(ms(300))).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(start.elapsed(), ms(300 + 900));
}

// ---- C4: loss is prompt and final ----

#[tokio::test(start_paused = true)]
async fn c4_lost_resolves_at_the_deadline_while_every_renewal_hangs_and_stays_lost() {
    let gate = Arc::new(Semaphore::new(0));
    let hung = gate.clone();
    let store = Hostile::new(move |op, _, _| match op {
        Op::Renew => Fate::LateGate(hung.clone()),
        Op::Withdraw => Fate::Never,
        _ => Fate::Serve,
    });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(start.elapsed(), ms(900));
    // All the hung renewals were applied: at the store the lease lives on.
    gate.add_permits(1000);
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Expired));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
    let books = provider.accounting();
    assert!(books.balances() && books.lost == 1 && books.held == 0, "{books:?}");
}

#[tokio::test(start_paused = true)]
async fn c4_a_pushed_loss_is_heard_at_once_and_counted_once() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    store.called(Op::Watch, 1).await;
    quiet().await;
    let start = Instant::now();
    let lost = guard.lost();
    let id = store.take_away("k");
    let key = LockKey::new("k").unwrap();
    for loss in [Loss::ForceReleased, Loss::Gone] {
        store.push(StoreEvent::Gone { key: key.clone(), id: id.clone(), token: AFTER, loss });
    }
    assert_eq!(lost.await, Loss::ForceReleased);
    assert_eq!(start.elapsed(), Duration::ZERO);
    advance(secs(60)).await;
    quiet().await;
    assert_eq!((guard.loss(), provider.accounting().lost), (Some(Loss::ForceReleased), 1));
}

/// Somebody has been granted `k`, hears events, and has not heard of the grant: that is told through the gate.
struct Unheard {
    store: Arc<Hostile>,
    provider: LeaseProvider,
    gate: Arc<Semaphore>,
    acquiring: JoinHandle<Result<LockGuard>>,
    _opens_the_stream: LockGuard,
}

impl Unheard {
    async fn grant() -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let late = gate.clone();
        let store = Hostile::new(move |op, key, nth| match (op, key, nth) {
            (Op::TryAcquire, "k", 1) => Fate::LateGate(late.clone()),
            _ => Fate::Serve,
        });
        let store = store.with(|store| store.capabilities.push = true);
        let provider = provider(&store);
        let _opens_the_stream = provider.acquire("other").await.unwrap();
        store.called(Op::Watch, 1).await;
        quiet().await;
        let acquiring = tokio::spawn({
            let provider = provider.clone();
            async move { provider.acquire("k").await }
        });
        quiet().await;
        Self { store, provider, gate, acquiring, _opens_the_stream }
    }

    /// After it was heard of.
    async fn heard(self) -> LockGuard {
        quiet().await;
        self.gate.add_permits(1);
        self.acquiring.await.unwrap().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn c4_a_loss_pushed_before_the_grants_answer_is_not_forgotten() {
    let unheard = Unheard::grant().await;
    let (store, provider) = (unheard.store.clone(), unheard.provider.clone());
    // Granted, and force-released before the holder has heard of its grant.
    let id = store.take_away("k");
    store.push(StoreEvent::Gone { key: LockKey::new("k").unwrap(), id, token: AFTER, loss: Loss::ForceReleased });
    // What was lost before it was heard of is no lease: the caller gets another grant.
    let guard = unheard.heard().await;
    quiet().await;
    assert_eq!((guard.loss(), store.count(Op::TryAcquire)), (None, 3));
    assert_eq!(provider.accounting().acquired, 2, "the lost one was never anybody's");
}

#[tokio::test(start_paused = true)]
async fn c4_after_a_gap_holders_ask_at_once() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    store.called(Op::Watch, 1).await;
    quiet().await;
    store.take_away("k");
    store.push(StoreEvent::Gap);
    quiet().await;
    advance(secs(1)).await;
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone), "R20: a gap makes everybody ask, holders too");
}

#[tokio::test(start_paused = true)]
async fn c4_a_holder_asks_at_once_when_its_key_is_said_to_be_free() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    let kept = provider.acquire("kept").await.unwrap();
    store.called(Op::Watch, 1).await;
    sleep(secs(2)).await;
    store.take_away("k");
    for key in ["k", "kept"] {
        store.push(StoreEvent::Freed { key: LockKey::new(key).unwrap() });
    }
    quiet().await;
    sleep(ms(300)).await;
    assert_eq!((guard.loss(), kept.loss()), (Some(Loss::Gone), None), "an event is a hint; the store is asked");
}

#[tokio::test(start_paused = true)]
async fn c4_an_event_of_the_release_before_costs_a_new_lease_no_renewal() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let _listens = provider.acquire("other").await.unwrap();
    store.called(Op::Watch, 1).await;
    let guard = provider.acquire("k").await.unwrap();
    let renewals = store.count(Op::Renew);
    store.push(StoreEvent::Freed { key: LockKey::new("k").unwrap() });
    quiet().await;
    sleep(ms(500)).await;
    assert!(guard.release().await.unwrap().is_released());
    sleep(secs(3)).await;
    assert_eq!(store.count(Op::Renew), renewals);
}

#[tokio::test(start_paused = true)]
async fn c13_a_loss_of_an_earlier_lease_of_the_same_claim_is_not_that_of_the_present_one() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    store.called(Op::Watch, 1).await;
    quiet().await;
    let (key, id) = (LockKey::new("k").unwrap(), store.records.lock().unwrap().values().next().unwrap().id.clone());
    // What a take-over of the own, expired lease says: the token of the present one.
    let gone = |token| StoreEvent::Gone { key: key.clone(), id: id.clone(), token, loss: Loss::Gone };
    store.push(gone(guard.fencing_token()));
    quiet().await;
    assert_eq!(guard.loss(), None);
    store.push(gone(FencingToken::new(guard.fencing_token().get() + 1)));
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone));
}

#[tokio::test(start_paused = true)]
async fn c4_a_grant_that_was_on_its_way_during_a_gap_is_asked_for_at_once() {
    let unheard = Unheard::grant().await;
    let (store, _provider) = (unheard.store.clone(), unheard.provider.clone());
    // Granted, and taken away while nobody could hear of it.
    store.take_away("k");
    store.push(StoreEvent::Gap);
    let guard = unheard.heard().await;
    advance(ms(100)).await;
    quiet().await;
    assert_eq!(guard.loss(), Some(Loss::Gone), "R20: not a cadence later");
}

#[test]
fn c4_a_waker_that_looks_at_the_guard_does_not_deadlock() {
    struct Looks(LockGuard);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let _ = self.0.is_lost();
        }
    }
    assert!(within_5s(|| {
        one_thread().block_on(async {
            let provider = provider(&Arc::new(Hostile::honest()));
            let guard = provider.acquire("k").await.unwrap();
            let mut lost = Box::pin(guard.lost());
            let waker = Arc::new(Looks(guard)).into();
            assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            provider.close().await.unwrap();
        });
    }));
}

// ---- C10: lost replies ----

#[tokio::test(start_paused = true)]
async fn c10_a_grant_whose_reply_was_lost_is_found_again_with_one_token() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::TryAcquire, 1) => Fate::Lose,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.try_acquire("k").await.unwrap().expect("nobody else wants it");
    assert_eq!((guard.fencing_token().get(), store.count(Op::Withdraw)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn c10_without_ordered_claims_a_lost_reply_is_no_self_deadlock() {
    let store = Hostile::new(|op, _, nth| match (op, nth) {
        (Op::TryAcquire, 1) => Fate::Lose,
        (Op::Withdraw, 1) => Fate::Fail,
        (Op::Withdraw, 2) => Fate::Lose,
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities.ordered_claims = false);
    let provider = provider(&store);
    let start = Instant::now();
    let guard = provider.acquire("k").await.unwrap();
    assert!(start.elapsed() < secs(1), "{:?}", start.elapsed());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn c10_lost_replies_of_renewal_and_release_change_nothing() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::Renew, 1..=3) | (Op::Release, 1..=2) => Fate::Lose,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    sleep(secs(30)).await;
    assert!(!guard.is_lost());
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!((store.count(Op::Release), provider.accounting().released), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn c10_a_lease_granted_or_renewed_for_less_than_a_cadence_is_renewed_before_it_ends() {
    // "A lower bound will do", says `Standing::Held`.
    let store = Hostile::honest().with(|store| store.renews_for = Some(secs(12)));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(30)).await.unwrap();
    sleep(secs(120)).await;
    assert_eq!(guard.loss(), None, "renewed {} times", store.count(Op::Renew));
}

// ---- C11: cancel safety ----

#[tokio::test(start_paused = true)]
async fn c11_an_acquisition_dropped_at_any_poll_leaves_nothing() {
    for ordered in [true, false] {
        for first in [Fate::Serve, Fate::Fail, Fate::Lose, Fate::After(ms(5)), Fate::Late(ms(5))] {
            for polls in 0..16 {
                let first = first.clone();
                let store = Hostile::new(move |op, _, nth| match (op, nth) {
                    (Op::TryAcquire, 1) => first.clone(),
                    _ => Fate::Serve,
                });
                let store = store.with(|store| {
                    store.yields = 2;
                    store.capabilities.ordered_claims = ordered;
                });
                let provider = provider(&store);
                drop(polled(polls, provider.acquire("k").into_future()).await);
                sleep(secs(1)).await;
                let books = provider.accounting();
                assert!(store.is_free("k") && books.balances(), "{polls} {books:?}");
                assert_eq!((books.held, books.waiting, books.abandoned), (0, 0, 0), "{polls}");
                let start = Instant::now();
                let _ = provider.acquire("k").await.unwrap();
                assert!(start.elapsed() < ms(50), "the turn is free too");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c11_a_release_dropped_at_any_poll_goes_on() {
    for fate in [Fate::Serve, Fate::Fail, Fate::Lose, Fate::After(ms(50)), Fate::Late(ms(50))] {
        for polls in 0..12 {
            let fate = fate.clone();
            let store = Hostile::new(move |op, _, nth| match (op, nth) {
                (Op::Release, 1) => fate.clone(),
                _ => Fate::Serve,
            });
            let store = store.with(|store| store.yields = 2);
            let provider = provider(&store);
            let guard = provider.acquire("k").await.unwrap();
            drop(polled(polls, guard.release()).await);
            sleep(secs(1)).await;
            let books = provider.accounting();
            assert!(store.is_free("k") && books.balances() && books.released == 1, "{polls} {books:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c11_acquire_all_and_run_dropped_at_any_poll_leave_nothing() {
    for polls in 0..24 {
        let store = Hostile::honest().with(|store| store.yields = 2);
        let provider = provider(&store);
        drop(polled(polls, provider.acquire_all(["c", "a", "b", "a"]).into_future()).await);
        drop(polled(polls, provider.acquire("d").run(|_| async { yield_now().await })).await);
        sleep(secs(1)).await;
        let books = provider.accounting();
        assert!(["a", "b", "c", "d"].iter().all(|key| store.is_free(key)), "{polls}");
        assert!(books.balances() && books.held == 0 && books.waiting == 0, "{polls} {books:?}");
    }
}

/// Panics on each event.
struct Panicking;

impl tracing::Subscriber for Panicking {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("a subscriber panicked");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn c14_a_subscriber_that_panics_costs_no_lease() {
    let store = Arc::new(Hostile::new(|op, key, nth| match (op, key, nth) {
        (Op::Renew, "unlucky", 1) | (Op::Release, "unreleased", 1..) => Fate::Fail,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let _subscriber = tracing::subscriber::set_default(Panicking);
    let unlucky = provider.acquire("unlucky").ttl(secs(9)).await.unwrap();
    let other = provider.acquire("other").ttl(secs(9)).await.unwrap();
    let lost = provider.acquire("lost").ttl(secs(9)).await.unwrap();
    store.take_away("lost");
    drop(provider.acquire("unreleased").ttl(secs(9)).await.unwrap());
    assert_eq!(lost.lost().await, Loss::Gone);
    sleep(secs(60)).await;
    assert_eq!((unlucky.loss(), other.loss()), (None, None));
    let books = provider.accounting();
    assert_eq!((books.held, books.lost, books.abandoned), (2, 1, 1), "{books:?}");
    drop((unlucky, other, lost));
    provider.close().await.unwrap();
}

/// The engine wakes a task that awaits the loss of a lock, by code of the caller's executor.
#[tokio::test(start_paused = true)]
async fn c14_c23_a_waker_that_panics_costs_no_lease() {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let lost = provider.acquire("lost").ttl(secs(9)).await.unwrap();
    let other = provider.acquire("other").ttl(secs(9)).await.unwrap();
    let waker = Waker::from(Arc::new(Panicking));
    let mut signal = std::pin::pin!(lost.lost());
    assert!(signal.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    store.take_away("lost");
    // Before the deadline, at which the runtime's timer would wake it.
    sleep(secs(5)).await;
    assert_eq!((lost.loss(), other.loss()), (Some(Loss::Gone), None));
    let books = provider.accounting();
    assert_eq!((books.held, books.lost), (1, 1), "{books:?}");
    drop(other);
    provider.close().await.unwrap();
    assert!(provider.accounting().balances());
}

#[test]
fn outside_a_runtime_calls_are_errors_and_no_panics() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let acquired = provider.acquire_with(LockKey::new("k").unwrap(), AcquireOptions::new()).now_or_never();
    let closed = provider.close().now_or_never();
    for error in [acquired.unwrap().map(drop).unwrap_err(), closed.unwrap().unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("outside a tokio runtime"), "{error}");
    }
    assert_eq!(store.count(Op::TryAcquire), 0);
    // Nothing has been closed.
    one_thread().block_on(async {
        assert!(provider.acquire("k").await.unwrap().release().await.unwrap().is_released());
    });
}

#[test]
fn c11_c23_a_runtime_that_dies_leaves_balanced_books() {
    let store = Hostile::new(|op, _, _| if op == Op::Release { Fate::Never } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let runtime = one_thread();
    let (guard, release) = runtime.block_on(async {
        tokio::spawn({
            let provider = provider.clone();
            async move {
                let _guard = provider.acquire("in a task").await.unwrap();
                std::future::pending::<()>().await;
            }
        });
        drop(provider.acquire("released in the background").await.unwrap());
        let release = provider.acquire("released").await.unwrap().release();
        yield_now().await;
        (provider.acquire("outside").await.unwrap(), release)
    });
    drop(runtime);
    drop((guard, release));
    let books = provider.accounting();
    assert!(books.balances() && books.held == 0 && books.abandoned == 4, "{books:?}");
}

#[test]
fn c11_a_guard_dropped_on_a_passing_runtime_is_released_on_the_one_that_acquired_it() {
    let store = Hostile::honest().with(|store| store.yields = 1);
    let provider = provider(&store);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    let passing = one_thread();
    passing.block_on(async move { drop(guard) });
    drop(passing);
    home.block_on(quiet());
    let books = provider.accounting();
    assert!(store.is_free("k") && books.released == 1, "{books:?}");
}

#[test]
fn c11_a_guard_dropped_on_a_runtime_without_time_is_released() {
    let store = Hostile::honest().with(|store| store.yields = 1);
    let provider = provider(&store);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    let timeless = Builder::new_current_thread().build().unwrap();
    timeless.block_on(async move {
        drop(guard);
        quiet().await;
    });
    home.block_on(quiet());
    let books = provider.accounting();
    assert!(store.is_free("k") && books.released == 1, "{books:?}");
}

#[test]
fn c11_a_guard_dropped_outside_of_runtimes_is_released_on_the_one_that_acquired_it() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let first = one_thread();
    first.block_on(async { drop(provider.acquire("other").await.unwrap()) });
    drop(first);
    let home = one_thread();
    let guard = home.block_on(async { provider.acquire("k").await.unwrap() });
    drop(guard);
    home.block_on(quiet());
    assert!(store.is_free("k"), "{:?}", provider.accounting());
}

#[tokio::test(start_paused = true)]
async fn c11_hung_clean_ups_do_not_hold_up_a_healthy_release() {
    let store = Hostile::new(|op, key, _| match (op, key) {
        (Op::Withdraw, _) => Fate::Never,
        _ => Fate::Serve,
    });
    let store = Arc::new(store);
    let provider = provider(&store);
    let healthy = provider.acquire("healthy").await.unwrap();
    let lost: Vec<_> =
        join_all((0..640).map(|n| provider.acquire(format!("lost {n}")).ttl(secs(1)).into_future())).await;
    for n in 0..640 {
        store.take_away(&format!("lost {n}"));
    }
    // All are found to be gone; a clean-up of each hangs.
    sleep(secs(1)).await;
    drop(lost);
    let start = Instant::now();
    drop(healthy);
    let next = provider.acquire("healthy").timeout(secs(60)).await;
    assert!(next.is_ok() && start.elapsed() < secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c11_an_attempt_that_panicked_is_withdrawn() {
    for ordered in [true, false] {
        let store = Hostile::new(|op, _, nth| match (op, nth) {
            (Op::TryAcquire, 1) => Fate::Panic,
            _ => Fate::Serve,
        });
        let store = Arc::new(store.with(|store| store.capabilities.ordered_claims = ordered));
        let provider = provider(&store);
        // An outcome that nobody knows, like any other: asked for again, or withdrawn.
        let guard = provider.acquire("k").await.unwrap();
        sleep(secs(1)).await;
        assert_eq!(store.count(Op::Withdraw), usize::from(!ordered));
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    }
}

// ---- C12: nothing is renewed after its release ----

#[tokio::test(start_paused = true)]
async fn c12_a_lease_is_not_renewed_once_its_release_has_begun() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::Release { Fate::Never } else { Fate::Serve }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    store.called(Op::Renew, 2).await;
    let renewed = store.count(Op::Renew);
    drop(guard);
    sleep(secs(30)).await;
    assert_eq!(store.count(Op::Renew), renewed);
}

#[tokio::test(start_paused = true)]
async fn c12_a_renewal_answered_after_the_release_revives_nothing() {
    let gate = Arc::new(Semaphore::new(0));
    let late = gate.clone();
    let store = Arc::new(Hostile::new(move |op, _, nth| match (op, nth) {
        (Op::Renew, 1) => Fate::LateGate(late.clone()),
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
    store.called(Op::Renew, 1).await;
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    gate.add_permits(1);
    sleep(secs(30)).await;
    let books = provider.accounting();
    assert!(store.is_free("k") && books.balances() && books.released == 1 && books.held == 0);
    assert_eq!(store.count(Op::Renew), 1);
}

#[tokio::test(start_paused = true)]
async fn c12_a_batch_that_was_planned_before_a_release_does_not_renew_after_it() {
    let store = Hostile::honest().with(|store| store.capabilities.renew_batch = NonZeroUsize::MIN);
    let provider = provider(&store);
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(provider.acquire(name).ttl(secs(3)).await.unwrap());
    }
    // A store that does real work uses up the keeper's budget: the beat is cut in two.
    store.drains_budget.store(true, Ordering::Relaxed);
    store.called(Op::Renew, 1).await;
    join_all(guards.into_iter().map(LockGuard::release)).await;
    sleep(secs(10)).await;
    let log = store.log.lock().unwrap();
    let renewed_late: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(at, (op, key))| *op == Op::Renew && log[..*at].contains(&(Op::Release, key.clone())))
        .collect();
    assert!(renewed_late.is_empty(), "{renewed_late:?}");
}

// ---- C13, C14: renewal goes on ----

#[tokio::test(start_paused = true)]
async fn c13_transient_errors_neither_end_renewal_nor_waiting() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth % 3) {
        (Op::Renew | Op::TryAcquire, 1 | 2) => Fate::Fail,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(3)).timeout(secs(5)).await.unwrap();
    sleep(secs(60)).await;
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn c14_one_hung_key_costs_nobody_else_the_lease() {
    let store = Arc::new(Hostile::new(|op, key, _| match (op, key) {
        (Op::Renew, "7") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guards = join_all((0..500).map(|n| provider.acquire(n.to_string()).into_future())).await;
    sleep(secs(60)).await;
    let lost: Vec<_> = guards.iter().flatten().filter(|g| g.is_lost()).map(|g| g.key().clone()).collect();
    assert_eq!(lost, [LockKey::new("7").unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn c14_many_hung_keys_cost_nobody_else_the_lease() {
    // Such as one shard of two being down.
    let store = Arc::new(Hostile::new(|op, key, _| match op {
        Op::Renew | Op::Withdraw if key.ends_with("hung") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let names = (0..400).map(|n| if n % 2 == 0 { format!("{n}") } else { format!("{n} hung") });
    let guards = join_all(names.map(|name| provider.acquire(name).into_future())).await;
    sleep(secs(60)).await;
    let lost = guards.iter().flatten().filter(|g| g.is_lost() && !g.key().as_str().ends_with("hung")).count();
    assert_eq!(lost, 0, "of 200 healthy ones");
}

#[tokio::test(start_paused = true)]
async fn c14_a_store_that_panics_on_one_renewal_does_not_stop_all_others() {
    let store = Arc::new(Hostile::new(|op, key, nth| match (op, key, nth) {
        (Op::Renew, "bad", 1) => Fate::Panic,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let _bad = provider.acquire("bad").ttl(secs(3)).await.unwrap();
    let good = provider.acquire("good").ttl(secs(30)).await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(good.loss(), None);
}

#[tokio::test(start_paused = true)]
async fn c14_a_batch_with_too_few_answers_does_not_stop_renewal() {
    let store = Hostile::honest().with(|store| store.forgets_answers = AtomicBool::new(true));
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(guard.loss(), None);
}

/// Two runtimes share a provider; the first one, which got the keeper, ends or stands still.
fn renewed_on_the_second_runtime(first_dies: bool) {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let first = one_thread();
    let second = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let _one = first.block_on(async { provider.acquire("one").await.unwrap() });
    let two = second.block_on(async { provider.acquire("two").await.unwrap() });
    let _first = (!first_dies).then_some(first);
    second.block_on(async {
        sleep(secs(60)).await;
        assert_eq!(two.loss(), None, "its runtime and its store are well");
        let _ = two.release().await;
    });
}

#[test]
fn c13_renewal_goes_on_when_the_runtime_of_the_first_acquisition_has_died() {
    renewed_on_the_second_runtime(true);
}

#[test]
fn c13_renewal_goes_on_while_the_runtime_of_the_first_acquisition_stands_still() {
    renewed_on_the_second_runtime(false);
}

#[tokio::test(start_paused = true)]
async fn c13_a_keeper_asleep_wakes_for_a_newer_lease_that_is_due_earlier() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let mut guards = Vec::new();
    for ttl in [30_000, 3_000, 300, 60_000, 30] {
        guards.push(provider.acquire(ttl.to_string()).ttl(ms(ttl)).await.unwrap());
        sleep(ms(5)).await;
    }
    sleep(secs(120)).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

// ---- C16: no lost wake-up, no stalled waiter ----

#[tokio::test(start_paused = true)]
async fn c16_a_hung_release_does_not_hold_up_local_waiters_past_the_expiry() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::Release, 1) => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let guard = provider.acquire("k").ttl(secs(1)).await.unwrap();
    let start = Instant::now();
    drop(guard);
    let _next = provider.acquire("k").await.unwrap();
    assert!(start.elapsed() < secs(2), "the key was free after 1 s, this waiter had it after {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn c16_a_release_that_nobody_polls_does_not_hold_up_local_waiters_for_ever() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let unpolled = provider.acquire("k").ttl(secs(1)).await.unwrap().release();
    let next = provider.acquire("k").timeout(secs(60)).await;
    assert!(next.is_ok(), "the lease has expired at the store 59 s ago");
    drop(unpolled);
}

#[test]
fn c16_push_is_heard_again_after_the_runtime_of_the_first_acquisition_has_died() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    // A lease is listened for when it is a second old.
    let listens = async |times| {
        let _guard = provider.acquire("k").await.unwrap();
        let listening = async {
            while store.count(Op::Watch) < times {
                sleep(ms(10)).await;
            }
        };
        timeout(secs(30), listening).await.expect("nobody listens");
    };
    let first = one_thread();
    first.block_on(listens(1));
    drop(first);
    one_thread().block_on(listens(2));
    assert_eq!(store.count(Op::Watch), 2);
}

#[tokio::test(start_paused = true)]
async fn c17_a_stream_that_breaks_at_once_is_not_opened_in_a_busy_loop() {
    let store = Hostile::honest().with(|store| {
        store.capabilities.push = true;
        store.streams_end = true;
    });
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    sleep(secs(60)).await;
    assert!(store.count(Op::Watch) < 200, "opened {} times in a minute", store.count(Op::Watch));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn c17_busy_with_nothing_remaining_is_not_asked_in_a_busy_loop() {
    let store = Hostile::honest().with(|store| store.busy_for = Some(Duration::ZERO));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    assert!(provider.acquire("k").timeout(secs(10)).await.is_err());
    let asked = store.count(Op::TryAcquire);
    assert!(asked < 200, "asked {asked} times in 10 s although the longest pause is 250 ms");
}

// ---- C18: bounded calls, and numbers that are out of bounds ----

#[tokio::test(start_paused = true)]
async fn c18_calls_are_bounded_when_the_store_hangs() {
    let store = Hostile::new(|op, key, _| match (op, key) {
        (Op::TryAcquire, "free") => Fate::Serve,
        _ => Fate::Never,
    });
    let provider = provider(&Arc::new(store));
    let timed = async |call: &mut dyn FnMut() -> std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let start = Instant::now();
        call().await;
        start.elapsed()
    };
    let p = provider.clone();
    assert_eq!(
        timed(&mut || Box::pin({
            let p = p.clone();
            async move { drop(p.acquire("k").timeout(ms(700)).await) }
        }))
        .await,
        ms(700)
    );
    assert_eq!(
        timed(&mut || Box::pin({
            let p = p.clone();
            async move { drop(p.try_acquire("k").await) }
        }))
        .await,
        secs(5)
    );
    let guard = provider.acquire("free").await.unwrap();
    let start = Instant::now();
    assert!(guard.release().await.unwrap_err().is_outcome_unknown());
    assert_eq!(start.elapsed(), secs(5));
    let _held = provider.acquire("free 2").timeout(secs(1)).await;
    let start = Instant::now();
    assert!(provider.close().await.is_err());
    assert!(start.elapsed() <= secs(15));
    assert!(provider.accounting().balances());
}

#[tokio::test(start_paused = true)]
async fn c18_contention_at_a_slow_store_is_an_answer_and_no_error() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::TryAcquire { Fate::After(ms(50)) } else { Fate::Serve }));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let mut errors = Vec::new();
    for within in (900..1200).step_by(10) {
        let answer = provider.try_acquire("k").within(ms(within)).await;
        errors.extend(answer.err().map(|error| error.to_string()));
    }
    assert!(errors.is_empty(), "{} of 30, such as {:?}", errors.len(), errors.first());
}

#[tokio::test(start_paused = true)]
async fn c18_who_stood_in_line_until_it_was_too_late_to_ask_hears_that_the_lock_is_busy() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::TryAcquire { Fate::After(ms(50)) } else { Fate::Serve }));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let waits = [0, 10].map(|later| {
        let provider = provider.clone();
        tokio::spawn(async move {
            sleep(ms(later)).await;
            provider.try_acquire("k").within(secs(1)).await.map(|guard| guard.is_some())
        })
    });
    for wait in waits {
        assert!(matches!(wait.await.unwrap(), Ok(false)));
    }
}

#[tokio::test(start_paused = true)]
async fn c18_acquire_all_does_not_begin_with_another_key_when_its_time_is_up() {
    let store = Hostile::new(|op, _, _| if op == Op::TryAcquire { Fate::After(secs(1)) } else { Fate::Serve });
    let provider = provider(&Arc::new(store));
    let start = Instant::now();
    let all = provider.acquire_all(["a", "b", "c", "d", "e", "f"]).timeout(secs(1)).await;
    assert!(start.elapsed() <= secs(2), "answered after {:?}: {:?}", start.elapsed(), all.map(|all| all.is_some()));
}

#[tokio::test(start_paused = true)]
async fn c18_a_holder_that_never_expires_is_no_reason_to_panic() {
    let store = Hostile::honest().with(|store| store.busy_for = Some(Duration::MAX));
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("k").await.unwrap();
    let waited = tokio::spawn(async move { provider.acquire("k").timeout(secs(1)).await.map(drop) });
    assert_eq!(waited.await.expect("no panic").unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn c18_a_provider_told_never_to_poll_does_not_panic() {
    let store = Hostile::honest().with(|store| store.says_how_long = false);
    let other = provider(&store);
    let _held = other.acquire("k").await.unwrap();
    let built = LeaseProvider::builder(store).poll_interval(Duration::MAX, Duration::MAX).build();
    let Ok(provider) = built else { return };
    let waited = tokio::spawn(async move { provider.acquire("k").timeout(secs(1)).await.map(drop) });
    assert_eq!(waited.await.expect("no panic").unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn c18_the_highest_token_is_no_reason_to_panic() {
    let store = Hostile::honest().with(|store| store.first_token = Some(u64::MAX));
    let provider = provider(&store);
    let acquired = tokio::spawn(async move { provider.acquire("k").await.map(|guard| guard.fencing_token()) });
    assert_eq!(acquired.await.expect("no panic").unwrap(), FencingToken::new(u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn c18_leases_of_absurd_length_are_no_reason_to_panic() {
    let (mut fits, mut too_far) = (0, u64::MAX);
    while too_far - fits > 1 {
        let middle = fits + (too_far - fits) / 2;
        let side = if Instant::now().checked_add(secs(middle)).is_some() { &mut fits } else { &mut too_far };
        *side = middle;
    }
    // The first one fits without the margin of 3 s, and does not with it.
    for remaining in [secs(fits + 2), secs(fits - 2), Duration::MAX, secs(u64::MAX)] {
        let store = Hostile::honest().with(|store| {
            store.grants_for = Some(remaining);
            store.renews_for = Some(remaining);
        });
        let provider = provider(&store);
        let guard = provider.acquire("k").await.unwrap();
        assert!(timeout(secs(60), guard.lost()).await.is_err());
        drop(guard);
        quiet().await;
        assert_eq!(provider.accounting().released, 1, "{remaining:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn c18_every_request_has_a_bound_that_is_not_zero() {
    for seed in 0..200 {
        fastrand::seed(seed);
        // Fails so late that a pause of 10 to 20 ms may use up what is left; the store asserts.
        let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
            (Op::Release, 1) => Fate::FailAfter(ms(4988)),
            (Op::Release, _) => Fate::Fail,
            _ => Fate::Serve,
        }));
        let provider = provider(&store);
        let guard = provider.acquire("k").await.unwrap();
        let released = tokio::spawn(guard.release());
        assert!(released.await.expect("a bound above zero").is_err());
    }
}

// ---- C21: several keys ----

#[tokio::test(start_paused = true)]
async fn c21_a_rolled_back_acquisition_does_not_keep_its_keys_closed() {
    let store = Arc::new(Hostile::honest());
    let (provider, other) = (provider(&store), provider(&store));
    let _held = other.acquire("b").await.unwrap();
    let all = provider.acquire_all(["a", "b"]).hold_at_least(secs(3600)).timeout(ms(50)).await.unwrap();
    assert!(all.is_none());
    quiet().await;
    assert!(store.is_free("a"), "all or nothing: nobody has done the work, and nobody may for an hour");
}

#[tokio::test(start_paused = true)]
async fn c21_opposite_orders_do_not_deadlock() {
    let store = Arc::new(Hostile::honest());
    let providers = [provider(&store), provider(&store)];
    let rounds = (0..40).map(|n| {
        let provider = providers[n % 2].clone();
        tokio::spawn(async move {
            let keys = if n % 3 == 0 { ["a", "b", "a"] } else { ["b", "a", "b"] };
            let all = provider.acquire_all(keys).await.unwrap().unwrap();
            yield_now().await;
            all.release().await.unwrap()
        })
    });
    for outcome in join_all(rounds).await {
        assert_eq!(outcome.unwrap(), ReleaseOutcome::Released);
    }
}

// ---- C24: shutdown ----

/// The ops from the first `Close` on.
fn after_close(store: &Hostile) -> Vec<Op> {
    store.ops().into_iter().skip_while(|op| *op != Op::Close).skip(1).collect()
}

#[tokio::test(start_paused = true)]
async fn c24_the_store_is_not_closed_before_an_attempt_in_flight_is_withdrawn() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::TryAcquire { Fate::Late(ms(100)) } else { Fate::Serve }));
    let provider = provider(&store);
    let acquiring = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").await.map(drop) }
    });
    store.called(Op::TryAcquire, 1).await;
    provider.close().await.unwrap();
    let free = store.is_free("k");
    assert_eq!(acquiring.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    sleep(secs(1)).await;
    assert!(free && after_close(&store).is_empty(), "after the store was closed: {:?}", after_close(&store));
}

#[tokio::test(start_paused = true)]
async fn c24_close_waits_for_a_release_that_its_caller_awaits() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::Release { Fate::After(ms(100)) } else { Fate::Serve }));
    let provider = provider(&store);
    let releasing = tokio::spawn(provider.acquire("k").await.unwrap().release());
    store.called(Op::Release, 1).await;
    provider.close().await.unwrap();
    let books = provider.accounting();
    assert!(store.is_free("k") && books.held == 0, "the provider is closed, the store too: {books:?}");
    assert_eq!(releasing.await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(start_paused = true)]
async fn c24_no_waiter_asks_the_store_once_close_has_begun() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    let _held = provider.acquire("k").await.unwrap();
    let waiting = tokio::spawn({
        let provider = provider.clone();
        async move { provider.acquire("k").await.map(drop) }
    });
    quiet().await;
    let asked = store.count(Op::TryAcquire);
    provider.close().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    quiet().await;
    assert_eq!(store.count(Op::TryAcquire), asked, "after the store was closed: {:?}", after_close(&store));
}

#[tokio::test(start_paused = true)]
async fn c24_the_store_is_closed_once() {
    let store = Arc::new(Hostile::honest());
    let provider = provider(&store);
    provider.close().await.unwrap();
    provider.close().await.unwrap();
    assert_eq!(store.count(Op::Close), 1, "LeaseStore::close: \"called once\"");
}

#[tokio::test(start_paused = true)]
async fn c24_nobody_watches_a_closed_store() {
    let store = Hostile::honest().with(|store| store.capabilities.push = true);
    let provider = provider(&store);
    let guard = provider.acquire("k").await.unwrap();
    store.called(Op::Watch, 1).await;
    drop(guard);
    provider.close().await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(store.count(Op::Watch), 1, "`close` ends the tasks, says LeaseProvider");
}

#[tokio::test(start_paused = true)]
async fn c24_each_lease_is_released_whatever_becomes_of_the_others() {
    let store = Arc::new(Hostile::new(|op, key, _| match op {
        Op::Release if key.ends_with("hung") => Fate::Never,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let names: Vec<_> = (0..400).map(|n| if n % 5 == 0 { format!("{n}") } else { format!("{n} hung") }).collect();
    let guards = join_all(names.iter().map(|name| provider.acquire(name).ttl(secs(600)).into_future())).await;
    assert!(provider.close().await.is_err());
    let kept = names.iter().filter(|name| !name.ends_with("hung") && !store.is_free(name)).count();
    assert_eq!(kept, 0, "of 80 healthy ones");
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn c24_one_transient_error_does_not_leave_a_lease_behind() {
    let store = Arc::new(Hostile::new(|op, _, nth| match (op, nth) {
        (Op::Release, 1) => Fate::Fail,
        _ => Fate::Serve,
    }));
    let provider = provider(&store);
    let _guard = provider.acquire("k").await.unwrap();
    let closed = provider.close().await;
    assert!(closed.is_ok() && store.is_free("k"), "{closed:?}");
}

/// What outlives `close` would keep connections and sessions of the store's client, for a ttl.
#[tokio::test(start_paused = true)]
async fn c24_what_close_gave_up_is_over_when_it_returns() {
    for fate in [|| Fate::Never, || Fate::Fail] {
        let store = Arc::new(Hostile::new(move |op, key, _| match (op, key) {
            (Op::TryAcquire, "lost") => Fate::Lose,
            (Op::Withdraw, _) | (Op::Release, _) => fate(),
            _ => Fate::Serve,
        }));
        let provider = provider(&store);
        provider.acquire("released").ttl(secs(600)).await.unwrap().release().await.unwrap_err();
        drop(provider.acquire("dropped").ttl(secs(600)).await.unwrap());
        provider.acquire("lost").ttl(secs(600)).timeout(secs(7)).await.unwrap_err();
        provider.close().await.unwrap_err();
        let unsettled = provider.accounting().unsettled;
        sleep(secs(60)).await;
        assert_eq!((unsettled, after_close(&store)), (0, Vec::new()), "after the store was closed");
        assert_eq!(Arc::strong_count(&store), 2, "the provider and this test have it");
    }
}

#[tokio::test(start_paused = true)]
async fn c24_a_second_close_does_not_hide_what_the_first_one_left_behind() {
    let store = Arc::new(Hostile::new(|op, _, _| if op == Op::Release { Fate::Fail } else { Fate::Serve }));
    let provider = provider(&store);
    let _guard = provider.acquire("k").await.unwrap();
    let (first, second) = tokio::join!(provider.close(), provider.close());
    assert!(first.is_err());
    assert!(second.is_err(), "\"further calls wait for the same end\"");
}

#[tokio::test(start_paused = true)]
async fn c24_a_close_dropped_at_any_poll_goes_on() {
    for polls in 0..12 {
        let store = Hostile::honest().with(|store| store.yields = 2);
        let provider = provider(&store);
        let guards = join_all((0..5).map(|n| provider.acquire(n.to_string()).into_future())).await;
        drop(polled(polls, provider.close()).await);
        assert!(provider.accounting().balances());
        if polls > 0 {
            assert!(guards.iter().flatten().all(|guard| guard.loss() == Some(Loss::Closed)), "{polls}");
        }
        provider.close().await.unwrap();
        let books = provider.accounting();
        assert!(books.balances() && books.held == 0 && books.released == 5, "{polls} {books:?}");
    }
}

// ---- leaks ----

#[tokio::test(start_paused = true)]
async fn c18_nothing_is_left_when_provider_and_guards_are_gone() {
    let store = Hostile::new(|op, _, nth| match (op, nth % 3) {
        (Op::Renew, 1) => Fate::Never,
        (Op::TryAcquire, 2) => Fate::Late(ms(20)),
        _ => Fate::Serve,
    });
    let store = store.with(|store| store.capabilities.push = true);
    let weak = {
        let provider = provider(&store);
        let guard = provider.acquire("k").ttl(secs(3)).await.unwrap();
        drop(provider.acquire("k").timeout(secs(5)).await);
        let mut waiting = pin!(provider.acquire("k").into_future());
        assert!(poll_once(waiting.as_mut()).is_pending());
        let lost = guard.lost();
        drop(guard.release().await);
        drop(lost);
        Arc::downgrade(&store)
    };
    sleep(secs(60)).await;
    drop(store);
    sleep(secs(60)).await;
    assert!(weak.upgrade().is_none(), "{} references", weak.strong_count());
}

#[tokio::test(start_paused = true)]
async fn c23_the_books_balance_at_every_moment_of_a_wild_run() {
    let store = Arc::new(Hostile::new(|_, _, _| match fastrand::u8(0..12) {
        0 => Fate::Fail,
        1 => Fate::Lose,
        2 => Fate::Late(ms(fastrand::u64(0..400))),
        3 => Fate::After(ms(fastrand::u64(0..400))),
        4 => Fate::Never,
        _ => Fate::Serve,
    }));
    let built = LeaseProvider::builder(store.clone()).request_timeout(ms(200));
    let provider = built.lease(LeaseOptions::new().ttl(ms(500))).build().unwrap();
    let users = (0..30).map(|n| {
        let provider = provider.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let key = LockKey::new((n % 4).to_string()).unwrap();
                let options = AcquireOptions::new().with_wait(Wait::UpTo(ms(300)));
                let acquiring = timeout(ms(fastrand::u64(1..400)), provider.acquire_with(key.clone(), options));
                if let Ok(Ok(acquired)) = acquiring.await
                    && let Some(guard) = acquired.held()
                {
                    sleep(ms(fastrand::u64(0..300))).await;
                    if fastrand::bool() {
                        drop(timeout(ms(fastrand::u64(0..100)), guard.release()).await);
                    }
                }
                assert!(provider.accounting().balances());
            }
        })
    });
    for user in join_all(users).await {
        user.unwrap();
    }
    let _ = provider.close().await;
    sleep(secs(10)).await;
    let books = provider.accounting();
    assert!(books.balances() && books.held == 0 && books.waiting == 0, "{books:?}");
}
