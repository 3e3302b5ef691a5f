//! The profile itself is checked, too: what a fixture declares must be what the provider says, and nothing may fall silent.

use std::sync::Arc;

use super::Outcome;
use crate::checks;
use crate::context::{Context, LONG, random_key, renewed};
use crate::failure::{Verdict, ensure};
use crate::stage::Stage;

#[derive(Clone, Copy)]
pub(super) enum Job {
    Capabilities,
    Refusals,
}

pub(super) const TRIALS: &[(&str, Job)] =
    &[("capabilities_as_declared", Job::Capabilities), ("refusals_as_declared", Job::Refusals)];

pub(super) async fn outcome(job: Job, stage: &Arc<Stage>) -> Outcome {
    let verdict = match job {
        Job::Capabilities => capabilities(stage).await,
        Job::Refusals => refusals(stage),
    };
    match verdict {
        Ok(()) => Outcome::Passed,
        Err(failure) => Outcome::Failed(failure),
    }
}

async fn capabilities(stage: &Arc<Stage>) -> Verdict {
    stage.ready().await?;
    let context = Context::new(Arc::clone(stage));
    let [client] = context.clients().await?;
    // Some providers know what they can do only after they have met their server.
    drop(client.take(&random_key(), renewed(LONG)).await?);
    let (declared, seen) = (stage.profile().capabilities(), client.capabilities());
    let (admin, has_admin) = (stage.profile().has_admin(), client.admin().is_some());
    context.finish().await;
    ensure!(declared == seen, "the profile declares {declared:?}, the provider {seen:?}");
    ensure!(admin == has_admin, "administration: the profile says {admin}, the provider {has_admin}");
    Ok(())
}

/// Counted from the list, not from a run, so that it holds under any filter and with a process for each check.
fn refusals(stage: &Stage) -> Verdict {
    let (checks, profile) = (checks::all(), stage.profile());
    let unknown: Vec<_> = profile.unknown_refusals(&checks).collect();
    ensure!(unknown.is_empty(), "the profile refuses checks that do not exist: {unknown:?}");
    let concerning = checks.iter().filter(|check| profile.concerns(check));
    let refused: Vec<_> = concerning.filter(|check| profile.refusal(check).is_some()).map(|c| c.name()).collect();
    let (declared, seen) = (profile.declared_refusals(), refused.len());
    ensure!(
        declared == seen,
        "the profile expects {declared} checks to be refused by design, there are {seen}; read the list, and if each of them is right, \
         declare `.expected_refusals({seen})`: {refused:#?}"
    );
    Ok(())
}
