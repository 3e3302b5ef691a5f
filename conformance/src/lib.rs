//! Conformance suite for distlock backends.
//!
//! A backend author writes a [`Fixture`] – how to get clients of the backend, and what it promises – and a test binary of
//! one line:
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
//! # struct MyFixture;
//! # #[async_trait]
//! # impl Fixture for MyFixture {
//! #     fn name(&self) -> &str { "mine" }
//! #     fn profile(&self) -> Profile { Profile::new(Default::default()) }
//! #     async fn clients(&self, _: usize) -> Result<Vec<Client>, FixtureError> { Ok(Vec::new()) }
//! # }
//! // tests/conformance.rs, with `harness = false` in Cargo.toml
//! fn main() -> ExitCode {
//!     distlock_conformance::run_one(MyFixture)
//! }
//! ```
//!
//! [`tutorial`] goes the whole way, from an empty crate to a passing suite; [`tutorial::network`] is
//! about stores that are servers.
//!
//! Every check is named after the clause of the contract that it holds the backend to, such as
//! `my-backend::C5_fencing::across_release`, so that a failure says which promise is broken.
//!
//! # Running it
//! The binary takes the usual arguments of a Rust test binary – a filter, `--exact`, `--skip`, `--list`, `--test-threads` – and these:
//!
//! | option | environment variable | meaning | default |
//! |---|---|---|---|
//! | `--level` | `DISTLOCK_CONFORMANCE_LEVEL` | [`smoke`](Level::Smoke): seconds; [`standard`](Level::Standard): minutes; [`torture`](Level::Torture): as long as you say | `standard` |
//! | `--minutes` | `DISTLOCK_CONFORMANCE_MINUTES` | how long `torture` goes on; a part of a minute is possible. The round that has begun is finished, and one in which a check failed is the last | 10 |
//! | `--rounds` | `DISTLOCK_CONFORMANCE_ROUNDS` | how often `smoke` and `standard` run in a row, each time with a fresh seed; a round in which a check failed is the last | 1 |
//! | `--seed` | `DISTLOCK_CONFORMANCE_SEED` | from which everything random in checks derives, for each check by its name | random |
//! | `--report` | `DISTLOCK_CONFORMANCE_REPORT` | the directory to which reports are written; a relative one starts at the package, where Cargo runs its tests | none |
//!
//! An option outranks its variable. Use variables where other test binaries are run by the same command, since those do not know the options.
//!
//! A check that fails prints the clause's text, the calls that show the failure – who held what when –, the seed, and the command that runs just that check again:
//! it takes the same keys and makes the same choices. What the scheduler, the network and the backend do by chance is not in the seed.
//!
//! A report is `index.html` – a page that needs nothing but itself: a table of clauses and backends, timelines of what failed, and how long grants and hand-overs took –, and
//! for each backend the same as JSON and as JUnit XML. The page shows all backends whose JSON is in the directory, so that several test
//! binaries can share it; a further run replaces what it examines.
//!
//! Under `cargo nextest` each check is a process of its own: the processes of a run add to one report,
//! `--minutes` is the time of each check, and a fixture of yours is started for each check. What it
//! starts can be shared by the processes of one [run](run_id), as the servers of
//! `distlock-conformance-mongo` are.
//!
//! # What a check relies on
//! Every call of every client is recorded ([`history`]); checks of many calls are judged by what was recorded, and fail if that was too little to prove anything. Keys are random, fresh clients are made for each check, and checks run in parallel, except those that damage a deployment of their own ([`Arena`]), which run alone. Lower bounds are strict (to the millisecond
//! that stores count in); upper bounds are generous, because a busy machine is not a broken backend. A check that waits
//! for something says what it waited for.
//!
//! Before the first check operations of the backend are timed: on a slow store or a busy machine the
//! leases of checks last longer, and what is too slow to be judged is told so. Pauses of the suite's own
//! tasks are measured all the time, and count in the same way.
//!
//! That all this would notice is tested by backends which are broken on purpose; `BROKEN.md` in this crate shows which clause catches which, by which check, and in which words. A
//! [`Failure`] has a [kind](FailureKind), so that a crash or an unexpected error is not taken for a verdict.
//!
//! # Features
//! * `containers`: [any service in a container](container) for fixtures, with pauses, kills, restarts and network cuts.
//! * `faketime`: finds or fetches the `libfaketime` that clients with wrong clocks take, where `DISTLOCK_FAKETIME_LIB` does not name one. Without dependencies.
//!
//! MongoDB servers for fixtures, and a replica set that may be damaged, are in `distlock-conformance-mongo`.

mod arena;
mod bare;
mod bounded;
mod check;
mod checks;
mod child;
mod clause;
mod client;
#[cfg(feature = "containers")]
pub mod container;
mod context;
mod controls;
mod disturbed;
mod failure;
#[cfg(feature = "faketime")]
mod faketime;
pub mod fetch;
mod figures;
mod findings;
mod fixture;
pub mod history;
mod leases;
mod level;
mod need;
mod pace;
pub mod process;
mod profile;
pub mod proxy;
mod recorder;
mod report;
mod runner;
mod stage;
mod supervised;
mod torture;
// Its code is that of `examples/sqlite`, compiled there and compared by a test.
#[cfg(not(doctest))]
#[doc = include_str!("../TUTORIAL.md")]
pub mod tutorial {
    #[doc = include_str!("../TUTORIAL_NETWORK.md")]
    pub mod network {}
}

pub use arena::{Arena, Fault, Hook, LocalServer, ProxyFaults, TcpArena, TcpServer};
pub use check::Check;
pub use checks::all as checks;
pub use clause::Clause;
pub use client::Client;
pub use controls::{Controls, Operation, Pushes, SeenRenewal};
pub use disturbed::DisturbedStore;
pub use failure::{Failure, FailureKind, FixtureError};
#[cfg(feature = "faketime")]
pub use faketime::{FaketimeError, faketime_library};
pub use fixture::Fixture;
pub use level::Level;
pub use need::Need;
pub use profile::Profile;
pub use runner::{Outcome, ProbeError, Report, examine, probe, run, run_child, run_id, run_one};
pub use supervised::Supervised;

/// For the images of a [`container::Service`].
#[cfg(feature = "containers")]
pub use testcontainers;

/// For implementing [`Fixture`] and [`Controls`].
pub use distlock_api::async_trait;
