//! What all stores of one client share, because its connections are the same: its pool, and its
//! change streams.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::FutureExt;
use mongodb::{Client, ClientSession};
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use crate::pool::Pool;
use crate::streams::Streams;

/// What the stores of one client share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    pub(crate) streams: Arc<Streams>,
}

/// What the stores of each client share, as long as it has any, or an open stream.
static CLIENTS: Mutex<Vec<Weak<Streams>>> = Mutex::new(Vec::new());

impl Shared {
    /// What the stores of this client share; made with `calls_at_once` if it is the first of them.
    /// `None` outside of a runtime, and while the client's pool of sessions is in use, which lasts
    /// for an instant: [`wait_for`](Self::wait_for) waits for it.
    pub(crate) fn of(client: &Client, calls_at_once: Option<NonZeroUsize>) -> Option<Self> {
        // The driver needs one to take a session back.
        Handle::try_current().ok()?;
        let start = async { client.start_session().await };
        let probe = unconstrained(start).now_or_never()?.ok()?;
        Some(Self::found(client, calls_at_once, probe))
    }

    /// The same, where one may wait.
    pub(crate) async fn wait_for(client: &Client, calls_at_once: Option<NonZeroUsize>) -> mongodb::error::Result<Self> {
        let probe = client.start_session().await?;
        Ok(Self::found(client, calls_at_once, probe))
    }

    /// `probe` is a session of the client. It is not kept: the client's `shutdown` waits for all
    /// sessions.
    fn found(client: &Client, calls_at_once: Option<NonZeroUsize>, mut probe: ClientSession) -> Self {
        let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|shared| shared.strong_count() > 0);
        let mut known = clients.iter().filter_map(Weak::upgrade);
        if let Some(streams) = known.find(|streams| streams.pool().is_of(&mut probe)) {
            let pool = Arc::clone(streams.pool());
            let in_force = pool.lanes.at_once();
            if calls_at_once.is_some_and(|at_once| at_once.get() != in_force) {
                tracing::warn!(
                    in_force,
                    ?calls_at_once,
                    "the first store of a client sets its number of calls at once"
                );
            }
            return Self { pool, streams };
        }
        let pool = Arc::new(Pool::new(client, calls_at_once));
        // A number that the user has set is for calls alone.
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

    fn is_same(one: &Shared, other: &Shared) -> bool {
        let is_same = Arc::ptr_eq(&one.streams, &other.streams);
        assert_eq!(Arc::ptr_eq(&one.pool, &other.pool), is_same);
        is_same
    }

    #[tokio::test]
    async fn stores_of_one_client_share_and_those_of_two_do_not() {
        let (a, b) = (client().await, client().await);
        let first = Shared::of(&a, None).unwrap();
        assert!(is_same(&first, &Shared::of(&a.clone(), None).unwrap()));
        assert!(is_same(&first, &Shared::of(&a.database("x").client().clone(), None).unwrap()));
        let second = Shared::of(&b, NonZeroUsize::new(3)).unwrap();
        assert!(!is_same(&first, &second));
        assert_eq!(second.pool.lanes.at_once(), 3);
        assert!(is_same(&second, &Shared::of(&b, None).unwrap()));
        let (pool, streams) = (Arc::downgrade(&first.pool), Arc::downgrade(&first.streams));
        drop(first);
        let is_kept = pool.upgrade().is_some() || streams.upgrade().is_some();
        assert!(!is_kept, "nothing is kept for a client without stores");
        assert!(Shared::of(&a, None).is_some());
    }

    #[tokio::test]
    async fn a_client_that_was_shut_down_is_no_other() {
        let (a, b) = (client().await, client().await);
        let first = Shared::of(&a, None).unwrap();
        a.shutdown().immediate(true).await;
        assert!(!is_same(&first, &Shared::of(&b, None).unwrap()));
    }
}
