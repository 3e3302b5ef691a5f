//! The store's clock.
//!
//! SQLite has none: its `unixepoch()` runs in the process that asks, and shows that process's idea
//! of the time, right or wrong. What all processes that share a file do have in common is the
//! kernel under them, which also gives out the locks on that file. So the store's clock is the
//! kernel's monotonic clock: the same for all of them, never set, and the one by which Rust's
//! `Instant`, and with it the engine, measures how long a lease is still good.
//!
//! It starts again with the machine. No holder survives that, so a row that was written "later than
//! now" is one of an earlier run of the machine, and void:
//! [`SqliteStore::open`](crate::SqliteStore::open) deletes those. A row that it cannot tell apart
//! so keeps its key closed for no longer than a lease lasts.
//!
//! It follows that a file belongs to one machine: not on a network drive, where SQLite's own locks
//! are not to be trusted either, nor shared by containers with time namespaces of their own.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    nanos(Duration::try_from(now).unwrap_or_default())
}

/// A duration as the store counts it; for ever if it is longer than 292 years.
pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The time from one moment to a later one.
pub(crate) fn between(earlier: i64, later: i64) -> Duration {
    Duration::from_nanos(later.saturating_sub(earlier).max(0).cast_unsigned())
}
