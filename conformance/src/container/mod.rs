//! Any service in a container, for fixtures, and the faults that containers can have.
//!
//! [`Service::start`] takes an image of [testcontainers] and a probe that says when the service is ready. The same probe says when it is well again after a fault:
//! [`pause`](Service::pause), [`kill`](Service::kill) and [`cut_off`](Service::cut_off) return when the fault is there – the engine has been asked –, and what undoes
//! them when the service answers.
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
//! // … nobody answers; what is under way goes on afterwards …
//! service.resume().await?;
//! service.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Fixture`](crate::Fixture) starts it in [`start`](crate::Fixture::start), gives its address to its clients, and stops it in
//! [`stop`](crate::Fixture::stop). The container is removed after [`Service::stop`], after a drop, and, if the test process is killed, when the next one starts a container.

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

/// Why a container could not be had, or not be put into a state: no engine, no image, a probe that never succeeds, a fault that does not happen.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub struct ContainerError {
    problem: String,
    is_unavailable: bool,
}

impl ContainerError {
    /// Whether there are no containers of this image here: no engine answers, or the image is not there and cannot be pulled.
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
    /// Those that it was cut off from.
    networks: Mutex<Vec<String>>,
}

impl Service {
    /// Starts a container and waits until `ready`, which is given the service's address, says so; it is asked every 50 ms, for at most 60 s. `port` is that of the service inside
    /// of the container; the image must expose it.
    ///
    /// # Errors
    /// No Docker engine answers, the image is not there and cannot be pulled within two minutes, the container does not start, the port is not exposed, or the probe
    /// never succeeds; then the message has its last error.
    ///
    /// # Cancel safety
    /// A container that is just being created is removed when the next test process starts one; after that, with the future.
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

    /// Host and port of the service as seen from here. Another one after each [`start_again`](Self::start_again) and [`reconnect`](Self::reconnect), unless the request
    /// maps the port to a fixed one.
    #[must_use]
    pub fn address(&self) -> String {
        lock(&self.address).clone()
    }

    /// The container's id, for the engine.
    ///
    /// # Errors
    /// None while the service is there.
    pub fn id(&self) -> Result<&str, ContainerError> {
        Ok(self.running.container()?.id())
    }

    /// All processes of the container stand still, as in a long pause of the whole machine. Its connections stay open.
    ///
    /// # Errors
    /// The engine cannot, or says afterwards that it is not so.
    pub async fn pause(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.pause().await.map_err(|error| self.failed("pause", &error))?;
        self.verify("paused", |seen| seen.state.as_ref().and_then(|state| state.paused) == Some(true)).await
    }

    /// Goes on after a [`pause`](Self::pause), and waits until the service is ready.
    ///
    /// # Errors
    /// The engine cannot, or the service does not get ready.
    pub async fn resume(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.unpause().await.map_err(|error| self.failed("resume", &error))?;
        self.until_ready().await
    }

    /// Ends the container by SIGKILL, as a crash does. Its file system stays.
    ///
    /// # Errors
    /// The engine cannot, or says afterwards that it has ended otherwise.
    pub async fn kill(&self) -> Result<(), ContainerError> {
        const KILLED: i64 = 128 + 9;
        self.docker.kill_container(self.id()?, None).await.map_err(|error| self.failed("kill", &error))?;
        let is_killed = |seen: &ContainerInspectResponse| {
            seen.state.as_ref().is_some_and(|state| state.running == Some(false) && state.exit_code == Some(KILLED))
        };
        self.verify("killed", is_killed).await
    }

    /// Starts the container again after a [`kill`](Self::kill), and waits until the service is ready.
    ///
    /// # Errors
    /// The engine cannot, or the service does not get ready.
    pub async fn start_again(&self) -> Result<(), ContainerError> {
        let container = self.running.container()?;
        container.start().await.map_err(|error| self.failed("start", &error))?;
        self.until_ready().await
    }

    /// Takes the container off all its networks: nothing reaches it and it reaches nobody, while it goes on working. Packets of open connections get lost without a word;
    /// new connections may be refused.
    ///
    /// # Errors
    /// The engine cannot, or says afterwards that there is a network left.
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

    /// Puts the container on the networks again that it was [cut off](Self::cut_off) from, and waits until the service is ready.
    ///
    /// # Errors
    /// The engine cannot, or the service does not get ready.
    pub async fn reconnect(&self) -> Result<(), ContainerError> {
        let networks = std::mem::take(&mut *lock(&self.networks));
        for network in &networks {
            let request = NetworkConnectRequest { container: self.id()?.to_owned(), endpoint_config: None };
            let done = self.docker.connect_network(network, request).await;
            done.map_err(|error| self.failed("reconnect", &error))?;
        }
        self.until_ready().await
    }

    /// Removes the container, and waits for that.
    pub async fn stop(self) {
        self.running.remove().await;
    }

    async fn until_ready(&self) -> Result<(), ContainerError> {
        let mut last = String::from("it has not been asked");
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
            Err(_) => Err(self.failed("get ready", &format!("within {} s: {last}", READY_LIMIT.as_secs()))),
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
        let never = || Err(self.failed("be a fault", &format!("it is not {what}, says the engine")));
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
