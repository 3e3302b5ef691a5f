//! Names, texts, times and moments, as reports write them.

use time::UtcDateTime;

/// Writes a name with letters, digits, `-`, `_` and `.` only, for files and links. Different names
/// stay different.
pub(in crate::report) fn plain(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    name.chars().map(|c| if is_plain(c) { c.to_string() } else { format!(".{:x}", u32::from(c)) }).collect()
}

/// Escapes text for element content and quoted attributes, in HTML and XML.
pub(in crate::report) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(c),
            // XML cannot represent these.
            '\0'..=' ' if c != ' ' => safe.push('\u{fffd}'),
            '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Writes a time in a suitable unit.
pub(in crate::report) fn time(millis: f64) -> String {
    match millis {
        ..0.001 => "0".into(),
        ..1.0 => format!("{:.0} µs", millis * 1e3),
        ..10.0 => format!("{millis:.1} ms"),
        ..1e3 => format!("{millis:.0} ms"),
        ..1.2e5 => format!("{:.1} s", millis / 1e3),
        _ => format!("{:.0} min {:.0} s", (millis / 6e4).floor(), (millis % 6e4 / 1e3).floor()),
    }
}

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;

/// Writes a moment as ISO 8601 in UTC, to the second. A moment after the year 9999 is shown as the
/// end of that year.
pub(in crate::report) fn moment(unix_ms: u64) -> String {
    let seconds = (unix_ms / 1000).min(LAST).cast_signed();
    let at = UtcDateTime::from_unix_timestamp(seconds).expect("a year of four digits");
    format!("{}T{:02}:{:02}:{:02}Z", at.date(), at.hour(), at.minute(), at.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_stay_different() {
        assert_eq!(plain("memory-direct"), "memory-direct");
        assert_eq!(plain("../a b"), ".2e.2e.2fa.20b");
        assert_ne!(plain("a.62"), plain("ab"));
    }

    #[test]
    fn nothing_escapes() {
        assert_eq!(
            escape("<a b=\"c\" d='e'>&\u{0}\u{1b}\n é\u{85}"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\u{fffd}\u{fffd}\n é\u{fffd}"
        );
    }

    #[test]
    fn times_have_units() {
        let times = [0.0, 0.25, 2.5, 250.0, 2500.0, 121_500.0].map(time);
        assert_eq!(times, ["0", "250 µs", "2.5 ms", "250 ms", "2.5 s", "2 min 1 s"]);
    }

    #[test]
    fn moments() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(moment(unix * 1000 + 999), text);
        }
        assert_eq!(moment(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
