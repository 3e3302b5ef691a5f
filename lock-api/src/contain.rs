//! Calls into code of the application: tracing subscribers, metrics recorders, wakers.
//!
//! A panic there costs the log line, the sample or the wake-up in which it happens. The renewals
//! and clean-ups of all other leases continue ([C14]).
//!
//! [C14]: distlock_api::contract#c14

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`. A panic ends `work` and nothing else.
pub fn contained(work: impl FnOnce()) {
    // The panic hook has reported it.
    drop(catch_unwind(AssertUnwindSafe(work)));
}
