//! What a layer has done and is doing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::pace::Pace;
use super::waiters::Waiters;
use crate::refusal::Reason;

/// What all services of one layer share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) pace: Pace,
    pub(crate) granted: AtomicU64,
    pub(crate) failed_open: AtomicU64,
    held: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    /// Requests that wait, hold, or are being refused.
    active: AtomicU64,
    idle: Notify,
}

impl Tally {
    pub(crate) fn refused(&self, reason: Reason) {
        self.refused[reason.index()].fetch_add(1, Relaxed);
    }
}

/// One request that concerns the layer, until dropped.
#[derive(Debug)]
pub(crate) struct Active(Arc<Tally>);

impl Active {
    pub(crate) fn start(tally: &Arc<Tally>) -> Self {
        tally.active.fetch_add(1, SeqCst);
        Self(tally.clone())
    }

    /// It holds its lock from now on.
    pub(crate) fn hold(self) -> ActiveHold {
        self.0.granted.fetch_add(1, Relaxed);
        self.0.held.fetch_add(1, Relaxed);
        ActiveHold(self)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// One request that holds its lock, until dropped.
#[derive(Debug)]
pub(crate) struct ActiveHold(Active);

impl Drop for ActiveHold {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(1, Relaxed);
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

    /// How many requests wait for their lock now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tally.waiters.total()
    }

    /// How many requests hold their lock now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.tally.held.load(Relaxed)
    }

    /// How many requests were served under their lock, those that are being served included.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.tally.granted.load(Relaxed)
    }

    /// How many requests were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.tally.refused[reason.index()].load(Relaxed)
    }

    /// How many requests were refused.
    #[must_use]
    pub fn refused_in_total(&self) -> u64 {
        Reason::ALL.into_iter().map(|reason| self.refused(reason)).sum()
    }

    /// How many requests were served without a lock, by [`fail_open`](crate::LockLayer::fail_open).
    #[must_use]
    pub fn failed_open(&self) -> u64 {
        self.tally.failed_open.load(Relaxed)
    }

    /// The average hold time, weighted towards the latest; none before the first hold has ended.
    #[must_use]
    pub fn average_hold(&self) -> Option<Duration> {
        self.tally.pace.average()
    }

    /// Waits until no request waits for a lock or holds one.
    ///
    /// For shutting down in order: a server that has been shut down gracefully has no connection left, but a handler that was
    /// [detached](crate::LockLayer::detach) from its connection may still be at work.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn idle(&self) {
        loop {
            let mut idle = pin!(self.tally.idle.notified());
            idle.as_mut().enable();
            if self.tally.active.load(SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}
