//! Clients that break what the clauses say of work that is done once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock_api::{AcquireOptions, Capabilities, LockError, LockKey, Loss, LostSignal, Phase, Result, Wait};
use distlock_conformance::{Arena, Client, Fault, Fixture, FixtureError, Hook, Profile, async_trait};
use distlock_memory::{MemoryOnce, MemoryStore};
use distlock_recipes::once::{
    Fingerprint, NotCompleted, Once as Answer, OnceGuard, OnceHandle, OnceOptions, OnceProvider, OnceProviderExt,
    OnceRecord,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

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
    /// A call whose reply was lost is repeated, and takes its own run for that of another caller.
    LostBeginningIsBusy,
    /// A call whose reply was lost fails, and its run is renewed for ever.
    LostBeginningStays,
    /// A completion whose reply was lost is repeated, and finds no lease.
    LostCompletionIsLost,
    /// A completion that its caller has left is not known to the next call.
    LeftCompletionIsLost,
    /// A discard whose reply was lost is repeated, and finds no lease.
    LostDiscardIsLost,
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

/// How long a client repeats a request whose replies are lost: longer than they are.
const REQUEST: Duration = Duration::from_secs(5);

impl Once {
    pub(crate) fn fixture(self) -> Remembering {
        let store = MemoryStore::new();
        let once = MemoryOnce::with_locks(store.provider());
        Remembering(self, Arc::new(Deployment { store, once, loses: watch::Sender::new(false) }))
    }

    fn client(self, of: &Deployment, network: Network) -> Arc<dyn OnceProvider> {
        let inner = of.once.twin(of.store.provider());
        Arc::new(Broken { defect: self, inner, network, others: AtomicU64::new(0) })
    }
}

/// What the clients of a deployment share.
struct Deployment {
    store: MemoryStore,
    once: MemoryOnce,
    /// Whether its replies are lost.
    loses: watch::Sender<bool>,
}

/// The network of a client: whether replies are lost. Requests always arrive.
#[derive(Clone, Debug)]
struct Network(watch::Receiver<bool>);

impl Network {
    fn loses(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns whether a reply arrives before the time of its request has ended.
    async fn delivers(&self) -> bool {
        timeout(REQUEST, self.0.clone().wait_for(|loses| !loses)).await.is_ok()
    }
}

fn unanswered() -> LockError {
    LockError::timeout(Phase::Request, "no answer").outcome_unknown()
}

struct LostReplies(Arc<Deployment>);

#[async_trait]
impl Fault for LostReplies {
    fn kind(&self) -> &'static str {
        "lost-replies"
    }

    async fn begin(&self) -> Result<(), FixtureError> {
        self.0.loses.send_replace(true);
        Ok(())
    }

    async fn end(&self) -> Result<String, FixtureError> {
        self.0.loses.send_replace(false);
        Ok("replies arrive again".to_owned())
    }
}

#[async_trait]
impl Arena for LostReplies {
    fn address(&self) -> String {
        "memory".to_owned()
    }

    fn faults(&self) -> Vec<Arc<dyn Fault>> {
        Vec::new()
    }

    fn hook(&self, _: Hook, _: &LockKey) -> Option<Arc<dyn Fault>> {
        Some(Arc::new(Self(Arc::clone(&self.0))))
    }

    async fn healthy(&self) -> Result<(), FixtureError> {
        Ok(())
    }

    async fn stop(&self) {}
}

/// Makes clients that do work once. Its locks are sound.
pub(crate) struct Remembering(Once, Arc<Deployment>);

#[async_trait]
impl Fixture for Remembering {
    fn name(&self) -> &str {
        "once"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        Profile::new(promised).once().arena().hooks([Hook::LoseReplies])
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let store = MemoryStore::new();
        Ok((0..count).map(|_| Client::new(Arc::new(store.provider()))).collect())
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        // Without faults.
        let network = Network(watch::channel(false).1);
        Ok((0..count).map(|_| self.0.client(&self.1, network.clone())).collect())
    }

    async fn once_at(&self, _: &str) -> Result<Arc<dyn OnceProvider>, FixtureError> {
        Ok(self.0.client(&self.1, Network(self.1.loses.subscribe())))
    }

    async fn arena(&self) -> Result<Box<dyn Arena>, FixtureError> {
        Ok(Box::new(LostReplies(Arc::clone(&self.1))))
    }
}

#[derive(Debug)]
struct Broken {
    defect: Once,
    inner: MemoryOnce,
    network: Network,
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

impl Broken {
    async fn carried_out(&self, key: LockKey, options: OnceOptions) -> Result<Answer> {
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
                let handle = Handle {
                    defect: self.defect,
                    key: key.clone(),
                    ends: Instant::now() + keep,
                    inner: self.inner.clone(),
                    network: self.network.clone(),
                    guard: Mutex::new(Some(guard)),
                    is_lost: false,
                };
                Ok(Answer::Begun(OnceGuard::new(key, token, interrupted, Box::new(handle))))
            }
            other => Ok(other),
        }
    }
}

#[async_trait]
impl OnceProvider for Broken {
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Answer> {
        let answer = self.carried_out(key.clone(), options).await?;
        if !self.network.loses() {
            return Ok(answer);
        }
        if matches!(self.defect, Once::LostBeginningIsBusy | Once::LostBeginningStays) {
            std::mem::forget(answer);
            return if self.defect == Once::LostBeginningStays {
                Err(unanswered())
            } else {
                self.inner.try_once(key).await
            };
        }
        if self.network.delivers().await { Ok(answer) } else { Err(unanswered()) }
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
    network: Network,
    guard: Mutex<Option<OnceGuard>>,
    /// Whether the holder was told that the lease is lost.
    is_lost: bool,
}

impl Handle {
    fn with<T>(&self, read: impl FnOnce(&OnceGuard) -> T) -> Option<T> {
        self.guard.lock().expect("not poisoned").as_ref().map(read)
    }

    async fn completed(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        let Some(guard) = self.guard.get_mut().expect("not poisoned") else { return Ok(()) };
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

    /// Completes with a guard that is lost when the caller leaves.
    async fn completed_in_one_call(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        let taken = self.guard.get_mut().expect("not poisoned").take();
        let Some(mut guard) = taken else { return Err(NotCompleted::lost(self.key.clone())) };
        let answer = guard.complete(&value).await;
        tokio::task::yield_now().await;
        *self.guard.get_mut().expect("not poisoned") = Some(guard);
        answer
    }

    /// Returns the answer to a request as its sender sees it.
    async fn delivered(&mut self, answer: Result<(), NotCompleted>, is_lost_by: Once) -> Result<(), NotCompleted> {
        if !self.network.loses() {
            return answer;
        }
        if self.defect == is_lost_by {
            self.is_lost = true;
            return Err(NotCompleted::lost(self.key.clone()));
        }
        if self.network.delivers().await { answer } else { Err(NotCompleted::Unknown(unanswered())) }
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
        if self.defect == Once::RejectedIsCompleted && value.len() == OnceOptions::MAX_VALUE_LEN {
            // As a store whose limit is lower than it says.
            return Ok(());
        }
        if self.is_lost {
            return Err(NotCompleted::lost(self.key.clone()));
        }
        if self.defect == Once::LeftCompletionIsLost {
            return self.completed_in_one_call(value).await;
        }
        let answer = self.completed(value).await;
        self.delivered(answer, Once::LostCompletionIsLost).await
    }

    async fn discard(&mut self) -> Result<(), NotCompleted> {
        let answer = match self.guard.get_mut().expect("not poisoned").take() {
            Some(guard) if self.defect != Once::DiscardLeavesTrace => guard.discard().await,
            _ => Ok(()),
        };
        self.delivered(answer, Once::LostDiscardIsLost).await
    }
}
