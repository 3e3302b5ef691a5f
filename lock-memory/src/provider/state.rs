//! A part of the keys. Whatever happens to a key happens under the lock of its shard: grants, queue, losses and counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use distlock_api::{Accounting, AcquireOptions, Busy, LockError, LockKey, Loss, Result, Wait};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::entry::{Entry, LossSender, Next, Phase};
use super::events::Watched;
use super::queue::Waiter;
use super::spin::{Experience, LastEnded, Thread};
use super::turn::Turn;
use super::{Hold, needs_runtime};

/// Tables up to this capacity are not worth shrinking.
const SMALL: usize = 16;

/// Aligned, so that threads with keys in neighbouring shards do not share a cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Shard {
    state: Mutex<State>,
    /// Set after the lock.
    pub(super) ended: LastEnded,
    /// Whether anybody ever wanted to take something away: before that no guard need look for its loss.
    taken: AtomicBool,
}

impl Shard {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// For taking keys away.
    pub(super) fn lock_to_take(&self) -> Taking<'_> {
        self.taken.store(true, Ordering::Release);
        Taking(self.state.lock())
    }

    /// How the guard with this token was lost.
    #[inline]
    pub(super) fn loss(&self, token: u64) -> Option<Loss> {
        if !self.taken.load(Ordering::Acquire) {
            return None;
        }
        self.lock().loss(token)
    }
}

/// The state, and everybody has been warned that something may be taken away.
pub(super) struct Taking<'a>(MutexGuard<'a, State>);

impl Taking<'_> {
    pub(super) fn state(&self) -> &State {
        &self.0
    }

    /// Takes the key away from whoever or whatever keeps it closed.
    pub(super) fn force_release(&mut self, hash: u64, key: &LockKey) -> Option<Taken> {
        self.0.force_release(hash, key)
    }

    /// Refuses everybody from now on and takes every key away. Waiters and holders hear of it when the entries are
    /// [ended](Entry::end_closed), after the lock.
    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.0.close()
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The keys in use, and no others.
    entries: HashTable<Entry>,
    /// One counter for all keys, so that tokens grow although entries vanish (C5). A token also tells one grant from another. A waiter has its token from the
    /// moment it asks: waiters of a key are served in the order in which they asked, and nobody else is while one waits, so its tokens still grow (C15).
    last_token: u64,
    closed: bool,
    /// How those guards were lost that still live.
    lost: HashMap<u64, Loss>,
    tally: Accounting,
    /// The box of the last guard that was released, for the next one.
    spare: Option<Box<Turn>>,
    experience: Experience,
    /// Who wants to hear what happens; none as long as nobody has asked.
    watched: Option<Box<Watched>>,
}

/// The answer to a request.
pub(super) enum Answer {
    Granted(Grant),
    Busy(Busy),
    Queued {
        token: u64,
    },
    /// Somebody has it. The caller did not want to queue, or had better look again.
    Held,
}

/// What to do if somebody has the key and the caller wants to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Looking {
    /// Do not wait: somebody has it, and that is all.
    Once,
    /// Look again, if experience advises to; else queue up.
    Perhaps,
    /// Go on looking, as long as nobody waits.
    Still,
    /// Queue up.
    Over,
}

/// A key is held from now on.
pub(super) struct Grant {
    pub(super) token: u64,
    /// For the guard, if there is one.
    pub(super) spare: Option<Box<Turn>>,
}

/// What a waiter finds.
pub(super) enum Look {
    Granted(Grant),
    Closed,
    /// Nothing yet. Another waker was there before, and is to be dropped after the lock.
    Waits {
        replaced: Option<Waker>,
    },
}

/// How to learn of a loss.
pub(super) enum LossWatch {
    Lost(Loss),
    Held(watch::Receiver<Option<Loss>>),
    Released,
}

/// What remains to be done after the lock, because it wakes tasks.
pub(super) struct After {
    pub(super) signal: Option<LossSender>,
    pub(super) next: Option<Next>,
}

/// How a turn ended.
pub(super) enum Ended {
    /// It had been taken away before.
    Lost,
    /// The key is free again, or somebody else has it, who is to be woken unless they look by themselves.
    Plainly(Option<Waker>),
    Otherwise(Box<After>),
}

/// What a force-release took away.
pub(super) struct Taken {
    pub(super) token: u64,
    pub(super) after: After,
}

impl State {
    /// Asks for the key and, if somebody has it and the caller wants to wait, queues up or advises to look again. Without a waker the caller will look by itself.
    #[inline]
    pub(super) fn acquire(
        &mut self,
        hash: u64,
        key: &LockKey,
        options: &AcquireOptions,
        hold: &mut Option<Hold>,
        waker: Option<&Waker>,
        looking: Looking,
    ) -> Result<Answer> {
        if self.closed {
            return Err(LockError::closed().with_key(key.clone()));
        }
        match self.entries.entry(hash, |entry| entry.key == *key, |entry| entry.hash) {
            Slot::Vacant(slot) => {
                if matches!(looking, Looking::Still | Looking::Over) {
                    self.experience.learn(true);
                }
                self.last_token += 1;
                self.tally.acquired += 1;
                self.tally.held += 1;
                let entry = Entry::held(hash, key.clone(), self.last_token, options.holder(), hold.take());
                let entry = slot.insert(entry);
                if let Some(watched) = &self.watched {
                    watched.granted(entry.get());
                }
                Ok(Answer::Granted(Grant { token: self.last_token, spare: self.spare.take() }))
            }
            Slot::Occupied(mut slot) => {
                let entry = slot.get_mut();
                match options.wait() {
                    Wait::Try | Wait::UpTo(Duration::ZERO) => return Ok(Answer::Busy(entry.busy())),
                    Wait::UpTo(_) if Handle::try_current().is_err() => {
                        return Err(needs_runtime("a bounded wait").with_key(key.clone()));
                    }
                    Wait::UpTo(_) | Wait::Forever => {}
                }
                if looking == Looking::Once {
                    return Ok(Answer::Held);
                }
                let thread = Thread::this();
                let look = looking != Looking::Over && entry.is_elsewhere(thread);
                if look && (looking == Looking::Still || self.experience.advises()) {
                    return Ok(Answer::Held);
                }
                if looking == Looking::Over && waker.is_some() {
                    self.experience.learn(false);
                }
                self.last_token += 1;
                self.tally.waiting += 1;
                let holder = options.holder().clone();
                let waiter = Waiter { waker: waker.cloned(), thread, holder, hold: hold.take() };
                entry.enqueue(self.last_token, waiter);
                Ok(Answer::Queued { token: self.last_token })
            }
        }
    }

    /// A waiter looks whether its turn has come; from now on the given waker counts, if there is one. A turn that was taken away under way makes a guard that is lost.
    pub(super) fn look(&mut self, hash: u64, key: &LockKey, token: u64, waker: Option<&Waker>) -> Look {
        if self.closed {
            self.tally.waiting -= 1;
            return Look::Closed;
        }
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.token == token) {
            if waker.is_none() {
                self.experience.learn(true);
            }
            entry.phase = Phase::Held;
            entry.thread = Thread::this();
            self.tally.held += 1;
            if let Some(watched) = &self.watched {
                watched.granted(entry);
            }
        } else {
            let queue = self.entries.find_mut(hash, |entry| entry.key == *key).and_then(Entry::queue);
            if let Some(waiter) = queue.and_then(|queue| queue.find(token)) {
                let known = match (&waiter.waker, waker) {
                    (Some(known), Some(waker)) => known.will_wake(waker),
                    (None, Some(_)) => {
                        self.experience.learn(false);
                        false
                    }
                    (_, None) => true,
                };
                let replaced = if known { None } else { std::mem::replace(&mut waiter.waker, waker.cloned()) };
                return Look::Waits { replaced };
            }
            self.lost.insert(token, Loss::ForceReleased);
            self.tally.lost += 1;
        }
        self.tally.waiting -= 1;
        self.tally.acquired += 1;
        Look::Granted(Grant { token, spare: self.spare.take() })
    }

    /// A waiter goes: out of the queue, or with its turn, which passes on. What it leaves behind is to be dropped after the lock.
    pub(super) fn leave(&mut self, hash: u64, key: &LockKey, token: u64) -> (Ended, Option<Waiter>) {
        self.tally.waiting -= 1;
        let queue = self.entries.find_mut(hash, |entry| entry.key == *key).and_then(Entry::queue);
        match queue.and_then(|queue| queue.remove(token)) {
            Some(waiter) => (Ended::Plainly(None), Some(waiter)),
            None => (self.end(hash, token), None),
        }
    }

    /// A turn ends: its guard is released, or its waiter or timer passes it on.
    #[inline]
    pub(super) fn end(&mut self, hash: u64, token: u64) -> Ended {
        let Ok(mut slot) = self.entries.find_entry(hash, |entry| entry.token == token) else {
            self.forget_lost(token);
            return Ended::Lost;
        };
        let entry = slot.get_mut();
        let held = entry.phase == Phase::Held;
        if held {
            self.tally.held -= 1;
            self.tally.released += 1;
            if let Some(watched) = &self.watched {
                watched.released(entry);
            }
        }
        if entry.is_plain() {
            slot.remove();
            self.shrink();
            return Ended::Plainly(None);
        }
        let signal = entry.take_signal();
        let rest = if held { entry.rest() } else { None };
        let next = rest.or_else(|| entry.serve().map(Next::Waiter));
        if next.is_none() {
            slot.remove();
            self.shrink();
        }
        match (signal, next) {
            (None, None) => Ended::Plainly(None),
            (None, Some(Next::Waiter(waker))) => Ended::Plainly(waker),
            (signal, next) => Ended::Otherwise(Box::new(After { signal, next })),
        }
    }

    /// The box of a guard that was released is kept for the next one; that of a second one is given back, to be dropped after the lock.
    #[inline]
    pub(super) fn keep(&mut self, turn: Box<Turn>) -> Option<Box<Turn>> {
        self.spare.replace(turn)
    }

    fn force_release(&mut self, hash: u64, key: &LockKey) -> Option<Taken> {
        let entry = self.entries.find_mut(hash, |entry| entry.key == *key)?;
        let (token, signal) = (entry.token, entry.take_signal());
        if entry.phase == Phase::Held {
            self.tally.held -= 1;
            self.tally.lost += 1;
            self.lost.insert(token, Loss::ForceReleased);
        }
        if entry.phase != Phase::Resting
            && let Some(watched) = &self.watched
        {
            watched.force_released(entry);
        }
        let next = self.open(hash, token);
        Some(Taken { token, after: After { signal, next } })
    }

    /// Gives the key of a grant to its first waiter, or forgets it.
    fn open(&mut self, hash: u64, token: u64) -> Option<Next> {
        let mut slot = self.entries.find_entry(hash, |entry| entry.token == token).ok()?;
        let next = slot.get_mut().serve().map(Next::Waiter);
        if next.is_none() {
            slot.remove();
            self.shrink();
        }
        next
    }

    fn close(&mut self) -> Vec<Entry> {
        self.closed = true;
        let entries: Vec<Entry> = std::mem::take(&mut self.entries).into_iter().collect();
        for entry in entries.iter().filter(|entry| entry.phase == Phase::Held) {
            self.tally.held -= 1;
            // Given back in order, by the provider rather than by the guard.
            self.tally.released += 1;
            self.lost.insert(entry.token, Loss::Closed);
            if let Some(watched) = &self.watched {
                watched.released(entry);
            }
        }
        entries
    }

    pub(super) fn find(&self, hash: u64, key: &LockKey) -> Option<&Entry> {
        self.entries.find(hash, |entry| entry.key == *key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// From now on what happens is told.
    pub(super) fn watch(&mut self, watched: Watched) {
        self.watched = Some(Box::new(watched));
    }

    fn loss(&self, token: u64) -> Option<Loss> {
        self.lost.get(&token).copied()
    }

    pub(super) fn watch_loss(&mut self, hash: u64, token: u64) -> LossWatch {
        if let Some(loss) = self.loss(token) {
            return LossWatch::Lost(loss);
        }
        match self.entries.find_mut(hash, |entry| entry.token == token) {
            Some(entry) => LossWatch::Held(entry.subscribe()),
            None => LossWatch::Released,
        }
    }

    pub(super) fn tally(&self) -> Accounting {
        self.tally
    }

    pub(super) fn keys_in_use(&self) -> usize {
        self.entries.len()
    }

    /// A lost guard is gone.
    fn forget_lost(&mut self, token: u64) {
        self.lost.remove(&token);
        if self.lost.is_empty() {
            self.lost.shrink_to_fit();
        }
    }

    /// Gives back memory after a burst.
    #[inline]
    fn shrink(&mut self) {
        let (len, capacity) = (self.entries.len(), self.entries.capacity());
        if capacity > SMALL && len < capacity / 8 {
            self.entries.shrink_to(len * 2, |entry| entry.hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_keys_leaves_no_capacity_behind() {
        let mut state = State::default();
        let keys: Vec<_> = (0..10_000).map(|n| LockKey::new(format!("{n}")).unwrap()).collect();
        let options = AcquireOptions::new();
        let acquire = |state: &mut State, hash: u64, key| match state.acquire(
            hash,
            key,
            &options,
            &mut None,
            None,
            Looking::Over,
        ) {
            Ok(Answer::Granted(Grant { token, .. })) => token,
            _ => panic!("free keys are granted"),
        };
        let tokens: Vec<_> = (0..).zip(&keys).map(|(n, key)| acquire(&mut state, n << 50 | n, key)).collect();
        assert!(state.entries.capacity() >= keys.len());
        for (n, token) in (0..).zip(tokens) {
            assert!(matches!(state.end(n << 50 | n, token), Ended::Plainly(None)));
        }
        assert_eq!(state.keys_in_use(), 0);
        assert!(state.entries.capacity() <= SMALL, "{}", state.entries.capacity());
    }

    const HASH: u64 = 7;

    fn ask(state: &mut State, waker: Option<&Waker>, looking: Looking) -> Answer {
        let key = LockKey::new("k").unwrap();
        state.acquire(HASH, &key, &AcquireOptions::new(), &mut None, waker, looking).unwrap()
    }

    fn queued(answer: Answer) -> u64 {
        match answer {
            Answer::Queued { token } => token,
            _ => panic!("the key is held"),
        }
    }

    #[test]
    fn only_another_thread_looks_again_and_only_if_nobody_waits() {
        fn elsewhere(state: &mut State, looking: Looking) -> Answer {
            std::thread::scope(|scope| scope.spawn(|| ask(state, Some(Waker::noop()), looking)).join().unwrap())
        }
        let mut state = State::default();
        assert!(matches!(ask(&mut state, None, Looking::Perhaps), Answer::Granted(Grant { token: 1, .. })));
        assert!(matches!(elsewhere(&mut state, Looking::Still), Answer::Held));
        // On the thread of the holder it would be in vain.
        let first = queued(ask(&mut state, Some(Waker::noop()), Looking::Perhaps));
        // C15: now somebody waits, and whoever comes waits behind.
        let second = queued(elsewhere(&mut state, Looking::Still));
        assert!(1 < first && first < second);
    }

    #[test]
    fn c16_whoever_stops_looking_by_itself_is_woken() {
        let key = LockKey::new("k").unwrap();
        let waker = Waker::noop();
        for registers in [false, true] {
            let mut state = State::default();
            ask(&mut state, None, Looking::Perhaps);
            let token = queued(ask(&mut state, None, Looking::Over));
            assert!(matches!(state.look(HASH, &key, token, None), Look::Waits { replaced: None }));
            if registers {
                assert!(matches!(state.look(HASH, &key, token, Some(waker)), Look::Waits { replaced: None }));
            }
            let Ended::Plainly(wakes) = state.end(HASH, 1) else { panic!("nothing else is to be done") };
            assert_eq!(wakes.is_some(), registers);
            assert!(matches!(state.look(HASH, &key, token, None), Look::Granted(grant) if grant.token == token));
        }
    }
}
