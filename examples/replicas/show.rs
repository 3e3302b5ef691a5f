//! What the terminal shows: a line each second, and at the end a summary and whether all was as
//! promised.

use std::time::Duration;

use distlock_examples::{Checks, Outcome};
use tokio::time::{Instant, interval_at};

use crate::LEASE;
use crate::board::{Board, Item, Replica, State};

/// How much later than its lease ends a dead replica's lock must have been used again, in seconds.
const GRACE: f64 = 2.5;
/// Of so many reads, two must have been served together.
const MANY: u64 = 20;

pub(crate) async fn every_second(board: Board) {
    let second = Duration::from_secs(1);
    let mut ticks = interval_at(Instant::now() + second, second);
    let mut before = 0;
    println!("  time    served  refused  waiting  lost  at work\n");
    loop {
        ticks.tick().await;
        board.change(|state, now| {
            let served = state.ok + state.reads;
            let refused: u64 = state.refused.values().sum();
            let (waiting, lost) = (state.items.iter().map(Item::queued).sum::<usize>(), state.lost());
            let at_work: String = state.items.iter().map(at_work).collect();
            let line = format!("{now:4.0} s  {:>8}  {refused:>7}  {waiting:>7}  {lost:>4}{at_work}", served - before);
            println!("{}", line.trim_end());
            before = served;
        });
    }
}

/// An item, and which replica holds its lock.
fn at_work(item: &Item) -> String {
    let holder = match item.holds.as_slice() {
        [] => "·".to_owned(),
        [hold] if hold.dead => format!("† {}", hold.replica),
        [hold] if hold.seen.is_none() => hold.replica.clone(),
        readers if readers.iter().all(|hold| hold.seen.is_some()) => format!("{} read", readers.len()),
        several => format!("{} at once", several.len()),
    };
    format!("  {} {holder:<9}", item.name)
}

/// Prints the whole run, and checks the promises. A run without the layer is measured by the same
/// ones.
pub(crate) fn check(state: &State, now: f64, is_complete: bool) -> Checks {
    let mut checks = Checks::new(is_complete);
    println!("\n  item       written  counter  most at once  reads at once  longest pause");
    let was_killed = state.replicas.iter().any(|replica| replica.killed.is_some());
    for item in &state.items {
        let Item { name, sold, writes, most_at_once, most_readers, tokens_back: back, .. } = item;
        let pause = item.pause(now);
        println!("  {name:<9} {writes:>8} {sold:>8} {most_at_once:>13} {most_readers:>14} {pause:>12.2} s");
        checks.always(*back == 0, format!("{back} fencing tokens of {name} did not grow"));
        let is_served = !was_killed || item.served_since_kill;
        checks.at_the_end(is_served, format!("{name} were no longer served after a replica was killed"));
        let is_stuck = pause > LEASE.as_secs_f64() + GRACE;
        checks.always(!is_stuck, format!("{name} were not served for {pause:.1} s"));
    }
    println!();
    for Replica { name, killed, served } in &state.replicas {
        let killed = killed.map_or(String::new(), |at| format!(", killed at {at:.1} s"));
        checks.show(&format!("replica {name}"), format_args!("{served} orders{killed}"));
    }
    checks.show("reads", state.reads);
    let is_shared = state.items.iter().any(|item| item.most_readers > 1);
    checks.at_the_end(is_shared || !state.locked || state.reads < MANY, "no two reads were served together");
    checks.at_the_end(state.ok > 0, "no order was served");
    for (label, count) in &state.refused {
        checks.show("refused", format_args!("{count} × {label}"));
    }
    let wait = |percent| state.wait(percent).map_or("–".to_owned(), |wait| format!("{wait:.1} ms"));
    checks.show("waits", format_args!("p50 {}, p99 {}", wait(50), wait(99)));
    checks.none("lost updates", state.lost(), "updates were lost");
    checks.none("torn reads", state.torn(), "reads saw a write in between");
    checks
}

/// Prints the verdict, for the page as well.
pub(crate) fn summary(board: &Board, is_complete: bool) -> Outcome {
    board.change(|state, now| {
        let checks = check(state, now, is_complete);
        let proved = match state.locked {
            true => "no update lost, reads together, tokens only grew, no queue was stuck",
            false => "no update lost, by chance: there was no lock",
        };
        state.finished = Some((checks.complaints().is_empty(), checks.verdict(proved).1));
        checks.conclude(proved)
    })
}

#[cfg(test)]
mod tests;
