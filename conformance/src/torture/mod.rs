//! Clients at work while everything happens to their store and to themselves.
//!
//! Rounds follow one another. In each the clients – providers of this process, with several tasks each, and child processes – acquire and release a few locks without
//! a pause, every critical section makes a fenced write, and one or two faults come and go. Then all come to rest, the faults must have happened, every client must be able to work
//! again, nothing may be left behind, books must balance, and the round's history is judged. Clients, locks and the store live on from round to round.
//!
//! | file | what |
//! |---|---|
//! | `round.rs` | a round: work, faults, rest |
//! | `field.rs` | who takes part |
//! | `worker.rs`, `process.rs` | what a task of this process does, and what a child process |
//! | `calls.rs` | the calls of a child process |
//! | `acts.rs` | what happens to child processes |
//! | `deck.rs` | which faults are next |
//! | `judge.rs` | the verdict on a round |
//! | `tally.rs` | what is counted |

mod acts;
mod calls;
mod deck;
mod field;
mod judge;
mod process;
mod round;
mod tally;
mod worker;

use std::time::{Duration, Instant};

use crate::context::Context;
use crate::failure::{FailureKind, Verdict, ensure};
use crate::figures::Figures;
use deck::Deck;
use field::Field;
use tally::Tally;

/// How long it goes on, and what it must have shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) time: Duration,
    /// Whether each kind of fault must have happened.
    pub(crate) all_kinds: bool,
}

/// After each of so many rounds, the first one included, the store sweeps.
const SWEEPS: u64 = 5;
const SWEEP: &str = "sweep";

/// So many calls there must be for each second at work, a small part of what there are.
const LEAST_PER_SECOND: u64 = 5;

/// Runs it on an arena of the fixture.
pub(crate) async fn run(cx: &Context, length: Length) -> Verdict {
    let arena = cx.stage().fixture().arena().await?;
    let tally = Tally::new();
    let verdict = rounds(cx, &*arena, length, &tally).await;
    let mut figures = tally.figures(arena.impossible());
    // A fault that could not be had says nothing about the backend.
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
    let mut deck = Deck::new(arena.faults(), cx.chance());
    tally.expect(deck.kinds());
    let mut field = Field::new(cx, arena.address()).await?;
    let started = Instant::now();
    loop {
        let drawn = deck.draw(!length.all_kinds);
        let name = drawn.name();
        let number = tally.next_round();
        let told = round::round(cx, arena, &mut field, drawn, tally)
            .await
            .map_err(|failure| failure.reworded(|message| format!("round {number}, {name}: {message}")))?;
        eprintln!("distlock: {}: at {:.0?}, round {number}, {told}", cx.stage().name(), started.elapsed());
        if number % SWEEPS == 1
            && let Some(seen) = arena.age().await?
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

/// Silence is not success.
fn is_enough(figures: &Figures, length: Length) -> Verdict {
    let (seen, least) = (figures.operations, Duration::from_secs_f64(figures.at_work_s).as_secs() * LEAST_PER_SECOND);
    ensure!(seen >= least, "only {seen} operations in {:.0} s at work", figures.at_work_s);
    let missing: Vec<&String> = figures.faults.iter().filter(|(_, times)| **times == 0).map(|(kind, _)| kind).collect();
    let (all, came) = (figures.faults.len(), figures.faults.len() - missing.len());
    let enough = (figures.took_s / 60.0 * all as f64 / came.max(1) as f64 * SPARE).ceil();
    ensure!(
        !length.all_kinds || missing.is_empty(),
        "{:.1} minutes were enough for {came} of {all} kinds of faults, and {enough} are for all: there was no time for \
         {missing:?}",
        figures.took_s / 60.0
    );
    Ok(())
}
