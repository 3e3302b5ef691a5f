//! The store on real servers: replica sets and standalones, all started by this binary.
//!
//! Every check has a collection of its own. Those that disturb a whole server share a few others,
//! on each of which they run one after the other. Heavy checks, which need the whole machine or a
//! third of it, run before all others.

/// Adds a check under the name of its function, after the clause or rule that it tests. A check
/// that disturbs its server for others runs `alone` there.
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
mod codes;
mod documents;
mod fast_path;
mod faults;
mod fenced;
mod fenced_transactions;
mod force;
mod foreign;
mod garbled;
#[path = "../guide/mod.rs"]
mod guide;
mod half_open;
mod hints;
mod imitated;
mod late;
mod lateness;
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
mod removing;
mod renewal;
mod reports;
mod runtimes;
mod slow;
mod streams;
mod tokens;
mod values;
mod wire;
mod world;

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use distlock_conformance::Level;
use distlock_conformance_mongo::{MongoServer, Topology};
use futures_util::future::try_join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{RwLock, Semaphore};

use world::World;

/// How many checks share a server at once per processor, unless `--test-threads` is given. Most
/// checks wait for a clock most of the time.
const CHECKS_PER_PROCESSOR: usize = 8;
/// How many servers of a topology there are for checks that disturb them.
const DISTURBED: usize = 10;
/// The parts of the machine that heavy checks share.
const PARTS: u32 = 3;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let runtime = Arc::new(Builder::new_multi_thread().enable_all().build().expect("a runtime"));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = arguments.test_threads.unwrap_or(processors * CHECKS_PER_PROCESSOR).max(1);
    let level = Level::from_env().expect("a level");
    // Below the level standard, what disturbs a server runs on replica sets only.
    let disturbed =
        |topology: Topology| if topology == Topology::Standalone && level < Level::Standard { 0 } else { DISTURBED };
    let needed = TOPOLOGIES.into_iter().filter(|_| !arguments.list);
    let mut needed = needed.flat_map(|topology| std::iter::repeat_n(topology, 1 + disturbed(topology)));
    // The first fetches what is needed.
    let mut servers =
        Vec::from_iter(needed.next().map(|first| runtime.block_on(MongoServer::start(first)).expect("a server")));
    servers.extend(runtime.block_on(try_join_all(needed.map(MongoServer::start))).expect("servers"));
    let Trials { heavy, alone, others } = trials(&runtime, &servers, at_once, level);
    let by_parts = Arguments { test_threads: Some(PARTS as usize), ..arguments.clone() };
    let of_heavy = libtest_mimic::run(&by_parts, heavy);
    // A check that waits for its turn keeps no other one from running.
    arguments.test_threads.get_or_insert(at_once + alone.len());
    let of_others = libtest_mimic::run(&arguments, alone.into_iter().chain(others).collect());
    for server in servers {
        runtime.block_on(server.stop());
    }
    if of_heavy.has_failed() { of_heavy.exit_code() } else { of_others.exit_code() }
}

const TOPOLOGIES: [Topology; 2] = [Topology::ReplicaSet, Topology::Standalone];

/// A server, and the turns of its checks: together or alone.
#[derive(Clone)]
struct Site {
    world: World,
    turns: Arc<RwLock<()>>,
}

/// Servers that a check may disturb, while it has them.
#[derive(Clone)]
struct Disturbed {
    places: Arc<Semaphore>,
    free: Arc<Mutex<Vec<Site>>>,
}

impl Disturbed {
    fn new(sites: Vec<Site>) -> Self {
        Self { places: Arc::new(Semaphore::new(sites.len())), free: Arc::new(Mutex::new(sites)) }
    }

    /// Takes one of them, in a place.
    fn take(&self) -> Site {
        self.free.lock().expect("not poisoned").pop().expect("one for each place")
    }

    fn give_back(&self, site: Site) {
        self.free.lock().expect("not poisoned").push(site);
    }
}

/// The names of the checks so far. Below the level standard each runs on the first topology that
/// has it.
#[derive(Default)]
struct Names {
    known: HashSet<String>,
    left_out: usize,
    level: Level,
}

impl Names {
    /// Whether a check is left out.
    fn leave_out(&mut self, name: &str) -> bool {
        let is_left_out = !self.known.insert(name.to_owned()) && self.level < Level::Standard;
        self.left_out += usize::from(is_left_out);
        is_left_out
    }
}

/// A check, boxed before anything else sees its type: what runs a check is compiled once, and not
/// for each of them.
type Check = Box<dyn FnOnce(World) -> Running + Send>;
type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

fn boxed<F: Future<Output = ()> + Send + 'static>(check: impl FnOnce(World) -> F + Send + 'static) -> Check {
    Box::new(|world| Box::pin(check(world)))
}

/// Collects the checks of one topology.
struct Checks<'a> {
    runtime: &'a Arc<Runtime>,
    /// The server that most checks share.
    shared: Site,
    /// Those that a check has alone; the same one if there is no other.
    disturbed: Disturbed,
    /// How many checks share servers at once.
    places: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    names: &'a mut Names,
    trials: Trials,
}

/// The checks by the company that they can bear.
#[derive(Default)]
struct Trials {
    /// Those that need the machine, or parts of it.
    heavy: Vec<Trial>,
    /// Those that need a server of their own.
    alone: Vec<Trial>,
    others: Vec<Trial>,
}

impl Checks<'_> {
    fn is_replica_set(&self) -> bool {
        self.shared.world.topology == Topology::ReplicaSet
    }

    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(World) -> F) {
        self.push_shared(name, boxed(check));
    }

    fn push_shared(&mut self, name: &str, check: Check) {
        if self.names.leave_out(name) {
            return;
        }
        let (Site { world, turns }, places) = (self.shared.clone(), Arc::clone(&self.places));
        let trial = self.trial(name, async move || {
            let _place = places.acquire().await;
            let _turn = turns.read().await;
            run(check, world).await
        });
        self.trials.others.push(trial);
    }

    /// Adds a check that disturbs the server for others.
    fn add_alone<F: Future<Output = ()> + Send + 'static>(&mut self, name: &str, check: fn(World) -> F) {
        self.push_alone(name, boxed(check));
    }

    fn push_alone(&mut self, name: &str, check: Check) {
        if self.names.leave_out(name) {
            return;
        }
        let disturbed = self.disturbed.clone();
        // The first ones have their places before they start: all start at the same time.
        let reserved = Arc::clone(&disturbed.places).try_acquire_owned();
        let trial = self.trial(name, async move || {
            let _place = match reserved {
                Ok(place) => Ok(place),
                Err(_) => Arc::clone(&disturbed.places).acquire_owned().await,
            };
            let Site { world, turns } = disturbed.take();
            let turn = turns.write().await;
            let ended = run(check, world.clone()).await;
            drop(turn);
            disturbed.give_back(Site { world, turns });
            ended
        });
        self.trials.alone.push(trial);
    }

    /// Adds a check that needs so many of the machine's [`PARTS`].
    fn add_heavy<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        parts: u32,
        name: &str,
        check: impl FnOnce(World) -> F + Send + 'static,
    ) {
        self.push_heavy(parts, name, boxed(check));
    }

    fn push_heavy(&mut self, needed: u32, name: &str, check: Check) {
        if self.names.leave_out(name) {
            return;
        }
        let (world, parts) = (self.shared.world.clone(), Arc::clone(&self.parts));
        let trial = self.trial(name, async move || {
            let _parts = parts.acquire_many(needed).await;
            run(check, world).await
        });
        self.trials.heavy.push(trial);
    }

    fn trial(&self, name: &str, check: impl AsyncFnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
        let runtime = Arc::clone(self.runtime);
        let place = if self.is_replica_set() { "replica_set" } else { "standalone" };
        Trial::test(format!("{place}::{name}"), move || runtime.block_on(check()))
    }
}

async fn run(check: Check, world: World) -> Result<(), Failed> {
    let (client, options) = world.connect(|_| ()).await;
    let world = World { client, options, ..world };
    tokio::spawn(check(world)).await.map_err(|error| Failed::from(panic_text(error)))
}

/// Returns the checks for the servers of each topology.
fn trials(runtime: &Arc<Runtime>, servers: &[MongoServer], at_once: usize, level: Level) -> Trials {
    let places = Arc::new(Semaphore::new(at_once));
    let parts = Arc::new(Semaphore::new(PARTS as usize));
    let mut trials = Trials::default();
    let mut names = Names { level, ..Names::default() };
    for topology in TOPOLOGIES {
        let mut uris = servers.iter().filter(|server| server.topology() == topology).map(MongoServer::uri);
        let one = uris.next().unwrap_or("mongodb://127.0.0.1:1");
        let others = Vec::from_iter(uris);
        let site = |uri| Site { world: runtime.block_on(World::new(uri, topology)), turns: Arc::default() };
        let shared = site(one);
        let is_the_only_one = others.is_empty() || others.contains(&one);
        let disturbed = if is_the_only_one { vec![shared.clone()] } else { others.into_iter().map(site).collect() };
        let disturbed = Disturbed::new(disturbed);
        let (places, parts) = (Arc::clone(&places), Arc::clone(&parts));
        let mut checks = Checks { runtime, shared, disturbed, places, parts, names: &mut names, trials };
        // The longest first.
        slow::add(&mut checks);
        codes::add(&mut checks);
        streams::add(&mut checks);
        proxied::add(&mut checks);
        modes::add(&mut checks);
        fenced_transactions::add(&mut checks);
        foreign::add(&mut checks);
        documents::add(&mut checks);
        once::add(&mut checks);
        lease::add(&mut checks);
        renewal::add(&mut checks);
        tokens::add(&mut checks);
        queue::add(&mut checks);
        fast_path::add(&mut checks);
        batch::add(&mut checks);
        older::add(&mut checks);
        late::add(&mut checks);
        hints::add(&mut checks);
        values::add(&mut checks);
        force::add(&mut checks);
        wire::add(&mut checks);
        faults::add(&mut checks);
        options::add(&mut checks);
        provider::add(&mut checks);
        runtimes::add(&mut checks);
        reports::add(&mut checks);
        half_open::add(&mut checks);
        admin::add(&mut checks);
        fenced::add(&mut checks);
        garbled::add(&mut checks);
        removing::add(&mut checks);
        imitated::add(&mut checks);
        trials = checks.trials;
    }
    if names.left_out > 0 {
        let (number, variable) = (names.left_out, Level::VARIABLE);
        eprintln!("distlock: left out: {number} checks on a second topology ({variable}=standard runs them)");
    }
    trials
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let panic = error.into_panic();
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "panic".into())
}
