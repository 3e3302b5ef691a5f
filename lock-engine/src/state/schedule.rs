//! What is due when, on one runtime.
//!
//! A due time stands in two places: in the [`Beat`] of its lease or ticket, and as the key under
//! which the [`Schedule`] sorts it. [`Schedule::set`] alone changes either, and so changes both.

use std::collections::BTreeSet;
use std::time::Duration;

use distlock_api::AcquisitionId;
use tokio::time::Instant;

/// The runtime whose keeper renews something.
pub(crate) type HomeId = tokio::runtime::Id;

/// The leases and tickets of one runtime by when they are due; each once, if at all.
#[derive(Debug, Default)]
pub(crate) struct Schedule(BTreeSet<(Instant, AcquisitionId)>);

impl Schedule {
    /// Sets when something is due; `None` takes it out. Without a schedule, because the runtime has
    /// ended, only the beat records it.
    pub(crate) fn set(schedule: Option<&mut Self>, id: &AcquisitionId, beat: &mut Beat, due: Option<Instant>) {
        let old = std::mem::replace(&mut beat.due, due);
        let Some(Self(sorted)) = schedule else { return };
        if let Some(old) = old {
            sorted.remove(&(old, id.clone()));
        }
        if let Some(due) = due {
            sorted.insert((due, id.clone()));
        }
    }

    /// When the first of them is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.first().map(|(due, _)| *due)
    }

    /// All of them, the first due first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Instant, AcquisitionId)> {
        self.0.iter()
    }

    /// Those that became due after `after`, and no later than `until`.
    pub(crate) fn became_due(&self, after: Instant, until: Instant) -> impl Iterator<Item = &(Instant, AcquisitionId)> {
        let first = after + Duration::from_nanos(1);
        self.0.range((first, AcquisitionId::new(""))..).take_while(move |(due, _)| *due <= until)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// When something is to be renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    due: Option<Instant>,
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

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Starts again with a renewal that was sent then and has succeeded.
    pub(crate) fn succeeded(&mut self, sent: Instant, early: Instant) {
        *self = Self { due: self.due, early, ..Self::new(sent) };
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
