//! Many locks, each held or waited for.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::task::JoinSet;

use super::protocol::{Report, Window};
use crate::Outcome;
use crate::clock;
use crate::locks::{Held, Locks};

/// Enough to keep the server busy, few enough not to stall its connections.
const AT_A_TIME: usize = 64;

/// Acquires locks, several at a time.
pub(super) async fn acquire(locks: &dyn Locks, prefix: &str, keys: usize) -> Outcome<Vec<Box<dyn Held>>> {
    stream::iter(0..keys)
        .map(|number| async move { locks.acquire(&format!("{prefix}{number}")).await })
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await
}

/// Holds them until the window ends.
pub(super) async fn run(held: Vec<Box<dyn Held>>, window: Window) -> Outcome<Report> {
    clock::sleep_until(window.stop).await;
    let lost = held.iter().filter(|lock| lock.is_lost()).count() as u64;
    // Not released: the process ends, and its database with it.
    std::mem::forget(held);
    Ok(Report { lost, ..Report::default() })
}

/// Tasks that wait.
pub(super) struct Waiting(JoinSet<()>);

/// Starts to wait for locks that another process holds.
pub(super) fn wait(locks: Arc<dyn Locks>, prefix: &str, keys: usize) -> Waiting {
    let mut waiting = JoinSet::new();
    for number in 0..keys {
        let (locks, key) = (Arc::clone(&locks), format!("{prefix}{number}"));
        waiting.spawn(async move {
            // A task that gets one keeps it, and counts as one that no longer waits.
            if let Ok(held) = locks.acquire(&key).await {
                std::mem::forget(held);
            }
        });
    }
    Waiting(waiting)
}

impl Waiting {
    /// Continues until the window ends.
    pub(super) async fn run(mut self, window: Window) -> Outcome<Report> {
        clock::sleep_until(window.stop).await;
        if self.0.try_join_next().is_some() {
            return Err("a waiter was granted a lock that another process holds, or gave up".into());
        }
        Ok(Report::default())
    }
}
