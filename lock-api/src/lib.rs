//! One distributed-lock interface with interchangeable backends.
//!
//! * **Applications** depend on [`LockProvider`] – usually as `Arc<dyn LockProvider>` – and choose the backend in `main`.
//!   Start at [`LockProviderExt`] and [`LockGuard`].
//! * **Backend authors** implement [`LeaseStore`], three required methods without loops, timers or tasks; [`LeaseProvider`] makes a
//!   full provider of it, and [`LeaseGuard`] the base of guards that carry more than a lock. The conformance suite (`distlock-conformance`) tells whether the promises hold.
//!
//! The documentation cites the clauses C1–C25 of the contract, which `DESIGN.md` lists, and the rules R1–R22 of the lease protocol, which are in `lock-mongo/PROTOCOL.md`.

mod admin;
mod all;
mod contain;
mod contention;
mod engine;
mod error;
mod ext;
mod fenced;
mod guard;
mod holder;
mod key;
mod options;
mod provider;
pub mod store;
mod token;
mod wrap;

pub use admin::{ForcedRelease, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockInfo, LockList};
pub use all::{AcquireAll, AllGuard};
pub use contention::{HandOff, QueueOptions, WhenFull};
pub use engine::{AcquiredLease, LeaseGuard, LeaseProvider, LeaseProviderBuilder, NotCommitted};
pub use error::{Disposition, ErrorKind, LockError, Phase, Result};
pub use ext::{
    Acquire, AcquireFuture, DistributedLockExt, LockProviderExt, OfLock, OfProvider, TryAcquire, TryAcquireFuture,
};
pub use fenced::{FencedRegister, FencedWrite};
pub use guard::{HeldLock, LockGuard, Loss, LostSignal, ReleaseFuture, ReleaseOutcome};
pub use holder::Holder;
pub use key::{IntoLockKey, LockKey};
pub use options::{AcquireOptions, LeaseOptions, LeaseTerms, RenewalPolicy, Wait};
pub use provider::{Accounting, Acquired, Busy, Capabilities, DistributedLock, Lock, LockProvider};
pub use store::LeaseStore;
pub use token::FencingToken;
pub use wrap::{Instrumented, Namespaced};

/// For implementing the traits of this crate.
pub use async_trait::async_trait;
