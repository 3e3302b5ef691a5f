//! Work that is done once per key, remembered in memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use distlock_api::{
    Acquired, AcquisitionId, ErrorKind, FencingToken, Instrumented, LockError, LockGuard, LockInfo, LockKey,
    LockProvider, Loss, LostSignal, Phase, ReleaseFuture, Result, Wait,
};
use distlock_recipes::once::{
    Fingerprint, NotCompleted, Once, OnceGuard, OnceHandle, OnceOptions, OnceProvider, OnceRecord, OnceRun, OnceState,
    Outcome, report_once,
};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::provider::MemoryProvider;

/// Work that is done once per key, remembered in memory: for one process, and for tests. Clones
/// share everything.
///
/// See [`distlock_recipes::once`] for what it is for. The lease of a run is a lock of a
/// [`LockProvider`]: a [`MemoryProvider`] by default, whose locks never expire, or
/// [another one](Self::with_locks), such as one over a [`MemoryStore`](crate::MemoryStore), whose
/// clock a test controls. The provider must have administration, and the locks must be of this use
/// alone.
///
/// An outcome counts for `keep` by tokio's clock, which a test can pause. Interrupted runs are
/// remembered for the life of this value.
///
/// ```
/// use distlock_api::LockError;
/// use distlock_recipes::once::{Once, OnceProviderExt};
/// use distlock_memory::MemoryOnce;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let payments = MemoryOnce::new();
/// let Once::Begun(mut work) = payments.once("payments/7").await? else { unreachable!("it is new") };
/// assert!(payments.try_once("payments/7").await?.is_busy());
/// work.complete("receipt 1").await?;
/// let outcome = payments.once("payments/7").await?.done().unwrap();
/// assert_eq!(outcome.value(), b"receipt 1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryOnce {
    locks: Arc<dyn LockProvider>,
    entries: Entries,
    /// The name for reports.
    name: Option<Arc<str>>,
}

type Entries = Arc<Mutex<Remembered>>;

/// What is remembered. Entries that no longer count are removed whenever their number has doubled.
#[derive(Default)]
struct Remembered {
    entries: HashMap<LockKey, Entry>,
    purge_at: usize,
}

/// What is remembered of one key.
#[derive(Clone)]
enum Entry {
    /// The last run, which was neither completed nor discarded.
    Begun {
        run: OnceRun,
        fingerprint: Option<Fingerprint>,
        /// Its lease. A lease that is handed on keeps its id.
        lease: Option<AcquisitionId>,
        /// Whether its guard was dropped.
        dropped: bool,
    },
    /// An outcome that counts until then.
    Done { outcome: Outcome, fingerprint: Option<Fingerprint>, until: Instant },
}

const MIN_PURGE: usize = 64;

impl Remembered {
    /// Returns what counts at this time.
    fn get(&self, key: &LockKey, now: Instant) -> Option<&Entry> {
        self.entries.get(key).filter(|entry| entry.counts(now))
    }

    fn insert(&mut self, key: LockKey, entry: Entry, now: Instant) {
        if self.entries.len() >= self.purge_at.max(MIN_PURGE) {
            self.entries.retain(|_, entry| entry.counts(now));
            self.purge_at = 2 * self.entries.len();
        }
        self.entries.insert(key, entry);
    }

    /// Returns whether this run is the last one, and has not ended.
    fn is_last(&self, key: &LockKey, token: FencingToken) -> bool {
        matches!(self.entries.get(key), Some(Entry::Begun { run, .. }) if run.token == token)
    }
}

impl Entry {
    /// Returns which run this is of, and whether it was completed.
    fn run(&self) -> (bool, FencingToken) {
        match self {
            Self::Begun { run, .. } => (false, run.token),
            Self::Done { outcome, .. } => (true, outcome.run().token),
        }
    }

    /// Returns whether the run holds the lock that has this state.
    fn is_of(&self, info: &LockInfo) -> bool {
        matches!(self, Self::Begun { lease, dropped: false, .. } if *lease == info.id)
    }

    fn counts(&self, now: Instant) -> bool {
        match self {
            Self::Begun { .. } => true,
            Self::Done { until, .. } => *until > now,
        }
    }

    /// Returns what is known while this lease is held.
    fn record(&self, held: Option<&AcquisitionId>) -> OnceRecord {
        match self {
            Self::Done { outcome, fingerprint, .. } => {
                OnceRecord::new(OnceState::Done(outcome.clone()), fingerprint.clone())
            }
            Self::Begun { run, fingerprint, lease, dropped } => {
                let under_way = !dropped && held.is_some() && held == lease.as_ref();
                let state = if under_way { OnceState::UnderWay } else { OnceState::Interrupted };
                OnceRecord::new(state(run.clone()), fingerprint.clone())
            }
        }
    }
}

impl MemoryOnce {
    /// Makes it over a [`MemoryProvider`] of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_locks(MemoryProvider::new())
    }

    /// Makes it over locks that nothing else uses.
    #[must_use]
    pub fn with_locks(locks: impl LockProvider) -> Self {
        Self { locks: Arc::new(locks), entries: Entries::default(), name: None }
    }

    /// Returns the same memory for another process: what is remembered is shared, and the leases
    /// are those of `locks`, another provider of the same store. For tests.
    #[must_use]
    pub fn twin(&self, locks: impl LockProvider) -> Self {
        Self { locks: Arc::new(locks), entries: self.entries.clone(), name: None }
    }

    /// Reports each call, and each acquisition and hold of the locks, under this name: see
    /// [`once`](distlock_recipes::once#spans-and-metrics). The name is the label `provider`: use a
    /// constant. Defaults to no reports.
    #[must_use]
    pub fn instrumented(self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        let locks = Arc::new(Instrumented::new(self.locks).named(name));
        Self { locks, entries: self.entries, name: Some(name.into()) }
    }

    /// Returns the locks under this.
    #[must_use]
    pub fn locks(&self) -> &Arc<dyn LockProvider> {
        &self.locks
    }

    async fn read(&self, key: &LockKey) -> Result<OnceRecord> {
        let mut entry = self.entry(key);
        loop {
            // After the entry: if its run no longer holds the lock now, it has ended.
            let info = self.holder(key).await?;
            let now = self.entry(key);
            if entry.as_ref().map(Entry::run) != now.as_ref().map(Entry::run) {
                entry = now;
                continue;
            }
            return Ok(match (now, info) {
                (Some(entry @ Entry::Done { .. }), _) => entry.record(None),
                (Some(entry), None) => entry.record(None),
                (Some(entry), Some(info)) if entry.is_of(&info) => entry.record(info.id.as_ref()),
                // The holder has not yet recorded that it begins, or is about to release.
                (_, Some(info)) => {
                    let run = OnceRun::new(info.token, info.owner.map(Arc::from), SystemTime::now());
                    OnceRecord::new(OnceState::UnderWay(run), None)
                }
                (None, None) => OnceRecord::default(),
            });
        }
    }

    /// Returns the holder of the lock of a key.
    async fn holder(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let Some(admin) = self.locks.admin() else {
            let message = "`MemoryOnce` needs locks with administration: without it the state of a run is not known. \
                           Use another provider in `with_locks`";
            return Err(LockError::new(ErrorKind::Unsupported, message).with_key(key.clone()));
        };
        Ok(admin.inspect(key).await?.filter(|info| info.id.is_some()))
    }

    fn entry(&self, key: &LockKey) -> Option<Entry> {
        self.entries.lock().get(key, Instant::now()).cloned()
    }

    /// Begins the work under a lock that was acquired for it. Returns `None` if the lock was lost
    /// meanwhile.
    fn begin(&self, guard: LockGuard, info: LockInfo, options: &OnceOptions) -> Option<Once> {
        let (key, token, now) = (guard.key().clone(), guard.fencing_token(), Instant::now());
        let mut remembered = self.entries.lock();
        let before = remembered.get(&key, now).cloned();
        // A later run may have begun.
        if guard.is_lost() || before.as_ref().is_some_and(|entry| entry.run().1 > token) {
            return None;
        }
        let known = before.as_ref().map(|entry| entry.record(None)).unwrap_or_default();
        if let Some(answer) = known.answer(options) {
            drop(remembered);
            // No work was done under the lock.
            drop(guard.discard());
            return Some(answer);
        }
        let run = OnceRun::new(token, info.owner.map(Arc::from), SystemTime::now());
        let fingerprint = options.fingerprint().cloned();
        let begun = Entry::Begun { run: run.clone(), fingerprint, lease: info.id, dropped: false };
        remembered.insert(key.clone(), begun, now);
        drop(remembered);
        let interrupted = match known.state {
            OnceState::Interrupted(run) => Some(run),
            _ => None,
        };
        let handle = MemoryOnceHandle {
            entries: self.entries.clone(),
            key: key.clone(),
            run,
            fingerprint: options.fingerprint().cloned(),
            keep: options.keep(),
            before,
            state: State::Held(guard),
        };
        Some(Once::Begun(OnceGuard::new(key, token, interrupted, Box::new(handle))))
    }
}

#[async_trait]
impl OnceProvider for MemoryOnce {
    async fn once_with(&self, key: LockKey, options: OnceOptions) -> Result<Once> {
        let reported = key.clone();
        let answer = report_once(self.name.as_ref(), &reported, self.answer(key, options)).await;
        // It may have come without a wait, and its caller may ask again at once.
        if !matches!(answer, Ok(Once::Begun(_))) {
            yield_now().await;
        }
        answer
    }

    async fn inspect(&self, key: &LockKey) -> Result<OnceRecord> {
        self.read(key).await
    }

    async fn close(&self) -> Result<()> {
        self.locks.close().await
    }
}

impl MemoryOnce {
    async fn answer(&self, key: LockKey, options: OnceOptions) -> Result<Once> {
        let acquire = options.acquire();
        let checked = options.validate().and_then(|()| acquire.lease().terms().map(drop));
        checked.and_then(|()| acquire.holder().validate()).map_err(|error| error.with_key(key.clone()))?;
        let since = Instant::now();
        let mut is_late = false;
        loop {
            let rest = options.wait_left(since);
            match self.read(&key).await?.answer(&options) {
                Some(Once::Busy(_)) if rest != Wait::Try => {}
                Some(answer) => return Ok(answer),
                // O9: no further try without a wait.
                None if is_late && rest == Wait::Try => {
                    let message = "the lease of the run ended before it was begun: raise the ttl";
                    return Err(LockError::timeout(Phase::Request, message).with_key(key));
                }
                None => {}
            }
            let acquire = options.acquire().clone().with_wait(rest);
            let Acquired::Held(guard) = self.locks.acquire_with(key.clone(), acquire).await? else {
                // The work may have ended at the last moment.
                return Ok(self.read(&key).await?.answer(&options).unwrap_or(Once::Busy(None)));
            };
            if let Some(info) = self.holder(&key).await?
                && let Some(once) = self.begin(guard, info, &options)
            {
                return Ok(once);
            }
            is_late = true;
        }
    }
}

/// Work that was begun. Dropping it releases the lock, and leaves the entry: interrupted.
struct MemoryOnceHandle {
    entries: Entries,
    key: LockKey,
    run: OnceRun,
    fingerprint: Option<Fingerprint>,
    keep: Duration,
    before: Option<Entry>,
    state: State,
}

enum State {
    Held(LockGuard),
    Completed,
    Discarded,
    Lost,
}

impl MemoryOnceHandle {
    /// Ends the run with this entry, if the lock is held (O3). The entries are locked meanwhile: a
    /// later run has either begun before, and this one is refused, or finds the entry.
    fn end(
        &mut self,
        entry: impl FnOnce(&Self, Instant) -> Option<Entry>,
        ended: State,
    ) -> Result<ReleaseFuture, NotCompleted> {
        let entries = self.entries.clone();
        let mut remembered = entries.lock();
        let held = matches!(&self.state, State::Held(guard) if !guard.is_lost());
        if !held || !remembered.is_last(&self.key, self.run.token) {
            drop(remembered);
            self.state = State::Lost;
            return Err(NotCompleted::lost(self.key.clone()));
        }
        let now = Instant::now();
        match entry(self, now) {
            Some(entry) => remembered.insert(self.key.clone(), entry, now),
            None => _ = remembered.entries.remove(&self.key),
        }
        drop(remembered);
        match std::mem::replace(&mut self.state, ended) {
            State::Held(guard) if matches!(self.state, State::Discarded) => Ok(guard.discard()),
            State::Held(guard) => Ok(guard.release()),
            _ => unreachable!("the lock is held, see above"),
        }
    }
}

/// What is remembered counts already, whatever becomes of the release.
async fn released(release: Result<ReleaseFuture, NotCompleted>) -> Result<(), NotCompleted> {
    let _ = release?.await;
    Ok(())
}

impl Drop for MemoryOnceHandle {
    fn drop(&mut self) {
        if let Some(Entry::Begun { run, dropped, .. }) = self.entries.lock().entries.get_mut(&self.key)
            && run.token == self.run.token
        {
            *dropped = true;
        }
    }
}

#[async_trait]
impl OnceHandle for MemoryOnceHandle {
    fn loss(&self) -> Option<Loss> {
        match &self.state {
            State::Held(guard) => guard.loss(),
            State::Lost => Some(Loss::Gone),
            State::Completed | State::Discarded => None,
        }
    }

    fn lost(&self) -> LostSignal {
        match &self.state {
            State::Held(guard) => guard.lost(),
            State::Lost => LostSignal::new(async { Loss::Gone }),
            State::Completed | State::Discarded => LostSignal::never(),
        }
    }

    fn valid_until(&self) -> Option<Instant> {
        match &self.state {
            State::Held(guard) => guard.valid_until(),
            // No longer than until now.
            _ => Some(Instant::now()),
        }
    }

    async fn complete(&mut self, value: Arc<[u8]>) -> Result<(), NotCompleted> {
        if matches!(self.state, State::Completed) {
            return Ok(());
        }
        let done = |this: &Self, now: Instant| {
            let outcome = Outcome::new(value, this.run.clone(), SystemTime::now());
            let until = now.checked_add(this.keep).unwrap_or(now);
            Some(Entry::Done { outcome, fingerprint: this.fingerprint.clone(), until })
        };
        released(self.end(done, State::Completed)).await
    }

    async fn discard(&mut self) -> Result<(), NotCompleted> {
        match self.state {
            State::Discarded => Ok(()),
            State::Completed => {
                let message = "the work is completed, and its outcome is remembered: nothing to discard";
                Err(NotCompleted::Rejected(LockError::invalid_options(message).with_key(self.key.clone())))
            }
            State::Held(_) | State::Lost => {
                // An outcome that counted would have been the answer.
                let before = |this: &Self, _| this.before.clone().filter(|entry| matches!(entry, Entry::Begun { .. }));
                released(self.end(before, State::Discarded)).await
            }
        }
    }
}

impl Default for MemoryOnce {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.entries.lock().entries.len();
        f.debug_struct("MemoryOnce").field("locks", &self.locks).field("keys", &keys).finish_non_exhaustive()
    }
}

impl fmt::Display for MemoryOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.locks, f)
    }
}
