//! B21: what the application's own finds take beside collections with locks, on one client.

use std::time::Duration;

use distlock_api::LeaseOptions;
use distlock_mongo::{DocumentGuard, DocumentLocks};
use futures_util::stream::{self, StreamExt};
use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Bench, isolated};
use crate::Outcome;
use crate::clock::{self, Nanos, millis};
use crate::locks::Contender;
use crate::report::{Bound, Figure};
use crate::stats::quantile;

const COLLECTIONS: [usize; 3] = [1, 10, 100];
const TTL: Duration = Duration::from_secs(3);
const FINDERS: usize = 4;
const DOCUMENTS: i32 = 100;
/// After each find, so that processor time is left for the servers and the locks.
const PAUSE: Duration = Duration::from_millis(5);
const WARM_UP: Duration = Duration::from_secs(1);
/// How many collections are locked at the same time, and how long each may take.
const AT_A_TIME: usize = 4;
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const DATABASE: &str = "bench_finds";
const LOCKED: &str = "bench_finds_locked";
const ALONE: &str = "without locks";

const MEDIAN: &str = "finds, p50";
const TAIL: &str = "finds, p99";
const ERRORS: &str = "finds that failed";
const LOST: &str = "leases lost";
const REFUSED: &str = "locks not acquired";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(21, "the application's own finds beside locks");
    let window = bench.choose(Duration::from_secs(6), Duration::from_secs(15));
    prepare(bench).await?;
    for collections in COLLECTIONS {
        bench.progress(format_args!("{collections} collections"));
        let name = |what: &str| format!("{collections} collections: {what}");
        // Half of it before and half of it after, so that a drift of the machine cancels out.
        let mut alone = without_locks(bench, window / 2).await?;
        let uri = bench.deployment.uri().to_owned();
        let beside = isolated(async move { beside_locks(&uri, collections, window).await }).await?;
        alone.add(without_locks(bench, window / 2).await?);

        for (who, finds) in [(ALONE, &alone), (Contender::Ours.name(), &beside.finds)] {
            figure.push(who, name(MEDIAN), "ms", quantile(&finds.times, 0.5));
            figure.push(who, name(TAIL), "ms", quantile(&finds.times, 0.99));
            figure.push(who, name(ERRORS), "", finds.errors as f64);
        }
        figure.push(Contender::Ours, name(REFUSED), "", beside.refused as f64);
        figure.push(Contender::Ours, name(LOST), "", beside.lost as f64);

        let reference = (ALONE.to_owned(), figure.median(ALONE, &name(MEDIAN)));
        let ours = figure.median(Contender::Ours, &name(MEDIAN));
        figure.judge_ratio(name(MEDIAN), ours, "ms", reference, Bound::Most(1.1));
        figure.judge(name(REFUSED), beside.refused as f64, "", Bound::Most(0.0));
        figure.judge(name(LOST), beside.lost as f64, "", Bound::Most(0.0));
        if let Some(problem) = beside.problem {
            figure.note(format!("{collections} collections: a lock was not acquired: {problem}"));
        }
    }
    for database in [DATABASE, LOCKED] {
        bench.deployment.drop_database(database).await?;
    }
    figure.note(format!(
        "{FINDERS} tasks find one document by its `_id`, pause for {} ms and start again, with a client with the driver's \
         default pool of 10 connections. `DocumentLocks` of each collection use the same client and hold one lease with \
         a ttl of {} s. Finds that the end of the measurement cuts off count with the time until then.",
        PAUSE.as_millis(),
        TTL.as_secs()
    ));
    Ok(figure)
}

/// Writes the documents to find and those to lock.
async fn prepare(bench: &Bench<'_>) -> Outcome<()> {
    for database in [DATABASE, LOCKED] {
        bench.deployment.drop_database(database).await?;
    }
    let client = Client::with_uri_str(bench.deployment.uri()).await?;
    documents(&client).insert_many((0..DOCUMENTS).map(|id| doc! { "_id": id, "text": "x".repeat(100) })).await?;
    for number in 0..COLLECTIONS.into_iter().max().unwrap_or_default() {
        locked(&client, number).insert_one(doc! { "_id": "one" }).await?;
    }
    Ok(())
}

fn documents(client: &Client) -> Collection<Document> {
    client.database(DATABASE).collection("documents")
}

fn locked(client: &Client, number: usize) -> Collection<Document> {
    client.database(LOCKED).collection(&format!("locked_{number}"))
}

async fn without_locks(bench: &Bench<'_>, window: Duration) -> Outcome<Finds> {
    let uri = bench.deployment.uri().to_owned();
    isolated(async move { find(&Client::with_uri_str(&uri).await?, window).await }).await
}

async fn beside_locks(uri: &str, collections: usize, window: Duration) -> Outcome<Beside> {
    let client = Client::with_uri_str(uri).await?;
    let answers: Vec<_> = stream::iter(0..collections)
        .map(|number| lock(locked(&client, number)))
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    let mut guards = Vec::new();
    let (mut refused, mut problem) = (0, None);
    for answer in answers {
        match answer {
            Ok(guard) => guards.push(guard),
            Err(error) => {
                refused += 1;
                problem = Some(error.to_string());
            }
        }
    }
    let finds = find(&client, window).await?;
    let lost = guards.iter().filter(|(_, guard)| guard.is_lost()).count();
    Ok(Beside { finds, refused, lost, problem })
}

/// The guard, with the locks that renew its lease.
async fn lock(collection: Collection<Document>) -> Outcome<(DocumentLocks<Document>, DocumentGuard<Document>)> {
    let locks = DocumentLocks::builder(&collection).lease(LeaseOptions::new().ttl(TTL)).build()?;
    let guard = timeout(LOCK_LIMIT, async { locks.lock("one").await }).await.map_err(|_| "no answer")??;
    Ok((locks, guard))
}

/// Lets the tasks find for a while.
async fn find(client: &Client, window: Duration) -> Outcome<Finds> {
    let start = clock::now() + WARM_UP.as_nanos() as u64;
    let stop = start + window.as_nanos() as u64;
    let mut finders = JoinSet::new();
    for _ in 0..FINDERS {
        finders.spawn(find_until(documents(client), start, stop));
    }
    let mut all = Finds::default();
    while let Some(finds) = finders.join_next().await {
        all.add(finds?);
    }
    Ok(all)
}

async fn find_until(documents: Collection<Document>, start: Nanos, stop: Nanos) -> Finds {
    let mut finds = Finds::default();
    while clock::now() < stop {
        let requested = clock::now();
        let find = async { documents.find_one(doc! { "_id": fastrand::i32(0..DOCUMENTS) }).await };
        let failed = tokio::select! {
            found = find => !matches!(found, Ok(Some(_))),
            () = clock::sleep_until(stop) => false,
        };
        let ended = clock::now();
        if ended >= start {
            finds.times.push(millis(ended - requested));
            finds.errors += u64::from(failed);
        }
        sleep(PAUSE).await;
    }
    finds
}

/// Finds, with their times in milliseconds.
#[derive(Default)]
struct Finds {
    times: Vec<f64>,
    errors: u64,
}

impl Finds {
    fn add(&mut self, others: Self) {
        self.times.extend(others.times);
        self.errors += others.errors;
    }
}

/// What was observed beside locks.
struct Beside {
    finds: Finds,
    refused: usize,
    lost: usize,
    problem: Option<String>,
}
