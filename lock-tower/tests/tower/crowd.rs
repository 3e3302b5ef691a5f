//! Over real TCP: many clients of two replicas, some of which disconnect at random. No lock, waiter
//! or task is left, and exclusion is never broken.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use distlock_api::{LockError, LockKey, LockProvider};
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::LockLayer;
use futures_util::stream::{self, StreamExt};
use http::request::Parts;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::common::{Answer, Client, Protocol, Server, soon, until};

const KEYS: usize = 3;
const CLIENTS: u64 = 8;
const REQUESTS: usize = 75;

/// Each run sends 600 requests, each on its own connection, which takes long on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_memory_backend_over_http1() {
    of_the_memory_backend(Protocol::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_memory_backend_over_http2() {
    of_the_memory_backend(Protocol::Http2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_lease_engine_over_http1() {
    of_the_lease_engine(Protocol::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_lease_engine_over_http2() {
    of_the_lease_engine(Protocol::Http2).await;
}

async fn of_the_memory_backend(protocol: Protocol) {
    let locks = MemoryProvider::new();
    random_disconnects_leave_nothing(protocol, [Arc::new(locks.clone()), Arc::new(locks.clone())]).await;
    assert_eq!(locks.keys_in_use(), 0);
}

async fn of_the_lease_engine(protocol: Protocol) {
    let store = MemoryStore::new();
    random_disconnects_leave_nothing(protocol, [Arc::new(store.provider()), Arc::new(store.provider())]).await;
    for id in 0..KEYS {
        let key = format!("/{id}");
        assert!(store.peek(&key).is_none() && store.waiting(&key).is_empty(), "{key}");
    }
}

fn path(parts: &mut Parts) -> Result<Option<LockKey>, LockError> {
    LockKey::new(parts.uri.path()).map(Some)
}

/// A room for each key. Two requests must never be in one room at once.
#[derive(Clone, Default)]
struct Rooms {
    busy: Arc<[AtomicBool; KEYS]>,
    visits: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

/// Leaves when dropped, too.
struct Inside(Rooms, usize);

impl Rooms {
    fn enter(self, id: usize) -> Inside {
        self.visits.fetch_add(1, Ordering::SeqCst);
        if self.busy[id].swap(true, Ordering::SeqCst) {
            self.broken.store(true, Ordering::SeqCst);
        }
        Inside(self, id)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.busy[self.1].store(false, Ordering::SeqCst);
    }
}

async fn random_disconnects_leave_nothing(protocol: Protocol, replicas: [Arc<dyn LockProvider>; 2]) {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let tasks_before = tasks();
    let rooms = Rooms::default();
    let handler = {
        let rooms = rooms.clone();
        move |Path(id): Path<usize>| async move {
            let inside = rooms.enter(id);
            tokio::task::yield_now().await;
            let body = stream::iter(0..3).then(move |_| {
                let _ = &inside;
                async {
                    tokio::task::yield_now().await;
                    Ok::<_, Infallible>("x")
                }
            });
            Body::from_stream(body)
        }
    };
    let (mut servers, mut monitors) = (Vec::new(), Vec::new());
    for provider in &replicas {
        let layer = LockLayer::new(provider.clone(), path);
        monitors.push(layer.monitor());
        servers.push(Server::start(Router::new().route("/{id}", post(handler.clone())).route_layer(layer)).await);
    }
    let addresses: Vec<_> = servers.iter().map(Server::address).collect();
    let clients = (0..CLIENTS).map(|seed| {
        let addresses = &addresses;
        async move {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut answered = 0;
            for request in 0..REQUESTS {
                let client = Client::connect(addresses[request % addresses.len()], protocol).await;
                let mut answer = client.spawn_post(&format!("/{}", random.usize(0..KEYS)));
                if random.u8(0..3) == 0 {
                    for _ in 0..random.usize(0..40) {
                        tokio::task::yield_now().await;
                    }
                    client.disconnect();
                } else {
                    let response = (&mut answer).await.unwrap().unwrap();
                    assert_eq!(Answer::read(response).await.text(), "xxx");
                    answered += 1;
                }
            }
            answered
        }
    });
    let clients = timeout(LIMIT, futures_util::future::join_all(clients)).await;
    let answered: usize = clients.expect("all clients are through").into_iter().sum();
    for (provider, monitor) in replicas.iter().zip(monitors) {
        soon("idle", monitor.idle()).await;
        until("all is released", || provider.accounting().held == 0).await;
        let accounting = provider.accounting();
        assert!(accounting.balances() && accounting.waiting == 0, "{accounting:?}");
        assert_eq!((monitor.waiting(), monitor.held(), monitor.refused_in_total()), (0, 0, 0));
        provider.close().await.unwrap();
    }
    drop(servers);
    until("all tasks have ended", || tasks() <= tasks_before).await;
    assert!(!rooms.broken.load(Ordering::SeqCst), "two in one room");
    assert!(rooms.visits.load(Ordering::SeqCst) >= answered, "a request was answered without a visit");
}
