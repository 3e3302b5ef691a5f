//! A fixture and whether it was started.

use std::sync::Arc;

use tokio::sync::OnceCell;

use crate::failure::{Failure, FailureKind, chain};
use crate::fixture::Fixture;
use crate::profile::Profile;

/// A fixture that is started with the first check that runs on it.
pub(crate) struct Stage {
    fixture: Arc<dyn Fixture>,
    profile: Profile,
    started: OnceCell<Result<(), String>>,
}

impl Stage {
    pub(crate) fn new(fixture: Arc<dyn Fixture>) -> Arc<Self> {
        let profile = fixture.profile();
        Arc::new(Self { fixture, profile, started: OnceCell::new() })
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
        started.clone().map_err(failed)
    }

    /// Stops the fixture if it was started, even if that had failed half-way.
    pub(crate) async fn stop(&self) {
        if self.started.initialized() {
            self.fixture.stop().await;
        }
    }
}
