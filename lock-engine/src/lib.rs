//! The lease engine: a full [`LockProvider`](distlock_api::LockProvider) over any [`LeaseStore`].
//!
//! For authors of backends. They implement [`LeaseStore`], three required methods without loops,
//! timers or tasks; [`LeaseProvider`] makes a provider of it, and [`LeaseGuard`] is the base of guards
//! that carry more than a lock. The conformance suite (`distlock-conformance`) tells whether the
//! promises hold.

mod contention;
mod engine;
pub mod store;

pub use contention::{HandOff, QueueOptions, WhenFull};
pub use engine::{AcquiredLease, LeaseGuard, LeaseProvider, LeaseProviderBuilder, NotCommitted};
pub use store::LeaseStore;

/// For implementing the traits of this crate.
pub use distlock_api::async_trait;
