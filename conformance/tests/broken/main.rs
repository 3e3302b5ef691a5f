//! The suite is tested by backends that are broken on purpose: each must be caught by the clause that it breaks, and by name.

mod admins;
mod guards;
mod providers;
mod queues;
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
use queues::Queue;
use stores::Store;

/// A backend that is broken in one place, or in none.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Nowhere,
    Store(Store),
    Guards(Guards),
    Provider(Provider),
    Admin(Admin),
    /// With a queue, pushes, and all faults.
    Queue(Queue),
}

impl Broken {
    /// Whether it keeps a queue, and promises what goes with that.
    fn has_queue(self) -> bool {
        matches!(self, Self::Queue(_))
    }

    fn client(self, store: &MemoryStore) -> Arc<dyn LockProvider> {
        let engine = LeaseProvider::new(Arc::new(store.clone()));
        match self {
            Self::Nowhere | Self::Queue(_) => Arc::new(engine),
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
        if self.has_queue() {
            return Queue::profile();
        }
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        Profile::new(promised).admin().owners().lock_events().faults()
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        if let Self::Queue(broken) = self {
            return Ok(broken.clients(count));
        }
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

/// A broken backend: what is wrong with it, and exactly which checks catch it. Not named are those that it fails by chance, or only because what they
/// build upon is broken.
type Case = (&'static str, Broken, &'static [&'static str]);

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("the_token_is_constant", Broken::Store(Store::ConstantToken), &["C1_exclusion::counter_under_contention", "C1_exclusion::mixed_calls", "C5_fencing::across_release", "C5_fencing::across_force_release"]),
    ("the_token_restarts_with_each_client", Broken::Store(Store::TokenPerClient), &["C1_exclusion::counter_under_contention", "C1_exclusion::mixed_calls", "C5_fencing::across_release", "C5_fencing::across_takeover"]),
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
    ("a_free_lock_is_said_to_be_busy", Broken::Provider(Provider::LiesToAttempts), &["C1_exclusion::mixed_calls"]),
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

    ("the_last_to_come_is_served_first", Broken::Queue(Queue::LastInFirstOut), &["C15_fairness::order_of_arrival", "C15_fairness::order_without_pushes", "C15_fairness::order_across_a_break", "C15_fairness::leaving_keeps_the_order", "C15_fairness::even_turns"]),
    ("the_first_to_ask_overtakes_the_queue", Broken::Queue(Queue::FirstToAsk), &["C15_fairness::nobody_barges"]),
    ("a_waiter_that_left_is_served", Broken::Queue(Queue::Ghosts), &["C11_cancel_safety::dropped_waiter", "C15_fairness::leaving_keeps_the_order"]),
    ("who_leaves_the_queue_takes_all_along", Broken::Queue(Queue::EverybodyLeaves), &["C15_fairness::leaving_keeps_the_order"]),
    ("a_withdrawal_does_nothing", Broken::Queue(Queue::WithdrawalLies), &["C10_lost_replies::single_attempt", "C11_cancel_safety::dropped_waiter", "C15_fairness::leaving_keeps_the_order"]),
    ("the_heir_is_told_that_it_waits", Broken::Queue(Queue::Silent), &["C16_wake_ups::release_racing_arrival"]),
    ("a_broken_stream_looks_alive", Broken::Queue(Queue::HidesBreaks), &["C15_fairness::order_across_a_break", "C16_wake_ups::pushes_refused", "C16_wake_ups::pushes_broken"]),
    ("a_place_is_taken_too_late", Broken::Queue(Queue::TakesItsPlaceLate), &["C16_wake_ups::release_racing_arrival"]),
    ("busy_once_is_busy_for_ever", Broken::Queue(Queue::BusyForEver), &["C16_wake_ups::pushes_refused"]),
    ("everybody_is_woken_for_one_to_win", Broken::Queue(Queue::WakesAll), &["C17_no_herd::one_hand_over_costs_the_same_for_many"]),
    ("a_late_grant_is_believed", Broken::Queue(Queue::LiesAboutExpiry), &["C16_wake_ups::pushes_delayed"]),
    ("a_repeated_attempt_is_busy_with_itself", Broken::Queue(Queue::BusyWithItself), &["C10_lost_replies::acquisition"]),
    ("a_repeated_release_frees_the_next_holder", Broken::Queue(Queue::ReleasesTheNext), &["C10_lost_replies::hand_over"]),
    ("a_repeated_release_is_forgotten", Broken::Queue(Queue::ForgetsReleases), &["C10_lost_replies::release", "C10_lost_replies::hand_over"]),
    ("a_lost_renewal_is_a_loss", Broken::Queue(Queue::UnknownIsLoss), &["C10_lost_replies::renewal", "C14_isolation::a_stalled_key_delays_no_other"]),
    ("a_request_waits_for_the_one_before", Broken::Queue(Queue::OneAtATime), &["C14_isolation::a_stalled_key_delays_no_other"]),
];

/// Backends in which nothing is broken.
const SOUND: &[(&str, Broken)] = &[
    ("nothing_is_caught_where_nothing_is_broken", Broken::Nowhere),
    ("nothing_is_caught_where_it_is_only_slow", Broken::Store(Store::Slow)),
    ("nothing_is_caught_in_a_queue_where_nothing_is_broken", Broken::Queue(Queue::Sound)),
    ("nothing_is_caught_in_a_queue_that_is_only_slow", Broken::Queue(Queue::Slow)),
];

/// All checks that catch the broken relatives of a backend.
fn named_for(sound: Broken) -> Vec<&'static str> {
    let relatives = CASES.iter().filter(|(_, broken, _)| broken.has_queue() == sound.has_queue());
    let mut checks: Vec<_> = relatives.flat_map(|(_, _, checks)| checks.iter().copied()).collect();
    checks.sort_unstable();
    checks.dedup();
    checks
}

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
    for (name, sound) in SOUND {
        trials.push(trial(name, &runtime, async move || {
            let checks: Vec<&str> = match sound {
                Broken::Store(_) => vec!["C3_deadline::counted_from_before_the_request"],
                _ => named_for(*sound),
            };
            let failed = failed(*sound, &checks).await;
            if failed.is_empty() { Ok(()) } else { Err(format!("caught by {failed:?}").into()) }
        }));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, runtime: &Runtime, test: impl AsyncFnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let runtime = runtime.handle().clone();
    Trial::test(name, move || runtime.block_on(test()))
}
