//! Runs one check on one fixture.

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::bounded::within;
use crate::check::Check;
use crate::checks;
use crate::context::Context;
use crate::failure::{Excuse, Failure, FailureKind, Verdict};
use crate::fixture::Fixture;
use crate::history::Call;
use crate::level::{Level, Plan, Seed};
use crate::report::{self, Backend, Checked, Failed, Measures, Subject};
use crate::stage::Stage;

/// The time limit of a check. At the level torture, the time of the run is added.
const LIMIT: Duration = Duration::from_secs(240);

/// The result of a check.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The promise holds.
    Passed,
    /// The promise is broken, or could not be judged.
    Failed(Failure),
    /// The backend does not make the promise, with the reason.
    Refused(String),
}

/// The results of some checks on one fixture.
#[derive(Debug)]
#[must_use]
pub struct Report {
    outcomes: Vec<(String, Outcome)>,
    backend: Backend,
}

impl Report {
    /// Returns names and outcomes, in the order of the checks.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.outcomes.iter().map(|(name, outcome)| (name.as_str(), outcome))
    }

    /// Returns the names of the checks that failed, such as `C5_fencing::across_release`.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| name)
    }

    /// Returns the failure of a check, if it failed.
    #[must_use]
    pub fn failure(&self, check: &str) -> Option<&Failure> {
        self.outcomes().find(|(name, _)| *name == check).and_then(|(_, outcome)| match outcome {
            Outcome::Failed(failure) => Some(failure),
            _ => None,
        })
    }

    /// Writes the reports of [`run`](crate::run): JSON and JUnit for the backend, and `index.html`
    /// for all backends whose JSON is in the directory. Creates the directory if it is missing.
    /// Blocks the thread.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn save(&self, directory: impl AsRef<Path>) -> io::Result<()> {
        report::save(directory.as_ref(), std::slice::from_ref(&self.backend), None)
    }
}

/// Runs some checks on a fixture, concurrently, without a test binary: for programs, and for tests
/// of the suite itself. The level is always [`Standard`](Level::Standard); the environment is
/// ignored.
///
/// ```
/// use distlock_conformance::{Clause, Client, Fixture, FixtureError, Profile, async_trait, examine};
/// # use distlock_memory::MemoryStore;
///
/// struct Memory(MemoryStore);
///
/// #[async_trait]
/// impl Fixture for Memory {
///     // …
/// #   fn name(&self) -> &str { "memory" }
/// #   fn profile(&self) -> Profile {
/// #       Profile::new(self.0.provider().capabilities()).ttl(std::time::Duration::from_secs(1))
/// #   }
/// #   async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
/// #       Ok((0..count).map(|_| Client::of_store(self.0.clone())).collect())
/// #   }
/// }
///
/// # use distlock_api::LockProvider;
/// # #[tokio::main]
/// # async fn main() {
/// let report = examine(Memory(MemoryStore::new()), |check| check.clause() == Clause::C6).await;
/// assert_eq!(report.failed().count(), 0);
/// # }
/// ```
///
/// # Cancel safety
/// Dropping the future ends the checks, and does not stop the fixture.
pub async fn examine(fixture: impl Fixture, wanted: impl Fn(&Check) -> bool) -> Report {
    let plan = Plan { level: Level::Standard, seed: Seed::random(), time: Duration::ZERO };
    let stage = Stage::new(Arc::new(fixture));
    let started = Instant::now();
    let mut backend = Backend::new(stage.name(), plan.level, plan.seed).declared_by(stage.profile());
    let is_due = |check: &Check| check.level() <= plan.level && check.concerns(stage.profile()) && wanted(check);
    let checks = checks::all().into_iter().filter(is_due);
    let examined = checks.map(async |check| (check.name(), examined(check, &stage, plan).await));
    let mut outcomes = Vec::new();
    for (name, (outcome, checked)) in futures_util::future::join_all(examined).await {
        backend.add(checked, started.elapsed());
        outcomes.push((name, outcome));
    }
    stage.stop().await;
    Report { outcomes, backend }
}

/// Runs a check. A panic is a failure of the check.
pub(super) async fn examined(check: Check, stage: &Arc<Stage>, plan: Plan) -> (Outcome, Checked) {
    let subject = Subject::of(&check);
    if let Some(reason) = check.refusal(stage.profile()) {
        let checked =
            Checked::new(&subject, report::Result::Refused(reason.clone()), Duration::ZERO, Measures::default());
        return (Outcome::Refused(reason), checked);
    }
    judged(&subject, stage, plan, async |context| check.start(context).await).await
}

/// How many times a check is repeated whose leases were too short for the store, or whose events
/// had a gap.
const AGAIN: usize = 2;

/// Runs a judgement of a backend, with a separate context. Runs it again if its failure has an
/// [excuse](Failure::excuse), with a longer ttl if the store was slow.
pub(super) async fn judged(
    subject: &Subject,
    stage: &Arc<Stage>,
    plan: Plan,
    judge: impl AsyncFn(Context) -> Verdict,
) -> (Outcome, Checked) {
    for _ in 0..AGAIN {
        let (judged, Lease { ttl, slowest }) = judged_once(subject, stage, plan, &judge).await;
        let Outcome::Failed(failure) = &judged.0 else { return judged };
        let (fixture, check) = (stage.name(), &subject.name);
        match failure.excuse() {
            None => return judged,
            Some(Excuse::Gap) => {
                eprintln!("distlock: {fixture}: {check}: once more, because the store reported a gap of its events");
            }
            Some(Excuse::Slow) => {
                let Some(longer) = stage.longer_ttl(ttl, slowest) else { return judged };
                eprintln!(
                    "distlock: {fixture}: {check}: once more, with a ttl of {longer:.1?} instead of {ttl:.1?}: a \
                     request took {slowest:.1?}, or this machine paused: {failure}"
                );
            }
        }
    }
    judged_once(subject, stage, plan, &judge).await.0
}

/// The short leases of a check, and the slowest of its requests.
struct Lease {
    ttl: Duration,
    slowest: Duration,
}

async fn judged_once(
    subject: &Subject,
    stage: &Arc<Stage>,
    plan: Plan,
    judge: &impl AsyncFn(Context) -> Verdict,
) -> ((Outcome, Checked), Lease) {
    let context = Context::new(Arc::clone(stage), plan, &subject.name);
    let mut started = Instant::now();
    let running = async {
        stage.ready().await?;
        // The start of the fixture does not count.
        started = Instant::now();
        judge(context.clone()).await
    };
    let limit = if subject.level == Level::Torture { LIMIT + plan.time } else { LIMIT };
    let verdict = within(limit, "the check to end", AssertUnwindSafe(running).catch_unwind()).await;
    let history = context.findings().history();
    if !matches!(verdict, Ok(Ok(Ok(())))) {
        context.note_renewals();
    }
    let (took, calls) = (started.elapsed(), history.as_ref().unwrap_or(context.recorder()).everything());
    let end = Instant::now();
    context.finish().await;
    let lease = Lease { ttl: context.short(), slowest: context.slowest(end) };
    let verdict = match verdict {
        Ok(Ok(verdict)) => verdict,
        Err(failure) => Err(Failure::of(FailureKind::Limit, failure.message())),
        Ok(Err(panic)) => Err(Failure::of(FailureKind::Panic, format!("the check panicked: {}", said(&*panic)))),
    };
    let (outcome, mut checked) = reported(subject, stage, plan, verdict, took, calls);
    checked.figures = context.findings().figures();
    ((outcome, checked), lease)
}

/// Reports a verdict that needed no client, and no time.
pub(super) fn decided(subject: &Subject, stage: &Stage, plan: Plan, verdict: Verdict) -> (Outcome, Checked) {
    reported(subject, stage, plan, verdict, Duration::ZERO, Vec::new())
}

fn reported(
    subject: &Subject,
    stage: &Stage,
    plan: Plan,
    verdict: Verdict,
    took: Duration,
    calls: Vec<Call>,
) -> (Outcome, Checked) {
    let measures = Measures::of(&calls);
    let checked = |result| Checked::new(subject, result, took, measures);
    match verdict {
        Ok(()) => (Outcome::Passed, checked(report::Result::Passed)),
        Err(failure) => {
            let failed = Failed::new(stage.name(), subject, &failure, plan, calls);
            (Outcome::Failed(failure), checked(report::Result::Failed(Box::new(failed))))
        }
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use distlock_api::{Capabilities, LockKey, Mode};

    use super::*;
    use crate::client::Client;
    use crate::failure::FixtureError;
    use crate::history::CallKind;
    use crate::profile::Profile;

    struct Nothing;

    #[async_trait]
    impl Fixture for Nothing {
        fn name(&self) -> &str {
            "nothing"
        }

        fn profile(&self) -> Profile {
            Profile::new(Capabilities::default()).ttl(Duration::from_secs(3))
        }

        async fn clients(&self, _: usize) -> Result<Vec<Client>, FixtureError> {
            Err("there are none".into())
        }
    }

    /// Judges by a check in which one answer takes this long, and which then fails for lack of time
    /// if its ttl is shorter than `needs`. Returns the ttls, and whether it has passed at last.
    async fn ttls(answer: Duration, needs: Duration) -> (Vec<u64>, bool) {
        let plan = Plan { level: Level::Standard, seed: Seed::random(), time: Duration::ZERO };
        let (stage, ttls) = (Stage::new(Arc::new(Nothing)), Mutex::new(Vec::new()));
        let check = async |cx: Context| {
            ttls.lock().unwrap().push(cx.short().as_secs());
            let attempt = cx.recorder().acquisition(1, &LockKey::new("k").unwrap(), Mode::Exclusive);
            tokio::time::sleep(answer).await;
            attempt.busy(CallKind::Busy);
            if cx.short() < needs { Err(Failure::new("a renewed lease was lost").if_in_time()) } else { Ok(()) }
        };
        let (outcome, _) = judged(&Subject::profile("check", "promise"), &stage, plan, check).await;
        (ttls.into_inner().unwrap(), matches!(outcome, Outcome::Passed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_is_repeated_if_its_leases_were_too_short_for_the_store() {
        let second = Duration::from_secs(1);
        assert_eq!(ttls(second, 4 * second).await, (vec![3, 8], true));
        // The store was fast, so the lease should have been kept.
        assert_eq!(ttls(second / 10, 4 * second).await, (vec![3], false));
        // Leases have a limit.
        assert_eq!(ttls(10 * second, 60 * second).await, (vec![3, 18], false));
    }
}
