//! What a layer has done and is doing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::pace::Pace;
use super::waiters::Waiters;
use crate::refusal::Reason;

/// What all services of one layer share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    flow: Flow,
    pub(super) waiters: Arc<Waiters>,
    failed_open: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    /// How many want to hear when nobody is present.
    watchers: AtomicUsize,
    idle: Notify,
}

/// What every request changes, together: its cache line goes from processor to processor, and nothing else should go with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flow {
    present: Present,
    granted: AtomicU64,
    pace: Pace,
}

impl Tally {
    pub(super) fn refused(&self, reason: Reason) {
        self.refused[reason.index()].fetch_add(1, Relaxed);
    }

    pub(super) fn failed_open(&self) {
        self.failed_open.fetch_add(1, Relaxed);
    }

    /// One more request that concerns the layer. It leaves, or holds its lock.
    pub(super) fn arrived(&self) {
        self.flow.present.change(Present::ONE);
    }

    /// One that had arrived holds its lock from now on, until it is [released](Self::released).
    pub(super) fn held(&self) {
        self.flow.present.change(Present::HOLDING);
        self.flow.granted.fetch_add(1, Relaxed);
    }

    pub(super) fn left(&self) {
        self.gone(Present::ONE);
    }

    pub(super) fn released(&self, hold: Duration) {
        self.flow.pace.record(hold);
        self.gone(Present::ONE | Present::HOLDING);
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.flow.pace
    }

    fn gone(&self, who: u64) {
        // Whoever waits says so before it looks at the number; so it finds the last one gone, or is found.
        if self.flow.present.leave(who) && self.watchers.load(SeqCst) > 0 {
            self.idle.notify_waiters();
        }
    }
}

/// How many requests wait, hold, or are being refused, and how many of them hold: one number, because every request of every thread changes both.
#[derive(Debug, Default)]
struct Present(AtomicU64);

impl Present {
    const ONE: u64 = 1;
    const HOLDING: u64 = 1 << 32;

    fn change(&self, by: u64) {
        self.0.fetch_add(by, SeqCst);
    }

    /// Whether nobody is left.
    fn leave(&self, who: u64) -> bool {
        self.0.fetch_sub(who, SeqCst) == who
    }

    fn nobody(&self) -> bool {
        self.0.load(SeqCst) == 0
    }

    fn holding(&self) -> u64 {
        self.0.load(SeqCst) / Self::HOLDING
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
        self.tally.flow.present.holding()
    }

    /// How many requests were served under their lock, those that are being served included.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.tally.flow.granted.load(Relaxed)
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
        self.tally.flow.pace.average()
    }

    /// Waits until no request waits for a lock or holds one.
    ///
    /// For shutting down in order: a server that has been shut down gracefully has no connection left, but a handler that was
    /// [detached](crate::LockLayer::detach) from its connection may still be at work.
    ///
    /// # Cancel safety
    /// Dropping it has no effect.
    pub async fn idle(&self) {
        let _watching = Watching::start(&self.tally.watchers);
        loop {
            let mut idle = pin!(self.tally.idle.notified());
            idle.as_mut().enable();
            if self.tally.flow.present.nobody() {
                return;
            }
            idle.await;
        }
    }
}

/// One who wants to hear when nobody is present, until dropped.
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
