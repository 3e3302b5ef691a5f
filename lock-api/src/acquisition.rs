//! The identity of one acquisition.

use std::fmt;
use std::sync::Arc;

/// The identity of one acquisition of one key: never used for another (C7). Text that the backend
/// has made; with a lease engine 49 bytes, of which the first 16 name the provider.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    /// The identity with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
