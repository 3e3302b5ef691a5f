//! A clock that all processes of the machine share, and that does not stand still while the machine
//! sleeps, where there is one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Returns the time since the machine was started.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
    Duration::new(seconds, nanos)
}
