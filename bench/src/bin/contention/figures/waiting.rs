//! B8: tasks that wait for locks which stay where they are.

use std::time::Duration;

use super::Bench;
use crate::Outcome;
use crate::commands;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::{Task, Window};

const KEYS: usize = 1_000;
const WHAT: &str = "commands";
/// For every task to have made one attempt.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(8, "1,000 waiting tasks on 1,000 keys held elsewhere");
    for who in Contender::LOCKS {
        bench.progress(who);
        // Peers do not renew, so that their leases must outlast the figure.
        let settings = Settings { ttl_ms: 120_000, ..Settings::new(true) };
        let prefix = "waited-for-".to_owned();
        let holder = bench.spec(who, settings, Task::Hold { prefix: prefix.clone(), keys: KEYS });
        let mut holder = Worker::start(&holder).await?;
        holder.ready().await?;
        let waiter = bench.spec(who, settings, Task::Wait { prefix, keys: KEYS });
        let mut waiter = Worker::start(&waiter).await?;
        waiter.ready().await?;

        // A peer's commands per second show at once, and cost every other process.
        let length = if who == Contender::Ours { bench.choose(10, 30) } else { 5 };
        let after = fleet::window(Duration::from_secs(length));
        let settle = SETTLE.as_nanos() as u64;
        let window = Window { start: after.start + settle, stop: after.stop + settle };
        waiter.measure(window).await?;
        let report = waiter.report(window).await?;
        holder.kill().await?;
        bench.deployment.drop_database(who.database()).await?;

        figure.push(who, WHAT, "/s", commands::without_get_more(&report.commands) as f64 / window.seconds());
        figure.push(
            who,
            "waiting process's processor time",
            "% of a core",
            report.cpu_ns as f64 / 1e7 / window.seconds(),
        );
    }
    figure.judge(WHAT, figure.median(Contender::Ours, WHAT), "/s", Bound::Most(2.0));
    figure.note("Only the commands of the process that waits are counted. Peers would poll 100,000 times a second; what they reach is what the machine can bear.");
    Ok(figure)
}
