//! The kind of deployment, and whether locks can be kept in it.

use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockError, Phase, Result, contained};
use futures_util::TryStreamExt;
use futures_util::future::join;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::error::Error;
use mongodb::options::Collation;
use mongodb::{Client, Database, IndexModel};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::sleep;

mod reach;

use reach::Servers;
pub(crate) use reach::{Reachability, primary_replaced};

use crate::error::{
    Effect, NAMESPACE_NOT_FOUND, UNAUTHORIZED, command_code, translate, unanswered, unanswered_because,
};
use crate::lease::Source;
use crate::numbers::millis;
use crate::server_clock::ServerClock;

/// MongoDB 6.0.
const OLDEST_WIRE_VERSION: i32 = 17;

/// A deployment, as far as the protocol depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    ReplicaSet,
    Sharded,
    Standalone,
}

impl Deployment {
    /// Returns the source of tokens: `$$CLUSTER_TIME` is an error on a standalone.
    pub(crate) fn clock(self) -> Source {
        match self {
            Self::ReplicaSet | Self::Sharded => Source::ClusterTime,
            Self::Standalone => Source::WallTime,
        }
    }

    /// Whether the writes of a session can be numbered, so that the server refuses one that arrives
    /// after a later one (R11).
    pub(crate) fn numbers_writes(self) -> bool {
        !matches!(self, Self::Standalone)
    }
}

/// The deployment, determined by the first request and then kept.
#[derive(Debug, Default)]
pub(crate) struct Topology(OnceCell<Deployment>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hello {
    set_name: Option<String>,
    msg: Option<String>,
    #[serde(default)]
    is_writable_primary: bool,
    /// True in a member of a replica set that has not been initiated yet.
    #[serde(rename = "isreplicaset", default)]
    is_replica_set: bool,
    #[serde(default)]
    max_wire_version: i32,
    local_time: Option<DateTime>,
}

impl Topology {
    pub(crate) fn known(&self) -> Option<Deployment> {
        self.0.get().copied()
    }

    /// Returns the deployment, if locks can be kept in this collection. A failure is not kept, and
    /// has changed nothing. The server's answer also sets the clock.
    pub(crate) async fn of(
        &self,
        database: &Database,
        collection: &str,
        clock: &ServerClock,
        limit: Duration,
    ) -> Result<Deployment> {
        if let Some(deployment) = self.known() {
            return Ok(deployment);
        }
        // The driver's own limit for choosing a server may be longer than this request's.
        tokio::select! {
            biased;
            found = self.0.get_or_try_init(|| query(database, collection, clock, limit)) => found.copied(),
            servers = reach::unusable_for_good(database.client()) => Err(unusable(servers)),
            () = sleep(limit) => Err(unusable(Servers::of(database.client()))),
        }
    }
}

/// Waits until the driver has a server to send a write to. Nothing is sent before that, so that the
/// outcome of the write is not unknown if there is none.
pub(crate) async fn server(client: &Client, reachability: &Reachability, limit: Duration) -> Result<()> {
    tokio::select! {
        biased;
        () = reachability.server(client) => Ok(()),
        servers = reach::unusable_for_good(client) => Err(unusable(servers)),
        () = sleep(limit) => Err(unusable(Servers::of(client))),
    }
}

/// Makes the error of an operation that the client's own limit ended. It names the servers that
/// cannot be used, as far as the driver knows.
pub(crate) fn unanswered_by(client: &Client, limit: Duration, effect: Effect) -> LockError {
    unanswered_with(Servers::of(client), limit, effect)
}

/// Makes the error of a call whose caller leaves before the answer. If no server takes writes, the
/// next call waits for one, and is not sent without it.
pub(crate) fn left_unanswered(client: &Client, reachability: &Reachability, waited: Duration) -> LockError {
    let servers = reachability.servers(client);
    if !servers.can_serve() {
        reachability.unanswered();
    }
    let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
    unanswered_with(servers, waited, Effect::Write)
}

fn unanswered_with(servers: Servers, limit: Duration, effect: Effect) -> LockError {
    match servers.trouble() {
        Some(trouble) => unanswered_because(limit, effect, &format!(": {trouble}")).with_source(servers),
        None => unanswered(limit, effect),
    }
}

/// Makes the error of a deployment none of whose servers could be used in time.
fn unusable(servers: Servers) -> LockError {
    let because =
        |what: &str| servers.trouble().map_or_else(|| what.to_owned(), |trouble| format!("{what}: {trouble}"));
    let unavailable = |what| LockError::new(ErrorKind::Unavailable, because(what)).with_phase(Phase::Connect);
    let error = if servers.refuse_credentials() {
        LockError::new(ErrorKind::PermissionDenied, because("MongoDB refused the credentials"))
    } else if servers.fail_tls() {
        unavailable("no secure connection to MongoDB is possible").with_disposition(Disposition::Permanent)
    } else {
        unavailable("no MongoDB server can be used")
    };
    error.with_source(servers)
}

async fn query(database: &Database, collection: &str, clock: &ServerClock, limit: Duration) -> Result<Deployment> {
    let (hello, collation) = join(hello(database, clock), collation(database, collection, limit)).await;
    let deployment = classify(&hello?)?;
    match collation? {
        None => Ok(deployment),
        Some(collation) => Err(collated(&format!("{}.{collection}", database.name()), &collation)),
    }
}

async fn hello(database: &Database, clock: &ServerClock) -> Result<Hello> {
    let reading = clock.reading();
    let reply = database.run_command(doc! { "hello": 1 }).await;
    let reply = reply.map_err(|error| translate(&error, Effect::None))?;
    let hello: Hello = mongodb::bson::from_document(reply).map_err(|error| {
        let message = "the answer to `hello` cannot be read: is this a MongoDB server?";
        LockError::new(ErrorKind::Corrupt, message).with_source(error)
    })?;
    if let Some(now) = hello.local_time {
        reading.shows(millis(now.timestamp_millis()));
    }
    Ok(hello)
}

/// Returns the default collation of the collection, as its index on `_id` has it. `None` if it is
/// `simple`, or if the user lacks the privilege `listIndexes`.
async fn collation(database: &Database, collection: &str, limit: Duration) -> Result<Option<Collation>> {
    let records = database.collection::<Document>(collection);
    let list = async { records.list_indexes().max_time(limit).await?.try_collect().await };
    let listed: Result<Vec<IndexModel>, Error> = list.await;
    match listed {
        Ok(indexes) => {
            let on_id = indexes.into_iter().find(|index| index.keys.keys().eq(["_id"]));
            let collation = on_id.and_then(|index| index.options?.collation);
            Ok(collation.filter(|collation| collation.locale != "simple"))
        }
        Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(None),
        Err(error) if command_code(&error) == Some(UNAUTHORIZED) => {
            contained(|| {
                tracing::debug!(%error, collection, "the privilege listIndexes is missing: the collation is not checked");
            });
            Ok(None)
        }
        Err(error) => Err(translate(&error, Effect::None)),
    }
}

fn collated(namespace: &str, collation: &Collation) -> LockError {
    let strength = collation.strength.map_or_else(String::new, |strength| format!(", strength {strength:?}"));
    let message = format!(
        "the collection {namespace} has the default collation {:?}{strength}: keys that it considers equal would be \
         one lock (C20). Use a collection without a collation",
        collation.locale
    );
    LockError::new(ErrorKind::Unsupported, message)
}

fn classify(hello: &Hello) -> Result<Deployment> {
    if hello.max_wire_version < OLDEST_WIRE_VERSION {
        let message = format!(
            "the server is too old: MongoDB 6.0 or later is needed (wire version {OLDEST_WIRE_VERSION}; this server has \
             {})",
            hello.max_wire_version
        );
        return Err(LockError::new(ErrorKind::Unsupported, message));
    }
    if hello.is_replica_set && hello.set_name.is_none() {
        let message = "the server belongs to a replica set that has not been initiated yet: run `replSetInitiate`";
        return Err(LockError::new(ErrorKind::Unavailable, message));
    }
    if hello.set_name.is_some() && !hello.is_writable_primary {
        let message = "the server is not the primary of its replica set. If the connection string has \
                       `directConnection=true`, or names one member, name the set (`replicaSet=…`) instead";
        return Err(LockError::new(ErrorKind::Unavailable, message));
    }
    Ok(if hello.msg.as_deref() == Some("isdbgrid") {
        Deployment::Sharded
    } else if hello.set_name.is_some() {
        Deployment::ReplicaSet
    } else {
        Deployment::Standalone
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(set_name: Option<&str>, msg: Option<&str>, max_wire_version: i32) -> Hello {
        let (set_name, msg) = (set_name.map(Into::into), msg.map(Into::into));
        Hello { set_name, msg, is_writable_primary: true, is_replica_set: false, max_wire_version, local_time: None }
    }

    #[test]
    fn a_member_of_an_uninitiated_set_is_unavailable() {
        let ghost = Hello { is_replica_set: true, ..hello(None, None, 17) };
        let error = classify(&ghost).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    }

    #[test]
    fn a_secondary_is_unavailable() {
        let secondary = Hello { is_writable_primary: false, ..hello(Some("rs0"), None, 17) };
        let error = classify(&secondary).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        assert!(error.to_string().contains("replicaSet"), "{error}");
    }

    #[test]
    fn deployments_are_distinguished() {
        assert_eq!(classify(&hello(Some("rs0"), None, 17)).unwrap(), Deployment::ReplicaSet);
        assert_eq!(classify(&hello(None, Some("isdbgrid"), 21)).unwrap(), Deployment::Sharded);
        assert_eq!(classify(&hello(None, None, 25)).unwrap(), Deployment::Standalone);
    }

    #[test]
    fn the_error_of_an_old_server_names_the_needed_version() {
        let error = classify(&hello(Some("rs0"), None, 13)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("MongoDB 6.0"), "{error}");
    }
}
