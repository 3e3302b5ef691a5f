//! One distributed-lock interface with interchangeable backends.
//!
//! A lock has a key, such as `orders/4711`. Processes that want the same key wait in a queue, and
//! one of them holds the lock. The lock is a lease: if its holder dies, the lease expires, and the
//! next waiter gets the lock.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock_api::prelude::*;
//! use distlock_memory::MemoryProvider;
//!
//! # async fn ship(_order: u32, _token: FencingToken) {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! // Choose the backend in `main`. All other code takes a `dyn LockProvider`.
//! let locks = MemoryProvider::new();
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
//! # What to depend on
//!
//! | you write | depend on | start at |
//! |---|---|---|
//! | an application | `distlock`, which includes this crate and the backends | [`LockProviderExt`], [`LockGuard`] |
//! | a library or a middleware | this crate: it contains no backend | [`LockProvider`] |
//! | a wrapper or a typed style | this crate | [`Namespaced`], [`style`] |
//! | a backend | `distlock-engine`; it calls your `LeaseStore`, three required methods without loops, timers or tasks | `LeaseStore` |
//!
//! # Several locks
//!
//! [`acquire_all`](LockProviderExt::acquire_all) acquires several keys, all or nothing, in an order
//! that cannot deadlock.
//!
//! # Recipes
//!
//! Work that is done once, leadership, and idempotent HTTP requests are in `distlock-recipes`, on
//! the traits of this crate.
//!
//! # What a lock promises
//!
//! The [`contract`] lists 31 clauses, C1–C31; the documentation cites them. The rules R1–R32, which
//! it cites too, are those of the MongoDB lease protocol, in the documentation of `distlock-mongo`.
//!
//! No lease can stop a process that was paused beyond its ttl and then writes. The resource can, by
//! the [`FencingToken`] that each grant has.
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `metrics` | counters and histograms of [`Instrumented`], through the `metrics` facade |
//! | `serde` | [`LockKey`], [`FencingToken`], [`AcquisitionId`], [`Holder`], [`Wait`], [`RenewalPolicy`], [`LeaseOptions`] and [`AcquireOptions`] to and from text; durations are whole milliseconds, in fields named `…_ms` |
//! | `uuid` | `Uuid` as a key |

// Macros and documentation name this crate as its users do.
extern crate self as distlock_api;

mod acquisition;
mod admin;
mod all;
mod capabilities;
pub mod contract;
mod error;
mod ext;
mod fenced;
mod guard;
mod holder;
mod key;
mod loss;
mod mode;
mod options;
mod parse;
pub mod prelude;
mod printable;
mod provider;
#[cfg(feature = "serde")]
mod serialize;
pub mod style;
mod token;
mod wrap;

pub use acquisition::AcquisitionId;
pub use admin::{
    ForcedRelease, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockHolder, LockInfo, LockList,
};
pub use all::{AcquireAll, AllGuard, FencingTokens, TryAcquireAll};
pub use capabilities::Capabilities;
pub use error::{Disposition, ErrorKind, LockError, Phase, Result};
pub use ext::{
    Acquire, AcquireFuture, DistributedLockExt, KeyTarget, LockProviderExt, LockTarget, TryAcquire, TryAcquireFuture,
};
pub use fenced::{FencedRegister, FencedWrite};
pub use guard::{HasFencingToken, LeaseHandle, LockGuard, ReleaseFuture, ReleaseOutcome};
pub use holder::Holder;
pub use key::LockKey;
pub use loss::{Loss, LostSignal};
pub use mode::Mode;
pub use options::{AcquireOptions, LeaseOptions, LeaseTerms, RenewalPolicy, Wait};
pub use parse::IntoLockKey;
pub use printable::Printable;
pub use provider::{Accounting, Acquired, Busy, DistributedLock, Lock, LockProvider};
pub use token::FencingToken;
pub use wrap::{Instrumented, Namespaced};

/// For implementing the traits of this crate.
pub use async_trait::async_trait;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
