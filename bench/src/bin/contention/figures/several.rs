//! B15: several free keys in one call.

use distlock_api::{LockProvider, LockProviderExt};
use distlock_mongo::MongoProvider;
use mongodb::Client;

use super::{Bench, rotated};
use crate::Outcome;
use crate::clock::{self, millis};
use crate::locks::{Contender, Settings, ours};
use crate::report::{Bound, Figure};
use crate::stats::quantile;

/// How many keys, and what is expected of the acquisition and the release beside those of one.
const GROUPS: [(usize, Option<(f64, f64)>); 4] = [(1, None), (4, None), (16, Some((2.5, 2.0))), (64, Some((4.0, 3.0)))];

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(15, "several free keys in one call");
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    let client = Client::with_uri_str(bench.uri(Contender::Ours)).await?;
    let provider = ours::provider(&client, Contender::Ours.database(), Settings::new(true)).await?;
    for (count, _) in GROUPS {
        cycle(&provider, count, 5).await?;
    }
    let (rounds, cycles) = bench.choose((3, 20), (9, 50));
    for round in 0..rounds {
        bench.progress(format_args!("round {} of {rounds}", round + 1));
        for (count, _) in rotated(&GROUPS, round) {
            let [acquisitions, releases] = cycle(&provider, count, cycles).await?;
            figure.push(Contender::Ours, what(count, "acquire"), "ms", quantile(&acquisitions, 0.5));
            figure.push(Contender::Ours, what(count, "release"), "ms", quantile(&releases, 0.5));
        }
    }
    provider.close().await?;
    for (count, expected) in GROUPS {
        for (at, step) in ["acquire", "release"].into_iter().enumerate() {
            let (what, one) = (what(count, step), what(1, step));
            let ours = figure.median(Contender::Ours, &what);
            let reference = (format!("one key, {step}"), figure.median(Contender::Ours, &one));
            match expected {
                Some((acquire, release)) => {
                    let most = if at == 0 { acquire } else { release };
                    figure.judge_ratio(&what, ours, "ms", reference, Bound::Most(most));
                }
                None => figure.compare(&what, ours, "ms", reference),
            }
        }
    }
    figure.note(
        "`acquire_all` of keys that are free and were used before, and the release of its guard. The client's pool has \
         ten connections.",
    );
    Ok(figure)
}

fn what(count: usize, step: &str) -> String {
    format!("{count} key{}: {step}, p50", if count == 1 { "" } else { "s" })
}

/// The times of the acquisitions and of the releases.
async fn cycle(provider: &MongoProvider, count: usize, cycles: usize) -> Outcome<[Vec<f64>; 2]> {
    let keys: Vec<String> = (0..count).map(|number| format!("several-{count}-{number}")).collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..cycles {
        let start = clock::now();
        let all = provider.acquire_all(&keys).await?;
        let held = clock::now();
        all.release().await?;
        times[0].push(millis(held - start));
        times[1].push(millis(clock::now() - held));
    }
    Ok(times)
}
