//! Who takes part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use distlock_api::{FencedRegister, LockKey, LockProvider};
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
/// Of each provider.
pub(super) const TASKS: usize = 3;
/// The first is used by those who hold it for longer than its ttl, all others for moments.
const KEYS: usize = 4;
const SLOW: usize = 0;
/// The clocks of the child processes, in seconds ahead of the machine's.
const CLOCKS: [i64; 3] = [0, 3600, -3600];

/// All that lives on from round to round.
pub(super) struct Field {
    pub(super) address: String,
    pub(super) providers: Vec<Arc<dyn LockProvider>>,
    pub(super) children: Vec<Player>,
    pub(super) keys: Vec<LockKey>,
    pub(super) registers: Arc<Vec<FencedRegister<()>>>,
    /// The greatest token of each key in the rounds before.
    pub(super) tokens: Vec<u64>,
}

/// A child process, and how wrong its clock is.
pub(super) struct Player {
    pub(super) child: Child,
    pub(super) shift: i64,
}

impl Player {
    pub(super) async fn start(cx: &Context, address: &str, shift: i64, recorder: &Recorder) -> Result<Self, Failure> {
        let mut child = Child::start(cx.stage().name(), address, Clock::Adjustable, recorder).await?;
        if shift != 0 {
            child.handle().ok_or_else(|| Failure::new("a child process has ended at once"))?.set_clock(shift)?;
            child.ensure_clock(shift).await?;
        }
        Ok(Self { child, shift })
    }
}

impl Field {
    pub(super) async fn new(cx: &Context, address: String) -> Result<Self, Failure> {
        let keys: Vec<LockKey> = (0..KEYS).map(|_| cx.key()).collect();
        let mut providers = Vec::new();
        for _ in 0..PROVIDERS {
            providers.push(cx.stage().fixture().connect(&address).await?);
        }
        let mut children = Vec::new();
        for shift in CLOCKS {
            children.push(Player::start(cx, &address, shift, cx.recorder()).await?);
        }
        let registers = Arc::new(keys.iter().map(|_| FencedRegister::new(())).collect());
        Ok(Self { address, providers, children, tokens: vec![0; keys.len()], keys, registers })
    }
}

/// What everybody at work in a round shares.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) cx: Context,
    pub(super) address: String,
    pub(super) keys: Vec<LockKey>,
    pub(super) registers: Arc<Vec<FencedRegister<()>>>,
    pub(super) recorder: Recorder,
    pub(super) tally: Tally,
    over: Arc<AtomicBool>,
}

impl Work {
    pub(super) fn new(cx: &Context, field: &Field, tally: &Tally) -> Self {
        Self {
            cx: cx.clone(),
            address: field.address.clone(),
            keys: field.keys.clone(),
            registers: Arc::clone(&field.registers),
            recorder: Recorder::default(),
            tally: tally.clone(),
            over: Arc::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// A lock for the next critical section, and how long to wait for it: not long for one that is held for long, or everybody would soon wait for that one.
    pub(super) fn choose(&self, chance: &mut Rng) -> (usize, Duration) {
        match chance.u8(..12) {
            0 => (SLOW, SLOW_WAIT),
            _ => (chance.usize(1..self.keys.len()), WAIT),
        }
    }

    /// How long to hold a lock.
    pub(super) fn hold(&self, key: usize, chance: &mut Rng) -> Duration {
        // Sometimes so long that it must be renewed.
        if key == SLOW && chance.bool() {
            return self.cx.short().mul_f64(1.2);
        }
        Duration::from_micros(chance.u64(0..12_000))
    }

    /// Everybody finishes what was begun.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}
