//! What disturbs whole servers, or needs servers of a kind of its own: access control, fail-overs,
//! freezes, and processes that are killed.
//!
//! Most of it waits for a server most of the time, so several checks run at once, each on servers
//! of its own.

mod access;
mod fail_over;
mod frozen;
mod frozen_primary;
mod frozen_server;
#[path = "../guide/mod.rs"]
mod guide;
mod increments;
mod leadership;
#[path = "../pair/mod.rs"]
mod pair;
#[path = "../role/mod.rs"]
mod role;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_conformance_mongo::MongoServer;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// How many checks run at once, unless `--test-threads` is given.
const AT_ONCE: usize = 10;
/// A check that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let runtime = Arc::new(Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"));
    if let Some(job) = increments::job() {
        runtime.block_on(increments::work(&job));
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let mut trials = Trials { runtime: runtime.clone(), trials: Vec::new() };
    // The longest first.
    frozen_primary::add(&mut trials);
    fail_over::add(&mut trials);
    frozen_server::add(&mut trials);
    increments::add(&mut trials);
    let controlled = access::add(&mut trials);
    let of_leaders = leadership::add(&mut trials);
    let conclusion = libtest_mimic::run(&arguments, trials.trials);
    for server in [controlled, of_leaders].into_iter().filter_map(Arc::into_inner).filter_map(OnceCell::into_inner) {
        runtime.block_on(server.stop());
    }
    conclusion.exit_code()
}

/// A server that several checks share, started by the first of them.
type SharedServer = Arc<OnceCell<MongoServer>>;

/// The checks.
struct Trials {
    runtime: Arc<Runtime>,
    trials: Vec<Trial>,
}

impl Trials {
    /// Adds a check that runs on the runtime of all.
    fn add(&mut self, name: impl Into<String>, check: impl Future<Output = ()> + Send + 'static) {
        let (runtime, check) = (self.runtime.clone(), Box::pin(check));
        self.trials.push(Trial::test(name, move || runtime.block_on(ended(check))));
    }

    /// Adds a check that has a runtime of one thread to itself.
    fn add_alone(&mut self, name: &str, check: impl Future<Output = ()> + Send + 'static) {
        let alone = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        let check = Box::pin(check);
        self.trials.push(Trial::test(name, move || alone().block_on(ended(check))));
    }
}

/// The future is boxed, so that what runs it is compiled once, and not for each check.
async fn ended(check: Pin<Box<dyn Future<Output = ()> + Send>>) -> Result<(), Failed> {
    match tokio::spawn(timeout(LIMIT, check)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Failed::from(format!("it hangs: it has not ended within {LIMIT:?}"))),
        Err(panic) => Err(Failed::from(panic.to_string())),
    }
}
