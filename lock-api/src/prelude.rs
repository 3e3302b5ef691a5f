//! The names that most code that uses locks needs, for one `use`.
//!
//! ```
//! use std::time::Duration;
//!
//! use distlock_api::prelude::*;
//!
//! async fn ship(locks: &dyn LockProvider) -> Result<(), LockError> {
//!     let order = locks.acquire("orders/4711").timeout(Duration::from_secs(5));
//!     order.run(async |token| println!("held, token {token}")).await
//! }
//! ```

pub use distlock_api::{
    AcquireOptions, AllGuard, DistributedLock, DistributedLockExt, ErrorKind, FencingToken, IntoLockKey, LeaseOptions,
    LockAdmin, LockError, LockGuard, LockKey, LockProvider, LockProviderExt, Loss, ReleaseOutcome, RenewalPolicy, Wait,
};
