//! The privileges of the client's user, determined by trying them.

use distlock_api::{ErrorKind, LockError, Result};
use mongodb::bson::{Document, doc};

use crate::budget::Budget;
use crate::error::{Effect, NOT_IN_AN_UPSERT, command_code, is_unauthenticated, is_unauthorized, lacks, translate};
use crate::lease::Source;
use crate::records::{IfMissing, Records};
use crate::topology::unselected;

/// Makes the error of an acquisition that the server refused because of a missing privilege. The
/// server's text does not name it, and quotes the command. So the privileges are tried in the time
/// that is left.
pub(crate) async fn explain(
    records: &Records,
    if_missing: &IfMissing,
    error: &mongodb::error::Error,
    budget: Budget,
) -> LockError {
    missing(records, if_missing, error, budget).await.unwrap_or_else(|| translate(error, Effect::Write))
}

/// Returns the error that names the privilege without which a command was refused. `None` if it was
/// refused for another reason.
pub(super) async fn missing(
    records: &Records,
    if_missing: &IfMissing,
    error: &mongodb::error::Error,
    budget: Budget,
) -> Option<LockError> {
    if !is_unauthorized(error) || is_unauthenticated(error) {
        return None;
    }
    check(records, if_missing, budget).await.err().filter(|named| named.kind() == ErrorKind::PermissionDenied)
}

/// Tries the privileges that each lock needs, by commands that match and change nothing.
/// `if_missing` decides whether `insert` is one of them.
///
/// # Errors
/// [`PermissionDenied`](ErrorKind::PermissionDenied), which names the privilege.
pub(crate) async fn check(records: &Records, if_missing: &IfMissing, budget: Budget) -> Result<()> {
    let nothing = || doc! { "_id": { "$in": [] } };
    let find = async { records.collection.find_one(nothing()).max_time(budget.on_server()).await };
    probe(records, "find", budget, async { find.await.map(drop) }).await?;
    let update = doc! { "query": nothing(), "upsert": false };
    probe(records, "update", budget, change_nothing(records, update, budget)).await?;
    if matches!(if_missing, IfMissing::Fail) {
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
    // What every lock needs, so that a server without it is noticed.
    let mut times = doc! { "now": "$$NOW" };
    if records.topology.known().is_some_and(|deployment| deployment.clock() == Source::ClusterTime) {
        times.insert("clock", "$$CLUSTER_TIME");
    }
    let mut command = doc! { "findAndModify": records.collection.name(), "update": [{ "$set": times }] };
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
    let Err(error) = records.attempt(budget, Effect::None, call).await? else { return Ok(()) };
    let known = match unselected(records.database.client(), &error) {
        Some(unselected) => Some(unselected),
        None => records.topology.lacking(records.kept(), &error, budget.left()).await,
    };
    Err(known.unwrap_or_else(|| lacks(privilege, &records.collection.namespace().to_string(), &error)))
}
