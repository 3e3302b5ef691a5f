//! Where the engine runs code of the application: tracing subscribers and wakers.
//!
//! A panic there costs the log line or the wake-up in which it happens. The keeper and the clean-ups
//! of all other leases continue (C14).

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A log line, such as `log!(warn, lock.key = %key, "lock lost")`.
macro_rules! log {
    ($level:ident, $($line:tt)*) => {
        $crate::engine::log::contained(|| tracing::$level!($($line)*))
    };
}

pub(super) use log;

/// Runs `work`. A panic ends `work` and nothing else.
pub(super) fn contained(work: impl FnOnce()) {
    // The panic hook has reported it.
    drop(catch_unwind(AssertUnwindSafe(work)));
}
