//! S2, S3 and S6: tasks that hold a key together, as readers or with a permit each.

use std::time::Duration;

use super::{Bench, Id, note_errors};
use crate::Outcome;
use crate::commands::{self, Counts};
use crate::fleet;
use crate::locks::{Contender, Mode, Settings};
use crate::report::{Bound, Figure};
use crate::stats::evenness;
use crate::worker::protocol::{Contend, Crowd, Report, Task, Turn};

const RATE: &str = "acquisitions";
const COMMANDS: &str = "commands";
const EVENNESS: &str = "fewest / most turns";
const MOST_HELD: &str = "most permits held at the same time";
/// From the first attempts to the window.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
const HOLD_MS: u64 = 20;
const PERMITS: u32 = 8;

/// S2.
pub(super) async fn one_process(bench: &Bench<'_>) -> Outcome<Figure> {
    let title = "64 readers in one process, one key, each yields once while it holds";
    let mut figure = Figure::new(Id::S(2), title, bench.quick);
    let task = Contend { waiters: 64, yields: true, ..Contend::default() };
    run(bench, &mut figure, Mode::Shared, 1, &task, bench.choose(4, 10)).await?;
    figure.judge(RATE, figure.median(Contender::Ours, RATE), "/s", Bound::Least(200_000.0));
    figure.judge(COMMANDS, figure.median(Contender::Ours, COMMANDS), "/s", Bound::Most(2.0));
    Ok(figure)
}

/// S3.
pub(super) async fn four_processes(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = Figure::new(Id::S(3), "4 processes × 16 readers, one key, hold 20 ms", bench.quick);
    let task = Contend { waiters: 16, hold_ms: HOLD_MS, ..Contend::default() };
    run(bench, &mut figure, Mode::Shared, 4, &task, bench.choose(4, 10)).await?;
    let ideal = ("the ideal, 64 / hold".to_owned(), 64.0 * 1_000.0 / HOLD_MS as f64);
    figure.judge_ratio(RATE, figure.median(Contender::Ours, RATE), "/s", ideal, Bound::Least(0.8));
    figure.compare(COMMANDS, figure.median(Contender::Ours, COMMANDS), "/s", None);
    Ok(figure)
}

/// S6.
pub(super) async fn permits(bench: &Bench<'_>) -> Outcome<Figure> {
    let title = "one of 8 permits, 4 processes × 16 waiters, one key, hold 20 ms";
    let mut figure = Figure::new(Id::S(6), title, bench.quick);
    let task = Contend { waiters: 16, hold_ms: HOLD_MS, every_turn: true, ..Contend::default() };
    // Long enough for each of 64 waiters to have many turns.
    run(bench, &mut figure, Mode::Permit { of: PERMITS }, 4, &task, bench.choose(15, 30)).await?;
    let ours = |what: &str| figure.median(Contender::Ours, what);
    let [rate, commands, evenness] = [RATE, COMMANDS, EVENNESS].map(ours);
    let rounds = figure.measurements.iter().filter(|one| one.what == MOST_HELD).flat_map(|one| &one.rounds);
    // The worst round counts, not the median.
    let most_held = rounds.copied().fold(0.0, f64::max);
    figure.judge(MOST_HELD, most_held, "", Bound::Most(f64::from(PERMITS)));
    figure.judge(EVENNESS, evenness, "", Bound::Least(0.8));
    let ideal = ("the ideal, 8 / hold".to_owned(), f64::from(PERMITS) * 1_000.0 / HOLD_MS as f64);
    figure.compare(RATE, rate, "/s", ideal);
    figure.compare("commands per acquisition", commands / rate, "", None);
    figure.note(
        "The parent counts the permits from the times of all processes: a guard counts from the return of its \
         acquisition to the call to release. All rounds together.",
    );
    Ok(figure)
}

async fn run(
    bench: &Bench<'_>,
    figure: &mut Figure,
    mode: Mode,
    processes: usize,
    task: &Contend,
    seconds: u64,
) -> Outcome<()> {
    let who = Contender::Ours;
    let rounds = bench.choose(2, 5);
    let settings = Settings::new(true).in_mode(mode);
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        let contend = Contend { key: format!("{}-{round}", figure.id), ..task.clone() };
        let crowd = Crowd { providers: 1, contend, settle_ms: SETTLE.as_millis() as u64 };
        let specs = vec![bench.spec(who, settings, Task::Crowd(crowd)); processes];
        let (window, reports) = fleet::run_settled(&specs, SETTLE, Duration::from_secs(seconds)).await?;

        let waiters = || reports.iter().flat_map(|report| &report.waiters);
        let turns: Vec<u64> = waiters().map(|waiter| waiter.acquired).collect();
        let mut sent = Counts::new();
        reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));
        figure.push(who, RATE, "/s", turns.iter().sum::<u64>() as f64 / window.seconds());
        figure.push(who, COMMANDS, "/s", commands::without_get_more(&sent) as f64 / window.seconds());
        for (name, count) in sent {
            figure.push(who, name, "/s", count as f64 / window.seconds());
        }
        figure.push(who, EVENNESS, "", evenness(&turns));
        if task.every_turn {
            figure.push(who, MOST_HELD, "", most_at_a_time(&all_turns(&reports)) as f64);
        }
        note_errors(figure, who, &reports);
    }
    figure.note(format!(
        "The tasks begin {} s before the window. Commands are those of all processes, without `getMore`.",
        SETTLE.as_secs()
    ));
    Ok(())
}

fn all_turns(reports: &[Report]) -> Vec<Turn> {
    reports.iter().flat_map(|report| &report.waiters).flat_map(|waiter| &waiter.turns).copied().collect()
}

/// The largest number of turns that overlap. One that begins when another ends does not.
fn most_at_a_time(turns: &[Turn]) -> usize {
    let mut changes: Vec<_> = turns.iter().flat_map(|turn| [(turn.acquired, true), (turn.release, false)]).collect();
    changes.sort_unstable();
    let (mut held, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        held = if begins { held + 1 } else { held - 1 };
        most = most.max(held);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_turns_that_overlap_count() {
        let turn = |acquired, release| Turn { requested: 0, acquired, release, token: None };
        assert_eq!(most_at_a_time(&[]), 0);
        assert_eq!(most_at_a_time(&[turn(10, 20), turn(20, 30), turn(5, 10)]), 1);
        assert_eq!(most_at_a_time(&[turn(10, 20), turn(15, 30), turn(19, 25), turn(25, 40)]), 3);
    }
}
