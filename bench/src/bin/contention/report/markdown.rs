//! The pages.

use std::fmt::Write;

use super::machine::Machine;
use super::{Figure, Results};

/// Returns the page of the verdicts.
pub fn page(results: &Results) -> String {
    let mut page = String::from("# Benchmark results\n\n");
    page.push_str(&machine(&results.machine));
    if results.quick {
        page.push_str("\n**Quick run**: rounds are few and short, so the figures scatter.\n");
    }
    page.push_str("\n## Targets\n\n");
    page.push_str(
        "| figure | what | distlock | compared with | ratio | target | reached |\n|---|---|---|---|---|---|---|\n",
    );
    for figure in &results.figures {
        verdicts(&mut page, figure);
    }
    page
}

/// Returns the page of everything that was measured.
pub fn measured(results: &Results) -> String {
    let mut page = String::from(
        "# Everything measured\n\nMedians over the rounds; the least and the greatest round in parentheses.\n",
    );
    for figure in &results.figures {
        details(&mut page, figure);
    }
    page
}

fn machine(machine: &Machine) -> String {
    let Machine { date, processor, cores, memory_gib, system, rustc, mongodb, members, postgresql, crates } = machine;
    let postgresql = postgresql.as_ref().map_or_else(String::new, |server| format!("; PostgreSQL {server}"));
    format!(
        "{date}; {processor}, {cores} cores for clients and servers together, {memory_gib} GiB, {system}; {rustc}; \
         MongoDB {mongodb}, a replica set of {members} members on the same machine{postgresql}.\n\n{}.\n",
        crates.join(", ")
    )
}

fn verdicts(page: &mut String, figure: &Figure) {
    let Figure { id, title, .. } = figure;
    if let Some(failure) = &figure.failure {
        let _ = writeln!(page, "| {id} | {title} | – | – | – | – | **not measured**: {} |", cell(failure));
    }
    for verdict in &figure.verdicts {
        let (reference, ratio) = match (&verdict.reference, verdict.ratio) {
            (Some((who, value)), Some(ratio)) => (format!("{who}: {}", amount(*value, verdict.unit)), number(ratio)),
            _ => ("–".to_owned(), "–".to_owned()),
        };
        let _ = writeln!(
            page,
            "| {id} | {} | {} | {reference} | {ratio} | {} | {} |",
            verdict.what,
            amount(verdict.ours, verdict.unit),
            verdict.target.as_deref().unwrap_or("–"),
            match verdict.reached {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "–",
            },
        );
    }
}

fn details(page: &mut String, figure: &Figure) {
    let _ = write!(page, "\n## {} {}\n\n`{}`\n\n", figure.id, figure.title, figure.command);
    if !figure.measurements.is_empty() {
        page.push_str("| contender | what | value |\n|---|---|---|\n");
    }
    for one in &figure.measurements {
        let least = one.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = one.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread =
            if one.rounds.len() > 1 { format!(" ({}–{})", number(least), number(greatest)) } else { String::new() };
        let _ = writeln!(page, "| {} | {} | {}{spread} |", one.who, one.what, amount(one.median, one.unit));
    }
    for note in &figure.notes {
        let _ = write!(page, "\n* {}", cell(note));
    }
    if !figure.notes.is_empty() {
        page.push('\n');
    }
}

fn amount(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// About three digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "–".to_owned(),
        0.0 => "0".to_owned(),
        size if size >= 100.0 => grouped(value.round() as i64),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Nothing that ends a cell.
fn cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let written = [0.0, 0.0123, 0.456, 7.891, 45.67, 678.9, 1_234_567.0, -1234.0, f64::NAN].map(number);
        assert_eq!(written, ["0", "0.012", "0.46", "7.89", "45.7", "679", "1,234,567", "-1,234", "–"]);
    }
}
