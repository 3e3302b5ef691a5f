//! Requests of different keys that go to the store in one call.
//!
//! What `state::gather` decides is carried out here. A request that waits for company is in a line
//! like any other: it has sent nothing, and leaves with its caller. Once its batch has been sent,
//! the call belongs to none of its callers, and runs to its end whichever of them leaves.
//!
//! Each runtime gathers by itself. Otherwise a request would depend on a runtime that its caller
//! does not know: one that ends, or whose threads do something else.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result, contained};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::record;
use crate::run::call::{Call, Position, guarded, overloaded};
use crate::run::clock;
use crate::state::gather::{Arrival, Company, Gather};
use crate::store::{AcquireOp, Attempt, Lane, LeaseStore, Overload, PermitReply, Release, Reply};

type Answers<T> = Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send>>;

/// What can be gathered.
pub(crate) trait Kind: Send + Sync + 'static {
    type Request: Send + 'static;
    type Answer: Send + 'static;
    const LANE: Lane;
    /// What metrics call the requests.
    const NAME: &'static str;

    /// Sends requests in one call.
    fn send(store: Arc<dyn LeaseStore>, requests: Vec<Self::Request>) -> Answers<Self::Answer>;

    /// Sends one request by itself.
    fn send_one(
        store: Arc<dyn LeaseStore>,
        request: Self::Request,
    ) -> impl Future<Output = Result<Self::Answer>> + Send + 'static;
}

/// First attempts to acquire.
pub(crate) struct Acquisitions;

/// An attempt, and what makes it instead of the store unless it goes in a batch.
pub(crate) struct Acquiring {
    pub(crate) attempt: Attempt,
    pub(crate) via: Option<Arc<dyn AcquireOp>>,
}

impl Kind for Acquisitions {
    type Request = Acquiring;
    type Answer = Reply;
    const LANE: Lane = Lane::Acquire;
    const NAME: &'static str = "acquisitions";

    fn send(store: Arc<dyn LeaseStore>, mut requests: Vec<Acquiring>) -> Answers<Reply> {
        Box::pin(async move {
            // Others may have left meanwhile.
            if requests.len() == 1
                && let Some(single) = requests.pop()
            {
                return vec![Self::send_one(store, single).await];
            }
            let attempts: Vec<Attempt> = requests.into_iter().map(|request| request.attempt).collect();
            store.try_acquire_many(&attempts).await
        })
    }

    async fn send_one(store: Arc<dyn LeaseStore>, Acquiring { attempt, via }: Acquiring) -> Result<Reply> {
        match via {
            Some(op) => op.try_acquire(&attempt).await,
            None => store.try_acquire(&attempt).await,
        }
    }
}

/// Releases that grant the lease to no waiter.
pub(crate) struct Releases;

impl Kind for Releases {
    type Request = Release;
    type Answer = ReleaseOutcome;
    const LANE: Lane = Lane::Release;
    const NAME: &'static str = "releases";

    fn send(store: Arc<dyn LeaseStore>, requests: Vec<Release>) -> Answers<ReleaseOutcome> {
        Box::pin(async move { store.release_many(&requests).await })
    }

    async fn send_one(store: Arc<dyn LeaseStore>, release: Release) -> Result<ReleaseOutcome> {
        store.release(&release).await
    }
}

/// The requests of one kind that one engine gathers, by runtime.
pub(crate) struct Gathering<K: Kind> {
    runtimes: Mutex<HashMap<Id, Gather<Gathered<K>>>>,
    sent: Mutex<Sent>,
}

/// The batches that were sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    batches: u64,
    requests: u64,
    largest: usize,
    /// How long all requests together waited until their batch was sent.
    waited: Duration,
    longest_wait: Duration,
}

/// Runtimes beyond these are forgotten when they have nothing to do.
const RUNTIMES: usize = 8;

impl<K: Kind> Default for Gathering<K> {
    fn default() -> Self {
        Self { runtimes: Mutex::default(), sent: Mutex::default() }
    }
}

/// Shows how many requests wait, what was sent together, and how long that had waited.
impl<K: Kind> fmt::Debug for Gathering<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting: usize = self.runtimes.lock().expect("no code in here panics").values().map(Gather::len).sum();
        let Sent { batches, requests, largest, waited, longest_wait } = *self.sent();
        let mean = waited.div_f64(requests.max(1) as f64);
        write!(f, "{waiting} wait; {batches} batches of {requests} in all, {largest} at most; ")?;
        write!(f, "a request waited {mean:.1?} on average, {longest_wait:.1?} at most")
    }
}

/// A request that waits for company.
struct Gathered<K: Kind> {
    request: K::Request,
    since: Instant,
    /// When its caller leaves.
    deadline: Option<Instant>,
    started: oneshot::Sender<Instant>,
    answer: oneshot::Sender<Result<K::Answer>>,
}

/// How a request goes to the store.
enum Joined<K: Kind> {
    /// By itself, through the lanes. The slot lives as long as the call.
    Alone(K::Request, Option<Slot<K>>),
    /// In a batch.
    Together(Call<K::Answer>),
    /// Not at all: its turn would come too late.
    Refused(LockError),
}

impl<K: Kind> Gathering<K> {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().expect("no code in here panics")
    }

    /// Records a batch by how long each of its requests has waited.
    fn sends(&self, store: &str, waited: &[Duration]) {
        {
            let mut sent = self.sent();
            sent.batches += 1;
            sent.requests += waited.len() as u64;
            sent.largest = sent.largest.max(waited.len());
            for waited in waited {
                sent.waited += *waited;
                sent.longest_wait = sent.longest_wait.max(*waited);
            }
        }
        record::batch(store, K::NAME, waited);
    }

    /// Starts a request whose answer is of use until `deadline`: with others, if it may have
    /// `company`. With `admission`, fails at once if its turn would come too late.
    pub(crate) fn call(
        self: &Arc<Self>,
        store: &Arc<dyn LeaseStore>,
        request: K::Request,
        company: Option<Company>,
        deadline: Option<Instant>,
        admission: bool,
    ) -> Result<Call<K::Answer>> {
        let joined = match company {
            Some(company) => self.join(store, request, company, deadline, admission),
            None => Joined::Alone(request, None),
        };
        let (request, mut slot) = match joined {
            Joined::Together(call) => return Ok(call),
            Joined::Refused(overload) => return Err(overload),
            Joined::Alone(request, slot) => (request, slot),
        };
        let (lanes, store) = (store.lanes(), store.clone());
        let request = async move {
            if let Some(slot) = &mut slot {
                slot.begin();
            }
            K::send_one(store, request).await
        };
        Call::new(lanes, K::LANE, deadline, admission, request)
    }

    /// Adds a request to those that wait for company, or lets it go alone.
    fn join(
        self: &Arc<Self>,
        store: &Arc<dyn LeaseStore>,
        request: K::Request,
        company: Company,
        deadline: Option<Instant>,
        admission: bool,
    ) -> Joined<K> {
        let batch = store.capabilities().acquire_batch.get();
        let Some(home) = Handle::try_current().ok().filter(|_| batch > 1) else { return Joined::Alone(request, None) };
        let here = Here { gathering: self.clone(), store: store.clone(), home };
        let ((started, starts), (answer, answers)) = (oneshot::channel(), oneshot::channel());
        let since = Instant::now();
        let gathered = Gathered { request, since, deadline, started, answer };
        let limit = store.lanes().zip(deadline).filter(|_| admission);
        let joined = here.with(|gather| {
            if !gather.goes_alone(company)
                && let Some((lanes, deadline)) = &limit
                && let Some(overload) = lanes.refusal(K::LANE, gather.calls_ahead(batch), *deadline)
            {
                return Err(overload);
            }
            let arrival = gather.arrive(gathered, company, batch);
            let spare = deadline.filter(|_| matches!(arrival, Arrival::Waits { .. })).map(|deadline| {
                let needs = store.lanes().map_or_else(|| gather.pace(), |lanes| lanes.needs(K::LANE));
                deadline.saturating_duration_since(since + needs)
            });
            Ok((arrival, since + gather.patience(spare)))
        });
        match joined {
            Err(overload) => Joined::Refused(overloaded(overload)),
            Ok((Arrival::Alone(Gathered { request, .. }), _)) => Joined::Alone(request, Some(Slot::under_way(here))),
            Ok((Arrival::Waits { number, sender }, due)) => {
                here.add_sender(sender);
                let awaits_others = company == Company::Certain;
                Joined::Together(Call::gathering(Place { here, number }, awaits_others, due, (starts, answers)))
            }
        }
    }
}

/// What one runtime gathers.
struct Here<K: Kind> {
    gathering: Arc<Gathering<K>>,
    store: Arc<dyn LeaseStore>,
    home: Handle,
}

impl<K: Kind> Clone for Here<K> {
    fn clone(&self) -> Self {
        Self { gathering: self.gathering.clone(), store: self.store.clone(), home: self.home.clone() }
    }
}

impl<K: Kind> Here<K> {
    fn with<T>(&self, change: impl FnOnce(&mut Gather<Gathered<K>>) -> T) -> T {
        let mut runtimes = self.gathering.runtimes.lock().expect("no code in here panics");
        let gather = runtimes.entry(self.home.id()).or_default();
        let answer = change(gather);
        if gather.is_idle() && runtimes.len() > RUNTIMES {
            runtimes.remove(&self.home.id());
        }
        answer
    }

    fn batch(&self) -> usize {
        self.store.capabilities().acquire_batch.get()
    }

    /// Gets in line with a batch, in a task, because it belongs to none of its callers. If the
    /// runtime has ended, so have the callers.
    fn add_sender(&self, needed: bool) {
        if needed {
            drop(self.home.spawn(Slot { here: self.clone(), stage: Stage::InLine }.send()));
        }
    }
}

/// A call in line or under way. When it ends, the next batch gets in line.
struct Slot<K: Kind> {
    here: Here<K>,
    stage: Stage,
}

enum Stage {
    InLine,
    /// Since when; `None` as long as nothing has been sent.
    UnderWay(Option<Instant>),
}

impl<K: Kind> Slot<K> {
    fn under_way(here: Here<K>) -> Self {
        Self { here, stage: Stage::UnderWay(None) }
    }

    /// The call is sent now.
    fn begin(&mut self) {
        self.stage = Stage::UnderWay(Some(Instant::now()));
    }

    /// The turn has come. Returns the requests that go together.
    fn take(&mut self) -> Vec<Gathered<K>> {
        self.stage = Stage::UnderWay(None);
        let batch = self.here.batch();
        let (next, another) = self.here.with(|gather| gather.take(batch));
        self.here.add_sender(another);
        next
    }

    async fn send(mut self) {
        let (store, lanes) = (self.here.store.clone(), self.here.store.lanes());
        let (permit, is_idle) = match lanes.as_ref().map(|lanes| lanes.enter(K::LANE, None, false)) {
            None => (None, !self.here.with(|gather| gather.is_under_way())),
            Some(PermitReply::Now(permit)) => (Some(permit), true),
            Some(PermitReply::Later(in_line)) => match in_line.permit().await {
                Some(permit) => (Some(permit), false),
                None => return,
            },
            Some(PermitReply::Refused(_)) => return,
        };
        let batch = self.take();
        // A call that had to wait for nothing is sent in any case: only its answer shows whether
        // the store is fast again.
        let needs = match &lanes {
            _ if is_idle => Duration::ZERO,
            Some(lanes) => lanes.needs(K::LANE),
            None => self.here.with(|gather| gather.pace()),
        };
        let sent = clock::sending();
        let (mut requests, mut answers) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let mut waited = Vec::with_capacity(batch.len());
        for Gathered { request, since, deadline, started, answer } in batch {
            // Not for a caller that has left, or that could not be answered in time any more.
            // Both wake the caller, and a panic of its waker must cost no other caller its answer.
            let in_time = deadline.is_none_or(|deadline| sent + needs <= deadline);
            let mut is_sent = false;
            contained(|| is_sent = in_time && started.send(sent).is_ok());
            if is_sent {
                waited.push(sent.saturating_duration_since(since));
                requests.push(request);
                answers.push(answer);
            }
        }
        if requests.is_empty() {
            if let Some(permit) = permit {
                permit.unused();
            }
            return;
        }
        self.here.gathering.sends(store.name(), &waited);
        self.begin();
        let call = guarded(async { Ok(K::send(store, requests).await) });
        let replies = call.await.unwrap_or_else(|error| answers.iter().map(|_| Err(error.clone())).collect());
        drop(permit);
        // The next batch gets in line before the callers of this one are woken.
        drop(self);
        let missing = || {
            let message = "the lease store left an answer of a batch out: a backend must give one for each request";
            Err(LockError::new(ErrorKind::Other, message).outcome_unknown())
        };
        let replies = replies.into_iter().chain(std::iter::repeat_with(missing));
        for (answer, reply) in answers.into_iter().zip(replies) {
            // A caller that has left withdraws its claim.
            contained(|| drop(answer.send(reply)));
        }
    }
}

impl<K: Kind> Drop for Slot<K> {
    fn drop(&mut self) {
        match self.stage {
            Stage::InLine => self.here.with(Gather::sender_left),
            Stage::UnderWay(since) => {
                let (took, batch) = (since.map(|since| since.elapsed()), self.here.batch());
                let needed = self.here.with(|gather| gather.ended(took, batch));
                self.here.add_sender(needed);
            }
        }
    }
}

/// The place of a request that waits for company.
struct Place<K: Kind> {
    here: Here<K>,
    number: u64,
}

impl<K: Kind> Position for Place<K> {
    fn leave(&self) {
        // Outside the lock: dropping it wakes the receiver.
        let left = self.here.with(|gather| gather.leave(self.number));
        drop(left);
    }

    fn arrived(&self) {
        let batch = self.here.batch();
        let needed = self.here.with(|gather| gather.arrived(batch));
        self.here.add_sender(needed);
    }

    fn overdue(&self) {
        let batch = self.here.batch();
        let needed = self.here.with(|gather| gather.overdue(self.number, batch));
        self.here.add_sender(needed);
    }

    fn overload(&self) -> Overload {
        let batch = self.here.batch();
        let (len, ahead, pace) = self.here.with(|gather| (gather.len(), gather.calls_ahead(batch), gather.pace()));
        match self.here.store.lanes() {
            Some(lanes) => lanes.overload(K::LANE, ahead),
            None => Overload { in_line: len, at_once: batch, wait: pace, takes: pace },
        }
    }
}

impl<K: Kind> Drop for Place<K> {
    fn drop(&mut self) {
        self.leave();
    }
}
