//! Log lines of the engine, through which a subscriber that panics harms no lease.

/// A log line, such as `log!(warn, lock.key = %key, "lock lost")`.
macro_rules! log {
    ($level:ident, $($line:tt)*) => {
        distlock_api::contained(|| tracing::$level!($($line)*))
    };
}

pub(crate) use log;
