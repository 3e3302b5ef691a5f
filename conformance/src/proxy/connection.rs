//! One connection through a proxy.
//!
//! Each direction is a pump. The two share the connection's task, so that the streams are closed,
//! or reset, in one place.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::sleep;

use super::fault::{NetworkFault, Strike, Way, contains};
use super::hits::Hits;

const MOST: usize = 64 * 1024;
/// The time between the pieces of split traffic.
const APART: Duration = Duration::from_millis(1);

type Strikes = watch::Receiver<Option<Arc<Strike>>>;

/// Why a connection ends before both sides have closed it.
enum Cut {
    /// Closed on both sides.
    Closed,
    /// Reset on both sides.
    Reset,
    /// Open and silent on both sides until the proxy is dropped.
    HalfOpen,
}

impl From<io::Error> for Cut {
    fn from(_: io::Error) -> Self {
        Self::Reset
    }
}

/// What happens to a piece of traffic.
enum Fate {
    Pass,
    Wait(Duration),
    Pieces(usize),
    Hold,
    Cut(Cut),
}

pub(super) struct Connection {
    strikes: Strikes,
    hits: Arc<Hits>,
    /// The first bytes from the client, in which marks are searched.
    first: OnceLock<Vec<u8>>,
    /// The reply to a request that contains the text is still pending.
    reply_is_meant: AtomicBool,
}

impl Connection {
    pub(super) fn new(strikes: Strikes, hits: Arc<Hits>) -> Self {
        Self { strikes, hits, first: OnceLock::new(), reply_is_meant: AtomicBool::new(false) }
    }

    pub(super) async fn serve(self, mut client: TcpStream, target: SocketAddr) {
        let Ok(mut server) = TcpStream::connect(target).await else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ended = {
            let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
            let up = self.pump(from_client, to_server, Way::ToServer);
            let down = self.pump(from_server, to_client, Way::ToClient);
            tokio::try_join!(up, down)
        };
        match ended {
            Err(Cut::Reset) => {
                let _ = (client.set_zero_linger(), server.set_zero_linger());
            }
            // The two streams stay open, and neither side learns that the other has closed its own.
            Err(Cut::HalfOpen) => pending().await,
            Ok(_) | Err(Cut::Closed) => {}
        }
    }

    /// Forwards the traffic of one side until that side closes, or the connection is cut.
    async fn pump(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, way: Way) -> Result<(), Cut> {
        let mut strikes = self.strikes.clone();
        let mut buffer = vec![0; MOST];
        loop {
            // Silent connections are reset, too.
            if self.is_reset(strikes.borrow_and_update().as_deref()) && self.hits.strikes() {
                return Err(Cut::Reset);
            }
            let read = tokio::select! {
                read = from.read(&mut buffer) => read?,
                changed = strikes.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return Err(Cut::Closed),
                },
            };
            let bytes = &buffer[..read];
            if way == Way::ToServer && read > 0 {
                self.first.get_or_init(|| bytes.to_vec());
            }
            self.pass(bytes, &mut to, way, &mut strikes).await?;
            if read == 0 {
                to.shutdown().await?;
                return Ok(());
            }
        }
    }

    /// Forwards one piece of traffic, which is empty at the end of the stream.
    async fn pass(&self, bytes: &[u8], to: &mut WriteHalf<'_>, way: Way, strikes: &mut Strikes) -> Result<(), Cut> {
        let (mut piece, mut held) = (bytes.len().max(1), false);
        loop {
            let fate = self.fate(strikes.borrow_and_update().as_deref(), bytes, way);
            match fate {
                Fate::Pass => break,
                Fate::Wait(by) => {
                    if !bytes.is_empty() {
                        self.hits.strikes();
                    }
                    sleep(by).await;
                    break;
                }
                Fate::Pieces(bytes) => {
                    piece = bytes.max(1);
                    break;
                }
                Fate::Hold => {
                    if !held && !bytes.is_empty() {
                        self.hits.strikes();
                    }
                    held = true;
                    strikes.changed().await.map_err(|_| Cut::Closed)?;
                }
                Fate::Cut(cut) => return Err(cut),
            }
        }
        if piece < bytes.len() {
            self.hits.strikes();
        }
        self.hits.pass(bytes.len());
        for (number, part) in bytes.chunks(piece).enumerate() {
            if number > 0 {
                sleep(APART).await;
            }
            to.write_all(part).await?;
        }
        Ok(())
    }

    fn fate(&self, strike: Option<&Strike>, bytes: &[u8], way: Way) -> Fate {
        let Some(strike) = strike.filter(|strike| self.is_meant(strike)) else { return Fate::Pass };
        match &strike.fault {
            NetworkFault::Drop { way: swallowed, containing, .. } => {
                let swallows = self.swallows(*swallowed, containing.as_deref(), bytes, way);
                if swallows { Fate::Cut(Cut::Closed) } else { Fate::Pass }
            }
            NetworkFault::HalfOpen { way: swallowed, containing, .. } => {
                let swallows = self.swallows(*swallowed, containing.as_deref(), bytes, way);
                if swallows { Fate::Cut(Cut::HalfOpen) } else { Fate::Pass }
            }
            NetworkFault::Delay { way: delayed, by } if delayed.includes(way) => Fate::Wait(*by),
            NetworkFault::Split { bytes } => Fate::Pieces(*bytes),
            NetworkFault::Reset if self.hits.strikes() => Fate::Cut(Cut::Reset),
            NetworkFault::BlackHole { way: swallowed } if swallowed.includes(way) => Fate::Hold,
            _ => Fate::Pass,
        }
    }

    /// Whether this piece is one that the fault swallows, which counts as a hit.
    fn swallows(&self, swallowed: Way, containing: Option<&str>, bytes: &[u8], way: Way) -> bool {
        let is_wanted = !bytes.is_empty() && self.is_wanted(containing, bytes, way);
        is_wanted && swallowed.includes(way) && self.hits.strikes()
    }

    /// Whether a request contains the text, or a reply belongs to one that does.
    fn is_wanted(&self, containing: Option<&str>, bytes: &[u8], way: Way) -> bool {
        let Some(text) = containing else { return true };
        if way == Way::ToServer {
            let is_wanted = contains(bytes, text);
            self.reply_is_meant.store(is_wanted, Ordering::Relaxed);
            return is_wanted;
        }
        self.reply_is_meant.swap(false, Ordering::Relaxed)
    }

    fn is_reset(&self, strike: Option<&Strike>) -> bool {
        strike.is_some_and(|strike| {
            strike.fault == NetworkFault::Reset && self.first.get().is_some() && self.is_meant(strike)
        })
    }

    fn is_meant(&self, strike: &Strike) -> bool {
        let Some(mark) = &strike.mark else { return true };
        self.first.get().is_some_and(|first| contains(first, mark))
    }
}
