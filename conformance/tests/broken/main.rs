//! The suite is tested by backends that are broken on purpose: each must be caught by the clause that it breaks, and by name.

mod admins;
mod guards;
mod providers;
mod stores;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use distlock_api::store::StoreCapabilities;
use distlock_api::{Capabilities, ErrorKind, LeaseProvider, LockProvider};
use distlock_conformance::{
    Client, Controls, Fixture, FixtureError, Operation, Outcome, Profile, async_trait, examine,
};
use distlock_memory::{MemoryStore, Operation as Call};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use admins::Admin;
use guards::Guards;
use providers::Provider;
use stores::Store;

/// A backend that is broken in one place, or in none.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Nowhere,
    Store(Store),
    Guards(Guards),
    Provider(Provider),
    Admin(Admin),
}

impl Broken {
    fn client(self, store: &MemoryStore) -> Arc<dyn LockProvider> {
        let engine = LeaseProvider::new(Arc::new(store.clone()));
        match self {
            Self::Nowhere => Arc::new(engine),
            Self::Store(broken) => Arc::new(LeaseProvider::new(Arc::new(broken.around(store.clone())))),
            Self::Guards(broken @ Guards::CountsFromTheReply) => {
                let slow = LeaseProvider::new(Arc::new(Store::Slow.around(store.clone())));
                Arc::new(broken.around(slow))
            }
            Self::Guards(broken) => Arc::new(broken.around(engine)),
            Self::Provider(broken) => Arc::new(broken.around(engine)),
            Self::Admin(broken) => Arc::new(broken.around(engine)),
        }
    }
}

/// A store without push, so that nobody hears by that way what a broken call hides.
fn store() -> MemoryStore {
    let mut capabilities = StoreCapabilities::default();
    capabilities.minimum_hold = true;
    capabilities.ordered_claims = true;
    capabilities.renew_batch = NonZeroUsize::MIN;
    MemoryStore::new().with_capabilities(capabilities)
}

#[async_trait]
impl Fixture for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        Profile::new(promised).admin().owners().lock_events().faults()
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let store = store();
        Ok((0..count).map(|_| Client::new(self.client(&store)).with_controls(Faults(store.clone()))).collect())
    }
}

struct Faults(MemoryStore);

#[async_trait]
impl Controls for Faults {
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        let call = if operation == Operation::Renew { Call::RenewMany } else { Call::TryAcquire };
        (0..times).for_each(|_| self.0.fail_next(call, ErrorKind::Unavailable));
        Ok(())
    }

    async fn end_faults(&self) -> Result<u64, FixtureError> {
        self.0.clear_faults();
        Ok(1)
    }
}

/// Runs the named checks on a backend, and tells which of them failed.
async fn failed(backend: Broken, checks: &[&str]) -> Vec<String> {
    let report = examine(backend, |check| checks.contains(&check.name().as_str())).await;
    let mut failed = Vec::new();
    for (name, outcome) in report.outcomes() {
        match outcome {
            Outcome::Passed => {}
            Outcome::Failed(failure) => {
                println!("{backend:?}: {name}: {failure}");
                failed.push(name.to_owned());
            }
            other => panic!("{name} did not run: {other:?}"),
        }
    }
    assert_eq!(report.outcomes().count(), checks.len(), "a check that is named here does not exist: {checks:?}");
    failed
}

/// A broken backend: what is wrong with it, and exactly which checks catch it.
type Case = (&'static str, Broken, &'static [&'static str]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("the_token_is_constant", Broken::Store(Store::ConstantToken), &["C5_fencing::across_release", "C5_fencing::across_force_release"]),
    ("the_token_restarts_with_each_client", Broken::Store(Store::TokenPerClient), &["C5_fencing::across_release", "C5_fencing::across_takeover"]),
    ("the_lease_ends_early", Broken::Store(Store::HalfTheTtl), &["C1_exclusion::takeover_only_after_loss", "C3_deadline::lost_before_taken_over"]),
    ("release_is_by_key", Broken::Store(Store::ReleaseByKey), &["C8_stale_calls::stale_release_after_force"]),
    ("release_does_nothing", Broken::Store(Store::ReleaseLies), &["C9_release::released_means_free"]),
    ("release_is_always_glad", Broken::Store(Store::AlwaysReleased), &["C9_release::already_lost_by_force"]),
    ("renewal_grants_anew", Broken::Store(Store::RenewalGrants), &["C4_loss::force_release_is_heard"]),
    ("renewal_is_by_key", Broken::Store(Store::RenewalByKey), &["C4_loss::force_release_is_heard", "C8_stale_calls::stale_renewal"]),
    ("a_failed_renewal_is_a_loss", Broken::Store(Store::ErrorIsLoss), &["C13_transient_errors::renewal_survives"]),
    ("every_error_is_final", Broken::Store(Store::ErrorsArePermanent), &["C13_transient_errors::waiting_survives"]),
    ("the_minimum_hold_is_forgotten", Broken::Store(Store::NoMinimumHold), &["C25_minimum_hold::early_release_keeps_it_closed", "C25_minimum_hold::early_drop_keeps_it_closed"]),

    ("loss_is_never_signalled", Broken::Guards(Guards::NeverLost), &["C3_deadline::lost_before_taken_over", "C4_loss::signalled_by_the_deadline", "C4_loss::run_stops_on_loss"]),
    ("the_signal_is_missing", Broken::Guards(Guards::NoSignal), &["C4_loss::signalled_by_the_deadline"]),
    ("the_deadline_counts_from_the_reply", Broken::Guards(Guards::CountsFromTheReply), &["C3_deadline::counted_from_before_the_request"]),
    ("the_margin_is_ignored", Broken::Guards(Guards::NoMargin), &["C3_deadline::margin_is_kept"]),
    ("a_drop_does_nothing", Broken::Guards(Guards::NoDrop), &["C11_cancel_safety::dropped_guard", "C11_cancel_safety::aborted_task"]),
    ("a_dropped_release_stops", Broken::Guards(Guards::ReleaseStops), &["C11_cancel_safety::dropped_release"]),

    ("a_holder_gets_it_again", Broken::Provider(Provider::ReEntrant), &["C7_owner::not_re_entrant", "C7_owner::second_waiter_waits_for_the_release"]),
    ("a_cancelled_acquisition_goes_on", Broken::Provider(Provider::CancelLeaks), &["C11_cancel_safety::dropped_acquisition", "C11_cancel_safety::dropped_waiter"]),
    ("a_timeout_is_ignored", Broken::Provider(Provider::NoTimeout), &["C18_bounded_calls::wait_is_bounded"]),
    ("nonsense_is_corrected", Broken::Provider(Provider::CorrectsOptions), &["C18_bounded_calls::invalid_options"]),
    ("case_is_folded", Broken::Provider(Provider::FoldsCase), &["C20_independent_keys::different_keys_are_different_locks"]),
    ("releases_are_not_counted", Broken::Provider(Provider::MiscountsReleases), &["C23_accounting::counts_what_happens", "C23_accounting::balances_throughout"]),
    ("close_does_nothing", Broken::Provider(Provider::NoClose), &["C24_shutdown::releases_every_lease", "C24_shutdown::guards_are_lost", "C24_shutdown::refuses_and_wakes"]),

    ("an_owner_is_matched_by_its_beginning", Broken::Admin(Admin::OwnerByPrefix), &["admin::list_by_owner"]),
    ("a_list_has_one_page", Broken::Admin(Admin::OnePage), &["admin::list_shows_what_is_held", "admin::list_by_owner"]),
    ("others_lose_their_locks_with_the_owner", Broken::Admin(Admin::ReleasesOthers), &["admin::release_owner", "admin::release_by_prefix", "admin::release_of_everything_is_refused"]),
    ("only_the_last_victim_is_remembered", Broken::Admin(Admin::ShortMemory), &["C22_force_release::history_tells_who_and_why"]),
    ("a_filter_of_nothing_is_taken", Broken::Admin(Admin::TakesNothingForNobody), &["admin::release_of_everything_is_refused"]),
    ("a_forced_release_is_told_as_any_other", Broken::Admin(Admin::ForceIsRelease), &["admin::events_tell_what_happens", "admin::events_tell_of_owners_released"]),
];

/// They wait for clocks most of the time.
const AT_ONCE: usize = 16;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let mut trials: Vec<Trial> = CASES
        .iter()
        .map(|&(name, broken, expected)| {
            trial(name, &runtime, async move || {
                let failed = failed(broken, expected).await;
                if failed == expected {
                    Ok(())
                } else {
                    Err(format!("caught by {failed:?} instead of {expected:?}").into())
                }
            })
        })
        .collect();
    // What catches the broken ones must be quiet where nothing is broken.
    trials.push(trial("nothing_is_caught_where_nothing_is_broken", &runtime, async || {
        let mut all: Vec<&str> = CASES.iter().flat_map(|(_, _, checks)| checks.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        let failed = failed(Broken::Nowhere, &all).await;
        if failed.is_empty() { Ok(()) } else { Err(format!("caught by {failed:?}").into()) }
    }));
    trials.push(trial("nothing_is_caught_where_it_is_only_slow", &runtime, async || {
        let failed = failed(Broken::Store(Store::Slow), &["C3_deadline::counted_from_before_the_request"]).await;
        if failed.is_empty() { Ok(()) } else { Err(format!("caught by {failed:?}").into()) }
    }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, runtime: &Runtime, test: impl AsyncFnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let runtime = runtime.handle().clone();
    Trial::test(name, move || runtime.block_on(test()))
}
