//! The suite's runner, with servers that the processes of a run share.

use std::process::ExitCode;

use distlock_conformance::{Fixture, run_id};

use crate::{keeper, shared};

/// Runs the suite on one backend. See [`run`].
///
/// ```no_run
/// use std::process::ExitCode;
/// use distlock_conformance::Fixture;
/// # fn my_fixture() -> impl Fixture { Mine }
/// # use distlock_conformance::{Client, FixtureError, Profile, async_trait};
/// # struct Mine;
/// # #[async_trait]
/// # impl Fixture for Mine {
/// #     fn name(&self) -> &str { "mine" }
/// #     fn profile(&self) -> Profile { Profile::new(Default::default()) }
/// #     async fn clients(&self, _: usize) -> Result<Vec<Client>, FixtureError> { Ok(Vec::new()) }
/// # }
///
/// fn main() -> ExitCode {
///     distlock_conformance_mongo::run_one(my_fixture())
/// }
/// ```
pub fn run_one(fixture: impl Fixture) -> ExitCode {
    run([Box::new(fixture) as Box<dyn Fixture>])
}

/// Runs the suite on some backends as [`distlock_conformance::run`] does. This is the whole `main`
/// of a test binary with `harness = false`. Under `cargo nextest` the processes of a run share
/// their [servers](crate::MongoServer).
///
/// Call it at the beginning of `main`. In the keeper of a shared server, or in a child process, it
/// does that process's job instead of running the suite.
pub fn run(fixtures: impl IntoIterator<Item = Box<dyn Fixture>>) -> ExitCode {
    if let Some(job) = shared::job() {
        return keeper::keep(&job);
    }
    if let Some(run) = run_id() {
        shared::share(&run);
    }
    distlock_conformance::run(fixtures)
}
