//! How long the caller waits, as its request states it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The unit of the number in a deadline header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadlineUnit {
    /// Seconds, with or without a fraction: `1.5`.
    Seconds,
    /// Whole milliseconds, as in Envoy's `x-envoy-expected-rq-timeout-ms`.
    Milliseconds,
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns the shortest time in any of the headers. Ignores values that cannot be read.
pub(super) fn deadline(headers: &HeaderMap, more: &[(HeaderName, DeadlineUnit)]) -> Option<Duration> {
    let grpc = grpc_timeout(headers);
    let named = more.iter().filter_map(|(name, unit)| read(headers.get(name)?, *unit));
    grpc.into_iter().chain(named).min()
}

fn read(value: &HeaderValue, unit: DeadlineUnit) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    match unit {
        DeadlineUnit::Seconds => Duration::try_from_secs_f64(text.parse().ok()?).ok(),
        DeadlineUnit::Milliseconds => Some(Duration::from_millis(text.parse().ok()?)),
    }
}

/// Returns how long a gRPC caller waits, from the header `grpc-timeout` of its request. `None`
/// without a header that can be read.
///
/// [`LockLayer`](crate::LockLayer) reads this header by itself. This function is for
/// [`KeyOf::deadline`](crate::keyed::KeyOf::deadline) of requests with headers, such as tonic's:
/// `grpc_timeout(request.metadata().as_ref())`.
#[must_use]
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    parse_grpc(headers.get(GRPC_TIMEOUT)?)
}

/// Parses one to eight digits and a unit, as in the gRPC protocol over HTTP/2.
fn parse_grpc(value: &HeaderValue) -> Option<Duration> {
    let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &'static str)], more: &[(HeaderName, DeadlineUnit)]) -> Option<Duration> {
        let pairs =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        deadline(&pairs.collect(), more)
    }

    #[test]
    fn grpc_timeouts() {
        let timeout = |value| of(&[("grpc-timeout", value)], &[]);
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(timeout("3M"), Some(Duration::from_secs(180)));
        assert_eq!(timeout("4S"), Some(Duration::from_secs(4)));
        assert_eq!(timeout("5m"), Some(Duration::from_millis(5)));
        assert_eq!(timeout("6u"), Some(Duration::from_micros(6)));
        assert_eq!(timeout("00000007n"), Some(Duration::from_nanos(7)));
        for bad in ["", "S", "1", "1s", "+1S", "-1S", "123456789S", "1.5S"] {
            assert_eq!(timeout(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_nearest_deadline_counts() {
        let more = [
            (HeaderName::from_static("x-timeout"), DeadlineUnit::Seconds),
            (HeaderName::from_static("x-timeout-ms"), DeadlineUnit::Milliseconds),
        ];
        assert_eq!(of(&[("x-timeout", "1.5")], &more), Some(Duration::from_millis(1500)));
        assert_eq!(of(&[("x-timeout", "1.5")], &[]), None, "only headers that were configured");
        let all = [("grpc-timeout", "2S"), ("x-timeout", "1.5"), ("x-timeout-ms", "900")];
        assert_eq!(of(&all, &more), Some(Duration::from_millis(900)));
        for bad in ["-1", "NaN", "inf", "soon", "1e300"] {
            assert_eq!(of(&[("x-timeout", bad)], &more), None, "{bad:?}");
        }
    }
}
