//! Faults between the engine and a store, for any backend that is a store.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{ErrorKind, LockAdmin, LockError, LockKey, Phase, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, Connecting, EventStore, EventStream, Lanes, QueueStore, Release,
    RemoteStore, Renewal, RenewalSubject, Reply, Standing, StoreCapabilities, StoreEvent, StoreExtras, Watch,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::failure::{FixtureError, Verdict, ensure};
use crate::slowness::{SlowClient, Slowness};

/// A [`LeaseStore`] between the engine and the store under test. It forwards every call, and makes
/// the faults of the checks for one client: requests that fail, stall or lose their replies, a
/// client that is cut off, disturbed events. Make one for each client. The profile declares it with
/// [`disturbed`](crate::Profile::disturbed).
///
/// ```
/// use std::sync::Arc;
/// use distlock_engine::LeaseProvider;
/// use distlock_conformance::{Client, DisturbedStore};
///
/// # let my_store = Arc::new(distlock_memory::MemoryStore::new());
/// let store = DisturbedStore::new(my_store);
/// let client = Client::new(Arc::new(LeaseProvider::new(Arc::new(store.clone())))).disturbed_by(store);
/// # drop(client);
/// ```
///
/// [`Client::of_store`](crate::Client::of_store) and [`of_disturbed`](crate::Client::of_disturbed)
/// do this.
#[derive(Clone)]
pub struct DisturbedStore {
    shared: Arc<Shared>,
    purge: Option<Arc<Purge>>,
    slow: Option<Arc<SlowClient>>,
}

/// The operations of a store that can be disturbed, alone or in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Acquire,
    /// The renewal of a lease or a ticket.
    Renew,
    /// The release of a lease, or the withdrawal of an attempt.
    Release,
    /// The query for the number of waiters.
    Waiters,
}

/// A renewal of a lease that a client has sent.
#[derive(Clone, Debug)]
pub(crate) struct SeenRenewal {
    pub(crate) key: LockKey,
    pub(crate) sent: Instant,
    /// When it was answered, and the answer; `None` if it was not.
    pub(crate) answer: Option<(Instant, String)>,
}

/// What happens to the events that a store pushes to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushes {
    /// The stream ends, and none can be opened.
    Refused,
    /// The stream ends once; the next one works.
    Broken,
    /// Every event arrives later, by this duration.
    Delayed(Duration),
}

type Purge = dyn Fn(LockKey) -> BoxFuture<'static, Result<(), FixtureError>> + Send + Sync;

struct Shared {
    store: Arc<dyn LeaseStore>,
    requests: AtomicU64,
    faults: Mutex<Faults>,
    pushes: watch::Sender<Option<Pushes>>,
    cut_off: watch::Sender<bool>,
    /// How many requests have been let through to the store, and are not answered.
    under_way: watch::Sender<usize>,
    /// Notified when the faults end.
    ended: Notify,
    renewals: Mutex<VecDeque<SeenRenewal>>,
}

#[derive(Default)]
struct Faults {
    failing: HashMap<Operation, u32>,
    losing: HashMap<Operation, u32>,
    delaying: HashMap<Operation, u32>,
    delays: HashMap<Operation, Duration>,
    stalled: HashSet<LockKey>,
    hit: u64,
}

impl Faults {
    /// Whether a fault of this kind is planned for the operation. Uses up one of them.
    fn strikes(planned: &mut HashMap<Operation, u32>, operation: Operation) -> bool {
        let Some(left) = planned.get_mut(&operation).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }
}

impl DisturbedStore {
    /// Wraps a store, without any faults.
    #[must_use]
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        let shared = Shared {
            store,
            requests: AtomicU64::new(0),
            faults: Mutex::default(),
            pushes: watch::channel(None).0,
            cut_off: watch::channel(false).0,
            under_way: watch::channel(0).0,
            ended: Notify::new(),
            renewals: Mutex::default(),
        };
        Self { shared: Arc::new(shared), purge: None, slow: None }
    }

    /// Makes the store slow for this client, requests of its administration included. A suite in
    /// which it then fails accuses a correct store, or the profile's
    /// [ttl](crate::Profile::ttl) is too short.
    #[must_use]
    pub fn slowed(mut self, slowness: Slowness) -> Self {
        self.slow = Some(Arc::new(SlowClient::new(slowness, Arc::clone(&self.shared.store))));
        self
    }

    fn batch(&self) -> &dyn BatchStore {
        self.shared.store.extras().batch.expect(OFFERED)
    }

    fn batch_renew(&self) -> &dyn BatchRenewStore {
        self.shared.store.extras().batch_renew.expect(OFFERED)
    }

    fn remote(&self) -> Option<&dyn RemoteStore> {
        self.shared.store.extras().remote
    }

    /// Has the store carry a request out. `None` if that has taken longer than the timeout.
    async fn carried_out<T>(&self, timeout: Duration, request: impl Future<Output = T>) -> Option<T> {
        match &self.slow {
            Some(slow) => slow.request(timeout, request).await,
            None => Some(request.await),
        }
    }

    fn too_slow() -> LockError {
        LockError::timeout(Phase::Request, "the store is slow, and has not answered in time").outcome_unknown()
    }

    /// Sets how to purge a record: do at once what the store does to the record of a lock that has
    /// been unused for a long time. Return an error if there is no such record, or if it is in use:
    /// its key is held, kept closed by a minimum hold, or waited for. The profile declares it with
    /// [`purge`](crate::Profile::purge).
    #[must_use]
    pub fn with_purge<F>(mut self, purge: impl Fn(LockKey) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), FixtureError>> + Send + 'static,
    {
        self.purge = Some(Arc::new(move |key| purge(key).boxed()));
        self
    }

    fn is_cut_off(&self) -> bool {
        *self.shared.cut_off.borrow()
    }

    /// The error of a client that is cut off. Its request is lost, so the error comes after its
    /// timeout.
    async fn unreachable_after(timeout: Duration) -> LockError {
        sleep(timeout).await;
        LockError::timeout(Phase::Request, "the client was cut off").outcome_unknown()
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.shared.faults.lock().expect("no code in here panics")
    }

    /// Records renewals that are about to be sent. If the note is dropped without an answer, it
    /// records them as unanswered.
    fn seen<'a>(&self, renewals: impl IntoIterator<Item = &'a Renewal>) -> Note {
        let of_leases = |renewal: &&Renewal| matches!(renewal.subject, RenewalSubject::Lease { .. });
        let now = Instant::now();
        let seen = |renewal: &Renewal| {
            of_leases(&renewal).then(|| SeenRenewal { key: renewal.claim.key().clone(), sent: now, answer: None })
        };
        Note { shared: Arc::clone(&self.shared), renewals: renewals.into_iter().map(seen).collect() }
    }

    /// Sends one request, with the planned faults.
    async fn pass<T>(
        &self,
        operation: Operation,
        keys: impl IntoIterator<Item = &LockKey>,
        timeout: Duration,
        call: impl Future<Output = T>,
        lost: impl Fn(LockError) -> T,
    ) -> T {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        // Before it is known whether the client is cut off, so that `cut_off` misses none.
        let under_way = UnderWay::new(&self.shared);
        if self.is_cut_off() {
            drop(under_way);
            return lost(Self::unreachable_after(timeout).await);
        }
        let (stalls, fails) = {
            let mut faults = self.faults();
            let stalls = keys.into_iter().any(|key| faults.stalled.contains(key));
            let fails = !stalls && Faults::strikes(&mut faults.failing, operation);
            faults.hit += u64::from(stalls || fails);
            (stalls, fails)
        };
        if stalls {
            drop(under_way);
            sleep(timeout).await;
            return lost(LockError::timeout(Phase::Request, "the request was made to stall").outcome_unknown());
        }
        if fails {
            return lost(LockError::new(ErrorKind::Unavailable, "the request was made to fail"));
        }
        let mut ended = pin!(self.shared.ended.notified());
        ended.as_mut().enable();
        let reply = self.carried_out(timeout, call).await.unwrap_or_else(|| lost(Self::too_slow()));
        drop(under_way);
        if self.is_cut_off() {
            return lost(Self::unreachable_after(timeout).await);
        }
        let (loses, delays) = {
            let mut faults = self.faults();
            let loses = Faults::strikes(&mut faults.losing, operation);
            let delays = !loses && Faults::strikes(&mut faults.delaying, operation);
            faults.hit += u64::from(loses || delays);
            (loses, delays.then(|| faults.delays.get(&operation).copied().unwrap_or_default()))
        };
        if let Some(by) = delays {
            let _ = tokio::time::timeout(by, ended).await;
        }
        if loses {
            return lost(LockError::new(ErrorKind::Unavailable, "the reply was made to get lost").outcome_unknown());
        }
        reply
    }
}

/// A request that the store may carry out. It ends when this is dropped.
struct UnderWay<'a>(&'a Shared);

impl<'a> UnderWay<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.under_way.send_modify(|requests| *requests += 1);
        Self(shared)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|requests| *requests -= 1);
    }
}

impl fmt::Debug for DisturbedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DisturbedStore").field(&self.shared.store).finish()
    }
}

/// Extras are offered only if the store under test has them, and it never ceases to.
const OFFERED: &str = "the store under test offers it";

/// How long the last requests of a client that is cut off may take.
const LAST_REQUESTS: Duration = Duration::from_secs(30);

/// How many renewals are remembered.
const MOST_RENEWALS: usize = 500;

/// Renewals that were sent; `None` for a refresh of a ticket.
struct Note {
    shared: Arc<Shared>,
    renewals: Vec<Option<SeenRenewal>>,
}

impl Note {
    fn answered<'a>(mut self, answers: impl IntoIterator<Item = &'a Result<Standing>>) {
        let now = Instant::now();
        for (renewal, answer) in self.renewals.iter_mut().zip(answers) {
            let said = match answer {
                Ok(standing) => format!("{standing:?}"),
                Err(error) => format!("error: {error}"),
            };
            if let Some(renewal) = renewal {
                renewal.answer = Some((now, said));
            }
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let mut seen = self.shared.renewals.lock().expect("no code in here panics");
        seen.extend(self.renewals.drain(..).flatten());
        let surplus = seen.len().saturating_sub(MOST_RENEWALS);
        seen.drain(..surplus);
    }
}

#[async_trait]
impl LeaseStore for DisturbedStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.shared.store.capabilities()
    }

    fn name(&self) -> &str {
        self.shared.store.name()
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let call = self.shared.store.try_acquire(attempt);
        self.pass(Operation::Acquire, [attempt.claim.key()], attempt.timeout, call, Err).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let call = self.shared.store.renew(renewal);
        let seen = self.seen([renewal]);
        let answer = self.pass(Operation::Renew, [renewal.claim.key()], renewal.timeout, call, Err).await;
        seen.answered([&answer]);
        answer
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let call = self.shared.store.release(release);
        self.pass(Operation::Release, [release.claim.key()], release.timeout, call, Err).await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let call = self.shared.store.withdraw(claim, timeout);
        self.pass(Operation::Release, [claim.key()], timeout, call, Err).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let inner = self.shared.store.extras();
        let mut extras = StoreExtras::default();
        extras.queue = inner.queue.map(|_| self as &dyn QueueStore);
        extras.events = inner.events.map(|_| self as &dyn EventStore);
        extras.batch_renew = inner.batch_renew.map(|_| self as &dyn BatchRenewStore);
        extras.batch = inner.batch.map(|_| self as &dyn BatchStore);
        extras.remote = Some(self);
        extras.admin = inner.admin.map(|admin| match &self.slow {
            Some(slow) => &**slow as &dyn LockAdmin,
            None => admin,
        });
        extras
    }
}

#[async_trait]
impl QueueStore for DisturbedStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let call = self.shared.store.extras().queue.expect(OFFERED).waiters(claim, timeout);
        self.pass(Operation::Waiters, [claim.key()], timeout, call, Err).await
    }
}

#[async_trait]
impl EventStore for DisturbedStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        if self.is_cut_off() {
            return Err(Self::unreachable_after(Duration::ZERO).await);
        }
        let (mut pushes, cut_off) = (self.shared.pushes.subscribe(), self.shared.cut_off.subscribe());
        if *pushes.borrow_and_update() == Some(Pushes::Refused) {
            return Err(refused());
        }
        let opening = self.shared.store.extras().events.expect(OFFERED).subscribe(watch);
        let events = self.carried_out(LAST_REQUESTS, opening).await.unwrap_or_else(|| Err(Self::too_slow()))?;
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(forward(events, pushes, cut_off, sender));
        let arrived = futures_util::stream::unfold(receiver, |mut receiver| async {
            let (event, due) = receiver.recv().await?;
            if let Some(due) = due {
                sleep_until(due).await;
            }
            Some((event, receiver))
        });
        Ok(Box::pin(arrived))
    }
}

#[async_trait]
impl BatchRenewStore for DisturbedStore {
    fn renew_batch(&self) -> NonZeroUsize {
        self.batch_renew().renew_batch()
    }

    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let keys = renewals.iter().map(|renewal| renewal.claim.key());
        let timeout = renewals.iter().map(|renewal| renewal.timeout).min().unwrap_or_default();
        let call = self.batch_renew().renew_many(renewals);
        let lost = |error: LockError| renewals.iter().map(|_| Err(error.clone())).collect();
        let seen = self.seen(renewals);
        let answers = self.pass(Operation::Renew, keys, timeout, call, lost).await;
        seen.answered(&answers);
        answers
    }
}

#[async_trait]
impl BatchStore for DisturbedStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        self.batch().acquire_batch()
    }

    /// A fault hits the whole batch.
    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        let keys = attempts.iter().map(|attempt| attempt.claim.key());
        let timeout = attempts.iter().map(|attempt| attempt.timeout).min().unwrap_or_default();
        let call = self.batch().try_acquire_many(attempts);
        let lost = |error: LockError| attempts.iter().map(|_| Err(error.clone())).collect();
        self.pass(Operation::Acquire, keys, timeout, call, lost).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        let keys = releases.iter().map(|release| release.claim.key());
        let timeout = releases.iter().map(|release| release.timeout).min().unwrap_or_default();
        let call = self.batch().release_many(releases);
        let lost = |error: LockError| releases.iter().map(|_| Err(error.clone())).collect();
        self.pass(Operation::Release, keys, timeout, call, lost).await
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        let call = self.batch().withdraw_many(claims, timeout);
        let lost = |error: LockError| claims.iter().map(|_| Err(error.clone())).collect();
        self.pass(Operation::Release, claims.iter().map(Claim::key), timeout, call, lost).await
    }

    fn may_gather(&self, attempt: &Attempt) -> bool {
        self.batch().may_gather(attempt)
    }

    fn may_gather_release(&self, release: &Release) -> bool {
        self.batch().may_gather_release(release)
    }

    fn may_gather_withdrawal(&self, claim: &Claim) -> bool {
        self.batch().may_gather_withdrawal(claim)
    }

    fn may_act_for(&self, claim: &Claim) -> Duration {
        self.batch().may_act_for(claim)
    }
}

#[async_trait]
impl RemoteStore for DisturbedStore {
    fn lanes(&self) -> Option<Lanes> {
        self.remote()?.lanes()
    }

    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let slow = self.slow.as_ref().and_then(|slow| slow.ensure_connected(limit));
        slow.or_else(|| self.remote()?.ensure_connected(limit))
    }

    fn why_unanswered(&self, waited: Duration) -> Option<LockError> {
        self.remote()?.why_unanswered(waited)
    }

    async fn close(&self) -> Result<()> {
        match self.remote() {
            Some(remote) => remote.close().await,
            None => Ok(()),
        }
    }
}

type Arrival = (Result<StoreEvent>, Option<Instant>);

/// Forwards events, each with its time of delivery, until the stream ends or breaks, or the
/// receiver is dropped.
async fn forward(
    mut events: EventStream,
    mut pushes: watch::Receiver<Option<Pushes>>,
    mut cut_off: watch::Receiver<bool>,
    sender: mpsc::UnboundedSender<Arrival>,
) {
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = sender.closed() => return,
            changed = cut_off.changed() => match changed.map(|()| *cut_off.borrow_and_update()) {
                Ok(true) => continue,
                // Events of the meantime were missed.
                Ok(false) => Some(Err(LockError::new(ErrorKind::Unavailable, "the client was cut off"))),
                Err(_) => return,
            },
            changed = pushes.changed() => match changed.map(|()| *pushes.borrow_and_update()) {
                Ok(Some(Pushes::Refused)) => Some(Err(refused())),
                Ok(Some(Pushes::Broken)) => {
                    Some(Err(LockError::new(ErrorKind::Unavailable, "the stream was made to break")))
                }
                Ok(_) => continue,
                Err(_) => return,
            },
        };
        if *cut_off.borrow() {
            if event.is_none() {
                return;
            }
            continue;
        }
        let Some(event) = event else { return };
        let due = match *pushes.borrow() {
            Some(Pushes::Delayed(by)) => Some(Instant::now() + by),
            _ => None,
        };
        let ends = event.is_err();
        if sender.send((event, due)).is_err() || ends {
            return;
        }
    }
}

fn refused() -> LockError {
    LockError::new(ErrorKind::Unsupported, "pushes were made to be refused")
}

// For checks. A fault hits this client alone, and lasts until the faults end.
impl DisturbedStore {
    /// Makes the next operations of this kind fail with a transient error and without effect.
    pub(crate) fn fail_next(&self, operation: Operation, times: u32) {
        self.faults().failing.insert(operation, times);
    }

    /// Executes the next operations of this kind and loses their replies.
    pub(crate) fn lose_replies(&self, operation: Operation, times: u32) {
        self.faults().losing.insert(operation, times);
    }

    /// Executes the next operations of this kind and delays their replies, whatever the timeout of
    /// the request.
    pub(crate) fn delay_replies(&self, operation: Operation, times: u32, by: Duration) {
        let mut faults = self.faults();
        faults.delays.insert(operation, by);
        faults.delaying.insert(operation, times);
    }

    /// Cuts the client off from its store, as if its process had been killed: no request arrives,
    /// and no reply or event reaches it. When this returns, the store carries out no earlier
    /// request either.
    pub(crate) async fn cut_off(&self) -> Result<(), FixtureError> {
        self.shared.cut_off.send_replace(true);
        // A request that arrives later could, for example, confirm a grant for its whole ttl.
        let mut under_way = self.shared.under_way.subscribe();
        if timeout(LAST_REQUESTS, under_way.wait_for(|requests| *requests == 0)).await.is_err() {
            return Err(format!("a request of the client is still under way after {LAST_REQUESTS:?}").into());
        }
        Ok(())
    }

    /// Disturbs the events on open streams and new ones.
    pub(crate) fn disturb_pushes(&self, pushes: Pushes) {
        self.shared.pushes.send_replace(Some(pushes));
    }

    /// Makes every operation on the record of this key stall.
    pub(crate) fn stall(&self, key: &LockKey) {
        self.faults().stalled.insert(key.clone());
    }

    /// Returns how many requests the client has sent so far, without those of event streams.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns the latest renewals of leases, which are shown with failures.
    pub(crate) fn renewals(&self) -> Vec<SeenRenewal> {
        self.shared.renewals.lock().expect("no code in here panics").iter().cloned().collect()
    }

    /// Ends all faults, and returns how many operations they have hit.
    pub(crate) fn end_faults(&self) -> u64 {
        self.shared.pushes.send_replace(None);
        self.shared.cut_off.send_if_modified(std::mem::take);
        let hit = std::mem::take(&mut *self.faults()).hit;
        self.shared.ended.notify_waiters();
        hit
    }

    /// Ends all faults. Fails if they have hit fewer operations: without them the check proves
    /// nothing.
    #[track_caller]
    pub(crate) fn ensure_hit(&self, operations: u64, missing: &str) -> Verdict {
        let hit = self.end_faults();
        ensure!(hit >= operations, "{missing}, so the check proves nothing: does the client use its `DisturbedStore`?");
        Ok(())
    }

    /// Does to a record what [`with_purge`](Self::with_purge) says.
    pub(crate) async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        match &self.purge {
            Some(purge) => purge(key.clone()).await,
            None => Err(format!("{key:?} cannot be purged: the store was made without `with_purge`").into()),
        }
    }
}

#[cfg(test)]
mod tests;
