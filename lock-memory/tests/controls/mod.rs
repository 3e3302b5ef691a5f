//! What the suite may do to a [`MemoryStore`] behind its clients' back.

use distlock_api::LockKey;
use distlock_conformance::{Controls, DisturbedStore, FixtureError, Operation, Pushes, async_trait};
use distlock_memory::MemoryStore;

/// The controls of one client.
pub(crate) struct OfClient {
    pub(crate) disturbed: DisturbedStore,
    pub(crate) store: MemoryStore,
}

#[async_trait]
impl Controls for OfClient {
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        self.disturbed.fail_next(operation, times).await
    }

    async fn lose_replies(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        self.disturbed.lose_replies(operation, times).await
    }

    async fn disturb_pushes(&self, pushes: Pushes) -> Result<(), FixtureError> {
        self.disturbed.disturb_pushes(pushes).await
    }

    async fn stall(&self, key: &LockKey) -> Result<(), FixtureError> {
        self.disturbed.stall(key).await
    }

    async fn requests(&self) -> Result<u64, FixtureError> {
        self.disturbed.requests().await
    }

    async fn end_faults(&self) -> Result<u64, FixtureError> {
        self.disturbed.end_faults().await
    }

    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        if self.store.purge(key) { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
    }
}
