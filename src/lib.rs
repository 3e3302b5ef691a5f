//! Distributed locks with leases, fencing tokens and fair queues.
//!
//! A lock has a key, such as `orders/4711`. Processes that want the same key wait in a queue, and
//! one of them holds the lock. The lock is a lease: if its holder dies, the lease expires, and the
//! next waiter gets the lock.
//!
#![cfg_attr(feature = "memory", doc = "```")]
#![cfg_attr(not(feature = "memory"), doc = "```text")]
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use distlock::memory::MemoryProvider;
//! use distlock::prelude::*;
//!
//! # async fn ship(_order: u32, _token: FencingToken) {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! // Choose the backend in `main`. All other code takes a `dyn LockProvider`.
//! let locks: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
//!
//! // Waits up to 5 s, runs the work while the lock is held, and releases. If the lock is lost, the
//! // work is dropped at once. The token lets the resource refuse late writes.
//! locks
//!     .acquire(("orders", 4711))
//!     .timeout(Duration::from_secs(5))
//!     .run(async |token| ship(4711, token).await)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # For an application
//!
//! Depend on `distlock`, with the feature of your backend. Where the work is not one future, keep a
//! guard. Where the same work must not be done twice, try.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock::prelude::*;
//!
//! # async fn report(_page: u32) {}
//! # async fn book(_account: &str, _token: FencingToken) {}
//! async fn work(locks: &dyn LockProvider) -> Result<(), LockError> {
//!     // One server of the fleet does the nightly work. The key stays closed for a minute, for
//!     // servers whose clocks are late.
//!     let nightly = locks.try_acquire("jobs/nightly").hold_at_least(Duration::from_secs(60));
//!     if nightly.run(async |_| report(0).await).await?.is_none() {
//!         println!("another server does it");
//!     }
//!
//!     // Both accounts or none, in an order that cannot deadlock.
//!     let both = locks.acquire_all(["accounts/a", "accounts/b"]).timeout(Duration::from_secs(5));
//!     both.run(async |tokens| {
//!         book("a", tokens["accounts/a"]).await;
//!         book("b", tokens["accounts/b"]).await;
//!     })
//!     .await?;
//!
//!     // With a guard.
//!     let guard = locks.acquire("reports/daily").await?;
//!     for page in 1..=3 {
//!         // Dropped at once if the lock is lost.
//!         guard.run(report(page)).await?;
//!     }
//!     if !guard.release().await?.is_released() {
//!         println!("the lock had been lost before the release");
//!     }
//!     Ok(())
//! }
//! ```
//!
//! * **Leadership:** [`lead`](lead::LeadExt::lead) runs a task on one server of the fleet, until it
//!   resigns or dies.
//! * **Errors:** [`LockError`]. A wait that ended without the lock is
//!   [`is_not_granted`](LockError::is_not_granted).
//! * **Loss:** a lease can be lost before it is released. [`LockGuard::lost`] resolves then, and
//!   the [`FencingToken`] keeps late writers out.
//! * **Work that must be done once**, and whose outcome the second caller gets: the module [`once`].
//! * **Without `async`:** `blocking`, with the feature of that name.
//! * **Tests:** `memory::MemoryStore` is a store whose clock and faults a test controls.
//!
//! # For web services
//!
//! With the features `axum` and a backend, one layer lets one request per key through:
//!
#![cfg_attr(all(feature = "axum", feature = "memory"), doc = "```")]
#![cfg_attr(not(all(feature = "axum", feature = "memory")), doc = "```text")]
//! use axum::{Router, routing::put};
//! use distlock::memory::MemoryProvider;
//! use distlock::tower::{HeldLock, LockLayer, key::ParamKey};
//!
//! async fn change(held: HeldLock) -> String {
//!     format!("changed {} with token {}", held.key(), held.fencing_token())
//! }
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     let order = ParamKey::typed::<u64>("order", "id")?.checked_for(["/orders/{id}"])?;
//!     let layer = LockLayer::new(MemoryProvider::new(), order);
//!     Ok(Router::new().route("/orders/{id}", put(change)).route_layer(layer))
//! }
//! # app().unwrap();
//! ```
//!
//! # For a library, a middleware, a backend
//!
//! A library or a middleware depends on `distlock-api` alone and takes a `dyn LockProvider`.
//!
//! A backend depends on `distlock-engine`. Implement its `LeaseStore`: three required methods, and a
//! name. The requests are *try to acquire*, *renew* and *release*, without loops, timers or tasks.
//! The engine waits, renews, detects losses and cleans up. It makes a [`LockProvider`] of the store:
//!
//! ```
//! use std::sync::Arc;
//!
//! use distlock::{LockError, LockProvider};
//! use distlock_engine::{LeaseProvider, LeaseStore};
//!
//! fn locks(store: impl LeaseStore) -> Result<Arc<dyn LockProvider>, LockError> {
//!     Ok(Arc::new(LeaseProvider::builder(Arc::new(store)).build()?))
//! }
//! ```
//!
//! `distlock-conformance` checks the backend: one fixture, one call, and a check for each clause of
//! the [`contract`].
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | – | [`LockProvider`] and [`LockProviderExt`], [`LockGuard`], keys, errors, fencing tokens, administration ([`LockAdmin`]), the wrappers [`Namespaced`] and [`Instrumented`], and the recipes [`once`] and [`lead`] |
//! | `memory` (default) | `memory`: locks of one process, and a store for tests |
//! | `mongodb` | `mongodb`: locks of many processes on MongoDB 6.0 or later, as records of their own or as fields of documents. Begin with `MongoProvider::connect(uri)` |
//! | `tower` | `tower`: a layer that lets one request per key through |
//! | `idempotency` | `idempotency`: a layer that processes each HTTP request with an `Idempotency-Key` once |
//! | `axum` | both layers with keys from axum's routes, and an extractor for the lock |
//! | `blocking` | `blocking`: locks for code without `async` |
//! | `metrics` | counters and histograms of locks and requests, through the `metrics` facade |
//! | `serde` | keys, tokens and options to and from text |
//! | `uuid` | `Uuid` as a key |
//!
//! # The crates
//!
//! | crate | what it is | depends on |
//! |---|---|---|
//! | `distlock` | this facade | those of its features |
//! | `distlock-api` | traits, guards, keys, errors, options, wrappers; re-exported here | – |
//! | `distlock-recipes` | work that is done once, leadership, idempotent requests; re-exported here | `distlock-api` |
//! | `distlock-engine` | `LeaseStore`, and the engine that waits, renews and cleans up | `distlock-api` |
//! | `distlock-memory` | the in-memory backend, and the store for tests | `distlock-recipes`, `distlock-engine` |
//! | `distlock-mongo` | the MongoDB backend, and locks in documents | `distlock-recipes`, `distlock-engine` |
//! | `distlock-tower` | the middleware | `distlock-api` |
//! | `distlock-conformance` | the test suite for backends | `distlock-recipes`, `distlock-engine` |

#[cfg(feature = "blocking")]
pub mod blocking;

pub mod guide;

#[doc(inline)]
pub use distlock_api::*;

#[cfg(feature = "idempotency")]
#[doc(inline)]
pub use distlock_recipes::idempotency;
#[doc(inline)]
pub use distlock_recipes::{lead, once, prelude};

#[cfg(feature = "memory")]
#[doc(inline)]
pub use distlock_memory as memory;

#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use distlock_mongo as mongodb;

#[cfg(feature = "tower")]
#[doc(inline)]
pub use distlock_tower as tower;

/// Compiles the example of the README.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("README.md")]
struct Readme;
