//! Crate `distributed-lock-mongo`.

use std::sync::Arc;

use async_trait::async_trait;
use distributed_lock_core::traits::{DistributedLock, LockHandle};
use distributed_lock_mongo::handle::MongoLockHandle;
use distributed_lock_mongo::{MongoDistributedLock, MongoDistributedLockOptions};
use mongodb::{Client, Database};

use super::{Held, Locks, PATIENCE, PEERS_POLL, Settings};
use crate::Outcome;

struct Peer {
    database: Database,
    options: MongoDistributedLockOptions,
}

pub(super) fn new(client: &Client, database: &str, settings: Settings) -> Arc<dyn Locks> {
    let options = MongoDistributedLockOptions {
        expiry: settings.ttl(),
        min_busy_wait_sleep_time: PEERS_POLL,
        ..MongoDistributedLockOptions::default()
    };
    Arc::new(Peer { database: client.database(database), options })
}

#[async_trait]
impl Locks for Peer {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        let lock = MongoDistributedLock::new(key.to_owned(), self.database.clone(), None, Some(self.options.clone()));
        Ok(Box::new(Handle(lock.acquire(Some(PATIENCE)).await?)))
    }
}

struct Handle(MongoLockHandle);

#[async_trait]
impl Held for Handle {
    async fn release(self: Box<Self>) -> Outcome<()> {
        Ok(self.0.release().await?)
    }
}
