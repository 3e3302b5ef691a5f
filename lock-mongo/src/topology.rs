//! What kind of deployment the database is in.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use futures_util::TryStreamExt;
use futures_util::future::join;
use mongodb::bson::{Document, doc};
use mongodb::error::Error;
use mongodb::options::Collation;
use mongodb::{Client, Database, IndexModel};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::sleep;

mod reach;

pub(crate) use reach::Reachability;
use reach::Seen;

use crate::error::{
    Effect, NAMESPACE_NOT_FOUND, UNAUTHORIZED, command_code, translate, unanswered, unanswered_because,
};
use crate::lease::Source;

/// MongoDB 6.0.
const OLDEST_WIRE_VERSION: i32 = 17;

/// A deployment, as far as the protocol cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    ReplicaSet,
    Sharded,
    Standalone,
}

impl Deployment {
    /// Where tokens come from: `$$CLUSTER_TIME` is an error on a standalone.
    pub(crate) fn clock(self) -> Source {
        match self {
            Self::ReplicaSet | Self::Sharded => Source::ClusterTime,
            Self::Standalone => Source::WallTime,
        }
    }

    /// Whether the writes of a session can be numbered, so that the server refuses one that comes
    /// after its successor (R11).
    pub(crate) fn numbers_writes(self) -> bool {
        !matches!(self, Self::Standalone)
    }
}

/// Found out with the first request, and kept once it is known.
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
}

impl Topology {
    pub(crate) fn known(&self) -> Option<Deployment> {
        self.0.get().copied()
    }

    /// The deployment, if locks can be kept in this collection. A failure is not remembered, and
    /// nothing has been changed then.
    pub(crate) async fn of(&self, database: &Database, collection: &str, limit: Duration) -> Result<Deployment> {
        if let Some(deployment) = self.known() {
            return Ok(deployment);
        }
        // The driver's own limit for choosing a server may be longer than this request's.
        tokio::select! {
            biased;
            found = self.0.get_or_try_init(|| ask(database, collection, limit)) => found.copied(),
            seen = reach::hopeless(database.client()) => Err(unusable(seen)),
            () = sleep(limit) => Err(unusable(Seen::by(database.client()))),
        }
    }
}

/// Waits until the driver has a server to send a write to. What it sends nothing for is never of
/// unknown outcome.
pub(crate) async fn server(client: &Client, reachability: &Reachability, limit: Duration) -> Result<()> {
    tokio::select! {
        biased;
        () = reachability.server(client) => Ok(()),
        seen = reach::hopeless(client) => Err(unusable(seen)),
        () = sleep(limit) => Err(unusable(Seen::by(client))),
    }
}

/// The client's own limit ran out while an operation was under way. Says what the driver knows of
/// its servers, if some cannot be used.
pub(crate) fn unanswered_by(client: &Client, limit: Duration, effect: Effect) -> LockError {
    let seen = Seen::by(client);
    match seen.trouble() {
        Some(trouble) => unanswered_because(limit, effect, &format!(": {trouble}")).with_source(seen),
        None => unanswered(limit, effect),
    }
}

/// The error for servers none of which could be used in time.
fn unusable(seen: Seen) -> LockError {
    let says = |what: &str| seen.trouble().map_or_else(|| what.to_owned(), |trouble| format!("{what}: {trouble}"));
    let error = if seen.is_denial() {
        LockError::new(ErrorKind::PermissionDenied, says("MongoDB refused the credentials"))
    } else {
        LockError::new(ErrorKind::Unavailable, says("no MongoDB server can be used")).with_phase(Phase::Connect)
    };
    error.with_source(seen)
}

async fn ask(database: &Database, collection: &str, limit: Duration) -> Result<Deployment> {
    let (hello, collation) = join(hello(database), collation(database, collection, limit)).await;
    let deployment = classify(&hello?)?;
    match collation? {
        None => Ok(deployment),
        Some(collation) => Err(collated(&format!("{}.{collection}", database.name()), &collation)),
    }
}

async fn hello(database: &Database) -> Result<Hello> {
    let reply = database.run_command(doc! { "hello": 1 }).await;
    let reply = reply.map_err(|error| translate(&error, Effect::None))?;
    mongodb::bson::from_document(reply)
        .map_err(|error| LockError::new(ErrorKind::Corrupt, "the server's hello cannot be read").with_source(error))
}

/// The collection's default collation, as the index of its identities has it; none if that is
/// `simple`, or if the user may not look.
async fn collation(database: &Database, collection: &str, limit: Duration) -> Result<Option<Collation>> {
    let records = database.collection::<Document>(collection);
    let list = async { records.list_indexes().max_time(limit).await?.try_collect().await };
    let listed: Result<Vec<IndexModel>, Error> = list.await;
    match listed {
        Ok(indexes) => {
            let of_identities = indexes.into_iter().find(|index| index.keys.keys().eq(["_id"]));
            let collation = of_identities.and_then(|index| index.options?.collation);
            Ok(collation.filter(|collation| collation.locale != "simple"))
        }
        Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(None),
        Err(error) if command_code(&error) == Some(UNAUTHORIZED) => {
            tracing::debug!(%error, collection, "without the privilege listIndexes the collation is not checked");
            Ok(None)
        }
        Err(error) => Err(translate(&error, Effect::None)),
    }
}

fn collated(namespace: &str, collation: &Collation) -> LockError {
    let strength = collation.strength.map_or_else(String::new, |strength| format!(", strength {strength:?}"));
    let message = format!(
        "the collection {namespace} has the default collation {:?}{strength}: keys that it calls equal would be one \
         lock (C20). Name a collection without a collation",
        collation.locale
    );
    LockError::new(ErrorKind::Unsupported, message)
}

fn classify(hello: &Hello) -> Result<Deployment> {
    if hello.max_wire_version < OLDEST_WIRE_VERSION {
        let message = format!(
            "the server is too old: MongoDB 6.0 or later is needed (wire version {OLDEST_WIRE_VERSION}, this one has {})",
            hello.max_wire_version
        );
        return Err(LockError::new(ErrorKind::Unsupported, message));
    }
    if hello.is_replica_set && hello.set_name.is_none() {
        let message = "the server is a member of a replica set that has not been initiated yet";
        return Err(LockError::new(ErrorKind::Unavailable, message));
    }
    if hello.set_name.is_some() && !hello.is_writable_primary {
        let message = "the server is not the primary of its replica set. If the connection string says \
                       `directConnection=true`, or names one member: name the set (`replicaSet=…`) instead";
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
        Hello { set_name, msg, is_writable_primary: true, is_replica_set: false, max_wire_version }
    }

    #[test]
    fn a_member_without_a_set_is_nothing_yet() {
        let ghost = Hello { is_replica_set: true, ..hello(None, None, 17) };
        let error = classify(&ghost).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    }

    #[test]
    fn a_secondary_is_no_deployment() {
        let secondary = Hello { is_writable_primary: false, ..hello(Some("rs0"), None, 17) };
        let error = classify(&secondary).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        assert!(error.to_string().contains("replicaSet"), "{error}");
    }

    #[test]
    fn deployments_are_told_apart() {
        assert_eq!(classify(&hello(Some("rs0"), None, 17)).unwrap(), Deployment::ReplicaSet);
        assert_eq!(classify(&hello(None, Some("isdbgrid"), 21)).unwrap(), Deployment::Sharded);
        assert_eq!(classify(&hello(None, None, 25)).unwrap(), Deployment::Standalone);
    }

    #[test]
    fn an_old_server_is_refused_by_name() {
        let error = classify(&hello(Some("rs0"), None, 13)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("MongoDB 6.0"), "{error}");
    }
}
