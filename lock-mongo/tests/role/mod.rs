//! The least-privilege role, in the words of the guide `src/guide/privileges.md`.

use distlock_mongo::mongodb::Client;
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::error::Result;

/// The privileges on a lock collection.
pub(crate) const OF_RECORDS: [&str; 6] = ["find", "insert", "update", "createIndex", "changeStream", "listIndexes"];
/// The privileges on a collection of documents with locks, without a default document.
pub(crate) const OF_DOCUMENTS: [&str; 4] = ["find", "update", "changeStream", "listIndexes"];
/// The privileges on the database, for one change stream of all collections.
pub(crate) const OF_DATABASE: [&str; 2] = ["find", "changeStream"];

pub(crate) const PASSWORD: &str = "secret";

/// Creates a user whose role has these privileges, each on a collection of the database; `""` is
/// the database itself.
pub(crate) async fn create_user(
    administrator: &Client,
    user: &str,
    database: &str,
    privileges: &[(&str, Vec<&str>)],
) -> Result<()> {
    let privileges = privileges.iter().map(|(collection, actions)| {
        doc! { "resource": { "db": database, "collection": *collection }, "actions": actions.clone() }
    });
    let (privileges, none): (Vec<Document>, Vec<Document>) = (privileges.collect(), Vec::new());
    for command in [
        doc! { "createRole": user, "privileges": privileges, "roles": none },
        doc! { "createUser": user, "pwd": PASSWORD, "roles": [user] },
    ] {
        administrator.database("admin").run_command(command).await?;
    }
    Ok(())
}
