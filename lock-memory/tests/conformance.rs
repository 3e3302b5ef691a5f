//! Both backends of this crate keep the contract, and one of them does so behind a wrapper.
//!
//! At the level standard they also do so where the store is [slow](Slowness) in ways that break no
//! promise. So this is twenty runs:
//!
//! ```sh
//! export DISTLOCK_CONFORMANCE_LEVEL=standard
//! cargo test -p distlock-memory --test conformance -- --rounds 20 memory-slow
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Capabilities, LockProvider, Namespaced};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Level, Profile, Slowness, async_trait, run};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_memory::{MemoryOnce, MemoryProvider, MemoryStore};
use distlock_recipes::once::OnceProvider;

fn main() -> ExitCode {
    let fast: [Box<dyn Fixture>; 3] = [Box::new(Direct), Box::new(Engine::default()), Box::new(Wrapped)];
    let slow = slow().into_iter().map(|engine| Box::new(engine) as Box<dyn Fixture>);
    run(fast.into_iter().chain(slow))
}

/// The stores that are slow: at the level standard, because they wait for a minute each.
fn slow() -> Vec<Engine> {
    let (level, needed) = (Level::from_env().expect("a level"), Level::Standard);
    if level < needed {
        let (number, variable) = (Slowness::ALL.len(), Level::VARIABLE);
        eprintln!("distlock: left out: {number} stores that are slow ({variable}={needed} runs them)");
        return Vec::new();
    }
    let engine = |slowness: &Slowness| {
        let name = format!("memory-slow-{slowness}");
        Engine { slowness: Some(*slowness), name, ..Engine::default() }
    };
    Slowness::ALL.iter().map(engine).collect()
}

/// Many times what a request takes in memory.
const SHORT: Duration = Duration::from_millis(1500);

/// [`MemoryProvider`]: locks of tasks and threads, without leases.
struct Direct;

fn direct() -> Profile {
    let mut promised = Capabilities::default();
    promised.minimum_hold = true;
    promised.fair = true;
    promised.push = true;
    promised.shared = true;
    promised.permits = true;
    // Refused: what needs a lease store, expiry, other processes, separate clients, faults,
    // purging, a deployment, or outcomes of work.
    Profile::new(promised).ttl(SHORT).admin().owners().lock_events().one_provider().expected_refusals(203)
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
        direct().once().expected_refusals(186)
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
struct Engine {
    name: String,
    /// The store of the checks below the engine.
    bare: MemoryStore,
    slowness: Option<Slowness>,
}

impl Default for Engine {
    fn default() -> Self {
        Self { name: "memory-engine".to_owned(), bare: MemoryStore::new(), slowness: None }
    }
}

impl Engine {
    /// Connects another client to a store.
    fn connect(&self, store: &MemoryStore) -> DisturbedStore {
        let client = DisturbedStore::new(Arc::new(store.clone()));
        match self.slowness {
            Some(slowness) => client.slowed(slowness),
            None => client,
        }
    }
}

#[async_trait]
impl Fixture for Engine {
    fn name(&self) -> &str {
        &self.name
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        promised.minimum_hold = true;
        promised.fair = true;
        promised.push = true;
        promised.shared = true;
        promised.permits = true;
        // Refused: what needs other processes, or a deployment.
        let profile = Profile::new(promised).once().admin().owners().lock_events().purge().disturbed().store();
        // Many times what a request takes: a lease outlives the longest stall of a slow store.
        let ttl = match self.slowness {
            None => SHORT,
            Some(Slowness::Stalls) => Duration::from_secs(6),
            Some(_) => Duration::from_secs(3),
        };
        let profile = profile.ttl(ttl).expected_refusals(29);
        if self.slowness.is_some() { profile.variant() } else { profile }
    }

    async fn start(&self) -> Result<(), FixtureError> {
        if let Some(slowness) = self.slowness {
            eprintln!("distlock: {}: {slowness:?}", self.name);
        }
        Ok(())
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::new(self.connect(&self.bare)))
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let store = MemoryStore::new();
        // Longer than busy test machines stall: a waiter that misses its claim stands behind the
        // others.
        let queue = QueueOptions::new().claim(Duration::from_secs(3));
        let client = || {
            let memory = store.clone();
            let disturbed = self.connect(&store).with_purge(move |key| {
                let is_used = memory.peek(&key).is_some() || !memory.waiting(&key).is_empty();
                let purged = !is_used && memory.purge(&key);
                async move { if purged { Ok(()) } else { Err(format!("there is no unused record of {key:?}").into()) } }
            });
            Client::of_disturbed(disturbed, |engine| engine.queue(queue))
        };
        (0..count).map(|_| client()).collect()
    }

    async fn once_clients(&self, count: usize) -> Result<Vec<Arc<dyn OnceProvider>>, FixtureError> {
        let store = MemoryStore::new();
        let provider = || LeaseProvider::new(Arc::new(self.connect(&store)));
        let once = MemoryOnce::with_locks(provider());
        Ok((0..count).map(|_| Arc::new(once.twin(provider())) as Arc<dyn OnceProvider>).collect())
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
