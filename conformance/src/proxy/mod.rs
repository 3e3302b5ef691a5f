//! Faults between a client and its server: a proxy for any protocol over TCP.
//!
//! A [`FaultProxy`] listens on loopback and forwards every connection to a server.
//! [`strike`](FaultProxy::strike) begins a [`NetworkFault`], one at a time.
//! [`heal`](FaultProxy::heal) ends it and returns how often it hit. A fault that hit nothing proves
//! nothing, so check that number.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use tokio::net::{TcpListener, TcpStream};
//!
//! # let server = TcpListener::bind("127.0.0.1:0").await?;
//! # let server_address = server.local_addr()?;
//! # tokio::spawn(async move { while let Ok((mut client, _)) = server.accept().await {
//! #     let (mut from, mut to) = client.split();
//! #     let _ = tokio::io::copy(&mut from, &mut to).await;
//! # } });
//! let proxy = FaultProxy::start(server_address).await?;
//! let mut client = TcpStream::connect(proxy.address()).await?;
//! let mut answer = [0; 5];
//! client.write_all(b"hello").await?;
//! client.read_exact(&mut answer).await?;
//!
//! // The server answers, and the reply is lost.
//! proxy.strike(NetworkFault::drop_next(Way::ToClient, 1));
//! client.write_all(b"hello").await?;
//! assert_eq!(client.read(&mut answer).await?, 0);
//! assert_eq!(proxy.heal(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! The proxy does not parse the traffic, but it can search it. A fault can be
//! [aimed](FaultProxy::strike_marked) at connections whose first bytes contain a text: a MongoDB
//! driver begins with its `appName`.
//!
//! A [drop](NetworkFault::Drop) or a [half-open connection](NetworkFault::HalfOpen) can be aimed at
//! requests that contain a text. "First bytes" and "request" are the result of one read of up to 64
//! KiB, which is enough for request–reply protocols over loopback.
//! [`until_hit`](FaultProxy::until_hit) waits until a fault has hit.

mod connection;
mod fault;
mod hits;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::connection::Connection;
use self::fault::Strike;
pub use self::fault::{NetworkFault, Way};
use self::hits::Hits;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// A TCP proxy with faults; see the [module](self). It ends with all its connections soon after it
/// is dropped; [`close`](Self::close) waits for that.
pub struct FaultProxy {
    address: SocketAddr,
    target: SocketAddr,
    strikes: watch::Sender<Option<Arc<Strike>>>,
    hits: Arc<Hits>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl FaultProxy {
    /// Listens on a free port of `127.0.0.1` and forwards connections to `target`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), target).await
    }

    /// Listens on the address `at` and forwards connections to `target`. Port 0 is any free one.
    ///
    /// # Errors
    /// The proxy cannot listen there.
    pub async fn listen(at: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?;
        let (strikes, hits) = (watch::Sender::new(None), Arc::<Hits>::default());
        let (stop, stopped) = oneshot::channel();
        let serving = serve(listener, target, strikes.clone(), Arc::clone(&hits), stopped);
        let task = tokio::spawn(serving);
        Ok(Self { address, target, strikes, hits, stop: Some(stop), task })
    }

    /// Ends the proxy, and waits for the end of all its connections. Afterwards nothing passes, and
    /// the address is free.
    ///
    /// # Cancel safety
    /// If the future is dropped, the proxy ends all the same.
    pub async fn close(mut self) {
        // If nothing receives it, the task has ended with its runtime.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = (&mut self.task).await;
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address to which connections are forwarded.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// Begins a fault, which replaces the previous one. It affects existing connections and new
    /// ones.
    pub fn strike(&self, fault: NetworkFault) {
        self.begin(fault, None);
    }

    /// Begins a fault only for connections whose first bytes contain `mark`.
    pub fn strike_marked(&self, fault: NetworkFault, mark: impl Into<String>) {
        self.begin(fault, Some(mark.into()));
    }

    fn begin(&self, fault: NetworkFault, mark: Option<String>) {
        self.hits.begin(match &fault {
            NetworkFault::Drop { times, .. } | NetworkFault::HalfOpen { times, .. } => (*times).into(),
            _ => u64::MAX,
        });
        self.strikes.send_replace(Some(Arc::new(Strike { fault, mark })));
    }

    /// Ends the fault and returns how often it hit since it began. It counts drops, pieces of
    /// traffic that were held, delayed or split, and connections that were reset.
    ///
    /// Traffic that a black hole held is delivered now, like packets that are sent again after a
    /// cut. A [half-open](NetworkFault::HalfOpen) connection stays half-open.
    #[must_use = "a fault that hit nothing proves nothing"]
    pub fn heal(&self) -> u64 {
        self.strikes.send_replace(None);
        self.hits.hit()
    }

    /// Returns how often the fault has hit since it began, or until it was healed.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.hit()
    }

    /// Waits until the fault has hit at least `times` times since it began. If that never happens,
    /// this never returns, so use a timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use distlock_conformance::proxy::{FaultProxy, NetworkFault, Way};
    /// # async fn example(proxy: FaultProxy) -> Result<(), Box<dyn std::error::Error>> {
    /// proxy.strike(NetworkFault::half_open(Way::ToClient, "findAndModify"));
    /// // … a client sends such a command …
    /// tokio::time::timeout(Duration::from_secs(10), proxy.until_hit(1)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future has no effect.
    pub async fn until_hit(&self, times: u64) {
        self.hits.until_hit(times).await;
    }

    /// Returns how many bytes have been forwarded so far, in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.hits.passed()
    }

    /// Returns how many connections have been opened so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.hits.connections()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("FaultProxy");
        shown.field("address", &self.address).field("target", &self.target);
        shown.field("strike", &*self.strikes.borrow()).finish_non_exhaustive()
    }
}

/// Connections are tasks of this one, and end with it.
async fn serve(
    listener: TcpListener,
    target: SocketAddr,
    strikes: watch::Sender<Option<Arc<Strike>>>,
    hits: Arc<Hits>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    hits.connected();
                    let connection = Connection::new(strikes.subscribe(), Arc::clone(&hits));
                    connections.spawn(connection.serve(client, target));
                }
                // Too many open files, or a client that has gone already: later connections may
                // succeed.
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
