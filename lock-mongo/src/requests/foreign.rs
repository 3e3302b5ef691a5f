//! Documents in a lock collection that are no lock records (R22).

use distlock_api::{LockError, Result};
use mongodb::bson::Bson;

use crate::budget::Budget;
use crate::error::{not_a_record, too_long};
use crate::lease::{Found, Layout};
use crate::records::Records;

/// Finds the document in the place of a record.
pub(super) async fn found(records: &Records, identity: Bson, budget: Budget) -> Result<Option<Found>> {
    let found = records.find_one::<Found>(Layout::document(identity), records.layout.found(), budget).await?;
    Ok(found.and_then(|found| found.answer))
}

/// Fails if the document in the place of a record is none. In an application's collection a
/// document without a lock is no mistake.
pub(super) async fn refuse(records: &Records, identity: Bson, budget: Budget) -> Result<()> {
    let Some(found) = found(records, identity, budget).await? else { return Ok(()) };
    let may_be_other = records.layout.is_within() && found.too_long().is_none();
    if found.is_record() || may_be_other { Ok(()) } else { Err(refusal(&found)) }
}

/// Makes the error of a document in the place of a record that is none.
pub(super) fn refusal(found: &Found) -> LockError {
    found.too_long().map_or_else(not_a_record, too_long)
}
