//! What is due when, on one runtime.
//!
//! A due time is stored twice: in the [`Pacing`] of its lease or ticket, and as the key under which
//! the [`Schedule`] sorts it. Only [`Schedule::set`] changes either, and it changes both.

use std::collections::BTreeSet;
use std::time::Duration;

use distlock_api::AcquisitionId;
use tokio::time::Instant;

/// The id of a runtime, whose keeper renews the leases and tickets of that runtime.
pub(crate) type HomeId = tokio::runtime::Id;

/// If it is sent again later than this, there is time for several more calls.
const SHORT_RETRY: Duration = Duration::from_secs(1);

/// The leases and tickets of one runtime, sorted by due time. Each has at most one entry.
#[derive(Debug, Default)]
pub(crate) struct Schedule(BTreeSet<(Instant, AcquisitionId)>);

impl Schedule {
    /// Sets the due time of a lease or ticket; `None` removes it. If the runtime has ended, there
    /// is no schedule, and only `pacing` is changed.
    pub(crate) fn set(schedule: Option<&mut Self>, id: &AcquisitionId, pacing: &mut Pacing, due: Option<Instant>) {
        let old = std::mem::replace(&mut pacing.due, due);
        let Some(Self(sorted)) = schedule else { return };
        if let Some(old) = old {
            sorted.remove(&(old, id.clone()));
        }
        if let Some(due) = due {
            sorted.insert((due, id.clone()));
        }
    }

    /// Returns the earliest due time.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.first().map(|(due, _)| *due)
    }

    /// Iterates over all entries, the earliest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Instant, AcquisitionId)> {
        self.0.iter()
    }

    /// Iterates over the entries that became due after `after` and no later than `until`.
    pub(crate) fn became_due(&self, after: Instant, until: Instant) -> impl Iterator<Item = &(Instant, AcquisitionId)> {
        let first = after + Duration::from_nanos(1);
        self.0.range((first, AcquisitionId::new(""))..).take_while(move |(due, _)| *due <= until)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// When a lease or ticket is renewed next, and how its recent renewals went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    due: Option<Instant>,
    /// From when it may be renewed together with others that are due.
    pub(crate) early: Instant,
    /// How many renewals in a row failed or were not answered in time.
    pub(crate) failures: u32,
    /// How often its batch has been divided since the last success.
    pub(crate) level: u32,
    /// How many renewals went in its last call.
    pub(crate) in_call: usize,
    /// When the last renewal was sent.
    pub(crate) sent: Instant,
}

impl Pacing {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: None, early: now, failures: 0, level: 0, in_call: 0, sent: now }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records the success of a renewal that was sent at `sent`.
    pub(crate) fn succeeded(&mut self, sent: Instant, early: Instant) {
        *self = Self { due: self.due, early, ..Self::new(sent) };
    }

    /// Returns how often the next batch is divided. If many renewals have failed, batches are
    /// divided only if other calls were answered since: then there may be poisoned keys. Otherwise
    /// the store is slow or away, and smaller calls would only be more calls.
    pub(crate) fn next_level(&self, answered: Option<Instant>, few_failed: bool) -> u32 {
        let may_be_poisoned = few_failed || answered.is_some_and(|answered| answered >= self.sent);
        self.level + u32::from(self.failures > 0 && may_be_poisoned)
    }

    /// Returns how many renewals its next call may carry, where a batch that was divided `level`
    /// times carries `chunk`. If it is divided now and little time is left, that is also no more
    /// than a quarter of the last call. A few leases are far less than a batch. Sent again and
    /// again in one call with a poisoned key, they would be lost before that key is alone.
    ///
    /// Where there is time, a call that hangs holds its permit for long, and few calls are better
    /// than many.
    pub(crate) fn at_most(&self, level: u32, chunk: usize, retry_after: Duration) -> usize {
        let is_short = retry_after <= SHORT_RETRY;
        if level > self.level && is_short { chunk.min(self.in_call / 4).max(1) } else { chunk }
    }

    pub(crate) fn is_ready(&self, due: Instant, now: Instant) -> bool {
        due <= now || self.early <= now
    }
}
