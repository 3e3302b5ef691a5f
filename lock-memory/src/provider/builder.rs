//! The builder of a [`MemoryProvider`].

use distlock_api::{Holder, Result};

use super::MemoryProvider;

/// Configures a [`MemoryProvider`] with another owner or more metadata than the defaults. Returned
/// by [`MemoryProvider::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is made until `build` is called"]
pub struct MemoryProviderBuilder {
    holder: Holder,
}

impl MemoryProvider {
    /// Creates a builder.
    pub fn builder() -> MemoryProviderBuilder {
        MemoryProviderBuilder { holder: Holder::this_process() }
    }
}

impl MemoryProviderBuilder {
    /// Sets the owner of this provider's locks, for people. Defaults to the owner
    /// in [`Holder::this_process`], which is unique per process.
    pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
        self.holder = self.holder.with_owner(owner);
        self
    }

    /// Adds one metadata entry to all locks of this provider, for people. It is added to those of
    /// [`Holder::this_process`].
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.holder = self.holder.with_metadata(name, value);
        self
    }

    /// Creates the provider.
    ///
    /// # Errors
    /// [`InvalidOptions`](distlock_api::ErrorKind::InvalidOptions) for an owner or metadata that is
    /// too long.
    pub fn build(self) -> Result<MemoryProvider> {
        self.holder.validate()?;
        Ok(MemoryProvider::with_defaults(self.holder))
    }
}
