//! The broken backends, the clauses and the checks that catch them, and the words of the failures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use distlock_conformance::{Clause, checks};
use libtest_mimic::Failed;

use crate::Broken;
use crate::admins::Admin;
use crate::bare::Bare;
use crate::clocks::Clock;
use crate::guards::Guards;
use crate::modes::Modes;
use crate::once::Once;
use crate::pairs::Pairs;
use crate::providers::Provider;
use crate::queues::Queue;
use crate::servers::Server;
use crate::stores::Store;

/// A broken backend: what is wrong with it, the clause that it breaks, and the checks that catch
/// it, with words of their messages. Checks that it fails by chance, or only because of a broken
/// precondition, are not named. A ` | ` separates alternatives: which message appears depends on
/// the order of events.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Its name in [`LIST`], or empty.
    listed: &'static str,
    pub(crate) clause: Clause,
    pub(crate) broken: Broken,
    pub(crate) caught_by: &'static [(&'static str, &'static str)],
}

const fn case(
    name: &'static str,
    listed: &'static str,
    clause: Clause,
    broken: Broken,
    caught_by: &'static [(&'static str, &'static str)],
) -> Case {
    Case { name, listed, clause, broken, caught_by }
}

/// The faults that a suite for locks has to notice.
const LIST: &[&str] = &[
    "release by key",
    "client clock",
    "token reset on delete",
    "token re-read",
    "ttl counted from the reply",
    "late grant returned",
    "loss never signalled",
    "loss only after the renewal returns",
    "renewal after release",
    "renewal revives",
    "owner per process",
    "ghost ticket after cancel",
    "orphan lease after cancel",
    "LIFO queue",
    "lost wake-up",
    "dead head blocks",
    "herd",
    "timeout ignores the last attempt",
    "busy for ever",
    "swallowed release error",
    "one slow key starves renewals",
    "key folding (case)",
    "key folding (prefix)",
    "multi-key unsorted",
];

pub(crate) const CASES: &[Case] = &[
    case(
        "a_free_lock_is_reported_busy",
        "",
        Clause::C1,
        Broken::Provider(Provider::AttemptsAreBusy),
        &[(
            "C1_exclusion::mixed_calls",
            "was answered \"busy\" while no client may have held the lock | no order of the calls explains their answers",
        )],
    ),
    case(
        "acquire_now_grants_every_key",
        "",
        Clause::C1,
        Broken::Provider(Provider::GrantsNow),
        &[
            ("C1_exclusion::acquire_now", "was granted, token 1: acquire_now granted it before"),
            ("C1_exclusion::mixed_calls", "two clients held one key at the same time"),
        ],
    ),
    case(
        "acquire_now_is_always_busy",
        "",
        Clause::C1,
        Broken::Provider(Provider::BusyNow),
        &[("C1_exclusion::acquire_now", "acquire_now reported a free lock as busy")],
    ),
    case(
        "the_client_clock_decides_expiry",
        "client clock",
        Clause::C2,
        Broken::Clock(Clock::Client),
        &[
            ("C2_store_clock::client_one_hour_ahead", "the child was granted a held lock at once"),
            ("C2_store_clock::client_one_hour_behind", "a child process was not granted the lock within"),
        ],
    ),
    case(
        "the_lease_ends_early",
        "",
        Clause::C3,
        Broken::Store(Store::HalfTheTtl),
        &[
            ("C3_deadline::lost_before_taken_over", "while the guard before it was not lost"),
            ("C1_exclusion::takeover_only_after_loss", "was taken over after"),
        ],
    ),
    case(
        "the_deadline_counts_from_the_reply",
        "ttl counted from the reply",
        Clause::C3,
        Broken::Guards(Guards::CountsFromTheReply),
        &[("C3_deadline::counted_from_before_the_request", "deadlines were too late")],
    ),
    case(
        "the_margin_is_ignored",
        "",
        Clause::C3,
        Broken::Guards(Guards::NoMargin),
        &[("C3_deadline::margin_is_kept", "remain of a ttl of")],
    ),
    case(
        "a_late_grant_is_returned",
        "late grant returned",
        Clause::C3,
        Broken::Provider(Provider::ReturnsLateGrants),
        &[
            ("C3_deadline::late_grant_is_not_returned", "a grant was returned after its own deadline"),
            ("C3_deadline::paused_calls_return_no_lost_guard", "after a pause a guard is returned that is lost"),
        ],
    ),
    case(
        "a_lost_run_is_begun",
        "",
        Clause::C3,
        Broken::Once(Once::BegunBeforeTheEnd),
        &[("C3_deadline::a_lost_run_is_not_begun", "a run is begun that is lost")],
    ),
    case(
        "a_maximum_hold_is_ignored",
        "",
        Clause::C4,
        Broken::Provider(Provider::NoMaximumHold),
        &[("C4_loss::maximum_hold_ends_it", "was not granted within")],
    ),
    case(
        "loss_is_never_signalled",
        "loss never signalled",
        Clause::C4,
        Broken::Guards(Guards::NeverLost),
        &[
            ("C4_loss::signalled_by_the_deadline", "lost() of a lease that is not renewed"),
            ("C4_loss::run_stops_on_loss", "run() to end with the loss"),
            ("C3_deadline::lost_before_taken_over", "while the guard before it was not lost"),
            ("C11_cancel_safety::runtime_ends", "lost() of a guard whose runtime has ended"),
        ],
    ),
    case(
        "the_signal_is_missing",
        "",
        Clause::C4,
        Broken::Guards(Guards::NoSignal),
        &[("C4_loss::signalled_by_the_deadline", "lost() of a lease that is not renewed")],
    ),
    case(
        "a_loss_waits_for_the_renewal",
        "loss only after the renewal returns",
        Clause::C4,
        Broken::Guards(Guards::AfterTheRenewal),
        &[("C4_loss::signalled_while_renewals_hang", "lost() while no renewal is answered")],
    ),
    case(
        "a_loss_is_recorded_by_a_task",
        "",
        Clause::C4,
        Broken::Guards(Guards::RecordedByTask),
        &[("C4_loss::stalled_runtime", "another client was granted the lock while its guard's runtime stood still")],
    ),
    case(
        "the_token_is_constant",
        "",
        Clause::C5,
        Broken::Store(Store::ConstantToken),
        &[
            ("C5_fencing::across_release", "of the same key"),
            ("C5_fencing::across_force_release", "of the same key"),
            ("C1_exclusion::counter_under_contention", "two grants have the same token"),
            ("C1_exclusion::mixed_calls", "two grants have the same token"),
        ],
    ),
    case(
        "the_token_restarts_with_each_client",
        "",
        Clause::C5,
        Broken::Store(Store::TokenPerClient),
        &[
            ("C5_fencing::across_release", "of the same key"),
            ("C5_fencing::across_takeover", "token 1 follows token 1 of the same key"),
            (
                "C1_exclusion::counter_under_contention",
                "a later grant has a smaller token | two grants have the same token",
            ),
            ("C1_exclusion::mixed_calls", "a later grant has a smaller token | two grants have the same token"),
        ],
    ),
    case(
        "tokens_restart_when_the_record_is_removed",
        "token reset on delete",
        Clause::C5,
        Broken::Store(Store::TokenResets),
        &[("C5_fencing::across_purge", "token 1 follows token 1 of the same key")],
    ),
    case(
        "the_counter_of_a_key_expires",
        "",
        Clause::C5,
        Broken::Pairs(Pairs::TokensExpire),
        &[("C5_fencing::store_tokens_outlive_leases", "after the end of")],
    ),
    case(
        "the_token_is_read_after_the_grant",
        "token re-read",
        Clause::C6,
        Broken::Provider(Provider::ReReadsToken),
        &[("C6_constant_token::of_its_own_grant", "of the grant after its own")],
    ),
    case(
        "a_holder_is_granted_the_lock_again",
        "",
        Clause::C7,
        Broken::Provider(Provider::ReEntrant),
        &[
            ("C7_owner::not_re_entrant", "the lock object that holds the lock was granted it again"),
            ("C7_owner::second_waiter_waits_for_the_release", "the second acquisition of a held lock did not wait"),
        ],
    ),
    case(
        "a_process_is_one_owner",
        "owner per process",
        Clause::C7,
        Broken::Store(Store::OwnerPerProcess),
        &[("C7_owner::an_id_per_acquisition", "two acquisitions have the id")],
    ),
    case(
        "a_release_is_by_key",
        "release by key",
        Clause::C8,
        Broken::Store(Store::ReleaseByKey),
        &[("C8_stale_calls::stale_release_after_force", "a past holder's release or drop freed it")],
    ),
    case(
        "a_renewal_is_by_key",
        "",
        Clause::C8,
        Broken::Store(Store::RenewalByKey),
        &[
            ("C8_stale_calls::stale_renewal", "remain of a lease without renewal"),
            ("C4_loss::force_release_is_signalled", "lost() after a force-release"),
        ],
    ),
    case(
        "a_release_does_nothing",
        "",
        Clause::C9,
        Broken::Store(Store::ReleaseDoesNothing),
        &[("C9_release::released_means_free", "a lock whose release returned `Released` is busy")],
    ),
    case(
        "every_release_says_released",
        "",
        Clause::C9,
        Broken::Store(Store::AlwaysReleased),
        &[("C9_release::already_lost_by_force", "the release of a force-released lock returned Released")],
    ),
    case(
        "a_failed_release_says_released",
        "swallowed release error",
        Clause::C9,
        Broken::Store(Store::SwallowsErrors),
        &[("C9_release::failed_release_is_reported", "a release that was not carried out returned Released")],
    ),
    case(
        "a_repeated_attempt_is_busy_with_itself",
        "",
        Clause::C10,
        Broken::Queue(Queue::BusyWithItself),
        &[
            ("C10_lost_replies::acquisition", "was not granted within"),
            ("C10_lost_replies::several_keys", "replies were lost, and three free keys were not granted"),
        ],
    ),
    case(
        "a_repeated_release_frees_the_next_holder",
        "",
        Clause::C10,
        Broken::Queue(Queue::ReleasesTheNext),
        &[("C10_lost_replies::hand_over", "its last holder's release was repeated")],
    ),
    case(
        "a_repeated_release_is_forgotten",
        "",
        Clause::C10,
        Broken::Queue(Queue::ForgetsReleases),
        &[
            ("C10_lost_replies::release", "a release that was carried out returned AlreadyLost"),
            ("C10_lost_replies::hand_over", "a release that was carried out returned AlreadyLost"),
        ],
    ),
    case(
        "a_lost_renewal_is_a_loss",
        "",
        Clause::C10,
        Broken::Queue(Queue::UnknownIsLoss),
        &[
            (
                "C10_lost_replies::renewal",
                "the replies to two of its holder's renewals were lost | two lost replies made the holder lose its lease",
            ),
            ("C14_isolation::a_stalled_key_delays_no_other", "was lost, while another key stalled"),
        ],
    ),
    case(
        "a_drop_does_nothing",
        "",
        Clause::C11,
        Broken::Guards(Guards::NoDrop),
        &[
            ("C11_cancel_safety::dropped_guard", "was not granted within"),
            ("C11_cancel_safety::aborted_task", "was not granted within"),
            ("C11_cancel_safety::dropped_run", "after work under a lock was dropped"),
        ],
    ),
    case(
        "a_dropped_release_stops",
        "",
        Clause::C11,
        Broken::Guards(Guards::ReleaseStops),
        &[("C11_cancel_safety::dropped_release", "after a release was dropped")],
    ),
    case(
        "a_cancelled_acquisition_continues",
        "orphan lease after cancel",
        Clause::C11,
        Broken::Provider(Provider::CancelLeaks),
        &[
            ("C11_cancel_safety::dropped_acquisition", "after an acquisition was dropped"),
            ("C11_cancel_safety::dropped_waiter", "after a waiter was dropped"),
            ("C11_cancel_safety::dropped_timed_wait", "after a wait with a timeout was dropped"),
            ("C11_cancel_safety::dropped_acquire_all", "after an acquisition of free locks was dropped"),
            ("C11_cancel_safety::dropped_run", "after work under a lock was dropped"),
            (
                "C11_cancel_safety::dropped_unanswered",
                "was not granted within | after a call without an answer was dropped",
            ),
        ],
    ),
    case(
        "a_waiter_that_left_is_granted_the_lock",
        "ghost ticket after cancel",
        Clause::C11,
        Broken::Queue(Queue::Ghosts),
        &[
            ("C11_cancel_safety::dropped_waiter", "0 waiters in the queue"),
            ("C15_fairness::leaving_keeps_the_order", "2 waiters in the queue"),
        ],
    ),
    case(
        "a_withdrawal_does_nothing",
        "",
        Clause::C11,
        Broken::Queue(Queue::WithdrawalDoesNothing),
        &[
            ("C11_cancel_safety::dropped_waiter", "0 waiters in the queue"),
            ("C10_lost_replies::single_attempt", "was not granted within"),
            ("C15_fairness::leaving_keeps_the_order", "2 waiters in the queue"),
        ],
    ),
    case(
        "only_the_first_signal_completes",
        "",
        Clause::C11,
        Broken::Guards(Guards::SignalsOnce),
        &[("C11_cancel_safety::dropped_signal", "the next lost()")],
    ),
    case(
        "a_renewal_grants_again",
        "renewal revives",
        Clause::C12,
        Broken::Store(Store::RenewalGrants),
        &[
            ("C12_no_renewal::none_after_force_release", "a force-released lease came back"),
            ("C4_loss::force_release_is_signalled", "lost() after a force-release"),
        ],
    ),
    case(
        "a_renewal_follows_the_release",
        "renewal after release",
        Clause::C12,
        Broken::Store(Store::RenewsAfterRelease),
        &[("C12_no_renewal::id_is_gone_after_release", "after its release the lock is held by")],
    ),
    case(
        "a_failed_renewal_is_a_loss",
        "",
        Clause::C13,
        Broken::Store(Store::ErrorIsLoss),
        &[("C13_transient_errors::renewal_survives", "two of its holder's renewals failed")],
    ),
    case(
        "every_error_is_final",
        "",
        Clause::C13,
        Broken::Store(Store::ErrorsArePermanent),
        &[("C13_transient_errors::waiting_survives", "a transient error ended a wait")],
    ),
    case(
        "a_request_waits_for_the_one_before",
        "one slow key starves renewals",
        Clause::C14,
        Broken::Queue(Queue::OneAtATime),
        &[("C14_isolation::a_stalled_key_delays_no_other", "was lost, while another key stalled")],
    ),
    case(
        "the_last_waiter_is_granted_first",
        "LIFO queue",
        Clause::C15,
        Broken::Queue(Queue::LastInFirstOut),
        &[
            ("C15_fairness::order_of_arrival", "a later waiter overtook an earlier one"),
            ("C15_fairness::order_without_pushes", "a later waiter overtook an earlier one"),
            ("C15_fairness::order_across_a_break", "a later waiter overtook an earlier one"),
            ("C15_fairness::leaving_keeps_the_order", "a later waiter overtook an earlier one"),
            ("C15_fairness::even_turns", "the turns are uneven"),
        ],
    ),
    case(
        "the_first_attempt_overtakes_the_queue",
        "",
        Clause::C15,
        Broken::Queue(Queue::FirstAttempt),
        &[("C15_fairness::attempts_do_not_barge", "attempts overtook a waiter")],
    ),
    case(
        "a_withdrawal_empties_the_queue",
        "",
        Clause::C15,
        Broken::Queue(Queue::WithdrawalEmpties),
        &[("C15_fairness::leaving_keeps_the_order", "2 waiters in the queue | a later waiter overtook an earlier one")],
    ),
    case(
        "a_dead_head_blocks_the_queue",
        "dead head blocks",
        Clause::C15,
        Broken::Queue(Queue::DeadHeadBlocks),
        &[("C15_fairness::cut_off_waiter", "the waiter behind one that was cut off to get the lock")],
    ),
    case(
        "the_next_holder_is_answered_busy",
        "",
        Clause::C16,
        Broken::Queue(Queue::Silent),
        &[("C16_wake_ups::release_racing_arrival", "a waiter to get a lock that is free")],
    ),
    case(
        "a_broken_stream_looks_alive",
        "",
        Clause::C16,
        Broken::Queue(Queue::HidesBreaks),
        &[
            ("C16_wake_ups::pushes_refused", "the next of three waiters to have had the lock"),
            ("C16_wake_ups::pushes_broken", "the next of three waiters to have had the lock"),
        ],
    ),
    case(
        "a_ticket_is_taken_too_late",
        "lost wake-up",
        Clause::C16,
        Broken::Queue(Queue::TakesTicketLate),
        &[("C16_wake_ups::release_racing_arrival", "a waiter to get a lock that is free")],
    ),
    case(
        "busy_once_is_busy_for_ever",
        "busy for ever",
        Clause::C16,
        Broken::Queue(Queue::BusyForEver),
        &[("C16_wake_ups::pushes_refused", "the next of three waiters to have had the lock")],
    ),
    case(
        "a_pushed_grant_expires_too_late",
        "",
        Clause::C16,
        Broken::Queue(Queue::PushesLateExpiry),
        &[(
            "C16_wake_ups::pushes_delayed",
            "a waiter was given a lock that it did not hold | a lock that was just granted is lost",
        )],
    ),
    case(
        "all_waiters_are_woken_for_one_grant",
        "herd",
        Clause::C17,
        Broken::Queue(Queue::WakesAll),
        &[("C17_no_herd::hand_over_cost_is_constant", "a hand-over takes")],
    ),
    case(
        "a_timeout_is_ignored",
        "",
        Clause::C18,
        Broken::Provider(Provider::NoTimeout),
        &[("C18_bounded_calls::wait_is_bounded", "acquire to time out")],
    ),
    case(
        "invalid_options_are_corrected",
        "",
        Clause::C18,
        Broken::Provider(Provider::CorrectsOptions),
        &[("C18_bounded_calls::invalid_options", "a ttl of zero, on a held lock, returned Ok(")],
    ),
    case(
        "a_timeout_waits_for_the_last_attempt",
        "timeout ignores the last attempt",
        Clause::C18,
        Broken::Provider(Provider::TimesOutBetweenAttempts),
        &[("C18_bounded_calls::bounded_while_replies_hang", "acquire to time out while the store does not answer")],
    ),
    case(
        "a_timeout_forgets_the_last_attempt",
        "timeout ignores the last attempt",
        Clause::C18,
        Broken::Provider(Provider::TimeoutForgetsAttempt),
        &[
            ("C18_bounded_calls::short_waits_leave_nothing", "keys are still held"),
            ("C18_bounded_calls::bounded_while_replies_hang", "after a call had ended before the store answered it"),
        ],
    ),
    case(
        "a_record_outlives_its_lease",
        "",
        Clause::C19,
        Broken::Store(Store::Overstays),
        &[("C19_crash::cut_off_holder", "the lock of a holder that was cut off was free")],
    ),
    case(
        "case_is_folded",
        "key folding (case)",
        Clause::C20,
        Broken::Provider(Provider::FoldsCase),
        &[("C20_independent_keys::different_keys_are_different_locks", "is busy, and only other keys are held")],
    ),
    case(
        "a_prefix_of_the_key_counts",
        "key folding (prefix)",
        Clause::C20,
        Broken::Provider(Provider::FoldsPrefix),
        &[("C20_independent_keys::different_keys_are_different_locks", "is busy, and only other keys are held")],
    ),
    case(
        "several_locks_are_taken_in_the_named_order",
        "multi-key unsorted",
        Clause::C21,
        Broken::Unsorted,
        &[("C21_multi_key::opposite_orders", "callers of the same three keys in opposite orders got none")],
    ),
    case(
        "only_the_last_victim_is_remembered",
        "",
        Clause::C22,
        Broken::Admin(Admin::ShortMemory),
        &[("C22_force_release::history_records_who_and_why", "the history is")],
    ),
    case(
        "releases_are_not_counted",
        "",
        Clause::C23,
        Broken::Provider(Provider::MiscountsReleases),
        &[
            ("C23_accounting::counts_what_happens", "with one of four locks held"),
            ("C23_accounting::balances_throughout", "the accounting does not balance"),
        ],
    ),
    case(
        "a_close_does_nothing",
        "",
        Clause::C24,
        Broken::Provider(Provider::NoClose),
        &[
            ("C24_shutdown::releases_every_lease", "was not granted within"),
            ("C24_shutdown::guards_are_lost", "lost() after close()"),
            ("C24_shutdown::refuses_and_wakes", "close() to wake a waiter"),
            ("C11_cancel_safety::dropped_close", "after a close was dropped"),
        ],
    ),
    case(
        "the_minimum_hold_is_ignored",
        "",
        Clause::C25,
        Broken::Store(Store::NoMinimumHold),
        &[
            ("C25_minimum_hold::early_release_keeps_it_closed", "the lock was granted at once after an early release"),
            ("C25_minimum_hold::early_drop_keeps_it_closed", "the lock was granted again after"),
        ],
    ),
    case(
        "a_force_release_needs_a_holder",
        "",
        Clause::C25,
        Broken::Admin(Admin::ForceNeedsHolder),
        &[("C25_minimum_hold::force_release_opens_it", "returned None")],
    ),
    case(
        "an_owner_is_matched_by_prefix",
        "",
        Clause::Admin,
        Broken::Admin(Admin::OwnerByPrefix),
        &[("admin::list_by_owner", "the list of the owner is")],
    ),
    case(
        "a_list_has_one_page",
        "",
        Clause::Admin,
        Broken::Admin(Admin::OnePage),
        &[("admin::list_shows_what_is_held", "in pages of 1"), ("admin::list_by_owner", "the list of the owner is")],
    ),
    case(
        "a_release_by_owner_takes_all_locks",
        "",
        Clause::Admin,
        Broken::Admin(Admin::ReleasesOthers),
        &[
            ("admin::release_owner", "locks were released instead of 3"),
            ("admin::release_by_prefix", "locks were released instead of 1"),
            ("admin::release_of_everything_is_refused", "locks were released"),
        ],
    ),
    case(
        "an_empty_filter_is_accepted",
        "",
        Clause::Admin,
        Broken::Admin(Admin::AcceptsEmptyFilters),
        &[("admin::release_of_everything_is_refused", "locks were released")],
    ),
    case(
        "a_force_release_is_reported_as_a_release",
        "",
        Clause::Admin,
        Broken::Admin(Admin::ForceIsRelease),
        &[
            ("admin::events_report_what_happens", "the end was reported as Released"),
            ("admin::events_report_release_by_owner", "a release by owner was reported as Released"),
        ],
    ),
    case(
        "a_ttl_is_rounded_up",
        "",
        Clause::C3,
        Broken::Bare(Bare::RoundsTtl),
        &[("C3_deadline::store_reports_remaining_time", "left of a ttl of")],
    ),
    case(
        "other_claims_get_the_ttl",
        "",
        Clause::C3,
        Broken::Bare(Bare::ReportsTheTtl),
        &[("C3_deadline::store_reports_remaining_time", "an attempt of another claim reports")],
    ),
    case(
        "a_repeated_attempt_extends_nothing",
        "",
        Clause::C10,
        Broken::Bare(Bare::RepeatExtendsNothing),
        &[("C10_lost_replies::store_repeats_a_grant", "a repeated grant reports")],
    ),
    case(
        "a_repeated_attempt_takes_tokens",
        "",
        Clause::C10,
        Broken::Bare(Bare::RepeatTakesTokens),
        &[("C10_lost_replies::store_repeats_a_grant", "a repeated attempt was granted")],
    ),
    case(
        "a_renewal_adds_to_what_is_left",
        "",
        Clause::C12,
        Broken::Bare(Bare::RenewalAdds),
        &[("C12_no_renewal::store_renews_from_now", "left instead of at most")],
    ),
    case(
        "a_renewal_ignores_the_token",
        "",
        Clause::C12,
        Broken::Bare(Bare::RenewalIgnoresToken),
        &[("C12_no_renewal::store_renews_by_claim_and_token", "the lease's last token is")],
    ),
    case(
        "a_renewal_revives_an_expired_lease",
        "",
        Clause::C12,
        Broken::Bare(Bare::RenewalRevives),
        &[("C12_no_renewal::store_revives_nothing", "the lease has expired, and a renewal was answered")],
    ),
    case(
        "a_renewal_has_two_steps",
        "",
        Clause::C22,
        Broken::Bare(Bare::RenewsInTwoSteps),
        &[(
            "C22_force_release::store_force_release_against_renewal",
            "the lock was force-released at the moment of a renewal",
        )],
    ),
    case(
        "an_expired_lease_is_released",
        "",
        Clause::C9,
        Broken::Bare(Bare::ReleasesTheExpired),
        &[("C9_release::store_release_of_the_expired", "the release of an expired lease returned Released")],
    ),
    case(
        "only_one_release_is_remembered",
        "",
        Clause::C10,
        Broken::Bare(Bare::RemembersOneRelease),
        &[("C10_lost_replies::store_remembers_releases", "a release that was repeated after 1 other holders")],
    ),
    case(
        "a_release_has_two_steps",
        "",
        Clause::C8,
        Broken::Bare(Bare::ReleasesInTwoSteps),
        &[("C8_stale_calls::store_release_against_take_over", "whose expired lease was released at that moment")],
    ),
    case(
        "token_blocks_overlap",
        "",
        Clause::C5,
        Broken::Bare(Bare::BlocksOverlap),
        &[("C5_fencing::store_tokens_grow", "the next grant was")],
    ),
    case(
        "a_withdrawal_leaves_the_lease",
        "",
        Clause::C11,
        Broken::Bare(Bare::WithdrawsNothing),
        &[
            ("C11_cancel_safety::store_withdraws_all", "the claim was withdrawn, and a renewal was answered"),
            ("C5_fencing::store_tokens_grow", "the key is free, and the attempt was answered"),
        ],
    ),
    case(
        "a_batch_is_answered_in_reverse",
        "",
        Clause::C14,
        Broken::Bare(Bare::BatchBackwards),
        &[("C14_isolation::store_answers_batches_in_order", "in a batch ")],
    ),
    case(
        "a_batch_is_reported_gone_as_a_whole",
        "",
        Clause::C14,
        Broken::Bare(Bare::BatchAllOrNothing),
        &[("C14_isolation::store_answers_batches_in_order", "in a batch ")],
    ),
    case(
        "a_batch_ends_with_the_first_that_is_gone",
        "",
        Clause::C14,
        Broken::Bare(Bare::BatchStops),
        &[("C14_isolation::store_answers_batches_in_order", "answers")],
    ),
    case(
        "the_attempts_of_a_batch_are_answered_in_reverse",
        "",
        Clause::C14,
        Broken::Bare(Bare::AttemptsBackwards),
        &[("C14_isolation::store_answers_a_batch_of_attempts", "in a batch ")],
    ),
    case(
        "one_key_in_use_refuses_a_batch",
        "",
        Clause::C14,
        Broken::Bare(Bare::OneBusyRefusesAll),
        &[("C14_isolation::store_answers_a_batch_of_attempts", "in a batch ")],
    ),
    case(
        "the_releases_of_a_batch_are_answered_in_reverse",
        "",
        Clause::C14,
        Broken::Bare(Bare::ReleasesBackwards),
        &[("C14_isolation::store_answers_a_batch_of_releases", "in a batch ")],
    ),
    case(
        "a_release_in_a_batch_frees_the_key_of_another_holder",
        "",
        Clause::C14,
        Broken::Bare(Bare::ABatchFreesTheKey),
        &[("C14_isolation::store_answers_a_batch_of_releases", "a batch of another store had this key in it")],
    ),
    case(
        "a_release_in_a_batch_forgets_who_waits",
        "",
        Clause::C15,
        Broken::Bare(Bare::ABatchForgetsWaiters),
        &[("C15_fairness::store_releases_a_batch_to_its_waiters", "a batch has released a key that had a waiter")],
    ),
    case(
        "the_store_folds_case",
        "",
        Clause::C20,
        Broken::Bare(Bare::FoldsCase),
        &[("C20_independent_keys::store_keys_are_bytes", "was never locked")],
    ),
    case(
        "the_store_folds_the_turkish_i",
        "",
        Clause::C20,
        Broken::Bare(Bare::FoldsTurkish),
        &[("C20_independent_keys::store_keys_are_bytes", "was never locked")],
    ),
    case(
        "the_store_trims_keys",
        "",
        Clause::C20,
        Broken::Bare(Bare::Trims),
        &[("C20_independent_keys::store_keys_are_bytes", "was never locked")],
    ),
    case(
        "the_token_of_a_key_is_another_key",
        "",
        Clause::C20,
        Broken::Bare(Bare::SharesItsCompanions),
        &[(
            "C20_independent_keys::store_keys_have_no_companions",
            "was never locked, and the attempt was answered Busy",
        )],
    ),
    case(
        "the_store_compares_short_hashes",
        "",
        Clause::C20,
        Broken::Bare(Bare::HashesShortly),
        &[(
            "C20_independent_keys::store_keys_are_not_shortened",
            "was never locked, and the attempt was answered Busy",
        )],
    ),
    case(
        "a_free_key_is_selected_then_taken",
        "",
        Clause::C1,
        Broken::Bare(Bare::SelectThenUpdate),
        &[("C1_exclusion::store_grants_a_free_key_once", "attempts for a free key had these grants")],
    ),
    case(
        "an_expired_lease_is_selected_then_taken",
        "",
        Clause::C1,
        Broken::Bare(Bare::SelectThenTakeOver),
        &[("C1_exclusion::store_grants_an_expired_key_once", "attempts for an expired lease had these grants")],
    ),
    case(
        "a_lost_race_is_an_error",
        "",
        Clause::C1,
        Broken::Bare(Bare::ContentionIsAnError),
        &[
            ("C1_exclusion::store_grants_a_free_key_once", "contention must be answered busy"),
            ("C1_exclusion::store_grants_an_expired_key_once", "contention must be answered busy"),
        ],
    ),
    case(
        "a_queue_takes_any_number",
        "",
        Clause::C15,
        Broken::Bare(Bare::UnboundedQueue),
        &[("C15_fairness::store_bounds_its_queue", "the third ticket of a queue for two was answered")],
    ),
    case(
        "a_repeated_attempt_loses_its_place",
        "",
        Clause::C15,
        Broken::Bare(Bare::RepeatLosesThePlace),
        &[("C15_fairness::store_queues_in_order", "before it was answered")],
    ),
    case(
        "a_refresh_loses_its_place",
        "",
        Clause::C1,
        Broken::Bare(Bare::RefreshLosesThePlace),
        &[("C1_exclusion::store_answers_as_the_record", ", in step")],
    ),
    case(
        "a_refresh_adds_a_ticket",
        "",
        Clause::C15,
        Broken::Bare(Bare::RefreshAdds),
        &[("C15_fairness::store_refresh_adds_no_ticket", "the claim has no ticket")],
    ),
    case(
        "tickets_last_without_a_refresh",
        "",
        Clause::C15,
        Broken::Bare(Bare::TicketsLast),
        &[("C15_fairness::store_drops_dead_tickets", "before it was answered | the only ticket was not refreshed")],
    ),
    case(
        "a_handed_over_lease_lasts_too_long",
        "",
        Clause::C15,
        Broken::Bare(Bare::HandsOverTheTtl),
        &[("C15_fairness::store_hands_over_what_was_requested", "a claim window of")],
    ),
    case(
        "a_handed_over_lease_has_one_token",
        "",
        Clause::C15,
        Broken::Bare(Bare::HandsOverOneToken),
        &[("C15_fairness::store_hands_over_what_was_requested", "tokens were requested, and the store granted")],
    ),
    case(
        "a_withdrawal_leaves_the_ticket",
        "",
        Clause::C11,
        Broken::Bare(Bare::LeavesTickets),
        &[
            ("C11_cancel_safety::store_lets_waiters_leave", "before it was answered"),
            ("C15_fairness::store_refresh_adds_no_ticket", "the ticket was withdrawn"),
        ],
    ),
    case(
        "a_withdrawal_leaves_a_handed_over_lease",
        "",
        Clause::C15,
        Broken::Bare(Bare::LeavesWhatWasHandedOver),
        &[("C15_fairness::store_grant_against_leave", "the waiter has left, and a renewal was answered")],
    ),
    case(
        "no_grant_is_pushed",
        "",
        Clause::C16,
        Broken::Bare(Bare::PushesNoGrant),
        &[("C16_wake_ups::store_pushes_grants", "the event of the grant")],
    ),
    case(
        "no_loss_is_pushed",
        "",
        Clause::C4,
        Broken::Bare(Bare::PushesNoLoss),
        &[("C4_loss::store_pushes_losses", "the event of the loss")],
    ),
    case(
        "a_loss_is_pushed_with_the_old_token",
        "",
        Clause::C4,
        Broken::Bare(Bare::PushesTheOldToken),
        &[("C4_loss::store_pushes_losses", "which is not above it")],
    ),
    case(
        "no_opening_is_pushed",
        "",
        Clause::C16,
        Broken::Bare(Bare::PushesNoOpening),
        &[("C16_wake_ups::store_pushes_openings", "the event of the opened key")],
    ),
    case(
        "a_prefix_is_a_pattern",
        "",
        Clause::Admin,
        Broken::Bare(Bare::PrefixIsAPattern),
        &[("admin::store_prefixes_are_bytes", "with the prefix")],
    ),
    case(
        "a_prefix_folds_case",
        "",
        Clause::Admin,
        Broken::Bare(Bare::PrefixFoldsCase),
        &[("admin::store_prefixes_are_bytes", "with the prefix")],
    ),
    case(
        "pages_fold_case",
        "",
        Clause::Admin,
        Broken::Bare(Bare::PagesFoldCase),
        &[("admin::store_pages_in_order_of_bytes", "the list is")],
    ),
    case(
        "expired_leases_are_listed",
        "",
        Clause::Admin,
        Broken::Bare(Bare::ListsTheExpired),
        &[("admin::store_hides_the_expired", "the list is")],
    ),
    case(
        "a_list_looks_at_200_locks",
        "",
        Clause::Admin,
        Broken::Bare(Bare::ListsTheFirst),
        &[("admin::store_pages_beyond_others", "beyond 250 other locks the list of")],
    ),
    case(
        "the_store_ignores_the_minimum_hold",
        "",
        Clause::C25,
        Broken::Bare(Bare::NoMinimumHold),
        &[("C25_minimum_hold::store_keeps_it_closed", "and an attempt was granted")],
    ),
    case(
        "requests_wait_for_ever",
        "",
        Clause::C18,
        Broken::Server(Server::WaitsForEver),
        &[("C18_bounded_calls::store_ends_stalled_calls", "to end while the server stalls")],
    ),
    case(
        "requests_have_a_timeout_of_their_own",
        "",
        Clause::C18,
        Broken::Server(Server::HasItsOwnTimeout),
        &[("C18_bounded_calls::store_ends_stalled_calls", "to end while the server stalls")],
    ),
    case(
        "an_unanswered_request_is_reported_as_not_carried_out",
        "",
        Clause::C18,
        Broken::Server(Server::ReportsNothingHappened),
        &[("C18_bounded_calls::store_ends_stalled_calls", "reported that its claim has")],
    ),
    case(
        "an_unanswered_request_is_reported_as_permanent",
        "",
        Clause::C18,
        Broken::Server(Server::ReportsPermanent),
        &[
            ("C18_bounded_calls::store_ends_stalled_calls", "is permanent although a retry can succeed"),
            ("C10_lost_replies::store_answers_truly_when_cut", "is permanent although a retry can succeed"),
        ],
    ),
    case(
        "a_release_does_not_wait_for_its_answer",
        "",
        Clause::C18,
        Broken::Server(Server::ReleasesWithoutAnswer),
        &[("C18_bounded_calls::store_ends_stalled_calls", "a release was answered while the server stalls")],
    ),
    case(
        "a_blocked_key_blocks_all_keys",
        "",
        Clause::C14,
        Broken::Server(Server::OneLine),
        &[(
            "C14_isolation::store_isolates_a_blocked_key",
            "requests for keys that are not blocked to be answered | a request for a key that is not blocked",
        )],
    ),
    case(
        "a_request_is_judged_by_the_time_of_its_arrival",
        "",
        Clause::C2,
        Broken::Server(Server::OldClock),
        &[(
            "C2_store_clock::store_reads_the_clock_after_a_wait",
            "a renewal waited at the server until its lease had expired",
        )],
    ),
    case(
        "a_lease_begins_when_its_request_arrives",
        "",
        Clause::C2,
        Broken::Server(Server::GrantsByTheOldClock),
        &[("C2_store_clock::store_reads_the_clock_after_a_wait", "an attempt waited at the server and was granted")],
    ),
    case(
        "an_attempt_is_carried_out_after_its_withdrawal",
        "",
        Clause::C11,
        Broken::Server(Server::WithdrawsTooEarly),
        &[("C11_cancel_safety::store_withdraws_for_good", "attempts were dropped and withdrawn")],
    ),
    case(
        "a_late_attempt_is_carried_out",
        "",
        Clause::C10,
        Broken::Server(Server::TakesLateAttempts),
        &[("C10_lost_replies::store_orders_the_requests_of_a_claim", "then the attempt arrived and took the lease")],
    ),
    case(
        "a_key_is_found_free_before_the_wait",
        "",
        Clause::C1,
        Broken::Server(Server::SelectsBeforeTheWait),
        &[(
            "C1_exclusion::store_grants_a_blocked_key_once",
            "attempts for a free key whose record was blocked had these grants",
        )],
    ),
    case(
        "a_cut_connection_is_never_reopened",
        "",
        Clause::C10,
        Broken::Server(Server::NeverReconnects),
        &[("C10_lost_replies::store_answers_truly_when_cut", "the store to take a lease after the fault")],
    ),
    case(
        "a_cut_stream_stays_open_and_silent",
        "",
        Clause::C16,
        Broken::Server(Server::SilentStream),
        &[("C16_wake_ups::store_streams_survive_a_cut", "a stream whose connection was cut")],
    ),
    case(
        "a_crash_forgets_leases",
        "",
        Clause::C5,
        Broken::Server(Server::ForgetsLeases),
        &[("C5_fencing::store_survives_a_crash", "the server has crashed and runs again, and a renewal")],
    ),
    case(
        "a_crash_forgets_releases",
        "",
        Clause::C5,
        Broken::Server(Server::ForgetsReleases),
        &[("C5_fencing::store_survives_a_crash", "a release was repeated after a crash")],
    ),
    case(
        "a_crash_forgets_tokens",
        "",
        Clause::C5,
        Broken::Server(Server::TokensRestart),
        &[("C5_fencing::store_survives_a_crash", "before a crash of the server the key had")],
    ),
    case(
        "a_crash_sets_the_clock_back",
        "",
        Clause::C5,
        Broken::Server(Server::ClockRestarts),
        &[("C5_fencing::store_survives_a_crash", "after its grant and a crash of the server")],
    ),
    case(
        "an_attempt_is_two_requests",
        "",
        Clause::C1,
        Broken::Server(Server::TakesInTwoRequests),
        &[(
            "C1_exclusion::store_grants_once_over_a_slow_network",
            "over a slow network had these grants instead of one",
        )],
    ),
    case(
        "a_release_is_two_requests",
        "",
        Clause::C8,
        Broken::Server(Server::ReleasesInTwoRequests),
        &[("C8_stale_calls::store_releases_its_own_over_a_slow_network", "over a slow network")],
    ),
    case(
        "the_clock_is_a_request",
        "",
        Clause::C2,
        Broken::Server(Server::ClockIsARequest),
        &[(
            "C2_store_clock::store_reads_the_clock_in_its_step",
            "the lease was seen to have expired while its renewal was under way",
        )],
    ),
    case(
        "a_reader_is_granted_a_key_beside_a_writer",
        "",
        Clause::C26,
        Broken::Modes(Modes::ReaderBesideWriter),
        &[
            ("C26_shared::writer_holds_alone", "a writer holds the key, and an attempt (shared) was granted"),
            (
                "C26_shared::store_shares_a_key",
                "an exclusive claim holds the key, and the attempt was answered Granted",
            ),
            (
                "C26_shared::readers_and_writers",
                "two clients held one key at the same time | two grants have the same token | a later grant has a smaller token | no order of the calls explains",
            ),
        ],
    ),
    case(
        "a_writer_is_granted_a_key_beside_readers",
        "",
        Clause::C26,
        Broken::Modes(Modes::WriterBesideReader),
        &[
            ("C26_shared::writer_holds_alone", "a reader holds the key, and an attempt (exclusive) was granted"),
            ("C26_shared::store_shares_a_key", "shared claims hold the key, and the attempt was answered Granted"),
            (
                "C26_shared::readers_and_writers",
                "two clients held one key at the same time | two grants have the same token | a later grant has a smaller token | no order of the calls explains",
            ),
        ],
    ),
    case(
        "every_mode_is_exclusive",
        "",
        Clause::C26,
        Broken::Modes(Modes::EverythingIsExclusive),
        &[
            (
                "C26_shared::readers_hold_together",
                "only readers hold the key, and an attempt (shared) was answered busy",
            ),
            ("C26_shared::store_shares_a_key", "only shared claims hold the key, and the attempt was answered Busy"),
            (
                "C27_permits::as_many_as_there_are",
                "a permit is left, and an attempt (1 of 3 permits) was answered busy",
            ),
        ],
    ),
    case(
        "every_mode_is_shared",
        "",
        Clause::C26,
        Broken::Modes(Modes::EverythingIsShared),
        &[
            ("C26_shared::writer_holds_alone", "a writer holds the key, and an attempt (shared) was granted"),
            (
                "C27_permits::as_many_as_there_are",
                "all three permits are held, and an attempt (1 of 3 permits) was granted",
            ),
            (
                "C27_permits::store_counts_permits",
                "two of three permits are held, and the attempt was answered Granted",
            ),
        ],
    ),
    case(
        "a_key_without_holders_is_taken_in_two_steps",
        "",
        Clause::C26,
        Broken::Modes(Modes::TakesInTwoSteps),
        &[
            ("C26_shared::store_keeps_readers_and_writers_apart", "had these grants at the same moment"),
            ("C27_permits::store_grants_no_permit_twice", "of 3 permits these were granted at the same moment"),
        ],
    ),
    case(
        "one_permit_more_is_granted",
        "",
        Clause::C27,
        Broken::Modes(Modes::OnePermitMore),
        &[
            (
                "C27_permits::as_many_as_there_are",
                "all three permits are held, and an attempt (1 of 3 permits) was granted",
            ),
            (
                "C27_permits::never_above_the_number",
                "permits were held at the same time | no order of the calls explains",
            ),
            (
                "C27_permits::store_counts_permits",
                "two of three permits are held, and the attempt was answered Granted | all three permits are held, and the attempt was answered Granted | two permits are held, and this claim allows two, and the attempt was answered Granted",
            ),
        ],
    ),
    case(
        "guards_are_counted_instead_of_permits",
        "",
        Clause::C27,
        Broken::Modes(Modes::CountsGuards),
        &[
            (
                "C27_permits::several_at_once",
                "two of three permits are held, and an attempt (2 of 3 permits) was granted",
            ),
            (
                "C27_permits::store_counts_permits",
                "two of three permits are held, and the attempt was answered Granted",
            ),
        ],
    ),
    case(
        "the_first_number_of_permits_decides",
        "",
        Clause::C27,
        Broken::Modes(Modes::FirstNumberDecides),
        &[
            (
                "C27_permits::each_by_its_own_number",
                "two permits are held, and this request allows two, and an attempt (1 of 2 permits) was granted",
            ),
            (
                "C27_permits::store_counts_permits",
                "two permits are held, and this claim allows two, and the attempt was answered Granted",
            ),
        ],
    ),
    case(
        "readers_overtake_a_waiting_writer",
        "",
        Clause::C28,
        Broken::Modes(Modes::ReadersOvertake),
        &[
            (
                "C28_one_queue::reader_waits_behind_a_writer",
                "a writer waits for the key, and an attempt (shared) was granted | waiting for 2 waiters in the queue",
            ),
            (
                "C28_one_queue::store_lets_no_reader_overtake",
                "an exclusive claim waits for the key, and the attempt was answered Granted",
            ),
        ],
    ),
    case(
        "small_requests_overtake_a_large_one",
        "",
        Clause::C28,
        Broken::Modes(Modes::SmallRequestsOvertake),
        &[(
            "C28_one_queue::large_request_is_not_overtaken",
            "waiting for 2 waiters in the queue | a request for three permits waits, and an attempt (1 of 3 permits) was granted",
        )],
    ),
    case(
        "a_release_lets_one_reader_in",
        "",
        Clause::C28,
        Broken::Modes(Modes::OneReaderPerRelease),
        &[
            (
                "C28_one_queue::readers_are_granted_together",
                "waiting for a reader to get the key that a writer released, beside others",
            ),
            ("C28_one_queue::store_grants_the_run_at_its_head", "the refresh of its ticket was answered Waiting"),
        ],
    ),
    case(
        "a_writer_that_leaves_blocks_the_readers_behind_it",
        "",
        Clause::C28,
        Broken::Modes(Modes::LeavingWriterBlocks),
        &[
            (
                "C28_one_queue::writer_that_leaves_lets_readers_in",
                "a reader to get the key after the writer ahead of it",
            ),
            ("C28_one_queue::store_grants_what_a_leaver_kept_back", "the refresh of its ticket was answered Waiting"),
        ],
    ),
    case(
        "every_second_grant_of_a_run_is_pushed",
        "",
        Clause::C28,
        Broken::Modes(Modes::PushesEverySecondGrant),
        &[("C28_one_queue::store_pushes_each_grant_of_a_run", "the event of grant")],
    ),
    case(
        "a_dead_reader_blocks_the_key",
        "",
        Clause::C29,
        Broken::Modes(Modes::DeadReaderBlocks),
        &[
            ("C29_expiry_of_each::cut_off_reader", "was not granted within"),
            ("C29_expiry_of_each::renewal_extends_its_own", "a reader blocks the key that was not renewed"),
            (
                "C29_expiry_of_each::store_expires_each_holder",
                "the lease of this holder has expired, and a renewal was answered Held",
            ),
            (
                "C29_expiry_of_each::store_expires_permits_of_each",
                "two of three permits have expired, and the attempt was answered Busy",
            ),
        ],
    ),
    case(
        "a_reader_that_expires_frees_the_key",
        "",
        Clause::C29,
        Broken::Modes(Modes::ExpiryOfOneFreesAll),
        &[
            ("C29_expiry_of_each::end_of_one_leaves_the_others", "another reader's lease has expired"),
            (
                "C29_expiry_of_each::store_expires_each_holder",
                "the lease of another holder has expired, and a renewal of the lease was answered Gone",
            ),
        ],
    ),
    case(
        "a_renewal_extends_all_holders",
        "",
        Clause::C29,
        Broken::Modes(Modes::RenewalExtendsAll),
        &[
            ("C29_expiry_of_each::renewal_extends_its_own", "a reader blocks the key that was not renewed"),
            (
                "C29_expiry_of_each::store_renews_each_holder",
                "only the other of two holders was renewed, and a renewal was answered Held",
            ),
        ],
    ),
    case(
        "a_reader_is_upgraded",
        "",
        Clause::C31,
        Broken::Modes(Modes::Upgrades),
        &[(
            "C31_no_upgrade::holder_waits_for_itself",
            "the same client holds the key (shared), and an attempt (exclusive) was granted",
        )],
    ),
    case(
        "readers_have_one_token",
        "",
        Clause::C5,
        Broken::Modes(Modes::OneTokenForReaders),
        &[
            ("C5_fencing::across_modes", "two guards (shared) have the tokens"),
            ("C5_fencing::store_tokens_grow_over_modes", "whose token is not greater"),
        ],
    ),
    case(
        "the_tokens_of_readers_are_above_those_of_writers",
        "",
        Clause::C5,
        Broken::Modes(Modes::ReadersHaveHighTokens),
        &[
            ("C5_fencing::across_modes", "(exclusive) follow token"),
            ("C5_fencing::store_tokens_grow_over_modes", "the next grant (exclusive) was"),
        ],
    ),
    case(
        "the_release_of_one_reader_frees_the_key",
        "",
        Clause::C26,
        Broken::Modes(Modes::ReleaseOfOneFreesAll),
        &[
            (
                "C26_shared::readers_hold_together",
                "readers hold the key, and an attempt (exclusive) was granted | another reader released the key, and a guard is lost | the release of a held lock returned",
            ),
            (
                "C26_shared::store_shares_a_key",
                "another shared claim was released, and a renewal of the lease was answered Gone",
            ),
        ],
    ),
    case(
        "a_repeated_release_frees_another_reader",
        "",
        Clause::C10,
        Broken::Modes(Modes::RepeatedReleaseFreesAnother),
        &[
            ("C10_lost_replies::shared_release", "another reader's release was repeated"),
            (
                "C10_lost_replies::store_remembers_shared_releases",
                "other readers sent their repeated releases, and a renewal of the lease was answered Gone | other readers sent their first releases",
            ),
        ],
    ),
    case(
        "a_repeated_attempt_is_another_reader",
        "",
        Clause::C10,
        Broken::Modes(Modes::RepeatedAttemptIsAnother),
        &[
            ("C10_lost_replies::store_repeats_a_shared_grant", "a repeated attempt was granted"),
            ("C10_lost_replies::shared_acquisition", "was not granted within"),
            ("C10_lost_replies::permits_are_taken_once", "by an acquisition that was sent more than once"),
        ],
    ),
    case(
        "the_force_release_of_one_holder_takes_all",
        "",
        Clause::C22,
        Broken::Modes(Modes::ForceOfOneTakesAll),
        &[
            (
                "C22_force_release::force_release_of_one_holder",
                "another holder was released by force, and a guard is lost | one of two holders was released by force, and an attempt (exclusive) was granted",
            ),
            (
                "C22_force_release::store_takes_holders_by_force",
                "another holder was released by force, and a renewal of the lease was answered Gone",
            ),
            (
                "C22_force_release::store_force_frees_permits",
                "another holder was released by force, and a renewal of the lease was answered Gone",
            ),
        ],
    ),
    case(
        "a_force_release_takes_the_first_holder_only",
        "",
        Clause::C22,
        Broken::Modes(Modes::ForceTakesTheFirst),
        &[
            (
                "C22_force_release::force_release_takes_all",
                "all holders were released by force, and an attempt (exclusive) was answered busy",
            ),
            (
                "C22_force_release::store_takes_holders_by_force",
                "all holders were released by force, and a renewal was answered Held",
            ),
        ],
    ),
    case(
        "the_minimum_hold_of_a_reader_is_ignored",
        "",
        Clause::C25,
        Broken::Modes(Modes::NoMinimumHoldOfReaders),
        &[
            ("C25_minimum_hold::early_release_of_a_reader", "and a writer got the key after"),
            ("C25_minimum_hold::store_keeps_a_reader", "a writer was answered Granted"),
        ],
    ),
    case(
        "a_missing_mode_is_ignored",
        "",
        Clause::C30,
        Broken::Provider(Provider::IgnoresModes),
        &[
            ("C30_refused::shared_without_the_capability", "ended with None instead of Unsupported"),
            ("C30_refused::permits_without_the_capability", "ended with None instead of Unsupported"),
        ],
    ),
    case(
        "a_waiter_shortens_a_minimum_hold",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::HoldYieldsToWaiters),
        &[("C25_minimum_hold::store_keeps_it_closed_to_waiters", "the refresh of a waiter's ticket was answered")],
    ),
    case(
        "a_minimum_hold_counts_from_the_release",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::HoldCountsFromTheRelease),
        &[("C25_minimum_hold::store_keeps_it_closed_to_waiters", "and an attempt that was sent | was told to wait")],
    ),
    case(
        "a_minimum_hold_ends_with_the_ttl",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::HoldEndsWithTheTtl),
        &[("C25_minimum_hold::store_keeps_it_closed_beyond_the_ttl", "and an attempt was granted | was told to wait")],
    ),
    case(
        "the_minimum_hold_of_permits_is_ignored",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::PermitsIgnoreTheHold),
        &[("C25_minimum_hold::store_keeps_permits", "and an attempt was granted")],
    ),
    case(
        "a_batch_ignores_minimum_holds",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::BatchIgnoresTheHold),
        &[("C25_minimum_hold::store_keeps_closed_what_a_batch_releases", "and an attempt was granted")],
    ),
    case(
        "a_minimum_hold_is_not_pushed",
        "",
        Clause::C16,
        Broken::Pairs(Pairs::HoldIsNotPushed),
        &[("C16_wake_ups::store_pushes_minimum_holds", "the event of a minimum hold that has begun")],
    ),
    case(
        "a_repeated_release_ends_the_minimum_hold",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::RepeatedReleaseOpens),
        &[("C25_minimum_hold::release_without_reply_keeps_it_closed", "the lock was granted again after")],
    ),
    case(
        "an_expired_lease_is_free_for_all",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::AnyoneAfterExpiry),
        &[(
            "C15_fairness::store_keeps_the_order_after_an_expiry",
            "and two claims wait for the key, and the attempt was answered Granted",
        )],
    ),
    case(
        "a_dead_waiter_has_its_turn_for_an_hour",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::DeadHeadBlocks),
        &[("C15_fairness::store_passes_over_a_dead_head", "the lease and the turn of a dead waiter last for")],
    ),
    case(
        "a_force_release_drops_the_queue",
        "",
        Clause::C22,
        Broken::Pairs(Pairs::ForceDropsTheQueue),
        &[(
            "C22_force_release::store_force_keeps_the_queue",
            "the refresh of a ticket with 0 before it was answered Gone",
        )],
    ),
    case(
        "a_force_release_grants_the_key",
        "",
        Clause::C22,
        Broken::Pairs(Pairs::ForceGrantsTheFirst),
        &[(
            "C22_force_release::store_force_keeps_the_queue",
            "the refresh of a ticket with 0 before it was answered Held",
        )],
    ),
    case(
        "a_hand_over_forgets_the_owner",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::HandOverForgetsTheOwner),
        &[("admin::store_shows_whom_a_release_has_granted", "and it is shown with the owner None")],
    ),
    case(
        "a_batch_overtakes_the_queue",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::BatchesBarge),
        &[(
            "C15_fairness::store_batches_do_not_barge",
            "in a batch a key, without waiters: false, was answered Granted",
        )],
    ),
    case(
        "a_batch_revives_expired_leases",
        "",
        Clause::C14,
        Broken::Pairs(Pairs::BatchRevives),
        &[(
            "C14_isolation::store_batches_know_each_end",
            "in a batch the renewal of a lease (end: Expired) was answered Ok(Held",
        )],
    ),
    case(
        "an_attempt_without_a_ticket_loses_the_place",
        "",
        Clause::C15,
        Broken::Bare(Bare::MereAttemptLosesThePlace),
        &[(
            "C15_fairness::store_keeps_the_ticket_of_a_mere_attempt",
            "the refresh of one with 0 before it was answered Gone",
        )],
    ),
    case(
        "a_refused_attempt_stops_its_batch",
        "",
        Clause::C14,
        Broken::Bare(Bare::RefusedAttemptStopsTheBatch),
        &[("C14_isolation::store_attempts_beside_a_refused_one", "attempt 1 was answered Busy")],
    ),
    case(
        "the_answers_behind_a_refused_attempt_move_up",
        "",
        Clause::C14,
        Broken::Bare(Bare::RefusedAttemptShiftsTheAnswers),
        &[("C14_isolation::store_attempts_beside_a_refused_one", "attempt 0 was answered Granted")],
    ),
    case(
        "a_refused_attempt_of_a_batch_leaves_a_ticket",
        "",
        Clause::C14,
        Broken::Bare(Bare::RefusedAttemptLeavesATicket),
        &[("C14_isolation::store_attempts_beside_a_refused_one", "claims wait instead of 1")],
    ),
    case(
        "a_batch_refreshes_no_tickets",
        "",
        Clause::C14,
        Broken::Bare(Bare::BatchRefreshesNothing),
        &[("C14_isolation::store_renews_beside_an_ended_one", "instead of Waiting")],
    ),
    case(
        "a_batch_of_withdrawals_ends_at_the_first_without_a_lease",
        "",
        Clause::C14,
        Broken::Bare(Bare::WithdrawalsStop),
        &[(
            "C14_isolation::store_withdraws_beside_an_ended_one",
            "its claim was withdrawn in a batch, and a renewal was answered Held",
        )],
    ),
    case(
        "a_batch_of_withdrawals_leaves_tickets",
        "",
        Clause::C14,
        Broken::Bare(Bare::WithdrawalsLeaveTickets),
        &[(
            "C14_isolation::store_withdraws_beside_an_ended_one",
            "its claim was withdrawn in a batch, and a renewal was answered Waiting",
        )],
    ),
    case(
        "a_batch_of_withdrawals_frees_the_keys",
        "",
        Clause::C14,
        Broken::Bare(Bare::WithdrawalsFreeTheKeys),
        &[(
            "C14_isolation::store_withdraws_beside_an_ended_one",
            "another claim of its key was withdrawn in a batch, and a renewal of the lease was answered Gone",
        )],
    ),
    case(
        "a_batch_of_renewals_waits_for_a_blocked_key",
        "",
        Clause::C14,
        Broken::Server(Server::RenewalsWaitForEachOther),
        &[("C14_isolation::store_renews_beside_a_blocked_key", "renewal 0 was answered Err(")],
    ),
    case(
        "a_batch_of_attempts_waits_for_a_blocked_key",
        "",
        Clause::C14,
        Broken::Server(Server::AttemptsWaitForEachOther),
        &[(
            "C14_isolation::store_batches_beside_a_blocked_key",
            "beside a blocked key an attempt of a batch for another one failed",
        )],
    ),
    case(
        "a_batch_has_one_owner",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::BatchHasOneOwner),
        &[("admin::store_batches_keep_each_owner", "has taken a key, which is shown as")],
    ),
    case(
        "a_repeated_attempt_brings_back_what_was_taken",
        "",
        Clause::C10,
        Broken::Pairs(Pairs::RepeatBringsBack),
        &[("C10_lost_replies::store_repeats_after_force", "and the attempt was answered Granted")],
    ),
    case(
        "a_repeated_attempt_is_listed_twice",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::RepeatIsListedTwice),
        &[("admin::store_lists_a_repeated_grant_once", "that has repeated its attempt is listed as")],
    ),
    case(
        "a_repeated_attempt_is_reported_as_a_grant",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::RepeatIsReportedAgain),
        &[("admin::events_report_repetitions_once", "a release was reported as Granted")],
    ),
    case(
        "the_grants_of_a_batch_are_not_pushed",
        "",
        Clause::C16,
        Broken::Pairs(Pairs::BatchPushesNothing),
        &[("C16_wake_ups::store_pushes_grants_of_a_batch", "the event of grant 1 of 2 by a batch")],
    ),
    case(
        "a_hand_over_is_reported_without_its_owner",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::HandOverIsReportedWithoutOwner),
        &[("admin::events_report_hand_overs", "by a release was reported as")],
    ),
    case(
        "the_release_of_one_holder_is_reported_as_an_expiry",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::SharedReleaseIsAnExpiry),
        &[("admin::events_report_each_holder", "the release of one of two holders was reported as Expired")],
    ),
    case(
        "a_minimum_hold_is_reported_as_an_expiry",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::HoldIsAnExpiry),
        &[("admin::events_report_minimum_holds", "keeps closed was reported as Expired")],
    ),
    case(
        "the_grants_of_a_batch_are_reported_as_one",
        "",
        Clause::Admin,
        Broken::Pairs(Pairs::BatchEventsHaveOneId),
        &[("admin::events_report_batches", "a grant by a batch to")],
    ),
    case(
        "a_release_by_owner_pushes_no_losses",
        "",
        Clause::C4,
        Broken::Pairs(Pairs::OwnerReleasesAreSilent),
        &[("C4_loss::store_pushes_losses_of_an_owner", "the event of loss 1 of 2")],
    ),
    case(
        "a_purge_ends_a_minimum_hold",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::PurgeOpens),
        &[("C25_minimum_hold::purge_opens_nothing", "its minimum hold has not passed")],
    ),
    case(
        "a_purge_takes_locks_away",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::PurgeTakesWhatIsUsed),
        &[("C15_fairness::purge_leaves_what_is_used", "it is held, and the answer of a purge was")],
    ),
    case(
        "a_purge_forgets_the_tokens_of_the_dead",
        "",
        Clause::C5,
        Broken::Pairs(Pairs::PurgeForgetsTheDead),
        &[("C5_fencing::across_purge_of_the_expired", "of a holder that died before a purge")],
    ),
    case(
        "a_grant_is_pushed_with_a_late_expiry",
        "",
        Clause::C16,
        Broken::Pairs(Pairs::PushesALateExpiry),
        &[("C16_wake_ups::store_pushes_grants", "after the waiter's attempt")],
    ),
    case(
        "a_loss_is_pushed_with_a_later_token",
        "",
        Clause::C4,
        Broken::Pairs(Pairs::PushesATokenTooHigh),
        &[("C4_loss::store_pushes_losses", "which is above")],
    ),
    case(
        "a_renewal_understates_what_is_left",
        "",
        Clause::C12,
        Broken::Pairs(Pairs::RenewalUnderstates),
        &[("C12_no_renewal::store_renews_from_now", "reports only")],
    ),
    case(
        "a_minimum_hold_is_understated",
        "",
        Clause::C25,
        Broken::Pairs(Pairs::HoldIsUnderstated),
        &[("C25_minimum_hold::store_keeps_it_closed", "was told to wait")],
    ),
    case(
        "dead_tickets_are_counted",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::CountsDeadTickets),
        &[(
            "C15_fairness::store_drops_dead_tickets",
            "the only ticket was not refreshed for twice its ttl, and the store counts",
        )],
    ),
    case(
        "a_refresh_reports_the_first_place",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::RefreshReportsTheFirstPlace),
        &[("C15_fairness::store_queues_in_order", "the refresh of a ticket with 1 before it was answered")],
    ),
    case(
        "a_busy_answer_has_an_old_token",
        "",
        Clause::C5,
        Broken::Pairs(Pairs::AnchorIsTooOld),
        &[("C5_fencing::store_tells_true_anchors", "a busy answer has the token")],
    ),
    case(
        "a_busy_answer_has_a_slow_clock",
        "",
        Clause::C5,
        Broken::Pairs(Pairs::ClockIsSlow),
        &[("C5_fencing::store_tells_true_anchors", "the store's clock has counted")],
    ),
    case(
        "the_turn_of_a_waiter_ignores_its_place",
        "",
        Clause::C15,
        Broken::Pairs(Pairs::TurnIgnoresThePlace),
        &[("C15_fairness::store_tells_waiters_their_turn", "was told to wait")],
    ),
    case(
        "an_inspection_overstates_what_is_left",
        "",
        Clause::C22,
        Broken::Pairs(Pairs::InspectionOverstates),
        &[("C22_force_release::store_shows_true_numbers", "is shown as")],
    ),
    case(
        "work_under_way_is_begun_again",
        "",
        Clause::O1,
        Broken::Once(Once::TwoBegin),
        &[
            ("O1_one_run::exactly_one_begins", "callers began the work"),
            ("O1_one_run::others_are_busy", "work under way is answered"),
        ],
    ),
    case(
        "a_beginning_without_reply_is_answered_busy",
        "",
        Clause::O1,
        Broken::Once(Once::LostBeginningIsBusy),
        &[("O1_one_run::a_beginning_without_replies_blocks_nothing", "were lost, and it was answered Busy")],
    ),
    case(
        "a_beginning_without_reply_stays_under_way",
        "",
        Clause::O1,
        Broken::Once(Once::LostBeginningStays),
        &[("O1_one_run::a_beginning_without_replies_blocks_nothing", "the work was not begun: Busy")],
    ),
    case(
        "a_completion_remembers_nothing",
        "",
        Clause::O2,
        Broken::Once(Once::OutcomeForgotten),
        &[("O2_remembered::the_outcome_is_remembered", "the outcome is not remembered")],
    ),
    case(
        "an_outcome_is_forgotten_early",
        "",
        Clause::O2,
        Broken::Once(Once::ForgottenEarly),
        &[("O2_remembered::the_outcome_is_remembered", "the outcome is not remembered | done work is New")],
    ),
    case(
        "a_late_completion_is_reported_as_made",
        "",
        Clause::O3,
        Broken::Once(Once::LateCompleteAccepted),
        &[("O3_fenced_completion::a_late_completion_is_refused", "the completion of a late holder is answered Ok(())")],
    ),
    case(
        "a_late_completion_without_a_successor_is_made",
        "",
        Clause::O3,
        Broken::Once(Once::LateCompletesAlone),
        &[(
            "O3_fenced_completion::a_late_completion_without_a_successor_is_refused",
            "the completion of a late holder without a successor is answered Ok(())",
        )],
    ),
    case(
        "an_interrupted_run_is_under_way_for_ever",
        "",
        Clause::O4,
        Broken::Once(Once::CrashNeverReopens),
        &[("O4_two_times::a_crash_reopens_after_the_ttl", "the work was not begun: Busy")],
    ),
    case(
        "an_interrupted_run_is_not_reported",
        "",
        Clause::O5,
        Broken::Once(Once::VanishedIsNew),
        &[
            ("O5_interrupted::an_interrupted_run_is_named", "the interrupted run is reported as None"),
            ("O5_interrupted::a_vanished_holder_is_named", "the interrupted run of ada is reported as None"),
        ],
    ),
    case(
        "at_most_once_is_ignored",
        "",
        Clause::O5,
        Broken::Once(Once::AtMostOnceIgnored),
        &[("O5_interrupted::at_most_once_never_begins_again", "interrupted work is answered")],
    ),
    case(
        "a_discarded_run_is_left_interrupted",
        "",
        Clause::O6,
        Broken::Once(Once::DiscardLeavesTrace),
        &[("O6_discarded::discarding_leaves_no_trace", "discarded work is")],
    ),
    case(
        "a_discard_without_reply_is_reported_as_lost",
        "",
        Clause::O6,
        Broken::Once(Once::LostDiscardIsLost),
        &[("O6_discarded::a_discard_without_replies_has_one_outcome", "it was answered Some(Err(Lost")],
    ),
    case(
        "fingerprints_are_ignored",
        "",
        Clause::O7,
        Broken::Once(Once::FingerprintIgnored),
        &[("O7_fingerprint::another_fingerprint_is_a_mismatch", "another request is answered")],
    ),
    case(
        "fingerprints_are_cut",
        "",
        Clause::O7,
        Broken::Once(Once::FingerprintIsCut),
        &[("O7_fingerprint::another_fingerprint_is_a_mismatch", "with another end")],
    ),
    case(
        "a_refused_value_is_reported_as_remembered",
        "",
        Clause::O8,
        Broken::Once(Once::RejectedIsCompleted),
        &[("O8_truthful_completion::completion_tells_the_truth", "the outcome is not remembered")],
    ),
    case(
        "a_completion_without_reply_is_reported_as_lost",
        "",
        Clause::O8,
        Broken::Once(Once::LostCompletionIsLost),
        &[("O8_truthful_completion::a_completion_without_replies_has_one_outcome", "repeated it is answered Err(Lost")],
    ),
    case(
        "a_completion_that_was_left_is_reported_as_lost",
        "",
        Clause::O8,
        Broken::Once(Once::LeftCompletionIsLost),
        &[("O8_truthful_completion::a_completion_that_was_left_has_one_outcome", "repeated it is answered Err(Lost")],
    ),
    case(
        "a_wait_for_work_has_no_end",
        "",
        Clause::O9,
        Broken::Once(Once::WaitIsUnbounded),
        &[("O9_bounded_wait::a_wait_is_bounded", "waiting for a wait with a timeout to end")],
    ),
    case(
        "a_caller_that_may_wait_is_answered_busy",
        "",
        Clause::O9,
        Broken::Once(Once::WaiterGetsNoOutcome),
        &[("O9_bounded_wait::a_waiter_gets_the_outcome", "a waiter is answered")],
    ),
    case(
        "an_outcome_is_kept_for_ever",
        "",
        Clause::O10,
        Broken::Once(Once::NeverForgotten),
        &[("O10_forgotten::an_outcome_is_forgotten_after_keep", "waiting for an outcome to be forgotten")],
    ),
    case(
        "keep_counts_from_the_beginning",
        "",
        Clause::O10,
        Broken::Once(Once::KeepCountsFromTheBeginning),
        &[(
            "O10_forgotten::work_under_way_outlives_keep",
            "is forgotten before `keep` has passed since its completion",
        )],
    ),
    case(
        "a_dropped_call_begins_the_work",
        "",
        Clause::O11,
        Broken::Once(Once::DroppedCallBegins),
        &[("O11_cancel_safety::a_dropped_call_leaves_nothing", "the work was not begun | has begun the work")],
    ),
    case(
        "candidates_of_one_process_share_a_lock",
        "",
        Clause::L1,
        Broken::Provider(Provider::ReEntrant),
        &[("L1_one_leader::one_task_at_a_time", "two tasks ran at the same time")],
    ),
    case(
        "every_leader_has_the_same_term",
        "",
        Clause::L2,
        Broken::Store(Store::ConstantToken),
        &[("L2_terms::terms_grow", "follows")],
    ),
    case(
        "a_leader_does_not_notice_its_loss",
        "",
        Clause::L3,
        Broken::Guards(Guards::NeverLost),
        &[("L3_loss::lost_leader_drops_its_task", "although the task of the lost one is not dropped")],
    ),
    case(
        "a_resignation_leaves_the_key_to_the_ttl",
        "",
        Clause::L4,
        Broken::Store(Store::ReleaseDoesNothing),
        &[
            ("L4_resignation::finished_task_frees_the_key", "the key is held after the candidate has ended"),
            ("L4_resignation::resignation_hands_over", "waiting for the next candidate to lead after a resignation"),
        ],
    ),
    case(
        "an_error_ends_the_candidacy",
        "",
        Clause::L5,
        Broken::Store(Store::ErrorsAreUnsupported),
        &[("L5_errors::errors_of_the_store", "a candidate ended with Ok(Err(")],
    ),
    case(
        "a_follower_reports_errors",
        "",
        Clause::L6,
        Broken::Provider(Provider::BusyIsAnError),
        &[("L6_health::health_shows_what_it_does", "a candidate that follows shows Failing")],
    ),
    case(
        "the_lock_of_a_dropped_leader_stays",
        "",
        Clause::L7,
        Broken::Guards(Guards::NoDrop),
        &[("L7_cancel_safety::dropped_candidates", "was not granted within")],
    ),
    case(
        "a_leader_that_resigned_is_reported_for_longer",
        "",
        Clause::L8,
        Broken::Admin(Admin::HidesReleases),
        &[("L8_observation::observer_reports_each_leader", "the end of the term of")],
    ),
];

/// Returns the alternatives of the words that a check's message must contain.
pub(crate) fn alternatives(words: &'static str) -> impl Iterator<Item = &'static str> {
    words.split(" | ")
}

/// Ensures that every fault of [`LIST`] has a case, that no case names another, and that all have
/// words.
pub(crate) fn is_complete() -> Result<(), Failed> {
    let is_there = |listed: &&&str| CASES.iter().any(|case| case.listed == **listed);
    let missing: Vec<_> = LIST.iter().filter(|listed| !is_there(listed)).collect();
    let unknown = CASES.iter().filter(|case| !case.listed.is_empty() && !LIST.contains(&case.listed));
    let unknown: Vec<_> = unknown.map(|case| case.listed).collect();
    let wordless = CASES.iter().filter(|case| case.caught_by.iter().any(|(_, words)| words.is_empty()));
    let wordless: Vec<_> = wordless.map(|case| case.name).collect();
    if missing.is_empty() && unknown.is_empty() && wordless.is_empty() {
        return Ok(());
    }
    Err(format!("missing: {missing:?}, unknown: {unknown:?}, without words: {wordless:?}").into())
}

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/BROKEN.md");
/// If this variable is set, the document is rewritten.
const WRITE: &str = "DISTLOCK_WRITE_BROKEN";
/// This test writes everything after this line.
const BEGIN: &str = "<!-- `tests/broken/matrix.rs` writes the rest of this file. -->\n";

/// Prints the matrix, and compares it with the document.
pub(crate) fn is_current() -> Result<(), Failed> {
    let matrix = matrix();
    println!("{matrix}");
    let document = std::fs::read_to_string(DOCUMENT)?;
    let (text, written) =
        document.split_once(BEGIN).ok_or("BROKEN.md has no line after which the matrix is written")?;
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(DOCUMENT, format!("{text}{BEGIN}{matrix}"))?;
        return Ok(());
    }
    if written == matrix {
        Ok(())
    } else {
        Err(format!("BROKEN.md is out of date: run this test with {WRITE}=1").into())
    }
}

fn id(clause: Clause) -> String {
    if clause == Clause::Admin { "admin".to_owned() } else { format!("{clause:?}") }
}

fn matrix() -> String {
    let mut text = String::from(
        "\n## Broken backends, and the checks that catch them\n\n\
         | broken backend | clause | known fault | checks, and the words of their failures |\n|---|---|---|---|\n",
    );
    for case in CASES {
        let check = |(check, words): &(&str, &str)| format!("`{check}` “{}”", words.replace(" | ", "” or “"));
        let caught_by: Vec<String> = case.caught_by.iter().map(check).collect();
        let (name, clause) = (case.name.replace('_', " "), id(case.clause));
        let _ = writeln!(text, "| {name} | {clause} | {} | {} |", case.listed, caught_by.join("<br>"));
    }
    let caught = |name: &str| CASES.iter().any(|case| case.caught_by.iter().any(|(check, _)| *check == name));
    let names: BTreeSet<String> = checks().iter().map(|check| check.name()).collect();
    let others: Vec<&str> = names.iter().map(String::as_str).filter(|name| !caught(name)).collect();
    let _ = write!(
        text,
        "\n{} of {} checks are named above. The table has no broken backend for the others:\n\n\
         | clause | checks |\n|---|---|\n",
        names.len() - others.len(),
        names.len()
    );
    let mut by_clause = BTreeMap::<&str, Vec<String>>::new();
    for (clause, check) in others.iter().filter_map(|name| name.split_once("::")) {
        by_clause.entry(clause).or_default().push(format!("`{check}`"));
    }
    for (clause, checks) in by_clause {
        let _ = writeln!(text, "| {clause} | {} |", checks.join(", "));
    }
    text
}
