//! Arguments, levels, seeds.

use std::collections::BTreeSet;

use distlock_conformance::Need;

use super::program::{NASTY, ran};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lists_like_any_test_binary", lists_like_any_test_binary),
    ("every_check_is_listed", every_check_is_listed),
    ("the_matrix_of_pairs_is_printed", the_matrix_of_pairs_is_printed),
    ("filters_select", filters_select),
    ("levels_grow", levels_grow),
    ("variants_share_the_short_checks", variants_share),
    ("torture_repeats_with_fresh_seeds_until_its_time_is_over", torture_repeats),
    ("rounds_are_counted_and_end_with_a_failure", rounds_are_counted),
    ("torture_ends_with_a_failure", torture_ends_with_a_failure),
    ("the_seed_decides_what_a_check_does", the_seed_decides),
    ("invalid_arguments_are_refused", invalid_arguments_are_refused),
    ("a_failure_shows_all_that_is_needed", a_failure_shows_all),
    ("the_summary_is_by_clause_and_backend", the_summary),
];

fn lists_like_any_test_binary() {
    for arguments in [&["--list"][..], &["--list", "--format", "terse"]] {
        let list = ran("broken", arguments);
        assert!(list.succeeded && list.err.is_empty(), "{list:?}");
        let names: Vec<&str> = list.out.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        for name in ["sound::C1_exclusion::counter_under_contention", "sound::profile::refusals_as_declared"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert_eq!(names.iter().filter(|name| name.starts_with(NASTY)).count() * 2, names.len());
    }
    // All checks of this level would run, none is marked as ignored.
    let ignored = ran("sound", &["--list", "--format", "terse", "--ignored"]);
    assert_eq!(ignored.out.trim(), "");
}

/// This backend has neither a store, nor an arena, nor hooks, nor `once`.
fn every_check_is_listed() {
    let list = ran("sound", &["--list", "--level", "torture"]);
    let names: BTreeSet<&str> =
        list.out.lines().filter_map(|line| line.strip_suffix(": test")?.strip_prefix("sound::")).collect();
    let asserts_a_refusal = |need: &Need| format!("{need:?}").starts_with("No");
    for check in distlock_conformance::checks() {
        let is_silent = !names.contains(check.name().as_str());
        // It asserts the refusal of what this backend has.
        let may_be = check.needs().iter().any(asserts_a_refusal);
        assert!(!is_silent || may_be, "{} is not in the report", check.name());
    }
    for (filter, reason) in [
        ("O1_one_run", "this backend remembers no outcomes of work"),
        ("store_ends_stalled_calls", "this fixture does not open the bare store"),
    ] {
        let refused = ran("sound", &[filter]);
        assert!(refused.succeeded && refused.out.contains(reason), "{refused:?}");
    }
}

fn the_matrix_of_pairs_is_printed() {
    let printed = ran("broken", &["--pairs"]);
    assert!(printed.succeeded && printed.err.is_empty(), "{printed:?}");
    let page = include_str!("../../../PAIRS.md");
    let (_, matrix) = page.split_once("\n\nOf ").expect("the matrix");
    assert!(printed.out.contains(matrix), "{printed:?}");
    for backend in [NASTY, "sound"] {
        assert!(printed.out.contains(&format!("\n{backend}: ")), "{printed:?}");
    }
}

fn filters_select() {
    let exact = ran("sound", &["--exact", "sound::C5_fencing::across_release"]);
    assert!(exact.succeeded, "{exact:?}");
    assert_eq!(exact.with_result("ok"), ["sound::C5_fencing::across_release"]);
    let clause = ran("sound", &["C7_", "--skip", "not_re_entrant", "--test-threads=1"]);
    assert!(clause.succeeded, "{clause:?}");
    assert_eq!(clause.with_result("ok").len(), 2, "{clause:?}");
}

fn levels_grow() {
    let count = |level: &str| {
        let list = ran("sound", &["--list", "--level", level]);
        list.out.lines().filter(|line| line.ends_with(": test")).count()
    };
    let levels = ["smoke", "quick", "standard", "torture"].map(count);
    assert!(10 < levels[0] && levels[0] * 2 < levels[1] && levels.is_sorted(), "{levels:?}");
    assert_eq!(levels[1], ran("sound", &["--list"]).out.lines().filter(|line| line.ends_with(": test")).count());
    // Refusals of checks of other levels are still declared, and all checks that run pass.
    let smoke = ran("sound", &["--level", "smoke"]);
    assert!(smoke.succeeded && smoke.err.contains("level smoke"), "{smoke:?}");
}

fn variants_share() {
    let checks_of = |name: &str, level: &str| {
        let list = ran("variants", &["--list", "--level", level]).out;
        let names = list.lines().filter_map(|line| line.strip_suffix(": test")?.strip_prefix(&format!("{name}::")));
        // Those of the profile are for each fixture.
        names.filter(|check| !check.starts_with("profile::")).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let [left, right] = ["left", "right"].map(|name| checks_of(name, "quick"));
    assert!(left.is_disjoint(&right) && left.len().abs_diff(right.len()) < 10, "{left:?} {right:?}");
    assert_eq!(&left | &right, checks_of("sound", "smoke"), "none is left out");
    assert_eq!(checks_of("left", "standard"), checks_of("sound", "standard"));
    assert_eq!(checks_of("left", "smoke"), checks_of("sound", "smoke"));
}

fn torture_repeats() {
    let check = "sound::C5_fencing::across_release";
    let torture = ran("sound", &["--level", "torture", "--minutes", "0.02", "--seed", "8", "--exact", check]);
    assert!(torture.succeeded, "{torture:?}");
    assert!(torture.with_result("ok").len() >= 2, "{torture:?}");
    assert!(torture.err.contains("seed 0x0000000000000008\n"), "{torture:?}");
    assert!(torture.err.contains("the next round has the seed 0x0000000000000009\n"), "{torture:?}");
    let nothing = ran("sound", &["--level", "torture", "--minutes", "10", "no such check"]);
    assert!(nothing.succeeded && nothing.with_result("ok").is_empty(), "{nothing:?}");
}

fn rounds_are_counted() {
    let check = "sound::C5_fencing::across_release";
    let rounds = ran("sound", &["--rounds", "3", "--level", "smoke", "--seed", "8", "--exact", check]);
    assert!(rounds.succeeded && rounds.with_result("ok").len() == 3, "{rounds:?}");
    assert!(rounds.err.contains("round 2 has passed; the next round has the seed 0x000000000000000a\n"), "{rounds:?}");
    let check = format!("{NASTY}::C5_fencing::across_release");
    let broken = ran("broken", &["--rounds", "3", "--exact", &check]);
    assert!(!broken.succeeded && broken.with_result("FAILED") == [check], "{broken:?}");
}

fn torture_ends_with_a_failure() {
    let check = format!("{NASTY}::C5_fencing::across_release");
    let torture = ran("broken", &["--level", "torture", "--minutes", "10", "--exact", &check]);
    assert!(!torture.succeeded, "{torture:?}");
    assert_eq!(torture.with_result("FAILED"), [check]);
}

/// The broken backend's failure quotes keys, which are random.
fn the_seed_decides() {
    let check = format!("{NASTY}::C1_exclusion::counter_under_contention");
    let key = |arguments: &[&str]| {
        let run = ran("broken", &[&["--exact", check.as_str()], arguments].concat());
        let (_, rest) = run.out.split_once("\"check-").unwrap_or_else(|| panic!("no key: {run:?}"));
        (run.seed().to_owned(), rest[..16].to_owned())
    };
    let (seed, first) = key(&[]);
    let (_, other) = key(&[]);
    assert_ne!(first, other);
    assert_eq!(key(&["--seed", &seed]), (seed, first));
}

fn invalid_arguments_are_refused() {
    for arguments in [["--level", "hell"], ["--seed", "x"], ["--minutes", "soon"]] {
        let refused = ran("sound", &arguments);
        assert!(!refused.succeeded && refused.err.contains(arguments[0]), "{refused:?}");
        assert!(refused.out.is_empty(), "{refused:?}");
    }
    let help = ran("sound", &["--help"]);
    assert!(help.succeeded && help.out.contains("--level") && help.out.contains("--exact"), "{help:?}");
}

fn a_failure_shows_all() {
    let check = format!("{NASTY}::C1_exclusion::counter_under_contention");
    let failed = ran("broken", &["--exact", &check]);
    assert!(!failed.succeeded);
    let seed = failed.seed();
    let quoted = check.replace('\'', r"'\''");
    for expected in [
        "a later grant has a smaller token",
        "conformance/src/checks/exclusion.rs:",
        "asked at ",
        "granted token ",
        "clause:  C1_exclusion – exclusion – in the store's commit order",
        "promise: Tasks of several clients",
        &format!("seed:    {seed}"),
        &format!("--seed {seed} --exact '{quoted}'"),
    ] {
        assert!(failed.out.contains(expected), "{expected} is not in {}", failed.out);
    }
}

fn the_summary() {
    let run = ran("broken", &["across_release"]);
    let rows: Vec<Vec<&str>> = run.out.lines().map(|line| line.split(" | ").map(str::trim).collect()).collect();
    for row in [["clause", NASTY, "sound"], ["C5_fencing", "0, 1 FAILED", "1"], ["all", "0, 1 FAILED", "1"]] {
        assert!(rows.contains(&row.to_vec()), "{row:?} is not in {}", run.out);
    }
}
