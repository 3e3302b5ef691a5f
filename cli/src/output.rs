//! What is printed: tables for people on a terminal, one JSON object per line elsewhere.

use std::fmt;
use std::io::{IsTerminal, Write};

use clap::{ArgAction, Args};
use distlock::Printable;
use serde_json::Value;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// The options that choose the form of the output.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print one JSON object per line, also on a terminal
    #[arg(long, global = true, conflicts_with = "human")]
    pub(crate) json: bool,
    /// Print tables, also where the output is no terminal
    #[arg(long, global = true)]
    pub(crate) human: bool,
    /// Log to standard error what the command connects to and waits for, which token it gets, and
    /// what fails and is repeated. Twice: also each step of the library. Never a password
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Human,
    Json,
}

impl Format {
    /// Chooses the form: a flag decides, or else whether standard output is a terminal.
    pub(crate) fn choose(args: &OutputArgs) -> Self {
        Self::of(args.json, args.human, std::io::stdout().is_terminal())
    }

    fn of(json: bool, human: bool, terminal: bool) -> Self {
        if json || (!human && !terminal) { Self::Json } else { Self::Human }
    }
}

/// Writes the log lines of this program and of the library to standard error: none with 0, with 1
/// those of level `INFO` and above, with more also those of level `DEBUG`. Lines of other crates,
/// such as the driver, are not written: they could have secrets.
pub(crate) fn log(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => Level::INFO,
        _ => Level::DEBUG,
    };
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    // The names of all packages begin so.
    let ours = Targets::new().with_target("distlock", level);
    tracing_subscriber::registry().with(lines.with_filter(ours)).init();
}

/// Returns whether standard output shows colours: it is a terminal, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Says something on standard error, in one line. A terminal that is gone does not hear it.
pub(crate) fn say(text: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "distlock: {}", Printable(text));
}

/// Prints a line, and flushes it: the reader may be a program that reacts to it.
pub(crate) fn line(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Prints one JSON object in a line.
pub(crate) fn json(object: &Value) -> std::io::Result<()> {
    line(&object.to_string())
}

/// A table with a line of headings.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).into()] }
    }

    /// Adds a row. Control characters are escaped.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| Printable(cell).to_string()).collect());
    }

    /// Returns the lines: each column as wide as its widest cell, two spaces between columns, and
    /// no spaces at the end.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Returns lines of name and value, the values below each other.
pub(crate) fn aligned(lines: &[(&str, String)]) -> String {
    let lines = lines.iter().map(|(name, value)| format!("{:10}  {}", Printable(name).to_string(), Printable(value)));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_decides_the_form_before_the_terminal() {
        for (json, human, terminal, format) in [
            (false, false, true, Format::Human),
            (false, false, false, Format::Json),
            (true, false, true, Format::Json),
            (false, true, false, Format::Human),
        ] {
            assert_eq!(Format::of(json, human, terminal), format, "{json} {human} {terminal}");
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["KEY", "OWNER", "LEFT"]);
        table.row(["orders/4711".into(), "é".into(), "1 s".into()]);
        table.row(["a".into(), "web-1".into(), String::new()]);
        assert_eq!(table.render(), "KEY          OWNER  LEFT\norders/4711  é      1 s\na            web-1");
    }
}
