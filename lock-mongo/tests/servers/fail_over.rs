//! The primary of three members steps down, or is killed, while work that is done once is
//! completed, and in the middle of fenced transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use distlock_api::{FencingToken, RenewalPolicy};
use distlock_conformance::{Arena, Fault};
use distlock_conformance_mongo::ClusterArena;
use distlock_mongo::mongodb::Client;
use distlock_mongo::{Fenced, MongoOnce, TransactionError};
use distlock_recipes::once::{NotCompleted, Once, OnceGuard, OnceProvider, OnceProviderExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::Trials;
use crate::pair::Pair;

/// The faults, by the names that the arena gives them.
const FAULTS: [&str; 2] = ["step-down", "kill-primary"];
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Far longer than an election.
const LONG: Duration = Duration::from_secs(90);

pub(crate) fn add(trials: &mut Trials) {
    trials.add(
        "o8_completions_during_a_fail_over_have_one_outcome",
        o8_completions_during_a_fail_over_have_one_outcome(),
    );
    trials.add(
        "o4_a_crash_before_a_fail_over_reopens_after_the_ttl",
        o4_a_crash_before_a_fail_over_reopens_after_the_ttl(),
    );
    trials.add(
        "transactions_that_a_fail_over_interrupts_are_run_again_or_fenced_off",
        transactions_that_a_fail_over_interrupts_are_run_again_or_fenced_off(),
    );
    trials.add(
        "transactions_during_a_fail_over_tell_their_outcome",
        transactions_during_a_fail_over_tell_their_outcome(),
    );
}

/// Three members, and what takes the primary away.
struct Set {
    arena: ClusterArena,
}

impl Set {
    async fn start() -> Self {
        Self { arena: ClusterArena::start(str::to_owned).await.expect("three members") }
    }

    fn fault(&self, kind: &str) -> Arc<dyn Fault> {
        self.arena.faults().into_iter().find(|fault| fault.kind() == kind).expect("a fault of the arena")
    }

    async fn client(&self) -> Client {
        Client::with_uri_str(self.arena.uri()).await.expect("a client")
    }

    async fn once(&self) -> MongoOnce {
        let builder = MongoOnce::builder(self.client().await.database("distlock_test")).collection("once");
        builder.request_timeout(Duration::from_secs(3)).build().expect("valid options")
    }

    /// Ends a fault, and waits until the set is healthy.
    async fn heal(&self, fault: &dyn Fault) {
        println!("{}: {}", fault.kind(), fault.end().await.expect("it happened"));
        self.arena.healthy().await.expect("a healthy set");
    }
}

/// What the holder of a run was told at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Completed,
    Lost,
    StillUnknown,
}

/// A completion that was repeated until its outcome was known.
struct Completion {
    key: String,
    work: OnceGuard,
    told: Told,
    /// How often the outcome was unknown, or the write rejected.
    repeated: u32,
    began: Instant,
    ended: Instant,
}

async fn completed(key: String, mut work: OnceGuard, value: &str) -> Completion {
    let (began, mut repeated) = (Instant::now(), 0);
    let told = loop {
        match work.complete(value).await {
            Ok(()) => break Told::Completed,
            Err(NotCompleted::Lost(_)) => break Told::Lost,
            Err(_) if began.elapsed() > LONG => break Told::StillUnknown,
            Err(_) => {
                repeated += 1;
                sleep(Duration::from_millis(50)).await;
            }
        }
    };
    Completion { key, work, told, repeated, began, ended: Instant::now() }
}

/// What is remembered of a key; `None` if the work must be done.
async fn remembered(once: &MongoOnce, key: &str) -> Result<Vec<u8>, OnceGuard> {
    match once.once(key).timeout(LONG).await.expect("the set is healthy") {
        Once::Done(outcome) => Ok(outcome.value().to_vec()),
        Once::Begun(guard) => Err(guard),
        other => panic!("{key}: {other:?}"),
    }
}

/// Completions before, during and after the fault. Half of the leases are shorter than an election,
/// so that their holders lose them meanwhile.
async fn o8_completions_during_a_fail_over_have_one_outcome() {
    const KEYS: u32 = 48;
    const SPREAD: Duration = Duration::from_millis(20);
    let set = Set::start().await;
    let (holder, other) = (set.once().await, set.once().await);
    for kind in FAULTS {
        let mut completing = Vec::new();
        for number in 0..KEYS {
            let key = format!("{kind}/{number}");
            let ttl = Duration::from_secs(if number % 2 == 0 { 3 } else { 60 });
            let begin = holder.once(&key).ttl(ttl).keep(DAY).owner("first");
            let work = begin.await.expect("a healthy set").begun().expect("new work");
            completing.push((key, work));
        }
        let completing: Vec<JoinHandle<Completion>> = (0..)
            .zip(completing)
            .map(|(number, (key, work))| {
                tokio::spawn(async move {
                    sleep(SPREAD * number).await;
                    completed(key, work, "by the first").await
                })
            })
            .collect();
        sleep(SPREAD * KEYS / 3).await;
        let fault = set.fault(kind);
        fault.begin().await.expect("it begins");
        let begun = Instant::now();
        let mut completions = Vec::new();
        for completion in completing {
            completions.push(completion.await.expect("no panic"));
        }
        set.heal(&*fault).await;

        let count = |told| completions.iter().filter(|completion| completion.told == told).count();
        let during = completions.iter().filter(|one| one.began <= begun && begun <= one.ended).count();
        let repeated = completions.iter().filter(|completion| completion.repeated > 0).count();
        println!(
            "{kind}: of {KEYS} completions {during} were under way when it began, {repeated} were repeated; \
             {} completed, {} lost, {} still unknown",
            count(Told::Completed),
            count(Told::Lost),
            count(Told::StillUnknown)
        );
        assert!(count(Told::Completed) > 0 && completions.iter().any(|one| one.ended > begun), "the fault hit nothing");
        for Completion { key, mut work, told, .. } in completions {
            let value = match (told, remembered(&other, &key).await) {
                (Told::Completed | Told::StillUnknown, Ok(value)) => {
                    assert_eq!(value, b"by the first", "{key}");
                    value
                }
                (Told::Lost | Told::StillUnknown, Err(mut next)) => {
                    let run = next.interrupted().unwrap_or_else(|| panic!("{key}: the first run is forgotten"));
                    assert_eq!((run.token, run.owner.as_deref()), (work.fencing_token(), Some("first")), "{key}");
                    next.complete("by the second").await.expect("a healthy set");
                    b"by the second".to_vec()
                }
                (told, Ok(value)) => panic!("{key}: the holder was told {told:?}, and {value:?} is remembered"),
                (told, Err(_)) => panic!("{key}: the holder was told {told:?}, and nothing is remembered"),
            };
            // A late repetition changes nothing.
            let again = work.complete("too late").await;
            assert_eq!(again.is_ok(), value == b"by the first", "{key}: {again:?}");
            for reader in [&holder, &other] {
                assert_eq!(remembered(reader, &key).await.expect("it is done"), value, "{key}");
            }
        }
    }
    holder.close().await.expect("it closes");
    other.close().await.expect("it closes");
    set.arena.stop().await;
}

/// The holder dies, and then the primary.
async fn o4_a_crash_before_a_fail_over_reopens_after_the_ttl() {
    const TTL: Duration = Duration::from_secs(4);
    let set = Set::start().await;
    let (holder, other) = (set.once().await, set.once().await);
    for kind in FAULTS {
        let before = Instant::now();
        let begin = holder.once(kind).ttl(TTL).renewal(RenewalPolicy::Never).keep(DAY).owner("first");
        let work = begin.await.expect("a healthy set").begun().expect("new work");
        let token = work.fencing_token();
        std::mem::forget(work);
        let fault = set.fault(kind);
        fault.begin().await.expect("it begins");
        let next = other.once(kind).timeout(LONG).await.expect("the next primary answers");
        let next = next.begun().expect("a run that was not completed");
        let reopened = before.elapsed();
        // The client of the holder lives, and gives the lease back when its margin begins.
        assert!(reopened >= TTL - TTL / 10, "{kind}: it was open after {reopened:?}");
        println!("{kind}: open again {reopened:.1?} after it was begun for {TTL:?}");
        let run = next.interrupted().expect("the first run");
        assert_eq!((run.token, run.owner.as_deref()), (token, Some("first")));
        assert!(next.fencing_token() > token);
        set.heal(&*fault).await;
        let next = completed(kind.to_owned(), next, "by the second").await;
        assert_eq!(next.told, Told::Completed);
        assert_eq!(remembered(&holder, kind).await.expect("it is done"), b"by the second");
    }
    holder.close().await.expect("it closes");
    other.close().await.expect("it closes");
    set.arena.stop().await;
}

/// Creates two documents that only change together, and the collection of their fence record.
async fn pair(client: &Client, name: &str) -> Pair {
    let database = client.database("distlock_test");
    let records = database.collection(&format!("fences-{name}"));
    Pair::create(database.collection(&format!("pair-{name}")), records, LONG).await
}

/// A transaction between its two writes, in a task of its own.
struct Halfway {
    go: Arc<Notify>,
    calls: Arc<AtomicU32>,
    task: JoinHandle<Result<Fenced<()>, TransactionError>>,
}

impl Halfway {
    async fn begin(pair: &Pair, token: u64, line: u64) -> Self {
        let (written, go, calls) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::<AtomicU32>::default());
        let (pair, signals) = (pair.clone(), (Arc::clone(&written), Arc::clone(&go), Arc::clone(&calls)));
        let task = tokio::spawn(async move {
            let run = pair.transaction(token);
            let run = run.run(|session| {
                let (pair, (written, go, calls)) = (pair.clone(), signals.clone());
                Box::pin(async move {
                    pair.add_to(1, line, session).await?;
                    if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                        written.notify_one();
                        go.notified().await;
                    }
                    pair.add_to(2, line, session).await
                })
            });
            run.await
        });
        written.notified().await;
        Self { go, calls, task }
    }

    async fn finish(self) -> (Result<Fenced<()>, TransactionError>, u32) {
        self.go.notify_one();
        let result = self.task.await.expect("no panic");
        (result, self.calls.load(Ordering::Relaxed))
    }
}

/// The transaction ends with its primary, and the whole closure is run again.
async fn transactions_that_a_fail_over_interrupts_are_run_again_or_fenced_off() {
    let set = Set::start().await;
    let client = set.client().await;
    for kind in FAULTS {
        let own = pair(&client, &format!("{kind}-own")).await;
        let stale = pair(&client, &format!("{kind}-stale")).await;
        let (holder, late) = (Halfway::begin(&own, 5, 1).await, Halfway::begin(&stale, 5, 1).await);
        let fault = set.fault(kind);
        fault.begin().await.expect("it begins");
        // The transaction of the stale holder is gone with its primary, so this one need not wait.
        assert_eq!(stale.commit(7, 2).await.expect("the next primary commits"), Fenced::Accepted(()));
        let (committed, calls) = holder.finish().await;
        assert_eq!(committed.expect("the present holder commits"), Fenced::Accepted(()));
        assert!(calls >= 2, "the closure was called {calls} times, and its first transaction has ended");
        let (refused, calls_of_late) = late.finish().await;
        let newest = FencingToken::new(7);
        assert_eq!(refused.expect("a present primary answers"), Fenced::FencedOff { newest });
        set.heal(&*fault).await;
        assert_eq!((own.logs().await, stale.logs().await), (vec![1], vec![2]));
        println!("{kind}: the holder's closure was called {calls} times, that of the stale one {calls_of_late} times");
    }
    set.arena.stop().await;
}

/// One transaction after the other, by one holder, over the fault. Each says what has become of it.
async fn transactions_during_a_fail_over_tell_their_outcome() {
    let set = Set::start().await;
    let client = set.client().await;
    for kind in FAULTS {
        let pair = pair(&client, &format!("{kind}-many")).await;
        let (is_over, some) = (Arc::<AtomicBool>::default(), Arc::new(Notify::new()));
        let writing = tokio::spawn({
            let (pair, is_over, some) = (pair.clone(), Arc::clone(&is_over), Arc::clone(&some));
            async move {
                let mut told = Vec::new();
                for line in 0.. {
                    let began = Instant::now();
                    told.push((line, pair.commit(5, line).await, began.elapsed()));
                    if line == 10 {
                        some.notify_one();
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                told
            }
        });
        some.notified().await;
        let fault = set.fault(kind);
        fault.begin().await.expect("it begins");
        set.heal(&*fault).await;
        is_over.store(true, Ordering::Relaxed);
        let told = writing.await.expect("no panic");
        let log = pair.logs().await;
        let (mut unknown, mut refused) = (0, 0);
        for (line, result, _) in &told {
            let written = log.iter().filter(|written| written.cast_unsigned() == *line).count();
            match result {
                Ok(Fenced::Accepted(())) => assert_eq!(written, 1, "line {line} is reported as committed"),
                Ok(other) => panic!("the only holder was answered {other:?}"),
                Err(TransactionError::Failed(error)) if error.is_outcome_unknown() => {
                    unknown += 1;
                    assert!(written <= 1, "line {line}");
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(written, 0, "line {line}: {error:?}");
                }
            }
        }
        let slowest = told.iter().map(|(.., took)| *took).max().unwrap_or_default();
        println!(
            "{kind}: {} transactions, the slowest {slowest:.1?}; {unknown} of unknown outcome, {refused} failed",
            told.len()
        );
        assert!(slowest > Duration::from_millis(100), "the fault hit none of them");
    }
    set.arena.stop().await;
}
