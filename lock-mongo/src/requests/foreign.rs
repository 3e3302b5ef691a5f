//! Documents in a lock collection that are no records (R22): what stands where a record would.

use distlock_api::Result;
use mongodb::bson::Bson;

use crate::budget::Budget;
use crate::error::not_a_record;
use crate::lease::{Found, Layout};
use crate::records::Records;

/// What stands where a record would.
pub(super) async fn found(records: &Records, identity: Bson, budget: Budget) -> Result<Option<Found>> {
    let found = records.find_one::<Found>(Layout::document(identity), records.layout.found(), budget).await?;
    Ok(found.and_then(|found| found.answer))
}

/// No record was found: because there is nothing, or because the document there is no record.
pub(super) async fn refuse(records: &Records, identity: Bson, budget: Budget) -> Result<()> {
    if records.layout.is_within() {
        return Ok(());
    }
    let found = found(records, identity, budget).await?;
    if found.is_some_and(|found| !found.is_record()) { Err(not_a_record()) } else { Ok(()) }
}
