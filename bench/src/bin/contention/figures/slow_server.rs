//! B18: a server that answers writes late, and callers that wait for a bounded time.

mod seen;

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{LockGuard, LockProviderExt};
use distlock_mongo::MongoProvider;
use mongodb::bson::Document;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::seen::{FEW, GOODPUT, LOST, Problem, RECOVERY, Seen, Tallied, Tally};
use super::{Bench, isolated};
use crate::Outcome;
use crate::clock;
use crate::faults::SlowCommands;
use crate::locks::{Contender, Settings, ours, raw};
use crate::report::{Bound, Figure};

/// The driver's default.
const POOL: usize = 10;
const SLOW_BY: Duration = Duration::from_millis(500);
/// How long a caller waits for a lock. By hand: for acquisition, hold and release together.
const TIMEOUT: Duration = Duration::from_secs(3);
const FAULTS: [(&str, &[&str]); 2] =
    [("findAndModify slow", &["findAndModify"]), ("all writes slow", &["findAndModify", "update", "aggregate"])];
const TASKS: [usize; 2] = [200, 2_000];
const SHORT_TTL: Duration = Duration::from_secs(15);
const APP: &str = "distlock-bench-slow";
const WARM_UP: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
struct Phases {
    /// With as many tasks as the pool has connections, so that no call queues up.
    few: Duration,
    /// With all tasks.
    before: Duration,
    fault: Duration,
    after: Duration,
}

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(18, "a slow server, and callers that wait for 3 s");
    let seconds = Duration::from_secs;
    let phases = bench.choose(
        Phases { few: seconds(3), before: seconds(4), fault: seconds(20), after: seconds(15) },
        Phases { few: seconds(5), before: seconds(10), fault: seconds(60), after: seconds(30) },
    );
    for (fault, commands) in FAULTS {
        let short = Phases { few: seconds(5), before: seconds(0), fault: seconds(20), after: seconds(0) };
        let seen = one(bench, Contender::Raw, POOL, commands, short).await?;
        let who = format!("raw driver, {POOL} tasks");
        figure.push(&who, FEW, "/s", seen.few());
        let capacity = seen.goodput();
        figure.push(&who, format!("{fault}: {GOODPUT}"), "/s", capacity);
        for tasks in TASKS {
            let case = format!("{tasks} tasks, {fault}");
            for who in [Contender::Raw, Contender::Ours] {
                bench.progress(format_args!("{who}: {case}"));
                let seen = one(bench, who, tasks, commands, phases).await?;
                seen.describe(&mut figure, who, &case);
            }
            judge(&mut figure, &case, capacity);
        }
    }
    figure.note(format!(
        "Each task acquires a key of its own, holds it for 0 to 5 ms, releases it and starts again; after an error it \
         pauses for 50 to 100 ms. The server delays each named command of the client by {} ms. The client has the \
         driver's default pool of {POOL} connections.",
        SLOW_BY.as_millis()
    ));
    figure.note(format!(
        "The capacity is what the raw driver reaches with {POOL} tasks, one for each connection, so that no call is \
         wasted. The raw driver acquires and releases with `findAndModify` here, and so does distlock while few calls \
         are under way; further ones go in batches, by `update`. Of the {POOL} connections distlock keeps one for its change stream, one for renewals, and leaves one to the application."
    ));
    figure.note(
        "An acquisition by hand counts if both writes end within 3 s. Leases: one with a ttl of 15 s and one with the \
         default, held from before the fault to the end. The rate is normal from the first second with 0.8 × the rate \
         before the fault: that of all tasks or that of 10 tasks, whichever is greater.",
    );
    Ok(figure)
}

fn judge(figure: &mut Figure, case: &str, capacity: f64) {
    let name = |what: &str| format!("{case}: {what}");
    let ours = |figure: &Figure, what: &str| figure.median(Contender::Ours, &name(what));
    let lost = ours(figure, LOST);
    figure.judge(name(LOST), lost, "", Bound::Most(0.0));
    let capacity = (format!("raw driver, {POOL} tasks"), capacity);
    let goodput = ours(figure, GOODPUT);
    figure.judge_ratio(name(GOODPUT), goodput, "/s", capacity, Bound::Least(0.8));
    let recovery = ours(figure, RECOVERY);
    figure.judge(name(RECOVERY), recovery, "s", Bound::Most(2.0));
}

/// Runs one contender through all phases.
async fn one(
    bench: &Bench<'_>,
    who: Contender,
    tasks: usize,
    commands: &'static [&'static str],
    phases: Phases,
) -> Outcome<Seen> {
    bench.deployment.drop_database(who.database()).await?;
    let uri = bench.deployment.uri().to_owned();
    isolated(async move {
        let slow = SlowCommands::of(&uri, APP).await?;
        let seen = observe(&uri, &slow, who, tasks, commands, phases).await;
        slow.end().await?;
        seen
    })
    .await
}

async fn observe(
    uri: &str,
    slow: &SlowCommands,
    who: Contender,
    tasks: usize,
    commands: &[&str],
    phases: Phases,
) -> Outcome<Seen> {
    let mut options = ClientOptions::parse(uri).await?;
    options.app_name = Some(APP.to_owned());
    let client = Client::with_options(options)?;
    let (locks, leases) = if who == Contender::Ours {
        let provider = ours::provider(&client, who.database(), Settings::new(true)).await?;
        let leases =
            vec![provider.acquire("held-short").ttl(SHORT_TTL).await?, provider.acquire("held-default").await?];
        (Locks::Ours(provider), leases)
    } else {
        (Locks::Raw(raw::majority(&client, who.database(), "locks")), Vec::new())
    };
    let tally = Arc::new(Tally::default());
    let mut running = JoinSet::new();
    for lease in &leases {
        let (lost, tally) = (lease.lost(), Arc::clone(&tally));
        running.spawn(async move {
            lost.await;
            tally.lock().lost.push(clock::now());
        });
    }
    let mut start = |task: usize| {
        let (locks, tally) = (locks.clone(), Arc::clone(&tally));
        running.spawn(async move { locks.repeat(&format!("slow-{task}"), &tally).await });
    };
    (0..POOL.min(tasks)).for_each(&mut start);
    sleep(WARM_UP).await;
    let few_from = clock::now();
    sleep(phases.few).await;
    let few_to = clock::now();
    // Spread over the warm-up, so that the first acquisitions are not a burst.
    for task in POOL..tasks {
        start(task);
        let due = few_to + WARM_UP.as_nanos() as u64 * (task - POOL) as u64 / tasks as u64;
        if clock::now() < due {
            clock::sleep_until(due).await;
        }
    }
    let all_from = clock::now();
    sleep(phases.before).await;
    tally.lock().errors.clear();
    let from = clock::now();
    slow.begin(commands, SLOW_BY).await?;
    sleep(phases.fault).await;
    slow.end().await?;
    let to = clock::now();
    sleep(phases.after).await;
    let stop = clock::now();
    running.abort_all();
    leases.into_iter().for_each(LockGuard::abandon);
    let Tallied { acquired, errors, lost } = std::mem::take(&mut *tally.lock());
    Ok(Seen { acquired, errors, lost, few: (few_from, few_to), all_from, from, to, stop })
}

/// What a task repeats.
#[derive(Clone)]
enum Locks {
    Ours(MongoProvider),
    Raw(Collection<Document>),
}

impl Locks {
    async fn repeat(&self, key: &str, tally: &Tally) {
        loop {
            let done = match self {
                Self::Ours(provider) => lock(provider, key, tally).await,
                Self::Raw(records) => by_hand(records, key, tally).await,
            };
            if let Err(problem) = done {
                *tally.lock().errors.entry(problem).or_default() += 1;
                sleep(Duration::from_micros(fastrand::u64(50_000..100_000))).await;
            }
        }
    }
}

async fn lock(provider: &MongoProvider, key: &str, tally: &Tally) -> Result<(), Problem> {
    let acquired = provider.acquire(key).timeout(TIMEOUT).await;
    let guard = acquired.map_err(|error| ("acquire", error.kind().as_str()))?;
    tally.acquired();
    hold().await;
    match guard.release().await {
        Ok(outcome) if outcome.is_released() => Ok(()),
        Ok(_) => Err(("release", "already lost")),
        Err(error) => Err(("release", error.kind().as_str())),
    }
}

/// The record of an earlier, abandoned attempt does not matter: no other client wants the key.
async fn by_hand(records: &Collection<Document>, key: &str, tally: &Tally) -> Result<(), Problem> {
    let writes = async {
        raw::take(records, key).await.map_err(|_| ("acquire", "driver's error"))?;
        hold().await;
        raw::give_back(records, key).await.map_err(|_| ("release", "driver's error"))
    };
    timeout(TIMEOUT, writes).await.map_err(|_| ("both writes", "timeout"))??;
    tally.acquired();
    Ok(())
}

async fn hold() {
    sleep(Duration::from_micros(fastrand::u64(..5_000))).await;
}
