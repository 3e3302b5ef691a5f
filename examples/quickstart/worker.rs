//! What a worker does: the part that looks like an application.

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockProvider, LockProviderExt, RenewalPolicy};
use distlock_examples::Failure;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use crate::desk::{Desk, Event, Happening};

#[derive(Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) resources: Vec<String>,
    pub(crate) time: Duration,
    /// Whether it falls asleep once, in the middle of its work, for longer than its lease lasts.
    pub(crate) stalls: bool,
}

impl Worker {
    pub(crate) async fn run(mut self, locks: &dyn LockProvider, desk: &impl Desk) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < self.time {
            if self.stalls && start.elapsed() > self.time / 4 {
                self.stalls = false;
                self.stall(locks, desk).await?;
            }
            self.work(locks, desk).await?;
            sleep(Duration::from_millis(fastrand::u64(0..50))).await;
        }
        Ok(())
    }

    /// One piece of work: waits for the lock, writes under it, releases it.
    async fn work(&self, locks: &dyn LockProvider, desk: &impl Desk) -> Result<(), Failure> {
        let resource = &self.resources[fastrand::usize(..self.resources.len())];
        let begun = Instant::now();
        let guard = match locks.acquire(resource).timeout(Duration::from_secs(3)).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => {
                self.record(desk, resource, None, Happening::GaveUp { waited: begun.elapsed() }).await;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let token = guard.fencing_token();
        self.record(desk, resource, Some(token), Happening::Acquired { waited: begun.elapsed() }).await;
        let worked = guard
            .run(async {
                sleep(Duration::from_millis(fastrand::u64(100..400))).await;
                desk.write(&self.name, resource, token.get()).await
            })
            .await;
        // Recorded before the release, so that no other hold can seem to begin earlier.
        let over = if worked.is_ok() { Happening::Releasing } else { Happening::Lost };
        self.record(desk, resource, Some(token), over).await;
        worked.map(drop).or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })?;
        let _ = guard.release().await?;
        Ok(())
    }

    /// Holds a lock as a process does that is paused by its garbage collector, its hypervisor, or
    /// the lid of its laptop. The lease is not renewed, and the process wakes up believing that it
    /// still holds the lock.
    async fn stall(&self, locks: &dyn LockProvider, desk: &impl Desk) -> Result<(), Failure> {
        let resource = &self.resources[0];
        let begun = Instant::now();
        let guard = locks.acquire(resource).renewal(RenewalPolicy::Never).await?;
        let token = guard.fencing_token();
        self.record(desk, resource, Some(token), Happening::Acquired { waited: begun.elapsed() }).await;
        let lease = guard.remaining().unwrap_or_default();
        self.record(desk, resource, Some(token), Happening::FellAsleep { lease }).await;
        guard.lost().await;
        self.record(desk, resource, Some(token), Happening::Lost).await;
        sleep(Duration::from_millis(1500)).await;
        // A sleeper cannot look at `lost()`, so it writes. Only the token saves the data.
        desk.write(&self.name, resource, token.get()).await;
        Ok(())
    }

    async fn record(&self, desk: &impl Desk, resource: &str, token: Option<FencingToken>, happening: Happening) {
        let token = token.map(FencingToken::get);
        desk.record(Event::now(&self.name, resource, token, happening)).await;
    }
}
