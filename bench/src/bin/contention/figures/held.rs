//! B7: leases that are held and kept alive.

use std::time::Duration;

use super::Bench;
use crate::Outcome;
use crate::commands;
use crate::fleet::{self, Worker};
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::{Task, Window};

/// Of leases of 30 s.
const CADENCE: Duration = Duration::from_secs(10);
const ACQUIRE_LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(7, "held leases, renewed every 10 s");
    let length = CADENCE * bench.choose(1, 3);
    for (keys, most) in [(1_000, 0.5), (10_000, 3.0)] {
        bench.progress(format_args!("{keys} leases of ours"));
        bench.deployment.drop_database(Contender::Ours.database()).await?;
        let task = Task::Hold { prefix: format!("held-{keys}-"), keys };
        let mut worker = Worker::start(&bench.spec(Contender::Ours, Settings::new(true), task)).await?;
        worker.ready_within(ACQUIRE_LIMIT).await?;
        let (rate, cpu) = (format!("{keys} leases: commands"), format!("{keys} leases: client's processor time"));
        let lost = measure(&mut figure, Contender::Ours, worker, &rate, &cpu, length).await?;
        let lost_name = format!("{keys} leases: lost");
        figure.push(Contender::Ours, &lost_name, "", lost as f64);
        figure.judge(&rate, figure.median(Contender::Ours, &rate), "/s", Bound::Most(most));
        figure.judge(lost_name, lost as f64, "", Bound::Most(0.0));
        if keys == 10_000 {
            figure.judge(&cpu, figure.median(Contender::Ours, &cpu), "% of a core", Bound::Most(2.0));
        }
        bench.deployment.drop_database(Contender::Ours.database()).await?;
    }

    let leases = 1_000;
    bench.progress(format_args!("{leases} leases by hand, an update each"));
    let task = Task::RenewEach { leases, cadence_ms: CADENCE.as_millis() as u64 };
    let mut worker = Worker::start(&bench.spec(Contender::Raw, Settings::new(true), task)).await?;
    worker.ready().await?;
    let (rate, cpu) = (format!("{leases} leases: commands"), format!("{leases} leases: client's processor time"));
    measure(&mut figure, Contender::Raw, worker, &rate, &cpu, length).await?;
    figure.note("No peer renews its leases: `distributed-lock-mongo` has the code but does not start it, `mongodb-lock` never expires, `mongo-lock` leaves it to its caller. Beside ours stands one update per lease and cadence by hand.");
    Ok(figure)
}

/// Measures after one cadence, in which renewals find together. Returns how many leases were lost.
async fn measure(
    figure: &mut Figure,
    who: Contender,
    mut worker: Worker,
    rate: &str,
    cpu: &str,
    length: Duration,
) -> Outcome<u64> {
    let after = fleet::window(length);
    let settle = CADENCE.as_nanos() as u64;
    let window = Window { start: after.start + settle, stop: after.stop + settle };
    worker.measure(window).await?;
    let report = worker.report(window).await?;
    figure.push(who, rate, "/s", commands::without_get_more(&report.commands) as f64 / window.seconds());
    figure.push(who, cpu, "% of a core", report.cpu_ns as f64 / 1e7 / window.seconds());
    Ok(report.lost)
}
