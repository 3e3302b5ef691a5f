//! The command `distlock`, as real processes on a real replica set.
//!
//! Every test has a database of its own. What excludes whom is observed outside of the locks: by
//! files that are created exclusively, and by the ends of processes.

mod admin;
mod doctor;
mod ends;
mod init;
mod kit;
mod losses;
mod modes;
mod once;
mod proxy;
mod run;
mod secrets;
mod stops;
mod terminal;
mod waits;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use distlock_conformance_mongo::{MongoServer, Topology};
use futures_util::FutureExt;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use kit::{BOUND, World};

/// How many tests run in parallel, unless `--test-threads` is given: they wait for processes and
/// clocks most of the time.
const AT_ONCE: usize = 12;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = Arc::new(Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime"));
    handle_ignored_signals(&runtime);
    let servers = Servers::default();
    let mut tests = Tests { runtime: runtime.clone(), servers: servers.clone(), trials: Vec::new() };
    // The longest first.
    waits::add(&mut tests);
    secrets::add(&mut tests);
    once::add(&mut tests);
    losses::add(&mut tests);
    doctor::add(&mut tests);
    terminal::add(&mut tests);
    stops::add(&mut tests);
    run::add(&mut tests);
    ends::add(&mut tests);
    init::add(&mut tests);
    modes::add(&mut tests);
    admin::add(&mut tests);
    let Tests { trials, .. } = tests;
    let conclusion = libtest_mimic::run(&arguments, trials);
    runtime.block_on(async {
        let Servers { open, controlled } = servers;
        for server in [open, controlled] {
            if let Some(server) = Arc::into_inner(server).and_then(OnceCell::into_inner) {
                server.stop().await;
            }
        }
    });
    conclusion.exit_code()
}

/// In the background of a script this program ignores signals, and so would the commands that it
/// starts. What is handled here has its usual effect on them.
fn handle_ignored_signals(runtime: &Runtime) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let _entered = runtime.enter();
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()] {
        if mask.unwrap_or_default() >> (kind.as_raw_value() - 1) & 1 == 1 {
            drop(signal(kind).expect("a handler"));
        }
    }
}

/// The servers, started by the first test that needs them.
#[derive(Clone, Default)]
struct Servers {
    open: Arc<OnceCell<MongoServer>>,
    /// With access control: its connection string contains a password.
    controlled: Arc<OnceCell<MongoServer>>,
}

impl Servers {
    async fn open(&self) -> &str {
        let start = async || MongoServer::start(Topology::ReplicaSet).await.expect("a server");
        self.open.get_or_init(start).await.uri()
    }

    async fn controlled(&self) -> &str {
        let start = async || MongoServer::start_with_access_control(Topology::ReplicaSet).await.expect("a server");
        self.controlled.get_or_init(start).await.uri()
    }
}

/// A test, boxed so that what runs it is compiled once, and not for each of them.
type Test = Box<dyn FnOnce(World) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

struct Tests {
    runtime: Arc<Runtime>,
    servers: Servers,
    trials: Vec<Trial>,
}

impl Tests {
    /// Adds a test on the replica set without access control.
    fn add<F: Future<Output = ()> + 'static>(&mut self, name: &str, test: fn(World) -> F) {
        self.push(name, Box::new(move |world| Box::pin(test(world))), false);
    }

    /// Adds a test on the replica set with access control.
    fn add_controlled<F: Future<Output = ()> + 'static>(&mut self, name: &str, test: fn(World) -> F) {
        self.push(name, Box::new(move |world| Box::pin(test(world))), true);
    }

    fn push(&mut self, name: &str, test: Test, controlled: bool) {
        let (runtime, servers) = (self.runtime.clone(), self.servers.clone());
        self.trials.push(Trial::test(name, move || {
            runtime.block_on(async {
                let uri = if controlled { servers.controlled().await } else { servers.open().await };
                let world = World::new(uri).await;
                let tested = AssertUnwindSafe(test(world.clone())).catch_unwind();
                let tested = timeout(BOUND * 2, tested).await;
                world.close().await;
                match tested {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(panic)) => resume_unwind(panic),
                    Err(_) => Err(Failed::from("the test does not end")),
                }
            })
        }));
    }
}
