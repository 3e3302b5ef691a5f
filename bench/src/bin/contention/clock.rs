//! The clock that all processes of a machine share, and this process's use of the processors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`: readings of different processes of one machine can be
/// subtracted from each other, those of `std::time::Instant` cannot be passed on.
pub type Nanos = u64;

/// Now.
pub fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Processor time that this process has used, in all its threads.
pub fn cpu() -> Nanos {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// What a time of the wall clock, in milliseconds since 1970, is on the monotonic clock. Servers of
/// this machine read the same wall clock.
pub fn from_wall_millis(millis: i64) -> Nanos {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let ahead = i128::from(millis) * 1_000_000 - wall as i128;
    (i128::from(now()) + ahead).max(0) as Nanos
}

/// Waits until a reading of the clock.
pub async fn sleep_until(at: Nanos) {
    tokio::time::sleep(Duration::from_nanos(at.saturating_sub(now()))).await;
}

/// In milliseconds.
pub fn millis(nanos: Nanos) -> f64 {
    nanos as f64 / 1e6
}

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
