//! Runs checks on fixtures.

mod examine;
mod profile;
mod table;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::check::Check;
use crate::checks;
use crate::child;
use crate::fixture::Fixture;
use crate::stage::Stage;
pub use examine::{Outcome, Report, examine};
use table::{Column, Table};

/// Most checks wait for a clock most of the time: so many run at once for each processor, unless `--test-threads` says otherwise.
const CHECKS_PER_PROCESSOR: usize = 4;

/// Runs the suite on one backend. See [`run`].
pub fn run_one(fixture: impl Fixture) -> ExitCode {
    run([Box::new(fixture) as Box<dyn Fixture>])
}

/// Runs the suite on backends: the `main` of a test binary without the standard harness.
///
/// It takes the arguments of any Rust test binary (a filter, `--list`, `--exact`, `--test-threads`, …). Fixtures start with their first check and
/// are stopped before it returns. In the end it prints how many checks passed, failed and were refused by design, for each fixture.
///
/// The exit code is a failure if a check failed, and if none ran on one of the fixtures although none was filtered out.
///
/// Call it first of all: a test binary that was started as a child process never returns from it.
pub fn run(fixtures: impl IntoIterator<Item = Box<dyn Fixture>>) -> ExitCode {
    let fixtures: Vec<Box<dyn Fixture>> = fixtures.into_iter().collect();
    if let Some(job) = child::job() {
        return child::serve(&job, fixtures);
    }
    let mut arguments = Arguments::from_args();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(processors * CHECKS_PER_PROCESSOR);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the suite cannot start its runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stages: Vec<Arc<Stage>> = fixtures.into_iter().map(|fixture| Stage::new(fixture.into())).collect();
    let table = Table::default();
    let trials = stages.iter().flat_map(|stage| trials_of(stage, &runtime, &table)).collect();

    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(futures_util::future::join_all(stages.iter().map(|stage| stage.stop())));
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));

    if arguments.list {
        return ExitCode::SUCCESS;
    }
    if table.checks() > 1 {
        println!("{table}");
    }
    let filtered = arguments.filter.is_some() || !arguments.skip.is_empty() || arguments.ignored;
    // The checks of the profile run always, and prove nothing about the backend.
    let silent = stages.iter().filter(|stage| table.ran(stage.name()) <= profile::TRIALS.len());
    let silent: Vec<&str> = silent.map(|stage| stage.name()).collect();
    if !filtered && (stages.is_empty() || !silent.is_empty()) {
        eprintln!("no check ran, and that is no success: {silent:?}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// The checks that concern a fixture, as tests.
fn trials_of(stage: &Arc<Stage>, runtime: &tokio::runtime::Runtime, table: &Table) -> Vec<Trial> {
    let checks = checks::all();
    let concerning = checks.into_iter().filter(|check| stage.profile().concerns(check));
    let mut trials: Vec<Trial> =
        concerning.map(|check| trial(check.name(), Job::Check(check), stage, runtime, table)).collect();
    trials.extend(
        profile::TRIALS
            .iter()
            .map(|(name, job)| trial(format!("profile::{name}"), Job::Profile(*job), stage, runtime, table)),
    );
    trials
}

/// What a test does.
#[derive(Clone, Copy)]
enum Job {
    Check(Check),
    Profile(profile::Job),
}

fn trial(name: String, job: Job, stage: &Arc<Stage>, runtime: &tokio::runtime::Runtime, table: &Table) -> Trial {
    let (stage, table, handle) = (Arc::clone(stage), table.clone(), runtime.handle().clone());
    Trial::ignorable_test(format!("{}::{name}", stage.name()), move || {
        let outcome = handle.block_on(async {
            match job {
                Job::Check(check) => examine::outcome(check, &stage).await,
                Job::Profile(job) => profile::outcome(job, &stage).await,
            }
        });
        let (column, answer) = match outcome {
            Outcome::Passed => (Column::Passed, Ok(Completion::Completed)),
            Outcome::Failed(failure) => (Column::Failed, Err(failure.to_string().into())),
            Outcome::Refused(reason) => (Column::Refused, Ok(Completion::ignored_with(reason))),
        };
        table.count(stage.name(), column);
        answer
    })
}
