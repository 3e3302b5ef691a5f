//! The protocol with all its rules: everything within the bounds is explored, and nothing falls.

use distlock_model::configs;
use distlock_model::search::{Limits, explore};

/// A model that explores nothing finds nothing: each configuration must have at least so many different states.
macro_rules! sound {
    ($($name:ident, $config:literal, $least:literal;)*) => {
        $(#[test]
        fn $name() {
            let config = configs::small($config).unwrap();
            let report = explore(&config, None, Limits::default(), |_| {});
            assert!(report.counterexample.is_none(), "{}", describe(&config, &report));
            assert!(report.is_complete);
            let unique = report.progress.unique;
            assert!(unique >= $least, "{unique} states");
        })*

        #[test]
        fn every_configuration_is_explored() {
            let names: Vec<&str> = configs::SMALL.iter().map(|config| config.name).collect();
            assert_eq!(names, [$($config),*]);
        }
    };
}

fn describe(config: &distlock_model::config::Config, report: &distlock_model::search::Report) -> String {
    report.counterexample.as_ref().map(|found| distlock_model::explain::timeline(config, found)).unwrap_or_default()
}

sound! {
    lost_messages, "lost", 400_000;
    late_messages, "late", 100_000;
    repeated_messages, "repeated", 30_000;
    renewals, "renewals", 600_000;
    stalled_operations, "stalls", 300_000;
    stalled_release_that_passes_on, "passing", 250_000;
    late_refreshes, "refreshes", 8_000;
    broken_streams, "events", 130_000;
    fail_over, "failover", 130_000;
    purge, "purge", 180_000;
    force_release, "force", 280_000;
    force_release_unheard, "forced", 160_000;
    hand_off, "hand-off", 80_000;
    queue_of_three, "queue", 11_000;
    minimum_hold, "hold", 28_000;
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
