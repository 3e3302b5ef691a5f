//! The first store of the tutorial keeps what its profile declares.

pub mod mine;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distlock_api::Capabilities;
use distlock_conformance::{Client, Fixture, FixtureError, Profile, async_trait, run_one};
use distlock_engine::LeaseStore;
use mine::MyStore;

fn main() -> ExitCode {
    run_one(Mine(MyStore::default()))
}

/// One store. Its clones are the clients.
struct Mine(MyStore);

#[async_trait]
impl Fixture for Mine {
    fn name(&self) -> &str {
        "mine"
    }

    fn profile(&self) -> Profile {
        let mut promised = Capabilities::default();
        promised.expiry = true;
        Profile::new(promised).ttl(Duration::from_secs(1)).store().disturbed().expected_refusals(192)
    }

    async fn clients(&self, count: usize) -> Result<Vec<Client>, FixtureError> {
        Ok((0..count).map(|_| Client::of_store(self.0.clone())).collect())
    }

    async fn store(&self) -> Result<Arc<dyn LeaseStore>, FixtureError> {
        Ok(Arc::new(self.0.clone()))
    }
}
