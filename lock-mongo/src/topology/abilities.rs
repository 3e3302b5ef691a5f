//! What the protocol needs of a server, for servers that speak MongoDB's protocol and are not
//! MongoDB. They are known by what they refuse, and not by their names.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError};
use futures_util::future::join_all;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::{Error, ErrorKind as DriverKind};

use crate::error::{Effect, translate};

/// Codes with which a server refuses the form of a command: these, and all from [`NAMELESS`] on, by
/// which MongoDB refuses what it has parsed.
const REFUSED_FORMS: [i32; 10] = [2, 9, 14, 40, 59, 72, 115, 168, 238, 303];
const NAMELESS: i32 = 14_000;

/// Returns whether a server refused the form of a command, so that it may lack what the protocol
/// needs.
pub(crate) fn is_refused_form(error: &Error) -> bool {
    let DriverKind::Command(refused) = &*error.kind else { return false };
    REFUSED_FORMS.contains(&refused.code) || refused.code >= NAMELESS
}

/// Tries what the protocol needs, by commands that match and change nothing. Returns the error of a
/// server that lacks something, and `None` if it lacks nothing that is tried.
///
/// # Errors
/// What was not refused, and could not be tried: an outage, or a missing privilege.
pub(super) async fn lacks_something(
    database: &Database,
    collection: &str,
    needs_cluster_time: bool,
    limit: Duration,
) -> Result<Option<LockError>, Error> {
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1);
    let nothing = || doc! { "$in": Bson::Array(Vec::new()) };
    let find = |condition: Document| doc! { "find": collection, "filter": { "_id": nothing(), "$expr": condition } };
    let update = |form: Bson| doc! { "findAndModify": collection, "query": { "_id": nothing() }, "update": form };
    // What also refuses the plain form, refuses for another reason.
    let mut plain = update(doc! { "$set": { "n": 1 } }.into());
    plain.insert("maxTimeMS", limit);
    if database.run_command(plain).await.is_err() {
        return Ok(None);
    }
    let update = update(vec![doc! { "$set": {} }].into());
    let mut needed = vec![
        ("pipeline updates (an array of stages as the update of findAndModify)", update),
        ("the variable $$NOW", find(doc! { "$lt": ["$$NOW", 0] })),
    ];
    if needs_cluster_time {
        needed.push(("the variable $$CLUSTER_TIME", find(doc! { "$lt": ["$$CLUSTER_TIME", 0] })));
    }
    let tries = needed.into_iter().map(async |(what, mut command)| {
        command.insert("maxTimeMS", limit);
        match database.run_command(command).await {
            Ok(_) => Ok(None),
            Err(error) if is_refused_form(&error) => Ok(Some((what, error))),
            Err(error) => Err(error),
        }
    });
    let lacking = join_all(tries).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let lacking: Vec<_> = lacking.into_iter().flatten().collect();
    let Some((_, first)) = lacking.first() else { return Ok(None) };
    let names: Vec<&str> = lacking.iter().map(|(what, _)| *what).collect();
    let all = match &*names {
        [only] => (*only).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
        [] => unreachable!("there is a first one"),
    };
    let message = format!(
        "this server is not MongoDB: it lacks {all}; distlock needs what MongoDB 6.0 and later have. The guide to \
         deployments lists such servers"
    );
    let cause = translate(first, Effect::None);
    let cause = std::error::Error::source(&cause).map_or_else(|| cause.to_string(), ToString::to_string);
    Ok(Some(LockError::new(ErrorKind::Unsupported, message).with_source(cause)))
}
