//! What a caller gets within this process, before it requests the key from the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use distlock_api::{LockError, LockKey, Result};
use tokio::time::{Instant, sleep_until};

use crate::run::clock;
use crate::run::core::Engine;
use crate::run::held::HeldLease;
use crate::run::transit::{Delivery, Turn, Wanted};
use crate::simulation::defect;
use crate::state::local_queue::Found;
use crate::state::wait::Limit;

/// What a caller got within this process.
pub(crate) enum Entry {
    Held(HeldLease),
    /// It makes attempts, with the turn if it has one.
    Attempt {
        turn: Option<Turn>,
        /// Whether it was in the local queue, and so knows that the lock is busy.
        has_waited: bool,
    },
    Busy,
}

impl Engine {
    /// Takes the turn or a lease of this process, or waits for one of them if the caller waits.
    pub(crate) async fn enter_local(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<Entry> {
        let Wanted { key, limit, .. } = &**wanted;
        let found = self.local_queues.try_take(key, wanted);
        if let Found::AcquiringBeside = found
            && let Some((lease, token)) = self.join(wanted)
        {
            return Ok(Entry::Held(HeldLease::new(self.clone(), lease, token)));
        }
        let (turn, has_waited) = match (found, limit) {
            (Found::Turn(turn), _) => (Some(turn), false),
            (_, Limit::Until(_) | Limit::Never) => match self.wait_locally(wanted).await? {
                Some(Delivery::Turn(turn)) => (Some(turn), true),
                Some(Delivery::Joined(joined)) => match joined.arrive(&clock::now()) {
                    Some((lease, token)) => return Ok(Entry::Held(HeldLease::new(self.clone(), lease, token))),
                    // It was lost on the way. Without the turn, like a caller that does not wait.
                    None => (None, true),
                },
                None => return Ok(Entry::Busy),
            },
            (Found::Held, Limit::Once { .. }) if self.may_hold(key) => return Ok(Entry::Busy),
            // It does not overtake a caller that waits (C15).
            (_, Limit::Once { batched: true }) => return Ok(Entry::Busy),
            // The lease of this process has ended, or a caller waits for a holder elsewhere, which
            // may have released by now: only the store knows.
            (_, Limit::Once { batched: false }) => (None, false),
        };
        // Before the limit is checked: a lease that has been handed to this caller is held.
        let turn = match turn {
            Some(turn) => match self.use_turn(turn, wanted).await {
                Ok(guard) => return Ok(Entry::Held(guard)),
                Err(turn) => Some(turn),
            },
            None => None,
        };
        if limit.has_passed(&clock::now()) {
            return Ok(Entry::Busy);
        }
        // A caller that was in the local queue knows that the lock is busy, even if no time is left
        // for an attempt.
        Ok(Entry::Attempt { turn, has_waited })
    }

    /// Waits in the local queue; `None` at the caller's limit.
    async fn wait_locally(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<Option<Delivery>> {
        let _waiting = Waiting::new(&self.waiting);
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(LockError::closed()),
            delivery = self.local_queues.take(&wanted.key, wanted.clone()) => Ok(Some(delivery)),
            () = passed(wanted.limit) => Ok(None),
        }
    }

    /// Takes the lease that came with the turn, or joins the shared lease of this process. With
    /// neither, returns the turn.
    async fn use_turn(self: &Arc<Self>, mut turn: Turn, wanted: &Wanted) -> std::result::Result<HeldLease, Turn> {
        if let Some(handed_on) = turn.take_lease() {
            let lease = handed_on.lease();
            // A lease that is handed on brings nothing else with it (rule R21 of distlock-mongo's
            // PROTOCOL).
            if wanted.met_by(lease) {
                let (token, was_parked) = lease.receive(turn, &clock::now())?;
                self.ledger().count_hand_over();
                // A lease that was parked was not queried about when it was given up.
                if let Some(limits) = self.options.hand_off.as_ref().filter(|_| was_parked)
                    && lease.should_query_waiters(Instant::now(), limits)
                {
                    self.query_waiters(lease);
                }
                return Ok(HeldLease::new(self.clone(), lease.clone(), token));
            }
            // Once its release has been sent, the lease has no holder. If the caller leaves
            // meanwhile, the release continues in the background.
            if !defect!(NotReleasedBeforeHandOn)
                && let Some(job) = self.release_handed_on(lease, &clock::now())
            {
                tokio::select! {
                    biased;
                    _ = Box::pin(job.run()) => {}
                    () = passed(wanted.limit) => {}
                    () = self.closed.cancelled() => {}
                }
            }
        }
        match self.join(wanted) {
            Some((lease, token)) => {
                self.pass_turn_of_shared(turn, &lease);
                Ok(HeldLease::new(self.clone(), lease, token))
            }
            None => Err(turn),
        }
    }

    /// Returns whether a lease of this process may hold the key. Not if its deadline has passed,
    /// even if the keeper has not noticed that yet (C10).
    fn may_hold(&self, key: &LockKey) -> bool {
        let Some(id) = self.local_queues.holder(key) else { return false };
        let lease = self.ledger().lease(&id);
        lease.is_some_and(|lease| lease.may_be_held(&clock::now()))
    }
}

/// Waits until the caller's limit.
async fn passed(limit: Limit) {
    match limit.instant() {
        Some(limit) => sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

/// Counts a waiting caller while it exists.
pub(crate) struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    pub(crate) fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
