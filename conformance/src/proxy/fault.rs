//! What a proxy can do to connections.

use std::time::Duration;

/// A direction between client and server.
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
    /// What comes next in this direction is swallowed, and its connection closed. `ToServer`: the request never arrives. `ToClient`: the server has done what it was asked for,
    /// and nobody hears of it.
    Drop {
        /// Which of the two; [`Way::Both`] is whatever comes first.
        way: Way,
        /// So many times.
        times: u32,
        /// Only requests that contain this text, or the replies to such requests.
        containing: Option<String>,
    },
    /// Everything in this direction arrives so much later.
    Delay {
        /// Which direction.
        way: Way,
        /// How much later.
        by: Duration,
    },
    /// Everything arrives in pieces of so many bytes, one millisecond apart.
    Split {
        /// How many; 0 counts as 1.
        bytes: usize,
    },
    /// Connections end by a reset (RST): those that are there at once, new ones as soon as the client has said something.
    Reset,
    /// Connections stay open and can be made, and nothing comes through in this direction – or in neither. It is held, and passed on after
    /// the fault, even if its sender has given up meanwhile.
    BlackHole {
        /// Which direction.
        way: Way,
    },
}

impl NetworkFault {
    /// The next so many requests, or replies, are lost with their connections.
    #[must_use]
    pub fn drop_next(way: Way, times: u32) -> Self {
        Self::Drop { way, times, containing: None }
    }
}

/// A fault, and whom it hits.
#[derive(Debug)]
pub(super) struct Strike {
    pub(super) fault: NetworkFault,
    pub(super) mark: Option<String>,
}

/// Whether the bytes contain the text.
pub(super) fn contains(bytes: &[u8], text: &str) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
