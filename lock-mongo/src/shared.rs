//! What all stores of one client share: its connections are the same.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use distlock_engine::store::Lanes;
use futures_util::FutureExt;
use mongodb::bson::doc;
use mongodb::error::ErrorKind as DriverKind;
use mongodb::options::SelectionCriteria;
use mongodb::{Client, ClientSession};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::unconstrained;

use crate::streams::Streams;

/// The driver's default for `maxPoolSize`.
const DEFAULT_POOL: usize = 10;

/// A smaller pool has connections for calls only.
const SHARED_POOL: usize = 4;

/// The stores of one client, as long as there are any, or a stream of events.
#[derive(Debug)]
pub(crate) struct Shared {
    client: Client,
    /// What the engines have in flight.
    pub(crate) lanes: Lanes,
    /// One permit for each connection of the pool.
    pub(crate) connections: Arc<Semaphore>,
    /// The size of the pool.
    pub(crate) pool: usize,
    pub(crate) streams: Streams,
}

static CLIENTS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Shared {
    /// What the stores of this client share; made with `calls_at_once` if it is the first of them.
    /// `None` outside of a runtime, and while the client's pool of sessions is in use, which lasts
    /// for an instant: [`wait_for`](Self::wait_for) waits for it.
    pub(crate) fn of(client: &Client, calls_at_once: Option<NonZeroUsize>) -> Option<Arc<Self>> {
        // The driver needs one to take a session back.
        Handle::try_current().ok()?;
        let start = async { client.start_session().await };
        let probe = unconstrained(start).now_or_never()?.ok()?;
        Some(Self::found(client, calls_at_once, probe))
    }

    /// The same, where one may wait.
    pub(crate) async fn wait_for(
        client: &Client,
        calls_at_once: Option<NonZeroUsize>,
    ) -> mongodb::error::Result<Arc<Self>> {
        let probe = client.start_session().await?;
        Ok(Self::found(client, calls_at_once, probe))
    }

    /// `probe` is a session of the client. It is not kept: the client's `shutdown` waits for all
    /// sessions.
    fn found(client: &Client, calls_at_once: Option<NonZeroUsize>, mut probe: ClientSession) -> Arc<Self> {
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|shared| shared.strong_count() > 0);
        let known = clients.iter().filter_map(Weak::upgrade).find(|shared| shared.is_of(&mut probe));
        if let Some(known) = known {
            if calls_at_once.is_some_and(|at_once| at_once.get() != known.lanes.at_once()) {
                let in_force = known.lanes.at_once();
                tracing::warn!(
                    in_force,
                    ?calls_at_once,
                    "the first store of a client sets its number of calls at once"
                );
            }
            return known;
        }
        let pool = pool_size(client);
        let at_once = calls_at_once.unwrap_or_else(|| calls_of_pool(pool));
        let connections = Semaphore::new(pool.max(at_once.get()).min(Semaphore::MAX_PERMITS));
        let lanes = Lanes::new(at_once);
        // A number that the user has set is for calls alone.
        let of_streams = calls_at_once.is_none().then(|| lanes.clone());
        let shared = Arc::new(Self {
            client: client.clone(),
            lanes,
            connections: Arc::new(connections),
            pool,
            streams: Streams::new(streams_of_pool(pool), of_streams),
        });
        clients.push(Arc::downgrade(&shared));
        shared
    }

    /// Whether this is the client of a session. The driver does not compare clients, but before any
    /// I/O it refuses a command with a session of another client. The criteria match no server, so
    /// that otherwise nothing is sent either.
    fn is_of(&self, probe: &mut ClientSession) -> bool {
        let no_server = SelectionCriteria::Predicate(Arc::new(|_| false));
        let database = self.client.database("admin");
        let command =
            async { database.run_command(doc! { "ping": 1 }).selection_criteria(no_server).session(probe).await };
        match unconstrained(command).now_or_never() {
            Some(Err(error)) => !matches!(&*error.kind, DriverKind::InvalidArgument { .. } | DriverKind::Shutdown),
            Some(Ok(_)) | None => true,
        }
    }
}

/// How many connections of the pool are used at once, streams of events included: all but one. That
/// one is for the application, also while no call is answered.
fn calls_of_pool(connections: usize) -> NonZeroUsize {
    let for_the_application = usize::from(connections >= SHARED_POOL);
    NonZeroUsize::new(connections - for_the_application).unwrap_or(NonZeroUsize::MIN)
}

/// How many connections of the pool may be used by streams of events: a quarter, four at most. In a
/// pool of less than four connections waiters poll.
pub(crate) fn streams_of_pool(connections: usize) -> usize {
    (connections / SHARED_POOL).min(4)
}

/// The client's `maxPoolSize`, per server. The driver shows it in its debug output and nowhere
/// else; if it is not found there, the driver's default is assumed.
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
    async fn stores_of_one_client_share_and_those_of_two_do_not() {
        let (a, b) = (client("").await, client("").await);
        let first = Shared::of(&a, None).unwrap();
        assert!(Arc::ptr_eq(&first, &Shared::of(&a.clone(), None).unwrap()));
        assert!(Arc::ptr_eq(&first, &Shared::of(&a.database("x").client().clone(), None).unwrap()));
        let second = Shared::of(&b, NonZeroUsize::new(3)).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(second.lanes.at_once(), 3);
        assert!(Arc::ptr_eq(&second, &Shared::of(&b, None).unwrap()));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none(), "nothing is kept for a client without stores");
        assert!(Shared::of(&a, None).is_some());
    }

    #[tokio::test]
    async fn a_client_that_was_shut_down_is_no_other() {
        let (a, b) = (client("").await, client("").await);
        let first = Shared::of(&a, None).unwrap();
        a.shutdown().immediate(true).await;
        assert!(!Arc::ptr_eq(&first, &Shared::of(&b, None).unwrap()));
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
