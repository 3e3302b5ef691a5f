//! A lease in transit from one guard of this process to the next (R21), and the types that it
//! closes: a turn may carry a lease, and a lease keeps a turn.

use std::sync::Arc;

use distlock_api::{AcquisitionId, Holder, LeaseTerms};
use tokio::runtime::Handle;

use crate::state::line::CarriedLease;
use crate::state::schedule::HomeId;
use crate::state::{lease, ledger, line};

pub(crate) type Turn = line::Turn<InTransit>;
pub(crate) type LocalQueues = line::LocalQueues<InTransit>;
pub(crate) type Lease = lease::Lease<InTransit>;
pub(crate) type Ledger = ledger::Ledger<InTransit>;

/// A lease in transit. If it is dropped with its turn, it returns to the engine.
#[derive(Clone)]
pub(crate) struct InTransit {
    lease: Arc<Lease>,
    engine: Arc<dyn ReleaseUnclaimed>,
}

/// What a caller in the local queue requires of a lease that is handed on.
pub(crate) struct Requirements {
    pub(crate) terms: LeaseTerms,
    pub(crate) holder: Holder,
    pub(crate) home: HomeId,
    /// Whether the caller acquires by an operation of a typed style, which brings more than a
    /// lease.
    pub(crate) via: bool,
}

/// Releases a lease that no caller takes.
pub(crate) trait ReleaseUnclaimed: Send + Sync {
    /// Releases the lease in the background. Its turn stays with it until then.
    fn release_unclaimed(self: Arc<Self>, lease: &Arc<Lease>);
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
    type Requirements = Requirements;

    fn id(&self) -> &AcquisitionId {
        self.lease.claim().id()
    }

    fn meets(&self, Requirements { terms, holder, home, via }: &Requirements) -> bool {
        !via && self.lease.meets(terms, holder, *home)
    }

    fn return_turn(self, turn: Turn) {
        self.lease.return_turn(turn);
        self.engine.release_unclaimed(&self.lease);
    }
}
