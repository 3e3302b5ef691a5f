//! The smallest store of work that is done once: a row per key, with its lock and its work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use distlock_api::{FencingToken, LockInfo, LockKey, ReleaseOutcome, Result, async_trait};
use distlock_engine::LeaseStore;
use distlock_engine::record::{Record, Request};
use distlock_engine::store::{AcquireOp, Attempt, Claim, Release, Renewal, Reply, Standing};
use distlock_recipes::once::{Once, OnceOptions, OnceRecord, OnceRun, OnceState};
use tokio::time::Instant;

/// Clones share the rows, as processes share a database.
#[derive(Clone, Debug)]
pub(crate) struct MyStore(Arc<Mutex<HashMap<LockKey, Row>>>, Instant);

#[derive(Debug, Default)]
struct Row {
    lock: Record,
    /// A run that was begun is stored as interrupted: it is under way while its lease is held.
    work: OnceRecord,
    /// An outcome counts until then, by the store's clock.
    until: Duration,
}

impl Row {
    /// Returns the lease with this token, if it holds the key.
    fn lease(&self, key: &LockKey, token: FencingToken, now: Duration) -> Option<LockInfo> {
        self.lock.describe(key, now).filter(|info| info.id.is_some() && info.token == token)
    }

    fn known(&self, key: &LockKey, now: Duration) -> OnceRecord {
        let state = match self.work.state.clone() {
            OnceState::Done(_) if now >= self.until => return OnceRecord::default(),
            OnceState::Interrupted(run) if self.lease(key, run.token, now).is_some() => OnceState::UnderWay(run),
            state => state,
        };
        OnceRecord::new(state, self.work.fingerprint.clone())
    }
}

impl MyStore {
    pub(crate) fn open() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// Makes one step on a row. In a database this is a transaction.
    fn step<T>(&self, key: &LockKey, step: impl FnOnce(&mut Row, Duration) -> T) -> T {
        let mut rows = self.0.lock().unwrap();
        step(rows.entry(key.clone()).or_default(), self.1.elapsed())
    }

    /// Returns what is known of the work of a key.
    pub(crate) fn known(&self, key: &LockKey) -> OnceRecord {
        self.step(key, |row, now| row.known(key, now))
    }

    /// Begins a run under the lease with this token, or returns the answer that is known by now.
    /// `None` if the lease has ended.
    pub(crate) fn begin(&self, key: &LockKey, token: FencingToken, options: &OnceOptions) -> Option<Begun> {
        self.step(key, |row, now| {
            let lease = row.lease(key, token, now)?;
            let before = row.known(key, now);
            if let Some(answer) = before.answer(options) {
                return Some(Begun::Known(answer));
            }
            let run = OnceRun::new(token, lease.owner.map(Arc::from), SystemTime::now());
            row.work = OnceRecord::new(OnceState::Interrupted(run.clone()), options.fingerprint().cloned());
            Some(Begun::Run { run, before })
        })
    }

    /// Ends the lease of a run and replaces what is known of the work, if the lease is held.
    pub(crate) fn end(&self, claim: &Claim, token: FencingToken, work: &OnceRecord, keep: Duration) -> ReleaseOutcome {
        let key = claim.key();
        self.step(key, |row, now| {
            if row.lease(key, token, now).is_some() {
                (row.work, row.until) = (work.clone(), now + keep);
            }
            // A repeated one is known, and changes nothing.
            row.lock.step(&Release::new(claim.clone()), now)
        })
    }

    fn answer<R: Request>(&self, request: &R) -> R::Answer {
        self.step(request.key(), |row, now| row.lock.step(request, now))
    }
}

pub(crate) enum Begun {
    Known(Once),
    Run { run: OnceRun, before: OnceRecord },
}

#[async_trait]
impl LeaseStore for MyStore {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        Ok(self.answer(attempt))
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        Ok(self.answer(renewal))
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        Ok(self.answer(release))
    }
}

#[async_trait]
impl AcquireOp for MyStore {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        Ok(self.answer(attempt))
    }
}
