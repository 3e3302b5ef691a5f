//! JUnit XML for build servers.

use std::fmt::Write;

use super::text::{escape, moment};
use super::{Backend, Checked, Result, counts, summary};

/// Writes a document for one backend: a test suite with a test case for each check.
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
    let properties = properties.map(|(name, value)| (name.to_owned(), value));
    let weaker = backend.weaker.iter().map(|weaker| (format!("weaker {}", weaker.clause), weaker.why.as_str()));
    xml.push_str("    <properties>\n");
    for (name, value) in properties.into_iter().chain(weaker) {
        let _ = writeln!(xml, r#"      <property name="{}" value="{}"/>"#, escape(&name), escape(value));
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
