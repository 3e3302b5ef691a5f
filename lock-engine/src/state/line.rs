//! The local queue: which caller of this process may request a key from the store. One at a time,
//! in the order in which they came.
//!
//! Callers that want the same key would only compete with each other at the store. So one of them
//! has the *turn*. It stays with the guard while the lock is held, and passes to the next caller
//! afterwards. A turn is a value. Wherever it is dropped, in a cancelled future, an unread channel
//! or a failed clean-up, it passes itself on (C11). A lease may travel with it, from one guard to
//! the next (R21): the [`CarriedLease`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard};

use distlock_api::{AcquisitionId, LockKey, contained};
use foldhash::fast::RandomState;
use tokio::sync::{Notify, oneshot};

use crate::simulation::defect;

const SHARDS: usize = 16;

/// A lease that may travel with a turn.
pub(crate) trait Cargo: Sized {
    /// Where the background work of the lease runs.
    type Home: Clone;

    /// What a caller in the local queue requires of a lease.
    type Wish;

    /// The id of the lease's claim.
    fn id(&self) -> &AcquisitionId;

    /// Returns whether the lease can pass to a caller as it is.
    fn suits(&self, wish: &Self::Wish) -> bool;

    /// Returns the lease and the turn to the engine, because no caller takes them.
    fn return_turn(self, turn: Turn<Self>);
}

/// The local queues of all keys of one engine. A key that no caller uses takes no memory.
pub(crate) struct Lines<C: Cargo> {
    hasher: RandomState,
    shards: [Mutex<Shard<C>>; SHARDS],
}

type Shard<C> = HashMap<LockKey, Entry<C>, RandomState>;

struct Entry<C: Cargo> {
    /// The lease that has the turn; `None` while a caller without a lease has it.
    held: Option<AcquisitionId>,
    waiters: VecDeque<Waiter<C>>,
    last_ticket: u64,
    /// Notifies the caller that has the turn; created when it first sleeps.
    nudge: Option<Arc<Notify>>,
    /// Whether it was nudged before it first slept.
    nudged: bool,
}

struct Waiter<C: Cargo> {
    ticket: u64,
    wish: C::Wish,
    sender: oneshot::Sender<Turn<C>>,
}

impl<C: Cargo> Default for Entry<C> {
    fn default() -> Self {
        Self { held: None, waiters: VecDeque::new(), last_ticket: 0, nudge: None, nudged: false }
    }
}

impl<C: Cargo> Entry<C> {
    /// Returns the caller to notify. If it is not asleep yet, the notification is kept for it.
    fn nudge(&mut self) -> Option<Arc<Notify>> {
        self.nudged |= self.nudge.is_none() && self.held.is_none();
        self.nudge.clone()
    }
}

impl<C: Cargo> Default for Lines<C> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), shards: Default::default() }
    }
}

/// What a caller that does not wait finds in the local queue.
pub(crate) enum Found<C: Cargo> {
    /// No other caller of this process wants the key.
    Turn(Turn<C>),
    /// A guard of this process holds the key.
    Held,
    /// Another caller of this process is acquiring the key.
    Asking,
}

impl<C: Cargo> Lines<C> {
    fn shard(&self, key: &LockKey) -> MutexGuard<'_, Shard<C>> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).expect("below 16");
        self.shards[index].lock().expect("no code in here panics")
    }

    /// Returns the turn, if no caller has it.
    pub(crate) fn try_take(self: &Arc<Self>, key: &LockKey) -> Found<C> {
        let mut shard = self.shard(key);
        match shard.get(key) {
            Some(entry) if entry.held.is_some() => Found::Held,
            Some(_) => Found::Asking,
            None => {
                shard.insert(key.clone(), Entry::default());
                Found::Turn(Turn::new(self, key))
            }
        }
    }

    /// Returns the turn, now or after all callers that came before. It brings a lease only if that
    /// lease meets the `requirements`.
    pub(crate) async fn take(self: &Arc<Self>, key: &LockKey, wish: C::Wish) -> Turn<C> {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut shard = self.shard(key);
            match shard.get_mut(key) {
                None => {
                    shard.insert(key.clone(), Entry::default());
                    return Turn::new(self, key);
                }
                Some(entry) => {
                    entry.last_ticket += 1;
                    entry.waiters.push_back(Waiter { ticket: entry.last_ticket, wish, sender });
                    entry.last_ticket
                }
            }
        };
        let mut guard = LineGuard { lines: self, key, ticket, receiver, waits: true };
        let turn = (&mut guard.receiver).await.expect("an entry with waiters is never removed");
        guard.waits = false;
        turn
    }

    /// Wakes the caller that is acquiring the key, if it sleeps between two attempts.
    pub(crate) fn nudge(&self, key: &LockKey) {
        // Outside the lock: a waker runs foreign code.
        let nudge = self.shard(key).get_mut(key).and_then(Entry::<C>::nudge);
        if let Some(nudge) = nudge {
            contained(|| nudge.notify_one());
        }
    }

    /// Returns the lease of this process that holds the key.
    pub(crate) fn holder(&self, key: &LockKey) -> Option<AcquisitionId> {
        self.shard(key).get(key)?.held.clone()
    }

    /// Records that the lease in transit with the turn is lost. The caller that gets the turn must
    /// request the key from the store.
    pub(crate) fn mark_unheld(&self, key: &LockKey, lease: &AcquisitionId) {
        if let Some(entry) = self.shard(key).get_mut(key) {
            // Another lease may hold it by now.
            entry.held.take_if(|held| held == lease);
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// A position in the local queue. Dropping it leaves the queue; a turn that was already sent to it
/// passes itself on.
struct LineGuard<'a, C: Cargo> {
    lines: &'a Lines<C>,
    key: &'a LockKey,
    ticket: u64,
    receiver: oneshot::Receiver<Turn<C>>,
    /// Whether the turn has not been received.
    waits: bool,
}

impl<C: Cargo> Drop for LineGuard<'_, C> {
    fn drop(&mut self) {
        if !self.waits {
            return;
        }
        let mut shard = self.lines.shard(self.key);
        let left = shard.get_mut(self.key).and_then(|entry| {
            let place = entry.waiters.iter().position(|waiter| waiter.ticket == self.ticket)?;
            entry.waiters.remove(place)
        });
        drop(shard);
        // Outside the lock: dropping it wakes the receiver, and a waker runs foreign code.
        drop(left);
    }
}

/// The right to request a key from the store, and then to hold it. It may carry the lease that the
/// previous guard has handed on.
pub(crate) struct Turn<C: Cargo>(Option<Right<C>>);

struct Right<C: Cargo> {
    lines: Arc<Lines<C>>,
    key: LockKey,
    cargo: Option<C>,
}

impl<C: Cargo> Turn<C> {
    fn new(lines: &Arc<Lines<C>>, key: &LockKey) -> Self {
        Self(Some(Right { lines: lines.clone(), key: key.clone(), cargo: None }))
    }

    /// Records the lease that has the turn from now on.
    pub(crate) fn hold(&self, lease: &AcquisitionId) {
        if let Some(Right { lines, key, .. }) = &self.0 {
            lines.shard(key).entry(key.clone()).or_default().held = Some(lease.clone());
        }
    }

    /// Returns what is notified when the key is nudged: at once if it was nudged since this was
    /// last awaited.
    pub(crate) fn nudged(&self) -> Arc<Notify> {
        match &self.0 {
            Some(Right { lines, key, .. }) => {
                let mut shard = lines.shard(key);
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
    pub(crate) fn hand_on(mut self, cargo: C) -> Result<(), Self> {
        let Some(mut right) = self.0.take() else { return Err(self) };
        right.cargo = Some(cargo);
        match right.pass_on() {
            Ok(()) => Ok(()),
            Err(right) => Err(Self(Some(Right { cargo: None, ..right }))),
        }
    }

    /// Takes the lease that came with the turn.
    pub(crate) fn take_cargo(&mut self) -> Option<C> {
        let right = self.0.as_mut()?;
        let cargo = right.cargo.take()?;
        right.lines.mark_unheld(&right.key, cargo.id());
        Some(cargo)
    }
}

impl<C: Cargo> Right<C> {
    /// Passes to the next waiter. Returned if none waits, or if the lease does not meet its
    /// requirements. With a lease the key stays taken then, without one it becomes free.
    fn pass_on(self) -> Result<(), Self> {
        let mut right = self;
        loop {
            let next = {
                let mut shard = right.lines.shard(&right.key);
                let suits = |next: &Waiter<C>| {
                    let cargo = right.cargo.as_ref();
                    cargo.is_none_or(|cargo| cargo.suits(&next.wish) || defect!(NotReleasedBeforeHandOn))
                };
                let next = |entry: &mut Entry<C>| match entry.waiters.front() {
                    Some(next) if suits(next) => entry.waiters.pop_front(),
                    _ => None,
                };
                match shard.get_mut(&right.key).map(|entry| (next(entry), entry)) {
                    Some((Some(Waiter { sender: next, .. }), entry)) => {
                        // A lease that passes from guard to guard is held.
                        entry.held = right.cargo.as_ref().map(|cargo| cargo.id().clone());
                        // Earlier nudges give no reason for a second attempt: the next caller has
                        // made none.
                        (entry.nudge, entry.nudged) = (None, false);
                        Some(next)
                    }
                    Some((None, _)) if right.cargo.is_none() => {
                        shard.remove(&right.key);
                        None
                    }
                    Some((None, _)) | None => None,
                }
            };
            let Some(next) = next else { return Err(right) };
            // Outside the lock: a waiter that has left returns the turn here. One that leaves later
            // drops it, and so passes it on.
            match next.send(Turn(Some(right))) {
                Ok(()) => return Ok(()),
                Err(mut refused) => match refused.0.take() {
                    Some(again) => right = again,
                    None => unreachable!("it was sent with its right"),
                },
            }
        }
    }
}

impl<C: Cargo> Drop for Turn<C> {
    fn drop(&mut self) {
        let Some(right) = self.0.take() else { return };
        if defect!(TurnLost) {
            return;
        }
        if let Err(mut right) = right.pass_on()
            && let Some(cargo) = right.cargo.take()
        {
            cargo.return_turn(Self(Some(right)));
        }
    }
}

impl<C: Cargo> fmt::Debug for Turn<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.0.as_ref().map(|right| &right.key)).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// In tests, turns carry no lease.
    #[derive(Debug)]
    pub(crate) enum Nothing {}

    impl Cargo for Nothing {
        type Home = ();

        fn id(&self) -> &AcquisitionId {
            match *self {}
        }

        type Wish = ();

        fn suits(&self, (): &()) -> bool {
            match *self {}
        }

        fn return_turn(self, _: Turn<Self>) {
            match self {}
        }
    }

    fn turns() -> (Arc<Lines<Nothing>>, LockKey) {
        (Arc::default(), LockKey::new("k").unwrap())
    }

    #[test]
    fn first_come_first_served_and_nothing_left_behind() {
        let (turns, key) = turns();
        let Found::Turn(first) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        let (mut a, mut b) = (pin!(turns.take(&key, ())), pin!(turns.take(&key, ())));
        assert!(poll(a.as_mut()).is_pending() && poll(b.as_mut()).is_pending());
        assert!(matches!(turns.try_take(&key), Found::Asking));
        first.hold(&AcquisitionId::new("a"));
        assert!(matches!(turns.try_take(&key), Found::Held));
        drop(first);
        assert!(poll(b.as_mut()).is_pending(), "the other came first");
        let Poll::Ready(turn) = poll(a.as_mut()) else { panic!("a is next") };
        assert!(matches!(turns.try_take(&key), Found::Asking), "a new turn does not count as held");
        drop(turn);
        assert!(poll(b.as_mut()).is_ready());
        assert_eq!(turns.keys(), 0);
    }

    #[test]
    fn a_caller_that_leaves_is_passed_over_before_and_after_the_turn_was_sent() {
        let (turns, key) = turns();
        let Found::Turn(first) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        let mut last = pin!(async {
            let mut leaves_early = Box::pin(turns.take(&key, ()));
            let mut leaves_late = Box::pin(turns.take(&key, ()));
            assert!(poll(leaves_early.as_mut()).is_pending() && poll(leaves_late.as_mut()).is_pending());
            let mut stays = Box::pin(turns.take(&key, ()));
            assert!(poll(stays.as_mut()).is_pending());
            drop(leaves_early);
            drop(first); // the turn is sent to `leaves_late`
            drop(leaves_late);
            stays.await
        });
        assert!(poll(last.as_mut()).is_ready());
        assert_eq!(turns.keys(), 0);
    }

    #[test]
    fn a_lease_that_was_lost_in_transit_frees_no_other_one() {
        let (turns, key) = turns();
        let Found::Turn(turn) = turns.try_take(&key) else { panic!("no caller wants it yet") };
        let [lost, next] = ["lost", "next"].map(AcquisitionId::new);
        turn.hold(&lost);
        turn.hold(&next);
        turns.mark_unheld(&key, &lost);
        assert_eq!(turns.holder(&key), Some(next.clone()));
        turns.mark_unheld(&key, &next);
        assert_eq!(turns.holder(&key), None);
    }

    #[test]
    fn a_nudge_is_kept_until_the_caller_sleeps() {
        let (turns, key) = turns();
        let Found::Turn(turn) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        // Between the store's answer and the first sleep.
        turns.nudge(&key);
        let nudged = turn.nudged();
        assert!(poll(pin!(nudged.notified())).is_ready());
        turns.nudge(&key);
        assert!(poll(pin!(nudged.notified())).is_ready());
        assert!(poll(pin!(nudged.notified())).is_pending());
    }

    #[test]
    fn a_nudge_ends_with_its_turn() {
        let (turns, key) = turns();
        let Found::Turn(turn) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        let mut next = pin!(turns.take(&key, ()));
        assert!(poll(next.as_mut()).is_pending());
        let before = turn.nudged();
        turns.nudge(&key);
        drop(turn);
        let Poll::Ready(turn) = poll(next.as_mut()) else { panic!("it is next") };
        let nudged = turn.nudged();
        assert!(poll(pin!(nudged.notified())).is_pending());
        before.notify_one(); // by code that has the notification of the previous turn
        assert!(poll(pin!(nudged.notified())).is_pending());
        turns.nudge(&key);
        assert!(poll(pin!(nudged.notified())).is_ready());
    }
}
