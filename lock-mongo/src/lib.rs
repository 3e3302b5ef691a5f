//! Distributed locks in MongoDB, for fleets that already run it.
//!
//! [`MongoProvider`] is a [`LockProvider`](distlock_api::LockProvider): one record per key in a
//! lock collection, and the record *is* the lock. What a lock promises is said there and at
//! [`LockGuard`](distlock_api::LockGuard); this page says what MongoDB adds.
//!
//! ```no_run
//! use distlock_api::LockProviderExt;
//! use distlock_mongo::MongoProvider;
//! use distlock_mongo::mongodb::Client;
//!
//! # async fn nightly_report() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::with_uri_str("mongodb://db1,db2,db3/?replicaSet=rs0").await?;
//! let locks = MongoProvider::builder(client.database("app")).owner("report-server-3").build()?;
//! // Optional: a wrong address, or a user without find, insert, update or createIndex, fails here.
//! locks.connect().await?;
//!
//! let guard = locks.acquire("reports/nightly").await?;
//! guard.run(nightly_report()).await?; // dropped at once if the lock is lost
//! let _ = guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # When which
//! [Which style should I use?](styles) compares this provider with [`DocumentLocks`], whose locks
//! live in your own documents, and shows the commands of both.
//!
//! * A lock around work whose data is **elsewhere**, or everywhere: this provider. Let the resource
//!   check the [fencing token](distlock_api::LockGuard::fencing_token) where it can.
//! * Work that ends in a change of **one MongoDB document**: [`DocumentLocks`], where the lock is
//!   in the document, and the change and the unlocking are one atomic step. Both styles are the
//!   same locks in everything else: the same protocol, waiting, renewal, tokens and administration.
//! * A change that needs no work in between: a conditional update of that document, and no lock at
//!   all.
//! * Tests and single processes: the in-memory backend of `distlock-memory`.
//!
//! # What it needs
//! **MongoDB 6.0 or later.** Older servers are refused with
//! [`Unsupported`](distlock_api::ErrorKind::Unsupported). MongoDB itself has not supported 6.0
//! since July 2025. The locks work on it, and most tests below ran on it; for a new deployment take
//! a later one.
//!
//! | deployment | |
//! |---|---|
//! | replica set | supported; also of one member |
//! | primary, secondary, arbiter | works while both members with data are up. While one of them is down, no majority can acknowledge a write: no lock is granted or released, and held ones are lost at their deadline. The arbiter elects a primary, but such a set has no fail-over for locks |
//! | standalone | works. Fencing tokens come from the server's wall clock instead of the logical one. An acquisition that was cancelled or timed out, and reaches the server after its own withdrawal, can leave a lease that nobody owns until its ttl ends |
//! | sharded | expected to work with the collection unsharded or sharded by `_id`; not tested. `$$NOW` and `$$CLUSTER_TIME` come from the router there, so the skew of the routers' clocks belongs into the safety margin |
//!
//! What has been tested, and how. *Always* means with every change; a date, by hand on that day:
//!
//! | server | deployment | what was run | when |
//! |---|---|---|---|
//! | 6.0.5 | set of one member, standalone | store tests; conformance at `standard` and under faults; in containers where there is Docker | always |
//! | 6.0.5 | set of three members | conformance at `standard` and under faults: killed, frozen and stepped-down primary, lost majority, partitions | always |
//! | 6.0.5 | set of three members | conformance at `torture`, 20 min, all faults | 2026-11 |
//! | 6.0.5 | pools of 1, 4 and 10 connections; `retryWrites=false`; read preference, read and write concern of the client | store tests | always |
//! | 6.0.5 | set of one member with access control: a wrong password, no user, users that lack one privilege each | `connect`, and the first lock (`tests/access.rs`) | always, since 2026-11-23 |
//! | 6.0.5 | set of three members, connected to a secondary alone | `connect`, and the first lock (`tests/access.rs`) | always, since 2026-11-23 |
//! | 6.0.5 | TLS: a CA that the client knows, one that it does not know, a plain server | `connect`, and the first lock | 2026-11 |
//! | 6.0.5 | primary, secondary, arbiter, all up | store tests | 2026-11-23 |
//! | 6.0.5 | primary, secondary, arbiter, the secondary or the primary killed | acquire, renew, release: `Timeout`, then `Overloaded`; granted again 3 s after the member was started | 2026-11-23 |
//! | 6.0.5 | set of one member, `directConnection=true` | store tests | 2026-11-23 |
//! | 6.0.5 | other options of the connection string, as in the table below | a part of the store tests | 2026-11-23 |
//! | 7.0.28 | set of one member | store tests; conformance at `standard` | 2026-11-23 |
//! | 8.0 | none was available | its changes are weighed in the protocol, under *Newer servers* | |
//!
//! Options of the connection string, with what was seen on 2026-11-23 on 6.0.5:
//!
//! | option | what happens |
//! |---|---|
//! | `replicaSet=NAME` | works with any member as the only host, the secondary or the arbiter included. With a wrong name no server can be used, and the error says why |
//! | neither `replicaSet` nor `directConnection`, one host | works: the driver finds the primary, also from a secondary |
//! | `directConnection=true` | works on the primary, but knows no other member. A secondary or an arbiter is refused with [`Unavailable`](distlock_api::ErrorKind::Unavailable): name the set instead |
//! | `serverSelectionTimeoutMS`, `connectTimeoutMS` (2 s each), `heartbeatFrequencyMS` (1 s) | work; a request has a limit of its own all the same ([`request_timeout`](MongoProviderBuilder::request_timeout)) |
//! | `socketTimeoutMS` | the driver refuses the connection string. It is not needed: each call has a limit |
//! | `compressors` | the driver refuses the connection string unless one of its features `zlib-compression`, `snappy-compression` or `zstd-compression` is enabled. This crate enables none; compression is not tested |
//! | `maxPoolSize`, `retryWrites`, `w`, `readPreference`, `readConcernLevel` | see the rest of this section |
//!
//! **Privileges** on the lock collection: `find`, `insert`, `update` and `createIndex`.
//! [`connect`](MongoProvider::connect) tries these four, and its error names the one that is
//! missing; so does that of the first lock. A missing `changeStream` or `listIndexes` is no error.
//!
//! | privilege that is missing | what happens |
//! |---|---|
//! | `find`, `insert`, `update` | no locks |
//! | `createIndex` | locks work, but records are never removed, and a warning is logged |
//! | `changeStream` | waiters poll, and operators cannot [watch](distlock_api::LockAdmin::watch) |
//! | `listIndexes` | a collation of the collection and TTL indexes of others are not noticed |
//!
//! **The client's pool**: all providers of a client together make no more calls at once than its
//! pool has connections, less one for the application and those of change streams
//! ([`calls_at_once`](MongoProviderBuilder::calls_at_once)): eight of the driver's default of ten,
//! and one of them is for renewals alone. Other calls wait in line: renewals go first, acquisitions
//! last, and these fail with [`Overloaded`](distlock_api::ErrorKind::Overloaded) if their turn
//! would come too late.
//!
//! **One connection** of the client's pool is taken by the change stream, as long as any provider
//! of the client listens on the database: they share it, and the driver's pools have ten
//! connections by default. For that the user needs `find` and `changeStream` on the whole database.
//! With the privilege for single collections, each collection takes a stream and a connection: at
//! most a quarter of the pool, and never more than four. The other providers' waiters poll, and so
//! do all waiters of a client whose `maxPoolSize` is below four.
//!
//! **The client's defaults play no part**: locks are written with `w: "majority"` and read from the
//! primary, whatever the connection string says. Retryable writes must be on, which is the driver's
//! default; else say [`without_retryable_writes`](MongoProviderBuilder::without_retryable_writes).
//! A collection with a default collation other than `simple` is refused ([C20]): keys that a
//! collation calls equal would be one lock.
//!
//! **A session for each held lock**: [`Client::shutdown`](mongodb::Client::shutdown) waits for all
//! sessions, so close the provider first.
//!
//! # Whose clock
//! Only the server's (contract clause [C2]): `$$NOW` inside the one command that decides. The
//! client measures durations with its monotonic clock. What must hold (rule R4): steps of the
//! server's clock, and the skew between members that succeed each other as primary, stay below the
//! [safety margin](distlock_api::LeaseOptions::safety_margin), by default a tenth of the ttl, and 1
//! s at most. Keep NTP running on the members.
//!
//! Beyond the margin, exclusion suffers for as long as the clocks differ by more:
//!
//! | what a member's clock does | what happens | what to do |
//! |---|---|---|
//! | a new primary's clock is ahead of the old one's | a lease ends early, by the difference less the margin: two holders overlap for that time. The [fence](Fence) keeps the first one out | a greater margin, or NTP that works |
//! | a step forward by an hour | all leases and minimum holds end at once; their holders notice at the next renewal | as above |
//! | a step back by an hour | the key of a holder that dies stays closed for an hour, as do minimum holds. Live holders renew and release as usual | [`force_release`](distlock_api::LockAdmin::force_release) of the keys in question |
//!
//! # Tokens
//! `max(last token + 1, clock)`. The first half makes them strictly increasing, the second carries
//! them over the removal of a record (rule R5). The clock is the replica set's logical one, seconds
//! since the beginning of 2025 × 2²¹ + the number within the second; on a standalone the server's
//! wall clock in the same magnitude, with milliseconds × 2¹¹, so that a standalone that becomes a
//! replica set goes on upwards. Tokens stay below 2⁵³ until the year 2161, so JSON, JavaScript and
//! Redis' Lua, which make doubles of them, can tell them apart.
//!
//! ## After a restore
//! Tokens grow as long as the data and the deployment's clock do. They can go back when the data is
//! restored from a backup or dumped into another deployment, or when a replica set whose cluster
//! time has run ahead of the wall clock becomes a standalone. Then a resource that remembers
//! greater tokens refuses every holder, and a late holder from before could pass. So, before the
//! first lock is taken:
//!
//! 1. Stop all clients. Find the greatest token that any resource has seen, or take a time that is
//!    surely later than the last use before: `(seconds since 2025-01-01 UTC) × 2²¹`. Call it *T*.
//! 2. [`raise_tokens(T)`](MongoStore::raise_tokens) once: it takes all locks away, and raises all
//!    records.
//! 3. Start the clients with [`token_floor(T)`](MongoProviderBuilder::token_floor), all of them,
//!    until the clock has passed *T*. It also covers the keys that have no record.
//!
//! A collection with tokens of the first format of this crate, above 2⁵³, goes on with those: give
//! the locks a new collection.
//!
//! # The collection
//! Records are removed by a TTL index, [an hour](MongoProviderBuilder::purge_after) after their
//! last use at the earliest, so the collection grows with the number of keys used per hour. Another
//! index finds the locks of an owner
//! ([unless left out](MongoProviderBuilder::without_owner_index)). Both are made in the background,
//! again after a drop; if that fails a warning is logged. A document that is no lock record stays
//! as it is, and its key cannot be locked (R22): give the locks a collection of their own.
//! **Deleting records by hand** frees locks that are held, and within that hour also puts the order
//! of tokens at risk ([C5]): use [`force_release`](distlock_api::LockAdmin::force_release) instead.
//!
//! # Documents of your own
//! [`DocumentLocks`] keep the lock in them: `lock(id)` brings the document, and a late holder
//! cannot commit. Where the lock is elsewhere, [`Fence`] keeps a late holder out of the documents
//! that a lock protects: an update carries the guard's token as a condition and as a stamp.
//!
//! # Costs
//! Each row is one operation of the [store](MongoStore); writes wait for a majority of the replica
//! set. Commands that change nothing write nothing, not even to the oplog.
//!
//! | operation | commands | |
//! |---|---|---|
//! | acquire, queue up, ask again | `findAndModify` | two for a caller that waits, if the key was free when this process last saw it, and is not |
//! | release, hand over, leave | `findAndModify` | the hand-over is the release: it grants to the first waiter. Two, if nobody waited at the grant, and somebody does now |
//! | renew up to 360 leases | `update` | and a `find` if not all could be renewed |
//! | refresh up to 360 tickets | `update`, `find` | |
//! | count the waiters | `find` | |
//! | lock a document and bring it | `findAndModify` | [`DocumentLocks::lock`]; once more if a release has granted it |
//! | commit, save | `findAndModify` | and a `find` if the lock was lost, or the reply of an earlier try |
//! | listen | `aggregate` once, then `getMore` every 5 s when nothing happens | one change stream per client and database, filtered by the server; `aggregate` again when another collection joins; none on a standalone |
//!
//! Listening costs each server that is listened to a look at every write of the whole deployment.
//!
//! [C2]: distlock_api::contract#c2
//! [C5]: distlock_api::contract#c5
//! [C20]: distlock_api::contract#c20

// The floors, from the top. A file imports only from floors below its own; `scripts/check-imports`
// tests that.
//
//     documents      locked documents: fluent calls, guard, builder
//     builder        the builder of the provider, and what both styles configure alike
//     provider       the store under the lease engine
//     store          what the engine and operators may request, handed over to
//     requests       one file per request: build by lease, send by calls, decode, decide
//     calls          one call of the driver: its session, its connection, its time
//     records        one store: its collection, options, deployment
//     shared         what all stores of one client share
//     streams        its change streams
//     pool           its connections, and the calls in flight
//     index          the TTL index and the owner index
//     topology       which deployment it is, and why no server can be used
//     lease          the record: filters, pipelines, projections and answers, without I/O
//
// On the ground: budget, claim, error, ids, numbers, recent_use. Apart: fenced.
//
// To change                                                edit
//     the record's fields, what a command says             lease/
//     which commands a request sends, and when             requests/, the request's file
//     how long a call may take, when it is cut off         calls.rs, budget.rs
//     how many calls and streams a client has              pool.rs
//     which changes a provider reads as events             lease/hints.rs
//     when a change stream is opened, shared, closed       streams/
//     what an error of the driver or the server means      error.rs
//     which options there are, and their defaults          builder/common.rs, builder.rs
//     which servers and privileges are needed              topology.rs, requests/privileges.rs

mod budget;
mod builder;
mod calls;
mod claim;
mod documents;
mod error;
mod fenced;
mod ids;
mod index;
mod lease;
mod numbers;
#[doc = include_str!("../PROTOCOL.md")]
pub mod protocol {}
mod pool;
mod provider;
mod recent_use;
mod records;
mod requests;
mod shared;
mod store;
mod streams;
#[doc = include_str!("../STYLES.md")]
pub mod styles {}
mod topology;

pub use builder::MongoProviderBuilder;
pub use documents::{
    Change, CommitError, DocumentGuard, DocumentLocks, DocumentLocksBuilder, LockAllDocuments, LockDocument, Locked,
    NotCommitted, TryLockDocument,
};
pub use fenced::{Fence, Fenced};
pub use ids::{IntegerIds, KeyMap, ObjectIds, TextIds, UuidIds};
pub use mongodb;
pub use provider::MongoProvider;
pub use store::MongoStore;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
