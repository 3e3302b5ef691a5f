//! The removal of records by the TTL monitor.

use std::time::Duration;

use distlock_conformance::FixtureError;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};

use super::super::set::POLL;

/// Tokens continue after a sweep because the server's clock has advanced since the record was last
/// used (R6), by more than its resolution.
const UNUSED: Duration = Duration::from_secs(2);
/// The TTL monitor runs every second, and may have to wait for the disk.
const LIMIT: Duration = Duration::from_secs(60);
/// An index keeps a record for at least one hour after its expiry.
const OLDER_MS: i64 = 2 * 60 * 60 * 1_000;

/// Makes all records older, and waits until they are removed.
pub(in super::super) async fn sweep(records: &Collection<Document>) -> Result<String, FixtureError> {
    sleep(UNUSED).await;
    let older = doc! { "$set": { "expiresAt": { "$subtract": ["$$NOW", OLDER_MS] } } };
    let aged = records.update_many(doc! {}, vec![older]).await?.matched_count;
    if aged == 0 {
        return Err("there are no records to sweep".into());
    }
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = records.count_documents(doc! {}).await?;
        if left == 0 {
            return Ok(format!("the TTL monitor removed {aged} records"));
        }
        if Instant::now() > deadline {
            return Err(format!("the TTL monitor has left {left} of {aged} records after {LIMIT:?}").into());
        }
        sleep(POLL).await;
    }
}
