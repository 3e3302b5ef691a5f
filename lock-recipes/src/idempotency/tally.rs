//! Counters of one layer, and the view of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use distlock_api::LockKey;
use distlock_api::style::{Client, Counted, Counts};
use tokio::sync::watch;

use super::record;
use super::refusal::Reason;

/// What is counted, besides refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begun,
    Replayed,
    NotKept,
    FailedOpen,
}

impl Event {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Replayed => "replayed",
            Self::NotKept => "not-kept",
            Self::FailedOpen => "failed-open",
        }
    }
}

/// The counters that all services of one layer share.
#[derive(Debug)]
pub(super) struct Tally {
    events: [AtomicU64; 4],
    refusals: [AtomicU64; Reason::ALL.len()],
    running: watch::Sender<usize>,
    /// The requests that wait for an answer of the store.
    pub(super) waiters: Arc<Counts<LockKey>>,
    /// The requests whose body is read, that wait, or that are processed.
    present: AtomicUsize,
    clients: Arc<Counts<Client>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            events: Default::default(),
            refusals: Default::default(),
            running: watch::Sender::new(0),
            waiters: Arc::default(),
            present: AtomicUsize::new(0),
            clients: Arc::default(),
        }
    }
}

impl Tally {
    pub(super) fn event(&self, class: &Arc<str>, event: Event) {
        self.events[event as usize].fetch_add(1, Ordering::Relaxed);
        record::event(class, event.as_str());
    }

    pub(super) fn refused(&self, class: &Arc<str>, reason: Reason) {
        self.refusals[reason.index()].fetch_add(1, Ordering::Relaxed);
        record::event(class, reason.as_str());
    }

    pub(super) fn waited(&self, class: &Arc<str>, outcome: &'static str, wait: Duration) {
        record::wait(class, outcome, wait);
    }

    /// Counts a request as present until the place is dropped.
    pub(super) fn enter(self: &Arc<Self>, client: Option<&Client>, limits: Limits) -> Result<Place, Reason> {
        let of_client = match client {
            Some(client) => Some(self.clients.enter(client.clone(), limits.per_client).ok_or(Reason::ClientLimit)?),
            None => None,
        };
        let more = |present: usize| (present < limits.total).then_some(present + 1);
        match self.present.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Place { tally: self.clone(), _of_client: of_client }),
            Err(_) => Err(Reason::Full),
        }
    }

    /// Counts a handler as running until the answer is dropped.
    pub(super) fn run(self: &Arc<Self>) -> Running {
        self.running.send_modify(|running| *running += 1);
        Running(self.clone())
    }
}

/// How many requests may be present.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) total: usize,
    pub(super) per_client: usize,
}

/// A request that is present, until dropped.
#[derive(Debug)]
pub(super) struct Place {
    tally: Arc<Tally>,
    _of_client: Option<Counted<Client>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.tally.present.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handler that counts as running.
#[derive(Debug)]
pub(super) struct Running(Arc<Tally>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.send_modify(|running| *running -= 1);
    }
}

/// A view of what an [`IdempotencyLayer`](super::IdempotencyLayer) has done and is doing. Cheap to
/// clone.
#[derive(Clone)]
pub struct IdempotencyMonitor {
    tally: Arc<Tally>,
}

impl IdempotencyMonitor {
    pub(super) fn new(tally: Arc<Tally>) -> Self {
        Self { tally }
    }

    fn count(&self, event: Event) -> u64 {
        self.tally.events[event as usize].load(Ordering::Relaxed)
    }

    /// Returns how many requests were begun: how often the inner service was called under a key.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.count(Event::Begun)
    }

    /// Returns how many requests were answered with the answer of an earlier one.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.count(Event::Replayed)
    }

    /// Returns how many requests were done without their answer being kept.
    #[must_use]
    pub fn not_kept(&self) -> u64 {
        self.count(Event::NotKept)
    }

    /// Returns how many requests with a key were served without protection, because the store could
    /// not be reached.
    #[must_use]
    pub fn failed_open(&self) -> u64 {
        self.count(Event::FailedOpen)
    }

    /// Returns how many requests were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.tally.refusals[reason.index()].load(Ordering::Relaxed)
    }

    /// Returns how many requests are being processed under a key.
    #[must_use]
    pub fn running(&self) -> usize {
        *self.tally.running.borrow()
    }

    /// Returns how many requests wait for an answer of the store: for the end of an earlier request
    /// with their key, or for the first answer.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tally.waiters.total()
    }

    /// Waits until no request is being processed under a key, for a graceful shutdown: the server
    /// does not wait for the tasks of handlers whose clients have disconnected.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn idle(&self) {
        // The sender lives as long as `self`.
        let _ = self.tally.running.subscribe().wait_for(|running| *running == 0).await;
    }
}

impl fmt::Debug for IdempotencyMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyMonitor")
            .field("begun", &self.begun())
            .field("replayed", &self.replayed())
            .field("not_kept", &self.not_kept())
            .field("failed_open", &self.failed_open())
            .field("running", &self.running())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}
