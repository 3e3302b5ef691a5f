//! Work that runs while a lock is held.

use crate::error::{LockError, Result};
use crate::guard::ReleaseOutcome;
use crate::key::LockKey;
use crate::loss::Loss;

/// Returns the result of a finished run: its output, unless the release found the lock lost.
///
/// A release that could not be confirmed is logged, not returned: the work was done under the lock.
///
/// # Errors
/// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the release found the lock lost.
pub fn finish_run<T>(output: T, key: Option<&LockKey>, release: Result<ReleaseOutcome>) -> Result<T> {
    match release {
        Ok(ReleaseOutcome::Released) => Ok(output),
        Ok(ReleaseOutcome::AlreadyLost) => {
            let error = LockError::lost(Loss::Gone);
            Err(match key {
                Some(key) => error.with_key(key.clone()),
                None => error,
            })
        }
        Err(error) => {
            tracing::warn!(lock.key = key.map(tracing::field::display), %error, "release not confirmed");
            Ok(output)
        }
    }
}
