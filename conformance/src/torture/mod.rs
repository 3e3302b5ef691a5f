//! Clients at work under faults of their store and of themselves.
//!
//! Rounds follow one another. In each the clients – providers of this process, with several tasks
//! each, and child processes – acquire and release a few locks without a pause. Every exclusive
//! section makes a fenced write, and one or two faults come and go. Most keys are locked
//! exclusively only. If the backend has the modes, one more key is shared, and one has permits.
//!
//! Then all work ends. The faults must have happened, every client must be able to work again,
//! nothing may be left behind, the accounting must balance, and the round's history is judged.
//! Clients, locks and the store are kept from round to round.
//!
//! | file | what |
//! |---|---|
//! | `round.rs` | a round: work, faults, end |
//! | `participants.rs` | the clients, child processes and locks |
//! | `worker.rs`, `process.rs` | the work of a task of this process, and of a child process |
//! | `calls.rs` | the calls of a child process |
//! | `process_faults.rs` | the faults of child processes |
//! | `schedule.rs` | the order of the faults |
//! | `judge.rs` | the verdict on a round |
//! | `tally.rs` | the counters of a run |

mod calls;
mod judge;
mod participants;
mod process;
mod process_faults;
mod round;
mod schedule;
mod tally;
mod worker;

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::failure::{FailureKind, Verdict, ensure};
use crate::figures::Figures;
use participants::Participants;
use schedule::FaultSchedule;
use tally::Tally;

/// How long a run lasts, and what it must have shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) time: Duration,
    /// Whether each kind of fault must have happened.
    pub(crate) all_kinds: bool,
}

/// The store sweeps once in this many rounds, the first one included.
const SWEEPS: u64 = 5;
const SWEEP: &str = "sweep";

/// The calls that there must be for each second of work: a small part of what there usually are.
const LEAST_PER_SECOND: u64 = 5;

/// Runs rounds on an arena of the fixture.
pub(crate) async fn run(cx: &Context, length: Length) -> Verdict {
    let arena = cx.stage().fixture().arena().await?;
    let tally = Tally::new();
    let verdict = rounds(cx, &*arena, length, &tally).await;
    let mut figures = tally.figures(arena.unavailable_faults());
    // A fault that could not be injected is no violation by the backend.
    if verdict.as_ref().is_err_and(|failure| failure.kind() == FailureKind::Fixture) {
        figures.violations = 0;
    }
    arena.stop().await;
    eprintln!("distlock: {}: {figures}", cx.stage().name());
    cx.findings().set_figures(figures.clone());
    verdict?;
    is_enough(&figures, length)
}

async fn rounds(cx: &Context, arena: &dyn crate::arena::Arena, length: Length, tally: &Tally) -> Verdict {
    let mut schedule = FaultSchedule::new(arena.faults(), cx.rng());
    tally.expect(schedule.kinds());
    let mut participants = Participants::new(cx, arena.address()).await?;
    let started = Instant::now();
    loop {
        let round_faults = schedule.next(!length.all_kinds);
        let name = round_faults.name();
        let number = tally.next_round();
        let summary = round::round(cx, arena, &mut participants, round_faults, tally)
            .await
            .map_err(|failure| failure.reworded(|message| format!("round {number}, {name}: {message}")))?;
        eprintln!("distlock: {}: at {:.0?}, round {number}, {summary}", cx.stage().name(), started.elapsed());
        if number % SWEEPS == 1
            && let Some(seen) = arena.age_records().await?
        {
            tally.happened(SWEEP);
            eprintln!("distlock: {}: {SWEEP} – {seen}", cx.stage().name());
        }
        if started.elapsed() >= length.time {
            return Ok(());
        }
    }
}

/// Rounds differ in length.
const SPARE: f64 = 1.25;

/// Ensures that the run did enough to prove something.
fn is_enough(figures: &Figures, length: Length) -> Verdict {
    let (seen, least) = (figures.operations, Duration::from_secs_f64(figures.at_work_s).as_secs() * LEAST_PER_SECOND);
    ensure!(seen >= least, "only {seen} operations in {:.0} s of work instead of at least {least}", figures.at_work_s);
    let missing: Vec<&String> = figures.faults.iter().filter(|(_, times)| **times == 0).map(|(kind, _)| kind).collect();
    let (all, came) = (figures.faults.len(), figures.faults.len() - missing.len());
    let enough = (figures.took_s / 60.0 * all as f64 / came.max(1) as f64 * SPARE).ceil();
    ensure!(
        !length.all_kinds || missing.is_empty(),
        "{:.1} minutes were enough for {came} of {all} kinds of faults. Run for {enough} minutes: there was no time for \
         {missing:?}",
        figures.took_s / 60.0
    );
    Ok(())
}
