//! What the client's user may do, found out by trying it.

use distlock_api::Result;
use mongodb::bson::{Document, doc};

use crate::budget::Budget;
use crate::error::{Effect, NOT_IN_AN_UPSERT, command_code, lacks};
use crate::records::{Absent, Records};

/// Tries what each lock needs, in ways that find and change nothing.
///
/// # Errors
/// [`PermissionDenied`](distlock_api::ErrorKind::PermissionDenied) that names the privilege.
pub(super) async fn check(records: &Records, budget: Budget) -> Result<()> {
    let nothing = || doc! { "_id": { "$in": [] } };
    let find = async { records.collection.find_one(nothing()).max_time(budget.on_server()).await };
    probe(records, "find", budget, async { find.await.map(drop) }).await?;
    let update = doc! { "query": nothing(), "upsert": false };
    probe(records, "update", budget, change_nothing(records, update, budget)).await?;
    if matches!(records.absent, Absent::Nothing) {
        return Ok(());
    }
    // An upsert that the server refuses, but only to those who may make one.
    let upsert = doc! { "query": { "$expr": true }, "upsert": true };
    let refused = async {
        match change_nothing(records, upsert, budget).await {
            Err(error) if command_code(&error) == Some(NOT_IN_AN_UPSERT) => Ok(()),
            other => other,
        }
    };
    probe(records, "insert", budget, refused).await
}

async fn change_nothing(records: &Records, how: Document, budget: Budget) -> mongodb::error::Result<()> {
    let mut command = doc! { "findAndModify": records.collection.name(), "update": [{ "$set": {} }] };
    command.extend(how);
    command.insert("maxTimeMS", budget.max_time_ms());
    records.database.run_command(command).await.map(drop)
}

async fn probe(
    records: &Records,
    privilege: &str,
    budget: Budget,
    call: impl Future<Output = mongodb::error::Result<()>>,
) -> Result<()> {
    let answer = records.attempt(budget, Effect::None, call).await?;
    answer.map_err(|error| lacks(privilege, &records.collection.namespace().to_string(), &error))
}
