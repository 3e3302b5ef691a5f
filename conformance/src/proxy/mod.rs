//! Faults between a client and its server: a proxy for any protocol over TCP.
//!
//! A [`FaultProxy`] listens on loopback and passes every connection on to a server. [`strike`](FaultProxy::strike) begins a [`NetworkFault`] – one at a time –,
//! [`heal`](FaultProxy::heal) ends it and tells how often it hit. A fault that hit nothing proves nothing, so look at that number.
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
//! // The server answers, and the client never hears of it.
//! proxy.strike(NetworkFault::drop_next(Way::ToClient, 1));
//! client.write_all(b"hello").await?;
//! assert_eq!(client.read(&mut answer).await?, 0);
//! assert_eq!(proxy.heal(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! What a client sends is not understood, only looked at: a fault can be
//! [aimed](FaultProxy::strike_marked) at the connections whose first bytes contain a text – a
//! MongoDB driver begins with its `appName` –, and a [drop](NetworkFault::Drop) or a [half-open
//! connection](NetworkFault::HalfOpen) at the requests that contain one. "First bytes" and
//! "request" are what one read of up to 64 KiB brings: enough for protocols of question and answer
//! over loopback. [`until_hit`](FaultProxy::until_hit) waits until a fault has hit.

mod connection;
mod fault;
mod hits;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use self::connection::Connection;
use self::fault::Strike;
pub use self::fault::{NetworkFault, Way};
use self::hits::Hits;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// A TCP proxy with faults; see the [module](self). Dropped, it ends with all its connections.
pub struct FaultProxy {
    address: SocketAddr,
    target: SocketAddr,
    strikes: watch::Sender<Option<Arc<Strike>>>,
    hits: Arc<Hits>,
    task: AbortHandle,
}

impl FaultProxy {
    /// Listens on a free port of `127.0.0.1` and passes connections on to `target`.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), target).await
    }

    /// Listens on an address of your choice; port 0 is any free one.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub async fn listen(at: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?;
        let (strikes, hits) = (watch::Sender::new(None), Arc::<Hits>::default());
        let serving = serve(listener, target, strikes.clone(), Arc::clone(&hits));
        let task = tokio::spawn(serving).abort_handle();
        Ok(Self { address, target, strikes, hits, task })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections are passed on to.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// Begins a fault, in the place of the one before. Connections that are there are hit as well as new ones.
    pub fn strike(&self, fault: NetworkFault) {
        self.begin(fault, None);
    }

    /// Begins a fault for those connections alone whose first bytes contain `mark`.
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

    /// Ends the fault and tells how often it hit since it began: drops and held or delayed or split pieces of traffic, or connections that were reset.
    /// What a black hole had held goes its way now, as packets do that are sent again after a cut.
    /// A connection that is [half-open](NetworkFault::HalfOpen) stays so.
    #[must_use = "a fault that hit nothing proves nothing"]
    pub fn heal(&self) -> u64 {
        self.strikes.send_replace(None);
        self.hits.hit()
    }

    /// How often the fault has hit since it began, or had until it was healed.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits.hit()
    }

    /// Waits until the fault has hit at least `times` times since it began. If it never does, this
    /// never returns: put a timeout around it.
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
    /// Nothing is lost when the future is dropped.
    pub async fn until_hit(&self, times: u64) {
        self.hits.until_hit(times).await;
    }

    /// How many bytes have been passed on so far, in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.hits.passed()
    }

    /// How many connections there have been so far.
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
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    hits.connected();
                    let connection = Connection::new(strikes.subscribe(), Arc::clone(&hits));
                    connections.spawn(connection.serve(client, target));
                }
                // Too many open files, or a client that has gone already: others may still come.
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests;
