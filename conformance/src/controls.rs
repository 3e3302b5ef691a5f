//! What a fixture can do to a client's store behind its back.

use std::time::Duration;

use async_trait::async_trait;
use distlock_api::LockKey;
use tokio::time::Instant;

use crate::failure::FixtureError;

/// An operation of a store that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A single attempt to take a lease.
    Acquire,
    /// The renewal of a lease.
    Renew,
    /// The release of a lease, or the withdrawal of an attempt.
    Release,
    /// The question who waits.
    Waiters,
}

/// A renewal of a lease that a client has sent.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SeenRenewal {
    /// The lock.
    pub key: LockKey,
    /// When it was sent.
    pub sent: Instant,
    /// When it was answered, and what; none if it was not.
    pub answer: Option<(Instant, String)>,
}

/// What becomes of what a store pushes to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushes {
    /// The stream ends, and none can be opened.
    Refused,
    /// The stream ends once; the next one works.
    Broken,
    /// Everything arrives so much later.
    Delayed(Duration),
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

    /// Lets the next `times` operations of this kind happen, and their replies get lost: the client hears of an error whose outcome it does not know. Others must not be
    /// hit. Declared by [`Profile::lost_replies`](crate::Profile::lost_replies).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn lose_replies(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot lose {times} replies to {operation:?}").into())
    }

    /// Lets the next `times` operations of this kind happen, and their replies come so much later, or when the faults are [ended](Self::end_faults): however long the client
    /// said that it would wait. Others must not be hit. Declared by [`Profile::delayed_replies`](crate::Profile::delayed_replies).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn delay_replies(&self, operation: Operation, times: u32, by: Duration) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot delay {times} replies to {operation:?} by {by:?}").into())
    }

    /// Cuts this client off from its store, as if its process had been killed: whatever it sends from now on does not arrive, no reply reaches it, and it hears of
    /// nothing, until the faults are [ended](Self::end_faults). Others must not be hit. Declared by [`Profile::cuts_off`](crate::Profile::cuts_off).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn cut_off(&self) -> Result<(), FixtureError> {
        Err("this fixture cannot cut a client off".into())
    }

    /// Disturbs the pushes to this client, whether it listens already or not, until the faults are [ended](Self::end_faults). Others must not be hit. Declared by
    /// [`Profile::push_faults`](crate::Profile::push_faults).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn disturb_pushes(&self, pushes: Pushes) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot have pushes {pushes:?}").into())
    }

    /// Makes every operation on the record of this key stall, whoever sends it, until the faults are [ended](Self::end_faults). Declared by
    /// [`Profile::stalls`](crate::Profile::stalls).
    ///
    /// # Errors
    /// When it could not be arranged. By default always.
    async fn stall(&self, key: &LockKey) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot stall {key:?}").into())
    }

    /// How many requests this client has sent to its store so far, without those by which it listens to pushes. Declared by
    /// [`Profile::counts_requests`](crate::Profile::counts_requests).
    ///
    /// # Errors
    /// When that is not known. By default always.
    async fn requests(&self) -> Result<u64, FixtureError> {
        Err("this fixture does not count requests".into())
    }

    /// The renewals of leases that this client has sent, the latest ones: they are shown with failures.
    /// Defaults to none.
    fn renewals(&self) -> Vec<SeenRenewal> {
        Vec::new()
    }

    /// Ends all arranged faults and tells how many operations were hit; stalls, disturbed pushes and what a client that was cut off has sent need not be counted.
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
