//! What a proxy counts.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

#[derive(Debug, Default)]
pub(super) struct Hits {
    hit: watch::Sender<u64>,
    /// How many more the fault may hit.
    left: AtomicU64,
    passed: AtomicU64,
    connections: AtomicU64,
}

impl Hits {
    /// Begins a fault that hits at most `most` times.
    pub(super) fn begin(&self, most: u64) {
        self.left.store(most, Ordering::SeqCst);
        self.hit.send_replace(0);
    }

    /// Counts a hit, unless the fault is used up.
    pub(super) fn strikes(&self) -> bool {
        let used = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if used {
            self.hit.send_modify(|hit| *hit += 1);
        }
        used
    }

    pub(super) fn hit(&self) -> u64 {
        *self.hit.borrow()
    }

    /// Waits until the fault has hit at least `times` times.
    pub(super) async fn until_hit(&self, times: u64) {
        // The sender is `self`, so the channel cannot close.
        let _ = self.hit.subscribe().wait_for(|hit| *hit >= times).await;
    }

    pub(super) fn pass(&self, bytes: usize) {
        self.passed.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}
