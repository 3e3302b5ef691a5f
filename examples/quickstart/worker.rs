//! What a worker does: the part that looks like an application.

use std::time::Duration;

use distlock_api::{ErrorKind, FencingToken, LockProvider, LockProviderExt, RenewalPolicy};
use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::desk::{Desk, Event, Happening};

pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) resources: Vec<String>,
    pub(crate) time: Duration,
    /// Whether it falls asleep once, in the middle of its work and beyond its lease.
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

    /// An honest piece of work: wait for the lock, write under it, give it back.
    async fn work(&self, locks: &dyn LockProvider, desk: &impl Desk) -> Result<(), Failure> {
        let resource = &self.resources[fastrand::usize(..self.resources.len())];
        let asked = Instant::now();
        let guard = match locks.acquire(resource).timeout(Duration::from_secs(3)).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => {
                self.tell(desk, resource, None, Happening::GaveUp { waited: asked.elapsed() }).await;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let token = guard.fencing_token();
        self.tell(desk, resource, Some(token), Happening::Acquired { waited: asked.elapsed() }).await;
        let worked = guard
            .run(async {
                sleep(Duration::from_millis(fastrand::u64(100..400))).await;
                desk.write(&self.name, resource, token.get()).await
            })
            .await;
        // Told before the release, so that nobody else's hold can seem to begin earlier.
        let over = if worked.is_ok() { Happening::Releasing } else { Happening::Lost };
        self.tell(desk, resource, Some(token), over).await;
        worked.map(drop).or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })?;
        let _ = guard.release().await?;
        Ok(())
    }

    /// What happens to a process that is paused – by its collector, its hypervisor, its laptop's
    /// lid – while it holds a lock: nothing renews the lease, and it wakes up believing that it
    /// still holds it.
    async fn stall(&self, locks: &dyn LockProvider, desk: &impl Desk) -> Result<(), Failure> {
        let resource = &self.resources[0];
        let asked = Instant::now();
        let guard = locks.acquire(resource).renewal(RenewalPolicy::Never).await?;
        let token = guard.fencing_token();
        self.tell(desk, resource, Some(token), Happening::Acquired { waited: asked.elapsed() }).await;
        let lease = guard.remaining().unwrap_or_default();
        self.tell(desk, resource, Some(token), Happening::FellAsleep { lease }).await;
        guard.lost().await;
        self.tell(desk, resource, Some(token), Happening::Lost).await;
        sleep(Duration::from_millis(1500)).await;
        // It never looked at `lost()`, as a sleeper cannot. It writes – and only the token saves
        // the data.
        desk.write(&self.name, resource, token.get()).await;
        Ok(())
    }

    async fn tell(&self, desk: &impl Desk, resource: &str, token: Option<FencingToken>, happening: Happening) {
        let token = token.map(FencingToken::get);
        desk.tell(Event::now(&self.name, resource, token, happening)).await;
    }
}
