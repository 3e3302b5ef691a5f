//! Requests of different keys that go to the store in one call.
//!
//! What `state::gather` decides is carried out here. A request that waits for company is in a line
//! like any other: it has sent nothing, and leaves with its caller. Once its batch has been sent,
//! the call belongs to none of its callers, and runs to its end whoever leaves.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use distlock_api::{ErrorKind, LockError, ReleaseOutcome, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::run::call::{Call, Position, guarded};
use crate::run::clock;
use crate::state::gather::{Arrival, Gather};
use crate::store::{Attempt, Lane, LeaseStore, Overload, PermitReply, Release, Reply};

type Answers<T> = Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send>>;

/// What can be gathered.
pub(crate) trait Kind: Send + Sync + 'static {
    type Request: Send + 'static;
    type Answer: Send + 'static;
    const LANE: Lane;

    /// Sends requests in one call.
    fn send(store: Arc<dyn LeaseStore>, requests: Vec<Self::Request>) -> Answers<Self::Answer>;
}

/// First attempts to acquire.
pub(crate) struct Acquisitions;

impl Kind for Acquisitions {
    type Request = Attempt;
    type Answer = Reply;
    const LANE: Lane = Lane::Acquire;

    fn send(store: Arc<dyn LeaseStore>, requests: Vec<Attempt>) -> Answers<Reply> {
        Box::pin(async move { store.try_acquire_many(&requests).await })
    }
}

/// Releases that grant the lease to no waiter.
pub(crate) struct Releases;

impl Kind for Releases {
    type Request = Release;
    type Answer = ReleaseOutcome;
    const LANE: Lane = Lane::Release;

    fn send(store: Arc<dyn LeaseStore>, requests: Vec<Release>) -> Answers<ReleaseOutcome> {
        Box::pin(async move { store.release_many(&requests).await })
    }
}

/// The requests of one kind that one engine gathers.
pub(crate) struct Gathering<K: Kind>(Mutex<Gather<Gathered<K>>>);

impl<K: Kind> Default for Gathering<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A request that waits for company.
struct Gathered<K: Kind> {
    request: K::Request,
    /// When its caller leaves.
    deadline: Option<Instant>,
    started: oneshot::Sender<Instant>,
    answer: oneshot::Sender<Result<K::Answer>>,
}

/// How a request goes to the store.
pub(crate) enum Joined<K: Kind> {
    /// By itself, at once. The slot lives as long as the call.
    Alone(K::Request, Slot<K>),
    /// By itself, through the lanes, because too many wait here.
    Beside(K::Request),
    /// In a batch.
    Together(Call<K::Answer>),
}

impl<K: Kind> Gathering<K> {
    fn state(&self) -> MutexGuard<'_, Gather<Gathered<K>>> {
        self.0.lock().expect("no code in here panics")
    }

    /// Adds a request, whose caller leaves at `deadline`.
    pub(crate) fn join(
        self: &Arc<Self>,
        store: &Arc<dyn LeaseStore>,
        request: K::Request,
        deadline: Option<Instant>,
    ) -> Joined<K> {
        let batch = batch(store);
        if batch == 1 {
            return Joined::Beside(request);
        }
        let ((started, starts), (answer, answers)) = (oneshot::channel(), oneshot::channel());
        let gathered = Gathered { request, deadline, started, answer };
        let (number, due) = {
            let mut state = self.state();
            match state.arrive(gathered, batch) {
                Arrival::Alone(Gathered { request, .. }) => return Joined::Alone(request, Slot::new(self, store)),
                Arrival::Full(Gathered { request, .. }) => return Joined::Beside(request),
                Arrival::Waits(number) => (number, Instant::now() + state.patience()),
                Arrival::Together(number, next) => {
                    drop(state);
                    self.send(store, next);
                    (number, Instant::now())
                }
            }
        };
        Joined::Together(Call::gathering(
            Place { gathering: self.clone(), store: store.clone(), number },
            due,
            starts,
            answers,
        ))
    }

    /// Sends a batch from a task, because it belongs to none of its callers.
    fn send(self: &Arc<Self>, store: &Arc<dyn LeaseStore>, batch: Vec<Gathered<K>>) {
        if !batch.is_empty() {
            drop(tokio::spawn(Slot::new(self, store).send(batch)));
        }
    }
}

/// A call that is under way. When it ends, the next batch goes.
pub(crate) struct Slot<K: Kind> {
    gathering: Arc<Gathering<K>>,
    store: Arc<dyn LeaseStore>,
    since: Instant,
}

impl<K: Kind> Slot<K> {
    fn new(gathering: &Arc<Gathering<K>>, store: &Arc<dyn LeaseStore>) -> Self {
        Self { gathering: gathering.clone(), store: store.clone(), since: Instant::now() }
    }

    async fn send(self, batch: Vec<Gathered<K>>) {
        let store = self.store.clone();
        let permit = match store.lanes().map(|lanes| lanes.enter(K::LANE, None, false)) {
            None => None,
            Some(PermitReply::Now(permit)) => Some(permit),
            Some(PermitReply::Later(in_line)) => match in_line.permit().await {
                Some(permit) => Some(permit),
                None => return,
            },
            Some(PermitReply::Refused(_)) => return,
        };
        let pace = self.gathering.state().pace();
        let sent = clock::sending();
        let (mut requests, mut answers) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Gathered { request, deadline, started, answer } in batch {
            // Not for a caller that has left, or that could not be answered in time any more.
            let in_time = deadline.is_none_or(|deadline| sent + pace <= deadline);
            if in_time && started.send(sent).is_ok() {
                requests.push(request);
                answers.push(answer);
            }
        }
        if requests.is_empty() {
            return;
        }
        let call = guarded(async { Ok(K::send(store, requests).await) });
        let replies = call.await.unwrap_or_else(|error| answers.iter().map(|_| Err(error.clone())).collect());
        drop(permit);
        // The next batch goes before the callers of this one are woken.
        drop(self);
        let missing =
            || Err(LockError::new(ErrorKind::Other, "the lease store left an answer of a batch out").outcome_unknown());
        let replies = replies.into_iter().chain(std::iter::repeat_with(missing));
        for (answer, reply) in answers.into_iter().zip(replies) {
            // A caller that has left withdraws its claim.
            let _ = answer.send(reply);
        }
    }
}

impl<K: Kind> Drop for Slot<K> {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent from here. What waits goes with the next request,
        // or when it is overdue.
        let batch = if Handle::try_current().is_ok() { batch(&self.store) } else { 0 };
        let next = self.gathering.state().ended(self.since.elapsed(), batch);
        self.gathering.send(&self.store, next);
    }
}

fn batch(store: &Arc<dyn LeaseStore>) -> usize {
    store.capabilities().acquire_batch.get()
}

struct Place<K: Kind> {
    gathering: Arc<Gathering<K>>,
    store: Arc<dyn LeaseStore>,
    number: u64,
}

impl<K: Kind> Position for Place<K> {
    fn leave(&self) {
        // Outside the lock: dropping it wakes the receiver.
        let left = self.gathering.state().leave(self.number);
        drop(left);
    }

    fn overdue(&self) {
        let next = self.gathering.state().overdue(self.number, batch(&self.store));
        self.gathering.send(&self.store, next);
    }

    fn overload(&self) -> Overload {
        let state = self.gathering.state();
        Overload { in_line: state.len(), at_once: batch(&self.store), wait: state.pace() }
    }
}

impl<K: Kind> Drop for Place<K> {
    fn drop(&mut self) {
        self.leave();
    }
}
