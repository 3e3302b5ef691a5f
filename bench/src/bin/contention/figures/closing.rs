//! B26: a process with many leases closes its provider.

use std::time::Duration;

use distlock_api::LockProvider;
use mongodb::Client;
use mongodb::bson::{Document, doc};
use tokio::time::Instant;

use super::many_leases::acquire;
use super::{Bench, isolated};
use crate::Outcome;
use crate::locks::{Contender, Settings, ours};
use crate::report::machine::resident_bytes;
use crate::report::{Bound, Figure};

const TTL: Duration = Duration::from_secs(300);

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(26, "closing a provider with many leases");
    let who = Contender::Ours;
    for leases in bench.choose(&[1_000, 10_000][..], &[10_000, 100_000]).iter().copied() {
        bench.progress(format_args!("{leases} leases"));
        bench.deployment.drop_database(who.database()).await?;
        let uri = bench.deployment.uri().to_owned();
        let seen = isolated(async move { close(&uri, leases).await }).await?;
        let (rate, bytes) = (leases as f64 / seen.closing.as_secs_f64(), seen.bytes as f64 / leases as f64);
        let of = |what: &str| format!("{leases} leases: {what}");
        figure.push(who, &of("time"), "s", seen.closing.as_secs_f64());
        figure.judge(of("released"), rate, "/s", Bound::Least(5_000.0));
        figure.judge(of("left behind"), seen.left as f64, "", Bound::Most(0.0));
        figure.judge(of("memory per lease"), bytes, "bytes", Bound::Most(8_000.0));
    }
    bench.deployment.drop_database(who.database()).await?;
    figure.note("Memory is what the process grew by from before the first acquisition to the end of `close`.");
    Ok(figure)
}

struct Seen {
    closing: Duration,
    bytes: i64,
    /// Records that are still held afterwards.
    left: u64,
}

async fn close(uri: &str, leases: usize) -> Outcome<Seen> {
    let client = Client::with_uri_str(uri).await?;
    let database = Contender::Ours.database();
    let provider = ours::provider(&client, database, Settings::new(true)).await?;
    let before = resident_bytes()?;
    let guards = acquire(&provider, leases, TTL).await?;
    let start = Instant::now();
    provider.close().await?;
    let (closing, bytes) = (start.elapsed(), resident_bytes()? - before);
    drop(guards);
    let records = client.database(database).collection::<Document>("locks");
    let left = records.count_documents(doc! { "lockId": { "$exists": true } }).await?;
    Ok(Seen { closing, bytes, left })
}
