//! The engine: what a provider and all its guards share.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use distlock_api::{Accounting, AcquisitionId, Capabilities, ErrorKind, LockError, Loss, Result};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::log::log;
use crate::options::EngineOptions;
use crate::run::outbox::Outbox;
use crate::run::transit::{Lease, Ledger, LocalQueues};
use crate::state::lease::LeaseView;
use crate::state::ledger::End;
use crate::state::recent_keys::RecentKeys;
use crate::state::repeats::Repeats;
use crate::state::schedule::HomeId;
use crate::state::time::Now;
use crate::store::{LeaseStore, ProviderId, StoreCapabilities};

/// How many clean-ups are repeated at once, and how many lost leases are withdrawn at once.
const BACKGROUND_CALLS: usize = 64;

/// Whether a task reads the store's events.
#[derive(Debug, Default)]
pub(crate) enum Listening {
    #[default]
    NotYet,
    /// It will, if a caller waits or a lease becomes old enough.
    Soon(JoinHandle<()>),
    Listens(JoinHandle<()>),
    /// Never: the deployment has no push.
    Never,
}

/// One engine: the shared state of a provider and all its guards.
pub(crate) struct Engine {
    pub(crate) id: ProviderId,
    pub(crate) options: EngineOptions,
    /// What the store declared when the provider was made. Its shortest ttl and its minimum hold do
    /// not change later, so an acquisition within the process need not query them.
    pub(crate) declared: StoreCapabilities,
    pub(crate) local_queues: Arc<LocalQueues>,
    pub(crate) ledger: Mutex<Ledger>,
    /// Background work, and whatever else [`close`](Engine::close) must wait for.
    pub(crate) tasks: TaskTracker,
    /// Lost leases whose guards still have them for their margin. `None` once
    /// [`close`](Engine::close) has taken them, to withdraw them.
    pub(crate) margins: Mutex<Option<HashMap<AcquisitionId, Weak<Lease>>>>,
    /// Bounds the clean-ups that are repeated.
    pub(crate) clean_ups: Arc<Semaphore>,
    /// Bounds the withdrawals of lost leases. A withdrawal without a permit is left out.
    pub(crate) withdrawal_permits: Arc<Semaphore>,
    /// Cancelled when the provider is closed.
    pub(crate) closed: CancellationToken,
    /// Cancelled when the provider has been closed, or dropped: ends keepers and listener.
    pub(crate) gone: CancellationToken,
    /// The result of the first shutdown.
    pub(crate) closing: tokio::sync::Mutex<Option<Result<()>>>,
    pub(crate) listening: Mutex<Listening>,
    /// Notified when events may be needed earlier than before.
    pub(crate) reader_wake: Arc<Notify>,
    /// Whether the stream of events is open.
    pub(crate) stream_open: AtomicBool,
    pub(crate) waiting: AtomicU64,
    pub(crate) outbox: Arc<Outbox>,
    /// Keys that a batched try found busy lately, and how many more of them are refused.
    pub(crate) contended: Mutex<RecentKeys<u8>>,
    warnings: Mutex<Repeats>,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, options: EngineOptions) -> Arc<Self> {
        let (id, declared) = (ProviderId::random(), store.capabilities());
        Arc::new(Self {
            outbox: Arc::new(Outbox::new(store, id)),
            id,
            options,
            declared,
            local_queues: Arc::default(),
            ledger: Mutex::default(),
            tasks: TaskTracker::new(),
            margins: Mutex::new(Some(HashMap::new())),
            clean_ups: Arc::new(Semaphore::new(BACKGROUND_CALLS)),
            withdrawal_permits: Arc::new(Semaphore::new(BACKGROUND_CALLS)),
            closed: CancellationToken::new(),
            gone: CancellationToken::new(),
            closing: tokio::sync::Mutex::default(),
            listening: Mutex::default(),
            reader_wake: Arc::default(),
            stream_open: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            contended: Mutex::default(),
            warnings: Mutex::default(),
        })
    }

    /// Locks the ledger. A panic while it is locked is a bug in this crate; the ledger may be wrong
    /// then, so nothing continues.
    pub(crate) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("the ledger is never left half-changed")
    }

    /// Runs work in the background of a runtime; if that has ended, the work is dropped at once.
    pub(crate) fn spawn(&self, home: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let gone = self.gone.clone();
        let work = async move {
            let _ = gone.run_until_cancelled_owned(work).await;
        };
        drop(home.spawn(self.tasks.track_future(work)));
    }

    /// Returns what the provider can do: what its store can, as it is configured.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let (store, extras) = (self.outbox.store.capabilities(), self.outbox.store.extras());
        let mut capabilities = Capabilities::default();
        capabilities.expiry = true;
        capabilities.minimum_hold = store.minimum_hold;
        capabilities.fair = extras.queue.is_some() && self.options.queue.is_some();
        capabilities.push = extras.events.is_some();
        capabilities.shared = store.shared;
        capabilities.permits = store.permits;
        capabilities
    }

    pub(crate) fn accounting(&self) -> Accounting {
        // A caller that is granted in between is counted twice instead of not at all.
        let waiting = self.waiting.load(Ordering::Relaxed);
        let mut accounting = self.ledger().accounting();
        (accounting.waiting, accounting.unsettled) = (waiting, self.tasks.len() as u64);
        accounting
    }

    /// Returns how many failures of this kind a warning tells now. `None` if they are only counted:
    /// while the store is down, one line in ten seconds is enough.
    pub(crate) fn warns(&self, what: &'static str, error: &LockError, count: u64) -> Option<u64> {
        let mut warnings = self.warnings.lock().expect("no code in here panics");
        warnings.tell(what, error.kind().as_str(), count, Instant::now())
    }

    /// Takes a lease that has just been lost out of the ledger, and lets the next local caller try.
    pub(crate) fn record_loss(self: &Arc<Self>, lease: &Arc<Lease>, loss: Loss) {
        log!(warn, lock.key = %lease.key(), lock.token = %lease.token(), lock.loss = loss.as_str(), "lock lost");
        self.ledger().end(lease, End::Lost);
        // R16: a release by id, best effort. It helps if the store still has the lease, and
        // otherwise changes nothing (C8). The margin is for a guard that learns of its end by the
        // time.
        if lease.may_be_withdrawn_later() {
            self.withdraw_lost_later(lease);
        } else {
            self.withdraw_lost(lease);
        }
        self.local_queues.nudge(lease.key());
        lease.pass_turn();
    }

    /// Returns how a lease was lost, if it was, and records a loss that is first seen now.
    pub(crate) fn check_loss(self: &Arc<Self>, lease: &Arc<Lease>, now: &Now) -> Option<Loss> {
        let LeaseView::Lost { loss, fresh } = lease.view(now) else { return None };
        if fresh {
            self.record_loss(lease, loss);
        }
        Some(loss)
    }
}

/// Returns the current runtime. An error outside of one, where tokio would panic: calls need its
/// timers and tasks. A handle is shared by all threads, so callers keep the id rather than look
/// again.
pub(crate) fn current_home() -> Result<HomeId> {
    let message = "called outside a tokio runtime, whose timers and tasks leases need: await the call in a task of \
                   the runtime, or in its `block_on`";
    let error = |error| LockError::new(ErrorKind::Unsupported, message).with_source(error);
    Handle::try_current().map(|current| current.id()).map_err(error)
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LeaseProvider");
        shown
            .field("store", &self.outbox.store.name())
            .field("id", &format_args!("{}", self.id))
            .field("accounting", &self.accounting())
            .field("lanes", &self.outbox.store.extras().remote.and_then(|remote| remote.lanes()));
        self.outbox.add_fields(&mut shown);
        shown.finish_non_exhaustive()
    }
}
