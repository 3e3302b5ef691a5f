//! Whether a run kept its promises, and the last words of every example.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use crate::interrupt::INTERRUPTED;

/// The width of a terminal, which no line of output exceeds.
const WIDTH: usize = 100;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It was complete, and kept every promise.
    Proved,
    /// It broke a promise.
    Broken,
    /// Ctrl-C ended it before its end. It had broken no promise by then.
    Interrupted,
}

/// Success only if everything was proved.
impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Proved => Self::SUCCESS,
            Outcome::Broken => Self::FAILURE,
            Outcome::Interrupted => Self::from(INTERRUPTED),
        }
    }
}

/// The promises of one run.
#[derive(Debug)]
pub struct Checks {
    is_complete: bool,
    complaints: Vec<String>,
}

impl Checks {
    /// Starts without a complaint. A run that Ctrl-C has ended early is not complete.
    #[must_use]
    pub fn new(is_complete: bool) -> Self {
        Self { is_complete, complaints: Vec::new() }
    }

    /// Checks a promise that holds at any time.
    pub fn always(&mut self, is_kept: bool, complaint: impl Into<String>) {
        self.complaints.extend((!is_kept).then(|| complaint.into()));
    }

    /// Checks a promise about the whole run, which an incomplete one cannot keep.
    pub fn at_the_end(&mut self, is_kept: bool, complaint: impl Into<String>) {
        self.always(is_kept || !self.is_complete, complaint);
    }

    /// Prints a sum.
    pub fn show(&self, of: &str, sum: impl Display) {
        println!("  {of:<15} {sum}");
    }

    /// Prints a count that must be 0 at any time.
    pub fn none(&mut self, of: &str, count: usize, complaint: &str) {
        self.show(of, count);
        self.always(count == 0, format!("{count} {complaint}"));
    }

    /// Prints how long after a process was stopped another one took over, which it must have done
    /// soon after the end of the lease. Where longer leases are needed, everything takes longer.
    pub fn soon(&mut self, of: &str, time: Option<Duration>, lease: Duration, complaint: &str) {
        self.show(of, format_args!("{}, with leases of {} s", millis(time), lease.as_secs()));
        self.at_the_end(time.is_some_and(|time| time <= lease * 9 / 4), complaint);
    }

    /// The promises that were broken.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The outcome, and the words for it. `proved` says what a complete run has proved.
    pub fn verdict(&self, proved: &str) -> (Outcome, String) {
        match (self.is_complete, self.complaints.as_slice()) {
            (true, []) => (Outcome::Proved, wrapped(&format!("as promised: {proved}"), "  ")),
            (false, []) => {
                let text = "interrupted before the end: no promise was broken, and not all were tested";
                (Outcome::Interrupted, text.to_owned())
            }
            (_, complaints) => {
                let text = format!("NOT as promised: {}", complaints.join("; "));
                (Outcome::Broken, wrapped(&text, "  "))
            }
        }
    }

    /// Prints the verdict, and returns the outcome.
    pub fn conclude(&self, proved: &str) -> Outcome {
        let (outcome, text) = self.verdict(proved);
        println!("\n{text}");
        outcome
    }
}

/// A time in milliseconds, for the output; a dash if there is none.
#[must_use]
pub fn millis(time: Option<Duration>) -> String {
    time.map_or("–".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
}

/// Wraps a text at spaces. Every line but the first begins with `indent`.
#[must_use]
pub fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for (index, word) in text.split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && width + 1 + length > WIDTH {
            lines.push('\n');
            lines.push_str(indent);
            width = indent.len();
        } else if index > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_run_is_measured_by_everything() {
        let mut checks = Checks::new(true);
        checks.always(true, "a");
        checks.at_the_end(true, "b");
        assert_eq!(checks.verdict("all is well"), (Outcome::Proved, "as promised: all is well".to_owned()));
        checks.at_the_end(false, "c");
        checks.always(false, "d");
        assert_eq!(checks.verdict(""), (Outcome::Broken, "NOT as promised: c; d".to_owned()));
    }

    #[test]
    fn an_interrupted_run_is_measured_by_what_holds_at_any_time() {
        let mut checks = Checks::new(false);
        checks.at_the_end(false, "a");
        assert_eq!(checks.verdict("").0, Outcome::Interrupted);
        checks.always(false, "b");
        assert_eq!(checks.verdict(""), (Outcome::Broken, "NOT as promised: b".to_owned()));
    }

    #[test]
    fn lines_are_wrapped_at_spaces() {
        assert_eq!(wrapped("", "  "), "");
        assert_eq!(wrapped("a b", "  "), "a b");
        let (long, word) = ("x".repeat(96), "y".repeat(120));
        assert_eq!(wrapped(&format!("{long} a b c {word}"), "  "), format!("{long} a b\n  c\n  {word}"));
    }
}
