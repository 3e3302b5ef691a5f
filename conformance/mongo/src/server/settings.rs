//! The environment variables for the choice of a server.

use super::error::ServerError;
use crate::topology::Topology;

/// Forces one source of servers.
pub(super) const SOURCE: &str = "DISTLOCK_MONGODB_SOURCE";
/// Name and tag of the container image.
pub(super) const IMAGE: &str = "DISTLOCK_MONGODB_IMAGE";
/// Members of a replica set of local processes.
pub(super) const NODES: &str = "DISTLOCK_MONGODB_NODES";

const DEFAULT_IMAGE: &str = "mongo:7.0";
/// A replica set has at most seven voting members.
const MOST_NODES: u8 = 7;

/// A source of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Docker,
    Local,
}

impl Origin {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Local => "a local mongod",
        }
    }
}

/// The variables, read and checked.
#[derive(Debug)]
pub(super) struct Settings {
    /// The connection string of a given server; also `None` if a source is forced.
    pub(super) given_uri: Option<String>,
    /// The variable that forces one source, if any.
    pub(super) insisting: Option<&'static str>,
    /// The sources to try, in order.
    pub(super) origins: &'static [Origin],
    pub(super) image: String,
    pub(super) nodes: u8,
}

impl Settings {
    /// Reads the process's environment.
    pub(super) fn from_env(topology: Topology) -> Result<Self, ServerError> {
        Self::read(topology, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(topology: Topology, get: impl Fn(&'static str) -> Option<String>) -> Result<Self, ServerError> {
        let forced = match get(SOURCE).as_deref() {
            None => None,
            Some("docker") => Some(Origin::Docker),
            Some("local") => Some(Origin::Local),
            Some(other) => {
                let problem = format!("is `{other}`, but only `docker` and `local` are possible");
                return Err(ServerError::Environment { variable: SOURCE, problem });
            }
        };
        let nodes = match get(NODES) {
            None => 1,
            Some(text) => match text.parse() {
                Ok(nodes @ 1..=MOST_NODES) => nodes,
                _ => {
                    let problem = format!("is `{text}`, but a number from 1 to {MOST_NODES} is needed");
                    return Err(ServerError::Environment { variable: NODES, problem });
                }
            },
        };
        let image = get(IMAGE);
        let (origins, insisting): (&[_], _) = match (forced, &image) {
            (Some(Origin::Docker), _) => (&[Origin::Docker], Some(SOURCE)),
            (Some(Origin::Local), _) => (&[Origin::Local], Some(SOURCE)),
            (None, Some(_)) => (&[Origin::Docker], Some(IMAGE)),
            (None, None) => (&[Origin::Docker, Origin::Local], None),
        };
        Ok(Self {
            given_uri: get(uri_variable(topology)).filter(|_| forced.is_none()),
            insisting,
            origins,
            image: image.unwrap_or_else(|| DEFAULT_IMAGE.to_owned()),
            nodes,
        })
    }
}

/// The variable that names a server for `topology`.
pub(super) fn uri_variable(topology: Topology) -> &'static str {
    match topology {
        Topology::ReplicaSet => "DISTLOCK_MONGODB_URI",
        Topology::Standalone => "DISTLOCK_MONGODB_STANDALONE_URI",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(topology: Topology, variables: &[(&str, &str)]) -> Result<Settings, ServerError> {
        Settings::read(topology, |name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_tries_docker_then_local() {
        let settings = read(Topology::ReplicaSet, &[]).unwrap();
        assert_eq!(settings.origins, [Origin::Docker, Origin::Local]);
        assert_eq!(settings.insisting, None);
        assert_eq!((settings.image.as_str(), settings.nodes), ("mongo:7.0", 1));
        assert_eq!(settings.given_uri, None);
    }

    #[test]
    fn an_image_insists_on_docker_unless_the_source_is_forced() {
        let settings = read(Topology::ReplicaSet, &[(IMAGE, "a:1")]).unwrap();
        assert_eq!((settings.origins, settings.insisting), (&[Origin::Docker][..], Some(IMAGE)));
        let settings = read(Topology::ReplicaSet, &[(IMAGE, "a:1"), (SOURCE, "local")]).unwrap();
        assert_eq!((settings.origins, settings.insisting), (&[Origin::Local][..], Some(SOURCE)));
    }

    #[test]
    fn each_topology_has_its_own_uri_and_a_forced_source_outranks_it() {
        let set = ("DISTLOCK_MONGODB_URI", "mongodb://a");
        assert!(read(Topology::ReplicaSet, &[set]).unwrap().given_uri.is_some());
        assert!(read(Topology::Standalone, &[set]).unwrap().given_uri.is_none());
        assert!(read(Topology::ReplicaSet, &[set, (SOURCE, "local")]).unwrap().given_uri.is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for variable in [(SOURCE, "podman"), (NODES, "0"), (NODES, "8"), (NODES, "three")] {
            let error = read(Topology::ReplicaSet, &[variable]).unwrap_err().to_string();
            assert!(error.contains(variable.0) && error.contains(variable.1), "{error}");
        }
    }
}
