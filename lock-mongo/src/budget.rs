//! The time of one request: each call that it makes gets what is left.

use std::time::Duration;

use tokio::time::Instant;

/// The time of one request.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    limit: Duration,
    since: Instant,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }

    /// For `maxTimeMS`: a little less than what is left, so that the server's answer comes before
    /// we stop listening, and never zero, which is no bound.
    pub(crate) fn on_server(&self) -> Duration {
        (self.left() * 9 / 10).max(Duration::from_millis(1))
    }

    pub(crate) fn max_time_ms(&self) -> i64 {
        i64::try_from(self.on_server().as_millis()).unwrap_or(i64::MAX)
    }
}
