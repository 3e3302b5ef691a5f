//! Tests the suite with backends that are broken on purpose: each must be caught by a named check
//! of the clause that it breaks. `runner` tests how the suite is run, from outside.

mod admins;
mod bare;
mod clocks;
mod guards;
mod matrix;
mod modes;
mod once;
mod pairs;
mod promised;
mod providers;
mod queues;
mod runner;
mod servers;
mod stores;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use distlock_api::{Capabilities, LockProvider};
use distlock_conformance::{
    Client, DisturbedStore, Fixture, FixtureError, Outcome, Profile, Report, Slowness, async_trait, examine, run_child,
};
use distlock_engine::LeaseProvider;
use distlock_engine::store::StoreCapabilities;
use distlock_memory::MemoryStore;
use futures_util::future::join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use admins::Admin;
use bare::Bare;
use clocks::Clock;
use guards::Guards;
use matrix::{CASES, Case};
use modes::Modes;
use once::Once;
use pairs::Pairs;
use providers::{Provider, acquire_as_named};
use queues::Queue;
use servers::Server;
use stores::{Removed, Store};

/// A backend that is broken in one place, or not at all.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Nowhere,
    /// Nothing is broken; the store is slow.
    Slow,
    Store(Store),
    Guards(Guards),
    Provider(Provider),
    Admin(Admin),
    /// Several locks are taken in the order in which they are named.
    Unsorted,
    /// Has a queue, pushes, and all faults.
    Queue(Queue),
    /// Has processes.
    Clock(Clock),
    /// Is examined below the engine.
    Bare(Bare),
    /// Has a server that can fail.
    Server(Server),
    /// Has all modes, below the engine and above.
    Modes(Modes),
    /// Remembers the outcomes of work.
    Once(Once),
    /// Is broken where two features meet, or reports a wrong number.
    Pairs(Pairs),
}

impl Broken {
    /// Backends of one family pass the same checks where nothing is broken.
    fn is_relative_of(self, other: Self) -> bool {
        let family = |broken| match broken {
            Self::Queue(_) => 1,
            Self::Clock(_) => 2,
            Self::Bare(_) => 3,
            Self::Server(_) => 4,
            Self::Modes(_) => 5,
            Self::Once(_) => 6,
            Self::Pairs(_) => 7,
            _ => 0,
        };
        family(self) == family(other)
    }

    /// Whether its checks need a clock that runs: those with processes, and those that judge the
    /// order of calls which begin and end at the same moment in virtual time.
    fn needs_real_time(self) -> bool {
        matches!(
            self,
            Self::Clock(_)
                | Self::Nowhere
                | Self::Queue(Queue::Sound)
                | Self::Modes(Modes::Sound)
                | Self::Provider(Provider::AttemptsAreBusy | Provider::GrantsNow)
        )
    }

    fn client(self, memory: &MemoryStore, removed: &Arc<Removed>) -> Client {
        let purged = (memory.clone(), Arc::clone(removed));
        let store = DisturbedStore::new(Arc::new(memory.clone())).with_purge(move |key| {
            let (memory, removed) = purged.clone();
            async move {
                removed.add(key.clone());
                if memory.purge(&key) { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
            }
        });
        // Calls take long enough to be compared with deadlines and waits.
        let is_slow = matches!(
            self,
            Self::Slow | Self::Guards(Guards::CountsFromTheReply) | Self::Provider(Provider::TimeoutForgetsAttempt)
        );
        let store = if is_slow { store.slowed(Slowness::PerClient) } else { store };
        let engine = LeaseProvider::new(Arc::new(store.clone()));
        let over = |broken: Store| LeaseProvider::new(Arc::new(broken.around(&store, memory, removed)));
        let provider: Arc<dyn LockProvider> = match self {
            Self::Store(broken) => Arc::new(over(broken)),
            Self::Guards(broken) => Arc::new(broken.around(engine)),
            Self::Provider(broken) => Arc::new(broken.around(engine)),
            Self::Admin(broken) => Arc::new(broken.around(engine)),
            _ => Arc::new(engine),
        };
        let client = Client::new(provider).disturbed_by(store);
        if matches!(self, Self::Unsorted) { client.with_acquire_all(acquire_as_named) } else { client }
    }

    async fn examine(self, checks: &[&str]) -> Report {
        let wanted = |check: &distlock_conformance::Check| checks.contains(&check.name().as_str());
        match self {
            Self::Clock(clock) => examine(clock.fixture(), wanted).await,
            Self::Bare(bare) => examine(bare.fixture(), wanted).await,
            Self::Server(server) => examine(server.fixture(), wanted).await,
            Self::Modes(modes) => examine(modes.fixture(), wanted).await,
            Self::Once(once) => examine(once.fixture(), wanted).await,
            Self::Pairs(pairs) => examine(pairs.fixture(), wanted).await,
            broken => examine(broken, wanted).await,
        }
    }
}

/// A store without pushes, which could reveal what a broken call hides.
fn store() -> MemoryStore {
    let mut capabilities = StoreCapabilities::default();
    capabilities.minimum_hold = true;
    capabilities.ordered_claims = true;
    MemoryStore::new().with_capabilities(capabilities).with_queue(false).with_events(false)
}

#[async_trait]
impl Fixture for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn profile(&self) -> Profile {
        if let Self::Queue(_) = self {
            return Queue::profile();
        }
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        Profile::new(promised).admin().owners().lock_events().purge().disturbed()
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        if let Self::Queue(broken) = self {
            return Ok(broken.clients(count));
        }
        let (memory, removed) = (store(), Arc::default());
        Ok((0..count).map(|_| self.client(&memory, &removed)).collect())
    }
}

/// Ensures that a backend is caught by its own clause, and not by accident: each of its checks
/// judged the promise, failed, and gave the expected reason.
async fn caught(case: Case) -> Result<(), Failed> {
    let checks: Vec<&str> = case.caught_by.iter().map(|(check, _)| *check).collect();
    let report = case.broken.examine(&checks).await;
    if report.outcomes().count() != checks.len() {
        return Err(format!("a named check does not exist: {checks:?}").into());
    }
    if !checks.iter().any(|check| check.starts_with(&format!("{}::", case.clause))) {
        return Err(format!("no check of {} is among {checks:?}", case.clause).into());
    }
    let wrong: Vec<String> = case.caught_by.iter().filter_map(|catch| missed(&report, catch)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// Returns what is wrong with how a check caught a backend, or `None`.
fn missed(report: &Report, (check, words): &(&str, &'static str)) -> Option<String> {
    match report.outcomes().find(|(name, _)| name == check)?.1 {
        Outcome::Failed(failure) => {
            println!("{check}: {failure}");
            let (kind, message) = (failure.kind(), failure.message());
            if !kind.is_judgement() {
                return Some(format!("{check} failed by accident ({kind:?}): {message}"));
            }
            if !is_reported_by(check, &failure.location()) {
                return Some(format!("{check} failed by a line that is not its own: {failure}"));
            }
            let is_meant = matrix::alternatives(words).any(|words| message.contains(words));
            (!is_meant).then(|| format!("{check} failed for another reason than `{words}`: {message}"))
        }
        other => Some(format!("{check} did not catch it: {other:?}")),
    }
}

/// Returns whether a line of the suite, `file:line`, is inside this check's own function. The line
/// of a helper does not show how far the check had come.
fn is_reported_by(check: &str, location: &str) -> bool {
    let word = check.rsplit("::").next().unwrap_or_default();
    let Some((file, line)) = location.rsplit_once(':') else { return false };
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").join(file);
    let (Ok(source), Ok(line)) = (std::fs::read_to_string(file), line.parse::<usize>()) else { return false };
    let begins = |text: &str| text.strip_prefix("async fn ").is_some_and(|text| text.starts_with(&format!("{word}(")));
    let Some(first) = source.lines().position(begins) else { return false };
    let length = source.lines().skip(first).position(|text| text == "}").unwrap_or_default();
    (first + 1..=first + length + 1).contains(&line)
}

/// A backend that fails with an error, panics, passes, or fails with other words than expected does
/// not count as caught.
async fn accidents_do_not_count() -> Result<(), Failed> {
    const CHECK: &str = "C5_fencing::across_release";
    for (broken, words, verdict) in [
        (Broken::Provider(Provider::Fails), "", "by accident (Error)"),
        (Broken::Provider(Provider::Panics), "", "by accident (Panic)"),
        (Broken::Nowhere, "", "did not catch it"),
        (Broken::Store(Store::ConstantToken), "the lock is busy", "for another reason"),
    ] {
        let missed = missed(&broken.examine(&[CHECK]).await, &(CHECK, words)).unwrap_or_default();
        if !missed.contains(verdict) {
            return Err(format!("{broken:?} must be judged `{verdict}`, and was judged `{missed}`").into());
        }
    }
    Ok(())
}

/// Ensures that the checks that catch broken backends pass on a sound one.
async fn passes(sound: Broken, checks: &[&str]) -> Result<(), Failed> {
    // The checks damage a server one after the other: here each has one of its own.
    let at_once = if matches!(sound, Broken::Server(_)) { 1 } else { checks.len() };
    let reports = join_all(checks.chunks(at_once).map(|checks| sound.examine(checks))).await;
    let outcomes: Vec<_> = reports.iter().flat_map(Report::outcomes).collect();
    if outcomes.len() != checks.len() {
        return Err(format!("a named check does not exist: {checks:?}").into());
    }
    let not_passed = outcomes.iter().filter(|(_, outcome)| !matches!(outcome, Outcome::Passed));
    let not_passed: Vec<String> = not_passed.map(|(name, outcome)| format!("{name}: {outcome:?}")).collect();
    if not_passed.is_empty() { Ok(()) } else { Err(not_passed.join("\n").into()) }
}

/// Backends in which nothing is broken.
const SOUND: &[(&str, Broken)] = &[
    ("nothing_is_caught_where_nothing_is_broken", Broken::Nowhere),
    ("nothing_is_caught_in_a_slow_store", Broken::Slow),
    ("nothing_is_caught_in_a_sound_queue", Broken::Queue(Queue::Sound)),
    ("nothing_is_caught_in_a_slow_queue", Broken::Queue(Queue::Slow)),
    ("nothing_is_caught_where_processes_share_one_clock", Broken::Clock(Clock::Common)),
    ("nothing_is_caught_in_a_sound_store_below_the_engine", Broken::Bare(Bare::Sound)),
    ("nothing_is_caught_in_a_slow_store_below_the_engine", Broken::Bare(Bare::Slow)),
    ("nothing_is_caught_at_a_sound_server", Broken::Server(Server::Sound)),
    ("nothing_is_caught_at_a_slow_server", Broken::Server(Server::Slow)),
    ("nothing_is_caught_in_a_sound_store_of_all_modes", Broken::Modes(Modes::Sound)),
    ("nothing_is_caught_where_outcomes_are_remembered", Broken::Once(Once::Sound)),
    ("nothing_is_caught_where_features_meet", Broken::Pairs(Pairs::Sound)),
    ("nothing_is_caught_where_features_of_a_slow_store_meet", Broken::Pairs(Pairs::Slow)),
];

/// Returns all checks that catch the broken relatives of a backend.
fn named_for(sound: Broken) -> Vec<&'static str> {
    let relatives = CASES.iter().filter(|case| case.broken.is_relative_of(sound));
    let mut checks: Vec<_> = relatives.flat_map(|case| case.caught_by.iter().map(|(check, _)| *check)).collect();
    checks.sort_unstable();
    checks.dedup();
    checks
}

/// How many run in parallel: they wait for clocks most of the time.
const AT_ONCE: usize = 64;

fn main() -> ExitCode {
    if let Some(code) = runner::run_as_test_binary() {
        return code;
    }
    let clocks = || -> Vec<Box<dyn Fixture>> {
        [Clock::Common, Clock::Client].map(|clock| Box::new(clock.fixture()) as Box<dyn Fixture>).into()
    };
    if let Some(code) = run_child(clocks) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut trials = Vec::new();
    // They take longest, so they begin first.
    for &(name, sound) in SOUND {
        trials.push(trial(name, sound, &runtime, async move || {
            let checks: Vec<&str> = match sound {
                Broken::Slow => vec!["C3_deadline::counted_from_before_the_request"],
                _ => named_for(sound),
            };
            passes(sound, &checks).await
        }));
    }
    let caught = |case: Case| trial(case.name, case.broken, &runtime, async move || caught(case).await);
    trials.extend(CASES.iter().copied().map(caught));
    let accidents = async || accidents_do_not_count().await;
    trials.push(trial("accidents_do_not_count", Broken::Nowhere, &runtime, accidents));
    trials.extend(runner::trials());
    trials.push(Trial::test("every_known_fault_has_a_backend", matrix::is_complete));
    trials.push(Trial::test("the_matrix_in_the_document_is_current", matrix::is_current));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(
    name: &str,
    broken: Broken,
    runtime: &Runtime,
    test: impl AsyncFnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let runtime = runtime.handle().clone();
    Trial::test(name, move || {
        if broken.needs_real_time() {
            return runtime.block_on(test());
        }
        // Most of these waits end by their timeouts.
        let paused = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        paused.expect("a runtime").block_on(test())
    })
}
