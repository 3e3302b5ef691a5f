//! Finds or starts a deployment, and stops it.

mod docker;
mod error;
mod given;
mod local;
pub(crate) mod mongod;
pub(crate) mod replica_set;
mod settings;

use std::fmt;
use std::path::Path;

use distlock_conformance::container::Service;

pub use self::error::ServerError;
use self::settings::{Origin, Settings};
use crate::shared;
use crate::topology::Topology;

/// A MongoDB deployment for tests; the [crate](crate) documentation lists its sources.
///
/// A server that was started ends when this value is dropped. Prefer [`stop`](Self::stop), which
/// waits for the end. Dropping a container blocks the thread until the container is removed. A
/// value in a `static` is never dropped.
#[must_use = "the server ends when this is dropped"]
pub struct MongoServer {
    topology: Topology,
    uri: String,
    source: String,
    backing: Backing,
}

enum Backing {
    /// Stopped elsewhere: by the user, or by the keeper of a shared server.
    Given,
    Container(Box<Service>),
    Processes(Vec<local::Process>),
}

impl MongoServer {
    /// Finds or starts a deployment in the order that the [crate](crate#where-a-server-comes-from)
    /// describes.
    ///
    /// This takes a fraction of a second to a few seconds. The first time on a machine, it pulls an
    /// image (for at most two minutes) or fetches a server of 42 MB.
    ///
    /// # Errors
    ///
    /// No source works, or a source that a variable names. The [`ServerError`] lists what was
    /// tried, why it failed, and what to do.
    ///
    /// # Cancel safety
    ///
    /// What was started so far ends when the future is dropped, or with this process. A container
    /// whose creation is interrupted is removed when the next test process starts a server.
    pub async fn start(topology: Topology) -> Result<Self, ServerError> {
        let settings = Settings::from_env(topology)?;
        let variable = settings::uri_variable(topology);

        if let Some(uri) = settings.given_uri {
            let verified = given::verify(&uri, topology).await;
            let hosts = verified.map_err(|problem| ServerError::GivenServer { variable, topology, problem })?;
            let source = format!("the server that {variable} names, {hosts}");
            return Ok(Self { topology, uri, source, backing: Backing::Given }.announced());
        }

        match shared::find(topology).await {
            Ok(None) => Self::start_one(topology, settings).await,
            Ok(Some((uri, source))) => Ok(Self { topology, uri, source, backing: Backing::Given }.announced()),
            Err(problem) => Err(ServerError::Shared { topology, problem }),
        }
    }

    /// Starts a deployment of local processes that no other test uses: a standalone, or a replica
    /// set of `nodes` members. Ignores the environment variables for sources. For tests that a
    /// container or a given server does not allow.
    ///
    /// # Errors
    /// [`ServerError::Local`] if there is no `mongod` on `PATH` or from PyPI, or it does not start.
    ///
    /// # Cancel safety
    /// As [`start`](Self::start).
    pub async fn start_local(topology: Topology, nodes: u8) -> Result<Self, ServerError> {
        Self::local(topology, Self::as_processes(topology, nodes).await)
    }

    /// Starts a deployment of one local process with access control. Ignores the environment
    /// variables for sources. Its [`uri`](Self::uri) contains the credentials of an administrator
    /// with the role `root`, which can create other users.
    ///
    /// # Errors
    /// As [`start_local`](Self::start_local).
    ///
    /// # Cancel safety
    /// As [`start`](Self::start).
    pub async fn start_with_access_control(topology: Topology) -> Result<Self, ServerError> {
        let started = local::start_controlled(topology).await;
        Self::local(topology, started.map(|started| Self::of_processes(topology, started)))
    }

    /// Starts a standalone of one local process that requires TLS. Ignores the environment
    /// variables for sources. Its [`uri`](Self::uri) has `tls=true`, and does not name the
    /// authority: add `tlsCAFile`.
    ///
    /// Both files are in PEM format: `certificate_key` contains the server's certificate, for
    /// 127.0.0.1, and its private key, and `authority` the certificate of its issuer.
    ///
    /// # Errors
    /// As [`start_local`](Self::start_local).
    ///
    /// # Cancel safety
    /// As [`start`](Self::start).
    pub async fn start_with_tls(certificate_key: &Path, authority: &Path) -> Result<Self, ServerError> {
        let topology = Topology::Standalone;
        let started = local::start_with_tls(local::TlsFiles { certificate_key, authority }).await;
        Self::local(topology, started.map(|started| Self::of_processes(topology, started)))
    }

    fn local(topology: Topology, started: Result<Self, String>) -> Result<Self, ServerError> {
        started.map(Self::announced).map_err(|problem| ServerError::Local { topology, problem })
    }

    /// Starts a deployment that no other process uses.
    pub(crate) async fn start_own(topology: Topology) -> Result<Self, ServerError> {
        Self::start_one(topology, Settings::from_env(topology)?).await
    }

    async fn start_one(topology: Topology, settings: Settings) -> Result<Self, ServerError> {
        let variable = settings::uri_variable(topology);
        let mut tried = Vec::new();
        for &origin in settings.origins {
            let started = match origin {
                Origin::Docker => Self::in_container(topology, &settings.image).await,
                Origin::Local => Self::as_processes(topology, settings.nodes).await,
            };
            let problem = match started {
                Ok(server) => return Ok(server.announced()),
                Err(problem) => problem,
            };
            let origin = origin.name();
            if let Some(variable) = settings.insisting {
                return Err(ServerError::Source { variable, topology, origin, problem });
            }
            eprintln!("distlock: MongoDB {topology}: not from {origin}: {problem}");
            tried.push((origin, problem));
        }
        Err(ServerError::NoSource { topology, variable, tried })
    }

    async fn in_container(topology: Topology, image: &str) -> Result<Self, String> {
        let (service, uri) = docker::start(topology, image).await?;
        let source = format!("container of {image} (testcontainers)");
        Ok(Self { topology, uri, source, backing: Backing::Container(Box::new(service)) })
    }

    async fn as_processes(topology: Topology, nodes: u8) -> Result<Self, String> {
        Ok(Self::of_processes(topology, local::start(topology, nodes).await?))
    }

    fn of_processes(topology: Topology, (processes, uri, source): local::Started) -> Self {
        Self { topology, uri, source, backing: Backing::Processes(processes) }
    }

    fn announced(self) -> Self {
        eprintln!("distlock: MongoDB {}: {}", self.topology, self.source);
        self
    }

    /// Returns the connection string, for `mongodb::Client::with_uri_str`. It contains credentials
    /// for a server with access control, and may contain some if a variable gave it. The server
    /// selection timeout of started servers is 10 s.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns the requested topology.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Returns a description of the source, for people to read. Contains no credentials.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Stops the server, and waits until its container or processes and its data are removed. Does
    /// nothing to the user's own server.
    pub async fn stop(self) {
        match self.backing {
            Backing::Given => {}
            Backing::Container(service) => service.stop().await,
            Backing::Processes(processes) => {
                let stopped = tokio::task::spawn_blocking(|| {
                    processes.into_iter().for_each(local::Process::stop);
                });
                // Fails only if the runtime is shutting down, and then the processes end with it.
                let _ = stopped.await;
            }
        }
    }
}

impl fmt::Debug for MongoServer {
    /// Without the connection string, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoServer")
            .field("topology", &self.topology)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
