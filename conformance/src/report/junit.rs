//! JUnit XML, as build servers read it.

use std::fmt::Write;

use super::html::escape;
use super::{Backend, Checked, Result, counts, summary};

/// A document for one backend: a test suite with a test case for each check.
pub(super) fn document(backend: &Backend) -> String {
    let [_, failed, refused] = counts(&backend.checks);
    let totals = format!(
        r#"tests="{}" failures="{failed}" errors="0" skipped="{refused}" time="{}""#,
        backend.checks.len(),
        seconds(backend.took_ms),
    );
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(xml, r#"<testsuites name="distlock-conformance" {totals}>"#);
    let name = escape(&backend.name);
    let _ = writeln!(xml, r#"  <testsuite name="{name}" {totals} timestamp="{}">"#, moment(backend.started_unix_ms));
    let properties = [("level", backend.level.as_str()), ("seed", &backend.seed)];
    xml.push_str("    <properties>\n");
    for (name, value) in properties {
        let _ = writeln!(xml, r#"      <property name="{name}" value="{}"/>"#, escape(value));
    }
    xml.push_str("    </properties>\n");
    for check in &backend.checks {
        case(&mut xml, &backend.name, check);
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

fn case(xml: &mut String, backend: &str, check: &Checked) {
    let word = check.name.rsplit("::").next().unwrap_or_default();
    let class = format!("{backend}.{}", check.clause);
    let [class, word, clause] = [class.as_str(), word, &check.clause].map(escape);
    let _ = write!(xml, r#"    <testcase classname="{class}" name="{word}" time="{}""#, seconds(check.took_ms));
    match &check.result {
        Result::Passed => xml.push_str("/>\n"),
        Result::Refused(reason) => {
            let _ = writeln!(xml, ">\n      <skipped message=\"{}\"/>\n    </testcase>", escape(reason));
        }
        Result::Failed(failed) => {
            let (message, text) = (escape(&failed.message), escape(&summary::explained(check, failed)));
            let _ = writeln!(
                xml,
                ">\n      <failure type=\"{clause}\" message=\"{message}\">{text}</failure>\n    </testcase>"
            );
        }
    }
}

fn seconds(millis: f64) -> String {
    format!("{:.3}", millis / 1e3)
}

/// A moment as ISO 8601 in UTC, to the second.
pub(super) fn moment(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    // Days since 0000-03-01, so that a leap day ends its year.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::moment;

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
    }
}
