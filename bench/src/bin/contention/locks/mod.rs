//! The contenders on MongoDB and on PostgreSQL behind one shape.

mod distributed_lock;
mod mongo_lock;
mod mongodb_lock;
mod mutex;
pub mod ours;
mod postgres;
pub mod raw;
mod raw_postgres;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongodb::Client;
use mongodb::options::ClientOptions;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::commands::Monitor;

/// How often peers poll for a lock that is taken, where they let their callers choose: the default
/// of `distributed-lock-mongo`, the quickest among the peers' defaults. `mongodb-lock` would poll
/// every 500 ms, `mongo-lock` has no default.
pub const PEERS_POLL: Duration = Duration::from_millis(10);

/// Longer than any figure.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Whose locks are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Contender {
    /// This project's.
    Ours,
    /// Crate `distributed-lock-mongo`.
    DistributedLock,
    /// Crate `mongodb-lock`.
    MongodbLock,
    /// Crate `mongo-lock`.
    MongoLock,
    /// Two writes by hand, without contention.
    Raw,
    /// The same, but the release waits for the primary alone.
    RawEarly,
    /// This project's, by the example of a backend for PostgreSQL.
    OursPostgres,
    /// Two statements by hand in PostgreSQL, without contention.
    RawPostgres,
    /// A mutex of one process, without a server.
    Mutex,
}

impl Contender {
    /// All on MongoDB that can be waited for.
    pub const LOCKS: [Self; 4] = [Self::Ours, Self::DistributedLock, Self::MongodbLock, Self::MongoLock];
    /// [`LOCKS`](Self::LOCKS), and ours on PostgreSQL.
    pub const WITH_POSTGRES: [Self; 5] = {
        let [a, b, c, d] = Self::LOCKS;
        [a, b, c, d, Self::OursPostgres]
    };
    /// The other crates.
    pub const PEERS: [Self; 3] = [Self::DistributedLock, Self::MongodbLock, Self::MongoLock];

    /// As it is called in the tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ours => "distlock",
            Self::DistributedLock => "distributed-lock-mongo",
            Self::MongodbLock => "mongodb-lock",
            Self::MongoLock => "mongo-lock",
            Self::Raw => "raw driver",
            Self::RawEarly => "raw driver, release with w: 1",
            Self::OursPostgres => "distlock on PostgreSQL",
            Self::RawPostgres => "raw driver on PostgreSQL",
            Self::Mutex => "tokio Mutex",
        }
    }

    /// A database of its own; in PostgreSQL, a schema.
    pub const fn database(self) -> &'static str {
        match self {
            Self::Ours | Self::OursPostgres => "bench_distlock",
            Self::DistributedLock => "bench_distributed_lock",
            Self::MongodbLock => "bench_mongodb_lock",
            Self::MongoLock => "bench_mongo_lock",
            Self::Raw | Self::RawPostgres => "bench_raw",
            Self::RawEarly => "bench_raw_early",
            Self::Mutex => "none",
        }
    }

    /// The collection whose documents have the key as `_id` and their expiry as `expiresAt`; none
    /// if its locks never expire.
    pub const fn expiring_records(self) -> Option<&'static str> {
        match self {
            Self::Ours | Self::MongoLock => Some("locks"),
            Self::DistributedLock => Some("DistributedLocks"),
            Self::MongodbLock | Self::Raw | Self::RawEarly | Self::OursPostgres | Self::RawPostgres | Self::Mutex => {
                None
            }
        }
    }

    /// Whether its server is PostgreSQL.
    pub const fn is_on_postgres(self) -> bool {
        matches!(self, Self::OursPostgres | Self::RawPostgres)
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is claimed of a key. Peers claim all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// All of it.
    #[default]
    Exclusive,
    /// As a reader.
    Shared,
    /// One permit.
    Permit {
        /// The number of permits of the key.
        of: u32,
    },
}

impl From<Mode> for distlock_api::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permit { of } => Self::Permits { take: 1, of },
        }
    }
}

/// What an application would configure.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Settings {
    /// How long a lease lasts without renewal, for those that have leases.
    pub ttl_ms: u64,
    /// Whether a lease may go from one task to the next within a process. Only ours can.
    pub hand_off: bool,
    /// How long a released lease lingers. Only ours can.
    pub linger_ms: u64,
    /// Whether waiters stand in a queue in the store. Only ours can.
    pub queue: bool,
    /// What is claimed of each key.
    pub mode: Mode,
    /// Whether the commands are counted. The driver then decodes each of them for the
    /// monitor, which takes long enough to be seen in the times.
    pub counted: bool,
}

impl Settings {
    /// Leases of 30 s, handed on within a process or not, with a queue.
    pub const fn new(hand_off: bool) -> Self {
        Self { ttl_ms: 30_000, hand_off, linger_ms: 0, queue: true, mode: Mode::Exclusive, counted: true }
    }

    /// Returns these settings without counting commands.
    pub const fn uncounted(self) -> Self {
        Self { counted: false, ..self }
    }

    /// Returns these settings with another mode.
    pub const fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    fn ttl(self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }
}

/// Named locks.
#[async_trait]
pub trait Locks: Send + Sync {
    /// Waits for a lock, for as long as it takes.
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>>;
}

/// A lock that is held.
#[async_trait]
pub trait Held: Send {
    /// Its fencing token, if there are any.
    fn token(&self) -> Option<u64> {
        None
    }

    /// Whether its loss was reported to its holder.
    fn is_lost(&self) -> bool {
        false
    }

    /// Gives it back, and waits until the server has confirmed that.
    async fn release(self: Box<Self>) -> Outcome<()>;
}

/// The locks of a contender, with a client of its own, which `monitor` watches if its commands are
/// counted.
pub async fn connect(who: Contender, uri: &str, settings: Settings, monitor: &Arc<Monitor>) -> Outcome<Arc<dyn Locks>> {
    let database = who.database();
    if who == Contender::MongoLock {
        return mongo_lock::connect(uri, database, settings, Arc::clone(monitor)).await;
    }
    if who == Contender::Mutex {
        return Ok(mutex::new());
    }
    if who.is_on_postgres() {
        let monitor = settings.counted.then_some(monitor);
        return match who {
            Contender::OursPostgres => postgres::connect(uri, database, settings, monitor),
            _ => raw_postgres::connect(uri, monitor).await,
        };
    }
    // Nothing else reports when a release of `mongodb-lock` is over.
    let counted = settings.counted || who == Contender::MongodbLock;
    let client = client(uri, counted.then_some(monitor)).await?;
    Ok(match who {
        Contender::Ours => ours::connect(&client, database, settings).await?,
        Contender::DistributedLock => distributed_lock::new(&client, database, settings),
        Contender::MongodbLock => mongodb_lock::connect(&client, database, Arc::clone(monitor)).await?,
        Contender::RawEarly => raw::early(&client, database),
        _ => raw::new(&client, database),
    })
}

/// A client of driver 3 with its defaults; `monitor` counts what it sends.
pub async fn client(uri: &str, monitor: Option<&Arc<Monitor>>) -> Outcome<Client> {
    let mut options = ClientOptions::parse(uri).await?;
    options.command_event_handler = monitor.map(Monitor::handler);
    Ok(Client::with_options(options)?)
}
