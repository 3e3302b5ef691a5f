//! What the client's user may do, found out by trying it.

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::bson::{Document, doc};

use crate::budget::Budget;
use crate::error::{Effect, NOT_IN_AN_UPSERT, command_code, is_unauthenticated, lacks, translate};
use crate::records::{Absent, Records};

/// The error for a lock that the server refused with the code of a missing privilege. Its text does
/// not name one, but quotes the command; so the privileges are tried, in what is left of the time.
pub(super) async fn explain(
    records: &Records,
    absent: &Absent,
    error: &mongodb::error::Error,
    budget: Budget,
) -> LockError {
    if !is_unauthenticated(error)
        && let Err(named) = check(records, absent, budget).await
        && named.kind() == ErrorKind::PermissionDenied
    {
        return named;
    }
    translate(error, Effect::Write)
}

/// Tries what each lock needs, in ways that find and change nothing. `absent` is what an
/// acquisition makes of a document that is not there.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied) that names the privilege.
pub(super) async fn check(records: &Records, absent: &Absent, budget: Budget) -> Result<()> {
    let nothing = || doc! { "_id": { "$in": [] } };
    let find = async { records.collection.find_one(nothing()).max_time(budget.on_server()).await };
    probe(records, "find", budget, async { find.await.map(drop) }).await?;
    let update = doc! { "query": nothing(), "upsert": false };
    probe(records, "update", budget, change_nothing(records, update, budget)).await?;
    if matches!(absent, Absent::Nothing) {
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
