//! The kinds of deployments.

use std::fmt;

/// The kind of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// A replica set, of one member or several.
    ReplicaSet,
    /// One server without replication: no majority, no change streams, no cluster time.
    Standalone,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReplicaSet => "replica set",
            Self::Standalone => "standalone",
        })
    }
}
