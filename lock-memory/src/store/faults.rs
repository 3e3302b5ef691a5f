//! The faults that are planned for calls, and the counts of calls.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};

use distlock_api::{ErrorKind, IntoLockKey, LockError, LockKey, Result};
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{Notify, oneshot};

use super::key::valid;

/// A call of [`LeaseStore`](distlock_engine::LeaseStore) or [`LockAdmin`](distlock_api::LockAdmin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`try_acquire`](distlock_engine::LeaseStore::try_acquire)
    TryAcquire,
    /// [`renew`](distlock_engine::LeaseStore::renew) and
    /// [`renew_many`](distlock_engine::store::BatchRenewStore::renew_many): one call, however many
    /// leases and tickets are in it
    Renew,
    /// [`release`](distlock_engine::LeaseStore::release)
    Release,
    /// [`withdraw`](distlock_engine::LeaseStore::withdraw)
    Withdraw,
    /// [`waiters`](distlock_engine::store::QueueStore::waiters)
    Waiters,
    /// [`subscribe`](distlock_engine::store::EventStore::subscribe): the opening of the stream.
    /// Open streams are controlled by [`cut_watchers`](crate::MemoryStore::cut_watchers) and its
    /// neighbours.
    Watch,
    /// [`close`](distlock_engine::store::RemoteStore::close)
    Close,
    /// [`watch`](distlock_api::LockAdmin::watch) of an operator
    WatchLocks,
    /// Every other call of an operator. Each page of a list is one.
    Administer,
}

impl Operation {
    /// Returns only the calls that concern this key. In a batch a fault then concerns this key
    /// alone.
    ///
    /// # Panics
    /// If the text is not a valid key.
    pub fn of(self, key: impl IntoLockKey) -> Calls {
        Calls { operation: self, key: Some(valid(key)) }
    }
}

/// The calls that a fault or a count is for: an [`Operation`], or [`Operation::of`] one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Calls {
    operation: Operation,
    key: Option<LockKey>,
}

impl From<Operation> for Calls {
    fn from(operation: Operation) -> Self {
        Self { operation, key: None }
    }
}

impl Calls {
    fn include(&self, key: &LockKey) -> bool {
        self.key.as_ref().is_none_or(|only| only == key)
    }
}

/// What happens to a call.
pub(super) enum Fault {
    /// The call is not applied and fails.
    Fail(LockError),
    /// The call is not applied and fails, and so do the calls after it.
    Outage(LockError),
    /// The call hangs before the store until it is let through.
    Hang(Gate),
    /// The call is applied and its answer is lost.
    DropReply,
    /// The call is applied and its answer hangs until it is let through.
    HangReply(Gate),
}

/// The call's end of a [`HangHandle`].
pub(super) struct Gate {
    reached: Option<oneshot::Sender<()>>,
    opened: oneshot::Receiver<()>,
}

impl Gate {
    pub(super) fn new() -> (Self, HangHandle) {
        let (reached, is_reached) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        (Self { reached: Some(reached), opened }, HangHandle { reached: is_reached, open })
    }

    async fn pass(&mut self) -> Result<(), RecvError> {
        if let Some(reached) = self.reached.take() {
            // The test may have stopped waiting for it.
            let _ = reached.send(());
        }
        (&mut self.opened).await
    }
}

/// A call that hangs. Dropping the handle ends the call with an error. To let it hang for ever,
/// keep the handle.
#[derive(Debug)]
#[must_use = "dropping the handle ends the call with an error"]
pub struct HangHandle {
    reached: oneshot::Receiver<()>,
    open: oneshot::Sender<()>,
}

impl HangHandle {
    /// Waits until a call hangs here. Returns at once if one does already, or if the fault was
    /// [cleared](crate::MemoryStore::clear_faults) before any came.
    pub async fn reached(&mut self) {
        if !self.reached.is_terminated() {
            let _ = (&mut self.reached).await;
        }
    }

    /// Lets the call continue, if its caller has not given it up.
    pub fn proceed(self) {
        let _ = self.open.send(());
    }
}

/// A fault that is planned for later calls.
struct Plan {
    calls: Calls,
    fault: Fault,
}

/// A call that has reached the store, with the fault that was planned for it.
pub(super) struct Arrival {
    fault: Option<(Calls, Fault)>,
}

impl Arrival {
    /// Applies the faults on the way to the store.
    pub(super) async fn before(&mut self) -> Result<()> {
        match &mut self.fault {
            Some((_, Fault::Fail(error) | Fault::Outage(error))) => Err(error.clone()),
            Some((_, Fault::Hang(gate))) => {
                let ended = |_| LockError::new(ErrorKind::Unavailable, "the hanging call was ended");
                gate.pass().await.map_err(ended)
            }
            _ => Ok(()),
        }
    }

    /// Applies the faults on the way back.
    pub(super) async fn after(&mut self) -> Result<()> {
        match &mut self.fault {
            Some((_, Fault::DropReply)) => Err(reply_lost()),
            Some((_, Fault::HangReply(gate))) => gate.pass().await.map_err(|_| reply_lost()),
            _ => Ok(()),
        }
    }

    /// Returns whether the fault concerns this key; within a batch it may concern another.
    pub(super) fn concerns(&self, key: &LockKey) -> bool {
        self.fault.as_ref().is_some_and(|(calls, _)| calls.include(key))
    }
}

/// Returns the error of a call whose answer was lost.
fn reply_lost() -> LockError {
    LockError::new(ErrorKind::Unavailable, "the store's answer was lost").outcome_unknown()
}

/// Plans and counters of one store.
#[derive(Default)]
pub(super) struct Faults {
    table: Mutex<FaultTable>,
    counted: Notify,
}

#[derive(Default)]
struct FaultTable {
    plans: Vec<Plan>,
    counts: HashMap<Operation, u64>,
    by_key: HashMap<LockKey, Vec<(Operation, u64)>>,
}

impl Faults {
    /// Counts a call and takes the fault that was planned for it. Faults are used in the order in
    /// which they were planned.
    pub(super) fn arrive<'a>(&self, operation: Operation, keys: impl Iterator<Item = &'a LockKey> + Clone) -> Arrival {
        let fault = self.with(|table| {
            *table.counts.entry(operation).or_default() += 1;
            for key in keys.clone() {
                let counts = table.by_key.entry(key.clone()).or_default();
                match counts.iter_mut().find(|(counted, _)| *counted == operation) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((operation, 1)),
                }
            }
            let is_planned_for = |calls: &Calls| {
                calls.operation == operation && (calls.key.is_none() || keys.clone().any(|key| calls.include(key)))
            };
            let index = table.plans.iter().position(|plan| is_planned_for(&plan.calls))?;
            if let Plan { calls, fault: Fault::Outage(error) } = &table.plans[index] {
                return Some((calls.clone(), Fault::Outage(error.clone())));
            }
            let Plan { calls, fault } = table.plans.remove(index);
            Some((calls, fault))
        });
        self.counted.notify_waiters();
        Arrival { fault }
    }

    pub(super) fn plan(&self, calls: Calls, fault: Fault) {
        self.with(|table| table.plans.push(Plan { calls, fault }));
    }

    pub(super) fn clear(&self) {
        self.with(|table| table.plans.clear());
    }

    pub(super) fn count(&self, calls: &Calls) -> u64 {
        self.with(|table| {
            let Some(key) = &calls.key else { return table.counts.get(&calls.operation).copied().unwrap_or_default() };
            let counts = table.by_key.get(key).into_iter().flatten();
            counts.filter(|(operation, _)| *operation == calls.operation).map(|(_, count)| count).sum()
        })
    }

    /// Forgets the counts of this key's calls.
    pub(super) fn forget(&self, key: &LockKey) {
        self.with(|table| table.by_key.remove(key));
    }

    pub(super) async fn counted(&self, calls: &Calls, at_least: u64) {
        loop {
            let mut counted = pin!(self.counted.notified());
            counted.as_mut().enable();
            if self.count(calls) >= at_least {
                return;
            }
            counted.await;
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut FaultTable) -> T) -> T {
        change(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
