//! Installs the schema. The first store that finds it missing or older creates it; other stores
//! only check it.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Result};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Error};

use crate::connection::{Dial, session};
use crate::error::{Effect, of_request};
use crate::error::{of_connecting, unanswered};
use crate::names::SchemaName;
use crate::statement::Sql;

/// The version of the schema that these files create.
const VERSION: i32 = 2;
const FILES: [&str; 7] = [
    include_str!("sql/schema.sql"),
    include_str!("sql/common.sql"),
    include_str!("sql/push.sql"),
    include_str!("sql/acquire.sql"),
    include_str!("sql/release.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/admin.sql"),
];
/// Created only for a store with `lock_events`.
const LOCK_EVENTS: &str = include_str!("sql/lock_events.sql");
/// PostgreSQL 14, whose functions and settings the store uses.
const OLDEST_SERVER: i32 = 140_000;
const SERVER: &str = "SELECT current_setting('server_version_num')::int, current_setting('fsync') = 'on'";

/// What a store requires of the server and of the schema.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) accepts_fsync_off: bool,
    /// Whether the database reports lock events.
    pub(crate) lock_events: bool,
}

/// Makes sure that the server can be used and that the schema is there.
///
/// The connection is not from the pool. If the call is dropped, the connection closes, and the
/// server rolls back.
pub(crate) async fn install(
    dial: &dyn Dial,
    config: &Config,
    schema: &SchemaName,
    options: Options,
    limit: Duration,
) -> Result<()> {
    let work = async {
        let client = session(dial, config, None).await.map_err(|error| of_connecting(&error))?.client;
        let refused = |error: Error| of_request(&error, Effect::None);
        let server = client.query_one(SERVER, &[]).await.map_err(refused)?;
        check_server(server.get(0), server.get::<_, bool>(1) || options.accepts_fsync_off)?;
        if !is_there(installed(&client, schema).await.map_err(refused)?, schema)? {
            let version = format!(
                "INSERT INTO {{schema}}.meta (version) VALUES ({VERSION}) \
                 ON CONFLICT (only_row) DO UPDATE SET version = greatest(meta.version, excluded.version)"
            );
            create(&client, schema, &[&FILES.concat(), &version]).await.map_err(refused)?;
        }
        if options.lock_events && !has_lock_events(&client, schema).await.map_err(refused)? {
            create(&client, schema, &[LOCK_EVENTS]).await.map_err(refused)?;
        }
        Ok(())
    };
    timeout(limit, work).await.unwrap_or_else(|_| Err(unanswered(limit, Effect::None)))
}

fn check_server(version: i32, keeps_commits: bool) -> Result<()> {
    let unsupported = |message: String| Err(LockError::new(ErrorKind::Unsupported, message));
    if version < OLDEST_SERVER {
        return unsupported(format!("PostgreSQL 14 or later is needed, and this is version {}", version / 10_000));
    }
    if !keeps_commits {
        return unsupported("the server runs with fsync=off: a power failure would lose locks".to_owned());
    }
    Ok(())
}

/// The installed version; `None` if there is none.
async fn installed(client: &Client, schema: &SchemaName) -> Result<Option<i32>, Error> {
    let is_there = "SELECT to_regclass($1) IS NOT NULL";
    if !client.query_one(is_there, &[&format!("{schema}.meta")]).await?.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    let version = client.query_opt(&schema.fill_in("SELECT version FROM {schema}.meta"), &[]).await?;
    version.map(|row| row.try_get(0)).transpose()
}

/// Whether this version is the one that is installed.
fn is_there(installed: Option<i32>, schema: &SchemaName) -> Result<bool> {
    match installed {
        Some(newer) if newer > VERSION => Err(LockError::new(
            ErrorKind::Unsupported,
            format!("the schema {schema} has version {newer}, and this program supports versions up to {VERSION}"),
        )),
        installed => Ok(installed == Some(VERSION)),
    }
}

async fn has_lock_events(client: &Client, schema: &SchemaName) -> Result<bool, Error> {
    client.query_one(&schema.fill_in(Sql::HasLockEvents.template()), &[]).await?.try_get(0)
}

/// Creates parts of the schema in one transaction. Stores that do so at the same moment take turns.
async fn create(client: &Client, schema: &SchemaName, parts: &[&str]) -> Result<(), Error> {
    let turn = format!("SELECT pg_advisory_xact_lock(hashtextextended('{}', 0))", schema.channel());
    let begin = ["BEGIN; SET LOCAL client_min_messages = warning", &turn];
    let script = [&begin, parts, &["COMMIT"]].concat().join(";\n");
    client.batch_execute(&schema.fill_in(&script)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_old_or_forget_are_refused() {
        assert!(check_server(150_014, true).is_ok());
        for error in [check_server(130_011, true), check_server(150_014, false)] {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn a_newer_schema_is_refused_and_an_older_one_replaced() {
        let schema = SchemaName::new("locks").unwrap();
        assert!(!is_there(None, &schema).unwrap());
        assert!(!is_there(Some(VERSION - 1), &schema).unwrap());
        assert!(is_there(Some(VERSION), &schema).unwrap());
        assert_eq!(is_there(Some(VERSION + 1), &schema).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn all_that_a_lock_depends_on_is_logged_by_the_server() {
        assert!(FILES.iter().all(|file| !file.to_uppercase().contains("UNLOGGED")));
    }
}
