//! The time limit of one request. Each of its calls gets the time that is left.

use std::time::Duration;

use tokio::time::Instant;

/// The time limit of one request.
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

    pub(crate) fn spent(&self) -> Duration {
        self.since.elapsed()
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.spent())
    }

    /// Returns the time for `maxTimeMS`: a little less than is left, so that the server's answer
    /// arrives before the call is cut off. Never zero, which would be no limit.
    pub(crate) fn on_server(&self) -> Duration {
        (self.left() * 9 / 10).max(Duration::from_millis(1))
    }

    pub(crate) fn max_time_ms(&self) -> i64 {
        i64::try_from(self.on_server().as_millis()).unwrap_or(i64::MAX)
    }
}
