//! The processes that compete: a provider for each.

use std::sync::Arc;

use distlock_api::{ErrorKind, LockError, LockKey, LockProvider};
use distlock_memory::{MemoryStore, Operation};
use distlock_mongo::MongoProvider;
use distlock_mongo::mongodb::Client;

/// Providers of one store, and one whose store does not answer.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) a: Arc<dyn LockProvider>,
    pub(crate) b: Arc<dyn LockProvider>,
    /// It takes one token with each lease, where the others take a block.
    pub(crate) single: Arc<dyn LockProvider>,
    pub(crate) broken: Arc<dyn LockProvider>,
}

impl Fleet {
    pub(crate) fn in_memory(store: MemoryStore) -> Self {
        let unreachable = MemoryStore::new();
        unreachable.fail_always(Operation::TryAcquire, ErrorKind::Unavailable);
        let single = Arc::new(store.builder().without_hand_off().build().expect("valid options"));
        let (a, b) = (Arc::new(store.provider()), Arc::new(store.provider()));
        Self { a, b, single, broken: Arc::new(unreachable.provider()) }
    }

    pub(crate) async fn on_mongodb(uri: &str) -> Self {
        let collection = format!("leadership_{:016x}", fastrand::u64(..));
        let builder = async |uri: &str| {
            let client = Client::with_uri_str(uri).await.expect("a client");
            MongoProvider::builder_from_client(&client).database("distlock_test").collection(&collection)
        };
        let locks = async |uri: &str| Arc::new(builder(uri).await.build().expect("valid options"));
        let single = Arc::new(builder(uri).await.without_hand_off().build().expect("valid options"));
        let unreachable = "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=200";
        Self { a: locks(uri).await, b: locks(uri).await, single, broken: locks(unreachable).await }
    }

    pub(crate) async fn close(&self) -> Result<(), LockError> {
        self.a.close().await?;
        self.b.close().await?;
        self.single.close().await
    }
}

pub(crate) fn key() -> LockKey {
    LockKey::new(format!("leader-{:016x}", fastrand::u64(..))).expect("a key")
}
