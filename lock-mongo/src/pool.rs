//! The connection pool of one client: the calls in flight, and the division of its connections.

use std::num::NonZeroUsize;
use std::sync::Arc;

use distlock_engine::store::Lanes;
use futures_util::FutureExt;
use mongodb::bson::doc;
use mongodb::error::ErrorKind as DriverKind;
use mongodb::options::SelectionCriteria;
use mongodb::{Client, ClientSession};
use tokio::sync::Semaphore;
use tokio::task::unconstrained;

use crate::topology::Reachability;

/// The driver's default for `maxPoolSize`.
const DEFAULT_POOL: usize = 10;

/// A pool smaller than this has connections for calls only.
const SHARED_POOL: usize = 4;

/// The pool of one client.
#[derive(Debug)]
pub(crate) struct Pool {
    client: Client,
    /// The calls that the engines have in flight.
    pub(crate) lanes: Lanes,
    /// One permit for each connection.
    pub(crate) connections: Semaphore,
    /// The greatest number of connections.
    pub(crate) size: usize,
    pub(crate) reachability: Reachability,
    /// The right to create indexes in the background. Each collection has its own, and together
    /// they would take all connections.
    pub(crate) creates_indexes: Semaphore,
}

impl Pool {
    pub(crate) fn new(client: &Client, calls_at_once: Option<NonZeroUsize>) -> Self {
        let size = pool_size(client);
        let at_once = calls_at_once.unwrap_or_else(|| calls_of_pool(size));
        let connections = Semaphore::new(size.max(at_once.get()).min(Semaphore::MAX_PERMITS));
        Self {
            client: client.clone(),
            lanes: Lanes::new(at_once),
            connections,
            size,
            reachability: Reachability::default(),
            creates_indexes: Semaphore::new(1),
        }
    }

    /// Returns whether this is the pool of the client that started `session`.
    ///
    /// The driver does not compare clients, but it refuses a command with a session of another
    /// client before any I/O. The criteria match no server, so nothing is sent in the other case
    /// either.
    pub(crate) fn is_of(&self, session: &mut ClientSession) -> bool {
        let no_server = SelectionCriteria::Predicate(Arc::new(|_| false));
        let database = self.client.database("admin");
        let command =
            async { database.run_command(doc! { "ping": 1 }).selection_criteria(no_server).session(session).await };
        match unconstrained(command).now_or_never() {
            Some(Err(error)) => !matches!(&*error.kind, DriverKind::InvalidArgument { .. } | DriverKind::Shutdown),
            Some(Ok(_)) | None => true,
        }
    }

    /// Returns how many connections change streams may use: a quarter, four at most. With fewer
    /// than four connections there are no streams, and waiters poll.
    pub(crate) fn connections_of_streams(&self) -> usize {
        streams_of_pool(self.size)
    }
}

/// Returns how many connections calls and streams use at once: all but one. That one is for the
/// application, even while no call is answered.
fn calls_of_pool(connections: usize) -> NonZeroUsize {
    let for_the_application = usize::from(connections >= SHARED_POOL);
    NonZeroUsize::new(connections - for_the_application).unwrap_or(NonZeroUsize::MIN)
}

fn streams_of_pool(connections: usize) -> usize {
    (connections / SHARED_POOL).min(4)
}

/// Returns the client's `maxPoolSize`, per server. The driver shows it only in its debug output. If
/// it is not found there, the driver's default is assumed.
pub(crate) fn pool_size(client: &Client) -> usize {
    let shown = format!("{client:?}");
    let named = shown.split_once("max_pool_size: Some(").and_then(|(_, rest)| rest.split_once(')'));
    named.and_then(|(number, _)| number.parse().ok()).filter(|size| *size > 0).unwrap_or(DEFAULT_POOL)
}

#[cfg(test)]
mod tests {
    use mongodb::options::ClientOptions;

    use super::*;

    async fn client(options: &str) -> Client {
        let options = ClientOptions::parse(format!("mongodb://127.0.0.1:1/?{options}")).await.unwrap();
        Client::with_options(options).unwrap()
    }

    #[tokio::test]
    async fn the_size_of_the_pool_is_known() {
        assert_eq!(pool_size(&client("").await), 10);
        assert_eq!(pool_size(&client("maxPoolSize=7").await), 7);
        assert_eq!(pool_size(&client("maxPoolSize=1").await), 1);
    }

    #[test]
    fn streams_take_a_share_of_the_pool_and_leave_a_connection_to_the_application() {
        let shares = [1, 3, 4, 10, 50, 100].map(|pool| (calls_of_pool(pool).get(), streams_of_pool(pool)));
        assert_eq!(shares, [(1, 0), (3, 0), (3, 1), (9, 2), (49, 4), (99, 4)]);
    }
}
