//! Looking again for a moment before a task is suspended.
//!
//! A lock that is handed over to a thread that sleeps costs the time to wake it: microseconds, as much as dozens of acquisitions. Two threads that want a key again and again
//! would hand it to each other asleep, for ever. So whoever finds a key in the hands of *another* thread, with nobody waiting for it, looks a few times more before it joins
//! the queue, and where keys change hands quickly a few times more before its task is suspended.
//!
//! This is a matter of speed alone. The queue stays as it is: nobody overtakes a waiter (C15), and nobody who waits is left unwoken, because whoever looks by itself leaves a waker under the
//! lock of the shard before it stops. Tasks of the thread that has the key never look again, so nobody does on a runtime of one thread; nor does anybody on a machine with one core. Where
//! it was in vain a few times in a row, because keys are held for longer, it is seldom tried.

use std::hint::spin_loop;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, yield_now};

/// First so many rounds of 1, 2, 4, … pauses of the processor, each pause 10 to 60 ns: 1 µs at most. Enough if the other thread is running.
const PAUSES: u32 = 4;
/// Then the processor is offered to others so many times, because the other thread may need this very core. With nobody to take it, that is less than 1 µs each time.
const YIELDS: u32 = 10;
/// So many failures in a row, and it is tried once in so many times.
const ENOUGH: u32 = 4;
const SELDOM: u32 = 64;

/// A thread, as far as it matters whether it is this one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread(usize);

impl Thread {
    #[inline]
    pub(super) fn this() -> Self {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| Self(ptr::from_ref(here).addr()))
    }
}

/// Which turn of a shard has ended last, for those who look from outside of its lock. On a cache line of its own, or their looks would slow down the holder.
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

/// How often to look.
#[derive(Default)]
pub(super) struct Patience {
    rounds: u32,
}

impl Patience {
    /// Waits for something to end after what was seen, and says whether something did; false once it is used up.
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

/// Whether looking again has been worth it of late.
#[derive(Default)]
pub(super) struct Experience {
    failures: u32,
}

impl Experience {
    /// Whether to try.
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
    fn patience_ends_unless_something_does() {
        let ended = LastEnded::default();
        let mut patience = Patience::default();
        ended.set(1);
        let looks = (0..1_000).take_while(|_| patience.wait(&ended, 0)).count();
        assert_eq!(
            looks,
            (PAUSES + YIELDS) as usize,
            "a key that changes hands is looked at after each pause, and no more often"
        );
        assert!(!Patience::default().wait(&ended, 1));
    }

    #[test]
    fn what_is_in_vain_is_seldom_tried() {
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
    fn threads_are_told_apart() {
        let here = Thread::this();
        assert!(here == Thread::this());
        assert!(std::thread::scope(|scope| scope.spawn(|| here != Thread::this()).join().unwrap()));
    }
}
