//! When a lease or a ticket is to be renewed, and with which others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Lane, Permit, Renewal};
use distlock_api::{AcquisitionId, LockKey};

use super::super::lease::Lease;
use super::super::pace;
use super::super::places::Seat;

/// When something is to be renewed.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Beat {
    pub(super) due: Option<Instant>,
    /// When it may be renewed, if others are renewed then anyway.
    pub(super) early: Instant,
    /// Renewals that failed or were not answered in time, in a row.
    pub(super) failures: u32,
    /// How often its batch has been divided since.
    pub(super) level: u32,
    /// When the last renewal was sent.
    pub(super) sent: Instant,
}

impl Beat {
    pub(in crate::engine) fn new(now: Instant) -> Self {
        Self { due: None, early: now, failures: 0, level: 0, sent: now }
    }

    /// How often the batch that it goes into next is divided. Many that have failed are divided
    /// only if others were answered since: then there may be poisoned keys among them. Otherwise
    /// the store is slow or away, and smaller calls would only be more calls.
    fn next_level(&self, answered: Option<Instant>, few_failed: bool) -> u32 {
        let may_be_poisoned = few_failed || answered.is_some_and(|answered| answered >= self.sent);
        self.level + u32::from(self.failures > 0 && may_be_poisoned)
    }

    pub(super) fn group(&self, item: &Item, answered: Option<Instant>, few_failed: bool) -> Group {
        let level = self.next_level(answered, few_failed);
        Group { lane: item.lane(), is_again: self.failures > 0, level }
    }

    pub(super) fn is_ready(&self, due: Instant, now: Instant) -> bool {
        due <= now || self.early <= now
    }
}

/// Those that have not failed go first: a poisoned key does not delay them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) lane: Lane,
    pub(super) is_again: bool,
    pub(super) level: u32,
}

/// What is renewed: leases in calls of their own, so that tickets never delay them.
pub(in crate::engine) enum Item {
    Lease(Arc<Lease>),
    Ticket(Seat),
}

impl Item {
    pub(super) fn id(&self) -> &AcquisitionId {
        match self {
            Self::Lease(lease) => lease.claim().id(),
            Self::Ticket(seat) => seat.claim.id(),
        }
    }

    /// Leases by their deadline: first come, first served lets those of a short ttl expire behind
    /// the others when the store is slow.
    pub(super) fn urgency(&self, beat: &Beat) -> (Instant, AcquisitionId) {
        let until = match self {
            Self::Lease(lease) => lease.deadline(),
            Self::Ticket(_) => beat.due.unwrap_or(beat.early),
        };
        (until, self.id().clone())
    }

    fn lane(&self) -> Lane {
        match self {
            Self::Lease(_) => Lane::Renew,
            Self::Ticket(_) => Lane::Refresh,
        }
    }

    pub(in crate::engine) fn key(&self) -> &LockKey {
        match self {
            Self::Lease(lease) => lease.key(),
            Self::Ticket(seat) => seat.claim.key(),
        }
    }

    pub(in crate::engine) fn renewal(&self, timeout: Duration) -> Renewal {
        match self {
            Self::Lease(lease) => lease.renewal(timeout),
            Self::Ticket(seat) => Renewal::ticket(seat.claim.clone(), seat.ticket).with_timeout(timeout),
        }
    }

    /// How long an answer is waited for before it is put into another call.
    pub(in crate::engine) fn patience(&self, now: Instant) -> Duration {
        match self {
            Self::Lease(lease) => patience(lease, now),
            Self::Ticket(seat) => seat.patience(),
        }
    }
}

/// What is to be renewed in one call.
pub(in crate::engine) struct Batch {
    pub(in crate::engine) items: Vec<Item>,
    /// Whether they have failed before: then an answer is not waited for longer than there is time
    /// for more attempts.
    pub(in crate::engine) again: bool,
    /// The room that the store has for the call.
    pub(in crate::engine) room: Room,
}

/// What allows a call to be made.
pub(in crate::engine) enum Room {
    /// The store has no lanes.
    Unbounded,
    Permitted(#[expect(dead_code, reason = "kept until the call has ended")] Permit),
}

/// What a keeper shall do now.
#[derive(Default)]
pub(in crate::engine) struct Due {
    /// Held past their deadline, or in a release that takes longer than the lease.
    pub(in crate::engine) over: Vec<Arc<Lease>>,
    pub(in crate::engine) batches: Vec<Batch>,
    /// The lanes that had no room for something that is due.
    pub(in crate::engine) full: Vec<Lane>,
}

/// How long an answer is waited for before the lease is put into another call.
pub(in crate::engine) fn patience(lease: &Lease, now: Instant) -> Duration {
    let left = lease.deadline().saturating_duration_since(now);
    pace::renewal_patience(left, lease.terms().renew_every.unwrap_or(left))
}
