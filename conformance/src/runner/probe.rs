//! Checks a store before an application uses it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::Capabilities;
use distlock_engine::LeaseStore;
use tokio::runtime::Handle;

use super::examine::{Outcome, examined};
use crate::checks;
use crate::client::Client;
use crate::failure::{Failure, FixtureError};
use crate::fixture::Fixture;
use crate::level::{Level, Plan, Seed};
use crate::profile::Profile;
use crate::stage::Stage;

/// The checks of a probe. Those that need a queue come last.
const CHECKS: &[&str] = &[
    "C1_exclusion::store_grants_a_free_key_once",
    "C1_exclusion::store_grants_an_expired_key_once",
    "C3_deadline::store_reports_remaining_time",
    "C5_fencing::store_tokens_grow",
    "C8_stale_calls::store_release_against_take_over",
    "C9_release::store_releases_by_claim",
    "C10_lost_replies::store_remembers_releases",
    "C10_lost_replies::store_repeats_a_grant",
    "C11_cancel_safety::store_withdraws_all",
    "C12_no_renewal::store_renews_by_claim_and_token",
    "C12_no_renewal::store_renews_from_now",
    "C12_no_renewal::store_revives_nothing",
    "C14_isolation::store_answers_batches_in_order",
    "C14_isolation::store_answers_a_batch_of_attempts",
    "C14_isolation::store_answers_a_batch_of_releases",
    "C20_independent_keys::store_keys_are_bytes",
    "C26_shared::store_shares_a_key",
    "C27_permits::store_counts_permits",
    "C29_expiry_of_each::store_expires_each_holder",
    "C29_expiry_of_each::store_renews_each_holder",
    "C15_fairness::store_queues_in_order",
    "C15_fairness::store_hands_over_what_was_requested",
    "C28_one_queue::store_lets_no_reader_overtake",
    "C28_one_queue::store_grants_the_run_at_its_head",
];

/// Checks the requests and answers of a store before it is used. For applications that refuse to
/// start with a wrong configuration or backend.
///
/// Runs a selection of the suite's checks below the lease engine, all at once. On a store that
/// answers in a few milliseconds this takes less than two seconds. It uses random keys that begin
/// with `check-`, and gives up every lease and ticket that it took. The suite also finds what needs
/// faults, other processes or hours.
///
/// ```
/// use std::sync::Arc;
/// use distlock_engine::LeaseStore;
/// use distlock_memory::MemoryStore;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store: Arc<dyn LeaseStore> = Arc::new(MemoryStore::new());
/// distlock_conformance::probe(&store).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The store breaks clauses, which the error lists, or it cannot be reached. A request without an
/// answer fails after 30 s.
///
/// # Panics
/// Outside of a Tokio runtime.
///
/// # Cancel safety
/// Cancel safe: a probe that has begun continues in the background, and leaves nothing behind.
pub async fn probe(store: &Arc<dyn LeaseStore>) -> Result<(), ProbeError> {
    let (store, runtime) = (Arc::clone(store), Handle::current());
    // The futures of checks do not move between threads.
    let probing = tokio::task::spawn_blocking(move || runtime.block_on(probed(&store)));
    let failed = |error| ProbeError { failures: vec![("probe".into(), Failure::of_task("the probe", &error))] };
    probing.await.unwrap_or_else(|error| Err(failed(error)))
}

async fn probed(store: &Arc<dyn LeaseStore>) -> Result<(), ProbeError> {
    let mut promised = Capabilities::default();
    promised.expiry = true;
    promised.fair = store.extras().queue.is_some();
    (promised.shared, promised.permits) = (store.capabilities().shared, store.capabilities().permits);
    let stage = Stage::new(Arc::new(Probed { store: Arc::clone(store), promised }));
    let plan = Plan { level: Level::Smoke, seed: Seed::random(), time: Duration::ZERO };
    let chosen = checks::all().into_iter().filter(|check| CHECKS.contains(&check.name().as_str()));
    let examined = chosen.map(async |check| (check.name(), examined(check, &stage, plan).await.0));
    let outcomes = futures_util::future::join_all(examined).await;
    stage.stop().await;
    let failures: Vec<_> = outcomes
        .into_iter()
        .filter_map(|(name, outcome)| match outcome {
            Outcome::Failed(failure) => Some((name, failure)),
            Outcome::Passed | Outcome::Refused(_) => None,
        })
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(ProbeError { failures }) }
}

/// The checks that a [`probe`] found to fail.
#[derive(Debug)]
pub struct ProbeError {
    failures: Vec<(String, Failure)>,
}

impl ProbeError {
    /// Returns the checks that failed, such as `C5_fencing::store_tokens_grow`, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.failures.iter().map(|(name, failure)| (name.as_str(), failure))
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store breaks the contract of locks")?;
        for (name, failure) in &self.failures {
            write!(f, "; {name}: {}", failure.message())?;
        }
        Ok(())
    }
}

impl std::error::Error for ProbeError {}

struct Probed {
    store: Arc<dyn LeaseStore>,
    promised: Capabilities,
}

#[async_trait]
impl Fixture for Probed {
    fn name(&self) -> &str {
        "probe"
    }

    fn profile(&self) -> Profile {
        Profile::new(self.promised).store()
    }

    async fn clients(&self, _: usize) -> Result<Vec<Client>, FixtureError> {
        Err("a probe tests only the bare store".into())
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::clone(&self.store))
    }
}

#[cfg(test)]
mod tests {
    use distlock_memory::MemoryStore;

    use super::*;

    #[test]
    fn what_is_looked_at_exists() {
        let all: Vec<String> = checks::all().iter().map(crate::check::Check::name).collect();
        let unknown: Vec<_> = CHECKS.iter().filter(|name| !all.iter().any(|known| known == *name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[tokio::test]
    async fn nothing_is_left_behind() {
        let memory = MemoryStore::new();
        let store: Arc<dyn LeaseStore> = Arc::new(memory.clone());
        probe(&store).await.unwrap();
        let admin = memory.extras().admin.unwrap();
        let everything = distlock_api::LockFilter::new();
        let held = admin.page(&everything, None, std::num::NonZeroUsize::MAX).await.unwrap();
        assert!(held.is_empty(), "{held:?}");
    }
}
