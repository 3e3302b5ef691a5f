//! Distributed locks in MongoDB, for fleets that already run it.
//!
//! [`MongoProvider`] is a [`LockProvider`](distlock_api::LockProvider): one record per key in a
//! lock collection, and the record *is* the lock. The promises of a lock are documented there and
//! at [`LockGuard`](distlock_api::LockGuard). This page documents what is specific to MongoDB.
//!
//! ```no_run
//! use distlock_api::{LockError, LockProviderExt};
//! use distlock_mongo::MongoProvider;
//!
//! # async fn nightly_report() {}
//! # async fn example() -> Result<(), LockError> {
//! // A wrong address, or a user without find, insert, update or createIndex, fails here.
//! let locks = MongoProvider::connect("mongodb://db1,db2,db3/app?replicaSet=rs0").await?;
//!
//! // Acquires, works, releases. The work is dropped at once if the lock is lost.
//! locks.acquire("reports/nightly").run(async |_token| nightly_report().await).await?;
//! # Ok(())
//! # }
//! ```
//!
//! An application that has a client already, or sets options, uses [`MongoProvider::builder`].
//!
//! # Choose a style
//! The guide `styles` of `distlock` compares this provider with [`DocumentLocks`], whose locks are
//! in your own documents, and shows the commands of both.
//!
//! * The work is about data **outside of one MongoDB document**: this provider. Let the resource
//!   check the [fencing token](distlock_api::LockGuard::fencing_token) where it can.
//! * The work ends in a change of **one MongoDB document**: [`DocumentLocks`]. The lock is in the
//!   document, and the change and the release are one atomic step. In everything else both styles
//!   are the same: protocol, waiting, renewal, tokens and administration.
//! * Work that must be **done once**, and whose outcome a second caller gets: [`MongoOnce`].
//! * One update without work before it: a conditional update of the document, and no lock at all.
//! * Tests and single processes: the in-memory backend of `distlock-memory`.
//!
//! # What it needs
//! **MongoDB 6.0 or later.** Older servers are refused with
//! [`Unsupported`](distlock_api::ErrorKind::Unsupported). MongoDB ended its support of 6.0 in July
//! 2025. The locks work on it, and most tests below ran on it; use a later version for a new
//! deployment.
//!
//! Replica sets are supported, also of one member. The guide `deployments` of `distlock` says what
//! differs on a standalone server, on a set with an arbiter and on a sharded cluster, and what
//! servers lack that only speak MongoDB's protocol.
//!
//! The tests so far. *Always* means with every change; a date, by hand on that day:
//!
//! | server | deployment | what was run | when |
//! |---|---|---|---|
//! | 6.0.5 | set of one member, standalone | store tests; conformance at `standard` and under faults; in containers where there is Docker | always |
//! | 6.0.5 | set of three members | conformance at `standard` and under faults: killed, frozen and stepped-down primary, lost majority, partitions | always |
//! | 6.0.5 | set of three members | conformance at `torture`, 20 min, all faults and modes, with batches | 2026-11-26 |
//! | 6.0.5 | pools of 1, 4 and 10 connections; `retryWrites=false`; read preference, read and write concern of the client | store tests | always |
//! | 6.0.5 | set of one member with access control: a wrong password, no user, users that lack one privilege each | `prepare`, and the first lock (`tests/servers/access.rs`) | always, since 2026-11-23 |
//! | 6.0.5 | set of one member with access control: a user with the documented role only | conformance at `standard`, except what breaks servers (`tests/conformance.rs`) | always, since 2026-11-24 |
//! | 6.0.5 | set of three members, connected to a secondary alone | `prepare`, and the first lock (`tests/servers/access.rs`) | always, since 2026-11-23 |
//! | 6.0.5 | TLS: a CA that the client knows, one that it does not know | `connect`, and the first lock (`tests/servers/access.rs`) | always, since 2026-11-24 |
//! | 6.0.5 | a client with TLS and a server without | `connect`, and the first lock | 2026-11 |
//! | 6.0.5 | primary, secondary, arbiter, all up | store tests | 2026-11-23 |
//! | 6.0.5 | primary, secondary, arbiter, the secondary or the primary killed | acquire, renew, release: `Timeout`, then `Overloaded`; granted again 3 s after the member was started | 2026-11-23 |
//! | 6.0.5 | set of one member, `directConnection=true` | store tests | 2026-11-23 |
//! | 6.0.5 | other options of the connection string, as in the table below | a part of the store tests | 2026-11-23 |
//! | 7.0.28 | set of one member | store tests | 2026-11-27 |
//! | 7.0.28 | set of one member | conformance at `standard` in a lock collection | 2026-11-26 |
//! | 8.0 | none was available | its changes are weighed in the protocol, under *Newer servers* | |
//!
//! Options of the connection string, as observed on 6.0.5 on 2026-11-23:
//!
//! | option | what happens |
//! |---|---|
//! | `replicaSet=NAME` | works with any member as the only host, the secondary or the arbiter included. With a wrong name no server can be used, and the error says why |
//! | neither `replicaSet` nor `directConnection`, one host | works: the driver finds the primary, also from a secondary |
//! | `directConnection=true` | works on the primary, but knows no other member. A secondary or an arbiter is refused with [`Unavailable`](distlock_api::ErrorKind::Unavailable): name the set instead |
//! | `serverSelectionTimeoutMS`, `connectTimeoutMS` (2 s each), `heartbeatFrequencyMS` (1 s) | work; each request also has its own limit ([`request_timeout`](MongoProviderBuilder::request_timeout)) |
//! | `socketTimeoutMS` | the driver refuses the connection string. It is not needed: each call has a limit |
//! | `tls=true`, `tlsCAFile=FILE` | work. With a certificate that the client cannot verify, the error is [`Unavailable`](distlock_api::ErrorKind::Unavailable), permanent, and names the cause |
//! | `compressors` | the driver refuses the connection string unless one of its features `zlib-compression`, `snappy-compression` or `zstd-compression` is enabled. This crate enables none; compression is not tested |
//! | `maxPoolSize`, `retryWrites`, `w`, `readPreference`, `readConcernLevel` | see the rest of this section |
//!
//! **Privileges** on the lock collection: `find`, `insert`, `update` and `createIndex`.
//! [`connect`](MongoProvider::connect) and [`prepare`](MongoProvider::prepare) try these four.
//! Their error names the one that is missing, and so does the error of the first lock. A missing
//! `changeStream` or `listIndexes` is no error.
//!
//! | privilege that is missing | what happens |
//! |---|---|
//! | `find`, `insert`, `update` | no locks |
//! | `createIndex` | locks work, but records are never removed, and a warning is logged |
//! | `changeStream` | waiters poll, and operators cannot [watch](distlock_api::LockAdmin::watch) |
//! | `listIndexes` | a collation of the collection and TTL indexes of others are not noticed |
//! | `listCollections` on the database | a capped collection is noticed by another query; an encrypted one, and one that is clustered with an expiry, are not |
//!
//! **The client's pool** limits how many calls all providers of a client make at once: its number
//! of connections, less one for the application and those of change streams. With the driver's
//! default of ten these are eight, one of them for renewals alone
//! ([`calls_at_once`](MongoProviderBuilder::calls_at_once)). Other calls wait in line, renewals
//! first and acquisitions last. An acquisition whose turn would come too late fails with
//! [`Overloaded`](distlock_api::ErrorKind::Overloaded).
//!
//! **The change stream** takes one connection of the pool while any provider of the client waits
//! for events of the database. All providers of the client share it. For that the user needs `find`
//! and `changeStream` on the whole database.
//!
//! With the privilege for single collections, each collection takes a stream and a connection: at
//! most a quarter of the pool, and never more than four. The waiters of other collections poll, and
//! so do all waiters of a client whose `maxPoolSize` is below four.
//!
//! An operator's [`watch`](distlock_api::LockAdmin::watch) has a stream and a connection of its
//! own, which calls cannot use while it is open: give an operator's tool a client of its own.
//!
//! **The client's defaults** for concerns and read preference are not used: locks are written with
//! `w: "majority"`, except plain releases (rule [R23]), and read from the primary. Retryable writes
//! must be on, which is the driver's default; otherwise declare
//! [`without_retryable_writes`](MongoProviderBuilder::without_retryable_writes).
//!
//! **A collation** of the collection other than `simple` is refused ([C20]): keys that a collation
//! considers equal would be one lock.
//!
//! **A collection that loses records** is refused, because two holders could have one lock ([R6]).
//! It is capped, a time series, clustered with an expiry, or encrypted (Queryable Encryption). Or
//! it has a TTL index of another program on a date that can pass while a key is held. A view is
//! refused, and so is the database `local`, which is not replicated.
//!
//! **A server that is not MongoDB** is found out by what it cannot do. The error of
//! [`connect`](MongoProvider::connect), of [`prepare`](MongoProvider::prepare) and of the first
//! lock names what is missing. One without change streams works, and waiters poll.
//!
//! **A session for each held lock**: [`Client::shutdown`](mongodb::Client::shutdown) waits for all
//! sessions, so close the providers first: [`close_all`] does both. End a client of your own so
//! before its runtime ends: tasks of the driver that outlive it can panic.
//!
//! **The runtime of the client** must last as long as the provider, because the driver's tasks live
//! there. After its end each call fails at once and says so.
//!
//! **The Stable API** (`ClientOptions::server_api`) is supported, in its strict mode as well.
//!
//! **The driver's features** are the application's choice. The types of [`mongodb::bson`] are those
//! of `bson` 2, or of `bson` 3 if any crate of the application switches the driver's `bson-3` on.
//!
//! # Clocks
//! Only the server's clock counts (contract clause [C2]): `$$NOW` inside the one command that
//! decides. The client measures durations with its monotonic clock.
//!
//! One condition must hold (rule [R4]): steps of the server's clock, and the skew between members
//! that succeed each other as primary, stay below the
//! [safety margin](distlock_api::LeaseOptions::safety_margin). It is a tenth of the ttl by default,
//! 1 s at most. Keep NTP running on the members. Beyond the margin, exclusion is not guaranteed
//! while the clocks differ:
//!
//! | what a member's clock does | what happens | what to do |
//! |---|---|---|
//! | a new primary's clock is ahead of the old one's | a lease ends early, by the difference less the margin: two holders overlap for that time. The [fence](Fence) keeps the first one out | a greater margin, or NTP that works |
//! | a step forward by an hour | all leases and minimum holds end at once; their holders notice at the next renewal | as above |
//! | a step back by an hour | the key of a holder that dies stays closed for an hour, as do minimum holds. Live holders renew and release as usual | [`force_release`](distlock_api::LockAdmin::force_release) of the affected keys |
//!
//! # Tokens
//! A token is `max(last token + 1, clock)`. The first part makes tokens strictly increasing, the
//! second keeps the order after the removal of a record (rule [R5]).
//!
//! The clock is the logical one of the replica set: seconds since the beginning of 2025 × 2²¹ + the
//! number within the second. On a standalone it is the server's wall clock in the same magnitude,
//! with milliseconds × 2¹¹. Tokens thus still grow when the standalone becomes a replica set.
//! Tokens stay below 2⁵³ until the year 2161, so JSON, JavaScript and Redis' Lua, which convert
//! them to doubles, represent them exactly.
//!
//! ## After a restore
//! Tokens grow as long as the data and the deployment's clock do. They can become smaller when the
//! data is restored from a backup or copied to another deployment. The same holds when a replica
//! set whose cluster time is ahead of the wall clock becomes a standalone. Then a resource that has
//! seen greater tokens refuses every holder, and an earlier late holder could pass. Therefore,
//! before the first lock is taken:
//!
//! 1. Stop all clients. Find the greatest token that any resource has seen, or choose a time that
//!    is certainly after the last use: `(seconds since 2025-01-01 UTC) × 2²¹`. Call it *T*.
//! 2. Call [`raise_tokens(T)`](MongoStore::raise_tokens) once. It takes all locks away, and raises
//!    all records.
//! 3. Start all clients with [`token_floor(T)`](MongoProviderBuilder::token_floor), until the clock
//!    has passed *T*. The floor also covers the keys that have no record.
//!
//! A collection with tokens of the first format of this crate, above 2⁵³, continues with that
//! format: give the locks a new collection.
//!
//! # The collection
//! A TTL index removes records, [an hour](MongoProviderBuilder::purge_after) after their last use
//! at the earliest. The collection thus grows with the number of keys used per hour. Two owner
//! indexes find the locks of an owner ([optional](MongoProviderBuilder::without_owner_index)), one
//! of them where several hold a key. All are created in the background, and again after a drop. If
//! that fails, a warning is logged.
//!
//! A document that is no lock record is left as it is, and its key cannot be locked ([R22]): give
//! the locks a collection of their own. **Deleting records by hand** frees locks that are held, and
//! within that hour also breaks the order of tokens ([C5]). Use
//! [`force_release`](distlock_api::LockAdmin::force_release) instead.
//!
//! # Your own documents
//! [`DocumentLocks`] keep the lock in them: `lock(id)` returns the document, and a late holder
//! cannot commit. Where the lock is elsewhere, [`Fence`] keeps a late holder out of the documents
//! that a lock protects. An update has the guard's token as a condition and as a stamp.
//! [`FencedTransaction`] does so for transactions of several documents.
//!
//! # Costs
//! Each row is one operation of the [store](MongoStore). Writes wait for a majority of the replica
//! set, plain releases for the primary alone (rule [R23]). Commands that change nothing write
//! nothing, not even to the oplog.
//!
//! | operation | commands | |
//! |---|---|---|
//! | acquire, take a ticket, acquire again | `findAndModify` | two for a caller that waits, if the key was free when this process last saw it, and is in use now |
//! | release, hand over, leave | `findAndModify` | the hand-over is the release: it grants to the first waiter. Two, if there was no waiter at the grant, and there is one now |
//! | acquire [shared or by permits](distlock_api::Mode) | `findAndModify` | one whether or not others hold the key |
//! | release of one of several holders | `findAndModify` | grants to all waiters that fit beside those that are left |
//! | renew up to 360 leases | `update` | and a `find` if not all could be renewed, or if one key has several of these leases |
//! | refresh up to 360 tickets | `update`, `find` | |
//! | count the waiters | `find` | |
//! | lock a document and return it | `findAndModify` | [`DocumentLocks::lock`]; once more if a release has granted it |
//! | commit, save | `findAndModify` | and a `find` if the lock was lost, or the reply of an earlier try |
//! | read events | `aggregate` once, then a `getMore` while a subscriber waits for events, answered after 5 s at the latest | one change stream per client and database, filtered by the server; `aggregate` again when another collection joins; none on a standalone |
//!
//! A server with an open change stream examines every write of the whole deployment.
//!
//! [C2]: distlock_api::contract#c2
//! [C5]: distlock_api::contract#c5
//! [C20]: distlock_api::contract#c20
//! [R4]: crate::protocol#r4
//! [R5]: crate::protocol#r5
//! [R6]: crate::protocol#r6
//! [R22]: crate::protocol#r22
//! [R23]: crate::protocol#r23

// The floors, from the top. A file imports only from floors below its own; `scripts/check-imports`
// tests that.
//
//     once              work that is done once: locked documents with a remembered outcome
//     documents         locked documents: fluent calls, guard, builder
//     builder           the builder of the provider, and the options of both styles
//     provider          the store under the lease engine
//     store             the requests of the engine and of operators, passed to
//     requests          one file per request: build by lease, send by calls, decode, decide
//     calls             one call of the driver: its session, its connection, its time
//     records           one store: its collection, options, deployment
//     client_resources  the pool and the streams of one client
//     streams           its change streams
//     pool              its connections, and the calls in flight
//     index             the TTL index and the owner indexes
//     topology          the kind of deployment and of collection, and why no server can be used
//     lease             the record: filters, pipelines, projections and answers, without I/O
//
// On the ground: bson, budget, claim, error, ids, key_memory, numbers. Apart: fenced.
//
// The walk of an acquisition or of a release: lease/plan says which paths to try – requests/run
// takes one after the other – lease/acquire, release_fast, hand_over and release_full make the step
// of a path – calls `change` bounds it, numbers it (the claim's session) and sends it.
// Of renewals: requests/renew `extend_once`, one update for all, and a find only if not all were
// extended.
//
// To change                                                edit
//     the record's fields, the text of a command           lease/
//     which commands a request sends, and when             lease/plan.rs, requests/
//     how long a call may take, when it is cut off         calls.rs, budget.rs
//     how many calls and streams a client has              pool.rs
//     which changes a provider reads as events             lease/decoder.rs
//     when a change stream is opened, shared, closed       streams/
//     the translation of errors                            error.rs
//     the options and their defaults                       builder/common.rs, builder.rs
//     the servers and privileges that are needed           topology.rs, calls/privileges.rs

mod bson;
mod budget;
mod builder;
mod calls;
mod claim;
mod client_resources;
mod close_all;
mod documents;
mod error;
mod fenced;
mod ids;
mod index;
mod key_memory;
mod lease;
mod numbers;
mod once;
#[doc = include_str!("../PROTOCOL.md")]
pub mod protocol {}
mod pool;
mod provider;
mod records;
mod requests;
mod server_clock;
mod store;
mod streams;
mod topology;

pub use builder::MongoProviderBuilder;
pub use close_all::close_all;
pub use distlock_engine::{HandOff, QueueOptions, WhenFull};
pub use documents::{
    Change, CommitError, DocumentGuard, DocumentLocks, DocumentLocksBuilder, LockAllDocuments, LockDocument,
    NotCommitted, TryLockAllDocuments, TryLockDocument,
};
pub use fenced::{Fence, Fenced, FencedTransaction, TransactionError, TransactionWork};
pub use ids::{IntegerIds, KeyMap, ObjectIds, TextIds, UuidIds};
pub use mongodb;
pub use once::{MongoOnce, MongoOnceBuilder};
pub use provider::MongoProvider;
pub use store::MongoStore;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
