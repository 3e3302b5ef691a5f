//! The lease engine under simulated time and a simulated network.
//!
//! Several engines, each in the role of a process, share one store on one paused clock. A seed
//! decides everything: the processes and their callers; requests and replies that are slow, lost,
//! late or repeated; events that are lost; processes that are killed. So a seed repeats exactly,
//! and a failing one can be examined:
//!
//! ```sh
//! cargo run --release -p distlock-simulator                   # 2,000 seeds
//! cargo run --release -p distlock-simulator -- --seed 4711    # one, with its timeline
//! ```
//!
//! Afterwards the history is judged as in the conformance suite (`distlock_conformance::history`):
//! by intervals, and by the linearizability checker. In two of five seeds callers acquire in
//! several modes. Some calls end in a commit, which must be applied once if its caller is told so,
//! and never otherwise. The accounting of each engine must balance, nothing may be left at the
//! store, and no caller may wait for ever. Defects of the engine, which can be switched on, test
//! that the simulator finds them.

mod caller;
mod commit;
mod documents;
mod modes;
mod network;
mod plan;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_api::{Accounting, LockProvider};
use distlock_conformance::history::{Call, CallKind, Expected, Violation, violations};
pub use distlock_engine::simulation::Defect;
use distlock_engine::simulation::simulate;
use distlock_engine::{HandOff, LeaseProvider, QueueOptions};
use fastrand::Rng;
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::caller::{Caller, Records, Stalling, is_closed, terms};
use crate::network::{Link, Network};
use crate::plan::{Ending, Plan};

/// The result of a seed.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// All calls, in the order in which they began.
    pub calls: Vec<Call>,
    /// The violations; empty if there are none.
    pub complaints: Vec<String>,
    /// Whether one order of the calls explains all their answers. If not, `complaints` has the
    /// violation.
    pub linearizable: bool,
    /// The timeline, if `logs` was set.
    pub log: Vec<(Duration, String)>,
    plan: String,
}

impl Outcome {
    /// Returns how many locks were granted.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.calls.iter().filter(|call| matches!(call.what, CallKind::Granted { .. })).count()
    }
}

impl fmt::Display for Outcome {
    /// Writes the timeline, and the violations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.plan)?;
        for (at, line) in &self.log {
            writeln!(f, "{:>10.3} ms  {line}", at.as_secs_f64() * 1000.0)?;
        }
        for call in &self.calls {
            writeln!(f, "{call}")?;
        }
        for complaint in &self.complaints {
            writeln!(f, "WRONG: {complaint}")?;
        }
        write!(f, "again: cargo run --release -p distlock-simulator -- --seed {}", self.seed)
    }
}

/// Runs one seed on this thread, with a defect of the engine if one is given. With `logs` the
/// outcome has a timeline.
///
/// # Panics
/// If no runtime can be created.
#[must_use]
pub fn run(seed: u64, defect: Option<Defect>, logs: bool) -> Outcome {
    fastrand::seed(seed);
    simulate(defect);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(world(seed, logs))
}

/// A process: an engine, and its callers.
struct Process {
    locks: LeaseProvider,
    callers: JoinSet<()>,
    dead: Arc<AtomicBool>,
    ending: Option<JoinHandle<()>>,
    killed: bool,
    /// The accounting when the last effect of the faults was over.
    quiet: Arc<OnceLock<Accounting>>,
}

/// Makes another seed, for what concerns modes only.
const MODES: u64 = 0x006d_6f64_6573;
/// The same for commits.
const COMMITS: u64 = 0x636f_6d6d_6974;

async fn world(seed: u64, logs: bool) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let mut plan = Plan::new(&mut rng);
    let mut of_modes = Rng::with_seed(seed ^ MODES);
    plan.modes = of_modes.f64() < 0.4;
    let shown = format!("{plan:?}");
    let network = Network::new(plan, [rng, of_modes, Rng::with_seed(seed ^ COMMITS)], logs);
    let records = Arc::new(Records::default());
    let mut processes: Vec<Process> =
        (0..network.plan.processes).map(|index| start(index, &network, &records)).collect();
    let operator = tokio::spawn(operate(network.clone(), records.clone()));
    let end = network.start + network.plan.end();
    // Generous: a waiter may wait for all others, and each of them may hold for up to two ttls.
    let patience = network.plan.ttl * 200;
    for (index, process) in processes.iter_mut().enumerate() {
        let Process { callers, killed, .. } = process;
        if *killed {
            continue;
        }
        let all = async { while callers.join_next().await.is_some() {} };
        if timeout_at(end + patience, all).await.is_err() {
            records.complain(format!("callers of process {index} wait for ever"));
        }
    }
    operator.abort();
    finish(&network, &records, processes).await;
    judge(seed, &network, &records, shown)
}

fn start(index: usize, network: &Arc<Network>, records: &Arc<Records>) -> Process {
    let dead = Arc::new(AtomicBool::new(false));
    let link = Link::new(network.clone(), index, dead.clone());
    let claim = (network.plan.ttl / 3).max(Duration::from_millis(200));
    let queue = QueueOptions::new().ticket_ttl(network.plan.ttl.max(Duration::from_millis(600))).claim(claim);
    let link = Arc::new(link);
    let builder = LeaseProvider::builder(link.clone()).lease(terms(network));
    let builder = builder.request_timeout(network.plan.request_timeout).queue(queue);
    let locks = builder.hand_off(HandOff::new().linger(network.plan.linger)).build().expect("valid options");
    let mut callers = JoinSet::new();
    for caller in 0..network.plan.callers {
        let client = index * network.plan.callers + caller;
        let (locks, link, network, records) = (locks.clone(), link.clone(), network.clone(), records.clone());
        let caller = Caller { client, process: index, locks, link, network: network.clone(), records };
        callers.spawn(Stalling { work: Box::pin(caller.run()), process: index, network, pause: None });
    }
    let killed = matches!(network.plan.ends[index], Some((_, Ending::Killed)));
    let ending = network.plan.ends[index].map(|(at, ending)| {
        let (at, locks, dead, network) = (network.start + at, locks.clone(), dead.clone(), network.clone());
        tokio::spawn(async move {
            sleep_until(at).await;
            network.log(|| format!("process {index} is {ending:?}"));
            match ending {
                Ending::Killed => dead.store(true, Ordering::Relaxed),
                // Leases that could not be released are reported, and end by their ttl.
                Ending::Closed => drop(locks.close().await),
            }
        })
    });
    let quiet = Arc::<OnceLock<Accounting>>::default();
    let at_quiet = {
        let (locks, quiet, at) = (locks.clone(), quiet.clone(), network.start + network.plan.quiet());
        async move {
            sleep_until(at).await;
            let _ = quiet.set(locks.accounting());
        }
    };
    tokio::spawn(at_quiet);
    Process { locks, callers, dead, ending, killed, quiet }
}

/// Releases by force, and steps the store's clock.
async fn operate(network: Arc<Network>, records: Arc<Records>) {
    let steps: Vec<_> = network.plan.clock_steps.clone();
    let stepping = {
        let network = network.clone();
        async move {
            for (at, by) in steps {
                sleep_until(network.start + at).await;
                network.log(|| format!("the store's clock steps by {by:?}"));
                network.store.advance(by);
            }
        }
    };
    let forcing = async {
        while network.plan.rates.forced > 0.0 && network.now() < network.plan.faults {
            let pause = network.plan.ttl.mul_f64(network.random(Rng::f64));
            tokio::time::sleep(pause).await;
            if network.random(Rng::f64) < network.plan.rates.forced {
                let key = format!("key{}", network.random(|rng| rng.usize(..network.plan.keys)));
                records.forced.lock().expect("one thread").push((key.clone(), network.now()));
                network.log(|| format!("{key} is released by force"));
                network.store.force_release(&*key);
            }
        }
    };
    tokio::join!(stepping, forcing);
}

/// Closes what is open, and checks what is left.
async fn finish(network: &Arc<Network>, records: &Records, processes: Vec<Process>) {
    for (index, mut process) in processes.into_iter().enumerate() {
        if let Some(ending) = process.ending.take() {
            let _ = timeout_at(Instant::now() + network.plan.ttl * 100, ending).await;
        }
        process.callers.abort_all();
        if process.killed {
            assert!(process.dead.load(Ordering::Relaxed), "killed by now");
            continue;
        }
        let was_closed = is_closed(&process.locks).await;
        let closed = process.locks.close().await;
        let accounting = process.locks.accounting();
        if !accounting.balances() || accounting.held > 0 || accounting.waiting > 0 {
            records.complain(format!("the accounting of process {index} is {accounting:?}"));
        }
        if let Some(quiet) = process.quiet.get()
            && (quiet.lost, quiet.abandoned) != (accounting.lost, accounting.abandoned)
        {
            records.complain(format!("process {index} has lost leases without faults: {quiet:?}, then {accounting:?}"));
        }
        // A close during the faults may have left leases to their ttl.
        if let (false, Err(error)) = (was_closed, closed) {
            records.complain(format!("process {index} was not closed: {error}"));
        }
        if accounting.unsettled > 0 && !was_closed {
            records.complain(format!("process {index} has {} calls left", accounting.unsettled));
        }
    }
    for key in (0..network.plan.keys).map(|key| format!("key{key}")) {
        if let Some(left) = network.store.peek(&*key) {
            records.complain(format!("{key} is still held, or kept closed: {left:?}"));
        }
    }
}

fn judge(seed: u64, network: &Network, records: &Records, plan: String) -> Outcome {
    let calls = std::mem::take(&mut *records.calls.lock().expect("one thread"));
    let mut complaints = std::mem::take(&mut *records.complaints.lock().expect("one thread"));
    // While there are faults, a key may be busy with an attempt that was given up and is being
    // withdrawn; and at any time with a lease that lingers.
    let quiet = network.plan.quiet();
    let counts = |call: &&Call| call.what != CallKind::Busy || (call.asked >= quiet && network.plan.linger.is_zero());
    let judged: Vec<Call> = calls.iter().filter(counts).cloned().collect();
    complaints.extend(network.documents.complaints());
    let mut linearizable = true;
    for violation in violations(&judged, Expected::default()) {
        linearizable &= !matches!(violation, Violation::NotLinearizable { .. } | Violation::Undecided { .. });
        let shown: Vec<String> = violation.calls().iter().map(ToString::to_string).collect();
        complaints.push(format!("{violation}: {}", shown.join("; ")));
    }
    Outcome { seed, calls, complaints, linearizable, log: network.take_log(), plan }
}
