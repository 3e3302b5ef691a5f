//! Minimum holds (C25): how long a key stays closed although its guard was released.

use std::time::Duration;

use distlock_api::{AcquireOptions, ErrorKind, LeaseOptions, LockError, Result};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A minimum hold that has not begun, and the runtime whose timer will end it.
#[derive(Clone, Debug)]
pub(super) struct MinimumHold {
    /// In milliseconds, of which [`LeaseOptions::MAX_TTL`] is the limit. Each waiter has one.
    at_least: u32,
    runtime: Handle,
}

impl MinimumHold {
    /// Validates the lease options. Only the minimum hold has a meaning here; returns it, or `None`
    /// if there is none.
    #[inline]
    pub(super) fn of(options: &AcquireOptions) -> Result<Option<Self>> {
        const DEFAULTS: LeaseOptions = LeaseOptions::new();
        if options.lease() == DEFAULTS {
            return Ok(None);
        }
        let Some(at_least) = options.lease().terms()?.hold_at_least else { return Ok(None) };
        let runtime = Handle::try_current().map_err(|error| needs_runtime("a minimum hold").with_source(error))?;
        Ok(Some(Self { at_least: u32::try_from(at_least.as_millis()).unwrap_or(u32::MAX), runtime }))
    }

    /// Starts the hold of a lock that is granted now. Returns when it ends, and the runtime whose
    /// timer ends it.
    pub(super) fn start(self) -> (Instant, Handle) {
        (Instant::now() + Duration::from_millis(self.at_least.into()), self.runtime)
    }
}

/// Returns the error for an option that needs a timer, outside of a tokio runtime.
pub(super) fn needs_runtime(what: &str) -> LockError {
    let message = format!("{what} needs a tokio runtime: await the call in a task of one, or in its `block_on`");
    LockError::new(ErrorKind::Unsupported, message)
}
