//! The clients, child processes and locks of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{FencedRegister, LockKey, LockProvider, Mode};
use fastrand::Rng;

use super::tally::Tally;
use crate::child::{Child, Clock};
use crate::context::Context;
use crate::failure::Failure;
use crate::recorder::Recorder;

/// How long an acquisition waits.
pub(super) const WAIT: Duration = Duration::from_secs(6);
const SLOW_WAIT: Duration = Duration::from_millis(300);
const PROVIDERS: usize = 2;
/// The tasks of each provider.
pub(super) const TASKS: usize = 3;
/// The first key may be held for longer than its ttl, all others only for moments. These keys are
/// locked exclusively. Those after them are shared, or have permits, if the backend has these.
const EXCLUSIVE_KEYS: usize = 4;
const SLOW: usize = 0;
/// The permits of a key.
const PERMITS: u32 = 3;
/// The clocks of the child processes, in seconds ahead of the machine's.
const CLOCKS: [i64; 3] = [0, 3600, -3600];

/// Everything that is kept from round to round.
pub(super) struct Participants {
    pub(super) address: String,
    pub(super) providers: Vec<Arc<dyn LockProvider>>,
    pub(super) children: Vec<ChildClient>,
    pub(super) keys: Vec<LockKey>,
    /// How each key is used.
    uses: Vec<Use>,
    pub(super) registers: Arc<Vec<FencedRegister<()>>>,
    /// The greatest token of each key in the rounds before.
    pub(super) tokens: Vec<u64>,
}

/// How the clients use a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Exclusively.
    Exclusive,
    /// Most of the time shared.
    Shared,
    /// Most of the time by permits.
    Permits,
}

/// A child process, and the shift of its clock in seconds.
pub(super) struct ChildClient {
    pub(super) process: Child,
    pub(super) shift: i64,
}

impl ChildClient {
    pub(super) async fn start(cx: &Context, address: &str, shift: i64, recorder: &Recorder) -> Result<Self, Failure> {
        let mut process = Child::start(cx.stage().name(), address, Clock::Adjustable, recorder).await?;
        if shift != 0 {
            process
                .handle()
                .ok_or_else(|| Failure::new("a child process ended right after its start"))?
                .set_clock(shift)?;
            process.ensure_clock(shift).await?;
        }
        Ok(Self { process, shift })
    }
}

impl Participants {
    pub(super) async fn new(cx: &Context, address: String) -> Result<Self, Failure> {
        let can = cx.profile().capabilities();
        let mut uses = vec![Use::Exclusive; EXCLUSIVE_KEYS];
        uses.extend(can.shared.then_some(Use::Shared));
        uses.extend(can.permits.then_some(Use::Permits));
        let keys: Vec<LockKey> = uses.iter().map(|_| cx.key()).collect();
        let mut providers = Vec::new();
        for _ in 0..PROVIDERS {
            providers.push(cx.stage().fixture().connect(&address).await?);
        }
        let mut children = Vec::new();
        for shift in CLOCKS {
            children.push(ChildClient::start(cx, &address, shift, cx.recorder()).await?);
        }
        let registers = Arc::new(keys.iter().map(|_| FencedRegister::new(())).collect());
        Ok(Self { address, providers, children, tokens: vec![0; keys.len()], keys, uses, registers })
    }
}

/// What the tasks of a round share.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) cx: Context,
    pub(super) address: String,
    pub(super) keys: Vec<LockKey>,
    uses: Vec<Use>,
    pub(super) registers: Arc<Vec<FencedRegister<()>>>,
    pub(super) recorder: Recorder,
    pub(super) tally: Tally,
    over: Arc<AtomicBool>,
}

impl Work {
    pub(super) fn new(cx: &Context, participants: &Participants, tally: &Tally) -> Self {
        Self {
            cx: cx.clone(),
            address: participants.address.clone(),
            keys: participants.keys.clone(),
            uses: participants.uses.clone(),
            registers: Arc::clone(&participants.registers),
            recorder: Recorder::default(),
            tally: tally.clone(),
            over: Arc::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Chooses a lock for the next critical section, and how long to wait for it. The wait for the
    /// slow key is short, or all tasks would soon wait for that one.
    pub(super) fn choose(&self, rng: &mut Rng) -> (usize, Duration) {
        match rng.u8(..12) {
            0 => (SLOW, SLOW_WAIT),
            _ => (rng.usize(1..self.keys.len()), WAIT),
        }
    }

    /// Chooses the mode of an acquisition. Every key is locked exclusively now and then.
    pub(super) fn mode(&self, key: usize, rng: &mut Rng) -> Mode {
        match self.uses[key] {
            Use::Shared if rng.u8(..4) > 0 => Mode::Shared,
            Use::Permits if rng.u8(..6) > 0 => Mode::Permits { take: rng.u32(1..PERMITS), of: PERMITS },
            _ => Mode::Exclusive,
        }
    }

    /// Chooses how long to hold a lock.
    pub(super) fn hold(&self, key: usize, rng: &mut Rng) -> Duration {
        // Sometimes for so long that the lease must be renewed.
        if key == SLOW && rng.bool() {
            return self.cx.short().mul_f64(1.2);
        }
        Duration::from_micros(rng.u64(0..12_000))
    }

    /// Ends the round: each task finishes the call that it has started.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}
