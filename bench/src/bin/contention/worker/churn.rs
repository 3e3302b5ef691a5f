//! Keys that are used once, in a process that does nothing else. Every second acquisition is
//! dropped at a random moment.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distlock_api::{LockGuard, LockProvider, LockProviderExt};
use distlock_memory::{MemoryProvider, MemoryStore};
use futures_util::FutureExt;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Client, Collection};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::protocol::{Backend, Churn, Churned, Report};
use crate::Outcome;
use crate::locks::{Contender, Settings, ours};
use crate::report::machine::resident_bytes;

/// Enough for batches.
const TASKS: u64 = 512;
/// Memory is read after a tenth of the acquisitions, and after the rest.
const PART: u64 = 10;
/// Enough for the client's connections, and for the allocator and the tables to have their size.
const WARM_UP: u64 = 2_000;
/// What is left after this time stays.
const SETTLE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
const POLL_OF_DATABASE: Duration = Duration::from_millis(500);
/// Records of `MemoryStore` are purged after so many keys, as a database does after their grace.
const PURGED_TOGETHER: u64 = 2_500;
/// The default of `MongoProviderBuilder::purge_after`, and twice the period of the server's purge.
const PURGED_AFTER_MS: i64 = 3_600_000 + 120_000;

/// Uses all keys.
pub(super) async fn run(uri: &str, settings: Settings, task: Churn) -> Outcome<Report> {
    let keys = Arc::new(Keys::open(uri, settings, task.backend).await?);
    let part = task.acquisitions / PART;
    keys.churn(0..WARM_UP).await?;
    keys.settle().await?;
    *keys.seen() = Churned::default();

    let before = resident_bytes()?;
    let start = Instant::now();
    keys.churn(WARM_UP..WARM_UP + part).await?;
    let mut busy = start.elapsed();
    keys.settle().await?;
    let early = resident_bytes()?;
    let start = Instant::now();
    keys.churn(WARM_UP + part..WARM_UP + task.acquisitions).await?;
    busy += start.elapsed();
    let left = keys.settle().await?;
    let late = resident_bytes()?;

    let [in_grace, unpurged] = keys.records().await?;
    keys.provider.close().await?;
    let seen = keys.seen().clone();
    let resident = [before, early, late];
    let churned = Churned { resident, left, in_grace, unpurged, seconds: busy.as_secs_f64(), ..seen };
    Ok(Report { churned: Some(churned), ..Report::default() })
}

/// Locks of one backend, and what was seen of them.
struct Keys {
    provider: Arc<dyn LockProvider>,
    place: Place,
    seen: Mutex<Churned>,
    /// How long an acquisition takes that is not dropped, in µs: the recent mean.
    usual_us: AtomicU64,
    /// The keys that were used last.
    used: Mutex<Range<u64>>,
}

/// Where the locks are.
enum Place {
    Memory(MemoryProvider),
    /// The other provider acts as another process.
    Engine(MemoryStore, Arc<dyn LockProvider>),
    MongoDb(Client),
}

impl Keys {
    async fn open(uri: &str, settings: Settings, backend: Backend) -> Outcome<Self> {
        let (provider, place): (Arc<dyn LockProvider>, _) = match backend {
            Backend::Memory => {
                let provider = MemoryProvider::new();
                (Arc::new(provider.clone()), Place::Memory(provider))
            }
            Backend::Engine => {
                let store = MemoryStore::new();
                let other = Arc::new(store.provider());
                (Arc::new(store.provider()), Place::Engine(store, other))
            }
            Backend::MongoDb => {
                let client = Client::with_uri_str(uri).await?;
                let provider = ours::provider(&client, Contender::Ours.database(), settings).await?;
                (Arc::new(provider), Place::MongoDb(client))
            }
        };
        Ok(Self { provider, place, seen: Mutex::default(), usual_us: AtomicU64::new(10_000), used: Mutex::default() })
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Churned> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses these keys.
    async fn churn(self: &Arc<Self>, keys: Range<u64>) -> Outcome<()> {
        match &self.place {
            Place::Memory(_) | Place::MongoDb(_) => self.use_keys(keys.clone()).await?,
            Place::Engine(store, _) => {
                for start in keys.clone().step_by(PURGED_TOGETHER as usize) {
                    let part = start..keys.end.min(start + PURGED_TOGETHER);
                    self.use_keys(part.clone()).await?;
                    // A purge would hide what is left.
                    match self.settle().await? {
                        0 => {}
                        left => return Err(format!("{left} leases, tickets or calls are left").into()),
                    }
                    for key in part.map(key) {
                        store.purge(key);
                    }
                }
            }
        }
        Ok(())
    }

    /// Uses these keys, by many tasks.
    async fn use_keys(self: &Arc<Self>, keys: Range<u64>) -> Outcome<()> {
        let next = Arc::new(AtomicU64::new(keys.start));
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (this, next, end) = (Arc::clone(self), Arc::clone(&next), keys.end);
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return;
                    }
                    if let Err(error) = this.use_key(number).await {
                        let mut seen = this.seen();
                        seen.errors += 1;
                        seen.first_error.get_or_insert_with(|| error.to_string());
                    }
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(())
    }

    async fn use_key(&self, number: u64) -> Outcome<()> {
        let key = key(number);
        if number.is_multiple_of(2) {
            let start = Instant::now();
            let guard = self.provider.acquire(&key).await?;
            self.took(start.elapsed());
            guard.release().await?;
            return Ok(());
        }
        match self.holder() {
            Some(holder) => self.drop_behind(holder, &key).await,
            None => self.drop_in_time(&key).await,
        }
    }

    /// The provider that holds the keys whose waiters are dropped. On MongoDB an acquisition takes
    /// time enough to be dropped in the middle of it, and needs none.
    fn holder(&self) -> Option<&dyn LockProvider> {
        match &self.place {
            Place::Memory(provider) => Some(provider),
            Place::Engine(_, other) => Some(&**other),
            Place::MongoDb(_) => None,
        }
    }

    /// Drops an acquisition that waits: before the release of the key, with it, or soon after.
    async fn drop_behind(&self, holder: &dyn LockProvider, key: &str) -> Outcome<()> {
        let held = holder.acquire(key).await?;
        let mut waiting = Box::pin(async { self.provider.acquire(key).await });
        if fastrand::bool() {
            for _ in 0..fastrand::u32(0..4) {
                if let Some(answer) = (&mut waiting).now_or_never() {
                    let _ = answer?;
                    return Err("a key was granted while another guard held it".into());
                }
                yield_now().await;
            }
            drop(waiting);
            self.dropped(None);
            held.release().await?;
        } else {
            let mut answer = (&mut waiting).now_or_never();
            held.release().await?;
            for _ in 0..fastrand::u32(0..4) {
                yield_now().await;
                if answer.is_none() {
                    answer = (&mut waiting).now_or_never();
                }
            }
            drop(waiting);
            self.dropped(answer.transpose()?);
        }
        Ok(())
    }

    /// Drops an acquisition at a random moment of the time that it usually takes.
    async fn drop_in_time(&self, key: &str) -> Outcome<()> {
        let usual = self.usual_us.load(Ordering::Relaxed);
        let patience = Duration::from_micros(fastrand::u64(0..=usual));
        let acquired = timeout(patience, async { self.provider.acquire(key).await }).await;
        self.dropped(acquired.ok().transpose()?);
        Ok(())
    }

    fn dropped(&self, guard: Option<LockGuard>) {
        let mut seen = self.seen();
        match guard {
            Some(_) => seen.guards_dropped += 1,
            None => seen.dropped += 1,
        }
    }

    fn took(&self, time: Duration) {
        let before = self.usual_us.load(Ordering::Relaxed);
        self.usual_us.store((before * 15 + time.as_micros() as u64) / 16, Ordering::Relaxed);
    }

    /// Waits until nothing is left of acquisitions, and returns what is left after all.
    async fn settle(&self) -> Outcome<u64> {
        let end = Instant::now() + SETTLE;
        loop {
            let left = self.left().await?;
            if left == 0 || Instant::now() > end {
                return Ok(left);
            }
            let is_database = matches!(self.place, Place::MongoDb(_));
            sleep(if is_database { POLL_OF_DATABASE } else { POLL }).await;
        }
    }

    async fn left(&self) -> Outcome<u64> {
        let accounts = |provider: &dyn LockProvider| {
            let account = provider.accounting();
            account.held + account.waiting + account.unsettled
        };
        let own = accounts(&*self.provider);
        Ok(match &self.place {
            Place::Memory(provider) => own + provider.keys_in_use() as u64,
            Place::Engine(store, other) => {
                let used = self.used.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let keys = used.map(key);
                let stored = |key: String| u64::from(store.peek(&*key).is_some()) + store.waiting(&*key).len() as u64;
                own + accounts(&**other) + keys.map(stored).sum::<u64>()
            }
            // The database is counted when the provider has nothing left: it takes a while.
            Place::MongoDb(_) if own > 0 => own,
            Place::MongoDb(client) => {
                let left = doc! { "$or": [{ "lockId": { "$exists": true } }, { "queue.0": { "$exists": true } }] };
                records(client).count_documents(left).await?
            }
        })
    }

    /// The number of records that the database removes after their grace, and of those that it
    /// does not remove, or should have removed already.
    async fn records(&self) -> Outcome<[u64; 2]> {
        let Place::MongoDb(client) = &self.place else { return Ok([0, 0]) };
        let oldest = DateTime::from_millis(DateTime::now().timestamp_millis() - PURGED_AFTER_MS);
        let in_grace = doc! { "expiresAt": { "$gt": oldest }, "fencingToken": { "$type": "long" } };
        let all = records(client).count_documents(doc! {}).await?;
        let in_grace = records(client).count_documents(in_grace).await?;
        Ok([in_grace, all.saturating_sub(in_grace)])
    }
}

fn records(client: &Client) -> Collection<Document> {
    client.database(Contender::Ours.database()).collection("locks")
}

fn key(number: u64) -> String {
    format!("orders/{number}")
}
