//! The lease store for tests.

mod admin;
mod clock;
mod controls;
pub(crate) mod events;
mod faults;
mod key;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::faults::{Calls, HangHandle, Operation};
use async_trait::async_trait;
use distlock_api::{ErrorKind, FencingToken, LockError, LockEvent, LockKey, Loss, ReleaseOutcome, Result};
use distlock_engine::LeaseStore;
use distlock_engine::record::{Change, Record};
use distlock_engine::store::{
    Attempt, BatchRenewStore, Claim, EventStore, EventStream, QueueStore, Release, RemoteStore, Renewal, Reply,
    Standing, StoreCapabilities, StoreEvent, StoreExtras, Watch,
};
use tokio::task::coop::consume_budget;

use self::clock::Clock;
use self::events::Streams;
use self::faults::Faults;

/// A [`LeaseStore`] in memory. It takes the place of the database in tests of applications that use
/// locks.
///
/// The engine above it is the one that also runs over a real backend, so waiting, renewal, loss and
/// clean-up behave as in production. Clones share one state: a provider made of each clone acts as
/// another process at the same store.
///
/// # Time
/// Leases expire by tokio's clock, so `tokio::time::pause` and `advance` work. With
/// [`with_manual_clock`](Self::with_manual_clock) the clock stands still.
/// [`advance`](Self::advance) moves either forward, which to the engine is a step of the store's
/// clock.
///
/// # Queue
/// Each waiter has a ticket, and a release grants the lease to the first in the queue in the same
/// step, as in MongoDB. [`waiting`](Self::waiting) shows the queue of a key. To test with a dead
/// waiter, make a [`Claim`] with a ticket and do not refresh it.
///
/// # Push
/// Providers get events at once. The streams can be [cut](Self::cut_watchers),
/// [broken](Self::break_watchers), [delayed](Self::delay_events) and [silenced](Self::lose_events),
/// and a test can [push](Self::push) any event.
///
/// # Faults
/// A fault is planned for the next call of an [`Operation`], or of an operation on one key with
/// [`Operation::of`]. Plans are used in the order they were made, each once. [`calls`](Self::calls)
/// counts and [`called`](Self::called) waits, so that tests need not sleep.
///
/// # Records
/// A key's record stays until it is [purged](Self::purge), as in a database. For locks that leave
/// no records behind use [`MemoryProvider`](crate::MemoryProvider).
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    capabilities: StoreCapabilities,
    has_queue: bool,
    has_events: bool,
}

struct Shared {
    state: Mutex<State>,
    faults: Faults,
}

struct State {
    clock: Clock,
    /// In the order of lists.
    records: BTreeMap<LockKey, Record>,
    /// The highest token of any record that was removed.
    purged_token: u64,
    events: Streams<StoreEvent>,
    lock_events: Streams<LockEvent>,
    events_lost: bool,
    events_delayed: Duration,
}

impl MemoryStore {
    /// Creates an empty store on tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Clock::tokio())
    }

    /// Creates an empty store whose clock stands still until [`advance`](Self::advance) moves it.
    #[must_use]
    pub fn with_manual_clock() -> Self {
        Self::on(Clock::manual())
    }

    /// Returns a handle to the same store with other capabilities. This handle and its clones
    /// declare them to the engine, and behave accordingly. By default all are on. For tests of the
    /// engine with a less capable store, or of processes that differ at one store.
    ///
    /// * Without `token_blocks` a grant has one token.
    /// * Without `minimum_hold` a release opens the key at once.
    /// * Without `ordered_claims` a call that was given up takes effect whenever it arrives.
    /// * Without `shared` or `permits` the engine refuses these modes.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: StoreCapabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Returns a handle to the same store with or without a [`QueueStore`]. Without one no ticket
    /// is added, every claim has its turn at once, and a release grants the lease to no waiter;
    /// tickets of other handles stay. Defaults to true.
    #[must_use]
    pub fn with_queue(mut self, has_queue: bool) -> Self {
        self.has_queue = has_queue;
        self
    }

    /// Returns a handle to the same store with or without an [`EventStore`]. Defaults to true.
    #[must_use]
    pub fn with_events(mut self, has_events: bool) -> Self {
        self.has_events = has_events;
        self
    }

    fn on(clock: Clock) -> Self {
        let mut capabilities = StoreCapabilities::default();
        capabilities.token_blocks = true;
        capabilities.minimum_hold = true;
        capabilities.ordered_claims = true;
        capabilities.shared = true;
        capabilities.permits = true;
        let state = State {
            clock,
            records: BTreeMap::new(),
            purged_token: 0,
            events: Streams::new(),
            lock_events: Streams::new(),
            events_lost: false,
            events_delayed: Duration::ZERO,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), faults: Faults::default() });
        Self { shared, capabilities, has_queue: true, has_events: true }
    }

    /// Reduces an attempt to the capabilities of this handle.
    fn attempt(&self, attempt: &Attempt) -> Attempt {
        let mut attempt = attempt.clone();
        if !self.has_queue {
            attempt.ticket = None;
            attempt.turn_window = Duration::ZERO;
        }
        if !self.capabilities.token_blocks {
            attempt.tokens = NonZeroU32::MIN;
        }
        attempt
    }

    /// Refuses a straggler, if the handle declares that. To be called within the step.
    fn in_order(&self, claim: &Claim, number: u64) -> Result<()> {
        if self.capabilities.ordered_claims { CallOrder::apply(claim, number) } else { Ok(()) }
    }

    /// Runs one atomic step at the store.
    fn step<T>(&self, step: impl FnOnce(&mut State, Duration) -> T) -> T {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.clock.now();
        step(&mut state, now)
    }

    /// Runs one call: the way to the store, the step, the way back. If it is dropped before the
    /// step, it never has an effect.
    async fn call<T>(
        &self,
        operation: Operation,
        key: Option<&LockKey>,
        step: impl FnOnce(&mut State, Duration) -> Result<T>,
    ) -> Result<T> {
        // As with a server, no caller can keep the thread by calls alone.
        consume_budget().await;
        let mut arrival = self.shared.faults.arrive(operation, key.into_iter());
        arrival.before().await?;
        let reply = self.step(step)?;
        arrival.after().await?;
        Ok(reply)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, now) = self.step(|state, now| (state.records.len(), now));
        f.debug_struct("MemoryStore").field("keys", &keys).field("now", &now).finish_non_exhaustive()
    }
}

impl State {
    fn record(&mut self, key: &LockKey) -> &mut Record {
        let floor = self.purged_token;
        self.records.entry(key.clone()).or_insert_with(|| Record::above(floor))
    }

    /// Runs a step of a record, and sends the events of what it has changed.
    fn answer<T>(&mut self, key: &LockKey, step: impl FnOnce(&mut Record) -> T) -> T {
        let record = self.record(key);
        let answer = step(record);
        for change in record.take_changes() {
            self.publish_change(key.clone(), change);
        }
        answer
    }

    fn release(&mut self, now: Duration, release: &Release, by: &MemoryStore) -> ReleaseOutcome {
        let mut release = release.clone();
        release.hold_at_least = release.hold_at_least.filter(|_| by.capabilities.minimum_hold);
        self.answer(release.claim.key(), |record| {
            if by.has_queue { record.step(&release, now) } else { record.release_to_none(&release, now) }
        })
    }

    fn publish_change(&self, key: LockKey, change: Change) {
        match change {
            Change::Granted { id, mode, holder, grant, expires_at, handed_over } => {
                let token = FencingToken::new(grant.token.get() + u64::from(grant.tokens.get()) - 1);
                let owner = holder.owner.as_deref().map(str::to_owned);
                self.publish_lock_event(LockEvent::Granted { key: key.clone(), id: id.clone(), token, owner, mode });
                if handed_over {
                    self.publish(StoreEvent::Granted { key, id, grant, expires_at });
                }
            }
            Change::Released { id } => self.publish_lock_event(LockEvent::Released { key, id }),
            Change::Expired { id } => self.publish_lock_event(LockEvent::Expired { key, id }),
            Change::ForceReleased { id, token } => {
                let loss = Loss::ForceReleased;
                self.publish(StoreEvent::Gone { key: key.clone(), id: id.clone(), token, loss });
                self.publish_lock_event(LockEvent::ForceReleased { key, id });
            }
            Change::Freed => self.publish(StoreEvent::Freed { key }),
            _ => {}
        }
    }

    fn publish(&self, event: StoreEvent) {
        if !self.events_lost {
            self.events.send(event, self.events_delayed);
        }
    }

    /// Sends an event to operators.
    fn publish_lock_event(&self, event: LockEvent) {
        if !self.events_lost {
            self.lock_events.send(event, self.events_delayed);
        }
    }
}

/// The order of one claim's calls, kept with the claim itself. A call is refused once a later one
/// has been applied. Renewals are exempt: they neither grant nor free.
#[derive(Default)]
struct CallOrder {
    begun: AtomicU64,
    applied: AtomicU64,
}

impl CallOrder {
    fn begin(claim: &Claim) -> u64 {
        claim.state(Self::default).begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records that a call is applied, and refuses it after a later one. To be called within the
    /// step, whose lock orders the accesses.
    fn apply(claim: &Claim, number: u64) -> Result<()> {
        if claim.state(Self::default).applied.fetch_max(number, Ordering::Relaxed) > number {
            let error = LockError::new(ErrorKind::Other, "a later call of the same claim came first");
            return Err(error.with_key(claim.key().clone()));
        }
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.capabilities
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = StoreExtras::default();
        extras.queue = self.has_queue.then_some(self as &dyn QueueStore);
        extras.events = self.has_events.then_some(self as &dyn EventStore);
        extras.batch_renew = Some(self);
        extras.remote = Some(self);
        extras.admin = Some(self);
        extras
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        let claim = &attempt.claim;
        let attempt = self.attempt(attempt);
        let number = CallOrder::begin(claim);
        self.call(Operation::TryAcquire, Some(claim.key()), |state, now| {
            self.in_order(claim, number)?;
            Ok(state.answer(claim.key(), |record| record.step(&attempt, now)))
        })
        .await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        let key = renewal.claim.key();
        self.call(Operation::Renew, Some(key), |state, now| Ok(state.record(key).step(renewal, now))).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        let claim = &release.claim;
        let number = CallOrder::begin(claim);
        self.call(Operation::Release, Some(claim.key()), |state, now| {
            self.in_order(claim, number)?;
            Ok(state.release(now, release, self))
        })
        .await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        let release = Release::new(claim.clone()).with_timeout(timeout);
        let number = CallOrder::begin(claim);
        self.call(Operation::Withdraw, Some(claim.key()), |state, now| {
            self.in_order(claim, number)?;
            let _ = state.release(now, &release, self);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl BatchRenewStore for MemoryStore {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        let keys = renewals.iter().map(|renewal| renewal.claim.key());
        consume_budget().await;
        let mut arrival = self.shared.faults.arrive(Operation::Renew, keys);
        let refused = arrival.before().await.err();
        let mut answers: Vec<Result<Standing>> = self.step(|state, now| {
            let answer = |renewal: &Renewal| match &refused {
                Some(error) if arrival.concerns(renewal.claim.key()) => Err(error.clone()),
                _ => Ok(state.record(renewal.claim.key()).step(renewal, now)),
            };
            renewals.iter().map(answer).collect()
        });
        if let Err(error) = arrival.after().await {
            for (answer, renewal) in answers.iter_mut().zip(renewals) {
                if arrival.concerns(renewal.claim.key()) {
                    *answer = Err(error.clone());
                }
            }
        }
        answers
    }
}

#[async_trait]
impl QueueStore for MemoryStore {
    async fn waiters(&self, claim: &Claim, _timeout: Duration) -> Result<u32> {
        let waiting = |record: &Record, now| record.waiting(now).count().try_into().unwrap_or(u32::MAX);
        self.call(Operation::Waiters, Some(claim.key()), |state, now| {
            Ok(state.records.get(claim.key()).map_or(0, |record| waiting(record, now)))
        })
        .await
    }
}

#[async_trait]
impl EventStore for MemoryStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        self.call(Operation::Watch, None, |state, _| Ok(events::stream(&state.events, watch.provider))).await
    }
}

#[async_trait]
impl RemoteStore for MemoryStore {
    async fn close(&self) -> Result<()> {
        self.call(Operation::Close, None, |_, _| Ok(())).await
    }
}
