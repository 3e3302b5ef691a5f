//! The lease engine: everything between a [`LeaseStore`] and a [`LockProvider`](distlock_api::LockProvider), written once.
//!
//! | file | what it decides |
//! |---|---|
//! | `provider` | the public face: configuration, defaults, validation |
//! | `acquire` | one acquisition from the call to the guard: turn, attempts, waiting |
//! | `turns` | who of this process may ask the store for a key, first come, first served, and who gets a lease that is handed on |
//! | `places` | what is known of a claim that asks or waits in the store's queue |
//! | `lease` | the life of one lease: held, releasing, ended, lost – and its deadline |
//! | `held` | what is behind the guards of a lease: losing it, handing it on, giving it back |
//! | `registry` | which leases are alive, when each is due, and the accounting |
//! | `keeper` | the one task that renews all leases and refreshes all tickets in batches, and notices missed deadlines |
//! | `via` | the same engine for typed styles: their operations in the place of the store's |
//! | `commit` | a write that also releases, and one that does not |
//! | `release` | giving a lease back, in the foreground and behind a dropped guard |
//! | `call` | one request in line for the store or in flight, never doubled |
//! | `settle` | finishing and withdrawing attempts that were cancelled or whose outcome is unknown |
//! | `watch` | the store's hints |
//! | `slept` | how long the machine was suspended, which the monotonic clock does not tell |
//! | `pace` | how long to wait before asking again, and how long to hand a lease on (pure) |
//!
//! A lease is in exactly one phase, changed under its own lock, and leaves the registry exactly once: that is all
//! of the accounting (C23). Everything that must not be forgotten is owned by a value whose `Drop` sees to it: a
//! [`turn`](turns::Turn), a call in flight ([`settle::Attempting`]), a release ([`release::ReleaseJob`]).

mod acquire;
mod call;
mod commit;
mod held;
mod keeper;
mod lease;
mod log;
mod pace;
mod places;
mod provider;
mod registry;
mod release;
mod settle;
mod slept;
mod turns;
mod via;
mod watch;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::contention::{HandOff, QueueOptions};
use crate::store::{LeaseStore, ProviderId};
use distlock_api::{Accounting, ErrorKind, Holder, LeaseOptions, LockError, Loss, Phase, Result};

use self::lease::{Lease, Seen};
use self::log::log;
use self::registry::{End, Registry};
use self::release::ReleaseJob;
use self::turns::Turns;
use self::watch::Listening;

pub use self::provider::{LeaseProvider, LeaseProviderBuilder};
pub use self::via::{AcquiredLease, LeaseGuard, NotCommitted};

/// How many clean-ups are made again at once, and how many farewells of lost leases are said at once.
const BACKGROUND_CALLS: usize = 64;

/// What the builder settles once and for all.
struct Config {
    defaults: LeaseOptions,
    holder: Holder,
    request_timeout: Duration,
    poll: pace::Poll,
    queue: Option<QueueOptions>,
    hand_off: Option<HandOff>,
}

impl Config {
    /// What a store is given of a request's time: a little less than all, so that its own error, which says more, comes before ours.
    fn store_timeout(&self) -> Duration {
        (self.request_timeout * 9 / 10).max(Duration::from_millis(1))
    }
}

/// One engine: the shared state of a provider and all its guards.
struct Engine {
    store: Arc<dyn LeaseStore>,
    id: ProviderId,
    config: Config,
    turns: Arc<Turns>,
    registry: Mutex<Registry>,
    /// Background work, and whatever else [`close`](Engine::close) must wait for.
    tasks: TaskTracker,
    /// Bounds the clean-ups that are made again.
    clean_ups: Arc<Semaphore>,
    /// Bounds the withdrawals of lost leases; what finds no room is left out.
    farewells: Arc<Semaphore>,
    /// Cancelled when the provider is closed.
    closed: CancellationToken,
    /// Cancelled when the provider has been closed, or dropped: ends keepers and listener.
    gone: CancellationToken,
    /// What the first shutdown found.
    closing: tokio::sync::Mutex<Option<Result<()>>>,
    listening: Mutex<Listening>,
    /// Whether the stream of hints is open.
    hears: AtomicBool,
    waiting: AtomicU64,
}

impl Engine {
    fn new(store: Arc<dyn LeaseStore>, config: Config) -> Arc<Self> {
        Arc::new(Self {
            store,
            id: ProviderId::random(),
            config,
            turns: Arc::default(),
            registry: Mutex::default(),
            tasks: TaskTracker::new(),
            clean_ups: Arc::new(Semaphore::new(BACKGROUND_CALLS)),
            farewells: Arc::new(Semaphore::new(BACKGROUND_CALLS)),
            closed: CancellationToken::new(),
            gone: CancellationToken::new(),
            closing: tokio::sync::Mutex::default(),
            listening: Mutex::default(),
            hears: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
        })
    }

    /// The registry. A panic while it is locked is a bug in this module; the books may be wrong then, so nothing goes on.
    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.registry.lock().expect("the registry is never left half-changed")
    }

    /// Runs work in the background of a runtime; if that has ended, the work is dropped at once.
    fn spawn(&self, home: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let gone = self.gone.clone();
        let work = async move {
            let _ = gone.run_until_cancelled_owned(work).await;
        };
        drop(home.spawn(self.tasks.track_future(work)));
    }

    fn accounting(&self) -> Accounting {
        // Whoever is granted in between is counted twice, rather than not at all.
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut accounting = self.registry().accounting();
        (accounting.waiting, accounting.unsettled) = (waiting, self.tasks.len() as u64);
        accounting
    }

    /// Takes a lease that has just been lost out of the books, wakes whoever asked, and lets the next local caller try.
    fn bury(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), lock.loss = loss.as_str(), "lock lost");
        self.registry().end(lease, End::Lost);
        // R16: the loser sends a release by id, best effort; it helps if only our margin has passed, and harms nobody (C8).
        self.withdraw_lost(lease);
        if lease.is_on_its_way() {
            self.turns.unhold(lease.key());
        }
        self.turns.nudge(lease.key());
        lease.pass_turn();
    }

    /// Looks at the clock on behalf of a lease, and says how it was lost if it was.
    fn look(self: &Arc<Self>, lease: &Arc<Lease>) -> Option<Loss> {
        let Seen::Lost { loss, fresh } = lease.look(Instant::now()) else { return None };
        if fresh {
            self.bury(lease, loss);
        }
        Some(loss)
    }

    async fn close(self: &Arc<Self>) -> Result<()> {
        ensure_runtime()?;
        let (leases, waiting) = {
            let mut registry = self.registry();
            registry.close();
            (registry.leases(), registry.take_seats())
        };
        self.closed.cancel();
        self.withdraw_closed(waiting);
        let jobs: Vec<_> = leases.iter().filter_map(|lease| ReleaseJob::of_closed(self, lease)).collect();
        drop(leases);
        let mut outcome = self.closing.lock().await;
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        let found = self.shut_down(jobs).await;
        outcome.insert(found).clone()
    }

    /// Releases what was held, each lease on its own, waits for everything that is under way, and closes the store.
    async fn shut_down(self: &Arc<Self>, jobs: Vec<ReleaseJob>) -> Result<()> {
        let bound = Instant::now() + 2 * self.config.request_timeout;
        let total = jobs.len();
        let confirmed = join_all(jobs.into_iter().map(|job| job.run_until(bound))).await;
        let unconfirmed = confirmed.iter().filter(|confirmed| !**confirmed).count();
        self.tasks.close();
        let settled = timeout_at(bound, self.tasks.wait()).await.is_ok();
        self.gone.cancel();
        // What has not ended is dropped now, with its calls. Only a task that does not run is left.
        let _ = timeout_at(bound + self.config.request_timeout, self.tasks.wait()).await;
        let closed = match timeout_at(bound + self.config.request_timeout, guarded(self.store.close())).await {
            Ok(closed) => closed,
            Err(_) => Err(LockError::timeout(Phase::Shutdown, "the store did not close")),
        };
        if unconfirmed > 0 {
            let message = format!("{unconfirmed} of {total} leases could not be released; they end by their ttl");
            return Err(LockError::new(ErrorKind::Unavailable, message).outcome_unknown());
        }
        if !settled {
            let message = "clean-ups of earlier calls have not ended; what they left in the store ends by its ttl";
            return Err(LockError::timeout(Phase::Shutdown, message).outcome_unknown());
        }
        closed
    }
}

/// An error instead of tokio's panic: calls need the timers and tasks of a runtime.
fn ensure_runtime() -> Result<()> {
    let message = "called outside a tokio runtime, whose timers and tasks leases need: await the call in a task of \
                   the runtime, or in its `block_on`";
    let error = |error| LockError::new(ErrorKind::Unsupported, message).with_source(error);
    Handle::try_current().map(drop).map_err(error)
}

/// One call of the store. A store that panics has failed, and nobody knows what it has done; it takes neither the
/// caller's clean-up nor other leases with it.
async fn guarded<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(call)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(LockError::new(ErrorKind::Other, "the lease store panicked").outcome_unknown()))
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseProvider")
            .field("store", &self.store.name())
            .field("id", &format_args!("{}", self.id))
            .field("accounting", &self.accounting())
            .field("lanes", &self.store.lanes())
            .finish_non_exhaustive()
    }
}
