//! The network between the processes and the store: requests and replies are delayed, lost, late
//! and repeated, and events are lost, late and repeated, as the seed decides.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{AcquisitionId, ErrorKind, LockError, Mode, Phase, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, EventStore, EventStream, Lanes, QueueStore, Release, RemoteStore,
    Renewal, Reply, Standing, StoreCapabilities, StoreEvent, StoreExtras, Watch,
};
use distlock_memory::MemoryStore;
use fastrand::Rng;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::unfold;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::documents::Documents;
use crate::modes;
use crate::plan::Plan;

/// One store, and the network before it.
pub(crate) struct Network {
    pub(crate) store: MemoryStore,
    pub(crate) plan: Plan,
    pub(crate) start: Instant,
    rng: Mutex<Rng>,
    /// For the modes of calls. Of its own, so that exclusive runs are what they were without modes.
    modes: Mutex<Rng>,
    /// For whether a call commits, for the same reason.
    commits: Mutex<Rng>,
    pub(crate) documents: Documents,
    requests: AtomicU64,
    /// The last request of each claim that has been carried out.
    applied: Mutex<HashMap<AcquisitionId, u64>>,
    /// Until when the batch of a claim may be carried out, if it has no answer yet (R24).
    batches: Mutex<HashMap<AcquisitionId, Instant>>,
    /// The claims that have sent an attempt alone. Only calls of such a claim alone are ordered.
    alone: Mutex<HashSet<AcquisitionId>>,
    log: Option<Mutex<Vec<(Duration, String)>>>,
}

/// The faults of one request.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    reply_lost: bool,
    refused: bool,
    repeated: Option<Duration>,
}

impl Network {
    pub(crate) fn new(plan: Plan, [rng, modes, commits]: [Rng; 3], logs: bool) -> Arc<Self> {
        let store = MemoryStore::new().with_capabilities(plan.capabilities);
        let store = store.with_queue(plan.queue).with_events(plan.events);
        Arc::new(Self {
            store,
            plan,
            start: Instant::now(),
            rng: Mutex::new(rng),
            modes: Mutex::new(modes),
            commits: Mutex::new(commits),
            documents: Documents::default(),
            requests: AtomicU64::new(0),
            applied: Mutex::default(),
            batches: Mutex::default(),
            alone: Mutex::default(),
            log: logs.then(Mutex::default),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn random<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().expect("one thread"))
    }

    /// Draws the mode of a call.
    pub(crate) fn mode(&self) -> Mode {
        if self.plan.modes { modes::draw(&mut self.modes.lock().expect("one thread")) } else { Mode::Exclusive }
    }

    /// Draws something about a commit.
    pub(crate) fn of_commit<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.commits.lock().expect("one thread"))
    }

    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            log.lock().expect("one thread").push((self.now(), line()));
        }
    }

    pub(crate) fn take_log(&self) -> Vec<(Duration, String)> {
        self.log.as_ref().map(|log| std::mem::take(&mut *log.lock().expect("one thread"))).unwrap_or_default()
    }

    /// Draws whether something fails now, with this probability.
    fn fails(&self, rate: f64) -> bool {
        rate > 0.0 && self.now() < self.plan.faults && self.random(Rng::f64) < rate
    }

    fn fate(&self, timeout: Duration) -> Fate {
        let rates = self.plan.rates;
        let mut there = Duration::from_micros(self.random(|rng| rng.u64(100..3000)));
        let mut back = Duration::from_micros(self.random(|rng| rng.u64(100..3000)));
        if let Some((from, until, by)) = self.plan.slow
            && (from..until).contains(&self.now())
        {
            let share = self.random(Rng::f64);
            there += by.mul_f64(share);
            back += by.mul_f64(1.0 - share);
        }
        if self.fails(rates.late) {
            there = timeout + (self.plan.latest() - timeout.min(self.plan.latest())).mul_f64(self.random(Rng::f64));
        }
        let repeated = self.fails(rates.repeated).then(|| self.plan.ttl.mul_f64(self.random(Rng::f64)));
        Fate {
            there,
            back,
            lost: self.fails(rates.request_lost),
            reply_lost: self.fails(rates.reply_lost),
            refused: self.fails(rates.refused),
            repeated,
        }
    }

    /// Returns whether a request still counts. A store that orders the calls of a claim refuses one
    /// that comes after a later one.
    fn in_order(&self, order: &Order, number: u64) -> bool {
        let id = match order {
            Order::OfClaim(id) if self.plan.capabilities.ordered_claims => id,
            Order::Until(bound) => return Instant::now() < *bound,
            Order::OfClaim(_) | Order::None => return true,
        };
        let mut applied = self.applied.lock().expect("one thread");
        let last = applied.entry(id.clone()).or_default();
        let in_order = number >= *last;
        *last = number.max(*last);
        in_order
    }
}

/// In which order a request is with others.
#[derive(Clone)]
pub(crate) enum Order {
    /// With those of its claim, if the store orders them. A network may repeat it.
    OfClaim(AcquisitionId),
    /// In none. A network may repeat it.
    None,
    /// In none. It is sent once, and does nothing from this moment on (R24).
    Until(Instant),
}

/// Carries a request out at the store.
pub(crate) type Carry<T> = Arc<dyn Fn(MemoryStore) -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// The store, as one process reaches it.
pub(crate) struct Link {
    network: Arc<Network>,
    process: usize,
    lanes: Option<Lanes>,
    /// A killed process sends nothing, and nothing reaches it.
    dead: Arc<AtomicBool>,
}

impl Link {
    pub(crate) fn new(network: Arc<Network>, process: usize, dead: Arc<AtomicBool>) -> Self {
        let lanes = network.plan.at_once.and_then(NonZeroUsize::new).map(Lanes::new);
        Self { network, process, lanes, dead }
    }

    pub(crate) fn network(&self) -> &Arc<Network> {
        &self.network
    }

    pub(crate) async fn send<T: fmt::Debug + Send + 'static>(
        &self,
        what: String,
        order: Order,
        timeout: Duration,
        carry: Carry<T>,
    ) -> Result<T> {
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let network = self.network.clone();
        let (number, fate) = (network.requests.fetch_add(1, Ordering::Relaxed), network.fate(timeout));
        let deadline = Instant::now() + timeout;
        let process = self.process;
        network.log(|| format!("process {process} sends #{number} {what}"));
        if fate.refused {
            sleep(fate.there).await;
            network.log(|| format!("#{number} is refused"));
            return Err(LockError::new(ErrorKind::Unavailable, "the simulated server refuses the request"));
        }
        let (answer, answered) = oneshot::channel();
        let dead = self.dead.clone();
        // The request continues when its caller leaves.
        tokio::spawn(async move {
            sleep(fate.there).await;
            if fate.lost {
                network.log(|| format!("#{number} is lost"));
                return;
            }
            let carried = network.carried(number, &order, &carry).await;
            if let Some(later) = fate.repeated
                && network.plan.capabilities.ordered_claims
                && !matches!(order, Order::Until(_))
            {
                let (network, order, carry) = (network.clone(), order.clone(), carry.clone());
                tokio::spawn(async move {
                    sleep(later).await;
                    drop(network.carried(number, &order, &carry).await);
                });
            }
            sleep(fate.back).await;
            if fate.reply_lost {
                network.log(|| format!("the reply to #{number} is lost"));
            } else if !dead.load(Ordering::Relaxed) {
                let _ = answer.send(carried);
            }
        });
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                sleep_until(deadline).await;
                self.network.log(|| format!("#{number} is given up"));
                Err(LockError::timeout(Phase::Request, "no answer from the simulated server").outcome_unknown())
            }
        }
    }
}

impl Network {
    async fn carried<T: fmt::Debug>(&self, number: u64, order: &Order, carry: &Carry<T>) -> Result<T> {
        let answer = if self.in_order(order, number) {
            carry(self.store.clone()).await
        } else {
            Err(LockError::new(ErrorKind::Other, "it came too late, or after a later call of its claim"))
        };
        self.log(|| format!("#{number} is answered {answer:?}"));
        answer
    }

    /// Forwards the events of a stream as the seed decides.
    async fn forward(self: Arc<Self>, process: usize, mut events: EventStream, to: mpsc::UnboundedSender<Pushed>) {
        let rates = self.plan.rates;
        while let Some(event) = events.next().await {
            if to.is_closed() {
                return;
            }
            if self.fails(rates.stream_broken) {
                self.log(|| format!("the stream of process {process} breaks"));
                let _ = to.send(Err(LockError::new(ErrorKind::Unavailable, "the simulated stream broke")));
                return;
            }
            if self.fails(rates.event_lost) {
                self.log(|| format!("for process {process} {event:?} is lost"));
                continue;
            }
            let copies = 1 + usize::from(self.fails(rates.event_repeated));
            for _ in 0..copies {
                let mut delay = Duration::from_micros(self.random(|rng| rng.u64(100..3000)));
                if self.fails(rates.event_late) {
                    delay += self.plan.ttl.mul_f64(self.random(Rng::f64));
                }
                let (network, to, event) = (self.clone(), to.clone(), event.clone());
                tokio::spawn(async move {
                    sleep(delay).await;
                    network.log(|| format!("process {process} gets {event:?}"));
                    let _ = to.send(event);
                });
            }
        }
    }
}

type Pushed = Result<StoreEvent>;

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("process", &self.process).finish_non_exhaustive()
    }
}

/// Returns one answer for each request of a call.
fn of_each<T>(answers: Result<Vec<Result<T>>>, requests: usize) -> Vec<Result<T>> {
    answers.unwrap_or_else(|error| (0..requests).map(|_| Err(error.clone())).collect())
}

fn acting() -> LockError {
    LockError::new(ErrorKind::Unavailable, "the claim's batch may still take effect")
}

#[async_trait]
impl LeaseStore for Link {
    fn capabilities(&self) -> StoreCapabilities {
        self.network.plan.capabilities
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let (what, id) = (format!("attempt {:?}", attempt.claim), attempt.claim.id().clone());
        self.network.alone.lock().expect("one thread").insert(id.clone());
        let request = attempt.clone();
        let carry: Carry<Reply> = Arc::new(move |store| {
            let request = request.clone();
            Box::pin(async move { store.try_acquire(&request).await })
        });
        self.send(what, Order::OfClaim(id), attempt.timeout, carry).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let request = renewal.clone();
        let carry: Carry<Standing> = Arc::new(move |store| {
            let request = request.clone();
            Box::pin(async move { store.renew(&request).await })
        });
        self.send(format!("renewal {:?}", renewal.claim), Order::None, renewal.timeout, carry).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let request = release.clone();
        let carry: Carry<ReleaseOutcome> = Arc::new(move |store| {
            let request = request.clone();
            Box::pin(async move { store.release(&request).await })
        });
        let id = release.claim.id().clone();
        self.send(format!("release {:?}", release.claim), Order::OfClaim(id), release.timeout, carry).await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        if !self.may_act_for(claim).is_zero() {
            return Err(acting());
        }
        let request = claim.clone();
        let carry: Carry<()> = Arc::new(move |store| {
            let request = request.clone();
            Box::pin(async move { store.withdraw(&request, timeout).await })
        });
        self.send(format!("withdrawal {claim:?}"), Order::OfClaim(claim.id().clone()), timeout, carry).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = self.network.plan.queue.then_some(self as &dyn QueueStore);
        extras.events = self.network.plan.events.then_some(self as &dyn EventStore);
        extras.batch_renew = Some(self);
        extras.batch = self.network.plan.batch.map(|_| self as &dyn BatchStore);
        extras.remote = Some(self);
        extras.admin = self.network.store.extras().admin;
        extras
    }
}

#[async_trait]
impl QueueStore for Link {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let request = claim.clone();
        let carry: Carry<u32> = Arc::new(move |store| {
            let request = request.clone();
            Box::pin(async move { store.waiters(&request, timeout).await })
        });
        self.send(format!("query for waiters {claim:?}"), Order::None, timeout, carry).await
    }
}

#[async_trait]
impl EventStore for Link {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        if self.dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let events = self.network.store.subscribe(watch).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(self.network.clone().forward(self.process, events, sender));
        Ok(Box::pin(unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) })))
    }
}

#[async_trait]
impl BatchRenewStore for Link {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let timeout = renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default();
        let requests = renewals.to_vec();
        let claims: Vec<&Claim> = renewals.iter().map(|renewal| &renewal.claim).collect();
        let carry: Carry<Vec<Result<Standing>>> = Arc::new(move |store| {
            let requests = requests.clone();
            Box::pin(async move { Ok(store.renew_many(&requests).await) })
        });
        let answers = self.send(format!("renewals {claims:?}"), Order::None, timeout, carry).await;
        of_each(answers, renewals.len())
    }
}

#[async_trait]
impl BatchStore for Link {
    fn acquire_batch(&self) -> NonZeroUsize {
        self.network.plan.batch.unwrap_or(NonZeroUsize::MIN)
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        let timeout = attempts.iter().map(|attempt| attempt.timeout).min().unwrap_or_default();
        let bound = Instant::now() + timeout;
        let requests = attempts.to_vec();
        let ids = || attempts.iter().map(|attempt| attempt.claim.id().clone());
        self.network.batches.lock().expect("one thread").extend(ids().map(|id| (id, bound)));
        let carry: Carry<Vec<Result<Reply>>> = Arc::new(move |store| {
            let requests = requests.clone();
            Box::pin(async move { Ok(join_all(requests.iter().map(|attempt| store.try_acquire(attempt))).await) })
        });
        let what = format!("attempts {:?}", ids().collect::<Vec<_>>());
        let answers = self.send(what, Order::Until(bound), timeout, carry).await;
        if answers.is_ok() {
            let mut batches = self.network.batches.lock().expect("one thread");
            for id in ids() {
                batches.remove(&id);
            }
        }
        of_each(answers, attempts.len())
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        let timeout = releases.iter().map(|release| release.timeout).min().unwrap_or_default();
        let requests = releases.to_vec();
        let claims: Vec<&Claim> = releases.iter().map(|release| &release.claim).collect();
        let carry: Carry<Vec<Result<ReleaseOutcome>>> = Arc::new(move |store| {
            let requests = requests.clone();
            Box::pin(async move { Ok(join_all(requests.iter().map(|release| store.release(release))).await) })
        });
        let answers = self.send(format!("releases {claims:?}"), Order::None, timeout, carry).await;
        of_each(answers, releases.len())
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        let requests = claims.to_vec();
        let carry: Carry<Vec<Result<()>>> = Arc::new(move |store| {
            let requests = requests.clone();
            Box::pin(async move { Ok(join_all(requests.iter().map(|claim| store.withdraw(claim, timeout))).await) })
        });
        // A batch that may take effect after this moment may do so after the withdrawal.
        let may_act: Vec<bool> = claims.iter().map(|claim| !self.may_act_for(claim).is_zero()).collect();
        let answers = self.send(format!("withdrawals {claims:?}"), Order::None, timeout, carry).await;
        let answers = of_each(answers, claims.len()).into_iter().zip(may_act);
        answers.map(|(answer, may_act)| if may_act { Err(acting()) } else { answer }).collect()
    }

    fn may_gather_withdrawal(&self, claim: &Claim) -> bool {
        !self.network.alone.lock().expect("one thread").contains(claim.id())
    }

    fn may_act_for(&self, claim: &Claim) -> Duration {
        let batches = self.network.batches.lock().expect("one thread");
        batches.get(claim.id()).map(|bound| bound.saturating_duration_since(Instant::now())).unwrap_or_default()
    }
}

impl RemoteStore for Link {
    fn lanes(&self) -> Option<Lanes> {
        self.lanes.clone()
    }
}
