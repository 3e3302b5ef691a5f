//! B14 and S8: many tasks of one process, each with a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Bench, Id, best_peer, isolated, rotated};
use crate::Outcome;
use crate::clock;
use crate::commands::{self, Monitor};
use crate::deployment;
use crate::locks::{self, Contender, Locks, Mode, Settings};
use crate::report::{Bound, Figure};

/// More than a call of each contender needs; the same for all.
const POOL: u32 = 100;
/// `mongo-lock` blocks a thread per acquisition, and would not be measured but the threads.
const CONTENDERS: [Contender; 4] =
    [Contender::Raw, Contender::Ours, Contender::DistributedLock, Contender::MongodbLock];
/// How many tasks there are, and what is expected of us beside the raw driver.
const TASKS: [(usize, f64); 5] = [(1, 0.95), (16, 1.0), (64, 1.3), (256, 2.0), (1_024, 2.5)];
const WARM_UP: Duration = Duration::from_secs(1);

/// Which keys a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Its own, again and again.
    Same,
    /// One that was never used before, each time.
    New,
}

impl Keys {
    const fn name(self) -> &'static str {
        match self {
            Self::Same => "own keys",
            Self::New => "new keys",
        }
    }
}

/// B14.
pub(super) async fn run(bench: &Bench<'_>) -> Outcome<Figure> {
    let figure = bench.figure(14, "one process, many tasks, each with a key of its own");
    measure(bench, figure, Mode::Exclusive, &CONTENDERS).await
}

/// S8. No peer has shared locks, and the raw driver's writes are those of B14.
pub(super) async fn readers(bench: &Bench<'_>) -> Outcome<Figure> {
    let title = "one process, many readers, each with a key of its own";
    let figure = Figure::new(Id::S(8), title, bench.quick);
    measure(bench, figure, Mode::Shared, &[Contender::Raw, Contender::Ours]).await
}

async fn measure(bench: &Bench<'_>, mut figure: Figure, mode: Mode, contenders: &[Contender]) -> Outcome<Figure> {
    let (rounds, length) = bench.choose((1, Duration::from_secs(3)), (3, Duration::from_secs(5)));
    for (tasks, _) in TASKS {
        for keys in [Keys::Same, Keys::New] {
            for round in 0..rounds {
                bench.progress(format_args!("{}: round {} of {rounds}", what(tasks, keys), round + 1));
                for who in rotated(contenders, round) {
                    let window = Window { tasks, keys, mode, length, counted: false };
                    let seen = one(bench, who, window).await?;
                    figure.push(who, what(tasks, keys), "/s", seen.rate);
                    note_failure(&mut figure, who, &seen);
                }
            }
            // Counting takes time, so it has a window of its own.
            let window = Window { tasks, keys, mode, length: WARM_UP, counted: true };
            let seen = one(bench, Contender::Ours, window).await?;
            figure.push(Contender::Ours, format!("{}: commands", what(tasks, keys)), "", seen.commands);
        }
    }
    for (tasks, least) in TASKS {
        for keys in [Keys::Same, Keys::New] {
            let what = what(tasks, keys);
            let raw = (Contender::Raw.to_string(), figure.median(Contender::Raw, &what));
            let ours = figure.median(Contender::Ours, &what);
            figure.judge_ratio(&what, ours, "/s", raw, Bound::Least(least));
            if mode == Mode::Exclusive {
                let peer = best_peer(&figure, &what, true);
                figure.compare(format!("{what}, best peer"), ours, "/s", peer);
            }
            let commands = figure.median(Contender::Ours, &format!("{what}: commands"));
            figure.compare(format!("{what}: commands per acquisition"), commands, "", None);
        }
    }
    figure.note(format!(
        "Each task acquires its key, releases it and starts again. Every contender has a client with a pool of {POOL} \
         connections. Raw: `findOneAndUpdate` with an upsert, and `updateOne`, both with w: majority, without indexes."
    ));
    Ok(figure)
}

fn what(tasks: usize, keys: Keys) -> String {
    let plural = if tasks == 1 { "" } else { "s" };
    format!("{tasks} task{plural}, {}: acquisitions", keys.name())
}

/// What is measured at once.
#[derive(Clone, Copy)]
struct Window {
    tasks: usize,
    keys: Keys,
    mode: Mode,
    length: Duration,
    counted: bool,
}

struct Seen {
    rate: f64,
    /// Per acquisition.
    commands: f64,
    failure: Option<String>,
}

fn note_failure(figure: &mut Figure, who: Contender, seen: &Seen) {
    let Some(failure) = &seen.failure else { return };
    let note = format!("{who} returned errors, such as: {}", failure.chars().take(160).collect::<String>());
    if !figure.notes.iter().any(|before| before.starts_with(&format!("{who} returned errors"))) {
        figure.note(note);
    }
}

async fn one(bench: &Bench<'_>, who: Contender, window: Window) -> Outcome<Seen> {
    bench.deployment.drop_database(who.database()).await?;
    let uri = deployment::with_options(bench.uri(who), &format!("maxPoolSize={POOL}"));
    isolated(async move {
        let monitor = Arc::new(Monitor::default());
        let settings = Settings::new(true).in_mode(window.mode);
        let settings = if window.counted { settings } else { settings.uncounted() };
        let locks = locks::connect(who, &uri, settings, &monitor).await?;
        observe(locks, &monitor, window).await
    })
    .await
}

/// What the tasks share.
#[derive(Default)]
struct Tally {
    acquired: AtomicU64,
    ended: AtomicBool,
    failure: std::sync::Mutex<Option<String>>,
}

async fn observe(locks: Arc<dyn Locks>, monitor: &Monitor, window: Window) -> Outcome<Seen> {
    let tally = Arc::new(Tally::default());
    let mut running = JoinSet::new();
    for task in 0..window.tasks {
        running.spawn(repeat(Arc::clone(&locks), Arc::clone(&tally), window.keys, task));
    }
    sleep(WARM_UP).await;
    let (from, before, sent) = (clock::now(), tally.acquired.load(Ordering::Relaxed), monitor.counts());
    sleep(window.length).await;
    let (to, after) = (clock::now(), tally.acquired.load(Ordering::Relaxed));
    let sent = commands::without_get_more(&commands::difference(&sent, &monitor.counts()));
    tally.ended.store(true, Ordering::Relaxed);
    while running.join_next().await.is_some() {}
    let acquired = (after - before) as f64;
    let failure = tally.failure.lock().expect("no task panics with it").take();
    Ok(Seen { rate: acquired * 1e9 / (to - from) as f64, commands: sent as f64 / acquired, failure })
}

async fn repeat(locks: Arc<dyn Locks>, tally: Arc<Tally>, keys: Keys, task: usize) {
    let mut turn = 0_u64;
    while !tally.ended.load(Ordering::Relaxed) {
        let key = match keys {
            Keys::Same => format!("many-{task}"),
            Keys::New => format!("many-{task}-{turn}"),
        };
        turn += 1;
        let done = async { locks.acquire(&key).await?.release().await };
        match done.await {
            Ok(()) => drop(tally.acquired.fetch_add(1, Ordering::Relaxed)),
            Err(error) => {
                tally.failure.lock().expect("no task panics with it").get_or_insert_with(|| error.to_string());
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
