//! Crate `mongodb-lock`. Its guard releases in the background without a report when that is
//! done, so the driver's command monitoring is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use mongodb::Client;
use mongodb_lock::{Mutex, MutexGuard};

use super::{Held, Locks, PATIENCE, PEERS_POLL};
use crate::Outcome;
use crate::commands::Monitor;

struct Peer {
    /// A guard borrows it, and these guards have no bound lifetime: one per process, never
    /// freed.
    mutex: &'static Mutex<String>,
    releases: Arc<Releases>,
}

struct Releases {
    monitor: Arc<Monitor>,
    started: AtomicU64,
}

pub(super) async fn connect(client: &Client, database: &str, monitor: Arc<Monitor>) -> Outcome<Arc<dyn Locks>> {
    let mutex = Box::leak(Box::new(Mutex::new(&client.database(database), "locks").await?));
    Ok(Arc::new(Peer { mutex, releases: Arc::new(Releases { monitor, started: AtomicU64::new(0) }) }))
}

#[async_trait]
impl Locks for Peer {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        let guard = self.mutex.lock(PATIENCE, PEERS_POLL, key.to_owned()).await?;
        Ok(Box::new(Guard { guard, releases: Arc::clone(&self.releases) }))
    }
}

struct Guard {
    guard: MutexGuard<'static, String>,
    releases: Arc<Releases>,
}

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Outcome<()> {
        let Self { guard, releases } = *self;
        let number = releases.started.fetch_add(1, Ordering::Relaxed) + 1;
        drop(guard);
        releases.monitor.deletes_answered(number).await;
        Ok(())
    }
}
