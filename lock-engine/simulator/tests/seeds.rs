//! Many seeds, exact repetition, and the defects that the simulator must find.

use std::sync::atomic::{AtomicU64, Ordering};

use distlock_conformance::Level;
use distlock_simulator::{Defect, Outcome, run};

/// Returns the number of seeds: that of `DISTLOCK_SEEDS`, or 2,000, below the level standard 400.
fn seeds() -> u64 {
    let number = std::env::var("DISTLOCK_SEEDS").ok();
    let default = if Level::from_env().expect("a level") < Level::Standard { 400 } else { 2000 };
    number.map_or(default, |number| number.parse().expect("DISTLOCK_SEEDS is a number"))
}

#[test]
fn no_seed_has_a_violation() {
    let (seeds, next, grants) = (seeds(), AtomicU64::new(0), AtomicU64::new(0));
    let work = || -> Option<Outcome> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return None;
            }
            let outcome = run(seed, None, false);
            if !outcome.complaints.is_empty() {
                next.store(seeds, Ordering::Relaxed);
                return Some(run(seed, None, true));
            }
            grants.fetch_add(outcome.grants() as u64, Ordering::Relaxed);
        }
    };
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).min_by_key(|outcome| outcome.seed)
    });
    if let Some(failed) = failed {
        panic!("{failed}");
    }
    let grants = grants.into_inner();
    println!("{seeds} seeds, {grants} grants");
    assert!(grants > 20 * seeds, "too few grants to prove anything: {grants}");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..50 {
        let [first, second] = [run(seed, None, true), run(seed, None, true)];
        let differs = first.log.iter().zip(&second.log).find(|(first, second)| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert!(first.log.len() == second.log.len() && first.calls == second.calls, "seed {seed}");
        assert!(!first.log.is_empty());
    }
}

/// Intervals and searches for an order judge every seed: a defect that breaks exclusion is found by
/// both.
#[test]
fn the_linearizability_checker_judges_the_seeds() {
    let found = (0..1000).find(|seed| !run(*seed, Some(Defect::NoDeadline), false).linearizable);
    assert!(found.is_some(), "no history without an order was found");
}

#[test]
fn every_defect_is_found_within_a_thousand_seeds() {
    for defect in Defect::ALL {
        let found = (0..1000).find(|seed| !run(*seed, Some(defect), false).complaints.is_empty());
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?} was not found");
    }
}
