//! The clock that decides when leases expire.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Tokio's clock or one that only moves by hand; both can be put forward.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Option<Instant>,
    /// The origin as people write it.
    wall: SystemTime,
    put_forward: Duration,
}

impl Clock {
    /// Follows tokio's clock, paused time included.
    pub(crate) fn tokio() -> Self {
        Self { origin: Some(Instant::now()), wall: SystemTime::now(), put_forward: Duration::ZERO }
    }

    /// Stands still.
    pub(crate) fn manual() -> Self {
        Self { origin: None, wall: SystemTime::UNIX_EPOCH, put_forward: Duration::ZERO }
    }

    /// The time since the origin.
    pub(crate) fn now(&self) -> Duration {
        self.origin.map_or(Duration::ZERO, |origin| origin.elapsed()).saturating_add(self.put_forward)
    }

    /// A time since the origin as people write it; on a clock that stands still that is a time
    /// of 1970. For no decision.
    pub(crate) fn wall(&self, now: Duration) -> SystemTime {
        self.wall.checked_add(now).unwrap_or(self.wall)
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.put_forward = self.put_forward.saturating_add(by);
    }
}
