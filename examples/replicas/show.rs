//! What the terminal shows: a line each second, and at the end a summary.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tokio::time::{interval, sleep};

use crate::LEASE;
use crate::board::{Answers, Board, Hold, State};
use crate::verdict::complaints;

pub(crate) async fn every_second(board: Board) {
    sleep(Duration::from_secs(1)).await;
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let line = board.change(line);
        println!("{line}");
    }
}

/// The second that is over, and begins a new one.
fn line(state: &mut State, now: Instant) -> String {
    let seconds = now.saturating_duration_since(state.start).as_secs_f64();
    let answers = std::mem::take(&mut state.this_second);
    let held: Vec<String> = (0..state.items.len()).map(|index| held(state, index, &answers, now)).collect();
    let lost = if state.locked { String::new() } else { format!("  lost {:>3}", state.lost()) };
    format!(
        "{seconds:6.1} s  ok {:>3}  queue {:>2}  wait {:>8}{lost}  {}  refused {}",
        answers.ok,
        state.queued(),
        millis(answers.waits.mean()),
        held.join("  "),
        refusals(&answers),
    )
}

/// Who was granted how many within the second, and in brackets who holds it now.
fn held(state: &State, index: usize, answers: &Answers, now: Instant) -> String {
    let item = &state.items[index];
    let mut text = item.name.clone();
    for replica in &state.replicas {
        let grants = answers.grants.get(&(index, replica.name.clone())).copied().unwrap_or(0);
        let _ = write!(text, " {}:{grants:<2}", replica.name);
    }
    let holders: Vec<String> = item.holds.iter().map(|hold| holder(hold, now)).collect();
    let _ = write!(text, " [{}]", if holders.is_empty() { "·".to_owned() } else { holders.join("+") });
    text
}

fn holder(hold: &Hold, now: Instant) -> String {
    let age = now.saturating_duration_since(hold.since).as_secs_f64();
    if hold.dead { format!("{}† {age:.1} s", hold.replica) } else { hold.replica.clone() }
}

fn refusals(answers: &Answers) -> String {
    if answers.refused.is_empty() {
        return "none".to_owned();
    }
    let all: Vec<String> = answers.refused.iter().map(|(label, count)| format!("{count} × {label}")).collect();
    all.join(", ")
}

fn millis(time: Option<Duration>) -> String {
    time.map_or("–".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
}

/// Prints the whole run; whether all was as promised.
pub(crate) fn summary(board: &Board) -> bool {
    let (text, good) = board.change(|state, now| {
        let complaints = complaints(state, LEASE, now);
        let verdict = match complaints.is_empty() {
            true => "as promised".to_owned(),
            false => format!("NOT as promised: {}", complaints.join("; ")),
        };
        let text = format!("{}\n{verdict}", describe(state, now));
        state.finished = Some((complaints.is_empty(), verdict));
        (text, complaints.is_empty())
    });
    println!("\n{text}");
    good
}

fn describe(state: &State, now: Instant) -> String {
    let mut text = String::from("  item       written  counter  lost updates  most at once  longest pause\n");
    for item in &state.items {
        let pause = millis(Some(item.longest_pause.max(item.pause(now))));
        let (lost, most) = (item.lost(), item.most_at_once);
        let _ =
            writeln!(text, "  {:<9} {:>8} {:>8} {lost:>13} {most:>13} {pause:>14}", item.name, item.writes, item.sold);
    }
    let Answers { ok, refused, waits, .. } = &state.total;
    let served: Vec<String> = state
        .replicas
        .iter()
        .map(|replica| {
            let killed = replica.killed.map(|at| at.saturating_duration_since(state.start).as_secs_f64());
            let killed = killed.map_or(String::new(), |at| format!(" (killed at {at:.1} s)"));
            format!("{} {}{killed}", replica.name, replica.served)
        })
        .collect();
    let orders = ok + refused.values().sum::<u64>();
    let _ = writeln!(text, "\n  orders       {orders}, of which {ok} served: {}", served.join(", "));
    let _ = writeln!(text, "  refused      {}", refusals(&state.total));
    let _ = writeln!(text, "  waits        p50 {}, p99 {}", millis(waits.percentile(50)), millis(waits.percentile(99)));
    let pause = state.items.iter().map(|item| item.longest_pause.max(item.pause(now))).max();
    let _ = writeln!(text, "  longest pause {}, with leases of {:.0} s", millis(pause), LEASE.as_secs_f64());
    let _ = writeln!(text, "  lost updates {}", state.lost());
    text
}
