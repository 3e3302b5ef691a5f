//! Both backends of this crate keep the contract, and one of them does so behind a wrapper.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::once::OnceProvider;
use distlock_api::{Capabilities, LockProvider, Namespaced};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Profile, async_trait, run};
use distlock_engine::{LeaseStore, QueueOptions};
use distlock_memory::{MemoryOnce, MemoryProvider, MemoryStore};

fn main() -> ExitCode {
    run([Box::new(Direct) as Box<dyn Fixture>, Box::new(Engine::default()), Box::new(Wrapped)])
}

/// [`MemoryProvider`]: locks of tasks and threads, without leases.
struct Direct;

fn direct() -> Profile {
    let mut promised = Capabilities::default();
    promised.minimum_hold = true;
    promised.fair = true;
    promised.push = true;
    promised.shared = true;
    promised.permits = true;
    // Refused: what needs a lease store, expiry, other processes, separate clients, faults or
    // purging.
    Profile::new(promised).admin().owners().lock_events().one_provider().expected_refusals(124)
}

fn clones<P: LockProvider + Clone>(provider: P, count: usize) -> Vec<Client> {
    (0..count).map(|_| Client::new(Arc::new(provider.clone()))).collect()
}

#[async_trait]
impl Fixture for Direct {
    fn name(&self) -> &str {
        "memory-direct"
    }

    fn profile(&self) -> Profile {
        // Work of holders that vanish needs expiry, too.
        direct().once().expected_refusals(128)
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        Ok(clones(MemoryProvider::new(), count))
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        let once = MemoryOnce::new();
        Ok((0..count).map(|_| Arc::new(once.clone()) as Arc<dyn OnceProvider>).collect())
    }
}

/// The lease engine over a [`MemoryStore`]; each client is an engine of its own.
#[derive(Default)]
struct Engine {
    /// The store of the checks below the engine.
    bare: MemoryStore,
}

#[async_trait]
impl Fixture for Engine {
    fn name(&self) -> &str {
        "memory-engine"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        promised.fair = true;
        promised.push = true;
        promised.shared = true;
        promised.permits = true;
        // Refused: what needs other processes.
        let profile = Profile::new(promised).once().admin().owners().lock_events().purge().disturbed().store();
        profile.expected_refusals(10)
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::new(self.bare.clone()))
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let store = MemoryStore::new();
        // Longer than busy test machines stall: a waiter that misses its claim stands behind the
        // others.
        let queue = QueueOptions::new().claim(Duration::from_secs(3));
        let client = || {
            let memory = store.clone();
            let disturbed = DisturbedStore::new(Arc::new(store.clone())).with_purge(move |key| {
                let purged = memory.purge(&key);
                async move { if purged { Ok(()) } else { Err(format!("there is no record of {key:?}").into()) } }
            });
            Client::of_disturbed(disturbed, |engine| engine.queue(queue))
        };
        (0..count).map(|_| client()).collect()
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        let store = MemoryStore::new();
        let once = MemoryOnce::with_locks(store.provider());
        Ok((0..count).map(|_| Arc::new(once.twin(store.provider())) as Arc<dyn OnceProvider>).collect())
    }
}

/// A provider behind pointers and a wrapper, as applications use it.
struct Wrapped;

const NAMESPACE: &str = "tenant-1";

#[async_trait]
impl Fixture for Wrapped {
    fn name(&self) -> &str {
        "memory-dyn"
    }

    fn profile(&self) -> Profile {
        direct().longest_key(distlock_api::LockKey::MAX_LEN - NAMESPACE.len() - 1)
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let provider: Arc<dyn LockProvider> = Arc::new(MemoryProvider::new());
        Ok(clones(Namespaced::new(provider, NAMESPACE)?, count))
    }
}
