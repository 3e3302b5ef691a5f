//! Inspects and removes locks: the required half of [`LockAdmin`].
use distlock_api::{AcquisitionId, LockAdmin, LockInfo, LockKey, Result, async_trait};
use rusqlite::params;

use crate::clock::between;
use crate::step::{Step, bytes};
use crate::{PATIENCE, SqliteStore};

#[async_trait]
impl LockAdmin for SqliteStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let key = key.clone();
        self.step(PATIENCE, move |step| step.inspect(&key)).await
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let (key, reason) = (key.clone(), reason.to_owned());
        self.step(PATIENCE, move |step| step.force_release(&key, &reason)).await
    }
}

impl Step<'_> {
    fn inspect(&self, key: &LockKey) -> rusqlite::Result<Option<LockInfo>> {
        let Some(lease) = self.lease(key)?.filter(|lease| self.now < lease.closed_until) else { return Ok(None) };
        let (token, remaining) = (lease.last_token(), between(self.now, lease.closed_until));
        let info = LockInfo::new(key.clone(), lease.holder.map(AcquisitionId::new), token, remaining);
        let (owner, metadata) = serde_json::from_str(&lease.description).unwrap_or_default();
        Ok(Some(info.with_holder(owner, metadata).with_waiting(self.waiters(key)?)))
    }

    fn force_release(&self, key: &LockKey, reason: &str) -> rusqlite::Result<Option<LockInfo>> {
        let lock = self.inspect(key)?;
        if lock.is_some() {
            let record =
                "INSERT INTO forced SELECT key, holder, description, token, ?2, datetime() FROM lease WHERE key = ?1";
            self.sql.execute(record, params![bytes(key), reason])?;
            self.hand_over(key)?;
        }
        Ok(lock)
    }
}
