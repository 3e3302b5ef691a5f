//! The store's clock.
//!
//! SQLite has none: its `unixepoch()` runs in the calling process, and returns that process's time,
//! right or wrong. All processes that share a file also share a kernel, which gives out the locks
//! on that file. So the store's clock is the kernel's monotonic clock. It is the same for all of
//! them and cannot be set. Rust's `Instant` uses it, too, and with it the engine measures how long
//! a lease is valid.
//!
//! It starts again with the machine. No holder survives that, so a row that was written "later than
//! now" is from an earlier run of the machine, and void:
//! [`SqliteStore::open`](crate::SqliteStore::open) empties such rows. A row that it does not
//! recognise so keeps its key closed no longer than a lease lasts.
//!
//! A file therefore belongs to one machine. It must not be on a network drive, where SQLite's own
//! locks do not work reliably either. Containers with time namespaces of their own must not share
//! it.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The present time.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// A time in nanoseconds; the maximum if it is longer than 292 years.
pub(crate) fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}
