//! The keys that a test names.

use distlock_api::{IntoLockKey, LockKey};

/// Returns the key of a test.
///
/// # Panics
/// If the text is not a valid key.
pub(super) fn valid(key: impl IntoLockKey) -> LockKey {
    key.into_lock_key().expect("a test names valid keys")
}
