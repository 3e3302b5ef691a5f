//! An example of a backend for distlock: leases in PostgreSQL, with queues, events and
//! administration.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use distlock_api::LockProviderExt;
//! use distlock_engine::LeaseProvider;
//! use distlock_example_postgres::PostgresStore;
//!
//! let store = PostgresStore::new("postgres://app:secret@db.internal/app")?;
//! let locks = LeaseProvider::new(Arc::new(store));
//! if let Some(guard) = locks.try_acquire("orders/4711").await? {
//!     // … at most one process is here …
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! Each request is one call of a PL/pgSQL function: one statement, one transaction, one round trip.
//! A caller that leaves cannot leave half a transaction behind. A function locks the key's row and
//! then reads `clock_timestamp()`, so a wait for the row cannot revive what has expired meanwhile.
//! Under READ COMMITTED the statements after the lock see what the transactions before it have
//! committed. A poll that finds the key held takes no row lock and writes nothing.
//!
//! | file | contents |
//! |---|---|
//! | `store`, `admin` | requests |
//! | `answers`, `event` | rows and notifications as answers and events, without I/O |
//! | `calls` | the pool, time limits, and requests that are given up |
//! | `connection`, `listen` | connections for requests and for events |
//! | `install`, `statement`, `sql/*.sql` | the schema, its functions, and the statements that call them |
//! | `error`, `names`, `clock`, `builder` | errors, valid names, units, configuration |
//!
//! # Schema
//! The first request creates the schema (`distlock` by default) if it is missing or has an older
//! version, in one transaction, under an advisory lock.
//!
//! ```text
//! meta    version, floor                            one row: the schema's version, and the greatest purged token
//! lease   key (primary key), id, token, tokens,     one row per key: the holder's acquisition id, the last token
//!         granted, closed_until, owner, metadata,   of its block and the block's length, and until when the key
//!         released[8]                               is closed; the ids of the last eight releases
//! ticket  key + place (primary key), key + id,      the queue of each key, in the order of the places
//!         ends, claim_ttl, turn_after, tokens,
//!         owner, metadata
//! forced  key + nr (primary key), at, id, owner,    the last eight releases by force of each key
//!         token, reason
//! held    a view of `lease`: the keys that are not free now, for administration and for `psql`
//! ```
//!
//! * Keys, owners, metadata and reasons are `bytea`: compared byte by byte under any collation and
//!   encoding, U+0000 included. `convert_from(key, 'UTF8')` shows them. Ids are ASCII,
//!   `COLLATE "C"`.
//! * No column that a renewal changes has an index, so renewals are heap-only updates.
//! * No table is unlogged.
//!
//! # Guarantees
//! * **Time** (C2): only the server's clock counts. A step of that clock is a step of all expiries.
//! * **Tokens** (C5): the first token of a grant is the greater of the key's last token plus one
//!   and the server's clock in microseconds since 2025. They stay below 2^53 until the year 2310. A
//!   record that is purged leaves its token in `meta.floor`.
//! * **Durability**: every session has `synchronous_commit = on`, or keeps `remote_apply`. A server
//!   with `fsync=off` is [refused](PostgresStoreBuilder::accept_fsync_off).
//! * **Bounds** (C18): a request ends with its timeout, including the wait for a connection. The
//!   server cancels the statement a tenth earlier (`statement_timeout`), and its answer says that
//!   nothing happened. `statement_timeout` does not strike during a commit.
//! * **Outcomes**: a statement that the server refused was rolled back. A connection that breaks, a
//!   server process that ends, and an answer that does not come leave the outcome of a write
//!   unknown. So does a cancelled wait for a synchronous standby, which the server reports as a
//!   success.
//! * **Order** (`ordered_claims`): when a request is given up, its connection is closed and the
//!   claim remembers the server process. The claim's next request first ends that process by
//!   `pg_terminate_backend` and waits until it is gone.
//! * **Isolation** (C14): a batch of renewals skips rows that other transactions have locked. Those
//!   are renewed one by one, so a row that stays locked costs no other lease.
//! * **Queue** (C15): a release grants the lease to the head of the queue in its own transaction.
//! * **Events**: NOTIFY in the transaction that makes the change, on one channel for all watchers
//!   and one per provider. A broken connection ends the stream with an error; the engine opens the
//!   next one and queries what it may have missed. A silent connection is tested every 5 s.
//!
//! # Limits
//! * **Replication.** With an asynchronous standby a fail-over loses the last commits, and with
//!   them locks: two processes may believe that they hold one key, until the first of them renews.
//!   Use synchronous replication (`synchronous_standby_names`), promote only a synchronous standby,
//!   and make sure that the old primary takes no writes. Tokens keep growing in either case if the
//!   clocks of the servers agree better than the time that a fail-over takes: check them at the
//!   resource.
//! * **Poolers.** PgBouncer in session mode only: settings and LISTEN belong to a session, and the
//!   order of a claim's requests relies on the number of the server process.
//! * **Restored backups** bring back old leases and old tokens. Tokens grow nevertheless, because
//!   they follow the clock. Locks that were held when the server stopped are lost.
//! * A standby (hot or read-only) is never used: with several hosts the driver connects to the
//!   primary.
//! * [`LockAdmin::watch`](distlock_api::LockAdmin::watch) works where a store was built with
//!   [`lock_events`](PostgresStoreBuilder::lock_events): every grant then needs a NOTIFY, which
//!   takes a lock of the whole database at its commit.
//! * The queue of NOTIFY holds 8 GB. If a listener of any application is stuck and it is full,
//!   hand-overs and releases by force fail, and are retried; nothing is lost.
//!
//! # Privileges
//! The role that installs needs CREATE on the database. Others need USAGE on the schema, SELECT,
//! INSERT, UPDATE and DELETE on its tables, and EXECUTE on its functions. Ending a server process
//! of its own role needs no privilege.
//!
//! # Purging
//! Records of unused keys stay until they are [purged](PostgresStore::purge). The same in SQL, for
//! pg_cron, in steps of a bounded number of records:
//! `SELECT * FROM distlock.purge(NULL, 1000, 3600000000)` looks at the first 1,000 keys and removes
//! those that were unused for an hour. Its `last` is the first argument of the next step.
//!
//! # Tests
//! `cargo test -p distlock-example-postgres` finds a server, or fetches one: see
//! `tests/server/mod.rs`.

mod admin;
mod answers;
mod builder;
mod calls;
mod clock;
mod connection;
mod error;
mod event;
mod install;
mod listen;
mod names;
mod statement;
mod store;

use std::fmt;
use std::sync::Arc;

use distlock_engine::store::Lanes;
use tokio::sync::OnceCell;
use tokio_postgres::Config;

pub use tokio_postgres;

pub use self::builder::PostgresStoreBuilder;
use self::calls::Calls;
use self::connection::Dial;
use self::install::Options;
use self::names::SchemaName;

/// Leases in a PostgreSQL database. Clones share the connections.
#[derive(Clone)]
pub struct PostgresStore {
    calls: Calls,
    lanes: Lanes,
    dial: Arc<dyn Dial>,
    config: Config,
    schema: SchemaName,
    options: Options,
    /// Set when the schema has been created or found.
    installed: Arc<OnceCell<()>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.schema)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}
