//! Any server that speaks over TCP, as a deployment for fault injection.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::LockKey;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::network::ProxyFaults;
use super::{Arena, Fault, Hook};
use crate::failure::FixtureError;
use crate::process;
use crate::proxy::FaultProxy;
use crate::supervised::{self, Supervised};

/// How long the server may take to be healthy again.
const HEALTH_LIMIT: Duration = Duration::from_secs(60);
/// How long one health check may take.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A server behind a [`FaultProxy`] as an [`Arena`]. It has the faults of the network, kills and
/// stops, and the [hooks](Hook) that cut, stall, delay, lag, lose replies and restart.
///
/// ```no_run
/// use std::net::SocketAddr;
/// use distlock_conformance::{FixtureError, LocalServer, TcpArena};
///
/// # async fn example() -> Result<(), FixtureError> {
/// let data = std::env::temp_dir().join(format!("redis-{}", std::process::id()));
/// std::fs::create_dir(&data)?;
/// let port = LocalServer::free_port()?;
/// let (dir, at) = (data.display().to_string(), SocketAddr::from(([127, 0, 0, 1], port)));
/// let command = ["redis-server", "--dir", &dir, "--appendonly", "yes", "--port", &port.to_string()];
/// let server = LocalServer::start(data, command, at).await?;
/// let arena = TcpArena::new(server, |proxy| format!("redis://{proxy}/")).await?;
/// # drop(arena);
/// # Ok(())
/// # }
/// ```
pub struct TcpArena {
    server: Arc<dyn TcpServer>,
    network: ProxyFaults,
    address: String,
    block: Option<Box<Block>>,
    age: Option<Box<Age>>,
}

type Block = dyn Fn(&LockKey) -> Arc<dyn Fault> + Send + Sync;
type Age = dyn Fn() -> BoxFuture<'static, Result<String, FixtureError>> + Send + Sync;

/// How a [`TcpArena`] controls its server. [`LocalServer`] implements this for a server that is one
/// process.
#[async_trait]
pub trait TcpServer: Send + Sync + 'static {
    /// Returns where the server listens.
    fn address(&self) -> SocketAddr;

    /// Starts the server after it was killed, and returns when it accepts requests.
    ///
    /// # Errors
    /// The server does not accept requests within a bounded time.
    async fn start(&self) -> Result<(), FixtureError>;

    /// Kills the server with all its processes, as SIGKILL does, and returns when they have ended.
    ///
    /// # Errors
    /// The server continues.
    async fn kill(&self) -> Result<(), FixtureError>;

    /// Stops the server with all its processes, as SIGSTOP does, and returns when they have
    /// stopped.
    ///
    /// # Errors
    /// The server continues.
    async fn pause(&self) -> Result<(), FixtureError>;

    /// Lets the server continue.
    /// # Errors
    /// The server is still stopped.
    async fn resume(&self) -> Result<(), FixtureError>;

    /// Checks in bounded time whether the server accepts requests.
    ///
    /// # Errors
    /// The reason why it does not.
    async fn health_check(&self) -> Result<(), FixtureError>;

    /// Ends the server for good. It must also end when this is dropped without a call.
    async fn stop(&self);
}

impl TcpArena {
    /// Puts a proxy in front of a running server. `address_of` makes the argument of
    /// [`Fixture::connect`](crate::Fixture::connect) from the proxy's address.
    ///
    /// # Errors
    /// No port is free.
    pub async fn new(
        server: impl TcpServer,
        address_of: impl FnOnce(SocketAddr) -> String,
    ) -> Result<Self, FixtureError> {
        let proxy = FaultProxy::start(server.address()).await?;
        let address = address_of(proxy.address());
        let network = ProxyFaults::new([proxy]);
        Ok(Self { server: Arc::new(server), network, address, block: None, age: None })
    }

    /// Adds [`Hook::Block`]: a fault during which requests for a key wait at the server. In SQL
    /// this is a transaction that has locked the key's row.
    #[must_use]
    pub fn block(mut self, block: impl Fn(&LockKey) -> Arc<dyn Fault> + Send + Sync + 'static) -> Self {
        self.block = Some(Box::new(block));
        self
    }

    /// Adds [`Arena::age_records`]: does to the records of unused locks what the store does after a
    /// long time, and returns the evidence.
    #[must_use]
    pub fn age_records<F>(mut self, age: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String, FixtureError>> + Send + 'static,
    {
        self.age = Some(Box::new(move || age().boxed()));
        self
    }

    fn away(&self, away: Away) -> Arc<dyn Fault> {
        Arc::new(WithoutServer { away, server: Arc::clone(&self.server) })
    }
}

impl fmt::Debug for TcpArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpArena").field("server", &self.server.address()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Arena for TcpArena {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn faults(&self) -> Vec<Arc<dyn Fault>> {
        let mut faults = self.network.faults();
        faults.extend(self.network.half_open());
        faults.extend([Away::Killed, Away::Stopped].map(|away| self.away(away)));
        faults
    }

    fn hook(&self, hook: Hook, key: &LockKey) -> Option<Arc<dyn Fault>> {
        match hook {
            Hook::Cut => Some(self.network.reset()),
            Hook::Stall => Some(self.network.black_hole()),
            Hook::Delay => Some(self.network.late_requests()),
            Hook::Lag => Some(self.network.lag()),
            Hook::LoseReplies => Some(self.network.lost_replies()),
            Hook::Restart => Some(self.away(Away::Killed)),
            Hook::Block => self.block.as_ref().map(|block| block(key)),
        }
    }

    async fn healthy(&self) -> Result<(), FixtureError> {
        until_well(&*self.server).await.map(drop)
    }

    async fn age_records(&self) -> Result<Option<String>, FixtureError> {
        match &self.age {
            Some(age) => age().await.map(Some),
            None => Ok(None),
        }
    }

    async fn stop(&self) {
        self.server.stop().await;
    }
}

async fn until_well(server: &dyn TcpServer) -> Result<Duration, FixtureError> {
    let started = Instant::now();
    loop {
        let Err(problem) = server.health_check().await else { return Ok(started.elapsed()) };
        if started.elapsed() > HEALTH_LIMIT {
            return Err(format!("the server is not healthy after {HEALTH_LIMIT:?}: {problem}").into());
        }
        sleep(POLL).await;
    }
}

/// A server that is one process of this machine, as a [`TcpServer`]. Signals reach only that
/// process. Implement `TcpServer` yourself for a server of several processes.
///
/// The server ends and its folder is removed when this is stopped or dropped, or when this process
/// ends for any reason.
pub struct LocalServer {
    process: Supervised,
    at: SocketAddr,
}

impl LocalServer {
    /// Starts the server by its command line, in the foreground, and waits until it accepts
    /// connections `at` its address. Its output is appended to `server.log` in `folder`, which must
    /// exist. The folder is **removed at the end** with everything in it.
    ///
    /// The started process must be the server itself. Programs in front of it must end in `exec`,
    /// as `env` and `setpriv` do.
    ///
    /// # Errors
    /// The server ends, or does not listen within 60 s.
    pub async fn start<S: AsRef<OsStr>>(
        folder: impl Into<PathBuf>,
        command: impl IntoIterator<Item = S>,
        at: SocketAddr,
    ) -> Result<Self, FixtureError> {
        let process = Supervised::new(Command::new("env"), folder.into(), None, command)?;
        let server = Self { process, at };
        TcpServer::start(&server).await?;
        Ok(server)
    }

    /// Returns a free port of the loopback interface.
    ///
    /// # Errors
    /// No port is free.
    pub fn free_port() -> std::io::Result<u16> {
        supervised::free_port()
    }
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalServer").field("at", &self.at).finish_non_exhaustive()
    }
}

#[async_trait]
impl TcpServer for LocalServer {
    fn address(&self) -> SocketAddr {
        self.at
    }

    async fn start(&self) -> Result<(), FixtureError> {
        self.process.launch().await?;
        until_well(self).await.map(drop)
    }

    async fn kill(&self) -> Result<(), FixtureError> {
        self.process.kill().await
    }

    async fn pause(&self) -> Result<(), FixtureError> {
        self.process.pause().await
    }

    async fn resume(&self) -> Result<(), FixtureError> {
        self.process.resume().await
    }

    async fn health_check(&self) -> Result<(), FixtureError> {
        let looked = timeout(LOOK_LIMIT, TcpStream::connect(self.at)).await;
        if process::is_dead(self.process.pid()) {
            return Err(format!("the server has ended: {}", self.process.last_words()).into());
        }
        looked.map_err(|_| "no answer")?.map(drop).map_err(Into::into)
    }

    async fn stop(&self) {
        self.process.stop().await;
    }
}

#[derive(Clone, Copy)]
enum Away {
    /// Killed by SIGKILL, and started again.
    Killed,
    /// Stopped by SIGSTOP until SIGCONT.
    Stopped,
}

struct WithoutServer {
    away: Away,
    server: Arc<dyn TcpServer>,
}

#[async_trait]
impl Fault for WithoutServer {
    fn kind(&self) -> &'static str {
        match self.away {
            Away::Killed => "kill-server",
            Away::Stopped => "stop-server",
        }
    }

    /// Stopped for longer than a request's timeout and the ttl of most leases.
    fn duration(&self) -> Duration {
        Duration::from_secs(if matches!(self.away, Away::Killed) { 1 } else { 8 })
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        match self.away {
            Away::Killed => self.server.kill().await,
            Away::Stopped => self.server.pause().await,
        }
    }

    async fn end(&self) -> Result<String, FixtureError> {
        let started = Instant::now();
        let verb = match self.away {
            Away::Killed => {
                self.server.start().await?;
                "killed"
            }
            Away::Stopped => {
                self.server.resume().await?;
                until_well(&*self.server).await?;
                "stopped"
            }
        };
        Ok(format!("it was {verb}, and accepted requests {:.1?} after it was resumed", started.elapsed()))
    }
}
