//! S4 and S5: a writer and the readers of other processes, by turns.

use std::time::Duration;

use super::hand_over::{self, CHAINS};
use super::sharing::SETTLE;
use super::{Bench, Id, note_errors};
use crate::Outcome;
use crate::clock::{Nanos, millis};
use crate::fleet;
use crate::locks::{Contender, Mode, Settings};
use crate::report::{Bound, Figure};
use crate::stats::quantile;
use crate::worker::protocol::{Contend, Crowd, Report, Spec, Task, Turn};

const READERS: usize = 4;
const CHAIN_HOLD_MS: u64 = 20;
/// Longer than a request for a place in the queue takes.
const WRITER_HOLD_MS: u64 = 40;
/// How long the readers of each process hold: the processes leave one after the other, each when
/// the release of the one before is over.
const ONE_BY_ONE: [u64; 4] = [20, 35, 50, 65];
const AT_ONCE: [u64; 4] = [65; 4];
/// Between a release and the next request: not at the time of another process's release.
const PAUSE_MS: u64 = 24;
const P50: &str = "p50";
const AT_ONCE_P50: &str = "all processes leave at once, p50";
const COMMANDS: &str = "commands from the release to the last reader";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Vec<Figure>> {
    let title = "the last of 16 readers in 4 processes → a writer in another process";
    let mut to_writer = Figure::new(Id::S(4), title, bench.quick);
    let title = "a writer → 16 readers in 4 other processes, until the last one runs";
    let mut to_readers = Figure::new(Id::S(5), title, bench.quick);
    let who = Contender::Ours;
    let (rounds, length) = bench.choose((2, Duration::from_secs(5)), (5, Duration::from_secs(10)));
    let chains = || CHAINS.into_iter().filter(|chain| !chain.is_on_postgres());
    let (mut overlaps, mut late) = (0, 0);
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for chain in chains() {
            let values = hand_over::relay(bench, chain, CHAIN_HOLD_MS, round, length / 2).await?;
            push(&mut to_writer, chain.name, &values);
            push(&mut to_readers, chain.name, &values);
        }
        // Monitoring makes the clients slower, so what it counts is not timed.
        for (holds, counted) in [(ONE_BY_ONE, false), (AT_ONCE, false), (ONE_BY_ONE, true)] {
            let specs = specs(bench, round, holds, counted);
            let (_, reports) = fleet::run_settled(&specs, SETTLE, length).await?;
            let seen = changes(&turns_of(&reports[..1]).concat(), &turns_of(&reports[1..]));
            (overlaps, late) = (overlaps + seen.overlaps, late + seen.late);
            note_errors(&mut to_writer, who, &reports);
            if counted {
                to_readers.push(who, COMMANDS, "", commands(&reports, &seen.to_readers));
            } else if holds == AT_ONCE {
                to_writer.push(who, AT_ONCE_P50, "ms", quantile(&seen.to_writer, 0.5));
            } else {
                let to_readers_ms: Vec<_> = seen.to_readers.iter().map(|&(from, to)| millis(to - from)).collect();
                push(&mut to_writer, who, &seen.to_writer);
                push(&mut to_readers, who, &to_readers_ms);
            }
        }
    }
    let at_once = to_writer.median(who, AT_ONCE_P50);
    for (figure, limit) in [(&mut to_writer, 1.3), (&mut to_readers, 1.5)] {
        let ours = figure.median(who, P50);
        // The first one has the pace of B2, and is its reference.
        for (place, chain) in chains().enumerate() {
            let raw = (chain.name.to_owned(), figure.median(chain.name, P50));
            match place {
                0 => figure.judge_ratio(P50, ours, "ms", raw, Bound::Most(limit)),
                _ => figure.compare(P50, ours, "ms", raw),
            }
        }
    }
    to_writer.compare(AT_ONCE_P50, at_once, "ms", None);
    to_writer.judge("readers beside a writer", overlaps as f64, "", Bound::Most(0.0));
    let commands = to_readers.median(who, COMMANDS);
    to_readers.judge(COMMANDS, commands, "", Bound::Most(1.1));
    to_readers.compare("turns of the writer without all readers before the next one", late as f64, "", None);
    to_writer.note(format!(
        "The writer holds for {WRITER_HOLD_MS} ms, the readers of the four processes for {ONE_BY_ONE:?} ms, and all \
         request the key again {PAUSE_MS} ms after the release. From the last reader's call to release to the return \
         of the writer's acquisition, if it was called before. At once: all readers hold for {} ms. The raw driver's \
         chain is that of B2.",
        AT_ONCE[0]
    ));
    to_readers.note(
        "From the writer's call to release to the return of the last of the 16 readers' acquisitions, if all of them \
         were called before. Commands are counted in a window of its own, in all processes, without `getMore`.",
    );
    Ok(vec![to_writer, to_readers])
}

/// The writer's process first.
fn specs(bench: &Bench<'_>, round: usize, holds: [u64; 4], counted: bool) -> Vec<Spec> {
    let key = format!("reader-writer-{round}-{}-{counted}", holds[0]);
    let spec = |mode, waiters, hold_ms| {
        let contend = Contend { key: key.clone(), waiters, hold_ms, pause_ms: PAUSE_MS, ..Contend::default() };
        let contend = Contend { every_turn: true, log: counted, ..contend };
        let task = Crowd { providers: 1, contend, settle_ms: SETTLE.as_millis() as u64 };
        let settings = Settings { counted, ..Settings::new(true).in_mode(mode) };
        bench.spec(Contender::Ours, settings, Task::Crowd(task))
    };
    let writer = spec(Mode::Exclusive, 1, WRITER_HOLD_MS);
    std::iter::once(writer).chain(holds.map(|hold_ms| spec(Mode::Shared, READERS, hold_ms))).collect()
}

/// The commands that all processes sent within these periods, per period.
fn commands(reports: &[Report], periods: &[(Nanos, Nanos)]) -> f64 {
    let sent = || reports.iter().flat_map(|report| &report.log).filter(|(_, what)| is_request(what));
    let within = |&(from, to): &(Nanos, Nanos)| sent().filter(|(at, _)| (from..to).contains(at)).count();
    periods.iter().map(within).sum::<usize>() as f64 / periods.len() as f64
}

fn push(figure: &mut Figure, who: impl ToString, values: &[f64]) {
    let who = who.to_string();
    figure.push(&who, P50, "ms", quantile(values, 0.5));
    figure.push(&who, "p99", "ms", quantile(values, 0.99));
    figure.push(&who, "number", "", values.len() as f64);
}

fn is_request(logged: &str) -> bool {
    logged.strip_suffix(" sent").is_some_and(|name| name != "getMore")
}

/// The turns of each task, in order.
fn turns_of(reports: &[Report]) -> Vec<Vec<Turn>> {
    reports.iter().flat_map(|report| &report.waiters).map(|waiter| waiter.turns.clone()).collect()
}

/// What follows from the turns of a writer and of each reader.
#[derive(Default)]
struct Seen {
    /// From the last reader's release to the next turn of the writer, in ms.
    to_writer: Vec<f64>,
    /// The writer's release, and the moment at which the last of all readers runs.
    to_readers: Vec<(Nanos, Nanos)>,
    /// Pairs of a writer and a reader at the same time: exclusion was broken.
    overlaps: usize,
    /// Turns of the writer after which not all readers that had been waiting ran before the next.
    late: usize,
}

fn changes(writer: &[Turn], readers: &[Vec<Turn>]) -> Seen {
    let mut seen = Seen::default();
    for (place, turn) in writer.iter().enumerate() {
        let meets = |read: &&Turn| read.acquired < turn.release && turn.acquired < read.release;
        seen.overlaps += readers.iter().flatten().filter(meets).count();
        let before = readers.iter().flatten().map(|read| read.release).filter(|&release| release <= turn.acquired);
        if let Some(last) = before.max().filter(|&last| turn.requested <= last) {
            seen.to_writer.push(millis(turn.acquired - last));
        }
        let Some(next) = writer.get(place + 1) else { continue };
        let after = |turns: &Vec<Turn>| turns.iter().find(|read| read.acquired >= turn.release).copied();
        let first: Option<Vec<Turn>> = readers.iter().map(after).collect();
        let Some(first) = first.filter(|first| first.iter().all(|read| read.requested <= turn.release)) else {
            continue;
        };
        match first.iter().map(|read| read.acquired).max() {
            Some(last) if last < next.acquired => seen.to_readers.push((turn.release, last)),
            _ => seen.late += 1,
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::protocol::turn;

    #[test]
    fn the_last_reader_counts_both_ways() {
        let writer = [turn(0, 10, 20), turn(22, 50, 60)];
        let readers = [vec![turn(1, 24, 40)], vec![turn(2, 28, 45)]];
        let seen = changes(&writer, &readers);
        assert_eq!((seen.to_writer, seen.overlaps, seen.late), (vec![5.0], 0, 0));
        assert_eq!(seen.to_readers, [(20_000_000, 28_000_000)]);
    }

    #[test]
    fn only_those_who_waited_count() {
        let writer = [turn(0, 10, 20), turn(46, 50, 60)];
        let readers = [vec![turn(1, 24, 40)], vec![turn(21, 28, 45)]];
        let seen = changes(&writer, &readers);
        assert!(seen.to_writer.is_empty() && seen.to_readers.is_empty());
    }

    #[test]
    fn a_reader_beside_a_writer_or_after_the_next_one_is_noticed() {
        let writer = [turn(0, 10, 20), turn(22, 30, 40)];
        let seen = changes(&writer, &[vec![turn(1, 19, 25)], vec![turn(1, 45, 50)]]);
        assert_eq!(seen.overlaps, 1);
        assert_eq!(changes(&writer, &[vec![turn(1, 45, 50)]]).late, 1);
    }
}
