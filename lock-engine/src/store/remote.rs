//! A store that is reached over connections.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;

use super::Lanes;
use distlock_api::{LockError, Result};

/// The future that [`RemoteStore::ensure_connected`] returns.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A store that is reached over connections. It is a [`LeaseStore`](super::LeaseStore) that returns
/// itself as [`StoreExtras::remote`](super::StoreExtras::remote).
///
/// All methods have defaults, with which a store works. They are for drivers with a pool:
///
/// | the driver | implement |
/// |---|---|
/// | has a bounded number of connections, and lets calls wait for one | [`lanes`](Self::lanes), so that renewals do not wait behind acquisitions |
/// | connects with the first request, or has to find its server | [`ensure_connected`](Self::ensure_connected), so that a failed attempt is no unknown outcome |
/// | knows why no answer comes, and says so only when a call has ended | [`why_unanswered`](Self::why_unanswered) |
/// | opens something for each provider, such as a stream | [`close`](Self::close) |
///
/// A store in this process, over a file, or over one connection needs none of them.
#[async_trait]
pub trait RemoteStore: Send + Sync {
    /// Returns the lanes, which bound how many calls the store takes at once. The engine holds back
    /// the others, renewals first and acquisitions last. It calls this for each call, so a store
    /// may know its bound only after it has met its server. Stores that share connections return
    /// clones of one value.
    ///
    /// A call counts until its future has ended. A store with lanes therefore ends each call with
    /// its `timeout`, and then has nothing of it in flight.
    ///
    /// Defaults to `None`: every call is made at once.
    fn lanes(&self) -> Option<Lanes> {
        None
    }

    /// Connects within `limit`, so that requests can be sent; `None` if they can be sent already.
    /// The engine awaits it before each attempt to acquire, and drops it when the caller leaves.
    /// Nothing of the request has been sent by then, so a failure is never of unknown outcome.
    ///
    /// For stores that learn with the first request whether their server can be reached, what it
    /// is, and whether it accepts the credentials. The error describes what was found.
    ///
    /// Defaults to `None`.
    fn ensure_connected(&self, limit: Duration) -> Option<Connecting<'_>> {
        let _ = limit;
        None
    }

    /// Returns what the store knows about why a call has no answer after this time, such as that no
    /// server can be reached. It is the error of a caller that leaves before the answer, whose
    /// outcome is unknown whatever the error says. Does no I/O. Defaults to `None`.
    fn why_unanswered(&self, waited: Duration) -> Option<LockError> {
        let _ = waited;
        None
    }

    /// Closes what the store opened for one provider. Called once by each provider, when it has
    /// been shut down and every lease is settled. What several providers of one store share must
    /// continue to work for the others. It has at most one request timeout. Defaults to nothing.
    ///
    /// # Errors
    /// If something could not be closed; the provider reports the error.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
