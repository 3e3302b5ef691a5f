//! What kind of deployment the database is in.

use std::time::Duration;

use distlock_api::{ErrorKind, LockError, Phase, Result};
use mongodb::Database;
use mongodb::bson::doc;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::error::{Effect, translate};
use crate::lease::Clock;

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
    pub(crate) fn clock(self) -> Clock {
        match self {
            Self::ReplicaSet | Self::Sharded => Clock::ClusterTime,
            Self::Standalone => Clock::WallTime,
        }
    }

    /// Whether the writes of a session can be numbered, so that the server refuses one that comes after its successor (R11).
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

    /// The deployment. A failure is not remembered, and nothing has been changed then.
    pub(crate) async fn of(&self, database: &Database, limit: Duration) -> Result<Deployment> {
        if let Some(deployment) = self.known() {
            return Ok(deployment);
        }
        match timeout(limit, self.0.get_or_try_init(|| ask(database))).await {
            Ok(found) => found.copied(),
            // The driver's own limit for choosing a server may be longer than this request's.
            Err(_) => {
                let message = format!("no MongoDB server answered within {} ms", limit.as_millis());
                Err(LockError::new(ErrorKind::Unavailable, message).with_phase(Phase::Connect))
            }
        }
    }
}

async fn ask(database: &Database) -> Result<Deployment> {
    let reply = database.run_command(doc! { "hello": 1 }).await;
    let reply = reply.map_err(|error| translate(&error, Effect::None))?;
    let hello = mongodb::bson::from_document(reply)
        .map_err(|error| LockError::new(ErrorKind::Corrupt, "the server's hello cannot be read").with_source(error))?;
    classify(&hello)
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
        Hello { set_name: set_name.map(Into::into), msg: msg.map(Into::into), is_replica_set: false, max_wire_version }
    }

    #[test]
    fn a_member_without_a_set_is_nothing_yet() {
        let ghost = Hello { is_replica_set: true, ..hello(None, None, 17) };
        let error = classify(&ghost).unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
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
