//! Conformance suite for distlock backends.
//!
//! A backend author implements a [`Fixture`], which makes clients of the backend and declares what
//! it promises. The test binary is one line:
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
//! The [`tutorial`] leads from an empty crate to a passing suite. Its last part covers stores that
//! are servers.
//!
//! Every check is named after the clause of the contract that it tests, such as
//! `my-backend::C5_fencing::across_release`, so that a failure names the broken promise. The checks
//! of [leadership](distlock_recipes::lead) (L1–L8) run on every backend. Those of work that is done
//! [once](distlock_recipes::once) (O1–O11) run on backends that have it: [`Profile::once`].
//!
//! # Running it
//! The binary takes the usual arguments of a Rust test binary – a filter, `--exact`, `--skip`,
//! `--list`, `--test-threads` – and these:
//!
//! | option | environment variable | meaning | default |
//! |---|---|---|---|
//! | `--level` | `DISTLOCK_CONFORMANCE_LEVEL` | [`smoke`](Level::Smoke): seconds; [`quick`](Level::Quick): a minute; [`standard`](Level::Standard): minutes; [`torture`](Level::Torture): as long as `--minutes` | `quick` |
//! | `--minutes` | `DISTLOCK_CONFORMANCE_MINUTES` | how long `torture` runs, as a decimal number. The current round is finished; a round in which a check failed is the last | 10 |
//! | `--rounds` | `DISTLOCK_CONFORMANCE_ROUNDS` | how many times the other levels run, each time with a new seed; a round in which a check failed is the last | 1 |
//! | `--seed` | `DISTLOCK_CONFORMANCE_SEED` | the source of all random choices; each check derives its own from it and its name | random |
//! | `--pairs` | | prints which two features of a store meet, the checks that examine both, and which of them run on the fixtures; runs nothing | |
//! | `--report` | `DISTLOCK_CONFORMANCE_REPORT` | the directory for the reports; a relative path starts at the package's folder, where Cargo runs tests | none |
//!
//! An option takes precedence over its variable. Use the variables if the same command also runs
//! other test binaries, which do not accept the options.
//!
//! A check that fails prints the clause's text, the calls that show the failure, the seed, and the
//! command that repeats the check. The repetition uses the same keys and makes the same choices.
//! The seed does not determine what the scheduler, the network and the backend do.
//!
//! A report consists of `index.html` and, for each backend, a JSON and a JUnit XML file. The page
//! needs no other file. It has a table of clauses and backends, timelines of the failures, and the
//! durations of grants and hand-overs. It shows all backends whose JSON is in the directory, so
//! several test binaries can share one. A later run replaces the backends that it examines. What a
//! profile declares to be [weaker](Profile::weaker) stands in all of them, and in the terminal.
//!
//! Under `cargo nextest` each check is a separate process. The processes of a run add to one
//! report, `--minutes` applies to each check, and each check starts its fixture. The processes of
//! one [run](run_id) can share what a fixture starts, as those of `distlock-conformance-mongo`
//! share servers.
//!
//! # What a check relies on
//! * Every call of every client is recorded ([`history`]). Checks with many calls are judged by
//!   that record, and fail if it is too short to prove anything.
//! * Keys are random, and each check gets new clients.
//! * Checks run in parallel. Those that damage their own deployment ([`Arena`]) run one at a time,
//!   beside half as many others.
//! * Lower bounds are strict, to the millisecond. Upper bounds are generous, because a busy machine
//!   is not a broken backend.
//! * A check that times out names the event that it waited for.
//!
//! The suite times some operations of the backend before the first check. On a slow store or a busy
//! machine the checks use longer leases, and `profile::fast_enough` fails if the backend is too
//! slow to be judged. The suite also measures the pauses of its own tasks all the time, and
//! lengthens the leases accordingly. If a renewed lease is lost all the same, and a request of the
//! check was too slow for it, the check runs again with a longer one, and says so.
//!
//! The suite itself is tested with backends that are broken on purpose. `BROKEN.md` in this crate
//! lists which check of which clause finds which defect, with the message. A [`Failure`] has a
//! [kind](FailureKind), so that a crash or an unexpected error is not mistaken for a verdict.
//! Conversely, stores that are [slow](Slowness) and keep every promise must pass.
//!
//! # Features
//! * `containers`: `container::Service`, any service in a container for fixtures, with pauses,
//!   kills, restarts and network cuts.
//! * `faketime`: finds or fetches the `libfaketime` for clients with wrong clocks if
//!   `DISTLOCK_FAKETIME_LIB` does not name one. Adds no dependencies.
//!
//! `distlock-conformance-mongo` has MongoDB servers for fixtures, and a disposable replica set for
//! fault injection.

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
mod pairs;
pub mod process;
mod profile;
pub mod proxy;
mod recorder;
mod report;
mod runner;
mod slowness;
mod stage;
mod supervised;
mod torture;
// Its code is that of `tests/first_store`, `examples/sqlite` and `examples/postgres`, compiled
// there. The tests `tutorial` of the examples compare them.
#[cfg(not(doctest))]
#[doc = include_str!("../TUTORIAL.md")]
pub mod tutorial {}

pub use arena::{Arena, Fault, Hook, LocalServer, ProxyFaults, TcpArena, TcpServer};
pub use check::Check;
pub use checks::all as checks;
pub use clause::Clause;
pub use client::Client;
pub use disturbed::DisturbedStore;
pub use failure::{Failure, FailureKind, FixtureError};
#[cfg(feature = "faketime")]
pub use faketime::{FaketimeError, faketime_library};
pub use fixture::Fixture;
pub use level::Level;
pub use need::Need;
pub use profile::Profile;
pub use runner::{Outcome, ProbeError, Report, examine, probe, run, run_child, run_id, run_one};
pub use slowness::Slowness;
pub use supervised::Supervised;

/// For the images of a [`container::Service`].
#[cfg(feature = "containers")]
pub use testcontainers;

/// For implementing [`Fixture`].
pub use distlock_api::async_trait;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
