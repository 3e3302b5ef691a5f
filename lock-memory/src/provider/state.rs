//! The state of one shard, behind its lock: grants, queues, losses and counters of its keys.
//!
//! Only the events of watchers are sent here. Everything else that wakes a task is returned to the
//! caller, for the time after the lock.

use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;

use distlock_api::{Accounting, AcquireOptions, LockError, LockKey, Loss, Result, Wait};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use tokio::runtime::Handle;

use super::answers::{Answer, Ended, Grant, Look, LossWatch, Taken};
use super::entry::{Entry, Next};
use super::events::EventSender;
use super::holders::Phase;
use super::minimum_hold::{MinimumHold, needs_runtime};
use super::queue::Waiter;
use super::spin::{Experience, SpinPolicy, Thread};

/// Tables up to this capacity are not worth shrinking.
const SMALL: usize = 16;

/// `T` is the type whose boxes are the guards. The state only keeps a spare box of it.
pub(super) struct State<T> {
    /// The keys in use, and no others.
    entries: HashTable<Entry>,
    /// One counter for all keys, so that tokens grow although entries are removed (C5). A token
    /// also identifies one grant. A waiter gets its token with its request. Waiters of a key are
    /// served in the order of their requests, and no other caller is served while one waits. So the
    /// key's tokens still grow (C15).
    last_token: u64,
    closed: bool,
    /// The losses of guards that still exist.
    lost: HashMap<u64, Loss>,
    counts: Accounting,
    /// The box of the last guard that was released, for the next one.
    spare: Option<Box<T>>,
    experience: Experience,
    /// `None` before the first watcher.
    events: Option<Box<EventSender>>,
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self {
            entries: HashTable::default(),
            last_token: 0,
            closed: false,
            lost: HashMap::default(),
            counts: Accounting::default(),
            spare: None,
            experience: Experience::default(),
            events: None,
        }
    }
}

impl<T> State<T> {
    /// Grants the key if it is free, or if the request fits beside its holders and no caller waits
    /// (C28). Otherwise a caller that waits joins the queue if it has a waker, or is advised to
    /// spin.
    #[inline]
    pub(super) fn acquire(
        &mut self,
        hash: u64,
        key: &LockKey,
        options: &AcquireOptions,
        hold: &mut Option<MinimumHold>,
        waker: Option<&Waker>,
        spin: SpinPolicy,
    ) -> Result<Answer<T>> {
        if self.closed {
            return Err(LockError::closed().with_key(key.clone()));
        }
        match self.entries.entry(hash, |entry| entry.key == *key, |entry| entry.hash) {
            Slot::Vacant(slot) => {
                if matches!(spin, SpinPolicy::Spinning | SpinPolicy::Exhausted) {
                    self.experience.learn(true);
                }
                self.last_token += 1;
                self.counts.acquired += 1;
                self.counts.held += 1;
                let (token, mode) = (self.last_token, options.mode());
                let entry = Entry::held(hash, key.clone(), token, mode, options.holder(), hold.take());
                let entry = slot.insert(entry);
                if self.events.is_some() {
                    entry.get().report_grant(token, self.events.as_deref());
                }
                Ok(Answer::Granted(Grant { token: self.last_token, spare: self.spare.take() }))
            }
            Slot::Occupied(mut slot) => {
                let entry = slot.get_mut();
                if entry.admits(options.mode()) {
                    if matches!(spin, SpinPolicy::Spinning | SpinPolicy::Exhausted) {
                        self.experience.learn(true);
                    }
                    self.last_token += 1;
                    self.counts.acquired += 1;
                    self.counts.held += 1;
                    entry.admit(self.last_token, options.mode(), options.holder().clone(), hold.take());
                    entry.report_grant(self.last_token, self.events.as_deref());
                    return Ok(Answer::Granted(Grant { token: self.last_token, spare: self.spare.take() }));
                }
                match options.wait() {
                    Wait::Try | Wait::UpTo(Duration::ZERO) => return Ok(Answer::Busy(entry.busy())),
                    Wait::UpTo(_) if Handle::try_current().is_err() => {
                        return Err(needs_runtime("a bounded wait").with_key(key.clone()));
                    }
                    Wait::UpTo(_) | Wait::Forever => {}
                }
                let Some(waker) = waker else { return Ok(Answer::Held) };
                let thread = Thread::this();
                let may_spin = spin != SpinPolicy::Exhausted && entry.is_elsewhere(thread);
                if may_spin && (spin == SpinPolicy::Spinning || self.experience.advises()) {
                    return Ok(Answer::Held);
                }
                if spin == SpinPolicy::Exhausted {
                    self.experience.learn(false);
                }
                self.last_token += 1;
                self.counts.waiting += 1;
                let (mode, holder) = (options.mode(), options.holder().clone());
                let waiter = Waiter { waker: waker.clone(), thread, mode, holder, hold: hold.take() };
                entry.enqueue(self.last_token, waiter);
                Ok(Answer::Queued { token: self.last_token })
            }
        }
    }

    /// Checks whether a waiter's turn has come. If not, replaces its waker by the given one. A turn
    /// that was taken away in transit becomes a guard that is lost.
    pub(super) fn look(&mut self, hash: u64, key: &LockKey, token: u64, waker: &Waker) -> Look<T> {
        if self.closed {
            self.counts.waiting -= 1;
            return Look::Closed;
        }
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.holds(token)) {
            entry.arrive(token);
            self.counts.held += 1;
            // Others have been reported.
            if entry.is_exclusive() {
                entry.report_grant(token, self.events.as_deref());
            }
        } else {
            let queue = self.entries.find_mut(hash, |entry| entry.key == *key).and_then(Entry::queue);
            if let Some(waiter) = queue.and_then(|queue| queue.get_mut(token)) {
                let known = waiter.waker.will_wake(waker);
                let replaced = (!known).then(|| std::mem::replace(&mut waiter.waker, waker.clone()));
                return Look::Waits { replaced };
            }
            self.lost.insert(token, Loss::ForceReleased);
            self.counts.lost += 1;
        }
        self.counts.waiting -= 1;
        self.counts.acquired += 1;
        Look::Granted(Grant { token, spare: self.spare.take() })
    }

    /// Removes a waiter that gives up: it leaves the queue, and those behind it may fit beside the
    /// holders; or it ends its turn, which passes to the next. The returned waiter is to be dropped
    /// after the lock.
    pub(super) fn leave(&mut self, hash: u64, key: &LockKey, token: u64) -> (Ended, Option<Waiter>) {
        self.counts.waiting -= 1;
        let mut entry = self.entries.find_mut(hash, |entry| entry.key == *key);
        let queue = entry.as_deref_mut().and_then(Entry::queue);
        let Some(waiter) = queue.and_then(|queue| queue.remove(token)) else {
            return (self.end(hash, token), None);
        };
        let next = entry.map_or(Next::Free, |entry| entry.serve_beside(self.events.as_deref()));
        (Ended::with(None, next), Some(waiter))
    }

    /// Ends a turn: its guard is released, or its waiter or timer passes it on.
    #[inline]
    pub(super) fn end(&mut self, hash: u64, token: u64) -> Ended {
        let Ok(mut slot) = self.entries.find_entry(hash, |entry| entry.holds(token)) else {
            self.forget_lost(token);
            return Ended::Lost;
        };
        let entry = slot.get_mut();
        let held = entry.is_held(token);
        if held {
            self.counts.held -= 1;
            self.counts.released += 1;
        }
        if let Some(events) = &self.events
            && entry.grant(token).is_some_and(|grant| grant.is_reported())
        {
            events.released(&entry.key, token);
        }
        if entry.is_plain() {
            slot.remove();
            self.shrink();
            return Ended::NextWaiter(None);
        }
        let (signal, next) = entry.end(token, held, self.events.as_deref());
        if matches!(next, Next::Free) {
            slot.remove();
            self.shrink();
        }
        Ended::with(signal, next)
    }

    /// Forgets the minimum hold of a guard's grant.
    pub(super) fn forget_minimum_hold(&mut self, hash: u64, token: u64) {
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.holds(token)) {
            entry.forget_minimum_hold(token);
        }
    }

    /// Keeps the box of a released guard for the next one. Returns the spare that it replaces, to
    /// be dropped after the lock.
    #[inline]
    pub(super) fn keep_spare(&mut self, spare: Box<T>) -> Option<Box<T>> {
        self.spare.replace(spare)
    }

    /// Takes the key away from these of its holders, and from the timers of their minimum holds.
    pub(super) fn take_away(&mut self, hash: u64, key: &LockKey, tokens: &[u64], loss: Loss) -> Option<Taken> {
        let mut slot = self.entries.find_entry(hash, |entry| entry.key == *key).ok()?;
        let entry = slot.get_mut();
        let (mut signals, mut found) = (Vec::new(), false);
        for token in tokens {
            let Some(phase) = entry.grant(*token).map(|grant| grant.phase) else { continue };
            // The maximum hold of a guard that was released in time is no end of its minimum hold.
            if loss == Loss::HeldTooLong && phase != Phase::Held {
                continue;
            }
            found = true;
            if phase == Phase::Held {
                self.counts.held -= 1;
                self.counts.lost += 1;
                self.lost.insert(*token, loss);
            }
            if let Some(events) = self.events.as_ref().filter(|_| phase != Phase::MinimumHold) {
                match loss {
                    Loss::ForceReleased => events.force_released(&entry.key, *token),
                    _ => events.released(&entry.key, *token),
                }
            }
            signals.extend(entry.take_signal(*token));
        }
        if !found {
            return None;
        }
        let next = entry.remove(tokens, self.events.as_deref());
        if matches!(next, Next::Free) {
            slot.remove();
            self.shrink();
        }
        Some(Taken { loss, signals, next })
    }

    pub(super) fn close(&mut self) -> Vec<Entry> {
        self.closed = true;
        let entries: Vec<Entry> = std::mem::take(&mut self.entries).into_iter().collect();
        for entry in &entries {
            for grant in entry.grants() {
                if grant.phase == Phase::Held {
                    self.counts.held -= 1;
                    // Released by the provider instead of the guard.
                    self.counts.released += 1;
                    self.lost.insert(grant.token, Loss::Closed);
                }
                if let Some(events) = self.events.as_ref().filter(|_| grant.is_reported()) {
                    events.released(&entry.key, grant.token);
                }
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

    /// Sends the events of all keys from now on.
    pub(super) fn watch(&mut self, events: EventSender) {
        self.events = Some(Box::new(events));
    }

    pub(super) fn loss(&self, token: u64) -> Option<Loss> {
        self.lost.get(&token).copied()
    }

    pub(super) fn watch_loss(&mut self, hash: u64, token: u64) -> LossWatch {
        if let Some(loss) = self.loss(token) {
            return LossWatch::Lost(loss);
        }
        match self.entries.find_mut(hash, |entry| entry.holds(token)) {
            Some(entry) => LossWatch::Held(entry.subscribe(token)),
            None => LossWatch::Released,
        }
    }

    pub(super) fn counts(&self) -> Accounting {
        self.counts
    }

    pub(super) fn keys_in_use(&self) -> usize {
        self.entries.len()
    }

    /// Removes the loss of a guard that is gone.
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
        let mut state = State::<()>::default();
        let keys: Vec<_> = (0..10_000).map(|n| LockKey::new(format!("{n}")).unwrap()).collect();
        let options = AcquireOptions::new();
        let acquire = |state: &mut State<()>, hash: u64, key| match state.acquire(
            hash,
            key,
            &options,
            &mut None,
            None,
            SpinPolicy::Exhausted,
        ) {
            Ok(Answer::Granted(Grant { token, .. })) => token,
            _ => panic!("free keys are granted"),
        };
        let tokens: Vec<_> = (0..).zip(&keys).map(|(n, key)| acquire(&mut state, n << 50 | n, key)).collect();
        assert!(state.entries.capacity() >= keys.len());
        for (n, token) in (0..).zip(tokens) {
            assert!(matches!(state.end(n << 50 | n, token), Ended::NextWaiter(None)));
        }
        assert_eq!(state.keys_in_use(), 0);
        assert!(state.entries.capacity() <= SMALL, "{}", state.entries.capacity());
    }

    const HASH: u64 = 7;

    fn acquire(state: &mut State<()>, waker: Option<&Waker>, spin: SpinPolicy) -> Answer<()> {
        let key = LockKey::new("k").unwrap();
        state.acquire(HASH, &key, &AcquireOptions::new(), &mut None, waker, spin).unwrap()
    }

    fn queued(answer: Answer<()>) -> u64 {
        match answer {
            Answer::Queued { token } => token,
            _ => panic!("the key is held"),
        }
    }

    #[test]
    fn only_another_thread_spins_and_only_without_a_waiter() {
        fn elsewhere(state: &mut State<()>, spin: SpinPolicy) -> Answer<()> {
            std::thread::scope(|scope| scope.spawn(|| acquire(state, Some(Waker::noop()), spin)).join().unwrap())
        }
        let mut state = State::<()>::default();
        assert!(matches!(acquire(&mut state, None, SpinPolicy::IfAdvised), Answer::Granted(Grant { token: 1, .. })));
        assert!(matches!(elsewhere(&mut state, SpinPolicy::Spinning), Answer::Held));
        // On the thread of the holder it would have no effect.
        let first = queued(acquire(&mut state, Some(Waker::noop()), SpinPolicy::IfAdvised));
        // C15: now the key has a waiter, and the next caller waits behind it.
        let second = queued(elsewhere(&mut state, SpinPolicy::Spinning));
        assert!(1 < first && first < second);
    }
}
