//! Lists, inspects, releases and purges locks.

use std::future::ready;
use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::style::yield_on_error;
use distlock_api::{
    ErrorKind, ForcedRelease, LockAdmin, LockError, LockEvents, LockFilter, LockInfo, LockKey, Result, async_trait,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::PostgresStore;
use crate::answers;
use crate::calls::Request;
use crate::clock::micros;
use crate::error::Effect;
use crate::event;
use crate::listen::listen;
use crate::names::end_of_prefix;
use crate::statement::Sql;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many locks one statement releases, and how many records one statement of a purge looks at.
/// Their row locks are held until it has ended.
const AT_ONCE: i64 = 100;

impl PostgresStore {
    /// Removes the records of keys that were neither held nor waited for within the time `unused`,
    /// and returns how many there were. `unused` is at least a minute. Tokens continue to grow. A
    /// history is removed with its record.
    ///
    /// It works in steps of 100 records. After an error the steps before it stay done.
    ///
    /// Records are not removed by themselves. Call this from time to time, such as once an hour
    /// with an `unused` of an hour, or run the same [as SQL](crate#purging).
    ///
    /// # Errors
    /// When the store cannot be reached.
    pub async fn purge(&self, unused: Duration) -> Result<u64> {
        const LEAST: Duration = Duration::from_secs(60);
        let unused = micros(unused.max(LEAST));
        let (mut purged, mut after) = (0, None);
        loop {
            let rows = self.query(Sql::Purge, &[&after, &AT_ONCE, &unused], Effect::Write).await?;
            purged += answers::column::<i64>(&rows, "removed")?.unsigned_abs();
            after = answers::column::<Option<Vec<u8>>>(&rows, "last")?;
            if after.is_none() {
                return Ok(purged);
            }
        }
    }

    async fn query(&self, sql: Sql, params: &[&(dyn ToSql + Sync)], effect: Effect) -> Result<Vec<Row>> {
        self.rows(Request { sql, params, effect, timeout: PATIENCE, claim: None }).await
    }
}

/// A filter as the bounds of its keys, and the owner's bytes.
fn bounds(filter: &LockFilter) -> (&[u8], Option<Vec<u8>>, Option<&[u8]>) {
    (filter.prefix.as_bytes(), end_of_prefix(&filter.prefix), filter.owner.as_deref().map(str::as_bytes))
}

#[async_trait]
impl LockAdmin for PostgresStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let rows = self.query(Sql::Inspect, &[&key.as_str().as_bytes()], Effect::None).await?;
        rows.first().map(answers::info).transpose()
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let (key, reason) = (key.as_str().as_bytes(), reason.as_bytes());
        let rows = self.query(Sql::ForceRelease, &[&key, &reason], Effect::Write).await?;
        rows.first().map(answers::info).transpose()
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let (from, until, owner) = bounds(filter);
        let after = after.map(|key| key.as_str().as_bytes());
        let limit = i64::try_from(limit.get()).unwrap_or(i64::MAX);
        let rows = self.query(Sql::Page, &[&from, &until, &after, &owner, &limit], Effect::None).await?;
        rows.iter().map(answers::info).collect()
    }

    /// Listens on a connection of its own. When that fails, the stream ends with an error. Needs
    /// [`lock_events`](crate::PostgresStoreBuilder::lock_events).
    async fn watch(&self) -> Result<LockEvents> {
        let has_events: bool = answers::value(&self.query(Sql::HasLockEvents, &[], Effect::None).await?)?;
        if !has_events {
            let message = "this database does not report lock events: build a store with `lock_events`";
            return Err(LockError::new(ErrorKind::Unsupported, message));
        }
        let channels = [self.schema.channel_of_locks()];
        listen(&*self.dial, &self.config, &channels, event::parse_lock_event).await
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        yield_on_error(ready(filter.ensure_restricted())).await?;
        let ((from, until, owner), reason) = (bounds(filter), reason.as_bytes());
        let (mut released, mut after) = (0, None);
        loop {
            let params: [&(dyn ToSql + Sync); 6] = [&from, &until, &after, &owner, &reason, &AT_ONCE];
            let rows = self.query(Sql::ForceRange, &params, Effect::Write).await?;
            released += answers::column::<i64>(&rows, "released")?.unsigned_abs();
            if answers::column::<i64>(&rows, "seen")? < AT_ONCE {
                return Ok(released);
            }
            after = answers::column::<Option<Vec<u8>>>(&rows, "last")?;
        }
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        let rows = self.query(Sql::History, &[&key.as_str().as_bytes()], Effect::None).await?;
        rows.iter().map(answers::forced).collect()
    }
}
