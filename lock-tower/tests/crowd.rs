//! Over real TCP: many clients, some of which go away at random. Nothing is left, and exclusion is never broken.
#![cfg(feature = "axum")]

mod common;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use distlock_api::LockProvider;
use distlock_memory::{MemoryProvider, MemoryStore};
use distlock_tower::LockLayer;
use distlock_tower::key::RouteKey;
use futures_util::stream::{self, StreamExt};

use common::{Answer, Protocol, Server, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_disconnects_leave_nothing_over_http1() {
    random_disconnects_leave_nothing(Protocol::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_disconnects_leave_nothing_over_http2() {
    random_disconnects_leave_nothing(Protocol::Http2).await;
}

async fn random_disconnects_leave_nothing(protocol: Protocol) {
    let store = MemoryStore::new();
    for provider in [Arc::new(MemoryProvider::new()) as Arc<dyn LockProvider>, Arc::new(store.provider())] {
        let layer = LockLayer::new(provider.clone(), RouteKey::any_method());
        let monitor = layer.monitor();
        let busy: Arc<[AtomicBool; 3]> = Arc::default();
        let broken = Arc::new(AtomicBool::new(false));
        let handler = {
            let (busy, broken) = (busy, broken.clone());
            move |Path(id): Path<usize>| async move {
                /// Leaves when dropped, too.
                struct Inside(Arc<[AtomicBool; 3]>, usize);
                impl Drop for Inside {
                    fn drop(&mut self) {
                        self.0[self.1].store(false, Ordering::SeqCst);
                    }
                }
                if busy[id].swap(true, Ordering::SeqCst) {
                    broken.store(true, Ordering::SeqCst);
                }
                let inside = Inside(busy, id);
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
        let server = Server::start(Router::new().route("/{id}", post(handler)).route_layer(layer)).await;
        let address = server.address();
        let clients = (0..8).map(|seed| async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..25 {
                let client = common::Client::connect(address, protocol).await;
                let mut answer = client.spawn_post(&format!("/{}", random.usize(0..3)));
                if random.u8(0..3) == 0 {
                    for _ in 0..random.usize(0..40) {
                        tokio::task::yield_now().await;
                    }
                    client.disconnect();
                } else {
                    let response = (&mut answer).await.unwrap().unwrap();
                    assert_eq!(Answer::read(response).await.text(), "xxx");
                }
            }
        });
        soon("all clients are through", futures_util::future::join_all(clients)).await;
        soon("idle", monitor.idle()).await;
        until("all is released", || provider.accounting().held == 0).await;
        let accounting = provider.accounting();
        assert!(accounting.balances() && accounting.waiting == 0, "{accounting:?}");
        assert!(!broken.load(Ordering::SeqCst), "two in one room");
        assert_eq!(monitor.waiting(), 0);
    }
}
