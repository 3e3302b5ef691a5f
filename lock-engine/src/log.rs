//! Log lines of the engine. A subscriber that panics harms no lease.

/// Writes a log line, such as `log!(warn, lock.key = %key, "lock lost")`.
macro_rules! log {
    ($level:ident, $($line:tt)*) => {
        distlock_api::style::contained(|| tracing::$level!($($line)*))
    };
}

pub(crate) use log;
