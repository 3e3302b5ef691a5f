//! An example of a backend for distlock, such as another project could write: leases in a SQLite
//! file, for the processes of one machine.
//!
//! It was written from the public documentation of `distlock-engine`, and passes the conformance
//! suite. The tutorial, `distlock_conformance::tutorial`, explains how.
//!
//! | file | contents |
//! |---|---|
//! | `lib` | runs each call as one step, off the runtime's threads |
//! | `step` | loads a key's record and saves it |
//! | `clock` | which clock is the store's |
//! | `error` | whether a step that failed may have happened |
//! | `admin` | inspecting and removing locks: optional |
//! | `schema.sql` | the table |
//!
//! What a request does to a record is not written here: that is
//! [`Record::step`](distlock_engine::record::Record::step).
//!
//! It is not for production as it is. A process that is stopped (SIGSTOP) in the middle of a step
//! keeps the file's write lock, and blocks all other processes until it continues. Waiters poll at
//! least every 250 ms, because SQLite does not push changes.

mod admin;
mod clock;
mod error;
mod step;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock_api::{ReleaseOutcome, Result, async_trait};
use distlock_engine::LeaseStore;
use distlock_engine::record::Request;
use distlock_engine::store::{
    Attempt, BatchRenewStore, BatchStore, Claim, QueueStore, Release, Renewal, Reply, Standing, StoreCapabilities,
    StoreExtras,
};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use crate::clock::nanos;
use crate::step::Step;

/// How long [`SqliteStore::open`] and administration wait for the write lock of the file.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a step waits before it tries to lock the file again. SQLite's own way to wait sleeps
/// longer each time, so that the oldest waiter comes last.
const PAUSE: Duration = Duration::from_millis(5);
/// How many acquisitions or releases share a step, if as many come at once.
const BATCH: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// Leases in a SQLite file. Each process opens the file for itself. Several stores of one process
/// may, too.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    /// Steps get it in the order of arrival, and keep it to their end even if the caller leaves. So
    /// calls take effect in the order in which they were made, and a call that was given up never
    /// after a later one: [`StoreCapabilities::ordered_claims`].
    connection: Arc<Mutex<Connection>>,
}

impl SqliteStore {
    /// Opens the file, and creates it if there is none.
    ///
    /// # Errors
    /// When the file cannot be created or read, or is not a database.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let opening = spawn_blocking(move || connect(&path).map_err(error::undone));
        let connection = opening.await.map_err(error::cut_off)??;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs one step on a thread that may block. If the caller leaves, the step runs to its end or
    /// never begins.
    async fn step<T: Send + 'static>(
        &self,
        timeout: Duration,
        step: impl FnOnce(&Step<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let deadline = Instant::now() + timeout;
        let connection = timeout_at(deadline.into(), Arc::clone(&self.connection).lock_owned()).await;
        let connection = connection.map_err(|_| error::in_use())?;
        let transaction = move || {
            let sql = loop {
                match Transaction::new_unchecked(&connection, TransactionBehavior::Immediate) {
                    Ok(sql) => break sql,
                    Err(busy) if error::is_busy(&busy) && Instant::now() < deadline => std::thread::sleep(PAUSE),
                    Err(error) => return Err(error::undone(error)),
                }
            };
            let now = clock::now();
            let this = Step { sql, now };
            let answer = step(&this).map_err(error::undone)?;
            this.sql.commit().map_err(error::unknown)?;
            Ok(answer)
        };
        spawn_blocking(transaction).await.map_err(error::cut_off)?
    }

    /// Answers many requests in one step: a flush costs more than a hundred of them. A record that
    /// cannot be read fails its own request. Any other error undoes the step, and is the answer to
    /// all.
    async fn steps<R>(&self, requests: &[R], timeout: impl Fn(&R) -> Duration) -> Vec<Result<R::Answer>>
    where
        R: Request<Answer: Send> + Clone + Send + 'static,
    {
        let timeout = requests.iter().map(timeout).min().unwrap_or_default();
        let all = requests.to_vec();
        let answer = |step: &Step<'_>, request: &R| match step.answer(request) {
            Err(unreadable) if error::is_unreadable(&unreadable) => Ok(Err(error::undone(unreadable))),
            answer => answer.map(Ok),
        };
        match self.step(timeout, move |step| all.iter().map(|request| answer(step, request)).collect()).await {
            Ok(answers) => answers,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(PATIENCE)?;
    // With a write-ahead log a step costs one flush. It is flushed (FULL): a token must not be
    // granted again after a power failure.
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    step.execute_batch(include_str!("schema.sql"))?;
    let void = "UPDATE lock SET record = NULL, written = 0 WHERE written > ?1";
    step.execute(void, [nanos(clock::now())])?;
    step.commit()?;
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

#[async_trait]
impl LeaseStore for SqliteStore {
    fn capabilities(&self) -> StoreCapabilities {
        let mut capabilities = StoreCapabilities::default();
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        capabilities.ordered_claims = true;
        capabilities.shared = true;
        capabilities.permits = true;
        capabilities
    }

    fn name(&self) -> &str {
        "sqlite"
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let request = attempt.clone();
        self.step(attempt.timeout, move |step| step.answer(&request)).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let request = renewal.clone();
        self.step(renewal.timeout, move |step| step.answer(&request)).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let request = release.clone();
        self.step(release.timeout, move |step| step.answer(&request)).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = Some(self);
        extras.batch_renew = Some(self);
        extras.batch = Some(self);
        extras.admin = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for SqliteStore {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        let key = claim.key().clone();
        self.step(timeout, move |step| step.waiters(&key)).await
    }
}

#[async_trait]
impl BatchRenewStore for SqliteStore {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        self.steps(renewals, |renewal| renewal.timeout).await
    }
}

#[async_trait]
impl BatchStore for SqliteStore {
    fn acquire_batch(&self) -> NonZeroUsize {
        BATCH
    }

    async fn try_acquire_many(&self, attempts: &[Attempt]) -> Vec<Result<Reply>> {
        self.steps(attempts, |attempt| attempt.timeout).await
    }

    async fn release_many(&self, releases: &[Release]) -> Vec<Result<ReleaseOutcome>> {
        self.steps(releases, |release| release.timeout).await
    }

    async fn withdraw_many(&self, claims: &[Claim], timeout: Duration) -> Vec<Result<()>> {
        let releases: Vec<Release> = claims.iter().map(|claim| Release::new(claim.clone())).collect();
        let outcomes = self.steps(&releases, |_| timeout).await;
        outcomes.into_iter().map(|outcome| outcome.map(drop)).collect()
    }
}
