//! Leases that linger: parked with their key for the next caller of this process (rule R21 of
//! distlock-mongo's PROTOCOL).

use std::sync::Arc;

use scopeguard::{ScopeGuard, guard};
use tokio::time::{Instant, sleep_until};

use crate::run::core::Engine;
use crate::run::transit::Lease;

impl Engine {
    /// Has a lease that has just been parked given back when its time is over.
    pub(crate) fn watch_parked(self: &Arc<Self>, lease: &Arc<Lease>, until: Instant) {
        if lease.needs_watch(until) {
            let watch: Watch = guard((self.clone(), lease.clone()), |(engine, lease)| {
                // In this order: a lease that is parked in between has a watch of its own.
                lease.unwatched();
                engine.unpark(&lease);
            });
            // Not tracked: `close` waits for the release, not for the end of the time.
            drop(lease.home().spawn(watch_parked(watch, until)));
        }
        // A query for waiters may have been answered before the lease was parked.
        if !lease.may_linger_on() {
            self.unpark(lease);
        }
    }

    /// Gives a lease back in the background, if it is parked.
    pub(crate) fn unpark(&self, lease: &Lease) {
        if let Some(turn) = self.local_queues.unpark(lease.key(), lease.claim().id()) {
            lease.unpark();
            // A turn that is dropped with its lease returns to the engine.
            drop(turn);
        }
    }
}

/// Ends the watch, and the linger of the lease, when it is dropped.
type Watch = ScopeGuard<(Arc<Engine>, Arc<Lease>), fn((Arc<Engine>, Arc<Lease>))>;

/// Waits until the lease has been parked for long enough, it is not parked any more, the provider
/// is closed, or the runtime ends.
async fn watch_parked(watch: Watch, mut until: Instant) {
    let (engine, lease) = &*watch;
    loop {
        tokio::select! {
            biased;
            () = engine.closed.cancelled() => return,
            () = sleep_until(until) => {}
        }
        match engine.local_queues.parked_until(lease.key(), lease.claim().id()) {
            Some(end) if end > Instant::now() => {
                until = end;
                lease.watched(until);
                // It may have been parked again meanwhile, for a shorter time.
                let latest = engine.local_queues.parked_until(lease.key(), lease.claim().id());
                until = latest.map_or(until, |latest| until.min(latest));
            }
            Some(_) => return,
            None => break,
        }
    }
    let (engine, lease) = ScopeGuard::into_inner(watch);
    lease.unwatched();
    // It may have been parked just before, in the belief that it is watched.
    if let Some(until) = engine.local_queues.parked_until(lease.key(), lease.claim().id()) {
        engine.watch_parked(&lease, until);
    }
}
