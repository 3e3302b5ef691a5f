//! A provider without shared locks and permits, as a backend may be.

use std::fmt;

use distlock_api::{
    AcquireOptions, Acquired, Capabilities, LockKey, LockProvider, Result, async_trait, delegate_provider,
};
use distlock_memory::MemoryProvider;

#[derive(Clone, Debug)]
pub(crate) struct WithoutModes(pub MemoryProvider);

impl fmt::Display for WithoutModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithoutModes")
    }
}

#[async_trait]
impl LockProvider for WithoutModes {
    async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired> {
        options.mode().ensure_supported("WithoutModes", &self.capabilities())?;
        self.0.acquire_with(key, options).await
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        (capabilities.shared, capabilities.permits) = (false, false);
        capabilities
    }

    delegate_provider!(this => this.0; accounting, admin, close);
}
