//! Decides which leases and tickets are renewed in one call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquisitionId, LockKey};
use tokio::time::Instant;

use crate::state::backoff;
use crate::state::claim::QueuedTicket;
use crate::state::lease::Lease;
use crate::state::local_queue::CarriedLease;
use crate::state::schedule::Pacing;
use crate::state::time::Now;
use crate::store::{Lane, Permit, Renewal};

/// The leases or tickets that may share a call. Groups that have not failed sort first, so that a
/// poisoned key does not delay them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) lane: Lane,
    pub(crate) is_again: bool,
    pub(crate) level: u32,
}

/// A lease or a ticket to renew. Leases go in calls of their own, so that tickets never delay them.
pub(crate) enum Item<C: CarriedLease> {
    Lease(Arc<Lease<C>>),
    Ticket(QueuedTicket),
}

impl<C: CarriedLease> Item<C> {
    pub(crate) fn id(&self) -> &AcquisitionId {
        match self {
            Self::Lease(lease) => lease.claim().id(),
            Self::Ticket(queued) => queued.claim.id(),
        }
    }

    /// Returns the sort key within a group. Leases sort by their deadline: in the order of due
    /// times, leases with a short ttl would expire behind the others when the store is slow.
    pub(crate) fn urgency(&self, pacing: &Pacing, now: &Now) -> (Instant, AcquisitionId) {
        let until = match self {
            Self::Lease(lease) => lease.deadline(now),
            Self::Ticket(_) => pacing.due().unwrap_or(pacing.early),
        };
        (until, self.id().clone())
    }

    /// Returns the group whose next call takes the item.
    pub(crate) fn group(&self, pacing: &Pacing, answered: Option<Instant>, few_failed: bool) -> Group {
        let level = pacing.next_level(answered, few_failed);
        Group { lane: self.lane(), is_again: pacing.failures > 0, level }
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Lease(_) => Lane::Renew,
            Self::Ticket(_) => Lane::Refresh,
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        match self {
            Self::Lease(lease) => lease.key(),
            Self::Ticket(queued) => queued.claim.key(),
        }
    }

    pub(crate) fn renewal(&self, timeout: Duration) -> Renewal {
        match self {
            Self::Lease(lease) => lease.renewal(timeout),
            Self::Ticket(queued) => Renewal::ticket(queued.claim.clone(), queued.ticket).with_timeout(timeout),
        }
    }

    /// Returns how long to wait for an answer before the item goes into another call.
    pub(crate) fn retry_after(&self, now: &Now) -> Duration {
        match self {
            Self::Lease(lease) => retry_after(lease, now),
            Self::Ticket(queued) => queued.retry_after(),
        }
    }
}

/// Leases and tickets that may go into a call, the most urgent first.
pub(crate) type Waiting<C> = BTreeMap<(Instant, AcquisitionId), Item<C>>;

/// What may be renewed now, by group.
pub(crate) struct Ready<C: CarriedLease> {
    pub(crate) groups: BTreeMap<Group, Waiting<C>>,
    pub(crate) few_failed: bool,
    /// Items that became due up to this instant are included.
    pub(crate) looked: Instant,
    /// When the keeper looks through all leases and tickets again.
    pub(crate) until: Instant,
}

/// The leases or tickets to renew in one call.
pub(crate) struct Batch<C: CarriedLease> {
    pub(crate) items: Vec<Item<C>>,
    /// Whether they have failed before. Then the call ends early enough to leave time for more
    /// attempts.
    pub(crate) again: bool,
    pub(crate) permit: Permit,
}

/// What a keeper has to do now.
pub(crate) struct Due<C: CarriedLease> {
    /// Leases held past their deadline, or in a release that takes longer than the lease.
    pub(crate) over: Vec<Arc<Lease<C>>>,
    pub(crate) batches: Vec<Batch<C>>,
    /// The lanes that had no permit for a due call.
    pub(crate) full: Vec<Lane>,
}

impl<C: CarriedLease> Default for Due<C> {
    fn default() -> Self {
        Self { over: Vec::new(), batches: Vec::new(), full: Vec::new() }
    }
}

/// Returns how long to wait for an answer before the lease goes into another call.
pub(crate) fn retry_after<C: CarriedLease>(lease: &Lease<C>, now: &Now) -> Duration {
    let left = lease.deadline(now).saturating_duration_since(now.instant());
    backoff::renewal_retry_after(left, lease.terms().renew_every.unwrap_or(left))
}
