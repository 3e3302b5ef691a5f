//! The way of every request to the store: it stands in one line, and one call takes it.
//!
//! `store::outbox` decides when a request goes, and with which others. A request in line has sent
//! nothing, and leaves with its caller. A call with a permit is a task of its own, so that a caller
//! that does not poll keeps no permit from others. A call for several requests belongs to none of
//! their callers, and runs to its end whichever of them leaves. A call runs in the span of its
//! first request, so that what the store's driver traces belongs to that.

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use distlock_api::style::contained;
use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::metrics;
use crate::run::call::{Call, Sending, Stage, Work, guarded};
use crate::run::clock;
use crate::store::{
    AcquireOp, Attempt, BatchStore, Claim, Entered, Entry, Home, Job, Lane, Lanes, LeaseStore, Permit, ProviderId,
    Release, Reply, Write, WriteOp, Written,
};

type Store = Arc<dyn LeaseStore>;

/// A request to the store. Those of one [`KIND`](Self::KIND) may go together.
pub(crate) trait Request: Sized + Send + 'static {
    type Answer: Send + 'static;
    const LANE: Lane;
    /// What metrics call the requests; `None` for those that always go alone.
    const KIND: Option<Kind> = None;

    /// Sends the request alone.
    fn single(self, store: Store) -> impl Future<Output = Result<Self::Answer>> + Send + 'static;

    /// Sends requests in one call. Returns one answer for each.
    fn batch(requests: Vec<Self>, store: Store) -> impl Future<Output = Vec<Result<Self::Answer>>> + Send + 'static {
        let singles = requests.into_iter().map(move |request| request.single(store.clone()));
        join_all(singles)
    }
}

/// What may go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquisitions,
    Releases,
    Withdrawals,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Acquisitions, Self::Releases, Self::Withdrawals];

    const fn name(self) -> &'static str {
        match self {
            Self::Acquisitions => "acquisitions",
            Self::Releases => "releases",
            Self::Withdrawals => "withdrawals",
        }
    }
}

/// An attempt to acquire, and what makes it instead of the store unless it goes with others.
pub(crate) struct Acquire {
    pub(crate) attempt: Attempt,
    pub(crate) via: Option<Arc<dyn AcquireOp>>,
}

impl Request for Acquire {
    type Answer = Reply;
    const LANE: Lane = Lane::Acquire;
    const KIND: Option<Kind> = Some(Kind::Acquisitions);

    async fn single(self, store: Store) -> Result<Reply> {
        match self.via {
            Some(op) => op.try_acquire(&self.attempt).await,
            None => store.try_acquire(&self.attempt).await,
        }
    }

    async fn batch(requests: Vec<Self>, store: Store) -> Vec<Result<Reply>> {
        let attempts: Vec<Attempt> = requests.into_iter().map(|request| request.attempt).collect();
        match store.extras().batch {
            Some(batch) => batch.try_acquire_many(&attempts).await,
            None => join_all(attempts.iter().map(|attempt| store.try_acquire(attempt))).await,
        }
    }
}

impl Request for Release {
    type Answer = ReleaseOutcome;
    const LANE: Lane = Lane::Release;
    const KIND: Option<Kind> = Some(Kind::Releases);

    async fn single(self, store: Store) -> Result<ReleaseOutcome> {
        store.release(&self).await
    }

    async fn batch(requests: Vec<Self>, store: Store) -> Vec<Result<ReleaseOutcome>> {
        match store.extras().batch {
            Some(batch) => batch.release_many(&requests).await,
            None => join_all(requests.iter().map(|release| store.release(release))).await,
        }
    }
}

/// A request to remove everything that a claim has.
pub(crate) struct Withdraw {
    pub(crate) claim: Claim,
    pub(crate) timeout: Duration,
}

impl Request for Withdraw {
    type Answer = ();
    const LANE: Lane = Lane::Release;
    const KIND: Option<Kind> = Some(Kind::Withdrawals);

    async fn single(self, store: Store) -> Result<()> {
        store.withdraw(&self.claim, self.timeout).await
    }

    async fn batch(requests: Vec<Self>, store: Store) -> Vec<Result<()>> {
        // All of one provider, and so with one timeout.
        let timeout = requests.iter().map(|request| request.timeout).min().unwrap_or_default();
        let claims: Vec<Claim> = requests.into_iter().map(|request| request.claim).collect();
        match store.extras().batch {
            Some(batch) => batch.withdraw_many(&claims, timeout).await,
            None => join_all(claims.iter().map(|claim| store.withdraw(claim, timeout))).await,
        }
    }
}

/// A write under a lease.
pub(crate) struct WriteUnder {
    pub(crate) op: Arc<dyn WriteOp>,
    pub(crate) write: Write,
}

impl Request for WriteUnder {
    type Answer = Written;
    const LANE: Lane = Lane::Release;

    async fn single(self, _: Store) -> Result<Written> {
        self.op.write(&self.write).await
    }
}

/// A query for the waiters of a claim's key.
pub(crate) struct CountWaiters {
    pub(crate) claim: Claim,
    pub(crate) timeout: Duration,
}

impl Request for CountWaiters {
    type Answer = u32;
    const LANE: Lane = Lane::Refresh;

    async fn single(self, store: Store) -> Result<u32> {
        match store.extras().queue {
            Some(queue) => queue.waiters(&self.claim, self.timeout).await,
            None => Err(LockError::new(ErrorKind::Unsupported, "the store keeps no queue")),
        }
    }
}

/// Until when a request is of use, and how it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimits {
    /// When its answer is of no more use.
    pub(crate) deadline: Option<Instant>,
    /// Whether it is refused at once if its turn would come too late.
    pub(crate) is_refusable: bool,
    pub(crate) together: Together,
}

impl CallLimits {
    /// A request of use until then, which goes alone or with others.
    pub(crate) fn until(deadline: Instant, together: Together) -> Self {
        Self { deadline: Some(deadline), is_refusable: false, together }
    }
}

/// Whether a request may go with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    No,
    /// With those that wait, if there are any.
    Perhaps,
    /// It is one of several of one caller. As a rule all of them have entered when it is polled
    /// again.
    InGroup,
}

/// The requests of one engine on their way to the store.
pub(crate) struct Outbox {
    pub(crate) store: Store,
    provider: ProviderId,
    /// For a store without lanes.
    unbounded: Lanes,
    sent: Mutex<[Sent; Kind::ALL.len()]>,
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

/// A request in line.
struct Waiting<R: Request> {
    request: R,
    since: Instant,
    outbox: Arc<Outbox>,
    home: Handle,
    span: Span,
    sending: oneshot::Sender<Sending>,
    answer: oneshot::Sender<Result<R::Answer>>,
}

impl Outbox {
    pub(crate) fn new(store: Store, provider: ProviderId) -> Self {
        Self { store, provider, unbounded: Lanes::unbounded(), sent: Mutex::default() }
    }

    /// Sends a request, or adds it to the line.
    pub(crate) fn send<R: Request>(self: &Arc<Self>, request: R, limits: CallLimits) -> Call<R::Answer> {
        let lanes = self.store.extras().remote.and_then(|remote| remote.lanes());
        let most = match (R::KIND, limits.together) {
            (None, _) | (_, Together::No) => 1,
            (Some(_), _) => self.batch().map_or(1, |batch| batch.acquire_batch().get()),
        };
        if lanes.is_none() && most == 1 {
            // Polled in place: no task on the fast path.
            let stage = Stage::Sent(Sending { at: clock::sending(), is_batch: false });
            return Call { stage, work: Work::InPlace(Box::pin(guarded(request.single(self.store.clone())))) };
        }
        let home = Handle::current();
        let entry = Entry {
            lane: R::LANE,
            home: Home {
                provider: self.provider,
                runtime: home.id(),
                kind: R::KIND.filter(|_| most > 1).map(Kind::name),
            },
            most,
            deadline: limits.deadline,
            is_refusable: limits.is_refusable,
            in_group: most > 1 && limits.together == Together::InGroup,
        };
        let (answer, answers) = oneshot::channel();
        let (mut unsent, mut is_sent) = (Some((request, answer)), None);
        let entered = lanes.as_ref().unwrap_or(&self.unbounded).enter(entry, || {
            let (request, answer) = unsent.take().expect("taken once");
            let (sending, receiver) = oneshot::channel();
            is_sent = Some(receiver);
            let (since, span) = (Instant::now(), Span::current());
            let waiting = Waiting { request, since, outbox: self.clone(), home, span, sending, answer };
            Job { request: Box::new(waiting), send: send_together::<R> }
        });
        let stage = match (entered, unsent, is_sent) {
            (Entered::Start(permit), Some((request, answer)), _) => {
                // Before the task: another thread may send the request at once (R1).
                let sending = Sending { at: clock::sending(), is_batch: false };
                drop(tokio::spawn(send_alone(permit, request, self.store.clone(), answer).in_current_span()));
                Stage::Sent(sending)
            }
            (Entered::InLine(line), _, Some(sending)) => Stage::InLine { line, awaits_group: entry.in_group, sending },
            (Entered::Refused(overload), ..) => Stage::NotSent(overload),
            _ => unreachable!("a request waits, or is still here"),
        };
        Call { stage, work: Work::InTask(answers) }
    }

    /// Returns the store's batches, if it makes any.
    pub(crate) fn batch(&self) -> Option<&dyn BatchStore> {
        self.store.extras().batch.filter(|batch| batch.acquire_batch() != NonZeroUsize::MIN)
    }

    /// Returns the lanes of the store. A store that panics here (C14) still gets its renewals.
    pub(crate) fn lanes(&self) -> Lanes {
        let mut lanes = None;
        contained(|| lanes = self.store.extras().remote.and_then(|remote| remote.lanes()));
        lanes.unwrap_or_else(|| self.unbounded.clone())
    }

    /// Returns the home of calls that the keeper of a runtime makes.
    pub(crate) fn keeper_home(&self, runtime: tokio::runtime::Id) -> Home {
        Home { provider: self.provider, runtime, kind: None }
    }

    fn sent(&self) -> MutexGuard<'_, [Sent; Kind::ALL.len()]> {
        self.sent.lock().expect("no code in here panics")
    }

    /// Records a batch by how long each of its requests has waited.
    fn batch_sent(&self, kind: Kind, waited: &[Duration]) {
        {
            let sent = &mut self.sent()[kind as usize];
            sent.batches += 1;
            sent.requests += waited.len() as u64;
            sent.largest = sent.largest.max(waited.len());
            for waited in waited {
                sent.waited += *waited;
                sent.longest_wait = sent.longest_wait.max(*waited);
            }
        }
        metrics::batch(self.store.name(), kind.name(), waited);
    }

    /// Adds to the fields of a debug output, for each kind: how many requests wait, what was sent
    /// together, and how long that had waited.
    pub(crate) fn add_fields(&self, shown: &mut fmt::DebugStruct<'_, '_>) {
        let sent = *self.sent();
        let lanes = self.lanes();
        for kind in Kind::ALL {
            let lane = if kind == Kind::Acquisitions { Lane::Acquire } else { Lane::Release };
            let waiting = lanes.waiting(lane, self.provider, kind.name());
            let Sent { batches, requests, largest, waited, longest_wait } = sent[kind as usize];
            let mean = waited.div_f64(requests.max(1) as f64);
            shown.field(
                kind.name(),
                &format_args!(
                    "{waiting} wait; {batches} batches of {requests} in all, {largest} at most; a request waited \
                     {mean:.1?} on average, {longest_wait:.1?} at most"
                ),
            );
        }
    }
}

/// Sends requests of one home in one call, in a task on its runtime. If that has ended, so have the
/// callers.
fn send_together<R: Request>(requests: Vec<Box<dyn Any + Send>>, permit: Permit) {
    let waiting: Vec<Waiting<R>> = requests.into_iter().filter_map(|request| Some(*request.downcast().ok()?)).collect();
    if let Some((home, span)) = waiting.first().map(|first| (first.home.clone(), first.span.clone())) {
        drop(home.spawn(call(waiting, permit).instrument(span)));
    }
}

async fn call<R: Request>(waiting: Vec<Waiting<R>>, permit: Permit) {
    let is_batch = waiting.len() > 1;
    let at = clock::sending();
    let (mut requests, mut answers) = (Vec::with_capacity(waiting.len()), Vec::with_capacity(waiting.len()));
    let (mut waited, mut outbox) = (Vec::with_capacity(waiting.len()), None);
    for Waiting { request, since, outbox: of, sending, answer, .. } in waiting {
        // It wakes the caller, and a panic of its waker must cost no other caller its answer.
        let mut is_sent = false;
        contained(|| is_sent = sending.send(Sending { at, is_batch }).is_ok());
        if is_sent {
            waited.push(at.saturating_duration_since(since));
            requests.push(request);
            answers.push(answer);
            outbox = Some(of);
        }
    }
    // All callers may have left.
    let Some(outbox) = outbox else { return };
    if let (Some(kind), true) = (R::KIND, is_batch) {
        outbox.batch_sent(kind, &waited);
    }
    let store = outbox.store.clone();
    if requests.len() == 1
        && let Some((request, answer)) = requests.pop().zip(answers.pop())
    {
        return send_alone(permit, request, store, answer).await;
    }
    let replies = guarded(async { Ok(R::batch(requests, store).await) }).await;
    let replies = replies.unwrap_or_else(|error| answers.iter().map(|_| Err(error.clone())).collect());
    // The next requests go before the callers of these are woken.
    permit.answered();
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

/// Sends one request. Its call ends with its caller.
async fn send_alone<R: Request>(
    permit: Permit,
    request: R,
    store: Store,
    mut answer: oneshot::Sender<Result<R::Answer>>,
) {
    let reply = tokio::select! {
        biased;
        reply = guarded(request.single(store)) => reply,
        () = answer.closed() => return permit.unanswered(),
    };
    permit.answered();
    contained(|| drop(answer.send(reply)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{RemoteStore, StoreExtras};

    /// A call with a permit is a task, which another thread may run at once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn r1_a_deadline_counts_from_before_the_request() {
        #[derive(Debug)]
        struct Bounded(Lanes);

        impl RemoteStore for Bounded {
            fn lanes(&self) -> Option<Lanes> {
                Some(self.0.clone())
            }
        }

        #[distlock_api::async_trait]
        impl LeaseStore for Bounded {
            fn extras(&self) -> StoreExtras<'_> {
                StoreExtras { remote: Some(self), ..StoreExtras::default() }
            }

            async fn try_acquire(&self, _: &Attempt) -> Result<Reply> {
                unreachable!("it is sent only to be answered")
            }

            async fn renew(&self, _: &crate::store::Renewal) -> Result<crate::store::Standing> {
                unreachable!("it is sent only to be answered")
            }

            async fn release(&self, _: &Release) -> Result<ReleaseOutcome> {
                unreachable!("it is sent only to be answered")
            }
        }

        struct ReadsTheClock;

        impl Request for ReadsTheClock {
            type Answer = Instant;
            const LANE: Lane = Lane::Acquire;

            async fn single(self, _: Store) -> Result<Instant> {
                Ok(Instant::now())
            }
        }

        let lanes = Lanes::new(NonZeroUsize::new(1000).unwrap());
        let outbox = Arc::new(Outbox::new(Arc::new(Bounded(lanes)), ProviderId::random()));
        let limits = CallLimits { deadline: None, is_refusable: false, together: Together::No };
        for _ in 0..20_000 {
            let mut call = outbox.send(ReadsTheClock, limits);
            let polled = call.answer(None, Duration::from_secs(60)).await.unwrap().unwrap();
            let sent = call.sent_at().unwrap();
            assert!(sent <= polled, "counts from {:?} after the request", sent - polled);
        }
    }
}
