//! Outages, for layers that serve without a lock while there is one.

use crate::error::{ErrorKind, LockError};

/// Returns whether the lock service gave no answer. An error that it answers with is no outage.
/// Neither is a closed provider: its process is shutting down, and should not begin more work.
#[must_use]
pub fn is_outage(error: &LockError) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable)
}
