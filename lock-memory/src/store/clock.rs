//! The clock that decides when leases expire.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Tokio's clock or a manual one; both can be advanced.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Option<Instant>,
    /// The origin as wall-clock time.
    wall: SystemTime,
    advanced: Duration,
}

impl Clock {
    /// Creates a clock that follows tokio's, paused time included.
    pub(crate) fn tokio() -> Self {
        Self { origin: Some(Instant::now()), wall: SystemTime::now(), advanced: Duration::ZERO }
    }

    /// Creates a clock that stands still.
    pub(crate) fn manual() -> Self {
        Self { origin: None, wall: SystemTime::UNIX_EPOCH, advanced: Duration::ZERO }
    }

    /// Returns the time since the origin.
    pub(crate) fn now(&self) -> Duration {
        self.origin.map_or(Duration::ZERO, |origin| origin.elapsed()).saturating_add(self.advanced)
    }

    /// Returns a time since the origin as wall-clock time, for people; no decision uses it. On a
    /// clock that stands still that is a time of 1970.
    pub(crate) fn wall(&self, now: Duration) -> SystemTime {
        self.wall.checked_add(now).unwrap_or(self.wall)
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.advanced = self.advanced.saturating_add(by);
    }
}
