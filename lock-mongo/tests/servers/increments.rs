//! A thousand read-modify-write increments of 16 locked documents, by four processes. While the
//! work goes on, one process after the other is killed, or stopped for longer than its leases last.
//! No increment is lost, and none is made twice.
//!
//! Each document also counts the increments of each process, in the same commit. The document must
//! have every commit that was confirmed to a process. It may have more: commits during which the
//! process was killed.
//!
//! `DISTLOCK_INCREMENTS` sets how many there are: `DISTLOCK_INCREMENTS=10000 cargo test -p
//! distlock-mongo --test servers increments`.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use distlock_api::ErrorKind;
use distlock_conformance_mongo::{MongoServer, Topology};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::{Client, Collection};
use distlock_mongo::{Change, CommitError, DocumentLocks};
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::Trials;

const DOCUMENTS: i64 = 16;
const PROCESSES: usize = 4;
/// The number of concurrent tasks of one process.
const TASKS: u64 = 4;
const DEFAULT_TOTAL: i64 = 1_000;
/// Many times the duration on an idle machine.
const BOUND_OF_EACH: Duration = Duration::from_millis(60);
/// `<uri> <collection> <name> <increments of each document>`
const CHILD: &str = "DISTLOCK_INCREMENTS_CHILD";
const TOTAL: &str = "DISTLOCK_INCREMENTS";

#[derive(Debug, Serialize, Deserialize)]
struct Counter {
    _id: i64,
    value: i64,
    by: BTreeMap<String, i64>,
    /// The token of the last holder.
    token: i64,
}

/// Returns the job of this process, if it is one of those that increment.
pub(crate) fn job() -> Option<String> {
    std::env::var(CHILD).ok()
}

pub(crate) fn add(trials: &mut Trials) {
    trials.add("documents_increments_by_processes_that_are_killed", async {
        let total = std::env::var(TOTAL).ok().and_then(|total| total.parse().ok()).unwrap_or(DEFAULT_TOTAL);
        let bound = Duration::from_secs(60) + BOUND_OF_EACH * u32::try_from(total).expect("not that many");
        let server = MongoServer::start(Topology::ReplicaSet).await.expect("a server");
        let found = tokio::time::timeout(bound, supervise(server.uri(), total)).await;
        server.stop().await;
        found.unwrap_or_else(|_| panic!("not done within {bound:?}"));
    });
}

// The process that increments.

pub(crate) async fn work(job: &str) {
    let mut words = job.split(' ');
    let mut word = || words.next().expect("four words").to_owned();
    let (uri, collection, name, quota) = (word(), word(), word(), word().parse().expect("a number"));
    let client = Client::with_uri_str(uri).await.expect("a client");
    let counters: Collection<Counter> = client.database("distlock_test").collection(&collection);
    let locks = DocumentLocks::builder(&counters).integer_ids().build().expect("valid options");
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(increment(locks.clone(), name.clone(), quota));
    }
    tasks.join_all().await;
}

/// Runs until every document has had its increments.
async fn increment(locks: DocumentLocks<Counter>, name: String, quota: i64) {
    let mut open: Vec<i64> = (0..DOCUMENTS).collect();
    while !open.is_empty() {
        let at = fastrand::usize(..open.len());
        // Short, because other processes wait for the documents of those that are killed. They try
        // others meanwhile.
        let locked = locks.lock(open[at]).ttl(Duration::from_secs(1)).timeout(Duration::from_millis(300)).await;
        let mut counter = match locked {
            Ok(counter) => counter,
            Err(error) if error.kind() == ErrorKind::NotFound => panic!("{error:?}"),
            Err(_) => continue,
        };
        let token = i64::try_from(counter.fencing_token().get()).expect("a token of MongoDB");
        assert!(token > counter.token, "C5: {token} after {counter:?}");
        if counter.value >= quota {
            open.swap_remove(at);
            let _ = counter.release().await;
            continue;
        }
        counter.value += 1;
        counter.token = token;
        *counter.by.entry(name.clone()).or_default() += 1;
        let committed = if fastrand::bool() {
            counter.commit_document().await
        } else {
            let (value, mine) = (counter.value, counter.by[&name]);
            let change = Change::new().set("value", value).set("token", token);
            counter.commit(change.set_at(["by", &*name], mine)).await
        };
        match committed {
            Ok(()) => println!("made"),
            Err(CommitError::Unknown(_)) => println!("unknown"),
            Err(CommitError::AlreadyLost(_)) => println!("lost"),
            Err(other) => panic!("{other:?}"),
        }
    }
}

// The process that supervises the others.

/// The output of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    made: i64,
    unknown: i64,
    lost: i64,
    /// It says nothing more.
    ended: bool,
    killed: bool,
}

/// What all processes have said so far.
#[derive(Default)]
struct Ledger {
    by_name: Mutex<BTreeMap<String, Said>>,
    /// Notified after each change.
    news: Notify,
}

impl Ledger {
    fn by_name(&self) -> MutexGuard<'_, BTreeMap<String, Said>> {
        self.by_name.lock().unwrap()
    }

    fn note(&self, name: &str, change: impl FnOnce(&mut Said)) {
        change(self.by_name().get_mut(name).unwrap());
        self.news.notify_one();
    }

    fn made(&self) -> i64 {
        self.by_name().values().map(|said| said.made).sum()
    }
}

struct Worker {
    name: String,
    process: Child,
    listening: JoinHandle<()>,
}

impl Worker {
    fn start(uri: &str, collection: &str, quota: i64, ledger: &Arc<Ledger>) -> Self {
        let name = format!("p{:08x}", fastrand::u32(..));
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(CHILD, format!("{uri} {collection} {name} {quota}")).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        ledger.by_name().insert(name.clone(), Said::default());
        let (heard, of) = (ledger.clone(), name.clone());
        let listening = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                heard.note(&of, |said| match line.as_str() {
                    "made" => said.made += 1,
                    "unknown" => said.unknown += 1,
                    "lost" => said.lost += 1,
                    other => panic!("{other}"),
                });
            }
            heard.note(&of, |said| said.ended = true);
        });
        Self { name, process, listening }
    }

    /// Stops the process until its leases have expired. It cannot notice the pause.
    async fn stop(&self) {
        let signal = async |name: &str| {
            let id = self.process.id().expect("not waited for").to_string();
            Command::new("kill").args([name, &id]).status().await.expect("a signal");
        };
        signal("-STOP").await;
        tokio::time::sleep(Duration::from_millis(1300)).await;
        signal("-CONT").await;
    }

    /// Without a shutdown, as if the machine failed.
    async fn kill(mut self, ledger: &Ledger) {
        self.process.kill().await.expect("killed");
        // Reads its earlier output that is still in the pipe.
        self.listening.await.expect("lines");
        ledger.note(&self.name, |said| said.killed = true);
    }
}

async fn supervise(uri: &str, total: i64) {
    let quota = total / DOCUMENTS;
    let collection = format!("counters_{:016x}", fastrand::u64(..));
    let counters: Collection<Document> =
        Client::with_uri_str(uri).await.expect("a client").database("distlock_test").collection(&collection);
    let new = |id| doc! { "_id": id, "value": 0_i64, "by": {}, "token": 0_i64 };
    counters.insert_many((0..DOCUMENTS).map(new)).await.expect("inserted");

    let (ledger, started) = (Arc::<Ledger>::default(), Instant::now());
    let start = || Worker::start(uri, &collection, quota, &ledger);
    let mut workers: Vec<Worker> = (0..PROCESSES).map(|_| start()).collect();
    let (mut kills, mut stops) = (0, 0);
    let pause = || total / 40 + fastrand::i64(0..total / 16);
    let mut disturbed_at = pause();
    while !workers.is_empty() {
        ledger.news.notified().await;
        let made = ledger.made();
        if made >= disturbed_at && made < total * 9 / 10 {
            let at = fastrand::usize(..workers.len());
            if kills > 0 && fastrand::bool() {
                workers[at].stop().await;
                stops += 1;
            } else {
                workers.swap_remove(at).kill(&ledger).await;
                workers.push(start());
                kills += 1;
            }
            disturbed_at = ledger.made() + pause();
        }
        let (ended, working) = workers.into_iter().partition(|worker: &Worker| ledger.by_name()[&worker.name].ended);
        workers = working;
        for mut worker in ended {
            worker.listening.await.expect("lines");
            let status = worker.process.wait().await.expect("a status");
            assert!(status.success(), "{} ended with {status}", worker.name);
        }
    }
    let took = started.elapsed();

    let mut by = BTreeMap::<String, i64>::new();
    let found: Vec<Counter> = counters
        .clone_with_type()
        .find(doc! {})
        .projection(doc! { "lock": 0 })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(found.len() as i64, DOCUMENTS);
    for counter in &found {
        assert_eq!(counter.value, quota, "{counter:?}");
        assert_eq!(counter.by.values().sum::<i64>(), quota, "{counter:?}");
        for (name, made) in &counter.by {
            *by.entry(name.clone()).or_default() += made;
        }
    }
    let ledger = ledger.by_name();
    let (mut unheard, mut lost) = (0, 0);
    for (name, said) in &*ledger {
        let there = by.remove(name).unwrap_or(0);
        // Each task of a killed process may have been in a commit, or about to report one.
        let most = said.made + said.unknown + if said.killed { TASKS as i64 } else { 0 };
        assert!((said.made..=most).contains(&there), "{name}: {there} found, {said:?}");
        unheard += there - said.made;
        lost += said.lost;
    }
    assert!(by.is_empty() && kills > 0, "{by:?} {kills}");
    println!(
        "{} increments of {DOCUMENTS} documents in {took:.1?} by {PROCESSES} processes, {kills} kills, {stops} stops, {unheard} committed and not heard of, {lost} refused to late holders",
        quota * DOCUMENTS
    );
}
