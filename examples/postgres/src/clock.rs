//! The units of time: whole microseconds of the server's clock, since 1970.

use std::time::{Duration, SystemTime};

use distlock_engine::store::StoreTime;

/// The longest duration that is sent: a hundred years, so that no sum leaves PostgreSQL's range.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A duration to send. It is at least a microsecond, because a lease must not be empty.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.min(LONGEST).as_micros()).unwrap_or(i64::MAX).max(1)
}

/// A duration that was received.
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A reading of the server's clock.
pub(crate) fn reading(micros: i64) -> StoreTime {
    StoreTime::since_origin(duration(micros))
}

/// A reading for people.
pub(crate) fn wall(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + duration(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_stay_in_range() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_millis(3)), 3000);
        assert_eq!(duration(micros(Duration::MAX)), LONGEST);
        assert_eq!(duration(-1), Duration::ZERO);
    }
}
