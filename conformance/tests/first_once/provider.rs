//! Work that is done once, over the engine's leases and the steps of a store.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use distlock_api::{
    FencingToken, LockError, LockKey, LockProvider, Loss, LostSignal, Phase, Result, Wait, async_trait,
};
use distlock_engine::store::{Write, WriteOp, Written};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider};
use distlock_recipes::once::{
    Fingerprint, NotCompleted, Once, OnceGuard, OnceHandle, OnceOptions, OnceProvider, OnceRecord, OnceRun, OnceState,
    Outcome,
};
use tokio::time::Instant;

use crate::store::{Begun, MyStore};

/// Each process has one of its own over the same store.
#[derive(Debug)]
pub(crate) struct MyOnce {
    store: MyStore,
    locks: LeaseProvider,
}

impl MyOnce {
    pub(crate) fn new(store: MyStore) -> Self {
        Self { locks: LeaseProvider::new(Arc::new(store.clone())), store }
    }

    /// Begins the work under a lease. `None` if the lease has ended.
    fn begin(&self, guard: LeaseGuard, options: &OnceOptions) -> Option<Once> {
        let (key, token) = (guard.key().clone(), guard.fencing_token());
        match self.store.begin(&key, token, options)? {
            Begun::Known(answer) => {
                drop(guard.discard());
                Some(answer)
            }
            Begun::Run { run, before } => {
                let earlier = match &before.state {
                    OnceState::Interrupted(earlier) => Some(earlier.clone()),
                    _ => None,
                };
                let (store, fingerprint, keep) = (self.store.clone(), options.fingerprint().cloned(), options.keep());
                let run =
                    Handle { store, key: key.clone(), run, fingerprint, keep, before, guard: Some(guard), lost: false };
                Some(Once::Begun(OnceGuard::new(key, token, earlier, Box::new(run))))
            }
        }
    }
}

#[async_trait]
impl OnceProvider for MyOnce {
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Once> {
        options.validate()?;
        let since = Instant::now();
        loop {
            let wait = options.wait_left(since);
            match self.store.known(&key).answer(&options) {
                Some(Once::Busy(_)) if wait != Wait::Try => {}
                Some(answer) => return Ok(answer),
                None => {}
            }
            let acquire = options.acquire().clone().with_wait(wait);
            let acquired = self.locks.acquire_via(key.clone(), acquire, Arc::new(self.store.clone())).await?;
            match acquired {
                AcquiredLease::Held(guard) => match self.begin(guard, &options) {
                    Some(once) => return Ok(once),
                    None if wait == Wait::Try => {
                        return Err(LockError::timeout(Phase::Request, "the lease ended before the run was begun"));
                    }
                    None => {}
                },
                // The work may have ended at the last moment.
                AcquiredLease::Busy(_) => {
                    return Ok(self.store.known(&key).answer(&options).unwrap_or(Once::Busy(None)));
                }
            }
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<OnceRecord> {
        Ok(self.store.known(key))
    }

    async fn close(&self) -> Result<()> {
        self.locks.close().await
    }
}

impl fmt::Display for MyOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("my-once")
    }
}

/// The write that ends a run, in one step with its lease.
struct End {
    store: MyStore,
    token: FencingToken,
    work: OnceRecord,
    keep: Duration,
}

#[async_trait]
impl WriteOp for End {
    async fn write(&self, write: &Write) -> Result<Written> {
        let outcome = self.store.end(&write.claim, self.token, &self.work, self.keep);
        Ok(if outcome.is_released() { Written::Applied } else { Written::AlreadyLost })
    }
}

struct Handle {
    store: MyStore,
    key: LockKey,
    run: OnceRun,
    fingerprint: Option<Fingerprint>,
    keep: Duration,
    before: OnceRecord,
    /// `None` once the write that ends the run was sent.
    guard: Option<LeaseGuard>,
    lost: bool,
}

impl Handle {
    fn end(&self, work: OnceRecord) -> Arc<End> {
        Arc::new(End { store: self.store.clone(), token: self.run.token, work, keep: self.keep })
    }

    fn is_lost(&mut self) -> NotCompleted {
        self.lost = true;
        NotCompleted::lost(self.key.clone())
    }
}

#[async_trait]
impl OnceHandle for Handle {
    fn loss(&self) -> Option<Loss> {
        self.guard.as_ref().map_or(self.lost.then_some(Loss::Gone), LeaseGuard::loss)
    }

    fn lost(&self) -> LostSignal {
        match &self.guard {
            Some(guard) => guard.lost(),
            None if self.lost => LostSignal::new(async { Loss::Gone }),
            None => LostSignal::never(),
        }
    }

    fn valid_until(&self) -> Option<Instant> {
        Some(self.guard.as_ref().map_or_else(Instant::now, LeaseGuard::valid_until))
    }

    async fn complete(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        if let Some(guard) = self.guard.take() {
            let outcome = Outcome::new(value, self.run.clone(), SystemTime::now());
            let end = self.end(OnceRecord::new(OnceState::Done(outcome), self.fingerprint.clone()));
            match guard.release_via(end).await {
                Ok(outcome) if outcome.is_released() => return Ok(()),
                Ok(_) => return Err(self.is_lost()),
                Err(not) => self.guard = not.guard,
            }
        }
        // The answer was lost, or its caller had left: what is known now tells the outcome.
        let pending = || LockError::timeout(Phase::Request, "the completion may still be written").outcome_unknown();
        match self.store.known(&self.key).state {
            OnceState::Done(outcome) if outcome.run().token == self.run.token => Ok(()),
            OnceState::UnderWay(run) if run.token == self.run.token => Err(NotCompleted::Unknown(pending())),
            _ => Err(self.is_lost()),
        }
    }

    async fn discard(&mut self) -> Result<(), NotCompleted> {
        let Some(guard) = self.guard.take() else { return Err(self.is_lost()) };
        match guard.discard_via(self.end(self.before.clone())).await {
            Ok(outcome) if outcome.is_released() => Ok(()),
            Ok(_) => Err(self.is_lost()),
            Err(not) => Err(NotCompleted::Unknown(not.error.outcome_unknown())),
        }
    }
}
