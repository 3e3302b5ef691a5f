//! The time, as an argument: one reading of the clocks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// One reading of the monotonic clock, with the sleeps of the machine noticed until then. While the
/// machine is suspended, the monotonic clock stands still and the store's clock continues.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    instant: Instant,
    /// `None` if there were none, the usual case.
    sleeps: Option<Arc<Vec<Sleep>>>,
}

/// A time during which the machine was suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sleep {
    /// When it was noticed.
    pub(crate) noticed: Instant,
    /// How long it was.
    pub(crate) slept: Duration,
}

impl Now {
    pub(crate) fn new(instant: Instant, sleeps: Option<Arc<Vec<Sleep>>>) -> Self {
        Self { instant, sleeps }
    }

    pub(crate) fn instant(&self) -> Instant {
        self.instant
    }

    /// Returns how long the machine has slept since a request was sent.
    pub(crate) fn slept_since(&self, sent: Instant) -> Duration {
        let Some(sleeps) = &self.sleeps else { return Duration::ZERO };
        sleeps.iter().filter(|sleep| sleep.noticed > sent).map(|sleep| sleep.slept).sum()
    }

    /// Returns a deadline that counts from a request, less what the machine has slept since.
    pub(crate) fn awake_until(&self, sent: Instant, deadline: Instant) -> Instant {
        let slept = self.slept_since(sent);
        if slept.is_zero() { deadline } else { deadline.checked_sub(slept).unwrap_or(sent) }
    }
}

#[cfg(test)]
impl From<Instant> for Now {
    fn from(instant: Instant) -> Self {
        Self::new(instant, None)
    }
}
