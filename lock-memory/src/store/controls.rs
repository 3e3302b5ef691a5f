//! The controls of a test over the store: the clock, leases, tickets, events, faults and counters.

use std::sync::Arc;
use std::time::Duration;

use distlock_api::{AcquisitionId, ErrorKind, IntoLockKey, LockError, LockEvent, LockInfo};
use distlock_engine::store::StoreEvent;
use distlock_engine::{LeaseProvider, LeaseProviderBuilder};

use super::faults::{Fault, Gate};
use super::key::valid;
use super::{Calls, HangHandle, MemoryStore};

/// Providers.
impl MemoryStore {
    /// Creates a provider on this store with the engine's defaults. It acts as one more process.
    ///
    /// # Panics
    /// Never: the defaults are valid.
    #[must_use]
    pub fn provider(&self) -> LeaseProvider {
        self.builder().build().expect("the defaults are valid")
    }

    /// Creates the builder of a provider on this store.
    pub fn builder(&self) -> LeaseProviderBuilder {
        LeaseProvider::builder(Arc::new(self.clone()))
    }
}

/// Time and leases. The methods that name a key panic if the text is not a valid one.
impl MemoryStore {
    /// Advances the store's clock. With tokio's clock this is a step that the engine's clock does
    /// not make.
    pub fn advance(&self, by: Duration) {
        self.step(|state, _| state.clock.advance(by));
    }

    /// Returns the store's clock: the time since the store was created.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.step(|_, now| now)
    }

    /// Ends the key's leases and its minimum hold as if their time had passed. As with a database,
    /// no event is sent, and waiters keep their tickets. Returns whether the key was closed.
    pub fn expire(&self, key: impl IntoLockKey) -> bool {
        let key = valid(key);
        self.step(|state, now| {
            let Some(record) = state.records.get_mut(&key) else { return false };
            let closed = record.describe(&key, now).is_some();
            record.expire(now);
            closed
        })
    }

    /// Takes the lock away, as [`LockAdmin::force_release`](distlock_api::LockAdmin::force_release)
    /// does, but at once, uncounted and not affected by faults.
    pub fn force_release(&self, key: impl IntoLockKey) -> Option<LockInfo> {
        self.step(|state, now| state.force_release(now, &valid(key), None, "a test"))
    }

    /// Removes the key's record, held or not and with all tickets, as a database's clean-up would.
    /// Later tokens are still greater than all before ([C5]). The counts of the key's calls begin
    /// again at zero. Returns whether there was a record.
    ///
    /// [C5]: distlock_api::contract#c5
    pub fn purge(&self, key: impl IntoLockKey) -> bool {
        let key = valid(key);
        self.shared.faults.forget(&key);
        self.step(|state, _| {
            let Some(record) = state.records.remove(&key) else { return false };
            state.purged_token = state.purged_token.max(record.token());
            for id in record.lease_ids().cloned() {
                state.publish_lock_event(LockEvent::Expired { key: key.clone(), id });
            }
            state.publish(StoreEvent::Freed { key });
            true
        })
    }

    /// Returns what holds the key or keeps it closed, uncounted and not affected by faults.
    #[must_use]
    pub fn peek(&self, key: impl IntoLockKey) -> Option<LockInfo> {
        let key = valid(key);
        self.step(|state, now| state.records.get(&key)?.describe(&key, now))
    }
}

/// The queue.
impl MemoryStore {
    /// Returns the acquisitions whose tickets wait for the key, the first in the queue first.
    /// Expired tickets are left out. Uncounted and not affected by faults.
    #[must_use]
    pub fn waiting(&self, key: impl IntoLockKey) -> Vec<AcquisitionId> {
        let key = valid(key);
        self.step(|state, now| {
            state.records.get(&key).map(|record| record.waiting(now).cloned().collect()).unwrap_or_default()
        })
    }

    /// Drops all tickets of the key, as if they had not been refreshed in time; no event is sent.
    /// Returns the acquisitions that had them.
    pub fn drop_tickets(&self, key: impl IntoLockKey) -> Vec<AcquisitionId> {
        let key = valid(key);
        self.step(|state, now| {
            let Some(record) = state.records.get_mut(&key) else { return Vec::new() };
            let dropped = record.waiting(now).cloned().collect();
            record.drop_tickets();
            dropped
        })
    }
}

/// Push. This applies to the streams of operators, too. A fault of
/// [`Operation::Watch`](crate::Operation::Watch) refuses a stream.
impl MemoryStore {
    /// Ends every open stream of events without an error; the engine opens new ones. Events that
    /// had not been received by then are lost.
    pub fn cut_watchers(&self) {
        self.end_streams(None);
    }

    /// Ends every open stream of events with an error of this kind. Events that had not been
    /// received by then are lost.
    pub fn break_watchers(&self, kind: ErrorKind) {
        self.end_streams(Some(planned(kind)));
    }

    /// Loses all events from now on, although the streams stay open; `false` ends that.
    pub fn lose_events(&self, lose: bool) {
        self.step(|state, _| state.events_lost = lose);
    }

    /// Delays all events from now on by this much of tokio's clock, and keeps their order; zero
    /// ends that.
    pub fn delay_events(&self, by: Duration) {
        self.step(|state, _| state.events_delayed = by);
    }

    /// Pushes this event to the providers that it concerns, whether or not it has happened: an
    /// event twice, an old one, a gap.
    pub fn push(&self, event: StoreEvent) {
        self.step(|state, _| state.publish(event));
    }

    fn end_streams(&self, error: Option<LockError>) {
        self.step(|state, _| {
            state.events.end(error.clone());
            state.lock_events.end(error);
        });
    }
}

/// Faults.
impl MemoryStore {
    /// Lets the next such call fail, not applied, with an error of this kind and its usual
    /// disposition.
    pub fn fail_next(&self, calls: impl Into<Calls>, kind: ErrorKind) {
        self.shared.faults.plan(calls.into(), Fault::Fail(planned(kind)));
    }

    /// Lets every such call fail, not applied, until [`clear_faults`](Self::clear_faults): an
    /// outage.
    pub fn fail_always(&self, calls: impl Into<Calls>, kind: ErrorKind) {
        self.shared.faults.plan(calls.into(), Fault::Outage(planned(kind)));
    }

    /// Lets the next such call hang, not applied, until the handle lets it
    /// [proceed](HangHandle::proceed). A batch hangs as a whole. If the handle is dropped, the call
    /// fails without being applied. If the caller gives the call up, it is never applied.
    pub fn hang_next(&self, calls: impl Into<Calls>) -> HangHandle {
        let (gate, handle) = Gate::new();
        self.shared.faults.plan(calls.into(), Fault::Hang(gate));
        handle
    }

    /// Applies the next such call, and loses its answer: an error of unknown outcome.
    pub fn drop_reply_next(&self, calls: impl Into<Calls>) {
        self.shared.faults.plan(calls.into(), Fault::DropReply);
    }

    /// Applies the next such call, and holds its answer back until the handle lets it
    /// [proceed](HangHandle::proceed): it comes late. If the handle is dropped, the answer is lost.
    pub fn hang_reply_next(&self, calls: impl Into<Calls>) -> HangHandle {
        let (gate, handle) = Gate::new();
        self.shared.faults.plan(calls.into(), Fault::HangReply(gate));
        handle
    }

    /// Removes all planned faults. Calls that hang already continue to hang.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }
}

/// Counters.
impl MemoryStore {
    /// Returns how many such calls have come to the store, whatever became of them.
    #[must_use]
    pub fn calls(&self, calls: impl Into<Calls>) -> u64 {
        self.shared.faults.count(&calls.into())
    }

    /// Waits until at least `at_least` such calls have come since the store was created.
    pub async fn called(&self, calls: impl Into<Calls>, at_least: u64) {
        self.shared.faults.counted(&calls.into(), at_least).await;
    }
}

fn planned(kind: ErrorKind) -> LockError {
    LockError::new(kind, "a planned fault")
}
