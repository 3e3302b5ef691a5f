//! What a fixture can do to a client's store behind its back.

use async_trait::async_trait;
use distlock_api::LockKey;

use crate::fixture::FixtureError;

/// An operation of a store that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A single attempt to take a lease.
    Acquire,
    /// The renewal of a lease.
    Renew,
    /// The release of a lease.
    Release,
}

/// Means to disturb one client. Which of them work is declared by the [`Profile`](crate::Profile).
#[async_trait]
pub trait Controls: Send + Sync + 'static {
    /// Makes the next `times` operations of this kind fail with a transient error, without having happened. Other clients and the other checks, which run
    /// at the same time, must not be hit. Declared by [`Profile::faults`](crate::Profile::faults).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot make {operation:?} fail {times} times").into())
    }

    /// Ends all arranged faults and tells how many operations were hit.
    ///
    /// # Errors
    /// When that is not known. By default always.
    async fn end_faults(&self) -> Result<u64, FixtureError> {
        Err("this fixture has no faults".into())
    }

    /// Does what the store itself does to the record of a lock that nobody has held for a long time, at once. Declared by [`Profile::purge`](crate::Profile::purge).
    ///
    /// # Errors
    /// When the record is still there. By default always.
    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot purge {key:?}").into())
    }
}
