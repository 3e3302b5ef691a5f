//! Checks of the profile itself: the provider must be what the fixture declares, and no check may
//! fall silent.

use std::sync::Arc;

use super::Outcome;
use super::examine::{decided, judged};
use crate::checks;
use crate::context::Context;
use crate::failure::{Verdict, ensure};
use crate::leases::{LONG, renewed};
use crate::level::Plan;
use crate::report::{Checked, Subject};
use crate::stage::Stage;

#[derive(Clone, Copy)]
pub(super) enum Job {
    Capabilities,
    Refusals,
    Pace,
}

pub(super) const JOBS: &[Job] = &[Job::Capabilities, Job::Refusals, Job::Pace];

impl Job {
    pub(super) fn name(self) -> String {
        self.subject().name
    }

    fn subject(self) -> Subject {
        match self {
            Self::Capabilities => {
                Subject::profile("capabilities_as_declared", "a provider promises what its profile declares")
            }
            Self::Refusals => {
                Subject::profile("refusals_as_declared", "as many checks are refused by design as are declared")
            }
            Self::Pace => Subject::profile("fast_enough", "the backend is fast enough on this machine to be judged"),
        }
    }
}

pub(super) async fn examined(job: Job, stage: &Arc<Stage>, plan: Plan) -> (Outcome, Checked) {
    let subject = job.subject();
    match job {
        Job::Capabilities => judged(&subject, stage, plan, async |cx| capabilities(stage, cx).await).await,
        Job::Pace => judged(&subject, stage, plan, async |_| stage.pace().verdict()).await,
        // Needs no server, and starts none.
        Job::Refusals => {
            let verdict = refusals(stage);
            decided(&subject, stage, plan, verdict)
        }
    }
}

async fn capabilities(stage: &Stage, cx: Context) -> Verdict {
    let [client] = cx.clients().await?;
    // Some providers learn their capabilities from their server.
    drop(client.take(&cx.key(), renewed(LONG)).await?);
    let (declared, seen) = (stage.profile().capabilities(), client.capabilities());
    let (admin, has_admin) = (stage.profile().has_admin(), client.admin().is_some());
    ensure!(declared == seen, "the profile declares {declared:?}, but the provider has {seen:?}");
    ensure!(admin == has_admin, "administration: the profile declares {admin}, but the provider has {has_admin}");
    Ok(())
}

/// Counts the refused checks from the list, not from a run, so that the number is right under any
/// filter and with a process for each check.
fn refusals(stage: &Stage) -> Verdict {
    let (checks, profile) = (checks::all(), stage.profile());
    let is_known = |name: &str| checks.iter().any(|check| check.name() == name);
    let unknown: Vec<_> = profile.refused_by_name().filter(|name| !is_known(name)).collect();
    ensure!(unknown.is_empty(), "the profile refuses checks that do not exist: {unknown:?}");
    let concerning = checks.iter().filter(|check| check.concerns(profile));
    let refused: Vec<_> = concerning.filter(|check| check.refusal(profile).is_some()).map(|c| c.name()).collect();
    let (declared, seen) = (profile.declared_refusals(), refused.len());
    ensure!(
        declared == seen,
        "the profile expects {declared} checks to be refused by design, but there are {seen}; read the list, and if all \
         of them are right, declare `.expected_refusals({seen})`: {refused:#?}"
    );
    Ok(())
}
