//! What a proxy counts.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct Hits {
    hit: AtomicU64,
    /// How many more the fault may hit.
    left: AtomicU64,
    passed: AtomicU64,
    connections: AtomicU64,
}

impl Hits {
    /// A fault begins that hits at most so often.
    pub(super) fn begin(&self, most: u64) {
        self.left.store(most, Ordering::SeqCst);
        self.hit.store(0, Ordering::SeqCst);
    }

    /// Counts a hit, unless the fault is used up.
    pub(super) fn strikes(&self) -> bool {
        let used = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        self.hit.fetch_add(u64::from(used), Ordering::SeqCst);
        used
    }

    pub(super) fn hit(&self) -> u64 {
        self.hit.load(Ordering::SeqCst)
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
