//! The release by force as a request, and what a step has changed.

use std::time::SystemTime;

use distlock_api::{AcquisitionId, FencingToken, Holder, LockKey, Mode};

use crate::store::{Grant, StoreTime};

/// A request to take leases away, for [`LockAdmin`](distlock_api::LockAdmin).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceRelease {
    /// The key.
    pub key: LockKey,
    /// The holder that loses its lease. `None` for all, and for a minimum hold.
    pub holder: Option<AcquisitionId>,
    /// The time, for people.
    pub at: SystemTime,
    /// The reason, as the operator gave it.
    pub reason: String,
}

impl ForceRelease {
    /// Creates a request to take the key away from all.
    #[must_use]
    pub fn new(key: LockKey, at: SystemTime, reason: impl Into<String>) -> Self {
        Self { key, holder: None, at, reason: reason.into() }
    }

    /// Takes the lease of this holder only.
    #[must_use]
    pub fn with_holder(mut self, holder: AcquisitionId) -> Self {
        self.holder = Some(holder);
        self
    }
}

/// A change that a step has made, for a store that sends events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A claim was granted a lease: its own attempt, or the release of another claim.
    Granted {
        /// The claim's acquisition.
        id: AcquisitionId,
        /// Its mode.
        mode: Mode,
        /// Its holder's description.
        holder: Holder,
        /// The grant.
        grant: Grant,
        /// The store's clock at the end of the lease.
        expires_at: StoreTime,
        /// Whether a release has granted it.
        handed_over: bool,
    },
    /// A claim has given its lease up.
    Released {
        /// The claim's acquisition.
        id: AcquisitionId,
    },
    /// The lease of a claim was found expired, and was dropped.
    Expired {
        /// The claim's acquisition.
        id: AcquisitionId,
    },
    /// The lease of a claim was taken away.
    ForceReleased {
        /// The claim's acquisition.
        id: AcquisitionId,
        /// The key's last token since then.
        token: FencingToken,
    },
    /// The key may be free, and no waiter was granted it.
    Freed,
}
