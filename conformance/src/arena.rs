//! A disposable deployment for fault injection, for the workload of the level torture.

mod network;
mod tcp;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::LockKey;

use crate::failure::FixtureError;

pub(crate) use self::network::LATE;
pub use self::network::ProxyFaults;
pub use self::tcp::{LocalServer, TcpArena, TcpServer};

/// A deployment of its own for the checks `C1_exclusion::under_faults` and `C1_exclusion::torture`: their clients reach it by [`Fixture::connect`](crate::Fixture::connect) while
/// its faults come and go. Made by [`Fixture::arena`](crate::Fixture::arena).
#[async_trait]
pub trait Arena: Send + Sync {
    /// Where its clients find it, in this process and in others: the argument of [`Fixture::connect`](crate::Fixture::connect).
    fn address(&self) -> String;

    /// What can happen to it, each kind once. One of them at a time is begun and ended.
    fn faults(&self) -> Vec<Arc<dyn Fault>>;

    /// Kinds of faults that cannot be had on this machine, and why. They are shown with the result. Defaults to none.
    fn impossible(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The fault behind a hook, for checks that begin and end it at the moments they choose. `key` is
    /// the one that [`Hook::Block`] blocks; it has a record. Declared by
    /// [`Profile::hooks`](crate::Profile::hooks). Defaults to none.
    fn hook(&self, hook: Hook, key: &LockKey) -> Option<Arc<dyn Fault>> {
        let _ = (hook, key);
        None
    }

    /// Waits until it is as well as it was before any fault, for a bounded time.
    ///
    /// # Errors
    /// When it is not.
    async fn healthy(&self) -> Result<(), FixtureError>;

    /// Does to the records of locks what the store itself does when nobody has used them for a long time, while all clients are at rest. Says how one can know that it
    /// happened; none if the store does nothing. Defaults to none.
    ///
    /// # Errors
    /// When it did not happen.
    async fn age(&self) -> Result<Option<String>, FixtureError> {
        Ok(None)
    }

    /// Ends it. Dropped without, it must end, too.
    async fn stop(&self);
}

/// What the checks below the lease engine can do to the server of an [`Arena`], between the beginning
/// and the end of a [`Fault`]. All of it is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hook {
    /// The connections of clients are broken, and none can be made.
    Cut,
    /// The server answers nobody. What it was sent meanwhile it may carry out afterwards.
    Stall,
    /// Requests reach the server two seconds late, also those that were sent shortly before the end and
    /// whose clients have gone. Those that are sent after the end may overtake them.
    Delay,
    /// The server is killed; at the end it runs again.
    Restart,
    /// Requests for one key wait at the server, as for a locked row; those for others do not.
    Block,
}

/// One kind of fault of an [`Arena`]. It keeps what it must know between its beginning and its end.
#[async_trait]
pub trait Fault: Send + Sync {
    /// Its name in reports, such as `kill-primary`.
    fn kind(&self) -> &'static str;

    /// How long it is to last: longer than a lease's ttl where leases are to expire meanwhile. Defaults to 3 s.
    fn lasts(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Begins it, and returns when it has begun.
    ///
    /// # Errors
    /// When it could not be made to happen.
    async fn begin(&self) -> Result<(), FixtureError>;

    /// Ends it, and says how it can be known that it happened: `12 commands failed`, `member 1 took over in term 7`.
    ///
    /// # Errors
    /// When it did not happen, or does not end.
    async fn end(&self) -> Result<String, FixtureError>;
}
