//! A hand-over chain through four processes, event by event.

use std::fmt::Write;
use std::time::Duration;

use crate::Outcome;
use crate::clock::{Nanos, millis};
use crate::deployment::Deployment;
use crate::fleet;
use crate::locks::{Contender, Settings};
use crate::worker::protocol::{Contend, Report, Spec, Task};

const PROCESSES: usize = 4;
const HOLD_MS: u64 = 10;
const LENGTH: Duration = Duration::from_millis(400);

/// Runs a chain and prints it, one line per event.
pub async fn run(deployment: &Deployment) -> Outcome<String> {
    let task = Contend {
        key: "trace".to_owned(),
        waiters: 1,
        hold_ms: HOLD_MS,
        every_turn: true,
        log: true,
        ..Contend::default()
    };
    let spec = Spec {
        who: Contender::Ours,
        uri: deployment.uri().to_owned(),
        settings: Settings::new(false),
        task: Task::Contend(task),
    };
    let (window, reports) = fleet::run(&vec![spec; PROCESSES], LENGTH).await?;
    let mut text = format!(
        "{PROCESSES} processes (A to D), one waiter each, one key, hold {HOLD_MS} ms, in-process hand-off off.\n\
         ms after the start | process | event\n\n"
    );
    for (at, process, event) in events(&reports, window.start) {
        let _ = writeln!(text, "{:9.3}  {process}  {event}", millis(at));
    }
    Ok(text)
}

fn events(reports: &[Report], start: Nanos) -> Vec<(Nanos, char, String)> {
    let mut events = Vec::new();
    for (report, process) in reports.iter().zip('A'..) {
        let mut add = |at: Nanos, event: String| {
            if at >= start {
                events.push((at - start, process, event));
            }
        };
        for (at, command) in &report.log {
            add(*at, format!("            {command}"));
        }
        for turn in report.waiters.iter().flat_map(|waiter| &waiter.turns) {
            add(turn.requested, "requests".to_owned());
            let waited = millis(turn.acquired - turn.requested);
            let token = turn.token.unwrap_or_default();
            add(turn.acquired, format!("HOLDS       token {token}, after {waited:.1} ms"));
            add(turn.release, format!("releases    token {token}"));
        }
    }
    events.sort();
    events
}
