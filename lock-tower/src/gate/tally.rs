//! Counts what a layer has done and is doing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::flow::Flow;
use super::pace::Pace;
use super::waiters::Waiters;
use crate::refusal::Reason;

/// What all services of one layer share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    flow: Flow,
    pace: Apart<Pace>,
    pub(super) waiters: Arc<Waiters>,
    failed_open: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    /// How many calls of [`Monitor::idle`] wait.
    watchers: AtomicUsize,
    idle: Notify,
}

/// A cache line of its own for a value that many threads change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl Tally {
    pub(super) fn refused(&self, reason: Reason) {
        self.refused[reason.index()].fetch_add(1, Relaxed);
    }

    pub(super) fn failed_open(&self) {
        self.failed_open.fetch_add(1, Relaxed);
    }

    /// Counts a request that needs a lock. It then [leaves](Self::left) or [holds](Self::held) it.
    pub(super) fn arrived(&self) {
        self.flow.arrived();
    }

    /// Counts an arrived request as a holder until its lock is [released](Self::released).
    pub(super) fn held(&self) {
        self.flow.granted();
    }

    pub(super) fn released(&self, hold: Duration) {
        self.pace().record(hold);
        self.flow.released();
        self.notify_watchers();
    }

    pub(super) fn left(&self) {
        self.flow.left();
        self.notify_watchers();
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace.0
    }

    /// Wakes the calls of [`Monitor::idle`] after a request is gone. Such a call registers before
    /// it reads the numbers, so either it sees that the request is gone, or this method sees the
    /// call.
    fn notify_watchers(&self) {
        if self.watchers.load(SeqCst) > 0 {
            self.idle.notify_waiters();
        }
    }
}

/// A view of what a layer, with all its clones and services, has done and is doing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Monitor {
    tally: Arc<Tally>,
}

impl Monitor {
    pub(crate) fn new(tally: Arc<Tally>) -> Self {
        Self { tally }
    }

    /// Returns how many requests are waiting for their lock.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tally.waiters.total()
    }

    /// Returns how many requests hold their lock. If holds end during the call, it may count some
    /// of those.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.tally.flow.holding()
    }

    /// Returns how many requests got their lock, those that are being served included.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.tally.flow.total_granted()
    }

    /// Returns how many requests were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.tally.refused[reason.index()].load(Relaxed)
    }

    /// Returns how many requests were refused.
    #[must_use]
    pub fn refused_in_total(&self) -> u64 {
        Reason::ALL.into_iter().map(|reason| self.refused(reason)).sum()
    }

    /// Returns how many requests were served without a lock, because of
    /// [`fail_open`](crate::LockLayer::fail_open).
    #[must_use]
    pub fn failed_open(&self) -> u64 {
        self.tally.failed_open.load(Relaxed)
    }

    /// Returns the average hold time, weighted towards the latest holds. `None` before the first
    /// hold has ended.
    #[must_use]
    pub fn average_hold(&self) -> Option<Duration> {
        self.tally.pace().average()
    }

    /// Waits until no request waits for a lock or holds one.
    ///
    /// Use it for a clean shutdown: a server that was shut down gracefully has no connection left,
    /// but
    /// [detached](crate::LockLayer::detach) handlers may still be at work.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn idle(&self) {
        let _watching = Watching::start(&self.tally.watchers);
        loop {
            let mut idle = pin!(self.tally.idle.notified());
            idle.as_mut().enable();
            if self.tally.flow.is_empty() {
                return;
            }
            idle.await;
        }
    }
}

/// A call of [`Monitor::idle`] that waits, until dropped.
struct Watching<'a>(&'a AtomicUsize);

impl<'a> Watching<'a> {
    fn start(watchers: &'a AtomicUsize) -> Self {
        watchers.fetch_add(1, SeqCst);
        Self(watchers)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
