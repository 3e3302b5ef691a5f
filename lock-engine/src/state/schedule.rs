//! The due times of one lease or ticket. The ledger sets them.

use tokio::time::Instant;

/// The runtime whose keeper renews something.
pub(crate) type HomeId = tokio::runtime::Id;

/// When something is to be renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    pub(crate) due: Option<Instant>,
    /// When it may be renewed, if others are renewed then anyway.
    pub(crate) early: Instant,
    /// Renewals that failed or were not answered in time, in a row.
    pub(crate) failures: u32,
    /// How often its batch has been divided since.
    pub(crate) level: u32,
    /// When the last renewal was sent.
    pub(crate) sent: Instant,
}

impl Beat {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: None, early: now, failures: 0, level: 0, sent: now }
    }

    /// How often the batch that it goes into next is divided. Many that have failed are divided
    /// only if others were answered since: then there may be poisoned keys among them. Otherwise
    /// the store is slow or away, and smaller calls would only be more calls.
    pub(crate) fn next_level(&self, answered: Option<Instant>, few_failed: bool) -> u32 {
        let may_be_poisoned = few_failed || answered.is_some_and(|answered| answered >= self.sent);
        self.level + u32::from(self.failures > 0 && may_be_poisoned)
    }

    pub(crate) fn is_ready(&self, due: Instant, now: Instant) -> bool {
        due <= now || self.early <= now
    }
}
