//! Verifying a connection before the first lock needs it.

use distlock_api::{ErrorKind, LockError, Result};

use crate::budget::Budget;
use crate::calls::privileges;
use crate::pool::pool_size;
use crate::records::Records;

/// Determines the deployment, tries the privileges, and creates the indexes.
pub(crate) async fn prepare(records: &Records) -> Result<()> {
    check_calls_at_once(records)?;
    let budget = Budget::new(records.request_timeout);
    records.deployment_within(budget).await?;
    privileges::check(records, &records.if_missing, budget).await?;
    records.indexes.create(&records.collection, &records.layout, budget.left()).await
}

/// More calls than connections would wait in the driver's own line.
fn check_calls_at_once(records: &Records) -> Result<()> {
    let pool =
        records.resources().map_or_else(|| pool_size(records.database.client()), |resources| resources.pool.size);
    let Some(calls) = records.calls_at_once.filter(|calls| calls.get() > pool) else { return Ok(()) };
    let message = format!(
        "calls_at_once is {calls}, but the client's pool has {pool} connections (maxPoolSize): the other calls \
         would wait inside the driver, where renewals stand behind acquisitions. Lower calls_at_once, or raise \
         maxPoolSize above {calls}, so that the change stream and the application have connections, too"
    );
    Err(LockError::new(ErrorKind::InvalidOptions, message))
}
