//! Keeps panics of recorders and subscribers away from requests. Such a panic loses a sample or a
//! line of the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`. A panic ends `work` and nothing else: a second one while a request unwinds would
/// end the process.
pub(crate) fn contained(work: impl FnOnce()) {
    // The panic hook has reported it.
    drop(catch_unwind(AssertUnwindSafe(work)));
}
