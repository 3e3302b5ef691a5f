//! One key for all requests.

use distlock_api::{IntoLockKey, LockError, LockKey};
use http::request::Parts;

use super::ExtractKey;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The same key for every request: one at a time in the whole fleet.
#[derive(Clone, Debug)]
pub struct FixedKey {
    key: LockKey,
}

impl FixedKey {
    /// This key.
    ///
    /// # Errors
    /// When the text is not a lock key.
    pub fn new(key: impl IntoLockKey) -> Result<Self, LockError> {
        Ok(Self { key: key.into_lock_key()? })
    }
}

impl ExtractKey for FixedKey {
    fn extract(&self, _: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        Ok(Some(self.key.clone().into()))
    }

    /// The key.
    fn class(&self) -> &str {
        self.key.as_str()
    }
}
