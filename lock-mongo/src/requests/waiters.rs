//! The number of waiters of a key.

use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock_api::Result;
use distlock_engine::store::Claim;

use crate::budget::Budget;
use crate::claim::claim_state;
use crate::lease::Waiters;
use crate::records::Records;

/// Counts the live tickets of the claim's key.
pub(crate) async fn waiters(records: &Records, claim: &Claim, timeout: Duration) -> Result<u32> {
    let budget = Budget::new(timeout);
    let layout = &records.layout;
    let (filter, projection) = (layout.record(layout.identity(claim.key())?), layout.waiters());
    let found = records.find_one::<Waiters>(filter, projection, budget).await;
    let found = found.map_err(|error| error.with_key(claim.key().clone()))?;
    let waiters = found.and_then(|found| found.answer).map_or(0, |Waiters { waiters }| waiters);
    if waiters > 0 {
        claim_state(claim).was_alone.store(false, Ordering::Relaxed);
    }
    Ok(waiters)
}
