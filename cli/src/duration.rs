//! Durations on the command line and in tables. No I/O.

use std::time::Duration;

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Reads a whole number and its unit: `500ms`, `30s`, `5m`, `2h`.
///
/// # Errors
/// A text that says how durations are written.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let millis = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    millis.map(Duration::from_millis).ok_or_else(|| "write a number and its unit: 500ms, 30s, 5m or 2h".to_owned())
}

/// Returns a duration as people read it, with about three digits.
pub(crate) fn show(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..100_000 => format!("{:.2} ms", duration.as_secs_f64() * 1e3),
        100_000..1_000_000 => format!("{:.0} ms", duration.as_secs_f64() * 1e3),
        1_000_000..120_000_000 => format!("{:.1} s", duration.as_secs_f64()),
        _ => format!("{} min", duration.as_secs() / 60),
    }
}

/// Returns whole milliseconds for JSON.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns milliseconds with their fraction for JSON.
pub(crate) fn fractional_millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-1s", "1.5s", "1 s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_with_three_digits() {
        for (micros, shown) in [
            (7, "7 µs"),
            (1_234, "1.23 ms"),
            (123_456, "123 ms"),
            (1_234_567, "1.2 s"),
            (119_000_000, "119.0 s"),
            (120_000_000, "2 min"),
        ] {
            assert_eq!(show(Duration::from_micros(micros)), shown);
        }
    }
}
