//! What the suite may do to a [`MemoryStore`] behind its clients' back.

use std::sync::Mutex;

use distlock_api::{ErrorKind, LockKey};
use distlock_conformance::{Controls, FixtureError, Operation, async_trait};
use distlock_memory::{MemoryStore, Operation as Call};

/// The controls of a store: its faults hit all clients of the check.
pub(crate) struct OfStore {
    store: MemoryStore,
    /// Calls that were to fail: which, how many there had been before, and how many of them.
    planned: Mutex<Vec<(Call, u64, u32)>>,
}

impl OfStore {
    pub(crate) fn new(store: MemoryStore) -> Self {
        Self { store, planned: Mutex::default() }
    }
}

#[async_trait]
impl Controls for OfStore {
    async fn fail_next(&self, operation: Operation, times: u32) -> Result<(), FixtureError> {
        let calls: &[Call] = match operation {
            Operation::Acquire => &[Call::TryAcquire],
            Operation::Renew => &[Call::Renew, Call::RenewMany],
            Operation::Release => &[Call::Release],
            other => return Err(format!("{other:?} is not known here").into()),
        };
        for call in calls {
            self.planned.lock().unwrap().push((*call, self.store.calls(*call), times));
            (0..times).for_each(|_| self.store.fail_next(*call, ErrorKind::Unavailable));
        }
        Ok(())
    }

    async fn end_faults(&self) -> Result<u64, FixtureError> {
        self.store.clear_faults();
        let planned = self.planned.lock().unwrap().drain(..).collect::<Vec<_>>();
        let hit = |(call, before, times): (Call, u64, u32)| (self.store.calls(call) - before).min(times.into());
        Ok(planned.into_iter().map(hit).sum())
    }

    async fn purge(&self, key: &LockKey) -> Result<(), FixtureError> {
        if self.store.purge(key) { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) }
    }
}
