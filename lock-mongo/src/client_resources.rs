//! The pool and the change streams of one client, which all of its stores share.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use distlock_api::style::contained;
use futures_util::FutureExt;
use mongodb::{Client, ClientSession};
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use crate::pool::Pool;
use crate::streams::Streams;

/// The pool and the change streams of one client.
#[derive(Clone, Debug)]
pub(crate) struct ClientResources {
    pub(crate) pool: Arc<Pool>,
    pub(crate) streams: Arc<Streams>,
}

/// The streams, and by them the pools, of all clients that have a store or an open stream.
static CLIENTS: Mutex<Vec<Weak<Streams>>> = Mutex::new(Vec::new());

impl ClientResources {
    /// Finds the pool and the streams of this client, or makes them with `calls_at_once`. Returns
    /// `None` outside of a runtime, and while another task uses the client's pool of sessions,
    /// which lasts for an instant: [`wait_for`](Self::wait_for) waits for it.
    pub(crate) fn of(client: &Client, calls_at_once: Option<NonZeroUsize>) -> Option<Self> {
        // The driver needs a runtime to take a session back.
        Handle::try_current().ok()?;
        let start = async { client.start_session().await };
        let probe = unconstrained(start).now_or_never()?.ok()?;
        Some(Self::found(client, calls_at_once, probe))
    }

    /// Finds the pool and the streams of this client, or makes them, as [`of`](Self::of) does.
    pub(crate) async fn wait_for(client: &Client, calls_at_once: Option<NonZeroUsize>) -> mongodb::error::Result<Self> {
        let probe = client.start_session().await?;
        Ok(Self::found(client, calls_at_once, probe))
    }

    /// `probe` is a session of the client. It is not kept: the client's `shutdown` waits for all
    /// sessions.
    fn found(client: &Client, calls_at_once: Option<NonZeroUsize>, mut probe: ClientSession) -> Self {
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| client.strong_count() > 0);
        let mut known = clients.iter().filter_map(Weak::upgrade);
        if let Some(streams) = known.find(|streams| streams.pool().is_of(&mut probe)) {
            let pool = Arc::clone(streams.pool());
            let in_force = pool.lanes.at_once();
            if calls_at_once.is_some_and(|at_once| at_once.get() != in_force) {
                contained(|| {
                    tracing::warn!(
                        in_force,
                        ?calls_at_once,
                        "calls_at_once is ignored: the first store of the client has set it"
                    );
                });
            }
            return Self { pool, streams };
        }
        let pool = Arc::new(Pool::new(client, calls_at_once));
        // A number that the application has set is for calls alone.
        let of_streams = calls_at_once.is_none().then(|| pool.lanes.clone());
        let streams = Arc::new(Streams::new(Arc::clone(&pool), of_streams));
        clients.push(Arc::downgrade(&streams));
        Self { pool, streams }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::options::ClientOptions;

    use super::*;

    async fn client() -> Client {
        Client::with_options(ClientOptions::parse("mongodb://127.0.0.1:1/").await.unwrap()).unwrap()
    }

    fn is_same(one: &ClientResources, other: &ClientResources) -> bool {
        let is_same = Arc::ptr_eq(&one.streams, &other.streams);
        assert_eq!(Arc::ptr_eq(&one.pool, &other.pool), is_same);
        is_same
    }

    #[tokio::test]
    async fn stores_share_a_pool_if_they_have_the_same_client() {
        let (a, b) = (client().await, client().await);
        let first = ClientResources::of(&a, None).unwrap();
        assert!(is_same(&first, &ClientResources::of(&a.clone(), None).unwrap()));
        assert!(is_same(&first, &ClientResources::of(&a.database("x").client().clone(), None).unwrap()));
        let second = ClientResources::of(&b, NonZeroUsize::new(3)).unwrap();
        assert!(!is_same(&first, &second));
        assert_eq!(second.pool.lanes.at_once(), 3);
        assert!(is_same(&second, &ClientResources::of(&b, None).unwrap()));
        let (pool, streams) = (Arc::downgrade(&first.pool), Arc::downgrade(&first.streams));
        drop(first);
        let is_kept = pool.upgrade().is_some() || streams.upgrade().is_some();
        assert!(!is_kept, "nothing is kept for a client without stores");
        assert!(ClientResources::of(&a, None).is_some());
    }

    #[tokio::test]
    async fn a_client_that_was_shut_down_is_not_taken_for_another() {
        let (a, b) = (client().await, client().await);
        let first = ClientResources::of(&a, None).unwrap();
        a.shutdown().immediate(true).await;
        assert!(!is_same(&first, &ClientResources::of(&b, None).unwrap()));
    }
}
