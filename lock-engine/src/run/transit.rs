//! A lease in transit from one guard of this process to the next (rule R21 of distlock-mongo's
//! PROTOCOL), or to a reader that joins it (C26). The module also has the types that it closes: a
//! turn may carry a lease, and a lease keeps a turn.

use std::sync::Arc;

use distlock_api::{AcquisitionId, FencingToken, Holder, LeaseTerms, LockKey, Mode};
use tokio::runtime::Handle;

use crate::state::local_queue::CarriedLease;
use crate::state::schedule::HomeId;
use crate::state::time::Now;
use crate::state::wait::Limit;
use crate::state::{lease, ledger, local_queue};
use crate::store::AcquireOp;

pub(crate) type Turn = local_queue::Turn<InTransit>;
pub(crate) type Delivery = local_queue::Delivery<InTransit>;
pub(crate) type LocalQueues = local_queue::LocalQueues<InTransit>;
pub(crate) type Lease = lease::Lease<InTransit>;
pub(crate) type Ledger = ledger::Ledger<InTransit>;

/// A lease in transit. If it is dropped with its turn, it returns to the engine.
#[derive(Clone)]
pub(crate) struct InTransit {
    lease: Arc<Lease>,
    engine: Arc<dyn ReleaseUnclaimed>,
}

/// What a caller acquires, and so requires of a lease that it gets from another caller. The local
/// queue has it, too: its entries are small, because they are moved often.
pub(crate) struct Wanted {
    pub(crate) key: LockKey,
    pub(crate) mode: Mode,
    pub(crate) terms: LeaseTerms,
    pub(crate) holder: Holder,
    /// The runtime of the caller.
    pub(crate) home: HomeId,
    pub(crate) limit: Limit,
    /// The operation of a typed style, which brings more than a lease.
    pub(crate) via: Option<Arc<dyn AcquireOp>>,
}

/// Releases a lease that no caller takes.
pub(crate) trait ReleaseUnclaimed: Send + Sync {
    /// Releases the lease in the background. Its turn stays with it until then.
    fn release_unclaimed(self: Arc<Self>, lease: &Arc<Lease>);

    /// Takes a shared lease from a guard that no caller has received. If no other guard has it,
    /// releases it in the background.
    fn leave_unclaimed(self: Arc<Self>, lease: &Arc<Lease>, token: FencingToken);
}

impl Wanted {
    /// Returns whether the lease suits the caller as it is.
    pub(crate) fn met_by(&self, lease: &Lease) -> bool {
        self.via.is_none() && lease.meets(self.mode, &self.terms, &self.holder, self.home)
    }
}

/// A guard of a shared lease on its way to its caller. If it is dropped, the lease has one guard
/// less.
pub(crate) struct Joined {
    lease: Arc<Lease>,
    engine: Arc<dyn ReleaseUnclaimed>,
    token: FencingToken,
    arrived: bool,
}

impl Joined {
    pub(crate) fn new(lease: &Arc<Lease>, engine: Arc<dyn ReleaseUnclaimed>, token: FencingToken) -> Self {
        Self { lease: lease.clone(), engine, token, arrived: false }
    }

    /// Returns the lease and the guard's token; `None` if the lease is no longer held.
    pub(crate) fn arrive(mut self, now: &Now) -> Option<(Arc<Lease>, FencingToken)> {
        self.arrived = self.lease.arrive(now);
        self.arrived.then(|| (self.lease.clone(), self.token))
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.arrived {
            self.engine.clone().leave_unclaimed(&self.lease, self.token);
        }
    }
}

impl InTransit {
    pub(crate) fn new(lease: &Arc<Lease>, engine: Arc<dyn ReleaseUnclaimed>) -> Self {
        Self { lease: lease.clone(), engine }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }
}

impl CarriedLease for InTransit {
    type Home = Handle;
    type Requirements = Arc<Wanted>;
    type Joined = Joined;

    fn id(&self) -> &AcquisitionId {
        self.lease.claim().id()
    }

    fn meets(&self, requirements: &Arc<Wanted>) -> bool {
        requirements.met_by(&self.lease)
    }

    fn is_shared(requirements: &Arc<Wanted>) -> bool {
        requirements.mode == Mode::Shared
    }

    fn return_turn(self, turn: Turn) {
        self.lease.return_turn(turn);
        self.engine.release_unclaimed(&self.lease);
    }
}
