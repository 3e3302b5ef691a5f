//! Recipes for which a key has one holder at a time.

use distlock_api::{LockError, Mode, Result};

/// Checks that the mode is exclusive, where any other would be an accident, before any I/O. `what`
/// names what needs the lock.
pub(crate) fn ensure_exclusive(mode: Mode, what: &str) -> Result<()> {
    if mode.is_exclusive() {
        return Ok(());
    }
    Err(LockError::invalid_options(format!("{what} needs an exclusive lock, not {mode}: leave the mode out")))
}
