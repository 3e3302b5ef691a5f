//! Clients that break what the clauses say of work that is done once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquireOptions, Capabilities, LockKey, Loss, LostSignal, Result, Wait};
use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait};
use distlock_memory::{MemoryOnce, MemoryStore};
use distlock_recipes::once::{
    Fingerprint, NotCompleted, Once as Answer, OnceGuard, OnceHandle, OnceOptions, OnceProvider, OnceProviderExt,
    OnceRecord,
};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Once {
    /// Nothing is broken.
    Sound,
    /// Work is begun before a further request, whose answer may come after the end of the lease.
    BegunBeforeTheEnd,
    /// A second caller begins although the first one works.
    TwoBegin,
    /// A completion releases, and remembers nothing.
    OutcomeForgotten,
    /// An outcome counts for a moment only.
    ForgottenEarly,
    /// The completion of a late holder is answered as if it were made.
    LateCompleteAccepted,
    /// The completion of a late holder is made if no other run was begun.
    LateCompletesAlone,
    /// A run that was interrupted is under way for ever.
    CrashNeverReopens,
    /// An interrupted run is not reported to the next one.
    VanishedIsNew,
    /// `at_most_once` begins again.
    AtMostOnceIgnored,
    /// A discarded run is left interrupted.
    DiscardLeavesTrace,
    FingerprintIgnored,
    /// Only the beginning of a fingerprint counts.
    FingerprintIsCut,
    /// A value that was refused is answered as remembered.
    RejectedIsCompleted,
    /// A wait has no end.
    WaitIsUnbounded,
    /// A waiter is told that the work is busy when it has waited for it.
    WaiterGetsNoOutcome,
    /// `keep` counts from the beginning of the work.
    KeepCountsFromTheBeginning,
    /// `keep` plays no part.
    NeverForgotten,
    /// A call that is dropped keeps what it has begun.
    DroppedCallBegins,
}

/// An answer that is never dropped.
struct Kept(Option<Answer>);

impl Drop for Kept {
    fn drop(&mut self) {
        std::mem::forget(self.0.take());
    }
}

/// How long the further request takes with [`Once::BegunBeforeTheEnd`]: most of a call, however
/// busy the machine is.
const FURTHER_REQUEST: Duration = Duration::from_millis(250);

/// How long an outcome counts with [`Once::ForgottenEarly`].
const A_MOMENT: Duration = Duration::from_millis(1);

impl Once {
    pub(crate) fn fixture(self) -> Remembering {
        Remembering(self)
    }
}

/// Makes clients that do work once. Its locks are sound.
pub(crate) struct Remembering(Once);

#[async_trait]
impl Fixture for Remembering {
    fn name(&self) -> &str {
        "once"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        Profile::new(promised).once()
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let store = MemoryStore::new();
        Ok((0..count).map(|_| Client::new(Arc::new(store.provider()))).collect())
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        let store = MemoryStore::new();
        let once = MemoryOnce::with_locks(store.provider());
        let client = |_| {
            let inner = once.twin(store.provider());
            Arc::new(Broken { defect: self.0, inner, others: AtomicU64::new(0) }) as Arc<dyn OnceProvider>
        };
        Ok((0..count).map(client).collect())
    }
}

#[derive(Debug)]
struct Broken {
    defect: Once,
    inner: MemoryOnce,
    others: AtomicU64,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.defect, self.inner)
    }
}

/// The options, with another `acquire` and without what is broken.
fn changed(defect: Once, options: &OnceOptions, acquire: AcquireOptions) -> OnceOptions {
    let keep = match defect {
        Once::ForgottenEarly => A_MOMENT,
        Once::NeverForgotten => OnceOptions::MAX_KEEP,
        _ => options.keep(),
    };
    let mut new = OnceOptions::new().with_acquire(acquire).with_keep(keep);
    if let Some(print) = options.fingerprint().filter(|_| defect != Once::FingerprintIgnored) {
        let length = if defect == Once::FingerprintIsCut { 64 } else { Fingerprint::MAX_LEN };
        new = new.with_fingerprint(Fingerprint::new(&print.as_bytes()[..print.as_bytes().len().min(length)]));
    }
    if options.is_at_most_once() && defect != Once::AtMostOnceIgnored { new.at_most_once() } else { new }
}

#[async_trait]
impl OnceProvider for Broken {
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Answer> {
        let (acquire, keep) = (options.acquire().clone(), options.keep());
        let acquire = match (self.defect, acquire.wait()) {
            (Once::WaitIsUnbounded, Wait::UpTo(_)) => acquire.with_wait(Wait::Forever),
            (Once::WaiterGetsNoOutcome | Once::TwoBegin, _) => acquire.with_wait(Wait::Try),
            _ => acquire,
        };
        let options = changed(self.defect, &options, acquire);
        let answer = if self.defect == Once::BegunBeforeTheEnd {
            let begun = self.inner.once_with(key.clone(), options).await?;
            tokio::time::sleep(FURTHER_REQUEST).await;
            begun
        } else if self.defect == Once::DroppedCallBegins {
            let mut begun = Kept(Some(self.inner.once_with(key.clone(), options).await?));
            tokio::task::yield_now().await;
            begun.0.take().expect("taken once")
        } else {
            self.inner.once_with(key.clone(), options).await?
        };
        match answer {
            Answer::Busy(_) if self.defect == Once::TwoBegin => {
                let other = format!("{key}/{}", self.others.fetch_add(1, Ordering::Relaxed));
                self.inner.once(other).await
            }
            Answer::Begun(guard) if self.defect == Once::CrashNeverReopens && guard.interrupted().is_some() => {
                Ok(Answer::Busy(guard.interrupted().cloned()))
            }
            Answer::Begun(guard) => {
                let interrupted = guard.interrupted().filter(|_| self.defect != Once::VanishedIsNew).cloned();
                let token = guard.fencing_token();
                let inner = self.inner.clone();
                let ends = Instant::now() + keep;
                let handle =
                    Handle { defect: self.defect, key: key.clone(), ends, inner, guard: Mutex::new(Some(guard)) };
                Ok(Answer::Begun(OnceGuard::new(key, token, interrupted, Box::new(handle))))
            }
            other => Ok(other),
        }
    }

    async fn inspect(&self, key: &LockKey) -> Result<OnceRecord> {
        self.inner.inspect(key).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

struct Handle {
    defect: Once,
    key: LockKey,
    /// When `keep` has passed since the beginning.
    ends: Instant,
    inner: MemoryOnce,
    guard: Mutex<Option<OnceGuard>>,
}

impl Handle {
    fn with<T>(&self, read: impl FnOnce(&OnceGuard) -> T) -> Option<T> {
        self.guard.lock().expect("not poisoned").as_ref().map(read)
    }
}

#[async_trait]
impl OnceHandle for Handle {
    fn loss(&self) -> Option<Loss> {
        self.with(OnceGuard::loss).flatten()
    }

    fn lost(&self) -> LostSignal {
        self.with(OnceGuard::lost).unwrap_or_else(LostSignal::never)
    }

    fn valid_until(&self) -> Option<Instant> {
        self.with(OnceGuard::valid_until).flatten()
    }

    async fn complete(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        let is_over = self.defect == Once::KeepCountsFromTheBeginning && self.ends <= Instant::now();
        if self.defect == Once::OutcomeForgotten || is_over {
            return self.discard().await;
        }
        let Some(guard) = self.guard.get_mut().expect("not poisoned") else { return Ok(()) };
        if self.defect == Once::RejectedIsCompleted && value.len() == OnceOptions::MAX_VALUE_LEN {
            // As a store whose limit is lower than it says.
            return Ok(());
        }
        match guard.complete(&value).await {
            Err(NotCompleted::Lost(_)) if self.defect == Once::LateCompleteAccepted => Ok(()),
            Err(NotCompleted::Lost(lost)) if self.defect == Once::LateCompletesAlone => {
                match self.inner.try_once(&self.key).await {
                    Ok(Answer::Begun(mut again)) => again.complete(&value).await,
                    _ => Err(NotCompleted::Lost(lost)),
                }
            }
            answer => answer,
        }
    }

    async fn discard(&mut self) -> Result<(), NotCompleted> {
        match self.guard.get_mut().expect("not poisoned").take() {
            Some(guard) if self.defect != Once::DiscardLeavesTrace => guard.discard().await,
            _ => Ok(()),
        }
    }
}
