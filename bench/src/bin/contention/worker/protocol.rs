//! The messages between parent and children.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::commands::Counts;
use crate::locks::{Contender, Settings};

/// The first line that a child gets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The contender, if the task takes locks.
    pub who: Contender,
    /// The server or the replica set of that contender.
    pub uri: String,
    /// How those locks are set up.
    pub settings: Settings,
    /// What to do.
    pub task: Task,
}

/// What a child does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Take turns on one key.
    Contend(Contend),
    /// Take turns on one key, by many providers with a client each.
    Crowd(Crowd),
    /// Acquire `keys` locks and hold them.
    Hold {
        /// Their keys are this and a number.
        prefix: String,
        /// How many.
        keys: usize,
    },
    /// Wait for `keys` locks that another process holds.
    Wait {
        /// Their keys are this and a number.
        prefix: String,
        /// How many.
        keys: usize,
    },
    /// Keep as many records alive with an update each, without any lock.
    RenewEach {
        /// How many.
        leases: usize,
        /// How often each.
        cadence_ms: u64,
    },
    /// Be one of several clients that write in turn, as soon as they receive the other's write.
    Relay(Relay),
    /// Serve requests over HTTP until the end of the window.
    Serve(Serve),
    /// A million keys, each used once, in memory.
    KeysOnce {
        /// Name of the contender.
        who: String,
    },
    /// Many keys, each used once; half of the acquisitions are dropped.
    Churn(Churn),
}

/// Turns on one key.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contend {
    /// The key.
    pub key: String,
    /// Tasks in this process.
    pub waiters: usize,
    /// How long each holds the lock.
    pub hold_ms: u64,
    /// Whether each yields once to the scheduler while it holds the lock.
    pub yields: bool,
    /// How long each pauses after a release.
    pub pause_ms: u64,
    /// Whether every turn is reported, or their number and a sample of the waits.
    pub every_turn: bool,
    /// Whether the commands are reported one by one.
    pub log: bool,
}

/// Turns on one key by many providers of one process, each of which stands for a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Crowd {
    /// How many providers there are.
    pub providers: usize,
    /// What each does.
    pub contend: Contend,
    /// How long before the window they start.
    pub settle_ms: u64,
}

/// The backend of locks that are used once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// `MemoryProvider`.
    Memory,
    /// The lease engine over `MemoryStore`.
    Engine,
    /// `MongoProvider`.
    MongoDb,
}

/// Acquisitions of keys that are used once.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Churn {
    /// Their backend.
    pub backend: Backend,
    /// How many there are. Memory is read after a tenth of them, and at the end.
    pub acquisitions: u64,
}

/// Requests over HTTP.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Serve {
    /// Whether the locks are those of a process without a server, whatever the contender.
    pub in_memory: bool,
    /// How long a request works under its lock.
    pub work_us: u64,
}

/// Writing in turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Relay {
    /// Which of them this is.
    pub place: u64,
    /// How many there are.
    pub of: u64,
    /// Time between hearing and writing.
    pub hold_ms: u64,
    /// Whether each also makes a second write to the same record after its own, as a holder does
    /// that queues up again.
    pub second_write: bool,
    /// The record.
    pub key: String,
}

/// When to begin and when to end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Window {
    /// Nothing happens before.
    pub start: Nanos,
    /// What is under way then is cut off.
    pub stop: Nanos,
}

impl Window {
    /// In seconds.
    pub fn seconds(self) -> f64 {
        (self.stop - self.start) as f64 / 1e9
    }
}

/// One line of a child.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// Where it listens, if it serves requests.
    Listening(SocketAddr),
    /// It waits for its window.
    Ready,
    /// Its last words.
    Report(Box<Report>),
    /// Its last words if something went wrong.
    Failed(String),
}

/// What was measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Sent in the window.
    pub commands: Counts,
    /// Processor time used in the window.
    pub cpu_ns: u64,
    /// One entry per waiter.
    pub waiters: Vec<Waiter>,
    /// Leases lost while they were held.
    pub lost: u64,
    /// A relay's hops.
    pub hops: Vec<Hop>,
    /// Commands, one by one.
    pub log: Vec<(Nanos, String)>,
    /// What a million keys left behind and took.
    pub keys_once: Option<KeysOnce>,
    /// What acquisitions of keys that are used once left behind.
    pub churned: Option<Churned>,
}

/// One task that takes turns.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Waiter {
    /// Locks acquired in the window.
    pub acquired: u64,
    /// Every turn, if `every_turn` was set.
    pub turns: Vec<Turn>,
    /// A sample of the waits, the one that was cut off included.
    pub waits_ns: Vec<u64>,
    /// Acquisitions that ended with an error.
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<String>,
    /// Releases that ended with an error.
    pub release_errors: u64,
}

/// One turn of a waiter.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Turn {
    /// The call to acquire.
    pub requested: Nanos,
    /// Its return.
    pub acquired: Nanos,
    /// The call to release.
    pub release: Nanos,
    /// The fencing token, if there are any.
    pub token: Option<u64>,
}

/// Makes a turn, for tests. The times are in milliseconds.
#[cfg(test)]
pub const fn turn(requested: u64, acquired: u64, release: u64) -> Turn {
    Turn { requested: requested * 1_000_000, acquired: acquired * 1_000_000, release: release * 1_000_000, token: None }
}

/// A write of a relay, or its receipt.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Hop {
    /// The number written.
    pub number: u64,
    /// When the client for which it is meant received it.
    pub received: Option<Nanos>,
    /// When it was sent.
    pub sent: Option<Nanos>,
}

/// A million keys.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct KeysOnce {
    /// Resident memory after less that before.
    pub left_bytes: i64,
    /// Per key.
    pub ns: f64,
}

/// What acquisitions of keys that are used once left behind.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Churned {
    /// Resident memory before the first, after a tenth of them, and at the end, in bytes.
    pub resident: [i64; 3],
    /// Futures that were dropped before they had an answer.
    pub dropped: u64,
    /// Guards that were dropped instead, because their future was quicker.
    pub guards_dropped: u64,
    /// Acquisitions that ended with an error.
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<String>,
    /// Leases and tickets that the provider or the store has left.
    pub left: u64,
    /// Records that the store would keep for ever.
    pub unpurged: u64,
    /// Records that end with their grace.
    pub in_grace: u64,
    /// The time of all acquisitions.
    pub seconds: f64,
}
