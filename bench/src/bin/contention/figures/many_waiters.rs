//! B24: 100,000 waiters of one process for one key, and lists of 100,000 locks.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use distlock_api::{ListOptions, LockError, LockGuard, LockProvider, LockProviderExt};
use distlock_memory::{MemoryProvider, MemoryStore};
use futures_util::{FutureExt, TryStreamExt};
use mongodb::Client;
use tokio::sync::{Mutex, Notify};
use tokio::task::unconstrained;
use tokio::time::sleep;

use super::{Bench, isolated, many_leases};
use crate::Outcome;
use crate::locks::{Contender, Settings, ours};
use crate::report::{Bound, Figure};

const KEY: &str = "orders/4711";
/// Divides the numbers of a second, smaller measurement, which shows what grows faster than they.
const PART: usize = 10;
const PAGE: usize = 100;
/// So that no renewal runs beside the list.
const TTL: Duration = Duration::from_secs(1_800);
/// For what is left after waiters are dropped.
const SETTLE: Duration = Duration::from_secs(30);
/// A list that takes longer is given up.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// The order in which waiters are dropped.
#[derive(Clone, Copy)]
enum Order {
    Front,
    Back,
    Random,
}

const ORDERS: [(Order, &str); 3] =
    [(Order::Front, "from the front"), (Order::Back, "from the back"), (Order::Random, "at random")];

/// A new provider of a backend in memory.
type Make = fn() -> Arc<dyn LockProvider>;

const IN_MEMORY: [(&str, Make); 2] = [
    ("memory backend", || Arc::new(MemoryProvider::new())),
    ("lease engine over MemoryStore", || Arc::new(MemoryStore::new().provider())),
];

/// A lock without keys. The time in which its waiters are dropped is mostly that of their memory.
const BARE: &str = "tokio Mutex";

const SERVE: &str = "all served";
const LIST: &str = "list in pages of 100";

pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let mut figure = bench.figure(24, "many waiters of one process for one key, and lists of many locks");
    let (rounds, count) = bench.choose((1, 20_000), (5, 100_000));
    for round in 0..rounds {
        bench.progress(format_args!("{count} waiters, round {} of {rounds}", round + 1));
        for (who, make) in IN_MEMORY {
            for count in [count / PART, count] {
                let served = isolated(async move { serve(make(), count).await }).await?;
                figure.push(who, waiters(count, SERVE), "ms", served);
                for (order, name) in ORDERS {
                    let dropped = isolated(async move { drop_all(make(), count, order).await }).await?;
                    figure.push(who, waiters(count, name), "ms", dropped);
                }
            }
        }
        for (order, name) in ORDERS {
            let dropped = isolated(async move { drop_all_bare(count, order).await }).await?;
            figure.push(BARE, waiters(count, name), "ms", dropped);
        }
    }
    for (who, make) in IN_MEMORY {
        bench.progress(format_args!("{who}: a list of {count} locks"));
        for count in [count / PART, count] {
            let listed = isolated(async move { list_in_memory(make(), count).await }).await?;
            push_list(&mut figure, who, count, listed);
        }
    }
    bench.progress(format_args!("MongoDB: a list of {count} locks"));
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    let uri = bench.deployment.uri().to_owned();
    for count in [count / PART, count] {
        let uri = uri.clone();
        let listed = isolated(async move { list_on_mongo(&uri, count).await }).await?;
        push_list(&mut figure, "MongoDB", count, listed);
    }
    bench.deployment.drop_database(Contender::Ours.database()).await?;
    judge(&mut figure, count);
    figure.note(
        "All waiters are futures of one process, and have been polled once. They are served by hand-offs within the \
         process, in a task each, from the release of the first holder on. The time of drops ends when the provider \
         counts no waiter. A list that takes longer than 60 s is given up.",
    );
    Ok(figure)
}

fn judge(figure: &mut Figure, count: usize) {
    for (who, _) in IN_MEMORY {
        let (served, part) = (figure.median(who, &waiters(count, SERVE)), waiters(count / PART, SERVE));
        let reference = (format!("{PART} × {}", count / PART), PART as f64 * figure.median(who, &part));
        figure.compare(format!("{who}: {}", waiters(count, SERVE)), served, "ms", reference);
        for (_, name) in ORDERS {
            let what = waiters(count, name);
            let dropped = figure.median(who, &what);
            let reference = (BARE.to_owned(), figure.median(BARE, &what));
            figure.judge(format!("{who}: {what}"), dropped, "ms", Bound::Most(100.0));
            figure.compare(format!("{who}: {what}, beside it"), dropped, "ms", reference);
        }
    }
    let what = locks(count);
    for (who, seconds) in [(IN_MEMORY[0].0, 1.0), (IN_MEMORY[1].0, 1.0), ("MongoDB", 5.0)] {
        let listed = figure.median(who, &what);
        figure.judge(format!("{who}: {what}"), listed, "s", Bound::Most(seconds));
    }
}

fn waiters(count: usize, what: &str) -> String {
    let dropped = if what == SERVE { "" } else { "dropped " };
    format!("{count} waiters: {dropped}{what}")
}

fn locks(count: usize) -> String {
    format!("{count} locks: {LIST}")
}

/// The time until all waiters have had the key, in ms. Each releases it at once.
async fn serve(provider: Arc<dyn LockProvider>, count: usize) -> Outcome<f64> {
    let holder = provider.acquire(KEY).await?;
    let (left, served) = (Arc::new(AtomicUsize::new(count)), Arc::new(Notify::new()));
    let failed = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (provider, left, served, failed) = (provider.clone(), left.clone(), served.clone(), failed.clone());
        tokio::spawn(async move {
            let turn = async { provider.acquire(KEY).await?.release().await };
            if !turn.await.is_ok_and(|outcome| outcome.is_released()) {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                served.notify_one();
            }
        });
    }
    until_waiting(&*provider, count).await?;
    let start = Instant::now();
    holder.release().await?;
    served.notified().await;
    let time = start.elapsed();
    match failed.load(Ordering::Relaxed) {
        0 => Ok(time.as_secs_f64() * 1_000.0),
        failed => Err(format!("{failed} of {count} waiters were not served").into()),
    }
}

/// The time to drop all waiters, in ms.
async fn drop_all(provider: Arc<dyn LockProvider>, count: usize, order: Order) -> Outcome<f64> {
    let holder = provider.acquire(KEY).await?;
    let waits = begin(count, || {
        let provider = Arc::clone(&provider);
        Box::pin(async move { provider.acquire(KEY).await.map(drop) })
    })?;
    until_waiting(&*provider, count).await?;
    let start = drop_in(order, waits);
    until_waiting(&*provider, 0).await?;
    let time = start.elapsed();
    holder.release().await?;
    let free = provider.try_acquire(KEY).await?;
    free.ok_or("the key is not free after its waiters have left")?.release().await?;
    Ok(time.as_secs_f64() * 1_000.0)
}

/// The same with a bare mutex.
async fn drop_all_bare(count: usize, order: Order) -> Outcome<f64> {
    let mutex = Arc::new(Mutex::new(()));
    let holder = Arc::clone(&mutex).lock_owned().await;
    let waits = begin(count, || {
        let mutex = Arc::clone(&mutex);
        Box::pin(async move { Ok(drop(mutex.lock_owned().await)) })
    })?;
    let start = drop_in(order, waits);
    let time = start.elapsed();
    drop(holder);
    drop(mutex.try_lock()?);
    Ok(time.as_secs_f64() * 1_000.0)
}

type Wait = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// Makes waiters, and polls each once.
fn begin(count: usize, wait: impl Fn() -> Wait) -> Outcome<Vec<Wait>> {
    let mut waits: Vec<Wait> = (0..count).map(|_| wait()).collect();
    for wait in &mut waits {
        // The runtime would otherwise make some of so many polls wait for the next turn.
        if unconstrained(wait).now_or_never().is_some() {
            return Err("a waiter did not wait".into());
        }
    }
    Ok(waits)
}

/// Drops the waiters, and returns when that began.
fn drop_in(order: Order, waits: Vec<Wait>) -> Instant {
    let mut places: Vec<usize> = (0..waits.len()).collect();
    match order {
        Order::Front => {}
        Order::Back => places.reverse(),
        Order::Random => fastrand::Rng::with_seed(24).shuffle(&mut places),
    }
    let mut waits: Vec<Option<Wait>> = waits.into_iter().map(Some).collect();
    let start = Instant::now();
    places.into_iter().for_each(|place| waits[place] = None);
    start
}

async fn until_waiting(provider: &dyn LockProvider, count: usize) -> Outcome<()> {
    let end = Instant::now() + SETTLE;
    loop {
        let waiting = provider.accounting().waiting;
        if waiting == count as u64 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("the provider counts {waiting} waiters, not {count}").into());
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// What a list showed.
struct Listed {
    time: Duration,
    /// If it was given up: how many locks it had shown by then.
    given_up: Option<usize>,
}

fn push_list(figure: &mut Figure, who: &str, count: usize, listed: Listed) {
    figure.push(who, locks(count), "s", listed.time.as_secs_f64());
    if let Some(shown) = listed.given_up {
        figure.note(format!("{who}: the list of {count} locks was given up after {shown} of them."));
    }
}

async fn list_in_memory(provider: Arc<dyn LockProvider>, count: usize) -> Outcome<Listed> {
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(provider.acquire(format!("many-{number}")).ttl(TTL).await?);
    }
    let listed = list(&*provider, count).await;
    guards.into_iter().for_each(LockGuard::abandon);
    listed
}

async fn list_on_mongo(uri: &str, count: usize) -> Outcome<Listed> {
    let client = Client::with_uri_str(uri).await?;
    let provider = ours::provider(&client, Contender::Ours.database(), Settings::new(true)).await?;
    let guards = many_leases::acquire(&provider, count, TTL).await?;
    let listed = list(&provider, count).await;
    let released = provider.admin().ok_or("the provider has no administration")?;
    released.release_owner(many_leases::OWNER, "the list is measured").await?;
    guards.into_iter().for_each(LockGuard::abandon);
    provider.close().await?;
    listed
}

/// Lists all locks, and counts them.
async fn list(provider: &dyn LockProvider, count: usize) -> Outcome<Listed> {
    let admin = provider.admin().ok_or("the provider has no administration")?;
    let start = Instant::now();
    let mut locks = admin.list(ListOptions::new().page_size(PAGE));
    let mut shown = 0;
    while locks.try_next().await?.is_some() {
        shown += 1;
        if shown % PAGE == 0 && start.elapsed() > LIST_LIMIT {
            return Ok(Listed { time: start.elapsed(), given_up: Some(shown) });
        }
    }
    if shown != count {
        return Err(format!("a list of {count} locks shows {shown}").into());
    }
    Ok(Listed { time: start.elapsed(), given_up: None })
}
