//! Locks in memory, for [`distlock-api`](distlock_api): two backends that need no server.
//!
//! # Which one?
//! * [`MemoryProvider`] is a **backend for production** within one process: it is fair and fast, it
//!   has shared locks and permits, its locks never expire, and idle keys take no memory. It
//!   implements [`LockProvider`](distlock_api::LockProvider) directly, without leases and without
//!   the engine. It also serves tests in which nothing goes wrong.
//! * [`MemoryStore`] is a **test double for a database**: a
//!   [`LeaseStore`](distlock_engine::LeaseStore) under the engine that also runs over a real one. A
//!   test can move its clock and plan its faults. Choose it to test what an application does when a
//!   lease is lost, a release is not confirmed or the store is down.
//!
//! [`MemoryOnce`] remembers the outcome of work that must be done once, over the locks of either.
//!
//! # Testing an application
//! Code that takes an `Arc<dyn LockProvider>` or a `&dyn LockProvider` gets a provider of the
//! store. Each [`MemoryStore::provider`] acts as one more process. The test keeps the store itself
//! and controls it. Under tokio's paused time no test waits.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock_api::{ErrorKind, LockError, LockProvider, LockProviderExt};
//! use distlock_memory::{MemoryStore, Operation};
//!
//! /// The code under test: it must stop when the lock is lost.
//! async fn nightly_report(locks: &dyn LockProvider) -> Result<(), LockError> {
//!     let guard = locks.acquire("reports/nightly").await?;
//!     guard.run(tokio::time::sleep(Duration::from_secs(3600))).await?;
//!     guard.release().await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let store = MemoryStore::new();
//! let (here, elsewhere) = (store.provider(), store.provider());
//!
//! // The lease is renewed until the work is done.
//! nightly_report(&here).await.unwrap();
//! assert!(store.calls(Operation::Renew) > 100);
//!
//! // The store is down for longer than the lease lasts: the work stops.
//! store.fail_always(Operation::Renew, ErrorKind::Unavailable);
//! let lost = nightly_report(&here).await.unwrap_err();
//! assert_eq!(lost.kind(), ErrorKind::Lost);
//!
//! // Another process takes the lock, with a greater fencing token.
//! store.clear_faults();
//! let guard = elsewhere.acquire("reports/nightly").await.unwrap();
//! assert!(guard.fencing_token().get() > 2);
//!
//! // An operator takes the lock away.
//! assert!(store.force_release("reports/nightly").is_some());
//! guard.lost().await;
//! assert!(!guard.release().await.unwrap().is_released());
//! # }
//! ```

mod once;
mod provider;
mod store;

pub use once::MemoryOnce;
pub use provider::{MemoryProvider, MemoryProviderBuilder};
pub use store::{Calls, HangHandle, MemoryStore, Operation};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
