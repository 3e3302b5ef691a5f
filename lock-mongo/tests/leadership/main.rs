//! Leadership beyond what the conformance suite checks on every backend: a store that cannot be
//! reached, and leaders with one token. In memory, and on a real MongoDB.

mod checks;
mod fleet;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_memory::MemoryStore;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use fleet::Fleet;

/// A check that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(Builder::new_multi_thread().enable_all().build().expect("a runtime"));
    let server = (!arguments.list).then(|| runtime.block_on(MongoServer::start(Topology::ReplicaSet)));
    let server = server.map(|server| server.expect("a server"));
    let uri = server.as_ref().map_or(String::new(), |server| server.uri().to_owned());

    let mut trials = Trials { runtime: Arc::clone(&runtime), uri, trials: Vec::new() };
    trials.add("L5_errors_of_the_store", checks::l5_errors_of_the_store);
    trials.add("L8_observation", checks::l8_observation);
    let conclusion = libtest_mimic::run(&arguments, trials.trials);
    if let Some(server) = server {
        runtime.block_on(server.stop());
    }
    conclusion.exit_code()
}

struct Trials {
    runtime: Arc<Runtime>,
    uri: String,
    trials: Vec<Trial>,
}

impl Trials {
    /// Adds a check for each backend.
    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(Fleet) -> F) {
        self.push(format!("memory::{name}"), check, async || Fleet::in_memory(MemoryStore::new()));
        let uri = self.uri.clone();
        self.push(format!("mongodb::{name}"), check, async move || Fleet::on_mongodb(&uri).await);
    }

    fn push<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        name: String,
        check: fn(Fleet) -> F,
        make: impl AsyncFnOnce() -> Fleet + Send + 'static,
    ) {
        let runtime = Arc::clone(&self.runtime);
        self.trials.push(Trial::test(name, move || {
            runtime.block_on(async {
                let fleet = make().await;
                let providers = fleet.clone();
                let check = tokio::spawn(tokio::time::timeout(LIMIT, check(fleet)));
                let ended = check.await.map_err(|error| Failed::from(error.to_string()))?;
                ended.map_err(|_| Failed::from(format!("it hangs: it has not ended within {LIMIT:?}")))?;
                providers.close().await.map_err(Failed::from)
            })
        }));
    }
}
