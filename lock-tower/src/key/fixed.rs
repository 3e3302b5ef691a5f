//! The same key for all requests.

use distlock_api::{IntoLockKey, LockError, LockKey};
use http::request::Parts;

use super::ExtractKey;
use crate::keys::KeySet;
use crate::refusal::KeyRejection;

/// The same key for every request: all replicas together serve one request at a time.
#[derive(Clone, Debug)]
pub struct FixedKey {
    key: LockKey,
}

impl FixedKey {
    /// Makes an extractor of this key.
    ///
    /// # Errors
    /// When the text is not a valid lock key.
    pub fn new(key: impl IntoLockKey) -> Result<Self, LockError> {
        Ok(Self { key: key.into_lock_key()? })
    }
}

impl ExtractKey for FixedKey {
    fn extract(&self, _: &mut Parts) -> Result<Option<KeySet>, KeyRejection> {
        Ok(Some(self.key.clone().into()))
    }

    /// Returns the key.
    fn class(&self) -> &str {
        self.key.as_str()
    }
}
