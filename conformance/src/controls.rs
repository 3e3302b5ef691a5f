//! Faults that a fixture makes between a client and its store.

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
    /// The query for the number of waiters.
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
    /// When it was answered, and the answer; `None` if it was not.
    pub answer: Option<(Instant, String)>,
}

/// What happens to the events that a store pushes to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushes {
    /// The stream ends, and none can be opened.
    Refused,
    /// The stream ends once; the next one works.
    Broken,
    /// Every event arrives later, by this duration.
    Delayed(Duration),
}

/// Faults of one client. The [`Profile`](crate::Profile) declares which of them work.
///
/// [`DisturbedStore`](crate::DisturbedStore) implements all of them for any store, so implement
/// this trait only for a fixture that can make its server itself fail.
#[async_trait]
pub trait Controls: Send + Sync + 'static {
    /// Makes the next `times` operations of this kind fail with a transient error and without
    /// effect. Other clients, and other checks that run at the same time, must not be affected.
    /// Declared by [`Profile::faults`](crate::Profile::faults).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot make {operation:?} fail {times} times").into())
    }

    /// Executes the next `times` operations of this kind and loses their replies: the client gets
    /// an error of unknown outcome. Other clients must not be affected. Declared by
    /// [`Profile::lost_replies`](crate::Profile::lost_replies).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn lose_replies(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot lose {times} replies to {operation:?}").into())
    }

    /// Executes the next `times` operations of this kind and delays their replies by `by`, whatever
    /// the timeout of the request. The delay ends early when the faults [end](Self::end_faults).
    /// Other clients must not be affected. Declared by
    /// [`Profile::delayed_replies`](crate::Profile::delayed_replies).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn delay_replies(&self, operation: Operation, times: u32, by: Duration) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot delay {times} replies to {operation:?} by {by:?}").into())
    }

    /// Cuts this client off from its store, as if its process had been killed: no request arrives,
    /// and no reply or event reaches it, until the faults [end](Self::end_faults). When this
    /// returns, the store carries out no earlier request of the client either. Other clients must
    /// not be affected. Declared by [`Profile::cuts_off`](crate::Profile::cuts_off).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn cut_off(&self) -> Result<(), FixtureError> {
        Err("this fixture cannot cut a client off".into())
    }

    /// Disturbs the events that are pushed to this client, on open streams and new ones, until the
    /// faults [end](Self::end_faults). Other clients must not be affected. Declared by
    /// [`Profile::push_faults`](crate::Profile::push_faults).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn disturb_pushes(&self, pushes: Pushes) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot disturb pushes: {pushes:?}").into())
    }

    /// Makes every operation on the record of this key stall, of all clients, until the faults
    /// [end](Self::end_faults). Declared by [`Profile::stalls`](crate::Profile::stalls).
    ///
    /// # Errors
    /// The fault could not be arranged. The default always returns an error.
    async fn stall(&self, key: &LockKey) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot stall {key:?}").into())
    }

    /// Returns how many requests this client has sent to its store so far, without those of event
    /// streams. Declared by [`Profile::counts_requests`](crate::Profile::counts_requests).
    ///
    /// # Errors
    /// The number is not known. The default always returns an error.
    async fn requests(&self) -> Result<u64, FixtureError> {
        Err("this fixture does not count requests".into())
    }

    /// Returns the latest renewals of leases that this client has sent. They are shown with
    /// failures. Defaults to an empty list.
    fn renewals(&self) -> Vec<SeenRenewal> {
        Vec::new()
    }

    /// Ends all arranged faults and returns how many operations were affected. Stalls, disturbed
    /// pushes and the requests of a client that was cut off need not be counted.
    ///
    /// # Errors
    /// The number is not known. The default always returns an error.
    async fn end_faults(&self) -> Result<u64, FixtureError> {
        Err("this fixture has no faults".into())
    }

    /// Does at once what the store itself does to the record of a lock that has been unused for a
    /// long time. Declared by [`Profile::purge`](crate::Profile::purge).
    ///
    /// # Errors
    /// The record is still there. The default always returns an error.
    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        Err(format!("this fixture cannot purge {key:?}").into())
    }
}
