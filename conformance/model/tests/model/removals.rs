//! The protocol needs every one of its guards.

use distlock_model::removals::{REMOVALS, Removal, UNSEEN};
use distlock_model::rules::Guard;
use distlock_model::state::State;

fn fails_without(guard: Guard) {
    let removal = Removal::of(guard).expect("the guard is in the table");
    let report = removal.search(|_| {});
    let found = report.counterexample.unwrap_or_else(|| panic!("every property holds without {guard}"));
    assert_eq!(found.property, removal.property);
    // Repeat the counterexample: it ends in the violation.
    let config = removal.config();
    let mut state = State::initial(&config);
    let mut seen = None;
    for action in found.path {
        assert_eq!(seen, None, "a shorter one would do");
        let verdict;
        (state, verdict) = state.after(action, &config);
        seen = [verdict, state.violation(&config)].into_iter().flatten().find(|seen| *seen == removal.property);
    }
    if found.is_calm {
        seen = state.calm(&config, Some(removal.property), |_, _, _| {});
    }
    assert_eq!(seen, Some(removal.property));
}

macro_rules! needed {
    ($($name:ident $guard:ident;)*) => {
        $(#[test]
        fn $name() {
            fails_without(Guard::$guard);
        })*

        #[test]
        fn every_guard_is_removed_once() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
            assert_eq!(REMOVALS.map(|removal| removal.guard), Guard::ALL);
        }
    };
}

needed! {
    r01_deadlines_count_from_the_sending SentInstant;
    r03_an_extension_never_shortens ExtendMax;
    r04_the_margin_covers_skew Margin;
    r05_tokens_are_strict TokenStrict;
    r05_tokens_follow_the_clock TokenClock;
    r06_records_outlive_their_leases PurgeGrace;
    r06_a_record_is_kept_until_its_token_is_reached TokenTime;
    r07_an_absent_holder_means_free FreeIfAbsent;
    r07_what_is_expired_is_free FreeIfExpired;
    r08_mine_already AlreadyHeld;
    r08_mine_only_while_unexpired HeldUnexpired;
    r08_turns Turns;
    r09_the_marker Marker;
    r10_a_late_grant_is_given_back LateGrant;
    r11_ids_are_fresh FreshId;
    r11_sessions_refuse_stragglers Session;
    r11_a_cancelled_attempt_is_withdrawn Withdraw;
    r11_a_clean_up_lasts_as_long_as_a_ticket CleanUpLife;
    r12_a_release_is_by_id ReleaseById;
    r12_a_release_frees_what_is_expired ReleaseExpired;
    r12_leaving_removes_the_ticket LeaveQueue;
    r12_a_repeated_release_is_recognised Released;
    r13_no_grant_while_closed Closed;
    r14_a_renewal_is_by_id RenewById;
    r14_a_renewal_is_by_token RenewToken;
    r14_a_renewal_revives_nothing RenewUnexpired;
    r15_a_refresh_adds_no_ticket RefreshOnly;
    r16_the_victim_is_named Revoked;
    r16_a_lost_lease_is_released ReleaseAfterLoss;
    r17_only_a_majority_counts Majority;
    r17_a_missing_answer_is_not_a_refusal Unknown;
    r18_two_readings_of_one_clock Anchor;
    r18_an_older_grant_does_not_count AnchorToken;
    r19_an_early_event_is_kept KeepEvent;
    r20_after_a_gap_every_process_queries QueryAfterGap;
    r20_a_gap_is_not_a_loss GapIsNotLoss;
    r20_a_loss_is_of_a_later_token LossToken;
    r21_each_guard_has_the_next_token NextToken;
    r21_not_handed_on_while_it_is_released NotWhileReleasing;
    r21_not_handed_on_when_it_is_lost NotWhenLost;
    r21_a_release_returns_no_used_token LastUsed;
    r21_only_the_last_reader_releases LastReader;
    r23_a_release_with_a_minimum_hold_waits_for_the_majority HoldMajority;
    r24_a_batch_grants_nothing_from_its_bound_on BatchBound;
    r24_a_batch_has_greater_tokens BatchToken;
    r24_an_acquisition_with_an_unanswered_batch_is_given_up BatchGivenUp;
    r24_it_is_withdrawn_after_the_bound BatchSettled;
    r25_several_holders_stand_behind_the_marker SharedMarker;
    r25_holders_without_the_marker_do_not_count Leftover;
    r26_the_latest_expiry_counts LatestExpiry;
    r26_each_holder_is_told_its_own_expiry ToldExpiry;
    r27_no_waiter_is_overtaken NoOvertaking;
    r27_only_what_fits_is_granted Fits;
    r28_a_release_grants_only_what_fits RunFits;
    r28_a_release_grants_all_that_fit WholeRun;
    r29_a_holder_renews_by_token HolderToken;
    r29_a_holder_renews_its_own_lease HolderOnly;
    r30_only_the_latest_block_is_returned LatestBlock;
    r31_an_attempt_has_a_bound AttemptBound;
    r31_a_renewal_has_a_bound RenewalBound;
    r31_a_refresh_has_a_bound RefreshBound;
}

#[test]
fn every_rule_is_removed_or_explained() {
    for rule in 1..=31 {
        let removed = REMOVALS.iter().any(|removal| removal.guard.rule() == rule);
        let explained = UNSEEN.iter().any(|(unseen, reason)| *unseen == rule && !reason.is_empty());
        assert!(removed || explained, "R{rule}");
    }
}
