//! A fixture and whether it was started.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OnceCell, OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::arena::Arena;
use crate::failure::{Failure, FailureKind, chain};
use crate::fixture::Fixture;
use crate::pace::{Pace, Pauses, Slower};
use crate::profile::Profile;

/// A fixture, which is started by the first check that runs on it.
pub(crate) struct Stage {
    fixture: Arc<dyn Fixture>,
    profile: Profile,
    started: OnceCell<Result<(), String>>,
    pace: OnceCell<(Pace, Pauses)>,
    slower: Slower,
    /// The deployment that the checks with hooks share.
    arena: Arc<Mutex<Option<Box<dyn Arena>>>>,
}

/// Exclusive use of a shared deployment.
pub(crate) type Turn = OwnedMappedMutexGuard<Option<Box<dyn Arena>>, Box<dyn Arena>>;

impl Stage {
    pub(crate) fn new(fixture: Arc<dyn Fixture>) -> Arc<Self> {
        let profile = fixture.profile();
        let (started, pace, slower) = (OnceCell::new(), OnceCell::new(), Slower::default());
        Arc::new(Self { fixture, profile, started, pace, slower, arena: Arc::default() })
    }

    pub(crate) fn name(&self) -> &str {
        self.fixture.name()
    }

    pub(crate) fn fixture(&self) -> &dyn Fixture {
        &*self.fixture
    }

    pub(crate) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Starts the fixture unless that was done before.
    pub(crate) async fn ready(&self) -> Result<(), Failure> {
        let starting = async || self.fixture.start().await.map_err(|error| chain(&*error));
        let started = self.started.get_or_init(starting).await;
        let failed = |error| Failure::of(FailureKind::Fixture, format!("the fixture did not start: {error}"));
        started.clone().map_err(failed)?;
        self.pace.get_or_init(async || (self.measured().await, Pauses::measure())).await;
        Ok(())
    }

    async fn measured(&self) -> Pace {
        let pace = Pace::measure(&*self.fixture, self.profile.short_ttl()).await;
        if let Some(remark) = pace.remark() {
            eprintln!("distlock: {}: {remark}", self.name());
        }
        pace
    }

    /// Returns how fast the backend was before the first check.
    pub(crate) fn pace(&self) -> Pace {
        self.pace.get().map_or_else(|| Pace::unmeasured(self.profile.short_ttl()), |(pace, _)| *pace)
    }

    /// Returns the ttl of leases that must expire in a check that begins now.
    pub(crate) fn short_ttl(&self) -> Duration {
        let pause = self.pace.get().map(|(_, pauses)| pauses.longest()).unwrap_or_default();
        self.pace().after(&self.slower).ttl(pause)
    }

    /// Returns a longer ttl for a check that has failed, if a request of the check, or a pause of
    /// this process, was too long for `ttl`.
    pub(crate) fn longer_ttl(&self, ttl: Duration, slowest: Duration) -> Option<Duration> {
        self.slower.seen(slowest);
        Some(self.short_ttl()).filter(|longer| *longer > ttl)
    }

    /// Waits for the deployment that the checks with hooks share, healthy, and for one check at a
    /// time.
    pub(crate) async fn arena(&self) -> Result<Turn, Failure> {
        let mut arena = Arc::clone(&self.arena).lock_owned().await;
        if arena.is_none() {
            *arena = Some(self.fixture.arena().await?);
        }
        let turn = OwnedMutexGuard::map(arena, |arena| arena.as_mut().expect("just made"));
        turn.healthy().await?;
        Ok(turn)
    }

    /// Stops the fixture if it was started, even if that had failed half-way.
    pub(crate) async fn stop(&self) {
        if let Some(arena) = self.arena.lock().await.take() {
            arena.stop().await;
        }
        if self.started.initialized() {
            self.fixture.stop().await;
        }
    }
}
