//! The protocol with all its rules: every state within the bounds is explored, and every property
//! holds. Below the level standard only the states that are reached first are.

use std::io::Write;

use distlock_conformance::Level;
use distlock_model::action::Action;
use distlock_model::config::{Config, Faults};
use distlock_model::configs;
use distlock_model::modes::Mode;
use distlock_model::search::{Limits, explore};

/// How many states of each configuration are explored below the level standard: a sixth of all.
const FIRST: usize = 60_000;

fn limits() -> Limits {
    let is_brief = Level::from_env().expect("a level") < Level::Standard;
    if is_brief { Limits { states: FIRST, until: None } } else { Limits::default() }
}

/// A model that explores nothing finds nothing, so each configuration must have a minimum of
/// different states.
macro_rules! sound {
    ($($name:ident, $config:literal, $least:literal;)*) => {
        $(#[test]
        fn $name() {
            let config = configs::small($config).unwrap();
            let report = explore(&config, None, limits(), |_| {});
            assert!(report.counterexample.is_none(), "{}", describe(&config, &report));
            let unique = report.progress.unique;
            if !report.is_complete {
                assert_eq!(unique, FIRST, "only a level below standard leaves states out");
                return;
            }
            assert!(unique >= $least, "{unique} states");
            for (_, action) in steps(&config).into_iter().filter(|(may, _)| *may) {
                assert!(report.has_happened(action), "{action:?}");
            }
        })*

        #[test]
        fn every_configuration_is_explored() {
            let names: Vec<&str> = configs::SMALL.iter().map(|config| config.name).collect();
            assert_eq!(names, [$($config),*]);
            let Limits { states, .. } = limits();
            if states == FIRST {
                let variable = Level::VARIABLE;
                // Past the harness, which keeps what a test that passes prints.
                let _ = writeln!(
                    std::io::stderr(),
                    "distlock: left out: states of the model after the first {states} of each configuration \
                     ({variable}=standard explores them)"
                );
            }
        }
    };
}

fn describe(config: &Config, report: &distlock_model::search::Report) -> String {
    report.counterexample.as_ref().map(|found| distlock_model::explain::timeline(config, found)).unwrap_or_default()
}

/// Returns the kinds of steps that a configuration must contain. The numbers in them have no
/// meaning.
fn steps(config: &Config) -> Vec<(bool, Action)> {
    let Faults { drops, repeats, timeouts, stalls, crashes, breaks, forces, failovers, skew: _, purges } =
        config.faults;
    let shared = config.has_mode(|mode| mode == Mode::Shared);
    let together = config.has_mode(|mode| mode != Mode::Exclusive) && !config.has_old();
    vec![
        (true, Action::Tick),
        (true, Action::Begin(0)),
        (config.attempts > 1, Action::Attempt(0)),
        (true, Action::Release(0)),
        (true, Action::Withdraw(0)),
        (config.limit > 0, Action::GiveUp(0)),
        (config.ttl <= config.horizon, Action::NoticeLoss(0)),
        (true, Action::ReceiveEvent(0)),
        (config.slow_requests, Action::Execute(0)),
        (config.slow_answers, Action::DeliverAnswer(0)),
        (config.refreshes > 0, Action::Refresh(0)),
        (config.renewals > 0, Action::Renew(0)),
        (config.block > 1, Action::HandOn(0)),
        (config.block > 1 && shared, Action::Join(0)),
        (config.block > 1 && shared, Action::Part(0)),
        (config.cancel, Action::Cancel(0)),
        (config.gives_up, Action::GiveUp(0)),
        (timeouts > 0, Action::Timeout(0)),
        (crashes > 0, Action::Crash(0)),
        (breaks > 0, Action::EndStream(0)),
        (breaks > 0, Action::ReopenStream(0)),
        (stalls > 0, Action::Stall(0)),
        (failovers > 0, Action::ExecuteOnStale(0)),
        (failovers > 0, Action::Replicate),
        (failovers > 0, Action::Failover(0)),
        (drops > 0, Action::Drop(0)),
        (repeats > 0, Action::Repeat(0)),
        (forces > 0, Action::Force),
        (forces > 0 && together, Action::ForceHolder(0)),
        (purges > 0, Action::Purge),
    ]
}

#[test]
fn every_kind_of_step_is_taken_somewhere() {
    let somewhere = |at: usize| configs::SMALL.iter().any(|config| steps(config)[at].0);
    assert!((0..steps(&configs::SMALL[0]).len()).all(somewhere));
}

sound! {
    lost_messages, "lost", 450_000;
    late_messages, "late", 110_000;
    clean_ups_that_are_given_up, "clean-up", 200_000;
    given_up_claims, "given-up", 310_000;
    repeated_messages, "repeated", 230_000;
    renewals, "renewals", 700_000;
    stalled_operations, "stalls", 340_000;
    stalled_release_that_passes_on, "passing", 280_000;
    late_refreshes, "refreshes", 8_000;
    broken_streams, "events", 130_000;
    fail_over, "failover", 130_000;
    purge, "purge", 180_000;
    outrun_clock, "outrun", 1_000;
    force_release, "force", 280_000;
    force_release_unheard, "forced", 160_000;
    hand_off, "hand-off", 400_000;
    queue_of_three, "queue", 120_000;
    minimum_hold, "hold", 28_000;
    batches, "batches", 900_000;
    frozen_server, "frozen", 60_000;
    batches_and_fail_over, "batch-failover", 900_000;
    early_releases, "early", 250_000;
    early_releases_and_force_release, "early-forced", 850_000;
    batches_and_early_releases, "batch-early", 250_000;
    readers_and_a_writer, "readers", 120_000;
    readers_and_lost_answers, "readers-lost", 300_000;
    readers_and_stalled_operations, "readers-stall", 700_000;
    readers_and_repeated_requests, "readers-repeated", 90_000;
    readers_and_fail_over, "readers-failover", 900_000;
    readers_and_force_release, "readers-forced", 350_000;
    a_reader_and_force_release, "reader-forced", 700_000;
    joined_readers, "joined", 800_000;
    permits, "permits", 80_000;
    all_permits, "permits-all", 1_000_000;
    mixed_modes, "mixed", 650_000;
    readers_and_broken_streams, "readers-events", 70_000;
    readers_and_purge, "readers-purge", 50_000;
    readers_and_batches, "readers-batches", 300_000;
    readers_and_early_releases, "readers-early", 170_000;
    readers_beside_an_older_format, "old-format", 300_000;
}

#[test]
fn a_search_that_is_cut_off_says_so() {
    let config = configs::small("lost").unwrap();
    let report = explore(&config, None, Limits { states: 1000, until: None }, |_| {});
    assert!(!report.is_complete);
    assert_eq!(report.progress.unique, 1000);
}

#[test]
fn the_larger_configurations_can_be_explored() {
    for config in configs::large() {
        let report = explore(&config, None, Limits { states: 20_000, until: None }, |_| {});
        assert!(report.counterexample.is_none(), "{}: {}", config.name, describe(&config, &report));
    }
}
