//! The local queue: which caller of this process may request a key from the store. One at a time,
//! in the order in which they came.
//!
//! Callers that want the same key would only compete with each other at the store. So one of them
//! has the *turn*. It stays with the guard while the lock is held, and passes to the next caller
//! afterwards. A turn is a value. Wherever it is dropped, in a cancelled future, an unread channel
//! or a failed clean-up, it passes itself on (C11). A lease may travel with it, from one guard to
//! the next (rule R21 of distlock-mongo's PROTOCOL): the [`CarriedLease`]. Or the lease is *parked*
//! with the key, for the next caller that comes.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use distlock_api::style::contained;
use distlock_api::{AcquisitionId, LockKey};
use foldhash::fast::RandomState;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::simulation::defect;

const SHARDS: usize = 16;

/// A lease that may travel with a turn.
pub(crate) trait CarriedLease: Sized {
    /// Where the background work of the lease runs.
    type Home: Clone;

    /// What a caller in the local queue requires of a lease.
    type Requirements;

    /// A shared lease that a caller in the local queue gets together with others. If it is dropped,
    /// the others keep the lease.
    type Joined;

    /// Returns the id of the lease's claim.
    fn id(&self) -> &AcquisitionId;

    /// Returns whether the lease can pass to a caller as it is.
    fn meets(&self, requirements: &Self::Requirements) -> bool;

    /// Returns whether a caller may hold the key together with others like it.
    fn is_shared(requirements: &Self::Requirements) -> bool;

    /// Returns the lease and the turn to the engine, because no caller takes them.
    fn return_turn(self, turn: Turn<Self>);
}

/// The local queues of all keys of one engine. A key that no caller uses takes no memory.
pub(crate) struct LocalQueues<C: CarriedLease> {
    hasher: RandomState,
    shards: [Mutex<Shard<C>>; SHARDS],
    /// The number of the last waiter, of any key: one that leaves late must not be taken for one of
    /// a later line of its key.
    last: AtomicU64,
}

type Shard<C> = HashMap<LockKey, LocalQueue<C>, RandomState>;

struct LocalQueue<C: CarriedLease> {
    /// The last lease that had the turn, since a caller without a lease got it. It may be lost.
    held: Option<AcquisitionId>,
    /// Whether others may hold the key beside the one that has the turn, because it is one of them
    /// and has only just come.
    is_shared: bool,
    /// The lease that waits for a caller, with the turn. Then no caller waits.
    parked: Option<Parked<C>>,
    /// By their numbers, in the order in which they came.
    waiters: BTreeMap<u64, Waiter<C>>,
    /// Notifies the caller that has the turn; created when it first sleeps.
    nudge: Option<Arc<Notify>>,
    /// Whether it was nudged before it first slept.
    nudged: bool,
}

struct Parked<C> {
    lease: C,
    until: Instant,
}

struct Waiter<C: CarriedLease> {
    requirements: C::Requirements,
    sender: oneshot::Sender<Delivery<C>>,
}

/// What a caller in the local queue gets.
pub(crate) enum Delivery<C: CarriedLease> {
    /// It is the next one.
    Turn(Turn<C>),
    /// The one that has the turn has let it join its shared lease (C26).
    Joined(C::Joined),
}

impl<C: CarriedLease> Default for LocalQueue<C> {
    fn default() -> Self {
        Self { held: None, is_shared: false, parked: None, waiters: BTreeMap::new(), nudge: None, nudged: false }
    }
}

impl<C: CarriedLease> LocalQueue<C> {
    /// Makes the queue of a key whose turn such a caller has.
    fn of(requirements: &C::Requirements) -> Self {
        Self { is_shared: C::is_shared(requirements), ..Self::default() }
    }

    /// Returns the caller to notify. If it is not asleep yet, the notification is kept for it.
    fn nudge(&mut self) -> Option<Arc<Notify>> {
        self.nudged |= self.nudge.is_none();
        self.nudge.clone()
    }
}

impl<C: CarriedLease> Default for LocalQueues<C> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), shards: Default::default(), last: AtomicU64::new(0) }
    }
}

/// What a caller that does not wait finds in the local queue.
pub(crate) enum Found<C: CarriedLease> {
    /// No other caller of this process wants the key.
    Turn(Turn<C>),
    /// A guard of this process holds the key, unless its lease is lost.
    Held,
    /// Another caller of this process is acquiring the key.
    Acquiring,
    /// So is another one, and no caller waits, neither here nor in the store. Both may hold the key
    /// together, so this one overtakes no one if it joins a lease of this process at once (C26,
    /// C28).
    AcquiringBeside,
}

impl<C: CarriedLease> LocalQueues<C> {
    fn shard(&self, key: &LockKey) -> MutexGuard<'_, Shard<C>> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).expect("below 16");
        self.shards[index].lock().expect("no code in here panics")
    }

    /// Returns the turn, if no caller has it. It may bring a parked lease.
    pub(crate) fn try_take(self: &Arc<Self>, key: &LockKey, requirements: &C::Requirements) -> Found<C> {
        let is_shared = C::is_shared(requirements);
        let mut shard = self.shard(key);
        match shard.get_mut(key) {
            Some(entry) => match entry.parked.take() {
                Some(Parked { lease, .. }) => Found::Turn(Turn::new(self, key, Some(lease))),
                None if entry.held.is_some() => Found::Held,
                None if is_shared && entry.is_shared && entry.waiters.is_empty() => Found::AcquiringBeside,
                None => Found::Acquiring,
            },
            None => {
                shard.insert(key.clone(), LocalQueue::of(requirements));
                Found::Turn(Turn::new(self, key, None))
            }
        }
    }

    /// Returns the turn, now or after all callers that came before. It brings a lease only if that
    /// lease was parked, or meets the `requirements`. Or returns a shared lease without the turn.
    pub(crate) async fn take(self: &Arc<Self>, key: &LockKey, requirements: C::Requirements) -> Delivery<C> {
        let (sender, receiver) = oneshot::channel();
        let waiter_id = {
            let mut shard = self.shard(key);
            match shard.get_mut(key) {
                None => {
                    shard.insert(key.clone(), LocalQueue::of(&requirements));
                    return Delivery::Turn(Turn::new(self, key, None));
                }
                Some(entry) => {
                    if let Some(Parked { lease, .. }) = entry.parked.take() {
                        return Delivery::Turn(Turn::new(self, key, Some(lease)));
                    }
                    let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
                    entry.waiters.insert(number, Waiter { requirements, sender });
                    number
                }
            }
        };
        let mut guard = LineGuard { queues: self, key, waiter_id, receiver, waits: true };
        let delivery = (&mut guard.receiver).await.expect("an entry with waiters is never removed");
        guard.waits = false;
        delivery
    }

    /// Returns until when this lease is parked; `None` if it is not.
    pub(crate) fn parked_until(&self, key: &LockKey, lease: &AcquisitionId) -> Option<Instant> {
        let shard = self.shard(key);
        shard.get(key)?.parked.as_ref().filter(|parked| parked.lease.id() == lease).map(|parked| parked.until)
    }

    /// Returns the turn with this lease, if it is parked.
    pub(crate) fn unpark(self: &Arc<Self>, key: &LockKey, lease: &AcquisitionId) -> Option<Turn<C>> {
        let mut shard = self.shard(key);
        let Parked { lease, .. } = shard.get_mut(key)?.parked.take_if(|parked| parked.lease.id() == lease)?;
        Some(Turn::new(self, key, Some(lease)))
    }

    /// Wakes the caller that is acquiring the key, if it sleeps between two attempts.
    pub(crate) fn nudge(&self, key: &LockKey) {
        // Outside the lock: a waker runs foreign code.
        let nudge = self.shard(key).get_mut(key).and_then(LocalQueue::<C>::nudge);
        if let Some(nudge) = nudge {
            contained(|| nudge.notify_one());
        }
    }

    /// Returns the lease of this process that holds the key. It may be lost: the ledger knows.
    pub(crate) fn holder(&self, key: &LockKey) -> Option<AcquisitionId> {
        self.shard(key).get(key)?.held.clone()
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// A position in the local queue. Dropping it leaves the queue; a turn that was already sent to it
/// passes itself on.
struct LineGuard<'a, C: CarriedLease> {
    queues: &'a LocalQueues<C>,
    key: &'a LockKey,
    waiter_id: u64,
    receiver: oneshot::Receiver<Delivery<C>>,
    /// Whether the turn has not been received.
    waits: bool,
}

impl<C: CarriedLease> Drop for LineGuard<'_, C> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        let mut shard = self.queues.shard(self.key);
        let left = shard.get_mut(self.key).and_then(|entry| entry.waiters.remove(&self.waiter_id));
        drop(shard);
        // Outside the lock: dropping it wakes the receiver, and a waker runs foreign code.
        drop(left);
    }
}

/// The right to request a key from the store, and then to hold it. It may carry the lease that the
/// previous guard has handed on.
pub(crate) struct Turn<C: CarriedLease>(Option<TurnState<C>>);

struct TurnState<C: CarriedLease> {
    queues: Arc<LocalQueues<C>>,
    key: LockKey,
    lease: Option<C>,
}

impl<C: CarriedLease> Turn<C> {
    fn new(queues: &Arc<LocalQueues<C>>, key: &LockKey, lease: Option<C>) -> Self {
        Self(Some(TurnState { queues: queues.clone(), key: key.clone(), lease }))
    }

    /// Leaves the turn and the lease with the key, for the next caller. Returns the turn if a
    /// caller waits.
    pub(crate) fn park(mut self, lease: C, until: Instant) -> Result<(), Self> {
        let Some(state) = self.0.take() else { return Err(self) };
        let mut shard = state.queues.shard(&state.key);
        match shard.get_mut(&state.key).filter(|entry| entry.waiters.is_empty()) {
            Some(entry) => {
                entry.is_shared = false;
                entry.parked = Some(Parked { lease, until });
                Ok(())
            }
            None => {
                drop(shard);
                Err(Self(Some(state)))
            }
        }
    }

    /// Records the lease that has the turn from now on.
    pub(crate) fn mark_held(&self, lease: &AcquisitionId) {
        if let Some(TurnState { queues, key, .. }) = &self.0 {
            queues.shard(key).entry(key.clone()).or_default().held = Some(lease.clone());
        }
    }

    /// Records that the caller waits in the store: no one may overtake it from here on.
    pub(crate) fn mark_waiting(&self) {
        if let Some(TurnState { queues, key, .. }) = &self.0
            && let Some(entry) = queues.shard(key).get_mut(key)
        {
            entry.is_shared = false;
        }
    }

    /// Returns what is notified when the key is nudged: at once if it was nudged since this was
    /// last awaited.
    pub(crate) fn nudged(&self) -> Arc<Notify> {
        match &self.0 {
            Some(TurnState { queues, key, .. }) => {
                let mut shard = queues.shard(key);
                let entry = shard.entry(key.clone()).or_default();
                let nudge = entry.nudge.get_or_insert_default().clone();
                if std::mem::take(&mut entry.nudged) {
                    contained(|| nudge.notify_one());
                }
                nudge
            }
            None => Arc::default(),
        }
    }

    /// Passes the turn on with a lease. Returns the turn if no caller waits, or if the lease does
    /// not meet the next caller's requirements. Then the lease must be released before that caller
    /// gets the turn: until the release is carried out, the key would be busy although no caller
    /// holds it.
    pub(crate) fn hand_on(mut self, lease: C) -> Result<(), Self> {
        let Some(mut state) = self.0.take() else { return Err(self) };
        state.lease = Some(lease);
        match state.pass_on() {
            Ok(()) => Ok(()),
            Err(state) => Err(Self(Some(TurnState { lease: None, ..state }))),
        }
    }

    /// Returns whether the next caller in the local queue has such requirements.
    pub(crate) fn next_meets(&self, meets: impl FnOnce(&C::Requirements) -> bool) -> bool {
        let Some(TurnState { queues, key, .. }) = &self.0 else { return false };
        let shard = queues.shard(key);
        let first = shard.get(key).and_then(|entry| entry.waiters.first_key_value());
        first.is_some_and(|(_, next)| meets(&next.requirements))
    }

    /// Lets the next caller leave the local queue with a shared lease, and keeps the turn. Returns
    /// the lease if that caller has left, or has other requirements.
    pub(crate) fn deliver(
        &self,
        joined: C::Joined,
        meets: impl FnOnce(&C::Requirements) -> bool,
    ) -> Result<(), C::Joined> {
        let Some(TurnState { queues, key, .. }) = &self.0 else { return Err(joined) };
        let next = {
            let mut shard = queues.shard(key);
            let first = shard.get_mut(key).and_then(|entry| entry.waiters.first_entry());
            first.filter(|next| meets(&next.get().requirements)).map(OccupiedEntry::remove)
        };
        // Outside the lock: it wakes the receiver, and a waker runs foreign code.
        let Some(Waiter { sender, .. }) = next else { return Err(joined) };
        sender.send(Delivery::Joined(joined)).map_err(|refused| match refused {
            Delivery::Joined(joined) => joined,
            Delivery::Turn(_) => unreachable!("a lease was sent"),
        })
    }

    /// Takes the lease that came with the turn.
    pub(crate) fn take_lease(&mut self) -> Option<C> {
        self.0.as_mut()?.lease.take()
    }
}

impl<C: CarriedLease> TurnState<C> {
    /// Passes to the next waiter. Returned if none waits, or if the lease does not meet its
    /// requirements. With a lease the key stays taken then, without one it becomes free.
    fn pass_on(self) -> Result<(), Self> {
        let mut state = self;
        loop {
            let next = {
                let mut shard = state.queues.shard(&state.key);
                let meets = |next: &Waiter<C>| {
                    let lease = state.lease.as_ref();
                    lease.is_none_or(|lease| lease.meets(&next.requirements) || defect!(NotReleasedBeforeHandOn))
                };
                let next = |entry: &mut LocalQueue<C>| {
                    entry.waiters.first_entry().filter(|next| meets(next.get())).map(OccupiedEntry::remove)
                };
                match shard.get_mut(&state.key).map(|entry| (next(entry), entry)) {
                    Some((Some(Waiter { sender: next, .. }), entry)) => {
                        // It came before those that come now, and may be refused what they get.
                        entry.is_shared = false;
                        // A lease that passes from guard to guard is held.
                        entry.held = state.lease.as_ref().map(|lease| lease.id().clone());
                        // Earlier nudges give no reason for a second attempt: the next caller has
                        // made none.
                        (entry.nudge, entry.nudged) = (None, false);
                        Some(next)
                    }
                    Some((None, _)) if state.lease.is_none() => {
                        shard.remove(&state.key);
                        None
                    }
                    Some((None, _)) | None => None,
                }
            };
            let Some(next) = next else { return Err(state) };
            // Outside the lock: a waiter that has left returns the turn here. One that leaves later
            // drops it, and so passes it on.
            let refused = match next.send(Delivery::Turn(Turn(Some(state)))) {
                Ok(()) => return Ok(()),
                Err(Delivery::Turn(mut refused)) => refused.0.take(),
                Err(Delivery::Joined(_)) => None,
            };
            state = refused.unwrap_or_else(|| unreachable!("it was sent with its right"));
        }
    }
}

impl<C: CarriedLease> Drop for Turn<C> {
    fn drop(&mut self) {
        let Some(state) = self.0.take() else { return };
        if defect!(TurnLost) {
            return;
        }
        if let Err(mut state) = state.pass_on()
            && let Some(lease) = state.lease.take()
        {
            lease.return_turn(Self(Some(state)));
        }
    }
}

impl<C: CarriedLease> fmt::Debug for Turn<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.0.as_ref().map(|state| &state.key)).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
