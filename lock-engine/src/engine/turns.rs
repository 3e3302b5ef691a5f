//! Who of this process may ask the store for a key: one at a time, first come, first served.
//!
//! Callers that want the same key would only compete with each other at the store. So one of them has the *turn*; it
//! travels with the guard while the lock is held, and on to the next caller afterwards. A turn is a value: wherever it is
//! dropped – in a cancelled future, in a channel nobody reads any more, in a failed clean-up – it passes itself on (C11). The lease itself may
//! travel with it, from one guard to the next (R21).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, oneshot};

use super::held::Baton;
use distlock_api::{AcquisitionId, LockKey, contained};

const SHARDS: usize = 16;

/// All turns of one engine. A key that nobody wants takes no memory.
pub(super) struct Turns {
    hasher: RandomState,
    shards: [Mutex<HashMap<LockKey, Entry>>; SHARDS],
}

#[derive(Default)]
struct Entry {
    /// The lease that the turn is with, unless it is with a caller that still asks.
    held: Option<AcquisitionId>,
    waiters: VecDeque<(u64, oneshot::Sender<Turn>)>,
    last_ticket: u64,
    /// Wakes the one who asks; made when it first sleeps.
    nudge: Option<Arc<Notify>>,
    /// It was nudged before that.
    nudged: bool,
}

impl Entry {
    /// Whom to wake; nobody yet if the one who asks has not slept so far, and then it will not sleep.
    fn nudge(&mut self) -> Option<Arc<Notify>> {
        self.nudged |= self.nudge.is_none() && self.held.is_none();
        self.nudge.clone()
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { hasher: RandomState::new(), shards: Default::default() }
    }
}

/// What a caller that does not wait finds.
pub(super) enum Found {
    /// Nobody here wants the key.
    Turn(Turn),
    /// A guard of this process holds it.
    Held,
    /// Somebody of this process asks for it.
    Asking,
}

impl Turns {
    fn shard(&self, key: &LockKey) -> MutexGuard<'_, HashMap<LockKey, Entry>> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).expect("below 16");
        self.shards[index].lock().expect("no code in here panics")
    }

    /// The turn, if nobody has it.
    pub(super) fn try_take(self: &Arc<Self>, key: &LockKey) -> Found {
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

    /// The turn, now or when all who came before have had it.
    pub(super) async fn take(self: &Arc<Self>, key: &LockKey) -> Turn {
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
                    entry.waiters.push_back((entry.last_ticket, sender));
                    entry.last_ticket
                }
            }
        };
        let mut place = Place { turns: self, key, ticket, receiver };
        (&mut place.receiver).await.expect("an entry with waiters is never removed")
    }

    /// Wakes the caller of this process that asks for the key, if it sleeps between two questions.
    pub(super) fn nudge(&self, key: &LockKey) {
        // Outside the lock: a waker is somebody else's code.
        let nudge = self.shard(key).get_mut(key).and_then(Entry::nudge);
        if let Some(nudge) = nudge {
            contained(|| nudge.notify_one());
        }
    }

    /// The lease of this process that holds the key.
    pub(super) fn holder(&self, key: &LockKey) -> Option<AcquisitionId> {
        self.shard(key).get(key)?.held.clone()
    }

    /// The lease that is on its way with the turn is lost: whoever gets the turn has to ask.
    pub(super) fn unhold(&self, key: &LockKey) {
        if let Some(entry) = self.shard(key).get_mut(key) {
            entry.held = None;
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().len()).sum()
    }
}

/// A place in the line. Dropping it leaves the line; a turn that was already on its way passes itself on.
struct Place<'a> {
    turns: &'a Turns,
    key: &'a LockKey,
    ticket: u64,
    receiver: oneshot::Receiver<Turn>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut shard = self.turns.shard(self.key);
        let left = shard.get_mut(self.key).and_then(|entry| {
            let place = entry.waiters.iter().position(|(ticket, _)| *ticket == self.ticket)?;
            entry.waiters.remove(place)
        });
        drop(shard);
        // Outside the lock: dropping it wakes the receiver, and a waker is somebody else's code.
        drop(left);
    }
}

/// The right to ask the store for a key, and then to hold it – and perhaps the lease itself, handed on by the guard before.
pub(super) struct Turn(Option<Right>);

struct Right {
    turns: Arc<Turns>,
    key: LockKey,
    baton: Option<Baton>,
}

impl Turn {
    fn new(turns: &Arc<Turns>, key: &LockKey) -> Self {
        Self(Some(Right { turns: turns.clone(), key: key.clone(), baton: None }))
    }

    /// From now on the turn is with a lease.
    pub(super) fn hold(&self, lease: &AcquisitionId) {
        if let Some(Right { turns, key, .. }) = &self.0 {
            turns.shard(key).entry(key.clone()).or_default().held = Some(lease.clone());
        }
    }

    /// Resolves when somebody nudges the key: at once if that has happened since this was last awaited.
    pub(super) fn nudged(&self) -> Arc<Notify> {
        match &self.0 {
            Some(Right { turns, key, .. }) => {
                let mut shard = turns.shard(key);
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

    /// Passes the turn on together with the lease; comes back if nobody waits for it.
    pub(super) fn hand_on(mut self, baton: Baton) -> Result<(), Self> {
        let Some(mut right) = self.0.take() else { return Err(self) };
        right.baton = Some(baton);
        match right.pass_on() {
            Ok(()) => Ok(()),
            Err(right) => Err(Self(Some(Right { baton: None, ..right }))),
        }
    }

    /// The lease that came with the turn.
    pub(super) fn take_baton(&mut self) -> Option<Baton> {
        let right = self.0.as_mut()?;
        let baton = right.baton.take()?;
        right.turns.unhold(&right.key);
        Some(baton)
    }
}

impl Right {
    /// To the next one who waits. If there is none it comes back: with a lease the key is still taken,
    /// without one it is free.
    fn pass_on(self) -> Result<(), Self> {
        let mut right = self;
        loop {
            let next = {
                let mut shard = right.turns.shard(&right.key);
                match shard.get_mut(&right.key).map(|entry| (entry.waiters.pop_front(), entry)) {
                    Some((Some((_, next)), entry)) => {
                        // A lease that goes on from hand to hand is held.
                        entry.held = right.baton.as_ref().map(|baton| baton.lease().claim().id().clone());
                        // What came before is no reason to ask twice: whoever comes next has not asked yet.
                        (entry.nudge, entry.nudged) = (None, false);
                        Some(next)
                    }
                    Some((None, _)) if right.baton.is_none() => {
                        shard.remove(&right.key);
                        None
                    }
                    Some((None, _)) | None => None,
                }
            };
            let Some(next) = next else { return Err(right) };
            // Outside the lock: a waiter that left gives the turn back here, one that leaves later drops it there.
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

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(right) = self.0.take() else { return };
        if let Err(mut right) = right.pass_on()
            && let Some(baton) = right.baton.take()
        {
            baton.lay_down(Self(Some(right)));
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.0.as_ref().map(|right| &right.key)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn turns() -> (Arc<Turns>, LockKey) {
        (Arc::default(), LockKey::new("k").unwrap())
    }

    #[test]
    fn first_come_first_served_and_nothing_left_behind() {
        let (turns, key) = turns();
        let Found::Turn(first) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        let (mut a, mut b) = (pin!(turns.take(&key)), pin!(turns.take(&key)));
        assert!(poll(a.as_mut()).is_pending() && poll(b.as_mut()).is_pending());
        assert!(matches!(turns.try_take(&key), Found::Asking));
        first.hold(&AcquisitionId::new("a"));
        assert!(matches!(turns.try_take(&key), Found::Held));
        drop(first);
        assert!(poll(b.as_mut()).is_pending(), "b came second");
        let Poll::Ready(turn) = poll(a.as_mut()) else { panic!("a is next") };
        assert!(matches!(turns.try_take(&key), Found::Asking), "a new turn does not count as held");
        drop(turn);
        assert!(poll(b.as_mut()).is_ready());
        assert_eq!(turns.keys(), 0);
    }

    #[test]
    fn whoever_leaves_is_passed_over_before_and_after_the_turn_was_sent() {
        let (turns, key) = turns();
        let Found::Turn(first) = turns.try_take(&key) else { panic!("nobody wants it yet") };
        let mut last = pin!(async {
            let mut leaves_early = Box::pin(turns.take(&key));
            let mut leaves_late = Box::pin(turns.take(&key));
            assert!(poll(leaves_early.as_mut()).is_pending() && poll(leaves_late.as_mut()).is_pending());
            let mut stays = Box::pin(turns.take(&key));
            assert!(poll(stays.as_mut()).is_pending());
            drop(leaves_early);
            drop(first); // now on its way to `leaves_late`
            drop(leaves_late);
            stays.await
        });
        assert!(poll(last.as_mut()).is_ready());
        assert_eq!(turns.keys(), 0);
    }

    #[test]
    fn a_nudge_is_kept_until_somebody_sleeps() {
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
        let mut next = pin!(turns.take(&key));
        assert!(poll(next.as_mut()).is_pending());
        let before = turn.nudged();
        turns.nudge(&key);
        drop(turn);
        let Poll::Ready(turn) = poll(next.as_mut()) else { panic!("it is next") };
        let nudged = turn.nudged();
        assert!(poll(pin!(nudged.notified())).is_pending());
        before.notify_one(); // somebody who was told of the turn before
        assert!(poll(pin!(nudged.notified())).is_pending());
        turns.nudge(&key);
        assert!(poll(pin!(nudged.notified())).is_ready());
    }
}
