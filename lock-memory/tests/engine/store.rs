//! The store of these tests: the memory store, and a script that decides what happens to each
//! request.

mod abilities;
mod fate;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquisitionId, ErrorKind, LockError, ReleaseOutcome, Result, async_trait};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, BusyReply, Claim, EventStore, EventStream, Lanes, QueueStore, Release,
    RemoteStore, Renewal, Reply, Standing, StoreCapabilities, StoreExtras, Watch,
};
use distlock_memory::{MemoryStore, Operation};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::Instant;

pub(crate) use self::abilities::Abilities;
pub(crate) use self::fate::{Fate, Gate};

/// Decides what happens to a request of this kind, about this key, the n-th of its kind about that
/// key. A renewal is a request of its own even as a member of a batch.
type Script = Box<dyn Fn(Operation, &str, usize) -> Fate + Send + Sync>;

type Bend<T> = Box<dyn Fn(T) -> T + Send + Sync>;

/// The stream of events that a subscription returns.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    /// The stream of the memory store.
    Open,
    /// A stream that ends at once.
    Ends,
    /// A stream that stays open and delivers nothing.
    Silent,
    /// A stream that panics when it is polled.
    Panics,
}

/// Requests are applied to a [`MemoryStore`], which also has the clock, the events and the records.
/// The script decides for each request whether, when and how it is applied and answered.
pub(crate) struct ScriptedStore {
    pub(crate) memory: MemoryStore,
    /// The capabilities that it declares and the memory store behind it has.
    pub(crate) capabilities: Abilities,
    /// The capabilities that it declares until it has answered an attempt, if they differ. It has
    /// neither queue nor events until then.
    pub(crate) at_first: Option<StoreCapabilities>,
    pub(crate) lanes: Option<Lanes>,
    /// Whether it panics now when it is asked for its capabilities or its lanes.
    pub(crate) panics_when_asked: AtomicBool,
    /// How often each request yields to the scheduler before it is applied, and after that.
    pub(crate) yields: usize,
    /// Changes answers to attempts in transit.
    pub(crate) reply: Bend<Reply>,
    /// Changes answers to renewals in transit.
    pub(crate) standing: Bend<Standing>,
    pub(crate) stream: Stream,
    /// How often a stream of events was polled without having an event.
    pub(crate) asked: Arc<AtomicUsize>,
    /// How many attempts, releases or withdrawals each batch had.
    pub(crate) batches: Mutex<Vec<usize>>,
    /// How long the first batch may take effect, counted from its arrival.
    pub(crate) first_batch_acts_for: Duration,
    first_batch_ends: Mutex<Option<Instant>>,
    /// Whether no batch decides an attempt.
    pub(crate) undecided: bool,
    script: Script,
    log: Mutex<Log>,
    arrived: Notify,
    has_answered: AtomicBool,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    closings: watch::Sender<()>,
}

#[derive(Default)]
struct Log {
    /// In the order of their arrival.
    requests: Vec<(Operation, String)>,
    by_operation: HashMap<Operation, usize>,
    by_key: HashMap<(Operation, String), usize>,
    renewal_calls: usize,
    shortest_timeout: Option<Duration>,
}

impl ScriptedStore {
    /// A store with neither queue, nor events, nor blocks of tokens, where the script decides.
    pub(crate) fn new(script: impl Fn(Operation, &str, usize) -> Fate + Send + Sync + 'static) -> Self {
        let mut capabilities = Abilities::none();
        (capabilities.ordered_claims, capabilities.minimum_hold) = (true, true);
        Self { script: Box::new(script), ..Self::over(&capabilities.memory()) }
    }

    /// A store with neither queue, nor events, nor blocks of tokens, that serves every request.
    pub(crate) fn honest() -> Self {
        Self::new(|_, _, _| Fate::Serve)
    }

    /// Another client of a memory store, with its capabilities, that serves every request.
    pub(crate) fn over(memory: &MemoryStore) -> Self {
        Self {
            memory: memory.clone(),
            capabilities: Abilities::of(memory),
            at_first: None,
            lanes: None,
            panics_when_asked: AtomicBool::new(false),
            yields: 0,
            reply: Box::new(|reply| reply),
            standing: Box::new(|standing| standing),
            stream: Stream::Open,
            asked: Arc::default(),
            script: Box::new(|_, _, _| Fate::Serve),
            batches: Mutex::default(),
            first_batch_acts_for: Duration::ZERO,
            first_batch_ends: Mutex::default(),
            undecided: false,
            log: Mutex::default(),
            arrived: Notify::new(),
            has_answered: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
            closings: watch::Sender::new(()),
        }
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Arc<Self> {
        change(&mut self);
        self.memory = self.capabilities.limit(&self.memory);
        Arc::new(self)
    }

    /// Makes each grant one for this long.
    pub(crate) fn bend_grants(&mut self, remaining: Duration) {
        self.reply = Box::new(move |mut reply| {
            if let Reply::Granted(grant) = &mut reply {
                grant.remaining = remaining;
            }
            reply
        });
    }

    /// Makes each renewal one for this long.
    pub(crate) fn bend_renewals(&mut self, remaining: Duration) {
        self.standing = Box::new(move |standing| match standing {
            Standing::Held { .. } => Standing::Held { remaining },
            other => other,
        });
    }

    /// Changes every answer of "busy".
    pub(crate) fn bend_busy(&mut self, bend: impl Fn(BusyReply) -> BusyReply + Send + Sync + 'static) {
        let bend = Arc::new(bend);
        let of_renewals = bend.clone();
        self.reply = Box::new(move |reply| match reply {
            Reply::Busy(busy) => Reply::Busy(bend(busy)),
            other => other,
        });
        self.standing = Box::new(move |standing| match standing {
            Standing::Waiting(busy) => Standing::Waiting(of_renewals(busy)),
            other => other,
        });
    }

    /// Returns how many such requests have arrived.
    pub(crate) fn count(&self, operation: Operation) -> usize {
        self.log.lock().unwrap().by_operation.get(&operation).copied().unwrap_or_default()
    }

    /// Returns how many calls have carried renewals.
    pub(crate) fn renewal_calls(&self) -> usize {
        self.log.lock().unwrap().renewal_calls
    }

    /// Returns every request that has arrived, in order, with its key.
    pub(crate) fn requests(&self) -> Vec<(Operation, String)> {
        self.log.lock().unwrap().requests.clone()
    }

    /// Waits until this many such requests have arrived.
    pub(crate) async fn called(&self, operation: Operation, times: usize) {
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if self.count(operation) >= times {
                return;
            }
            arrived.await;
        }
    }

    /// Returns the shortest timeout of a request. The engine survives a store that panics, so only
    /// the test can assert something about it.
    pub(crate) fn shortest_timeout(&self) -> Duration {
        self.log.lock().unwrap().shortest_timeout.expect("a request has arrived")
    }

    /// Returns how many requests are being carried out.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the most requests that were in flight at once since the last call.
    pub(crate) fn take_most_in_flight(&self) -> usize {
        self.most_in_flight.swap(0, Ordering::Relaxed)
    }

    pub(crate) fn is_free(&self, key: &str) -> bool {
        self.memory.peek(key).is_none()
    }

    /// Takes the lease away without an event. Returns its former owner.
    pub(crate) fn take_away(&self, key: &str) -> AcquisitionId {
        let id = self.memory.peek(key).and_then(|info| info.id).expect("held");
        assert!(self.memory.expire(key));
        id
    }

    fn arrive(&self, operation: Operation, key: &str) -> Fate {
        let nth = {
            let mut log = self.log.lock().unwrap();
            log.requests.push((operation, key.to_owned()));
            *log.by_operation.entry(operation).or_default() += 1;
            let nth = log.by_key.entry((operation, key.to_owned())).or_default();
            *nth += 1;
            *nth
        };
        self.arrived.notify_waiters();
        (self.script)(operation, key, nth)
    }

    fn note_timeout(&self, timeout: Duration) {
        let shortest = &mut self.log.lock().unwrap().shortest_timeout;
        *shortest = Some(shortest.map_or(timeout, |shortest| shortest.min(timeout)));
    }

    async fn pause(&self) {
        for _ in 0..self.yields {
            yield_now().await;
        }
    }

    /// Carries out one request, from its arrival to its answer.
    async fn request<T>(
        &self,
        operation: Operation,
        key: &str,
        timeout: Duration,
        step: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let fate = self.arrive(operation, key);
        self.note_timeout(timeout);
        let _in_flight = InFlight::begin(self);
        self.pause().await;
        let answer = fate.carry_out(timeout, step).await;
        self.pause().await;
        answer
    }
}

/// Counts a request while its future exists.
struct InFlight<'a>(&'a ScriptedStore);

impl<'a> InFlight<'a> {
    fn begin(store: &'a ScriptedStore) -> Self {
        let now = store.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        store.most_in_flight.fetch_max(now, Ordering::Relaxed);
        Self(store)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedStore")
    }
}

#[async_trait]
impl LeaseStore for ScriptedStore {
    fn capabilities(&self) -> StoreCapabilities {
        assert!(!self.panics_when_asked.load(Ordering::Relaxed), "a bug of the store");
        self.at_first.filter(|_| !self.has_answered.load(Ordering::Relaxed)).unwrap_or(*self.capabilities)
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let step = async {
            let reply = self.memory.try_acquire(attempt).await;
            self.has_answered.store(true, Ordering::Relaxed);
            reply
        };
        let reply = self.request(Operation::TryAcquire, attempt.claim.key().as_str(), attempt.timeout, step).await?;
        Ok((self.reply)(reply))
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.renew_many(std::slice::from_ref(renewal)).await.remove(0)
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let step = self.memory.release(release);
        self.request(Operation::Release, release.claim.key().as_str(), release.timeout, step).await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let step = async {
            self.memory.withdraw(claim, timeout).await?;
            match self.may_act_for(claim) {
                Duration::ZERO => Ok(()),
                _ => Err(LockError::new(ErrorKind::Unavailable, "the batch may take effect yet")),
            }
        };
        self.request(Operation::Withdraw, claim.key().as_str(), timeout, step).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        assert!(!self.panics_when_asked.load(Ordering::Relaxed), "a bug of the store");
        let has_answered = self.at_first.is_none() || self.has_answered.load(Ordering::Relaxed);
        let mut extras = StoreExtras::default();
        extras.queue = (has_answered && self.capabilities.queue).then_some(self as &dyn QueueStore);
        extras.events = (has_answered && self.capabilities.push).then_some(self as &dyn EventStore);
        extras.batch_renew = Some(self);
        extras.batch = Some(self);
        extras.remote = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for ScriptedStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let step = self.memory.waiters(claim, timeout);
        self.request(Operation::Waiters, claim.key().as_str(), timeout, step).await
    }
}

#[async_trait]
impl EventStore for ScriptedStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let fate = self.arrive(Operation::Watch, "");
        self.pause().await;
        let events = fate.carry_out(Duration::MAX, self.memory.subscribe(watch)).await?;
        self.pause().await;
        // The stream ends with the store that opened it.
        let mut closings = self.closings.subscribe();
        let closed = async move { drop(closings.changed().await) };
        Ok(match self.stream {
            Stream::Open => {
                let (mut events, asked) = (Box::pin(events.take_until(closed)), self.asked.clone());
                Box::pin(futures_util::stream::poll_fn(move |context| {
                    let event = events.poll_next_unpin(context);
                    asked.fetch_add(usize::from(event.is_pending()), Ordering::Relaxed);
                    event
                }))
            }
            Stream::Ends => Box::pin(futures_util::stream::empty()),
            Stream::Silent => Box::pin(futures_util::stream::pending()),
            Stream::Panics => Box::pin(futures_util::stream::poll_fn(|_| panic!("the stream panics"))),
        })
    }
}

#[async_trait]
impl BatchRenewStore for ScriptedStore {
    fn renew_batch(&self) -> NonZeroUsize {
        self.capabilities.renew_batch
    }

    /// As a batch at a real store: the delay of one member delays all.
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let timeout = renewals.iter().map(|renewal| renewal.timeout).min().expect("no empty batch");
        self.note_timeout(timeout);
        self.log.lock().unwrap().renewal_calls += 1;
        let fates: Vec<_> =
            renewals.iter().map(|renewal| self.arrive(Operation::Renew, renewal.claim.key().as_str())).collect();
        let _in_flight = InFlight::begin(self);
        self.pause().await;
        let ready = join_all(fates.iter().map(|fate| fate.before(timeout))).await;
        let applied: Vec<_> = renewals
            .iter()
            .zip(&ready)
            .filter(|(_, ready)| ready.is_ok())
            .map(|(renewal, _)| renewal.clone())
            .collect();
        let mut standings = self.memory.renew_many(&applied).await.into_iter();
        let answers = join_all(fates.iter().zip(ready).map(|(fate, ready)| {
            let standing = ready.and_then(|()| standings.next().expect("one for each"));
            async { fate.after(standing?).await.map(&self.standing) }
        }))
        .await;
        self.pause().await;
        let missing = fates.iter().position(|fate| matches!(fate, Fate::Forget)).unwrap_or(fates.len());
        answers.into_iter().take(missing).collect()
    }
}

#[async_trait]
impl BatchStore for ScriptedStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        self.capabilities.acquire_batch
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        self.batches.lock().unwrap().push(attempts.len());
        self.first_batch_ends.lock().unwrap().get_or_insert_with(|| Instant::now() + self.first_batch_acts_for);
        if self.undecided {
            return attempts.iter().map(|_| Ok(Reply::Busy(BusyReply::undecided()))).collect();
        }
        join_all(attempts.iter().map(|attempt| self.try_acquire(attempt))).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        self.batches.lock().unwrap().push(releases.len());
        join_all(releases.iter().map(|release| self.release(release))).await
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        self.batches.lock().unwrap().push(claims.len());
        join_all(claims.iter().map(|claim| self.withdraw(claim, timeout))).await
    }

    fn may_act_for(&self, _: &Claim) -> Duration {
        let end = *self.first_batch_ends.lock().unwrap();
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()))
    }
}

#[async_trait]
impl RemoteStore for ScriptedStore {
    fn lanes(&self) -> Option<Lanes> {
        assert!(!self.panics_when_asked.load(Ordering::Relaxed), "a bug of the store");
        self.lanes.clone()
    }

    async fn close(&self) -> Result<()> {
        let fate = self.arrive(Operation::Close, "");
        self.closings.send_replace(());
        self.pause().await;
        let closed = fate.carry_out(Duration::MAX, self.memory.close()).await;
        self.pause().await;
        closed
    }
}
