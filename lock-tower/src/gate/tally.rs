//! Counts what a layer has done and is doing: its requests, the waiting ones of each key, and how
//! long they hold locks.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_api::LockKey;
use distlock_api::style::{Client, Counts};
use tokio::sync::Notify;

use super::flow::Flow;
use crate::keys::KeySet;
use crate::refusal::Reason;

/// What all services of one layer share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    flow: Flow,
    pace: Apart<Pace>,
    pub(super) waiters: Arc<Waiters>,
    /// The requests of each client that wait or hold.
    pub(super) clients: Arc<Counts<Client>>,
    holds: Arc<AtomicUsize>,
    failed_open: AtomicU64,
    refused: [AtomicU64; Reason::ALL.len()],
    /// How many calls of [`Monitor::idle`] wait.
    watchers: AtomicUsize,
    idle: Notify,
}

/// A cache line of its own for a value that many threads change.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl Tally {
    pub(super) fn refused(&self, reason: Reason) {
        self.refused[reason.index()].fetch_add(1, Relaxed);
    }

    pub(super) fn failed_open(&self) {
        self.failed_open.fetch_add(1, Relaxed);
    }

    /// Counts a request that needs a lock. It then [leaves](Self::left) or [holds](Self::held) it.
    pub(super) fn arrived(&self) {
        self.flow.arrived();
    }

    /// Counts an arrived request as a holder until its lock is [released](Self::released).
    pub(super) fn held(&self) {
        self.flow.granted();
    }

    pub(super) fn released(&self, hold: Duration) {
        self.pace().record(hold);
        self.flow.released();
        self.notify_watchers();
    }

    /// Whether the bound on holds is reached.
    pub(super) fn holds_are_full(&self, limits: Limits) -> bool {
        limits.held.is_some_and(|limit| self.holds.load(Relaxed) >= limit)
    }

    /// Counts a hold against the bound, if there is one. Returns `None` if it is one too many.
    pub(super) fn enter_hold(&self, limits: Limits) -> Option<Option<HoldPlace>> {
        let Some(limit) = limits.held else { return Some(None) };
        self.holds.fetch_update(Relaxed, Relaxed, |holds| (holds < limit).then_some(holds + 1)).ok()?;
        Some(Some(HoldPlace(self.holds.clone())))
    }

    pub(super) fn left(&self) {
        self.flow.left();
        self.notify_watchers();
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace.0
    }

    /// Wakes the calls of [`Monitor::idle`] after a request is gone. Such a call registers before
    /// it reads the numbers, so either it sees that the request is gone, or this method sees the
    /// call.
    fn notify_watchers(&self) {
        if self.watchers.load(SeqCst) > 0 {
            self.idle.notify_waiters();
        }
    }
}

/// A hold that counts against the bound, until dropped.
#[derive(Debug)]
pub(super) struct HoldPlace(Arc<AtomicUsize>);

impl Drop for HoldPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A view of what a layer, with all its clones and services, has done and is doing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Monitor {
    tally: Arc<Tally>,
}

impl Monitor {
    pub(crate) fn new(tally: Arc<Tally>) -> Self {
        Self { tally }
    }

    /// Returns how many requests are waiting for their lock.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.tally.waiters.total()
    }

    /// Returns how many requests hold their lock. If holds end during the call, it may count some
    /// of those.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.tally.flow.holding()
    }

    /// Returns how many requests got their lock, those that are being served included.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.tally.flow.total_granted()
    }

    /// Returns how many requests were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Reason) -> u64 {
        self.tally.refused[reason.index()].load(Relaxed)
    }

    /// Returns how many requests were refused.
    #[must_use]
    pub fn refused_in_total(&self) -> u64 {
        Reason::ALL.into_iter().map(|reason| self.refused(reason)).sum()
    }

    /// Returns how many requests were served without a lock, because of
    /// [`fail_open`](crate::LockLayer::fail_open).
    #[must_use]
    pub fn failed_open(&self) -> u64 {
        self.tally.failed_open.load(Relaxed)
    }

    /// Returns the average hold time, weighted towards the latest holds. `None` before the first
    /// hold has ended.
    #[must_use]
    pub fn average_hold(&self) -> Option<Duration> {
        self.tally.pace().average()
    }

    /// Waits until no request waits for a lock or holds one.
    ///
    /// Use it for a clean shutdown: a server that was shut down gracefully has no connection left,
    /// but
    /// [detached](crate::LockLayer::detach) handlers may still be at work.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn idle(&self) {
        let _watching = Watching::start(&self.tally.watchers);
        loop {
            let mut idle = pin!(self.tally.idle.notified());
            idle.as_mut().enable();
            if self.tally.flow.is_empty() {
                return;
            }
            idle.await;
        }
    }
}

/// A call of [`Monitor::idle`] that waits, until dropped.
struct Watching<'a>(&'a AtomicUsize);

impl<'a> Watching<'a> {
    fn start(watchers: &'a AtomicUsize) -> Self {
        watchers.fetch_add(1, SeqCst);
        Self(watchers)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The longest wait that is ever suggested.
const LONGEST: Duration = Duration::from_secs(3600);

/// An exponentially weighted average of hold times; the newest counts one eighth.
///
/// Concurrent updates may overwrite each other, which matters little to an average.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds; zero before the first hold.
    average: AtomicU64,
}

impl Pace {
    pub(crate) fn record(&self, hold: Duration) {
        let hold = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::MAX / 8);
        let average = match self.average.load(Relaxed) {
            0 => hold,
            average => (average - average / 8 + hold / 8).max(1),
        };
        self.average.store(average, Relaxed);
    }

    /// Returns the average, if there was a hold.
    pub(crate) fn average(&self) -> Option<Duration> {
        let nanos = self.average.load(Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the expected wait of a caller behind `ahead` others, the holder included.
    pub(crate) fn estimate(&self, ahead: usize) -> Option<Duration> {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX).max(1);
        Some(self.average()?.saturating_mul(ahead).min(LONGEST))
    }
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_key: usize,
    /// Further waiters are let in only to the fair share of their key.
    pub(crate) total: usize,
    /// Of one client, waiting or holding.
    pub(crate) per_client: usize,
    /// The holds of all clients, if they are bounded.
    pub(crate) held: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_key: 64, total: 1024, per_client: 256, held: None }
    }
}

/// The waiting requests. Keys without a waiter take no memory.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// The sum of `queues`. A caller that finds no waiter need not lock the mutex.
    total: AtomicUsize,
    queues: Mutex<HashMap<LockKey, Queue>>,
}

impl Waiters {
    pub(crate) fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    /// Returns the length of the longest queue of these keys.
    pub(crate) fn ahead(&self, keys: &KeySet) -> usize {
        if self.total() == 0 {
            return 0;
        }
        longest(&self.lock(), keys)
    }

    /// Returns whether one more waiter would be too many.
    pub(crate) fn is_full(&self, keys: &KeySet, client: Option<&Client>, limits: Limits) -> bool {
        match self.total() {
            0 => false,
            total => !has_room(&self.lock(), total, keys, client, limits),
        }
    }

    /// Adds a waiter. Returns `None` if that is one too many.
    pub(crate) fn enter(self: &Arc<Self>, keys: &KeySet, client: Option<&Client>, limits: Limits) -> Option<Waiting> {
        let mut queues = self.lock();
        if !has_room(&queues, self.total(), keys, client, limits) {
            return None;
        }
        for key in keys.as_slice() {
            queues.entry(key.clone()).or_default().enter(client);
        }
        self.total.fetch_add(1, Relaxed);
        Some(Waiting { waiters: self.clone(), keys: keys.clone(), client: client.cloned() })
    }

    fn leave(&self, keys: &KeySet, client: Option<&Client>) {
        let mut queues = self.lock();
        for key in keys.as_slice() {
            if let Some(queue) = queues.get_mut(key) {
                queue.leave(client);
                if queue.length == 0 {
                    queues.remove(key);
                }
            }
        }
        self.total.fetch_sub(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiting requests of one key.
#[derive(Debug, Default)]
struct Queue {
    length: usize,
    /// Of the clients that the layer knows.
    clients: HashMap<Client, usize>,
}

impl Queue {
    fn enter(&mut self, client: Option<&Client>) {
        self.length += 1;
        if let Some(client) = client {
            *self.clients.entry(client.clone()).or_default() += 1;
        }
    }

    fn leave(&mut self, client: Option<&Client>) {
        self.length -= 1;
        if let Some(client) = client
            && let Some(count) = self.clients.get_mut(client)
        {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(client);
            }
        }
    }

    /// Whether one more request of this client may wait. The last quarter of the places is for
    /// clients with less than a fair share. So a client can never close a queue to the others.
    fn has_room(&self, client: Option<&Client>, limit: usize) -> bool {
        if self.length < limit - limit / 4 {
            return true;
        }
        let is_fair = client.is_none_or(|client| {
            let count = self.clients.get(client).copied().unwrap_or(0);
            let clients = self.clients.len() + usize::from(count == 0);
            count < (limit / clients.max(2)).max(1)
        });
        self.length < limit && is_fair
    }
}

/// Whether one more request may wait for these keys. Once `limits.total` is reached, a key may
/// still have its fair share of that number, and at least one waiter. So requests that wait for
/// other keys, however many, never close this one.
fn has_room(
    queues: &HashMap<LockKey, Queue>,
    total: usize,
    keys: &KeySet,
    client: Option<&Client>,
    limits: Limits,
) -> bool {
    let share = (limits.total / queues.len().max(1)).max(1);
    let has_room = |key| queues.get(key).map_or(limits.per_key > 0, |queue| queue.has_room(client, limits.per_key));
    keys.as_slice().iter().all(has_room) && (total < limits.total || longest(queues, keys) < share)
}

fn longest(queues: &HashMap<LockKey, Queue>, keys: &KeySet) -> usize {
    keys.as_slice().iter().filter_map(|key| queues.get(key)).map(|queue| queue.length).max().unwrap_or(0)
}

/// A waiting request, until dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    waiters: Arc<Waiters>,
    keys: KeySet,
    client: Option<Client>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiters.leave(&self.keys, self.client.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_with_the_first_hold_and_follows_the_later_ones() {
        let pace = Pace::default();
        assert_eq!(pace.estimate(3), None);
        pace.record(Duration::from_millis(800));
        assert_eq!(pace.estimate(3), Some(Duration::from_millis(2400)));
        for _ in 0..100 {
            pace.record(Duration::from_millis(80));
        }
        let average = pace.average().unwrap();
        assert!(average > Duration::from_millis(79) && average < Duration::from_millis(81), "{average:?}");
    }

    #[test]
    fn extremes_do_not_overflow() {
        let pace = Pace::default();
        pace.record(Duration::MAX);
        pace.record(Duration::MAX);
        assert_eq!(pace.estimate(usize::MAX), Some(LONGEST));
    }
    fn keys<const N: usize>(names: [&str; N]) -> KeySet {
        names.into_iter().map(|name| LockKey::new(name).unwrap()).collect()
    }

    #[test]
    fn both_bounds_hold_and_nothing_is_left_behind() {
        let waiters = Arc::new(Waiters::default());
        let limits = Limits { per_key: 1, total: 2, ..Limits::default() };
        let a = waiters.enter(&keys(["a"]), None, limits).unwrap();
        assert!(waiters.enter(&keys(["a"]), None, limits).is_none() && waiters.is_full(&keys(["a"]), None, limits));
        assert!(waiters.enter(&keys(["a", "b"]), None, limits).is_none(), "one full key is enough");
        let bc = waiters.enter(&keys(["b", "c"]), None, limits).unwrap();
        assert_eq!((waiters.total(), waiters.ahead(&keys(["c", "x"]))), (2, 1));
        let d = waiters.enter(&keys(["d"]), None, limits).expect("no request waits for it");
        assert!(waiters.is_full(&keys(["d"]), None, limits));
        drop((a, bc, d));
        assert_eq!(waiters.total(), 0);
        assert!(waiters.lock().is_empty());
    }

    #[test]
    fn each_key_has_a_fair_share_of_a_full_house() {
        let waiters = Arc::new(Waiters::default());
        let limits = Limits { per_key: 6, total: 8, ..Limits::default() };
        let mut inside: Vec<_> = ["a"; 6].map(|key| waiters.enter(&keys([key]), None, limits).unwrap()).into();
        assert!(waiters.enter(&keys(["a"]), None, limits).is_none(), "six of a key");
        let mut enter = |key| waiters.enter(&keys([key]), None, limits).map(|waiting| inside.push(waiting)).is_some();
        assert!(enter("b") && enter("b"), "eight in total");
        assert!(!enter("a"));
        assert!(enter("b") && enter("b"), "four each");
        assert!(!enter("b"));
        // The first of a new key is let in; then each may have two.
        assert!(enter("c") && enter("c"));
        assert!(!enter("c") && !enter("a") && !enter("b"));
        drop(inside);
        assert!(waiters.lock().is_empty());
    }

    #[test]
    fn a_client_leaves_room_in_each_queue() {
        let client = |name: &str| Client::named(name.to_owned());
        let [ann, bob, dan, eve] = ["ann", "bob", "dan", "eve"].map(client);
        let waiters = Arc::new(Waiters::default());
        let limits = Limits { per_key: 8, ..Limits::default() };
        let mut inside = Vec::new();
        let mut enter = |client| waiters.enter(&keys(["a"]), client, limits).map(|it| inside.push(it)).is_some();
        assert!((0..6).all(|_| enter(Some(&eve))) && !enter(Some(&eve)), "three quarters");
        assert!(enter(Some(&bob)) && enter(Some(&ann)));
        assert!(!enter(Some(&dan)) && !enter(None), "eight in all");
        inside.remove(0);
        assert!(waiters.is_full(&keys(["a"]), Some(&eve), limits), "more than her share");
        assert!(!waiters.is_full(&keys(["a"]), Some(&bob), limits) && !waiters.is_full(&keys(["a"]), None, limits));
        drop(inside);
        assert!(waiters.lock().is_empty());
        // Where there are no clients, there are no shares; and where there are no places, no room.
        let inside: Vec<_> = (0..8).map(|_| waiters.enter(&keys(["a"]), None, limits).unwrap()).collect();
        assert!(waiters.is_full(&keys(["a"]), Some(&ann), limits));
        assert!(waiters.enter(&keys(["b"]), Some(&ann), Limits { per_key: 0, ..limits }).is_none());
        drop(inside);
    }
}
