//! The results in the terminal.

use std::fmt;

use super::{Backend, Checked, Failed, Weaker, counts, place};

/// How many of the last calls are shown if no particular calls show the failure.
const LAST_CALLS: usize = 12;

/// Writes a failure with all that is needed to understand and repeat it.
pub(crate) fn explained(checked: &Checked, failed: &Failed) -> String {
    let mut text = format!("{} ({})\n", failed.message, failed.location);
    for call in &failed.shown_by {
        text.push_str(&format!("    {call}\n"));
    }
    if failed.shown_by.is_empty() && !failed.history.is_empty() {
        let last = &failed.history[failed.history.len().saturating_sub(LAST_CALLS)..];
        text.push_str(&format!("the last {} of {} calls:\n", last.len(), failed.history.len()));
        for call in last {
            text.push_str(&format!("    {call}\n"));
        }
    }
    for line in &failed.renewals {
        text.push_str(&format!("renewals: {line}\n"));
    }
    text.push_str(&format!("clause:  {} – {}\n", checked.clause, checked.text));
    text.push_str(&format!("promise: {}\n", checked.promise));
    text.push_str(&format!("seed:    {}\nagain:   {}", failed.seed, failed.command));
    text
}

/// A table of clauses and backends, with the number of checks that passed, failed and were refused,
/// and what the backends declare to be weaker.
pub(crate) struct Summary<'a>(pub(crate) &'a [Backend]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut clauses: Vec<&str> =
            self.0.iter().flat_map(|backend| &backend.checks).map(|check| check.clause.as_str()).collect();
        clauses.sort_by_cached_key(|clause| place(clause));
        clauses.dedup();

        let header = ["clause"].into_iter().chain(self.0.iter().map(|backend| backend.name.as_str()));
        let mut rows: Vec<Vec<String>> = vec![header.map(str::to_owned).collect()];
        for clause in clauses {
            let cells = self.0.iter().map(|backend| cell(backend, |check| check.clause == clause));
            rows.push([clause.to_owned()].into_iter().chain(cells).collect());
        }
        let all = self.0.iter().map(|backend| cell(backend, |_| true));
        rows.push(["all".to_owned()].into_iter().chain(all).collect());

        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: Vec<usize> = (0..=self.0.len()).map(width).collect();
        let last = rows.len() - 1;
        for (number, row) in rows.iter().enumerate() {
            if number == 1 || number == last {
                let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "{}", rule.join("-|-"))?;
            }
            let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}"));
            let line = cells.collect::<Vec<_>>().join(" | ");
            f.write_str(line.trim_end())?;
            if number < last {
                f.write_str("\n")?;
            }
        }
        for backend in self.0 {
            for Weaker { clause, why } in &backend.weaker {
                write!(f, "\n{} keeps {clause} in a weaker form: {why}", backend.name)?;
            }
        }
        Ok(())
    }
}

/// `3`, `2, 1 FAILED`, `1, 2 refused`.
fn cell(backend: &Backend, is_meant: impl Fn(&Checked) -> bool) -> String {
    let [passed, failed, refused] = counts(backend.checks.iter().filter(|check| is_meant(check)));
    if passed + failed + refused == 0 {
        return String::new();
    }
    let mut text = passed.to_string();
    for (count, word) in [(failed, "FAILED"), (refused, "refused")] {
        if count > 0 {
            text.push_str(&format!(", {count} {word}"));
        }
    }
    text
}
