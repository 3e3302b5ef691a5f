//! Distributed locks with leases, fencing tokens and fair queues.
//!
//! A lock has a key, such as `orders/4711`. Processes that want the same key wait in line; one holds
//! the lock, for as long as its guard exists. The lock is a lease: if its holder dies, the lease
//! expires and the next waiter gets the lock.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use distlock::memory::MemoryProvider;
//! use distlock::{LockProvider, LockProviderExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), distlock::LockError> {
//! // Chosen once, in `main`; everything else takes an `Arc<dyn LockProvider>`.
//! let locks: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
//!
//! let guard = locks.acquire("orders/4711").timeout(Duration::from_secs(5)).await?;
//! // At most one task is here.
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The parts
//!
//! | feature | what it adds |
//! |---|---|
//! | – | [`LockProvider`] and [`LockProviderExt`], [`LockGuard`], keys, errors, fencing tokens, administration, and the wrappers [`Namespaced`] and [`Instrumented`] |
//! | `memory` (default) | [`memory`]: locks of one process, and tests with paused time |
//! | `mongodb` | `mongodb`: locks of many processes on MongoDB 6.0 or later, as records of their own or as fields of documents |
//! | `tower` | `tower`: a layer that lets one request per key through |
//! | `axum` | the same with keys from axum's routes, and an extractor for the lock |
//! | `metrics` | counters and histograms of locks and requests, through the `metrics` facade |
//!
//! # Where to go from here
//!
//! * **To lock something:** [`LockProviderExt::acquire`], then [`LockGuard`].
//! * **What can go wrong:** [`LockError`] and [`Loss`]. A lease can be lost before it is released;
//!   [`LockGuard::lost`] resolves then, and the [`FencingToken`] keeps a late writer out.
//! * **To write a library or a middleware:** depend on `distlock-api`, which is re-exported here.
//! * **To write a backend:** depend on `distlock-engine`, and test with `distlock-conformance`.

#[doc(inline)]
pub use distlock_api::*;

#[cfg(feature = "memory")]
#[doc(inline)]
pub use distlock_memory as memory;

#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use distlock_mongo as mongodb;

#[cfg(feature = "tower")]
#[doc(inline)]
pub use distlock_tower as tower;
