//! One distributed-lock interface with interchangeable backends.
//!
//! * **Applications** depend on [`LockProvider`], usually as `Arc<dyn LockProvider>`, and choose the
//!   backend in `main`. Start at [`LockProviderExt`] and [`LockGuard`].
//! * **Libraries and middleware** need this crate only: it contains no backend.
//! * **Backend authors** implement `LeaseStore` of `distlock-engine`, three required methods without
//!   loops, timers or tasks, and get a [`LockProvider`] from it.
//!
//! The documentation cites the clauses C1–C25 of the contract, which `DESIGN.md` lists, and the rules
//! R1–R22 of the lease protocol, which are in `lock-mongo/PROTOCOL.md`.

mod acquisition;
mod admin;
mod all;
mod contain;
mod error;
mod ext;
mod fenced;
mod guard;
mod holder;
mod key;
mod options;
mod parse;
mod provider;
mod setters;
mod token;
mod wrap;

pub use acquisition::AcquisitionId;
pub use admin::{ForcedRelease, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockInfo, LockList};
pub use all::{AcquireAll, AllGuard};
#[doc(hidden)]
pub use contain::contained;
pub use error::{Disposition, ErrorKind, LockError, Phase, Result};
pub use ext::{
    Acquire, AcquireFuture, DistributedLockExt, LockProviderExt, OfLock, OfProvider, TryAcquire, TryAcquireFuture,
};
pub use fenced::{FencedRegister, FencedWrite};
pub use guard::{HeldLock, LockGuard, Loss, LostSignal, ReleaseFuture, ReleaseOutcome};
pub use holder::Holder;
pub use key::LockKey;
pub use options::{AcquireOptions, LeaseOptions, LeaseTerms, RenewalPolicy, Wait};
pub use parse::IntoLockKey;
pub use provider::{Accounting, Acquired, Busy, Capabilities, DistributedLock, Lock, LockProvider};
pub use token::FencingToken;
pub use wrap::{Instrumented, Namespaced};

/// For implementing the traits of this crate.
pub use async_trait::async_trait;
