//! Documents in a lock collection that are no lock records (R22).

use distlock_api::Result;
use mongodb::bson::Bson;

use crate::budget::Budget;
use crate::error::not_a_record;
use crate::lease::{Found, Layout};
use crate::records::Records;

/// Finds the document in the place of a record.
pub(super) async fn found(records: &Records, identity: Bson, budget: Budget) -> Result<Option<Found>> {
    let found = records.find_one::<Found>(Layout::document(identity), records.layout.found(), budget).await?;
    Ok(found.and_then(|found| found.answer))
}

/// Fails if the document in the place of a record is none.
pub(super) async fn refuse(records: &Records, identity: Bson, budget: Budget) -> Result<()> {
    if records.layout.is_within() {
        return Ok(());
    }
    let found = found(records, identity, budget).await?;
    if found.is_some_and(|found| !found.is_record()) { Err(not_a_record()) } else { Ok(()) }
}
