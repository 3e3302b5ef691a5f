//! How late the tasks of this process run, which is the machine's doing, or that of another check.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How often the lateness is measured.
const PERIOD: Duration = Duration::from_millis(10);

/// Measures by how much a timer fires late on the present runtime, until it is dropped.
pub(crate) struct Lateness {
    /// In microseconds.
    worst: Arc<AtomicU64>,
    probe: JoinHandle<()>,
}

impl Lateness {
    pub(crate) fn watch() -> Self {
        let worst = Arc::<AtomicU64>::default();
        let seen = Arc::clone(&worst);
        let probe = tokio::spawn(async move {
            loop {
                let due = Instant::now() + PERIOD;
                sleep(PERIOD).await;
                seen.fetch_max(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { worst, probe }
    }

    /// Returns the worst lateness so far.
    pub(crate) fn worst(&self) -> Duration {
        Duration::from_micros(self.worst.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.probe.abort();
    }
}
