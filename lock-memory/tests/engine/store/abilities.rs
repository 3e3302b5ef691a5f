//! What a store of these tests can do, as one value.

use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};

use distlock_engine::LeaseStore;
use distlock_engine::store::StoreCapabilities;
use distlock_memory::MemoryStore;

/// The capabilities of a store, its extras, and the sizes of its batches.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    pub(crate) queue: bool,
    pub(crate) push: bool,
    pub(crate) renew_batch: NonZeroUsize,
    pub(crate) acquire_batch: NonZeroUsize,
    requests: StoreCapabilities,
}

impl Abilities {
    /// Those of a memory store.
    pub(crate) fn of(store: &MemoryStore) -> Self {
        let extras = store.extras();
        Self {
            queue: extras.queue.is_some(),
            push: extras.events.is_some(),
            renew_batch: extras.batch_renew.expect("it makes batches").renew_batch(),
            acquire_batch: NonZeroUsize::MIN,
            requests: store.capabilities(),
        }
    }

    pub(crate) fn all() -> Self {
        Self::of(&MemoryStore::new())
    }

    pub(crate) fn none() -> Self {
        Self { queue: false, push: false, requests: StoreCapabilities::default(), ..Self::all() }
    }

    /// Returns a handle to a memory store that can do this much.
    pub(crate) fn limit(&self, store: &MemoryStore) -> MemoryStore {
        store.clone().with_capabilities(self.requests).with_queue(self.queue).with_events(self.push)
    }

    /// Returns a new memory store that can do this much.
    pub(crate) fn memory(&self) -> MemoryStore {
        self.limit(&MemoryStore::new())
    }
}

impl Deref for Abilities {
    type Target = StoreCapabilities;

    fn deref(&self) -> &StoreCapabilities {
        &self.requests
    }
}

impl DerefMut for Abilities {
    fn deref_mut(&mut self) -> &mut StoreCapabilities {
        &mut self.requests
    }
}
