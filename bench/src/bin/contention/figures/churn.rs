//! B25: a million keys, each used once, and every second acquisition is dropped.

use std::time::Duration;

use super::Bench;
use crate::Outcome;
use crate::fleet::Worker;
use crate::locks::{Contender, Settings};
use crate::report::{Bound, Figure};
use crate::worker::protocol::{Backend, Churn, Task};

const BACKENDS: [(&str, Backend); 3] = [
    ("memory backend", Backend::Memory),
    ("lease engine over MemoryStore", Backend::Engine),
    ("MongoDB", Backend::MongoDb),
];
/// For a million acquisitions on MongoDB.
const REPORT_LIMIT: Duration = Duration::from_secs(1_500);
const MIB: f64 = 1024.0 * 1024.0;

const EARLY: &str = "resident memory after a tenth";
const LATE: &str = "resident memory at the end";
const FAILED: &str = "acquisitions that failed";
const LEFT: &str = "leases, tickets and calls left";
const UNPURGED: &str = "records that stay for ever";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(25, "1 M keys, each used once; every second acquisition is dropped");
    let acquisitions = bench.choose(50_000, 1_000_000);
    for (who, backend) in BACKENDS {
        bench.progress(format_args!("{who}: {acquisitions} acquisitions"));
        bench.deployment.drop_database(Contender::Ours.database()).await?;
        let task = Task::Churn(Churn { backend, acquisitions });
        let worker = Worker::start(&bench.spec(Contender::Ours, Settings::new(true), task)).await?;
        let report = worker.report_within(REPORT_LIMIT).await?;
        let seen = report.churned.ok_or("the child measured nothing")?;

        let [before, early, late] = seen.resident.map(|bytes| bytes as f64 / MIB);
        figure.push(who, "resident memory before", "MiB", before);
        figure.push(who, EARLY, "MiB", early);
        figure.push(who, LATE, "MiB", late);
        figure.push(who, "acquisitions", "/s", acquisitions as f64 / seen.seconds);
        figure.push(who, "futures dropped", "", seen.dropped as f64);
        figure.push(who, "guards dropped, whose futures were quicker", "", seen.guards_dropped as f64);
        figure.push(who, FAILED, "", seen.errors as f64);
        figure.push(who, LEFT, "", seen.left as f64);
        figure.push(who, UNPURGED, "", seen.unpurged as f64);
        figure.push(who, "records within their grace", "", seen.in_grace as f64);

        let reference = ("that after a tenth".to_owned(), early);
        figure.judge_ratio(format!("{who}: {LATE}"), late, "MiB", reference, Bound::Most(1.1));
        let zeros = [(FAILED, seen.errors), (LEFT, seen.left), (UNPURGED, seen.unpurged)];
        for (what, count) in zeros {
            figure.judge(format!("{who}: {what}"), count as f64, "", Bound::Most(0.0));
        }
        if let Some(error) = seen.first_error {
            figure.note(format!("{who}: an acquisition failed: {}", error.chars().take(160).collect::<String>()));
        }
    }
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    figure.note(format!(
        "{acquisitions} acquisitions by 512 tasks, in a process of its own per backend. Every second future, or the \
         guard that it returns if it is quicker, is dropped: on MongoDB at a random moment of the time that an \
         acquisition usually takes. In memory a free key is granted at once, so another guard holds the keys of these \
         acquisitions, and they are dropped before the key is released, with it, or a few turns of the runtime later."
    ));
    figure.note(
        "Resident memory is that of the process, when all tasks have ended and nothing is left of their acquisitions. \
         Records of `MemoryStore`, which is in the same process, are purged after every 2,500 keys, as MongoDB \
         does an hour later.",
    );
    Ok(figure)
}
