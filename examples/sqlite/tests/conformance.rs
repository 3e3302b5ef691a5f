//! The conformance suite on this store.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::{Capabilities, LockProvider};
use distlock_conformance::{Client, DisturbedStore, Fixture, FixtureError, Profile, async_trait, fetch, run_one};
use distlock_engine::{LeaseProvider, LeaseStore, QueueOptions};
use distlock_example_sqlite::SqliteStore;

fn main() -> ExitCode {
    let folder = fetch::memory_dir().map_or_else(std::env::temp_dir, Path::to_path_buf);
    run_one(Sqlite(folder.join(format!("distlock-sqlite-{:016x}", fastrand::u64(..)))))
}

/// A file in a folder of its own. Each client opens it for itself.
struct Sqlite(PathBuf);

#[async_trait]
impl Fixture for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        (promised.expiry, promised.minimum_hold, promised.fair) = (true, true, true);
        (promised.shared, promised.permits) = (true, true);
        let profile = Profile::new(promised).ttl(Duration::from_secs(2)).processes().admin().store();
        // Refused: lists and owners, events, pushed hand-overs, purging, outcomes of work, arenas.
        profile.disturbed().expected_refusals(74)
    }

    async fn start(&self) -> Result<(), FixtureError> {
        Ok(std::fs::create_dir(&self.0)?)
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let store = DisturbedStore::new(Arc::new(SqliteStore::open(self.0.join("locks")).await?));
            // Longer than a busy test machine stalls: a missed claim loses its place in the queue.
            let queue = QueueOptions::new().claim(Duration::from_secs(3));
            clients.push(Client::of_disturbed(store, |engine| engine.queue(queue))?);
        }
        Ok(clients)
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::new(SqliteStore::open(self.0.join("locks")).await?))
    }

    fn address(&self) -> Option<String> {
        Some(self.0.join("locks").display().to_string())
    }

    async fn connect(&self, address: &str) -> Result<Arc<dyn LockProvider>, FixtureError> {
        Ok(Arc::new(LeaseProvider::new(Arc::new(SqliteStore::open(address).await?))))
    }

    async fn stop(&self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
