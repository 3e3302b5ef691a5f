//! What the terminal shows: a line each second, and at the end a summary.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use distlock_examples::{Outcome, wrapped};
use tokio::time::{interval, sleep};

use crate::LEASE;
use crate::board::{Answers, Board, State};
use crate::verdict::{check, proved};

pub(crate) async fn every_second(board: Board) {
    sleep(Duration::from_secs(1)).await;
    let mut ticks = interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let line = board.change(line);
        println!("{line}");
    }
}

/// The width of an item's column. A line has 100 columns.
const ITEM: usize = 18;

/// What the columns of a line are.
pub(crate) fn heading() -> String {
    let items: String = crate::ITEMS.iter().map(|item| format!(" {item:<ITEM$}")).collect();
    format!(
        "   time served queue      wait lost{items} refused\n\
         (of each item: requests that each replica served in this second, and who is at work now)\n"
    )
}

/// The second that is over. Begins a new one.
fn line(state: &mut State, now: Instant) -> String {
    let seconds = now.saturating_duration_since(state.start).as_secs_f64();
    let answers = std::mem::take(&mut state.this_second);
    let items: String =
        (0..state.items.len()).map(|index| format!(" {:<ITEM$}", item(state, index, &answers, now))).collect();
    let (ok, queued, lost, refused) = (answers.ok, state.queued(), state.lost(), answers.refused.values().sum::<u64>());
    let wait = millis(answers.waits.mean());
    format!("{seconds:5.0} s {ok:>6} {queued:>5} {wait:>9} {lost:>4}{items} {refused:>7}")
}

/// How many requests of each replica got an item within the second, and which holds it now.
fn item(state: &State, index: usize, answers: &Answers, now: Instant) -> String {
    let mut text = String::new();
    for replica in &state.replicas {
        let grants = answers.grants.get(&(index, replica.name.clone())).copied().unwrap_or(0);
        let _ = write!(text, "{}:{grants:<2} ", replica.name);
    }
    let holders = match state.items[index].holds.as_slice() {
        [] => "·".to_owned(),
        [hold] if hold.dead => {
            let age = now.saturating_duration_since(hold.since).as_secs_f64();
            format!("{}† {age:.1}", hold.replica)
        }
        [hold] if hold.seen.is_none() => hold.replica.clone(),
        readers if readers.iter().all(|hold| hold.seen.is_some()) => format!("{} read", readers.len()),
        several => format!("{} at once", several.len()),
    };
    let _ = write!(text, "[{holders}]");
    text
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

/// Prints the whole run, and checks the promises.
pub(crate) fn summary(board: &Board, is_complete: bool) -> Outcome {
    let (text, outcome) = board.change(|state, now| {
        let (outcome, verdict) = check(state, LEASE, now, is_complete).verdict(proved(state));
        let text = format!("{}\n{verdict}", describe(state, now));
        state.finished = Some((outcome != Outcome::Broken, verdict));
        (text, outcome)
    });
    println!("\n{text}");
    outcome
}

fn describe(state: &State, now: Instant) -> String {
    let mut text =
        String::from("  item       written  counter  lost updates  most at once  reads at once  longest pause\n");
    for item in &state.items {
        let pause = millis(Some(item.longest_pause.max(item.pause(now))));
        let (lost, most, readers) = (item.lost(), item.most_at_once, item.most_readers);
        let _ = writeln!(
            text,
            "  {:<9} {:>8} {:>8} {lost:>13} {most:>13} {readers:>14} {pause:>14}",
            item.name, item.writes, item.sold
        );
    }
    let Answers { ok, reads, refused, waits, .. } = &state.total;
    let served: Vec<String> = state
        .replicas
        .iter()
        .map(|replica| {
            let killed = replica.killed.map(|at| at.saturating_duration_since(state.start).as_secs_f64());
            let killed = killed.map_or(String::new(), |at| format!(" (killed at {at:.1} s)"));
            format!("{} {}{killed}", replica.name, replica.served)
        })
        .collect();
    let all = ok + reads + refused.values().sum::<u64>();
    let served = served.join(", ");
    let _ = writeln!(text, "\n  requests     {all}; served {reads} reads and {ok} orders: {served}");
    let refused = format!("  refused      {}", refusals(&state.total));
    let _ = writeln!(text, "{}", wrapped(&refused, "               "));
    let _ = writeln!(text, "  waits        p50 {}, p99 {}", millis(waits.percentile(50)), millis(waits.percentile(99)));
    let pause = state.items.iter().map(|item| item.longest_pause.max(item.pause(now))).max();
    let _ = writeln!(text, "  longest pause {}, with leases of {:.0} s", millis(pause), LEASE.as_secs_f64());
    let _ = writeln!(text, "  lost updates {}", state.lost());
    let _ = writeln!(text, "  torn reads   {}", state.torn());
    text
}
