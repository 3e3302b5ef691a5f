//! The features that a store can declare, two by two: which checks examine them together, and which
//! pairs never meet.

use std::fmt::{self, Write};

use crate::check::Check;
use crate::checks;
use crate::need::Need;
use crate::profile::Profile;

/// A feature of a store or of its clients that changes what a request of another one means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Expiry,
    MinimumHold,
    Queue,
    Push,
    Shared,
    Permits,
    Batches,
    TokenBlocks,
    Force,
    Owners,
    LockEvents,
    Purge,
    Once,
    LostReplies,
}

use Feature::{
    Batches, Expiry, Force, LockEvents, LostReplies, MinimumHold, Once, Owners, Permits, Purge, Push, Queue, Shared,
    TokenBlocks,
};

impl Feature {
    const ALL: [Self; 14] = [
        Expiry,
        MinimumHold,
        Queue,
        Push,
        Shared,
        Permits,
        Batches,
        TokenBlocks,
        Force,
        Owners,
        LockEvents,
        Purge,
        Once,
        LostReplies,
    ];

    const fn name(self) -> &'static str {
        match self {
            Expiry => "expiry",
            MinimumHold => "minimum hold",
            Queue => "queue",
            Push => "push",
            Shared => "shared",
            Permits => "permits",
            Batches => "batches",
            TokenBlocks => "token blocks",
            Force => "force-release",
            Owners => "owners",
            LockEvents => "lock events",
            Purge => "purge",
            Once => "once",
            LostReplies => "lost replies",
        }
    }

    /// Returns what a check needs that examines the feature. `None` if the store alone declares it:
    /// such checks run on every store, which answers them in its own way.
    const fn need(self) -> Option<Need> {
        Some(match self {
            Expiry => Need::Expiry,
            MinimumHold => Need::MinimumHold,
            Queue => Need::Fair,
            Push => Need::Push,
            Shared => Need::Shared,
            Permits => Need::Permits,
            Batches | TokenBlocks => return None,
            Force => Need::Admin,
            Owners => Need::Owners,
            LockEvents => Need::LockEvents,
            Purge => Need::Purge,
            Once => Need::Once,
            LostReplies => Need::Faults,
        })
    }
}

/// What is known of two features together.
#[derive(Clone, Copy, Debug)]
enum Together {
    /// These checks examine both.
    Checks(&'static [&'static str]),
    /// They do not meet, and why.
    Apart(&'static str),
}

use Together::{Apart, Checks};

/// Each pair once, in the order of [`Feature::ALL`].
#[rustfmt::skip]
const PAIRS: &[(Feature, Feature, Together)] = &[
    (Expiry, MinimumHold, Checks(&["C25_minimum_hold::store_keeps_it_closed_beyond_the_ttl"])),
    (Expiry, Queue, Checks(&[
        "C15_fairness::store_keeps_the_order_after_an_expiry", "C15_fairness::store_passes_over_a_dead_head",
    ])),
    (Expiry, Push, Checks(&["C16_wake_ups::store_pushes_grants"])),
    (Expiry, Shared, Checks(&[
        "C29_expiry_of_each::store_expires_each_holder", "C29_expiry_of_each::store_renews_each_holder",
        "C29_expiry_of_each::cut_off_reader", "C29_expiry_of_each::end_of_one_leaves_the_others",
    ])),
    (Expiry, Permits, Checks(&["C29_expiry_of_each::store_expires_permits_of_each"])),
    (Expiry, Batches, Checks(&[
        "C14_isolation::store_batches_know_each_end", "C14_isolation::store_withdraws_beside_an_ended_one",
    ])),
    (Expiry, TokenBlocks, Checks(&["C5_fencing::store_tokens_grow", "C12_no_renewal::store_revives_nothing"])),
    (Expiry, Force, Checks(&["admin::store_hides_the_expired", "C14_isolation::store_batches_know_each_end"])),
    (Expiry, Owners, Checks(&["admin::store_hides_the_expired", "admin::list_forgets_the_expired"])),
    (Expiry, LockEvents, Checks(&["admin::events_report_take_overs"])),
    (Expiry, Purge, Checks(&["C5_fencing::across_purge_of_the_expired"])),
    (Expiry, Once, Checks(&[
        "O3_fenced_completion::a_late_completion_is_refused",
        "O3_fenced_completion::a_late_completion_without_a_successor_is_refused",
        "O4_two_times::a_crash_reopens_after_the_ttl", "O5_interrupted::a_vanished_holder_is_named",
    ])),
    (Expiry, LostReplies, Checks(&["C10_lost_replies::renewal"])),

    (MinimumHold, Queue, Checks(&["C25_minimum_hold::store_keeps_it_closed_to_waiters"])),
    (MinimumHold, Push, Checks(&["C16_wake_ups::store_pushes_minimum_holds"])),
    (MinimumHold, Shared, Checks(&[
        "C25_minimum_hold::store_keeps_a_reader", "C25_minimum_hold::early_release_of_a_reader",
    ])),
    (MinimumHold, Permits, Checks(&["C25_minimum_hold::store_keeps_permits"])),
    (MinimumHold, Batches, Checks(&[
        "C25_minimum_hold::store_keeps_closed_what_a_batch_releases",
        "C14_isolation::store_attempts_beside_a_refused_one",
    ])),
    (MinimumHold, TokenBlocks, Apart("the hold concerns the time of the release, the tokens are those of the grant")),
    (MinimumHold, Force, Checks(&["C25_minimum_hold::force_release_opens_it"])),
    (MinimumHold, Owners, Apart("what a list shows of a key that only its minimum hold keeps closed is not promised")),
    (MinimumHold, LockEvents, Checks(&["admin::events_report_minimum_holds"])),
    (MinimumHold, Purge, Checks(&["C25_minimum_hold::purge_opens_nothing"])),
    (MinimumHold, Once, Checks(&["O6_discarded::discarding_leaves_no_trace"])),
    (MinimumHold, LostReplies, Checks(&["C25_minimum_hold::release_without_reply_keeps_it_closed"])),

    (Queue, Push, Checks(&["C16_wake_ups::store_pushes_grants"])),
    (Queue, Shared, Checks(&[
        "C28_one_queue::store_lets_no_reader_overtake", "C28_one_queue::store_grants_the_run_at_its_head",
        "C28_one_queue::store_grants_what_a_leaver_kept_back",
    ])),
    (Queue, Permits, Checks(&[
        "C28_one_queue::large_request_is_not_overtaken", "C28_one_queue::release_grants_all_permits_that_fit",
    ])),
    (Queue, Batches, Checks(&[
        "C15_fairness::store_releases_a_batch_to_its_waiters", "C15_fairness::store_batches_do_not_barge",
        "C14_isolation::store_attempts_beside_a_refused_one", "C14_isolation::store_renews_beside_an_ended_one",
        "C14_isolation::store_withdraws_beside_an_ended_one",
    ])),
    (Queue, TokenBlocks, Checks(&["C15_fairness::store_hands_over_what_was_requested"])),
    (Queue, Force, Checks(&["C22_force_release::store_force_keeps_the_queue"])),
    (Queue, Owners, Checks(&["admin::store_shows_whom_a_release_has_granted"])),
    (Queue, LockEvents, Checks(&["admin::events_report_hand_overs"])),
    (Queue, Purge, Checks(&["C15_fairness::purge_leaves_what_is_used"])),
    (Queue, Once, Checks(&["O9_bounded_wait::a_waiter_gets_the_outcome"])),
    (Queue, LostReplies, Checks(&["C10_lost_replies::hand_over"])),

    (Push, Shared, Checks(&["C28_one_queue::store_pushes_each_grant_of_a_run"])),
    (Push, Permits, Checks(&["C28_one_queue::store_pushes_each_grant_of_a_run"])),
    (Push, Batches, Checks(&["C16_wake_ups::store_pushes_grants_of_a_batch"])),
    (Push, TokenBlocks, Checks(&["C16_wake_ups::store_pushes_grants"])),
    (Push, Force, Checks(&["C4_loss::store_pushes_losses", "C16_wake_ups::store_pushes_openings"])),
    (Push, Owners, Checks(&["C4_loss::store_pushes_losses_of_an_owner"])),
    (Push, LockEvents, Apart("they are two streams of the same changes, for providers and for operators")),
    (Push, Purge, Apart("the purge of a key that no claim uses need not be reported")),
    (Push, Once, Apart("a run is begun by an answer, never by an event")),
    (Push, LostReplies, Checks(&["C10_lost_replies::hand_over"])),

    (Shared, Permits, Checks(&["C27_permits::beside_no_other_mode"])),
    (Shared, Batches, Checks(&[
        "C14_isolation::store_answers_batches_of_all_modes", "C14_isolation::store_answers_a_batch_of_attempts",
        "C14_isolation::store_answers_a_batch_of_releases", "C14_isolation::store_attempts_beside_a_refused_one",
    ])),
    (Shared, TokenBlocks, Checks(&["C5_fencing::store_tokens_grow_over_modes"])),
    (Shared, Force, Checks(&[
        "C22_force_release::store_takes_holders_by_force", "C22_force_release::store_force_keeps_the_queue",
        "C22_force_release::inspect_shows_all_holders",
    ])),
    (Shared, Owners, Checks(&["admin::release_owner_among_others"])),
    (Shared, LockEvents, Checks(&["admin::events_report_each_holder"])),
    (Shared, Purge, Checks(&["C5_fencing::across_purge"])),
    (Shared, Once, Apart("a run is always exclusive")),
    (Shared, LostReplies, Checks(&[
        "C10_lost_replies::shared_acquisition", "C10_lost_replies::shared_release",
    ])),

    (Permits, Batches, Checks(&[
        "C14_isolation::store_answers_batches_of_all_modes", "C14_isolation::store_attempts_beside_a_refused_one",
    ])),
    (Permits, TokenBlocks, Checks(&["C5_fencing::store_tokens_grow_over_modes"])),
    (Permits, Force, Checks(&["C22_force_release::store_force_frees_permits"])),
    (Permits, Owners, Checks(&["admin::release_owner_among_others"])),
    (Permits, LockEvents, Checks(&["admin::events_report_each_holder"])),
    (Permits, Purge, Checks(&["C5_fencing::across_purge"])),
    (Permits, Once, Apart("a run is always exclusive")),
    (Permits, LostReplies, Checks(&["C10_lost_replies::permits_are_taken_once"])),

    (Batches, TokenBlocks, Checks(&["admin::store_batches_keep_each_owner"])),
    (Batches, Force, Checks(&[
        "C14_isolation::store_batches_know_each_end", "C15_fairness::store_batches_do_not_barge",
    ])),
    (Batches, Owners, Checks(&["admin::store_batches_keep_each_owner"])),
    (Batches, LockEvents, Checks(&["admin::events_report_batches"])),
    (Batches, Purge, Apart("a purge removes records that no request uses")),
    (Batches, Once, Apart("runs are begun and ended one by one")),
    (Batches, LostReplies, Checks(&["C10_lost_replies::several_keys"])),

    (TokenBlocks, Force, Checks(&["C5_fencing::store_tokens_grow_after_force", "C4_loss::store_pushes_losses"])),
    (TokenBlocks, Owners, Checks(&["C22_force_release::history_records_who_and_why"])),
    (TokenBlocks, LockEvents, Checks(&["admin::events_report_what_happens"])),
    (TokenBlocks, Purge, Checks(&["C5_fencing::across_purge"])),
    (TokenBlocks, Once, Apart("a run has one token")),
    (TokenBlocks, LostReplies, Checks(&["C10_lost_replies::store_repeats_a_grant"])),

    (Force, Owners, Checks(&["admin::release_owner", "C22_force_release::history_records_who_and_why"])),
    (Force, LockEvents, Checks(&["admin::events_report_what_happens"])),
    (Force, Purge, Checks(&["C5_fencing::across_purge"])),
    (Force, Once, Apart("a provider of runs has no administration; one that ended is interrupted, however it ended")),
    (Force, LostReplies, Checks(&["C10_lost_replies::store_repeats_after_force"])),

    (Owners, LockEvents, Checks(&["admin::events_report_release_by_owner"])),
    (Owners, Purge, Apart("a key that no claim uses has no owner")),
    (Owners, Once, Checks(&["O5_interrupted::an_interrupted_run_is_named", "O1_one_run::others_are_busy"])),
    (Owners, LostReplies, Checks(&["admin::store_lists_a_repeated_grant_once"])),

    (LockEvents, Purge, Apart("the purge of a key that no claim uses need not be reported")),
    (LockEvents, Once, Apart("a provider of runs has no administration")),
    (LockEvents, LostReplies, Checks(&["admin::events_report_repetitions_once"])),

    (Purge, Once, Checks(&["O10_forgotten::work_under_way_outlives_keep"])),
    (Purge, LostReplies, Apart("a record is purged long after its last request was repeated")),

    (Once, LostReplies, Checks(&[
        "O1_one_run::a_beginning_without_replies_blocks_nothing",
        "O6_discarded::a_discard_without_replies_has_one_outcome",
        "O8_truthful_completion::a_completion_without_replies_has_one_outcome",
        "O8_truthful_completion::a_completion_that_was_left_has_one_outcome",
    ])),
];

/// The checks that examine a feature although they do not need it: those of the store alone, and
/// those that use what the backend has.
#[cfg(test)]
#[rustfmt::skip]
const ADAPTING: &[(&str, &[Feature])] = &[
    ("C10_lost_replies::hand_over", &[Queue, Push]),
    ("C10_lost_replies::several_keys", &[Batches]),
    ("C10_lost_replies::store_repeats_a_grant", &[TokenBlocks, LostReplies]),
    ("C10_lost_replies::store_repeats_after_force", &[LostReplies]),
    ("C12_no_renewal::store_revives_nothing", &[TokenBlocks]),
    ("C14_isolation::store_answers_a_batch_of_attempts", &[Batches, Shared]),
    ("C14_isolation::store_answers_a_batch_of_releases", &[Batches, Shared]),
    ("C14_isolation::store_answers_batches_of_all_modes", &[Batches, Permits]),
    ("C14_isolation::store_attempts_beside_a_refused_one", &[Batches, Queue, Shared, Permits, MinimumHold]),
    ("C14_isolation::store_batches_know_each_end", &[Batches, Force]),
    ("C14_isolation::store_renews_beside_an_ended_one", &[Batches]),
    ("C14_isolation::store_withdraws_beside_an_ended_one", &[Batches, Expiry]),
    ("C15_fairness::store_batches_do_not_barge", &[Batches]),
    ("C15_fairness::store_hands_over_what_was_requested", &[TokenBlocks]),
    ("C15_fairness::store_releases_a_batch_to_its_waiters", &[Batches]),
    ("C16_wake_ups::store_pushes_grants", &[Expiry, TokenBlocks]),
    ("C16_wake_ups::store_pushes_grants_of_a_batch", &[Batches]),
    ("C22_force_release::history_records_who_and_why", &[TokenBlocks]),
    ("C22_force_release::store_force_keeps_the_queue", &[Shared]),
    ("C25_minimum_hold::store_keeps_closed_what_a_batch_releases", &[Batches]),
    ("C27_permits::beside_no_other_mode", &[Shared]),
    ("C28_one_queue::store_pushes_each_grant_of_a_run", &[Permits]),
    ("C4_loss::store_pushes_losses", &[TokenBlocks]),
    ("C5_fencing::across_purge", &[Shared, Permits, TokenBlocks, Force]),
    ("C5_fencing::store_tokens_grow", &[Expiry, TokenBlocks]),
    ("C5_fencing::store_tokens_grow_after_force", &[TokenBlocks]),
    ("C5_fencing::store_tokens_grow_over_modes", &[Permits, TokenBlocks]),
    ("O10_forgotten::work_under_way_outlives_keep", &[Purge]),
    ("O1_one_run::a_beginning_without_replies_blocks_nothing", &[LostReplies]),
    ("O1_one_run::others_are_busy", &[Owners]),
    ("O5_interrupted::an_interrupted_run_is_named", &[Owners]),
    ("O6_discarded::a_discard_without_replies_has_one_outcome", &[LostReplies]),
    ("O6_discarded::discarding_leaves_no_trace", &[MinimumHold]),
    ("O8_truthful_completion::a_completion_that_was_left_has_one_outcome", &[LostReplies]),
    ("O8_truthful_completion::a_completion_without_replies_has_one_outcome", &[LostReplies]),
    ("O9_bounded_wait::a_waiter_gets_the_outcome", &[Queue]),
    ("admin::events_report_batches", &[Batches]),
    ("admin::events_report_each_holder", &[Permits]),
    ("admin::events_report_repetitions_once", &[LostReplies]),
    ("admin::events_report_what_happens", &[TokenBlocks]),
    ("admin::release_owner_among_others", &[Permits]),
    ("admin::store_batches_keep_each_owner", &[Batches, TokenBlocks, Owners]),
    ("admin::store_lists_a_repeated_grant_once", &[LostReplies]),
    ("admin::store_shows_whom_a_release_has_granted", &[Owners]),
];

/// The matrix as Markdown.
pub(crate) struct Matrix;

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let examined = PAIRS.iter().filter(|(.., together)| matches!(together, Checks(_))).count();
        writeln!(
            f,
            "Of {} pairs of {} features {examined} can meet and are examined, and {} never meet. The fields\ncount the \
             checks.\n",
            PAIRS.len(),
            Feature::ALL.len(),
            PAIRS.len() - examined
        )?;
        let (mut header, mut rule) = (String::from("| |"), String::from("|---|"));
        for feature in &Feature::ALL[1..] {
            write!(header, " {} |", feature.name())?;
            rule.push_str("---|");
        }
        writeln!(f, "{header}\n{rule}")?;
        for (place, row) in Feature::ALL[..Feature::ALL.len() - 1].iter().enumerate() {
            write!(f, "| {} |{}", row.name(), "  |".repeat(place))?;
            for (.., together) in PAIRS.iter().filter(|(first, ..)| first == row) {
                match together {
                    Checks(checks) => write!(f, " {} |", checks.len())?,
                    Apart(_) => f.write_str(" – |")?,
                }
            }
            f.write_str("\n")?;
        }
        f.write_str("\n| features | checks of both |\n|---|---|\n")?;
        for (first, second, together) in PAIRS {
            if let Checks(checks) = together {
                let checks: Vec<String> = checks.iter().map(|check| format!("`{check}`")).collect();
                writeln!(f, "| {}, {} | {} |", first.name(), second.name(), checks.join("<br>"))?;
            }
        }
        f.write_str("\n| features | why they never meet |\n|---|---|\n")?;
        for (first, second, together) in PAIRS {
            if let Apart(reason) = together {
                writeln!(f, "| {}, {} | {reason} |", first.name(), second.name())?;
            }
        }
        Ok(())
    }
}

/// Which pairs are examined on one backend.
pub(crate) struct Examined<'a>(pub(crate) &'a str, pub(crate) &'a Profile);

impl fmt::Display for Examined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self(name, profile), all) = (self, checks::all());
        let runs = |name: &str| all.iter().any(|check| check.name() == name && runs_on(check, profile));
        let has = |feature: Feature| feature.need().is_none_or(|need| profile.has(need));
        let (mut examined, mut missing) = (0, Vec::new());
        for (first, second, together) in PAIRS {
            match together {
                Checks(checks) if checks.iter().any(|check| runs(check)) && has(*first) && has(*second) => {
                    examined += 1;
                }
                Checks(_) => missing.push(format!("{} with {}", first.name(), second.name())),
                Apart(_) => {}
            }
        }
        write!(f, "{name}: {examined} pairs are examined")?;
        if !missing.is_empty() {
            write!(f, "; not {}", missing.join(", "))?;
        }
        Ok(())
    }
}

fn runs_on(check: &Check, profile: &Profile) -> bool {
    check.concerns(profile) && check.refusal(profile).is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use distlock_api::Capabilities;

    use super::*;

    #[test]
    fn each_pair_has_one_field() {
        let all = Feature::ALL;
        let expected = all.iter().enumerate().flat_map(|(at, first)| all[at + 1..].iter().map(move |of| (*first, *of)));
        let pairs: Vec<_> = PAIRS.iter().map(|(first, second, _)| (*first, *second)).collect();
        assert_eq!(pairs, expected.collect::<Vec<_>>());
    }

    /// A check of a field needs both features, or is known to use them if the backend has them.
    #[test]
    fn the_checks_of_a_field_examine_both_features() {
        let checks = checks::all();
        let mut adapting: HashSet<(&str, usize)> =
            ADAPTING.iter().flat_map(|(name, of)| (0..of.len()).map(move |at| (*name, at))).collect();
        for (first, second, together) in PAIRS {
            let names = match together {
                Checks(names) => *names,
                Apart(reason) => {
                    assert!(!reason.is_empty());
                    continue;
                }
            };
            assert!(!names.is_empty(), "{first:?} {second:?}");
            for name in names {
                let check = checks.iter().find(|check| check.name() == *name);
                let check = check.unwrap_or_else(|| panic!("there is no check {name}"));
                for feature in [first, second] {
                    let needs = feature.need().is_some_and(|need| check.needs().contains(&need));
                    let adapts = ADAPTING.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, features)| *features);
                    let adapts = adapts.iter().position(|of| of == feature);
                    assert!(needs != adapts.is_some(), "{name} needs {feature:?}: {needs}, adapts to it: {adapts:?}");
                    adapting.remove(&(*name, adapts.unwrap_or(usize::MAX)));
                }
            }
        }
        assert!(adapting.is_empty(), "of no use: {adapting:?}");
    }

    #[test]
    fn a_backend_is_told_which_pairs_it_has() {
        let mut promised = Capabilities::default();
        (promised.expiry, promised.fair) = (true, true);
        let profile = Profile::new(promised).store();
        let text = Examined("mine", &profile).to_string();
        assert!(text.starts_with("mine: 5 pairs are examined; not expiry with minimum hold, "), "{text}");
    }

    const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/PAIRS.md");
    /// If this variable is set, the document is rewritten.
    const WRITE: &str = "DISTLOCK_WRITE_PAIRS";
    /// This test writes everything after this line.
    const BEGIN: &str = "<!-- `src/pairs.rs` writes the rest of this file. -->\n";

    #[test]
    fn the_page_is_true() {
        let document = std::fs::read_to_string(DOCUMENT).unwrap();
        let (text, written) = document.split_once(BEGIN).expect("the line after which the matrix is written");
        let matrix = format!("\n{Matrix}");
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(DOCUMENT, format!("{text}{BEGIN}{matrix}")).unwrap();
        } else {
            assert!(written == matrix, "PAIRS.md is out of date: run this test with {WRITE}=1");
        }
    }
}
