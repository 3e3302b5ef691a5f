//! The kind of deployment, and whether locks can be kept in it.

use std::time::Duration;

use distlock_api::{Disposition, ErrorKind, LockError, Phase, Result};
use futures_util::future::join;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::error::Error;
use mongodb::{Client, Database};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

mod abilities;
mod ended;
mod namespace;
mod reach;

use ended::{ended, have_ended};
pub(crate) use ended::{ended_before, translate_for};
pub(crate) use namespace::check_kept;
use reach::Servers;
pub(crate) use reach::{Reachability, primary_replaced};

use crate::bson::from_document;
use crate::error::{Effect, is_unselected, translate, unanswered, unanswered_because};
use crate::lease::{Layout, Source};
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

    /// Returns whether the writes of a session can be numbered, so that the server refuses one that
    /// arrives after a later one (R11).
    pub(crate) fn numbers_writes(self) -> bool {
        !matches!(self, Self::Standalone)
    }
}

/// The deployment, determined by the first request and then kept.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    deployment: OnceCell<Deployment>,
    /// Whether the server lacks nothing that the protocol needs. Tried only when it refuses
    /// something.
    lacks_nothing: OnceCell<()>,
}

/// A collection, and what is kept there.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'a> {
    pub(crate) database: &'a Database,
    pub(crate) collection: &'a str,
    pub(crate) layout: &'a Layout,
    /// Whether it also keeps the outcomes of work that is done once.
    pub(crate) has_outcomes: bool,
}

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
        self.deployment.get().copied()
    }

    /// Returns the deployment, if locks can be kept in this collection. A failure is not kept, and
    /// has changed nothing. The server's answer also sets the clock.
    pub(crate) async fn of(&self, kept: Kept<'_>, clock: &ServerClock, limit: Duration) -> Result<Deployment> {
        if let Some(deployment) = self.known() {
            return Ok(deployment);
        }
        let client = kept.database.client();
        // The driver's own limit for choosing a server may be longer than this request's.
        tokio::select! {
            biased;
            found = self.deployment.get_or_try_init(|| query(kept, clock, limit)) => found.copied(),
            servers = reach::unusable_for_good(client) => Err(unusable(servers)),
            () = sleep(limit) => Err(unusable(Servers::of(client))),
        }
    }

    /// Returns the error of a server that lacks what the protocol needs, after one that refused the
    /// form of a command. Such a server is tried once; one that lacks nothing is not tried again.
    pub(crate) async fn lacking(&self, kept: Kept<'_>, error: &Error, limit: Duration) -> Option<LockError> {
        if !abilities::is_refused_form(error) || self.lacks_nothing.initialized() {
            return None;
        }
        // A query of an operator may come before the deployment is known.
        let deployment = self.known();
        let needs_cluster_time = deployment.is_some_and(|known| known.clock() == Source::ClusterTime);
        let tried = abilities::lacks_something(kept.database, kept.collection, needs_cluster_time, limit);
        let lacking = timeout(limit, tried).await.ok()?.ok()?;
        if lacking.is_none() && deployment.is_some() {
            let _ = self.lacks_nothing.set(());
        }
        lacking
    }
}

/// Returns the error of a call for which the driver found no server within its own limit. Nothing
/// was sent. `None` for another error.
pub(crate) fn unselected(client: &Client, error: &Error) -> Option<LockError> {
    is_unselected(error).then(|| unusable(Servers::of(client)))
}

/// Waits until the driver has a server to send a write to. The write is not sent before that, so
/// that its outcome is not unknown if there is none.
pub(crate) async fn server(client: &Client, reachability: &Reachability, limit: Duration) -> Result<()> {
    if have_ended(client) {
        return Err(ended());
    }
    tokio::select! {
        biased;
        () = reachability.server(client) => Ok(()),
        servers = reach::unusable_for_good(client) => Err(unusable(servers)),
        () = sleep(limit) => Err(unusable(Servers::of(client))),
    }
}

/// Makes the error of an operation that the client's own limit ended. It names the servers that
/// cannot be used, as far as the driver knows.
pub(crate) fn unanswered_by(client: &Client, known: Option<Deployment>, limit: Duration, effect: Effect) -> LockError {
    unanswered_with(Servers::of(client), known, limit, effect)
}

/// Makes the error of a call whose caller leaves before the answer. If no server takes writes, the
/// next call waits for one, and is not sent without it.
pub(crate) fn left_unanswered(
    client: &Client,
    reachability: &Reachability,
    known: Option<Deployment>,
    waited: Duration,
) -> LockError {
    let servers = reachability.servers(client);
    if !servers.can_serve() {
        reachability.unanswered();
    }
    let waited = Duration::from_millis(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
    unanswered_with(servers, known, waited, Effect::Write)
}

fn unanswered_with(servers: Servers, known: Option<Deployment>, limit: Duration, effect: Effect) -> LockError {
    match servers.trouble() {
        // Nothing has been sent yet: the call waited for a server.
        Some(_) if known.is_none() => unusable(servers),
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

async fn query(kept: Kept<'_>, clock: &ServerClock, limit: Duration) -> Result<Deployment> {
    let Kept { database, collection, layout, has_outcomes } = kept;
    let in_use = |field: &str, of: Option<&Document>| layout.is_in_use_beyond(field, of, has_outcomes);
    let checked = namespace::check(database, collection, in_use, limit);
    let (hello, checked) = join(hello(database, clock), checked).await;
    let hello = hello?;
    if hello.max_wire_version < OLDEST_WIRE_VERSION {
        return Err(too_old(kept, &hello, limit).await);
    }
    let deployment = classify(&hello)?;
    checked.map(|()| deployment)
}

/// Returns the error of a server that is too old, or that is none of MongoDB's.
async fn too_old(kept: Kept<'_>, hello: &Hello, limit: Duration) -> LockError {
    let needs_cluster_time = hello.deployment().clock() == Source::ClusterTime;
    let lacking = abilities::lacks_something(kept.database, kept.collection, needs_cluster_time, limit);
    if let Ok(Ok(Some(lacking))) = timeout(limit / 2, lacking).await {
        return lacking;
    }
    let message = format!(
        "the server is too old: MongoDB 6.0 or later is needed (wire version {OLDEST_WIRE_VERSION}; this server has \
         {})",
        hello.max_wire_version
    );
    LockError::new(ErrorKind::Unsupported, message)
}

async fn hello(database: &Database, clock: &ServerClock) -> Result<Hello> {
    let reading = clock.reading();
    let client = database.client();
    let reply = match database.run_command(doc! { "hello": 1 }).await {
        Ok(reply) => reply,
        Err(error) => {
            return Err(match ended_before(client, &error) {
                Some(ended) => ended,
                // The driver's limit may be so short that its first check has not ended.
                None if is_unselected(&error) => unusable(reach::checked(client).await),
                None => translate(&error, Effect::None),
            });
        }
    };
    let hello: Hello = from_document(reply).map_err(|error| {
        let message = "the answer to `hello` cannot be read: is this a MongoDB server?";
        LockError::new(ErrorKind::Corrupt, message).with_source(error)
    })?;
    if let Some(now) = hello.local_time {
        reading.shows(millis(now.timestamp_millis()));
    }
    Ok(hello)
}

impl Hello {
    fn deployment(&self) -> Deployment {
        if self.msg.as_deref() == Some("isdbgrid") {
            Deployment::Sharded
        } else if self.set_name.is_some() {
            Deployment::ReplicaSet
        } else {
            Deployment::Standalone
        }
    }
}

fn classify(hello: &Hello) -> Result<Deployment> {
    if hello.is_replica_set && hello.set_name.is_none() {
        let message = "the server belongs to a replica set that has not been initiated yet: run `replSetInitiate`";
        return Err(LockError::new(ErrorKind::Unavailable, message));
    }
    if hello.set_name.is_some() && !hello.is_writable_primary {
        let message = "the server is not the primary of its replica set. If the connection string has \
                       `directConnection=true`, or names one member, name the set (`replicaSet=…`) instead";
        return Err(LockError::new(ErrorKind::Unavailable, message));
    }
    Ok(hello.deployment())
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
}
