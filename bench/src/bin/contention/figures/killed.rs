//! B9: the holder is killed with `kill -9`.

use std::time::Duration;

use super::{Bench, note_errors, rotated};
use crate::Outcome;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::{Contend, Task};

const WHAT: &str = "expiry → next holder";
const TTL_MS: u64 = 2_000;
/// Waiters have made an attempt by then, and the holder has renewed.
const HOLD: Duration = Duration::from_millis(1_000);
/// What was on its way when the holder died has arrived by then.
const LAST_CALLS: Duration = Duration::from_millis(50);
const LENGTH: Duration = Duration::from_millis(5_000);

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(9, "kill -9 of the holder");
    let expiring: Vec<_> = Contender::LOCKS.into_iter().filter(|who| who.expiring_records().is_some()).collect();
    let rounds = bench.choose(2, 5);
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for who in rotated(&expiring, round) {
            one(bench, &mut figure, who, round).await?;
        }
    }
    figure.judge(WHAT, figure.median(Contender::Ours, WHAT), "ms", Bound::Most(300.0));
    figure.note(format!(
        "Leases of {} s; the time at which the lease expires is read from its record. `mongodb-lock` never expires: after the death of a holder its lock is never acquired again. \
         `mongo-lock` writes its clients' clocks into the record, which on one machine are the server's.",
        TTL_MS / 1000
    ));
    Ok(figure)
}

async fn one(bench: &Bench<'_>, figure: &mut Figure, who: Contender, round: usize) -> Outcome<()> {
    let settings = Settings { ttl_ms: TTL_MS, ..Settings::new(true) };
    let prefix = format!("killed-{round}-");
    // Number 0 is the only one.
    let key = format!("{prefix}0");
    let contend = Contend { key: key.clone(), waiters: 4, hold_ms: 20, every_turn: true, ..Contend::default() };
    let mut waiters = Worker::start(&bench.spec(who, settings, Task::Contend(contend))).await?;
    waiters.ready().await?;
    let holder = bench.spec(who, settings, Task::Hold { prefix, keys: 1 });
    let mut holder = Worker::start(&holder).await?;
    holder.ready().await?;

    let window = fleet::window(LENGTH);
    waiters.measure(window).await?;
    tokio::time::sleep(HOLD).await;
    holder.kill().await?;
    tokio::time::sleep(LAST_CALLS).await;
    let records = who.expiring_records().ok_or("locks that never expire")?;
    let expiry = bench.deployment.expiry(who.database(), records, &key).await?;

    let report = waiters.report(window).await?;
    let turns = report.waiters.iter().flat_map(|waiter| &waiter.turns);
    let next = turns.map(|turn| turn.acquired).min().ok_or("no waiter got the lock of the killed holder")?;
    // Milliseconds are what records hold, so that a grant may seem to come a little early.
    figure.push(who, WHAT, "ms", (next as f64 - expiry as f64) / 1e6);
    note_errors(figure, who, &[report]);
    Ok(())
}
