//! Spinning for a moment before a task is suspended.
//!
//! Handing a lock over to a thread that sleeps costs the time to wake it: microseconds, as much as
//! dozens of acquisitions. Two threads that want a key again and again would hand it over asleep
//! each time. So a caller that finds a key held by *another* thread, with no waiter, looks a few
//! more times before it joins the queue.
//!
//! This affects speed alone. The queue stays as it is: no caller overtakes a waiter (C15). Tasks of
//! the thread that has the key never spin. So no task spins on a runtime of one thread, nor on a
//! machine with one core. Where spinning failed a few times in a row, because keys are held for
//! longer, it is seldom tried.

use std::hint::spin_loop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, yield_now};

/// The first rounds: 1, 2, 4, … pauses of the processor, each pause 10 to 60 ns, 1 µs at most in
/// all. Enough if the other thread is running.
const PAUSES: u32 = 4;
/// The rounds after those: each offers the processor to other threads, because the other thread may
/// need this very core. If none takes it, a round is less than 1 µs.
const YIELDS: u32 = 10;
/// After this many failures in a row spinning is tried once in [`SELDOM`] times.
const ENOUGH: u32 = 4;
const SELDOM: u32 = 64;

/// What a caller with a waker does if another one has the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SpinPolicy {
    /// Spin if experience advises it; else join the queue.
    IfAdvised,
    /// Continue to spin as long as the key has no waiter.
    Spinning,
    /// Join the queue.
    Exhausted,
}

/// The identity of a thread, in four bytes of an address. Two threads that seem to be one do not
/// spin for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread(u32);

impl Thread {
    #[inline]
    pub(super) fn this() -> Self {
        thread_local!(static HERE: u8 = const { 0 });
        // The thread-local memory of each thread is larger than 16 bytes.
        HERE.with(|here| Self((ptr::from_ref(here).addr() >> 4) as u32))
    }
}

/// The turn of a shard that ended last, for callers that spin outside of its lock. It has a cache
/// line of its own, so that their reads do not slow down the holder.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct LastEnded(AtomicU64);

impl LastEnded {
    #[inline]
    pub(super) fn set(&self, token: u64) {
        self.0.store(token, Ordering::Release);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The rounds of spinning that are left.
#[derive(Default)]
pub(super) struct SpinBudget {
    rounds: u32,
}

impl SpinBudget {
    /// Spins until a turn other than `seen` ends. Returns `false` if the budget is used up before.
    pub(super) fn wait(&mut self, ended: &LastEnded, seen: u64) -> bool {
        while self.rounds < PAUSES + YIELDS {
            if self.rounds < PAUSES {
                (0..1 << self.rounds).for_each(|_| spin_loop());
            } else {
                yield_now();
            }
            self.rounds += 1;
            if ended.get() != seen {
                return true;
            }
        }
        false
    }
}

/// Whether spinning has recently succeeded.
#[derive(Default)]
pub(super) struct Experience {
    failures: u32,
}

impl Experience {
    /// Returns whether to try.
    pub(super) fn advises(&mut self) -> bool {
        if self.failures >= ENOUGH {
            self.failures += 1;
            if self.failures < ENOUGH + SELDOM {
                return false;
            }
            self.failures = ENOUGH;
        }
        several_cores()
    }

    pub(super) fn learn(&mut self, success: bool) {
        if success {
            self.failures = 0;
        } else if self.failures < ENOUGH {
            self.failures += 1;
        }
    }
}

fn several_cores() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| available_parallelism().is_ok_and(|cores| cores.get() > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_unless_a_turn_does() {
        let ended = LastEnded::default();
        let mut budget = SpinBudget::default();
        ended.set(1);
        let looks = (0..1_000).take_while(|_| budget.wait(&ended, 0)).count();
        assert_eq!(
            looks,
            (PAUSES + YIELDS) as usize,
            "a key that changes hands is looked at after each pause, and no more often"
        );
        assert!(!SpinBudget::default().wait(&ended, 1));
    }

    #[test]
    fn what_has_no_effect_is_seldom_tried() {
        if !several_cores() {
            return;
        }
        let mut experience = Experience::default();
        let tried = |experience: &mut Experience| {
            let mut tried = 0;
            for _ in 0..SELDOM * 10 {
                if experience.advises() {
                    tried += 1;
                    experience.learn(false);
                }
            }
            tried
        };
        assert_eq!(tried(&mut experience), ENOUGH + 9);
        experience.learn(true);
        assert!(experience.advises());
    }

    #[test]
    fn threads_are_distinguished() {
        let here = Thread::this();
        assert!(here == Thread::this());
        assert!(std::thread::scope(|scope| scope.spawn(|| here != Thread::this()).join().unwrap()));
    }
}
