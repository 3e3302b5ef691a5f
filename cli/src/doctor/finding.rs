//! What an examination found. No I/O.

use serde_json::{Value, json};

/// How good or bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Ok,
    /// Locks work, but worse or less safely than they could.
    Warning,
    /// Locks do not work, or their promises do not hold.
    Wrong,
}

impl Verdict {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        }
    }

    /// Returns the escape sequence that begins its colour: green, yellow or red.
    pub(crate) const fn colour(self) -> &'static str {
        match self {
            Self::Ok => "\u{1b}[32m",
            Self::Warning => "\u{1b}[33m",
            Self::Wrong => "\u{1b}[31m",
        }
    }
}

/// One finding: what was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    /// What to do; empty if nothing is to be done.
    pub(crate) advice: String,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: String::new() }
    }

    pub(crate) fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: advice.into() }
    }

    pub(crate) fn wrong(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Wrong, found: found.into(), advice: advice.into() }
    }

    /// Returns the finding as a JSON object.
    pub(crate) fn object(&self) -> Value {
        json!({
            "check": self.check,
            "verdict": self.verdict.as_str(),
            "found": self.found,
            "advice": (!self.advice.is_empty()).then_some(&self.advice),
        })
    }

    /// Returns the finding as a line, and the advice as a second one.
    pub(crate) fn lines(&self) -> String {
        let mut lines = format!("{:8} {:13} {}", self.verdict.as_str(), self.check, self.found);
        if !self.advice.is_empty() {
            lines.push_str(&format!("\n{:22} → {}", "", self.advice));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_to_do() {
        let finding = Finding::warning("version", "MongoDB 6.0.5", "upgrade");
        assert_eq!(finding.lines(), "warning  version       MongoDB 6.0.5\n                       → upgrade");
        assert_eq!(finding.object()["advice"], "upgrade");
        assert_eq!(Finding::ok("ping", "1 ms").object()["advice"], Value::Null);
        assert!(Verdict::Ok < Verdict::Warning && Verdict::Warning < Verdict::Wrong);
    }
}
