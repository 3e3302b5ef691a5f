//! Tests the runner from outside: this program runs itself as the test binary of a sound or a
//! broken backend, and examines the output.

mod nextest;
mod program;
mod reports;
mod usage;

use std::process::ExitCode;

use libtest_mimic::Trial;

/// Examines a backend, if this process is a test binary that a test has started.
pub(crate) fn run_as_test_binary() -> Option<ExitCode> {
    program::backend().map(|backend| distlock_conformance::run(program::fixtures(&backend)))
}

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let tests = [usage::TESTS, reports::TESTS, nextest::TESTS].concat();
    tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    })
}
