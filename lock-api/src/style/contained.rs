//! Calls into code of the application that must not end a backend.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call into code of the application: a tracing subscriber, a metrics recorder, a waker. A
/// panic ends this call and nothing else.
///
/// It costs the log line, the sample or the wake-up in which it happens. The renewals and clean-ups
/// of all other leases continue ([C14]). A second panic while a request unwinds would end the
/// process.
///
/// ```
/// use distlock_api::style::contained;
///
/// contained(|| println!("a log line, of a subscriber that may panic"));
/// ```
///
/// [C14]: distlock_api::contract#c14
pub fn contained(call: impl FnOnce()) {
    // The panic hook has reported it.
    drop(catch_unwind(AssertUnwindSafe(call)));
}
