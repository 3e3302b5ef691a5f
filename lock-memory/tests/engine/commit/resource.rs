//! A resource that is kept with the lease, and the writes that change it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use distlock_api::{AcquireOptions, AcquisitionId, ErrorKind, LockError, LockKey, Result, async_trait};
use distlock_engine::store::{AcquireOp, Attempt, Release, Reply, Write, WriteOp, Written};
use distlock_engine::{AcquiredLease, LeaseGuard, LeaseProvider, LeaseStore};
use distlock_memory::MemoryStore;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::kit::quick;
use crate::store::Fate;

/// A resource that is kept with the lease.
#[derive(Clone)]
pub(crate) struct Style {
    pub(crate) store: MemoryStore,
    pub(crate) value: Arc<Mutex<u64>>,
    brought: Arc<Mutex<HashMap<AcquisitionId, u64>>>,
    attempts: Arc<Mutex<u32>>,
}

#[async_trait]
impl AcquireOp for Style {
    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        *self.attempts.lock().unwrap() += 1;
        assert_eq!(attempt.tokens.get(), 1, "what it brings is for one guard");
        let reply = self.store.try_acquire(attempt).await?;
        if matches!(reply, Reply::Granted(_)) {
            let value = *self.value.lock().unwrap();
            self.brought.lock().unwrap().insert(attempt.claim.id().clone(), value);
        }
        Ok(reply)
    }
}

/// A write that adds one.
pub(crate) struct Adds {
    style: Style,
    releases: bool,
    done: Mutex<bool>,
    pub(crate) fates: Mutex<VecDeque<Fate>>,
    made: Mutex<u32>,
    pub(crate) reached: Notify,
}

impl Adds {
    pub(crate) fn made(&self) -> u32 {
        *self.made.lock().unwrap()
    }

    async fn apply(&self, write: &Write) -> Result<Written> {
        if *self.done.lock().unwrap() {
            return Ok(Written::Applied);
        }
        let Style { store, value, .. } = &self.style;
        let holder = store.peek(write.claim.key()).and_then(|info| info.id);
        if holder.as_ref() != Some(write.claim.id()) {
            return Ok(Written::AlreadyLost);
        }
        *value.lock().unwrap() += 1;
        *self.done.lock().unwrap() = true;
        if self.releases {
            let mut release = Release::new(write.claim.clone());
            release.hold_at_least = write.hold_at_least;
            let _ = store.release(&release).await?;
        }
        Ok(Written::Applied)
    }
}

#[async_trait]
impl WriteOp for Adds {
    async fn write(&self, write: &Write) -> Result<Written> {
        *self.made.lock().unwrap() += 1;
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Serve);
        self.reached.notify_one();
        fate.carry_out(write.timeout, self.apply(write)).await
    }
}

impl Style {
    pub(crate) fn new() -> Self {
        Self { store: MemoryStore::new(), value: Arc::default(), brought: Arc::default(), attempts: Arc::default() }
    }

    pub(crate) fn with_provider() -> (Self, LeaseProvider) {
        let style = Self::new();
        let provider = style.provider();
        (style, provider)
    }

    pub(crate) fn provider(&self) -> LeaseProvider {
        quick(&self.store)
    }

    pub(crate) fn attempts(&self) -> u32 {
        *self.attempts.lock().unwrap()
    }

    pub(crate) fn value(&self) -> u64 {
        *self.value.lock().unwrap()
    }

    pub(crate) async fn lock(&self, provider: &LeaseProvider) -> LeaseGuard {
        self.lock_with(provider, AcquireOptions::new()).await
    }

    pub(crate) async fn lock_with(&self, provider: &LeaseProvider, options: AcquireOptions) -> LeaseGuard {
        let key = LockKey::new("k").unwrap();
        match provider.acquire_via(key, options, Arc::new(self.clone())).await.unwrap() {
            AcquiredLease::Held(lease) => lease,
            AcquiredLease::Busy(busy) => panic!("{busy:?}"),
        }
    }

    pub(crate) fn lock_in_task(&self, provider: &LeaseProvider) -> JoinHandle<LeaseGuard> {
        let (style, provider) = (self.clone(), provider.clone());
        tokio::spawn(async move { style.lock(&provider).await })
    }

    /// Returns what came with a guard.
    pub(crate) fn brought(&self, lease: &LeaseGuard) -> u64 {
        self.brought.lock().unwrap()[lease.claim().id()]
    }

    pub(crate) fn adds(&self, releases: bool, fates: impl IntoIterator<Item = Fate>) -> Arc<Adds> {
        Arc::new(Adds {
            style: self.clone(),
            releases,
            done: Mutex::default(),
            fates: Mutex::new(fates.into_iter().collect()),
            made: Mutex::default(),
            reached: Notify::new(),
        })
    }
}

pub(crate) fn rejected() -> Fate {
    Fate::Fail(LockError::new(ErrorKind::Rejected, "not allowed"))
}

pub(crate) fn unavailable() -> Fate {
    Fate::Fail(LockError::new(ErrorKind::Unavailable, "not now"))
}

pub(crate) fn unknown() -> Fate {
    Fate::Fail(LockError::new(ErrorKind::Unavailable, "perhaps").outcome_unknown())
}
