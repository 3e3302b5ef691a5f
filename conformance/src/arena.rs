//! A disposable deployment for fault injection, for the workload of the level torture.

mod network;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::LockKey;

use crate::failure::FixtureError;

pub use self::network::ProxyFaults;
pub(crate) use self::network::{LAG, LATE};
pub use self::tcp::{LocalServer, TcpArena, TcpServer};

/// A disposable deployment for the checks `C1_exclusion::under_faults` and `C1_exclusion::torture`.
/// Their clients reach it by [`Fixture::connect`](crate::Fixture::connect) while its faults begin
/// and end. Made by [`Fixture::arena`](crate::Fixture::arena). [`TcpArena`] is one for a server
/// that speaks over TCP.
#[async_trait]
pub trait Arena: Send + Sync {
    /// Returns the address for clients, in this process and in others: the argument of
    /// [`Fixture::connect`](crate::Fixture::connect).
    fn address(&self) -> String;

    /// Returns the faults of the deployment, each kind once. The suite begins and ends one at a
    /// time.
    fn faults(&self) -> Vec<Arc<dyn Fault>>;

    /// Returns the kinds of faults that this machine does not allow, and why. They are shown with
    /// the result. Defaults to an empty list.
    fn unavailable_faults(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns the fault of a hook, which checks begin and end at the moments that they choose.
    /// `key` is the key that [`Hook::Block`] blocks; it has a record. Declared by
    /// [`Profile::hooks`](crate::Profile::hooks). Defaults to `None`.
    fn hook(&self, hook: Hook, key: &LockKey) -> Option<Arc<dyn Fault>> {
        let _ = (hook, key);
        None
    }

    /// Waits for a bounded time until the deployment is as healthy as before any fault.
    ///
    /// # Errors
    /// The deployment is not healthy.
    async fn healthy(&self) -> Result<(), FixtureError>;

    /// Does to the records of locks what the store itself does when they have been unused for a
    /// long time. Called while all clients are at rest. Returns the evidence that it happened, or
    /// `None` if the store does nothing. Defaults to `None`.
    ///
    /// # Errors
    /// It did not happen.
    async fn age_records(&self) -> Result<Option<String>, FixtureError> {
        Ok(None)
    }

    /// Stops the deployment. It must also end when this is dropped without a call.
    async fn stop(&self);
}

/// A [`Fault`] of an [`Arena`]'s server that checks below the lease engine begin and end. All of
/// them are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hook {
    /// The connections of clients break, and new ones fail.
    Cut,
    /// The server answers no request. It may execute requests of that time afterwards.
    Stall,
    /// Requests reach the server two seconds late. This includes requests that were sent shortly
    /// before the end, even if their clients have gone. Requests that are sent after the end may
    /// overtake them.
    Delay,
    /// The server is killed. It runs again at the end.
    Restart,
    /// Requests for one key wait at the server, as for a locked row. Requests for other keys do
    /// not.
    Block,
    /// Each request of a client reaches the server a tenth of a second late. So a call of more than
    /// one request takes longer, and is held between them.
    Lag,
    /// The server carries requests out, and their replies are lost: their connections are closed
    /// instead. It may be limited to requests that change a record.
    LoseReplies,
}

/// One kind of fault of an [`Arena`]. It keeps its own state between its beginning and its end.
#[async_trait]
pub trait Fault: Send + Sync {
    /// Returns the name in reports, such as `kill-primary`.
    fn kind(&self) -> &'static str;

    /// Returns how long the fault lasts. Choose more than a lease's ttl if leases must expire
    /// during the fault. Defaults to 3 s.
    fn duration(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Begins the fault, and returns when it has begun.
    ///
    /// # Errors
    /// The fault could not be made.
    async fn begin(&self) -> Result<(), FixtureError>;

    /// Ends the fault, and returns the evidence that it happened, such as `12 commands failed` or
    /// `member 1 took over in term 7`.
    ///
    /// # Errors
    /// The fault did not happen, or does not end.
    async fn end(&self) -> Result<String, FixtureError>;
}
