//! B10: the primary is killed. Each contender gets a replica set of its own, because a set of three
//! survives that once.

use std::time::Duration;

use super::{Bench, note_errors};
use crate::Outcome;
use crate::clock::millis;
use crate::deployment::Deployment;
use crate::fleet;
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::{Contend, Report, Task};

const PROGRESS: &str = "new primary → next acquisition";
const ERRORS: &str = "acquisitions that failed";
const LENGTH: Duration = Duration::from_secs(24);
const UNDISTURBED: Duration = Duration::from_secs(2);
/// Shorter than the rest of the window, so that a lock whose release was lost comes free within it.
const TTL_MS: u64 = 8_000;

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(10, "primary killed under 16 waiters");
    for who in Contender::LOCKS {
        bench.progress(who);
        let deployment = Deployment::start().await?;
        let seen = one(&Bench { deployment: &deployment, quick: bench.quick, ..*bench }, &mut figure, who).await;
        deployment.stop().await;
        match seen {
            Ok(()) => {}
            Err(error) if who != Contender::Ours => figure.note(format!("{who}: {error}")),
            Err(error) => return Err(error),
        }
    }
    figure.judge(ERRORS, figure.median(Contender::Ours, ERRORS), "", Bound::Most(0.0));
    figure.judge(PROGRESS, figure.median(Contender::Ours, PROGRESS), "ms", Bound::Most(1_000.0));
    figure.note(format!(
        "4 processes × 4 waiters, hold 20 ms, leases of {} s, elections after 2 s. The members are queried for the new primary every 5 ms.",
        TTL_MS / 1000
    ));
    Ok(figure)
}

async fn one(bench: &Bench<'_>, figure: &mut Figure, who: Contender) -> Outcome<()> {
    let settings = Settings { ttl_ms: TTL_MS, ..Settings::new(true) };
    let contend =
        Contend { key: "failover".to_owned(), waiters: 4, hold_ms: 20, every_turn: true, ..Contend::default() };
    let specs = vec![bench.spec(who, settings, Task::Contend(contend)); 4];
    let mut workers = fleet::start_all(&specs).await?;
    let window = fleet::measure_all(&mut workers, LENGTH).await?;
    tokio::time::sleep(UNDISTURBED).await;
    let (killed, elected) = bench.deployment.kill_primary().await?;
    let reports = fleet::reports(workers, window).await?;

    figure.push(who, "kill → new primary", "ms", millis(elected - killed));
    let next = turns(&reports).filter(|&acquired| acquired > elected).min();
    match next {
        Some(next) => figure.push(who, PROGRESS, "ms", millis(next - elected)),
        None => {
            let rest = millis(window.stop - elected) / 1000.0;
            figure.note(format!("{who}: no waiter got the lock in the {rest:.0} s after the election."));
        }
    }
    let waiters = || reports.iter().flat_map(|report| &report.waiters);
    note_errors(figure, who, &reports);
    if waiters().all(|waiter| waiter.errors == 0) {
        figure.push(who, ERRORS, "", 0.0);
    }
    figure.push(who, "releases that failed", "", waiters().map(|waiter| waiter.release_errors).sum::<u64>() as f64);
    Ok(())
}

fn turns(reports: &[Report]) -> impl Iterator<Item = u64> {
    reports.iter().flat_map(|report| &report.waiters).flat_map(|waiter| &waiter.turns).map(|turn| turn.acquired)
}
