//! A store's knowledge of its server's clock (R24): the latest reading, and when its request was
//! sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a reading counts as recent. The clocks drift apart, and a machine may be suspended.
const RECENT: Duration = Duration::from_secs(10);

/// The server's wall clock, as far as it is known.
#[derive(Debug)]
pub(crate) struct ServerClock {
    since: Instant,
    /// The latest reading in milliseconds since the epoch, less the time from `since` to its
    /// request; 0 if there is none. With the time since `since` it is the present time.
    offset: AtomicU64,
    /// The same, less the time to its answer.
    reached: AtomicU64,
    /// When that request was sent, in milliseconds after `since`.
    read: AtomicU64,
}

/// A request whose answer has the server's time.
pub(crate) struct Reading<'a> {
    clock: &'a ServerClock,
    sent: Instant,
}

impl Default for ServerClock {
    fn default() -> Self {
        Self { since: Instant::now(), offset: AtomicU64::new(0), reached: AtomicU64::new(0), read: AtomicU64::new(0) }
    }
}

impl ServerClock {
    /// Returns whether the latest reading is recent.
    pub(crate) fn was_read_recently(&self) -> bool {
        self.since.elapsed() < Duration::from_millis(self.read.load(Ordering::Relaxed)) + RECENT
    }

    /// Begins a reading, before the request is sent.
    pub(crate) fn reading(&self) -> Reading<'_> {
        Reading { clock: self, sent: Instant::now() }
    }

    /// Returns a time that the server's clock has not passed yet, as long as its steps and the skew
    /// of its members are below the margin (R4). `None` before the first reading.
    pub(crate) fn not_before(&self) -> Option<Duration> {
        let offset = self.offset.load(Ordering::Relaxed);
        (offset != 0).then(|| Duration::from_millis(offset + 1) + self.since.elapsed())
    }

    /// Returns a time that the server's clock has reached, under the same condition. `None` before
    /// the first reading.
    pub(crate) fn reached(&self) -> Option<Duration> {
        let reached = self.reached.load(Ordering::Relaxed);
        (reached != 0).then(|| Duration::from_millis(reached) + self.since.elapsed())
    }
}

impl Reading<'_> {
    /// Records the answer.
    pub(crate) fn shows(&self, now: Duration) {
        let sent = self.sent.saturating_duration_since(self.clock.since);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(0);
        self.clock.offset.store(millis(now.saturating_sub(sent)), Ordering::Relaxed);
        self.clock.reached.store(millis(now.saturating_sub(self.clock.since.elapsed())), Ordering::Relaxed);
        self.clock.read.store(millis(sent), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r24_the_time_that_an_answer_took_counts() {
        let clock = ServerClock::default();
        assert_eq!(clock.not_before(), None);
        let now = Duration::from_secs(1_800_000_000);
        let reading = clock.reading();
        tokio::time::advance(Duration::from_secs(2)).await;
        // The server may have read its clock when the request was sent.
        reading.shows(now);
        tokio::time::advance(Duration::from_secs(3)).await;
        let known = clock.not_before().unwrap();
        assert!(known >= now + Duration::from_secs(5) && known < now + Duration::from_secs(6), "{known:?}");
        let reached = clock.reached().unwrap();
        assert!(reached <= now + Duration::from_secs(3) && reached > now + Duration::from_secs(2), "{reached:?}");
        assert!(clock.was_read_recently());
        tokio::time::advance(RECENT).await;
        assert!(!clock.was_read_recently());
    }
}
