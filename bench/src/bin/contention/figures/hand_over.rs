//! B2, B3, B4: one key that goes from process to process.

use std::time::Duration;

use super::{Bench, best_peer, note_errors, rotated};
use crate::Outcome;
use crate::clock::{Nanos, millis};
use crate::commands::{self, Counts};
use crate::fleet;
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::stats::{evenness, quantile};
use crate::worker::protocol::{Contend, Relay, Report, Spec, Task, Turn};

const PROCESSES: usize = 4;
const WAITERS: usize = 4;

/// A chain of writes by hand.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    who: Contender,
    second_write: bool,
    pub(super) name: &'static str,
}

impl Chain {
    /// Whether its server is PostgreSQL.
    pub(super) const fn is_on_postgres(self) -> bool {
        self.who.is_on_postgres()
    }
}

const RAW_TWO: &str = "raw driver, two writes";
const RAW_TWO_POSTGRES: &str = "raw driver on PostgreSQL, two writes";
pub(super) const CHAINS: [Chain; 4] = [
    Chain { who: Contender::Raw, second_write: true, name: RAW_TWO },
    Chain { who: Contender::Raw, second_write: false, name: "raw driver, one write" },
    Chain { who: Contender::RawPostgres, second_write: true, name: RAW_TWO_POSTGRES },
    Chain { who: Contender::RawPostgres, second_write: false, name: "raw driver on PostgreSQL, one write" },
];

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Vec<Figure>> {
    let mut time = bench.figure(2, "hand-over between processes");
    let mut cost = bench.figure(3, "commands per acquisition in B2, without getMore");
    let mut fair = bench.figure(4, "fairness in B2: fewest / most turns of a waiter");
    let rounds = bench.choose(2, 5);
    for hold_ms in [0, 20] {
        // Long enough for each of 16 waiters to have many turns.
        let length = Duration::from_secs(match hold_ms {
            0 => bench.choose(3, 4),
            _ => bench.choose(6, 10),
        });
        let mut pooled = Contender::WITH_POSTGRES.map(|who| (who, Vec::new()));
        let mut pooled_raw = CHAINS.map(|chain| (chain, Vec::new()));
        for round in 0..rounds {
            bench.progress(format_args!("hold {hold_ms} ms, round {} of {rounds}", round + 1));
            for (chain, pooled) in &mut pooled_raw {
                let values = relay(bench, *chain, hold_ms, round, length / 2).await?;
                push(&mut time, chain.name, hold_ms, &values);
                pooled.extend(values);
            }
            for place in rotated(&[0, 1, 2, 3, 4], round) {
                let (who, pooled) = &mut pooled[place];
                let key = format!("hand-over-{hold_ms}-{round}");
                let task = Contend { key, waiters: WAITERS, hold_ms, every_turn: true, ..Contend::default() };
                let specs = bench.contenders(*who, Settings::new(false).uncounted(), PROCESSES, &task);
                let (_, reports) = fleet::run(&specs, length).await?;
                let seen = hand_overs(turns(&reports));
                if seen.overlaps > 0 {
                    time.push(*who, format!("hold {hold_ms} ms: holders at the same time"), "", seen.overlaps as f64);
                }
                push(&mut time, *who, hold_ms, &seen.times);
                pooled.extend(seen.times);
                note_errors(&mut time, *who, &reports);
                let turns: Vec<_> = waiters(&reports).collect();
                fair.push(*who, format!("evenness, hold {hold_ms} ms"), "", evenness(&turns));
            }
        }
        for who in Contender::WITH_POSTGRES {
            bench.progress(format_args!("hold {hold_ms} ms, the commands of {who}"));
            let key = format!("counted-{hold_ms}");
            let task = Contend { key, waiters: WAITERS, hold_ms, ..Contend::default() };
            let specs = bench.contenders(who, Settings::new(false), PROCESSES, &task);
            let (_, reports) = fleet::run(&specs, length).await?;
            count(&mut cost, who, hold_ms, &reports);
        }
        for (who, values) in &pooled {
            time.curve(who, format!("hold {hold_ms} ms"), "ms", values);
        }
        for (chain, values) in &pooled_raw {
            time.curve(chain.name, format!("hold {hold_ms} ms"), "ms", values);
        }
        judge(&mut time, &mut cost, &mut fair, hold_ms);
        compare_on_postgres(&mut time, &mut cost, &mut fair, hold_ms);
    }
    time.note(format!(
        "raw driver: four clients that write in turn, each when the change stream brings it the number of the one before; from the majority update being sent to the \
         event at the next client. *Two writes* has the pace of B2, where each holder also queues up again: every writer makes a second write to the record after its own. \
         The target counts against it; *one write* shows what that costs. Peers poll every {} ms.",
        crate::locks::PEERS_POLL.as_millis()
    ));
    time.note(
        "raw driver on PostgreSQL: the same chain by an `UPDATE` with `pg_notify` in one statement, received by `LISTEN`. \
         The second write is to a table of its own, as the store's queue is.",
    );
    cost.note("Counted by the drivers' command monitoring in all processes, in a window of its own, because monitoring makes the clients slower. Heartbeats are not commands in this sense.");
    cost.note("On PostgreSQL: the engine's requests to the store, each of which is one statement and one transaction.");
    fair.note("Turns of 16 waiters within one window, per round.");
    Ok(vec![time, cost, fair])
}

fn judge(time: &mut Figure, cost: &mut Figure, fair: &mut Figure, hold_ms: u64) {
    let p50 = p50(hold_ms);
    let ours = time.median(Contender::Ours, &p50);
    let raw = (RAW_TWO.to_owned(), time.median(RAW_TWO, &p50));
    time.judge_ratio(format!("hand-over, {p50}"), ours, "ms", raw, Bound::Most(1.3));
    let peer = best_peer(time, &p50, false);
    if peer.1.is_finite() {
        time.note(format!(
            "hold {hold_ms} ms: the best peer is {} with {:.1} ms, {:.2} × ours.",
            peer.0,
            peer.1,
            peer.1 / ours
        ));
    }
    let what = format!("all, hold {hold_ms} ms");
    cost.judge(
        format!("commands per acquisition, hold {hold_ms} ms"),
        cost.median(Contender::Ours, &what),
        "",
        Bound::Most(2.2),
    );
    let what = format!("evenness, hold {hold_ms} ms");
    fair.judge(
        format!("fewest / most turns, hold {hold_ms} ms"),
        fair.median(Contender::Ours, &what),
        "",
        Bound::Least(0.9),
    );
}

/// Without targets.
fn compare_on_postgres(time: &mut Figure, cost: &mut Figure, fair: &mut Figure, hold_ms: u64) {
    let who = Contender::OursPostgres;
    let p50 = p50(hold_ms);
    let raw = (RAW_TWO_POSTGRES.to_owned(), time.median(RAW_TWO_POSTGRES, &p50));
    time.compare(format!("on PostgreSQL: hand-over, {p50}"), time.median(who, &p50), "ms", raw);
    let sent = cost.median(who, &format!("all, hold {hold_ms} ms"));
    cost.compare(format!("on PostgreSQL: statements per acquisition, hold {hold_ms} ms"), sent, "", None);
    let evenness = fair.median(who, &format!("evenness, hold {hold_ms} ms"));
    fair.compare(format!("on PostgreSQL: fewest / most turns, hold {hold_ms} ms"), evenness, "", None);
}

fn p50(hold_ms: u64) -> String {
    format!("hold {hold_ms} ms, p50")
}

fn push(figure: &mut Figure, who: impl ToString, hold_ms: u64, values: &[f64]) {
    let who = who.to_string();
    figure.push(&who, p50(hold_ms), "ms", quantile(values, 0.5));
    figure.push(&who, format!("hold {hold_ms} ms, p99"), "ms", quantile(values, 0.99));
    figure.push(&who, format!("hold {hold_ms} ms, hand-overs"), "", values.len() as f64);
}

fn count(figure: &mut Figure, who: Contender, hold_ms: u64, reports: &[Report]) {
    let mut sent = Counts::new();
    reports.iter().for_each(|report| commands::add(&mut sent, &report.commands));
    let acquired = waiters(reports).sum::<u64>() as f64;
    figure.push(who, format!("all, hold {hold_ms} ms"), "", commands::without_get_more(&sent) as f64 / acquired);
    for (name, count) in sent {
        figure.push(who, format!("{name}, hold {hold_ms} ms"), "", count as f64 / acquired);
    }
}

fn waiters(reports: &[Report]) -> impl Iterator<Item = u64> {
    reports.iter().flat_map(|report| &report.waiters).map(|waiter| waiter.acquired)
}

/// All turns, each with the number of its process.
fn turns(reports: &[Report]) -> Vec<(usize, Turn)> {
    let of = |report: &Report| report.waiters.iter().flat_map(|waiter| waiter.turns.clone()).collect::<Vec<_>>();
    let numbered = reports.iter().enumerate();
    numbered.flat_map(|(process, report)| of(report).into_iter().map(move |turn| (process, turn))).collect()
}

/// What follows from all turns of all processes.
struct Seen {
    /// From the call to release to the return of the next acquisition, in ms, of those tasks that
    /// had been waiting by then in another process.
    times: Vec<f64>,
    /// Grants before the release of the one before: exclusion was broken.
    overlaps: u64,
}

/// The clock decides which turn is next: processes of one machine share it, and under exclusion the
/// order of grants is that of the tokens.
fn hand_overs(mut turns: Vec<(usize, Turn)>) -> Seen {
    turns.sort_unstable_by_key(|(_, turn)| turn.acquired);
    let mut seen = Seen { times: Vec::new(), overlaps: 0 };
    for pair in turns.windows(2) {
        let [(here, one), (there, next)] = pair else { continue };
        if next.acquired < one.release {
            seen.overlaps += 1;
        } else if next.requested <= one.release && here != there {
            seen.times.push(millis(next.acquired - one.release));
        }
    }
    seen
}

/// The chain of writes by hand; times from sending to receipt, in ms.
pub(super) async fn relay(
    bench: &Bench<'_>,
    Chain { who, second_write, .. }: Chain,
    hold_ms: u64,
    round: usize,
    length: Duration,
) -> Outcome<Vec<f64>> {
    let of = PROCESSES as u64;
    let key = format!("relay-{hold_ms}-{second_write}-{round}");
    let task = |place| Task::Relay(Relay { place, of, hold_ms, second_write, key: key.clone() });
    let specs: Vec<Spec> = (0..of).map(|place| bench.spec(who, Settings::new(false), task(place))).collect();
    let (_, reports) = fleet::run(&specs, length).await?;
    let hops = || reports.iter().flat_map(|report| &report.hops);
    let sent: std::collections::HashMap<u64, Nanos> = hops().filter_map(|hop| Some((hop.number, hop.sent?))).collect();
    let received = hops().filter_map(|hop| Some((hop.number, hop.received?)));
    let times: Vec<f64> =
        received.filter_map(|(number, received)| Some(millis(received.saturating_sub(*sent.get(&number)?)))).collect();
    if times.len() < 10 { Err("the chain of raw writes broke off".into()) } else { Ok(times) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::protocol::turn;

    #[test]
    fn only_those_who_waited_are_handed_over_to() {
        // The last one made its request only after the release.
        let seen = hand_overs(vec![(1, turn(1, 30, 40)), (0, turn(0, 10, 20)), (0, turn(42, 45, 50))]);
        assert_eq!(seen.times, [10.0]);
        assert_eq!(seen.overlaps, 0);
    }

    #[test]
    fn within_a_process_is_another_matter() {
        let seen = hand_overs(vec![(1, turn(1, 30, 40)), (1, turn(0, 10, 20)), (0, turn(2, 45, 50))]);
        assert_eq!(seen.times, [5.0]);
    }

    #[test]
    fn holders_at_the_same_time_are_noticed() {
        let seen = hand_overs(vec![(0, turn(0, 10, 20)), (1, turn(1, 15, 30))]);
        assert_eq!((seen.times.len(), seen.overlaps), (0, 1));
    }
}
