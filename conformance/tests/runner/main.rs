//! Tests the runner from outside: this program runs itself as the test binary of a sound or a
//! broken backend, and examines the output.

mod nextest;
mod program;
mod reports;
mod usage;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(backend) = program::backend() {
        return distlock_conformance::run(program::fixtures(&backend));
    }
    let tests = [usage::TESTS, reports::TESTS, nextest::TESTS].concat();
    let trials = tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
