//! How long the caller is going to wait, as requests say it.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// What the number in a deadline header counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadlineUnit {
    /// Seconds, with or without a fraction: `1.5`.
    Seconds,
    /// Whole milliseconds, as in Envoy's `x-envoy-expected-rq-timeout-ms`.
    Milliseconds,
}

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The shortest time that any of the headers names. A value that cannot be read says nothing.
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

/// How long a gRPC caller is going to wait, from the header `grpc-timeout` of its request. None
/// without one that can be read.
///
/// [`LockLayer`](crate::LockLayer) does this by itself; it is for
/// [`KeyOf::deadline`](crate::keyed::KeyOf::deadline) of requests that carry headers, such as
/// tonic's: `grpc_timeout(request.metadata().as_ref())`.
#[must_use]
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    parse_grpc(headers.get(GRPC_TIMEOUT)?)
}

/// One to eight digits and a unit, after the gRPC protocol over HTTP/2.
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
        assert_eq!(of(&[("x-timeout", "1.5")], &[]), None, "only what was asked for");
        let all = [("grpc-timeout", "2S"), ("x-timeout", "1.5"), ("x-timeout-ms", "900")];
        assert_eq!(of(&all, &more), Some(Duration::from_millis(900)));
        for bad in ["-1", "NaN", "inf", "soon", "1e300"] {
            assert_eq!(of(&[("x-timeout", bad)], &more), None, "{bad:?}");
        }
    }
}
