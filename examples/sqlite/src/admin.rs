//! Inspects and removes locks: the required half of [`LockAdmin`].
use std::time::SystemTime;

use distlock_api::{AcquisitionId, LockAdmin, LockInfo, LockKey, Result, async_trait};
use distlock_engine::record::ForceRelease;

use crate::{PATIENCE, SqliteStore};

#[async_trait]
impl LockAdmin for SqliteStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let key = key.clone();
        self.step(PATIENCE, move |step| Ok(step.load(&key)?.describe(&key, step.now))).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let request = ForceRelease::new(key.clone(), SystemTime::now(), reason);
        self.step(PATIENCE, move |step| step.answer(&request)).await
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        let request = ForceRelease::new(key.clone(), SystemTime::now(), reason).with_holder(id.clone());
        self.step(PATIENCE, move |step| step.answer(&request)).await
    }
}
