//! The store on real servers: a replica set and a standalone, both started by this binary.
//!
//! Every check has a collection of its own. Those that break a whole server run alone.

/// Adds a check under the name of its function, after the clause or rule that it tests. A check
/// that disturbs the server for others runs `alone`.
macro_rules! check {
    ($checks:ident, alone $clause:ident $function:ident) => {
        $checks.add_alone(concat!(stringify!($clause), "_", stringify!($function)), $function)
    };
    ($checks:ident, alone $function:ident) => {
        $checks.add_alone(stringify!($function), $function)
    };
    ($checks:ident, $clause:ident $function:ident) => {
        $checks.add(concat!(stringify!($clause), "_", stringify!($function)), $function)
    };
    ($checks:ident, $function:ident) => {
        $checks.add(stringify!($function), $function)
    };
}

mod admin;
mod batch;
mod documents;
mod faults;
mod fenced;
mod fenced_transactions;
mod force;
mod foreign;
#[path = "../guide/mod.rs"]
mod guide;
mod hints;
mod lease;
mod modes;
mod older;
mod once;
mod options;
#[path = "../pair/mod.rs"]
mod pair;
mod provider;
mod proxied;
mod queue;
mod renewal;
mod short_way;
mod streams;
mod tokens;
mod values;
mod wire;
mod world;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;

use distlock_conformance_mongo::{MongoServer, Topology};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::RwLock;

use world::World;

/// How many checks run at once per processor, unless `--test-threads` is given. Most checks wait
/// for a clock most of the time.
const CHECKS_PER_PROCESSOR: usize = 2;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(processors * CHECKS_PER_PROCESSOR);
    let runtime = Arc::new(Builder::new_multi_thread().enable_all().build().expect("a runtime"));
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(&runtime, &[])).exit_code();
    }
    let servers = runtime.block_on(async {
        let mut servers = Vec::new();
        for topology in [Topology::ReplicaSet, Topology::Standalone] {
            servers.push(MongoServer::start(topology).await.expect("a server"));
        }
        servers
    });
    let conclusion = libtest_mimic::run(&arguments, trials(&runtime, &servers));
    runtime.block_on(async {
        for server in servers {
            server.stop().await;
        }
    });
    conclusion.exit_code()
}

/// Collects the checks of one server.
struct Checks<'a> {
    runtime: &'a Arc<Runtime>,
    world: World,
    alone: Arc<RwLock<()>>,
    trials: Vec<Trial>,
}

impl Checks<'_> {
    fn is_replica_set(&self) -> bool {
        self.world.topology == Topology::ReplicaSet
    }

    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(World) -> F) {
        self.push(name, check, false);
    }

    /// Adds a check that disturbs the server for others.
    fn add_alone<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(World) -> F) {
        self.push(name, check, true);
    }

    fn push<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(World) -> F, alone: bool) {
        let (runtime, world, lock) = (Arc::clone(self.runtime), self.world.clone(), Arc::clone(&self.alone));
        let place = if self.is_replica_set() { "replica_set" } else { "standalone" };
        self.trials.push(Trial::test(format!("{place}::{name}"), move || {
            runtime.block_on(async {
                let _alone = if alone { Some(lock.write().await) } else { None };
                let _shared = if alone { None } else { Some(lock.read().await) };
                let (client, options) = world.connect(|_| ()).await;
                let world = World { client, options, ..world };
                tokio::spawn(check(world)).await.map_err(|error| Failed::from(panic_text(error)))
            })
        }));
    }
}

fn trials(runtime: &Arc<Runtime>, servers: &[MongoServer]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for topology in [Topology::ReplicaSet, Topology::Standalone] {
        let uri = servers
            .iter()
            .find(|server| server.topology() == topology)
            .map_or("mongodb://127.0.0.1:1", MongoServer::uri);
        let world = runtime.block_on(World::new(uri, topology));
        let mut checks = Checks { runtime, world, alone: Arc::default(), trials };
        lease::add(&mut checks);
        renewal::add(&mut checks);
        tokens::add(&mut checks);
        queue::add(&mut checks);
        short_way::add(&mut checks);
        batch::add(&mut checks);
        older::add(&mut checks);
        modes::add(&mut checks);
        hints::add(&mut checks);
        streams::add(&mut checks);
        values::add(&mut checks);
        force::add(&mut checks);
        wire::add(&mut checks);
        faults::add(&mut checks);
        options::add(&mut checks);
        provider::add(&mut checks);
        proxied::add(&mut checks);
        admin::add(&mut checks);
        fenced::add(&mut checks);
        fenced_transactions::add(&mut checks);
        foreign::add(&mut checks);
        documents::add(&mut checks);
        once::add(&mut checks);
        trials = checks.trials;
    }
    trials
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let panic = error.into_panic();
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "panic".into())
}
