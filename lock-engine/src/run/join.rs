//! Readers of this process share one lease (C26): a reader joins it without a request to the store.
//!
//! A reader joins when it has the key's turn, so it overtakes no local caller that waits (C28). It
//! then lets the readers behind it join at once, and passes the turn on:
//!
//! ```text
//!  local queue:   R1 (has the turn)   R2   R3   W   R4
//!  R1 is granted a shared lease, or joins one: R2 and R3 join it. W gets the turn, and requests the
//!  key from the store. R4 waits behind W.
//! ```
//!
//! So the guards of a burst of readers overlap, and the lease is not released between two of them.
//!
//! If another reader has just got the turn, and no caller waits, a reader joins without the turn.
//! Else all would queue up behind one whose thread is interrupted, and the last guard would release
//! the lease. Once the store has told the one that has the turn to wait, no one joins beside it.
//!
//! Whether a lease may be joined is decided in `state::sharing`.

use std::sync::Arc;

use distlock_api::{FencingToken, Mode};
use tokio::time::Instant;

use crate::run::clock;
use crate::run::core::Engine;
use crate::run::release::ReleaseJob;
use crate::run::transit::{Joined, Lease, Turn, Wanted};
use crate::state::ledger::End;
use crate::state::sharing::Leaving;
use crate::state::time::Now;

/// What a guard leaves of a shared lease that it gives up.
pub(crate) enum Left {
    /// Other guards have the lease.
    Shared,
    /// It was the last one.
    Release(ReleaseJob),
    Lost,
}

impl Engine {
    /// Joins the shared lease of this process, if there is one that suits the caller. Returns the
    /// lease, and the token of the new guard.
    pub(crate) fn join(self: &Arc<Self>, wanted: &Wanted) -> Option<(Arc<Lease>, FencingToken)> {
        let limits = self.options.hand_off.as_ref().filter(|_| wanted.mode == Mode::Shared)?;
        let mut ledger = self.ledger();
        let lease = ledger.joinable(&wanted.key).filter(|lease| wanted.met_by(lease))?.clone();
        let joined = ledger.join(&lease, &clock::now(), limits, false);
        drop(ledger);
        let token = joined.ok()?;
        self.query_waiters_of_shared(&lease);
        Some((lease, token))
    }

    /// Passes the turn on from a caller that has a shared lease. The readers at the head of the
    /// local queue join the lease first.
    pub(crate) fn pass_turn_of_shared(self: &Arc<Self>, turn: Turn, lease: &Arc<Lease>) {
        let limits = self.options.hand_off.as_ref().filter(|_| lease.is_joinable());
        while let Some(limits) = limits
            && turn.next_meets(|next| next.met_by(lease))
        {
            let Ok(token) = self.ledger().join(lease, &clock::now(), limits, true) else { break };
            // One that is returned is dropped, and so leaves the lease again.
            drop(turn.deliver(Joined::new(lease, self.clone(), token), |next| next.met_by(lease)));
        }
        drop(turn);
        self.query_waiters_of_shared(lease);
    }

    fn query_waiters_of_shared(self: &Arc<Self>, lease: &Arc<Lease>) {
        let limits = self.options.hand_off.as_ref().filter(|_| lease.is_joinable());
        if limits.is_some_and(|limits| lease.should_query_waiters(Instant::now(), limits)) {
            self.query_waiters(lease);
        }
    }

    /// Takes a shared lease from a guard. `in_transit` if the guard has not reached its caller.
    pub(crate) fn leave(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        (token, in_transit): (FencingToken, bool),
        end: End,
        now: &Now,
    ) -> Left {
        // The ledger is unlocked before anything else is done.
        let leaving = self.ledger().leave(lease, (token, in_transit), end, now);
        match leaving {
            Leaving::Left => Left::Shared,
            Leaving::Last => {
                lease.notify_changed();
                Left::Release(ReleaseJob::new(self.clone(), lease.clone(), None))
            }
            Leaving::Lost => Left::Lost,
        }
    }
}
