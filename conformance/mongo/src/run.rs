//! The suite's runner, with servers that the processes of a run share.

use std::process::ExitCode;

use distlock_conformance::{Fixture, run_id};

use crate::{keeper, shared};

/// Runs the suite on one backend. See [`run`].
pub fn run_one(fixture: impl Fixture) -> ExitCode {
    run([Box::new(fixture) as Box<dyn Fixture>])
}

/// Runs the suite on backends as [`distlock_conformance::run`] does: the `main` of a test binary without
/// the standard harness. Under `cargo nextest` the processes of a run share their
/// [servers](crate::MongoServer).
///
/// Call it first of all: a test binary that was started as the keeper of a shared server, or as a child
/// process, never returns from it.
pub fn run(fixtures: impl IntoIterator<Item = Box<dyn Fixture>>) -> ExitCode {
    if let Some(job) = shared::job() {
        return keeper::keep(&job);
    }
    if let Some(run) = run_id() {
        shared::share(&run);
    }
    distlock_conformance::run(fixtures)
}
