//! Tests the runner from outside: this program runs itself as the test binary of a sound or a
//! broken backend, and examines the output.

mod nextest;
mod program;
mod reports;
mod usage;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many tests run in parallel, unless `--test-threads` is given: the checks of their programs
/// wait for clocks most of the time.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    if let Some(backend) = program::backend() {
        return distlock_conformance::run(program::fixtures(&backend));
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // The longest one first.
    let tests = [nextest::TESTS, usage::TESTS, reports::TESTS].concat();
    let trials = tests.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
