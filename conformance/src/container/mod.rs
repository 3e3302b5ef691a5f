//! Any service in a container, for fixtures, with faults.
//!
//! [`Service::start`] takes an image of [testcontainers] and a probe that succeeds when the service
//! is ready. [`pause`](Service::pause), [`kill`](Service::kill) and [`cut_off`](Service::cut_off)
//! return when the engine confirms the fault. The methods that end these faults return when the
//! probe succeeds again.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use distlock_conformance::container::Service;
//! use distlock_conformance::testcontainers::GenericImage;
//! use distlock_conformance::testcontainers::core::IntoContainerPort;
//! use tokio::net::TcpStream;
//!
//! let image = GenericImage::new("redis", "7").with_exposed_port(6379.tcp());
//! let service = Service::start(image, 6379, async |address| {
//!     TcpStream::connect(&address).await?;
//!     Ok(())
//! })
//! .await?;
//! let client = TcpStream::connect(service.address()).await?;
//! service.pause().await?;
//! // … the service does not answer; pending requests continue afterwards …
//! service.resume().await?;
//! service.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Fixture`](crate::Fixture) starts it in [`start`](crate::Fixture::start), passes its address
//! to its clients, and stops it in [`stop`](crate::Fixture::stop). The container is removed by
//! [`Service::stop`] or a drop. If the test process is killed, the next one that starts a container
//! removes it.

mod engine;
mod owner;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use testcontainers::bollard::Docker;
use testcontainers::bollard::models::{ContainerInspectResponse, NetworkConnectRequest, NetworkDisconnectRequest};
use testcontainers::core::PortMapping;
use testcontainers::{ContainerRequest, GenericImage};
use tokio::time::{sleep, timeout};

use self::engine::Running;
pub use self::engine::image;
use crate::failure::FixtureError;

/// How long a service may take to answer its probe.
const READY_LIMIT: Duration = Duration::from_secs(60);
const PROBE_PAUSE: Duration = Duration::from_millis(50);

type Probe = Box<dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<(), FixtureError>> + Send>> + Send + Sync>;

/// Why a container could not be started or changed: no engine, no image, a probe that never
/// succeeds, or a fault that does not happen.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ContainerError {
    problem: String,
    is_unavailable: bool,
}

impl ContainerError {
    /// Returns whether no container of this image is possible here: no engine answers, or the image
    /// does not exist and cannot be pulled.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.is_unavailable
    }
}

impl From<String> for ContainerError {
    fn from(problem: String) -> Self {
        Self { problem, is_unavailable: false }
    }
}

/// One service in a container; see the [module](self).
#[must_use = "the container is removed when this is dropped"]
pub struct Service {
    image: String,
    running: Running,
    docker: Docker,
    port: u16,
    ready: Probe,
    address: Mutex<String>,
    /// The networks that it was cut off from.
    networks: Mutex<Vec<String>>,
}

impl Service {
    /// Starts a container and waits until the probe `ready` succeeds. The probe receives the
    /// service's address; it is called every 50 ms, for at most 60 s. `port` is the port of the
    /// service inside the container, which the image must expose.
    ///
    /// # Errors
    /// * No Docker engine answers.
    /// * The image does not exist, and cannot be pulled within two minutes.
    /// * The container does not start, or the port is not exposed.
    /// * The probe never succeeds. The message then contains its last error.
    ///
    /// # Cancel safety
    /// A container whose creation is interrupted is removed when the next test process starts one.
    /// Afterwards it is removed when the future is dropped.
    pub async fn start<F, R>(
        image: impl Into<ContainerRequest<GenericImage>>,
        port: u16,
        ready: F,
    ) -> Result<Self, ContainerError>
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), FixtureError>> + Send + 'static,
    {
        let request = image.into();
        let image = request.descriptor();
        if !exposes(&request, port) {
            return Err(format!("a container of {image} would not expose port {port}").into());
        }
        let unavailable = |problem| ContainerError { problem, is_unavailable: true };
        let docker = engine::engine().await.map_err(unavailable)?;
        engine::ensure_image(&docker, &image).await.map_err(unavailable)?;
        let running = engine::start(&docker, request).await?;
        let service = Self {
            image,
            running,
            docker,
            port,
            ready: Box::new(move |address| Box::pin(ready(address))),
            address: Mutex::default(),
            networks: Mutex::default(),
        };
        service.until_ready().await?;
        Ok(service)
    }

    /// Returns host and port of the service as seen from here. They change with each
    /// [`start_again`](Self::start_again) and [`reconnect`](Self::reconnect), unless the request
    /// maps the port to a fixed one.
    #[must_use]
    pub fn address(&self) -> String {
        lock(&self.address).clone()
    }

    /// Returns the container's id, for the engine.
    ///
    /// # Errors
    /// No error occurs while the service exists.
    pub fn id(&self) -> Result<&str, ContainerError> {
        Ok(self.running.container()?.id())
    }

    /// Stops all processes of the container, as in a long pause of the whole machine. Its
    /// connections stay open.
    ///
    /// # Errors
    /// The engine fails, or does not confirm the pause.
    pub async fn pause(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.pause().await.map_err(|error| self.failed("pause", &error))?;
        self.verify("paused", |seen| seen.state.as_ref().and_then(|state| state.paused) == Some(true)).await
    }

    /// Continues after a [`pause`](Self::pause), and waits until the service is ready.
    ///
    /// # Errors
    /// The engine fails, or the service does not become ready.
    pub async fn resume(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.unpause().await.map_err(|error| self.failed("resume", &error))?;
        self.until_ready().await
    }

    /// Ends the container by SIGKILL, as in a crash. Its file system remains.
    ///
    /// # Errors
    /// The engine fails, or reports another end.
    pub async fn kill(&self) -> Result<(), ContainerError> {
        const KILLED: i64 = 128 + 9;
        self.docker.kill_container(self.id()?, None).await.map_err(|error| self.failed("kill", &error))?;
        let is_killed = |seen: &ContainerInspectResponse| {
            seen.state.as_ref().is_some_and(|state| state.running == Some(false) && state.exit_code == Some(KILLED))
        };
        self.verify("killed", is_killed).await
    }

    /// Starts the container again after a [`kill`](Self::kill), and waits until the service is
    /// ready.
    ///
    /// # Errors
    /// The engine fails, or the service does not become ready.
    pub async fn start_again(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.start().await.map_err(|error| self.failed("start", &error))?;
        self.until_ready().await
    }

    /// Disconnects the container from all its networks, while it keeps running. Packets of open
    /// connections are lost silently; new connections may be refused.
    ///
    /// # Errors
    /// The engine fails, or reports that a network is left.
    pub async fn cut_off(&self) -> Result<(), ContainerError> {
        let networks = networks(&self.seen().await?);
        for network in &networks {
            let request = NetworkDisconnectRequest { container: self.id()?.to_owned(), force: Some(true) };
            let done = self.docker.disconnect_network(network, request).await;
            done.map_err(|error| self.failed("cut off", &error))?;
            lock(&self.networks).push(network.clone());
        }
        if networks.is_empty() {
            return Err(self.failed("cut off", &"it was on no network"));
        }
        self.verify("cut off", |seen| self::networks(seen).is_empty()).await
    }

    /// Connects the container again to the networks from which it was [cut off](Self::cut_off), and
    /// waits until the service is ready.
    ///
    /// # Errors
    /// The engine fails, or the service does not become ready.
    pub async fn reconnect(&self) -> Result<(), ContainerError> {
        let networks = std::mem::take(&mut *lock(&self.networks));
        for network in &networks {
            let request = NetworkConnectRequest { container: self.id()?.to_owned(), endpoint_config: None };
            let done = self.docker.connect_network(network, request).await;
            done.map_err(|error| self.failed("reconnect", &error))?;
        }
        self.until_ready().await
    }

    /// Removes the container, and waits until it is removed.
    pub async fn stop(self) {
        self.running.remove().await;
    }

    async fn until_ready(&self) -> Result<(), ContainerError> {
        let mut last = String::from("the probe has not run");
        let answered = async {
            loop {
                match self.probe().await {
                    Ok(address) => return address,
                    Err(problem) => last = problem,
                }
                // Services do not call back.
                sleep(PROBE_PAUSE).await;
            }
        };
        let answered = timeout(READY_LIMIT, answered).await;
        match answered {
            Ok(address) => {
                *lock(&self.address) = address;
                Ok(())
            }
            Err(_) => Err(self.failed("become ready", &format!("within {} s: {last}", READY_LIMIT.as_secs()))),
        }
    }

    async fn probe(&self) -> Result<String, String> {
        let container = self.running.container()?;
        let host = container.get_host().await.map_err(|error| error.to_string())?;
        let port = container.get_host_port_ipv4(self.port).await.map_err(|error| error.to_string())?;
        let address = format!("{host}:{port}");
        (self.ready)(address.clone()).await.map_err(|error| error.to_string())?;
        Ok(address)
    }

    async fn seen(&self) -> Result<ContainerInspectResponse, ContainerError> {
        self.docker.inspect_container(self.id()?, None).await.map_err(|error| self.failed("be inspected", &error))
    }

    async fn verify(
        &self,
        what: &str,
        is_so: impl Fn(&ContainerInspectResponse) -> bool,
    ) -> Result<(), ContainerError> {
        let waiting = async {
            loop {
                let seen = self.seen().await?;
                if is_so(&seen) {
                    return Ok(());
                }
                sleep(PROBE_PAUSE).await;
            }
        };
        let never = || Err(self.failed("be a fault", &format!("the engine does not report it as {what}")));
        timeout(Duration::from_secs(10), waiting).await.unwrap_or_else(|_| never())
    }

    fn failed(&self, what: &str, why: &dyn fmt::Display) -> ContainerError {
        format!("the container of {} does not {what}: {why}", self.image).into()
    }
}

fn exposes(request: &ContainerRequest<GenericImage>, port: u16) -> bool {
    let mut mapped = request.ports().into_iter().flatten().map(PortMapping::container_port);
    request.expose_ports().iter().copied().chain(mapped.by_ref()).any(|exposed| exposed.as_u16() == port)
}

fn networks(seen: &ContainerInspectResponse) -> Vec<String> {
    let networks = seen.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    networks.map(|networks| networks.keys().cloned().collect()).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("image", &self.image).field("address", &self.address()).finish_non_exhaustive()
    }
}
