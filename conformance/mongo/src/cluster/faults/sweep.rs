//! Records that the TTL monitor removes.

use std::time::Duration;

use distlock_conformance::FixtureError;
use mongodb::Collection;
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};

use super::super::set::POLL;

/// Tokens go on after a sweep because the server's clock has moved on since the record was last used (R6): by more than its resolution.
const UNUSED: Duration = Duration::from_secs(2);
/// The TTL monitor comes every second, and may have to wait for the disk.
const LIMIT: Duration = Duration::from_secs(60);
/// The shortest that an index may leave to a record after its expiry is an hour.
const OLDER_MS: i64 = 2 * 60 * 60 * 1_000;

/// Makes all records older, and waits until they are gone.
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
            return Ok(format!("{aged} records were swept by the TTL monitor"));
        }
        if Instant::now() > deadline {
            return Err(format!("of {aged} records the TTL monitor has left {left} after {LIMIT:?}").into());
        }
        sleep(POLL).await;
    }
}
