//! What a proxy can do to connections.

use std::time::Duration;

/// A direction of traffic between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
    /// Both.
    Both,
}

impl Way {
    pub(super) fn includes(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}

/// What a [`FaultProxy`](super::FaultProxy) does to connections.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkFault {
    /// The next request or reply in this direction is swallowed, and its connection is closed.
    /// `ToServer`: the request never arrives. `ToClient`: the server has executed the request, and
    /// the reply is lost.
    Drop {
        /// Which direction; [`Way::Both`] is whichever comes first.
        way: Way,
        /// How many times.
        times: u32,
        /// Only requests that contain this text, or the replies to such requests.
        containing: Option<String>,
    },
    /// The next request or reply in this direction is swallowed, and its connection is half-open
    /// from then on. It stays open, and nothing comes through in either direction, not even the end
    /// of one side. Other connections, including new ones, are not affected.
    ///
    /// A NAT or a firewall that has lost its state does this. After
    /// [`heal`](super::FaultProxy::heal) no further connections become half-open. Those that are
    /// stay so until the proxy is dropped.
    HalfOpen {
        /// [`Way::ToServer`]: the request never arrives. [`Way::ToClient`]: the server has carried
        /// out the request, and the reply never arrives. [`Way::Both`]: whichever comes first.
        way: Way,
        /// How many requests or replies, each on a connection of its own.
        times: u32,
        /// Only requests that contain this text, or the replies to such requests. Requests from
        /// before the fault do not count; with `None` their replies are swallowed, too.
        containing: Option<String>,
    },
    /// All traffic in this direction arrives later.
    Delay {
        /// Which direction.
        way: Way,
        /// How much later.
        by: Duration,
    },
    /// All traffic arrives in small pieces, one millisecond apart.
    Split {
        /// The bytes of a piece; 0 counts as 1.
        bytes: usize,
    },
    /// Connections end by a reset (RST): existing ones at once, new ones as soon as the client has
    /// sent something.
    Reset,
    /// Connections stay open and new ones succeed, but no traffic passes in this direction, or in
    /// either with [`Way::Both`]. The traffic is held, and delivered after the fault, even if its
    /// sender has gone.
    BlackHole {
        /// Which direction.
        way: Way,
    },
}

impl NetworkFault {
    /// Loses the next `times` requests or replies, and closes their connections.
    #[must_use]
    pub fn drop_next(way: Way, times: u32) -> Self {
        Self::Drop { way, times, containing: None }
    }

    /// Swallows the next request that contains `text`, or the reply to it, and leaves that one
    /// connection [half-open](Self::HalfOpen).
    ///
    /// For a MongoDB store: `NetworkFault::half_open(Way::ToClient, "findAndModify")`.
    #[must_use]
    pub fn half_open(way: Way, text: impl Into<String>) -> Self {
        Self::HalfOpen { way, times: 1, containing: Some(text.into()) }
    }
}

/// A fault, and which connections it affects.
#[derive(Debug)]
pub(super) struct Strike {
    pub(super) fault: NetworkFault,
    pub(super) mark: Option<String>,
}

/// Whether the bytes contain the text.
pub(super) fn contains(bytes: &[u8], text: &str) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
