//! B17: one key again and again, with leases that linger.

use std::sync::Arc;
use std::time::Duration;

use super::{Bench, rotated};
use crate::Outcome;
use crate::clock;
use crate::commands::{Monitor, without_get_more};
use crate::locks::{Contender, Settings, connect};
use crate::report::{Bound, Figure};

/// How long a lease lingers, and its name.
const KINDS: [(u64, &str); 2] = [(0, "without linger"), (100, "linger 100 ms")];

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(17, "one key again and again by one task");
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    let (rounds, window) = bench.choose((3, Duration::from_secs(2)), (5, Duration::from_secs(10)));
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for (linger_ms, name) in rotated(&KINDS, round) {
            let monitor = Arc::new(Monitor::default());
            let settings = Settings { linger_ms, ..Settings::new(true) };
            let locks = connect(Contender::Ours, bench.uri(Contender::Ours), settings, &monitor).await?;
            locks.acquire(name).await?.release().await?;
            let (begun, before) = (clock::now(), without_get_more(&monitor.counts()));
            let end = begun + u64::try_from(window.as_nanos())?;
            let mut cycles = 0_u64;
            while clock::now() < end {
                locks.acquire(name).await?.release().await?;
                cycles += 1;
            }
            let seconds = clock::millis(clock::now() - begun) / 1000.0;
            let sent = without_get_more(&monitor.counts()) - before;
            figure.push(Contender::Ours, format!("{name}: acquisitions"), "/s", cycles as f64 / seconds);
            figure.push(Contender::Ours, format!("{name}: commands"), "/s", sent as f64 / seconds);
        }
    }
    for (linger_ms, name) in KINDS {
        let [acquisitions, commands] = ["acquisitions", "commands"].map(|what| format!("{name}: {what}"));
        let [rate, sent] = [&acquisitions, &commands].map(|what| figure.median(Contender::Ours, what));
        if linger_ms == 0 {
            figure.compare(&acquisitions, rate, "/s", None);
            figure.compare(&commands, sent, "/s", None);
        } else {
            figure.judge(&acquisitions, rate, "/s", Bound::Least(100_000.0));
            figure.judge(&commands, sent, "/s", Bound::Most(25.0));
        }
    }
    figure.note("One task acquires and releases one key without a pause. Commands include renewals, not `getMore`.");
    Ok(figure)
}
