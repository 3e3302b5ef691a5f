//! The identity of one acquisition.

use std::fmt;
use std::sync::Arc;

use crate::printable::Printable;

/// The identity of one acquisition of one key, never used for another ([C7]).
///
/// It is a text that the backend makes. With the lease engine it has 25 bytes, of which the first
/// eight name the provider.
///
/// [C7]: distlock_api::contract#c7
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    /// Makes an identity of a text. For backends.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Printable(&self.0).fmt(f)
    }
}

impl fmt::Debug for AcquisitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
