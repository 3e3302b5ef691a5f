//! The privileges of the client's user, determined by trying them.

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::bson::{Document, doc};

use crate::budget::Budget;
use crate::error::{Effect, NOT_IN_AN_UPSERT, command_code, is_unauthenticated, lacks, translate};
use crate::records::{Absent, Records};

/// Makes the error of an acquisition that the server refused because of a missing privilege. The
/// server's text does not name it, and quotes the command. So the privileges are tried in the time
/// that is left.
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

/// Tries the privileges that each lock needs, by commands that match and change nothing. `absent`
/// decides whether `insert` is one of them.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied), which names the privilege.
pub(super) async fn check(records: &Records, absent: &Absent, budget: Budget) -> Result<()> {
    let nothing = || doc! { "_id": { "$in": [] } };
    let find = async { records.collection.find_one(nothing()).max_time(budget.on_server()).await };
    probe(records, "find", budget, async { find.await.map(drop) }).await?;
    let update = doc! { "query": nothing(), "upsert": false };
    probe(records, "update", budget, change_nothing(records, update, budget)).await?;
    if matches!(absent, Absent::Nothing) {
        return Ok(());
    }
    // The server refuses this upsert with an error of its own, but only if the user may insert.
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
