//! Runs checks on fixtures.

mod examine;
mod probe;
mod profile;
mod settings;
mod turns;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::check::Check;
use crate::checks;
use crate::child;
use crate::fixture::Fixture;
use crate::level::{Level, Plan, Seed};
use crate::need::Need;
use crate::pairs;
use crate::report::{self, Backend, Checked, Summary};
use crate::stage::Stage;
pub use examine::{Outcome, Report, examine};
pub use probe::{ProbeError, probe};
use settings::Settings;
use turns::Turns;

/// How many checks run at once per processor, unless `--test-threads` is given. Most checks wait
/// for a clock most of the time; with stores within this process nearly all of the time.
const CHECKS_PER_PROCESSOR: usize = 16;
const CHECKS_PER_PROCESSOR_IN_PROCESS: usize = 48;

/// `cargo nextest` sets this to the name of its run, in which each process runs one check.
const NEXTEST_RUN: &str = "NEXTEST_RUN_ID";

/// Runs the suite on one backend. See [`run`], and [`Fixture`] for an example.
pub fn run_one(fixture: impl Fixture) -> ExitCode {
    run([Box::new(fixture) as Box<dyn Fixture>])
}

/// Runs the suite on some backends. This is the whole `main` of a test binary with
/// `harness = false`.
///
/// It accepts the arguments of any Rust test binary (a filter, `--list`, `--exact`,
/// `--test-threads`, …), and those of the [crate](crate#running-it). Each fixture is started by its
/// first check, and stopped before this returns. At the end it prints how many checks passed,
/// failed and were refused by design, for each clause and fixture.
///
/// The exit code is a failure if a check failed, if no check ran on a fixture although none was
/// filtered out, or if a report could not be written.
///
/// Call it at the beginning of `main`. In a child process it does that process's job, and ends the
/// process.
///
/// ```no_run
/// use std::process::ExitCode;
/// use distlock_conformance::{Fixture, run};
/// # fn over_tcp() -> Box<dyn Fixture> { unimplemented!() }
/// # fn over_tls() -> Box<dyn Fixture> { unimplemented!() }
///
/// fn main() -> ExitCode {
///     run([over_tcp(), over_tls()])
/// }
/// ```
pub fn run(fixtures: impl IntoIterator<Item = Box<dyn Fixture>>) -> ExitCode {
    let fixtures: Vec<Box<dyn Fixture>> = fixtures.into_iter().collect();
    if let Some(job) = child::job() {
        return child::serve(&job, fixtures);
    }
    match run_tests(fixtures) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("distlock: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Does the job of a child process, if this process is one. Needed in programs that [`examine`]
/// fixtures whose profile declares processes; [`run`] calls it itself. Call it at the beginning of
/// `main`, and return its exit code if it returns one.
pub fn run_child(fixtures: impl FnOnce() -> Vec<Box<dyn Fixture>>) -> Option<ExitCode> {
    child::job().map(|job| child::serve(&job, fixtures()))
}

/// Returns the name of the run if each check is a separate process, as under `cargo nextest`.
/// Fixtures use it to start something once for all processes of a run.
#[must_use]
pub fn run_id() -> Option<String> {
    std::env::var(NEXTEST_RUN).ok()
}

fn run_tests(fixtures: Vec<Box<dyn Fixture>>) -> Result<ExitCode, String> {
    let settings = Settings::from_env()?;
    if settings.pairs {
        print!("{}", pairs::Matrix);
        for fixture in &fixtures {
            println!("\n{}", pairs::Examined(fixture.name(), &fixture.profile()));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut arguments = Arguments::from_iter(&settings.others);
    let part_of = run_id();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let reaches_out = fixtures.iter().any(|fixture| fixture.profile().has(Need::Processes));
    let per_processor = if reaches_out { CHECKS_PER_PROCESSOR } else { CHECKS_PER_PROCESSOR_IN_PROCESS };
    let at_once = arguments.test_threads.unwrap_or(processors * per_processor);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the suite cannot start its runtime: {error}"))?;
    let seed = settings.seed.unwrap_or_else(Seed::random);
    let plan = Plan { level: settings.level, seed, time: settings.time };
    let stages = fixtures.into_iter().map(|fixture| Stage::new(fixture.into())).collect();
    let run = Arc::new(Run::new(stages, plan, at_once));
    // A check that waits for its turn keeps no other one from running.
    arguments.test_threads.get_or_insert(at_once + run.arenas());
    if !arguments.list {
        eprintln!("distlock: conformance, level {}, seed {}", plan.level, plan.seed);
        if let Some(left_out) = run.left_out() {
            eprintln!("distlock: {left_out}");
        }
    }
    let conclusion = run.rounds(settings.rounds, &arguments, &runtime);
    runtime.block_on(futures_util::future::join_all(run.stages.iter().map(|stage| stage.stop())));
    runtime.shutdown_timeout(Duration::from_secs(5));
    if arguments.list {
        return Ok(ExitCode::SUCCESS);
    }

    let backends = run.backends();
    if backends.iter().map(|backend| backend.checks.len()).sum::<usize>() > 1 {
        println!("{}", Summary(&backends));
    }
    if let Some(directory) = &settings.report {
        let saved = report::save(directory, &backends, part_of.as_deref());
        saved.map_err(|error| format!("the reports cannot be written to {}: {error}", directory.display()))?;
    }
    let filtered = arguments.filter.is_some() || !arguments.skip.is_empty() || arguments.ignored;
    let silent = run.silent(&backends);
    if !filtered && (run.stages.is_empty() || !silent.is_empty()) {
        return Err(format!("no check ran on {silent:?}, and that is not a success"));
    }
    Ok(conclusion.exit_code())
}

/// A run of the suite, and its results so far.
struct Run {
    stages: Vec<Arc<Stage>>,
    plan: Plan,
    started: Instant,
    turns: Turns,
    found: Mutex<Vec<Backend>>,
}

impl Run {
    fn new(stages: Vec<Arc<Stage>>, plan: Plan, at_once: usize) -> Self {
        let backend =
            |stage: &Arc<Stage>| Backend::new(stage.name(), plan.level, plan.seed).declared_by(stage.profile());
        let found = stages.iter().map(backend).collect();
        Self { stages, plan, started: Instant::now(), turns: Turns::new(at_once), found: Mutex::new(found) }
    }

    /// Returns what this level leaves out, and how to run it.
    fn left_out(&self) -> Option<String> {
        if self.plan.level >= Level::Standard {
            return None;
        }
        let standard = Plan { level: Level::Standard, ..self.plan };
        let left_out = |stage: &Arc<Stage>| {
            let left = self.due(stage, standard).count() - self.due(stage, self.plan).count();
            (left > 0).then(|| format!(", {left} checks of {}", stage.name()))
        };
        let checks: String = self.stages.iter().filter_map(left_out).collect();
        Some(format!("left out: most rounds{checks} ({}={} runs them)", Level::VARIABLE, Level::Standard))
    }

    /// Returns the checks of this level that apply to a fixture. At the level quick the variants of
    /// a backend share the short ones: each is for one of them, always the same one.
    fn due(&self, stage: &Arc<Stage>, plan: Plan) -> impl Iterator<Item = Check> {
        let level = plan.level_for(stage.profile());
        let shares = plan.level == Level::Quick && stage.profile().is_variant();
        let takes = move |number: usize, check: &Check| {
            let variants = || self.stages.iter().filter(|other| other.profile().is_variant());
            let concerned = variants().filter(|other| check.concerns(other.profile()));
            // Only if all of them refuse it, one of them reports that.
            let is_run = |other: &Arc<Stage>| check.refusal(other.profile()).is_none();
            let any_runs = concerned.clone().any(is_run);
            let mut takers = concerned.filter(move |other| !any_runs || is_run(other));
            let nth = number % takers.clone().count().max(1);
            takers.nth(nth).is_some_and(|taker| Arc::ptr_eq(taker, stage))
        };
        let of_level = checks::all().into_iter().filter(move |check| check.level() <= level).enumerate();
        let due = move |(number, check): &(usize, Check)| {
            check.concerns(stage.profile()) && (!shares || takes(*number, check))
        };
        of_level.filter(due).map(|(_, check)| check)
    }

    /// Returns how many checks damage a deployment.
    fn arenas(&self) -> usize {
        let of_stage = |stage: &Arc<Stage>| self.due(stage, self.plan).filter(|check| damages(stage, *check)).count();
        self.stages.iter().map(of_stage).sum()
    }

    /// Runs `rounds` rounds, or at the level torture as many as there is time for, each with a new
    /// seed, until a check has failed.
    fn rounds(self: &Arc<Self>, rounds: u32, arguments: &Arguments, runtime: &tokio::runtime::Runtime) -> Conclusion {
        let mut plan = self.plan;
        let mut round = 0;
        loop {
            round += 1;
            let conclusion = libtest_mimic::run(arguments, self.trials(plan, runtime));
            let has_run = conclusion.num_passed > 0 && !arguments.list;
            let is_over =
                if plan.level < Level::Torture { round >= rounds } else { self.started.elapsed() >= plan.time };
            if is_over || conclusion.has_failed() || !has_run {
                return conclusion;
            }
            plan.seed = plan.seed.next();
            eprintln!("distlock: round {round} has passed; the next round has the seed {}", plan.seed);
        }
    }

    /// Returns the checks of this level that apply to the fixtures, as tests. Those that damage a
    /// deployment take longest, and come first.
    fn trials(self: &Arc<Self>, plan: Plan, runtime: &tokio::runtime::Runtime) -> Vec<Trial> {
        let (mut trials, mut others) = (Vec::new(), Vec::new());
        for stage in &self.stages {
            for check in self.due(stage, plan) {
                let trial = self.trial(stage, check.name(), plan, Job::Check(check), runtime);
                if damages(stage, check) { &mut trials } else { &mut others }.push(trial);
            }
            for job in profile::JOBS {
                others.push(self.trial(stage, job.name(), plan, Job::Profile(*job), runtime));
            }
        }
        trials.append(&mut others);
        trials
    }

    fn trial(
        self: &Arc<Self>,
        stage: &Arc<Stage>,
        name: String,
        plan: Plan,
        job: Job,
        runtime: &tokio::runtime::Runtime,
    ) -> Trial {
        let (run, stage, handle) = (Arc::clone(self), Arc::clone(stage), runtime.handle().clone());
        Trial::ignorable_test(format!("{}::{name}", stage.name()), move || {
            let (outcome, checked) = handle.block_on(async {
                match job {
                    Job::Check(check) => {
                        let turns = &run.turns;
                        let _turn = if damages(&stage, check) { turns.of_arena().await } else { turns.of_one().await };
                        examine::examined(check, &stage, plan).await
                    }
                    Job::Profile(job) => profile::examined(job, &stage, plan).await,
                }
            });
            let answer = match outcome {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Failed(_) => Err(explained(&checked)),
                Outcome::Refused(reason) => Ok(Completion::ignored_with(reason)),
            };
            run.add(&stage, checked);
            answer
        })
    }

    fn add(&self, stage: &Stage, checked: Checked) {
        let mut found = self.found.lock().expect("not poisoned");
        if let Some(backend) = found.iter_mut().find(|backend| backend.name == stage.name()) {
            backend.add(checked, self.started.elapsed());
        }
    }

    /// Returns the backends of which a check has run or was refused.
    fn backends(&self) -> Vec<Backend> {
        let mut found = self.found.lock().expect("not poisoned").clone();
        found.retain(|backend| !backend.checks.is_empty());
        found.iter_mut().for_each(Backend::sort);
        found
    }

    /// Returns the fixtures on which no check ran. The checks of the profile always run, and prove
    /// nothing about the backend.
    fn silent(&self, backends: &[Backend]) -> Vec<&str> {
        let ran = |name: &str| {
            let checks = backends.iter().filter(|backend| backend.name == name).flat_map(|backend| &backend.checks);
            let [passed, failed, _] = report::counts(checks);
            passed + failed
        };
        let names = self.stages.iter().map(|stage| stage.name());
        names.filter(|name| ran(name) <= profile::JOBS.len()).collect()
    }
}

/// The job of a test.
#[derive(Clone, Copy)]
enum Job {
    Check(Check),
    Profile(profile::Job),
}

/// Whether a check damages a deployment of a fixture.
fn damages(stage: &Stage, check: Check) -> bool {
    check.needs().contains(&Need::Arena) && check.refusal(stage.profile()).is_none()
}

fn explained(checked: &Checked) -> Failed {
    checked.failed().map(|failed| report::explained(checked, failed)).unwrap_or_default().into()
}
