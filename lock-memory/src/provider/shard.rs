//! A part of the keys. Whatever happens to a key happens under the lock of its shard: grants, queue, losses and counters.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_api::{Accounting, AcquireOptions, Busy, Holder, LockError, LockKey, Loss, ReleaseOutcome, Result, Wait};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::entry::{Entry, LossSender, Next, Phase, Waiter};
use super::turn::Turn;
use super::watched::Watched;
use super::{Hold, needs_runtime};

/// Tables up to this capacity are not worth shrinking.
const SMALL: usize = 16;

/// Aligned, so that threads with keys in neighbouring shards do not share a cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Shard(Mutex<State>);

impl Shard {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(super) struct State {
    /// The keys in use, and no others.
    entries: HashTable<Entry>,
    /// One counter for all keys, so that tokens grow although entries vanish (C5). A token also tells one grant from another.
    last_token: u64,
    last_ticket: u64,
    closed: bool,
    /// How those guards were lost that still live.
    lost: HashMap<u64, Loss>,
    tally: Accounting,
    /// Who wants to hear what happens; none as long as nobody has asked.
    watched: Option<Box<Watched>>,
}

/// The answer to a request.
pub(super) enum Answer {
    Granted { token: u64 },
    Busy(Busy),
    Queued { ticket: u64, turn: oneshot::Receiver<Turn> },
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

/// What a force-release took away.
pub(super) struct Taken {
    pub(super) token: u64,
    pub(super) after: After,
}

impl State {
    /// Grants the key if it is free.
    #[inline]
    pub(super) fn grant(&mut self, hash: u64, key: &LockKey, holder: &Holder, hold: &mut Option<Hold>) -> Option<u64> {
        if self.closed {
            return None;
        }
        let Slot::Vacant(slot) = self.entries.entry(hash, |entry| entry.key == *key, |entry| entry.hash) else {
            return None;
        };
        self.last_token += 1;
        self.tally.acquired += 1;
        self.tally.held += 1;
        let entry = slot.insert(Entry::held(hash, key.clone(), self.last_token, holder, hold.take())).into_mut();
        if let Some(watched) = &self.watched {
            watched.granted(entry);
        }
        Some(self.last_token)
    }

    /// Asks for the key and, if somebody has it, queues up.
    pub(super) fn acquire(
        &mut self,
        hash: u64,
        key: &LockKey,
        options: &AcquireOptions,
        mut hold: Option<Hold>,
    ) -> Result<Answer> {
        if let Some(token) = self.grant(hash, key, options.holder(), &mut hold) {
            return Ok(Answer::Granted { token });
        }
        let Some(entry) = self.entries.find_mut(hash, |entry| entry.key == *key) else {
            return Err(LockError::closed().with_key(key.clone()));
        };
        match options.wait() {
            Wait::Try | Wait::UpTo(Duration::ZERO) => return Ok(Answer::Busy(entry.busy())),
            Wait::UpTo(_) if Handle::try_current().is_err() => {
                return Err(needs_runtime("a bounded wait").with_key(key.clone()));
            }
            Wait::UpTo(_) | Wait::Forever => {}
        }
        let (sender, turn) = oneshot::channel();
        self.last_ticket += 1;
        self.tally.waiting += 1;
        entry.enqueue(self.last_ticket, Waiter { holder: options.holder().clone(), hold, sender });
        Ok(Answer::Queued { ticket: self.last_ticket, turn })
    }

    /// A turn has come to its waiter; false if the provider was closed meanwhile. One that was force-released on its way makes a guard that is lost.
    pub(super) fn accept(&mut self, hash: u64, token: u64) -> bool {
        if self.closed {
            return false;
        }
        self.tally.acquired += 1;
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.token == token) {
            entry.phase = Phase::Held;
            self.tally.held += 1;
            if let Some(watched) = &self.watched {
                watched.granted(entry);
            }
        } else {
            self.lost.insert(token, Loss::ForceReleased);
            self.tally.lost += 1;
        }
        true
    }

    /// A waiter goes, served or not. What it leaves in the queue is to be dropped after the lock.
    pub(super) fn leave(&mut self, hash: u64, key: &LockKey, ticket: u64) -> Option<Waiter> {
        self.tally.waiting -= 1;
        self.entries.find_mut(hash, |entry| entry.key == *key)?.dequeue(ticket)
    }

    /// A turn ends: its guard is released, or its waiter or timer passes it on.
    #[inline]
    pub(super) fn end(&mut self, hash: u64, token: u64) -> (ReleaseOutcome, Option<Box<After>>) {
        let Ok(mut slot) = self.entries.find_entry(hash, |entry| entry.token == token) else {
            self.forget_lost(token);
            return (ReleaseOutcome::AlreadyLost, None);
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
            return (ReleaseOutcome::Released, None);
        }
        let signal = entry.take_signal();
        let rest = if held { entry.rest() } else { None };
        let next = rest.or_else(|| self.open(hash, token));
        (ReleaseOutcome::Released, Some(Box::new(After { signal, next })))
    }

    /// Takes the key away from whoever or whatever keeps it closed.
    pub(super) fn force_release(&mut self, hash: u64, key: &LockKey) -> Option<Taken> {
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
        let next = slot.get_mut().serve(&mut self.last_token);
        if next.is_none() {
            slot.remove();
            self.shrink();
        }
        next
    }

    /// Refuses everybody from now on and takes every key away. Waiters and holders hear of it when the entries are
    /// [ended](Entry::end_closed), after the lock.
    pub(super) fn close(&mut self) -> Vec<Entry> {
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

    pub(super) fn loss(&self, token: u64) -> Option<Loss> {
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
        let acquire = |state: &mut State, hash: u64, key| match state.acquire(hash, key, &AcquireOptions::new(), None) {
            Ok(Answer::Granted { token }) => token,
            _ => panic!("free keys are granted"),
        };
        let tokens: Vec<_> = (0..).zip(&keys).map(|(n, key)| acquire(&mut state, n << 50 | n, key)).collect();
        assert!(state.entries.capacity() >= keys.len());
        for (n, token) in (0..).zip(tokens) {
            assert!(state.end(n << 50 | n, token).0.is_released());
        }
        assert_eq!(state.keys_in_use(), 0);
        assert!(state.entries.capacity() <= SMALL, "{}", state.entries.capacity());
    }
}
