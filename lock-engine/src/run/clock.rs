//! The time, and how long the machine has slept.
//!
//! Deadlines are kept by the monotonic clock (rule R1 of distlock-mongo's PROTOCOL). On Linux it
//! stands still while a laptop or a virtual machine is suspended; the store's clock continues. So
//! each look at a lease also reads `CLOCK_BOOTTIME`, which counts a sleep. A sleep counts against
//! every deadline from a request that was sent before it. On other systems a sleep is not noticed,
//! and the next renewal finds a lease lost that ended meanwhile.
//!
//! The clock is read without a lock, before a sleep and after it. A sleep is noticed once per
//! process, by the first reading after it; the keepers then renew all leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Instant;

use crate::simulation;
use crate::state::time::{Now, Sleep};

/// The clocks may differ by this many nanoseconds, because they are not read at the same instant.
const TOLERANCE: u64 = 2_000_000;
/// The number of sleeps remembered. Beyond it, the oldest ones are merged.
const REMEMBERED: usize = 64;

/// Returns the instant before a request is sent.
pub(crate) fn sending() -> Instant {
    // Notices an earlier sleep first, so that it does not count against this instant.
    notice(Instant::now());
    Instant::now()
}

/// Reads the clocks; cheap unless the machine has slept.
fn notice(now: Instant) {
    if simulation::is_simulated() {
        return;
    }
    if let Some(boot) = boottime::read() {
        with(|sleeps| sleeps.look(boot, now.into_std(), || (boottime::read(), std::time::Instant::now())));
    }
}

/// Reads the clocks.
pub(crate) fn now() -> Now {
    let instant = Instant::now();
    notice(instant);
    Now::new(instant, with(Sleeps::noticed))
}

/// Resolves when a sleep is noticed after this call.
pub(crate) fn noticed() -> OwnedNotified {
    with(|sleeps| sleeps.wakes().notified_owned())
}

/// The sleeps of the machine that were noticed.
struct Sleeps {
    /// The first readings of both clocks: boot time in nanoseconds, and the monotonic one.
    start: OnceLock<(u64, std::time::Instant)>,
    /// The total of all sleeps, in nanoseconds.
    total: AtomicU64,
    /// The sleeps; `None` if there were none, the usual case.
    noticed: ArcSwapOption<Vec<Sleep>>,
    /// Locked while a sleep is recorded.
    noting: Mutex<()>,
    wakes: OnceLock<Arc<Notify>>,
}

impl Sleeps {
    const fn new() -> Self {
        Self {
            start: OnceLock::new(),
            total: AtomicU64::new(0),
            noticed: ArcSwapOption::const_empty(),
            noting: Mutex::new(()),
            wakes: OnceLock::new(),
        }
    }

    fn wakes(&self) -> Arc<Notify> {
        self.wakes.get_or_init(Arc::default).clone()
    }

    /// Compares the clocks. `again` reads both once more, the boot time first.
    fn look(
        &self,
        boot: Duration,
        now: std::time::Instant,
        again: impl Fn() -> (Option<Duration>, std::time::Instant),
    ) {
        // Not the caller's reading: a test may have paused that clock, and it may be hours ahead.
        let &(boot0, now0) = self.start.get_or_init(|| {
            let (boot_again, now_again) = again();
            (nanos(boot_again.unwrap_or(boot)), now_again)
        });
        let slept = |boot: Duration, now: std::time::Instant| {
            nanos(boot).saturating_sub(boot0).saturating_sub(nanos(now.saturating_duration_since(now0)))
        };
        let known = self.total.load(Ordering::Relaxed);
        if slept(boot, now) <= known + TOLERANCE {
            return;
        }
        // The thread may have been delayed between the two readings, or a test may have paused the
        // caller's clock.
        let (Some(boot), now) = again() else { return };
        let total = slept(boot, now);
        let noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.total.load(Ordering::Relaxed);
        if total <= known + TOLERANCE {
            return;
        }
        let mut noticed = self.noticed.load().as_ref().map_or_else(Vec::new, |noticed| noticed.to_vec());
        noticed.push(Sleep { noticed: Instant::now(), slept: Duration::from_nanos(total - known) });
        if noticed.len() > REMEMBERED {
            // This also counts against requests sent between the two: too much instead of too
            // little.
            let first = noticed.remove(0);
            noticed[0].slept += first.slept;
        }
        self.noticed.store(Some(Arc::new(noticed)));
        self.total.store(total, Ordering::Release);
        drop(noting);
        self.wakes().notify_waiters();
    }

    /// Returns the sleeps; `None` if there were none.
    fn noticed(&self) -> Option<Arc<Vec<Sleep>>> {
        // One atomic load if there were none.
        if self.total.load(Ordering::Acquire) == 0 { None } else { self.noticed.load_full() }
    }
}

/// Returns a duration of less than 584 years in nanoseconds.
fn nanos(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

#[cfg(not(test))]
fn with<R>(read: impl FnOnce(&Sleeps) -> R) -> R {
    static SLEEPS: Sleeps = Sleeps::new();
    read(&SLEEPS)
}

/// Each unit test has a machine of its own.
#[cfg(test)]
fn with<R>(read: impl FnOnce(&Sleeps) -> R) -> R {
    std::thread_local! {
        static SLEEPS: Sleeps = const { Sleeps::new() };
    }
    SLEEPS.with(read)
}

mod boottime {
    use std::time::Duration;

    /// Returns the time since the machine was started, sleeps included; `None` where it is unknown.
    #[cfg(target_os = "linux")]
    pub(crate) fn read() -> Option<Duration> {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        Some(Duration::new(seconds, nanos) + pretended())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn read() -> Option<Duration> {
        None
    }

    #[cfg(all(target_os = "linux", not(test)))]
    const fn pretended() -> Duration {
        Duration::ZERO
    }

    #[cfg(all(target_os = "linux", test))]
    fn pretended() -> Duration {
        super::tests::PRETENDED.get()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    std::thread_local! {
        pub(crate) static PRETENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    /// Simulates a sleep of this thread's machine, by its boot time.
    #[cfg(target_os = "linux")]
    pub(crate) fn sleep(duration: Duration) {
        notice(Instant::now());
        PRETENDED.set(PRETENDED.get() + duration);
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[cfg(target_os = "linux")]
    #[tokio::test(start_paused = true)]
    async fn a_sleep_counts_against_what_was_sent_before_it() {
        let before = sending();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(now().slept_since(before), Duration::ZERO, "the machine was awake");
        let woken = noticed();
        sleep(HOUR);
        let mut woken = std::pin::pin!(woken);
        assert!(futures_util::poll!(woken.as_mut()).is_pending(), "no clock was read");
        let slept = now().slept_since(before);
        woken.await;
        assert!(slept.abs_diff(HOUR) < Duration::from_secs(1), "{slept:?}");
        tokio::time::advance(Duration::from_secs(1)).await;
        let after = sending();
        assert_eq!(now().slept_since(after), Duration::ZERO);
        sleep(HOUR);
        tokio::time::advance(Duration::from_secs(1)).await;
        let (now, nearly) = (now(), HOUR - Duration::from_secs(1));
        let [before, after] = [before, after].map(|sent| now.slept_since(sent));
        assert!(before >= 2 * nearly && after >= nearly && after < 2 * nearly);
    }

    #[test]
    fn a_delayed_thread_is_no_sleep() {
        let sleeps = Sleeps::new();
        let now = std::time::Instant::now();
        sleeps.look(HOUR, now, || (Some(HOUR), now));
        // Two seconds between the two readings of the caller, none when they are read again.
        let later = now + Duration::from_secs(10);
        let boot = HOUR + Duration::from_secs(12);
        sleeps.look(boot, later, || (Some(boot), later + Duration::from_secs(2)));
        assert_eq!(sleeps.noticed(), None);
    }

    #[test]
    fn a_paused_clock_that_is_ahead_is_no_sleep_of_another() {
        let sleeps = Sleeps::new();
        let now = std::time::Instant::now();
        // The first reader has advanced its own clock by an hour.
        sleeps.look(HOUR, now + HOUR, || (Some(HOUR), now));
        let later = Duration::from_secs(1);
        sleeps.look(HOUR + later, now + later, || (Some(HOUR + later), now + later));
        assert_eq!(sleeps.noticed(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn many_sleeps_are_never_too_few() {
        let sleeps = Sleeps::new();
        let (mut boot, now) = (HOUR, std::time::Instant::now());
        sleeps.look(boot, now, || (Some(boot), now));
        let first = Instant::now();
        for _ in 0..3 * REMEMBERED {
            tokio::time::advance(Duration::from_secs(1)).await;
            boot += HOUR;
            sleeps.look(boot, now, || (Some(boot), now));
        }
        let now = Now::new(Instant::now(), sleeps.noticed());
        assert_eq!(now.slept_since(first), HOUR * u32::try_from(3 * REMEMBERED).unwrap());
        assert_eq!(now.slept_since(now.instant()), Duration::ZERO);
    }
}
