//! One check on one fixture.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::check::Check;
use crate::checks;
use crate::context::{Context, within};
use crate::failure::Failure;
use crate::fixture::Fixture;
use crate::stage::Stage;

/// No check takes this long, whatever the backend does.
const LIMIT: Duration = Duration::from_secs(240);

/// What became of a check.
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The promise holds.
    Passed,
    /// It does not.
    Failed(Failure),
    /// The backend does not make it, and says so.
    Refused(String),
}

/// The outcomes of some checks on one fixture.
#[derive(Debug)]
#[must_use]
pub struct Report(Vec<(String, Outcome)>);

impl Report {
    /// Names and outcomes, in the order of the checks.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.0.iter().map(|(name, outcome)| (name.as_str(), outcome))
    }

    /// The names of the checks that failed, such as `C5_fencing::across_release`.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.outcomes().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| name)
    }

    /// The failure of a check, if it failed.
    #[must_use]
    pub fn failure(&self, check: &str) -> Option<&Failure> {
        self.outcomes().find(|(name, _)| *name == check).and_then(|(_, outcome)| match outcome {
            Outcome::Failed(failure) => Some(failure),
            _ => None,
        })
    }
}

/// Runs some checks on a fixture, concurrently, without a test binary around them: for programs, and for tests of the suite itself.
///
/// # Cancel safety
/// Dropping the future ends the checks and leaves the fixture started.
pub async fn examine(fixture: impl Fixture, wanted: impl Fn(&Check) -> bool) -> Report {
    let stage = Stage::new(Arc::new(fixture));
    let checks = checks::all().into_iter().filter(|check| stage.profile().concerns(check) && wanted(check));
    let outcomes = checks.map(async |check| (check.name(), outcome(check, &stage).await));
    let outcomes = futures_util::future::join_all(outcomes).await;
    stage.stop().await;
    Report(outcomes)
}

/// Runs a check. A panic in it is its failure.
pub(super) async fn outcome(check: Check, stage: &Arc<Stage>) -> Outcome {
    if let Some(reason) = stage.profile().refusal(&check) {
        return Outcome::Refused(reason);
    }
    let context = Context::new(Arc::clone(stage));
    let running = async {
        stage.ready().await?;
        check.start(context.clone()).await
    };
    let verdict = within(LIMIT, "the check to end", AssertUnwindSafe(running).catch_unwind()).await;
    context.finish().await;
    match verdict {
        Ok(Ok(Ok(()))) => Outcome::Passed,
        Ok(Ok(Err(failure))) | Err(failure) => Outcome::Failed(failure),
        Ok(Err(panic)) => Outcome::Failed(Failure::new(format!("the check panicked: {}", said(&*panic)))),
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}
