//! Crate `mongo-lock`, which blocks its thread and comes with an older driver.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mongo_lock::Lock;
use mongodb2::options::ClientOptions;
use mongodb2::sync::Client;
use tokio::task::spawn_blocking;

use super::{Held, Locks, PATIENCE, PEERS_POLL, Settings};
use crate::Outcome;
use crate::commands::Monitor;

struct Peer {
    client: Client,
    ttl: Duration,
}

pub(super) async fn connect(
    uri: &str,
    database: &str,
    settings: Settings,
    monitor: Arc<Monitor>,
) -> Outcome<Arc<dyn Locks>> {
    let (uri, database) = (uri.to_owned(), database.to_owned());
    let client = spawn_blocking(move || -> Outcome<Client> {
        let mut options = ClientOptions::parse(uri)?;
        options.default_database = Some(database);
        options.command_event_handler = Some(monitor);
        let client = Client::with_options(options)?;
        mongo_lock::prepare_database(&client).map_err(|error| error.to_string())?;
        Ok(client)
    });
    Ok(Arc::new(Peer { client: client.await??, ttl: settings.ttl() }))
}

#[async_trait]
impl Locks for Peer {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        let (client, key, ttl) = (self.client.clone(), key.to_owned(), self.ttl);
        let asking = spawn_blocking(move || Lock::try_acquire_with_timeout(&client, &key, ttl, PATIENCE, PEERS_POLL));
        match asking.await? {
            Ok(Some(lock)) => Ok(Box::new(Guard(lock))),
            Ok(None) => Err("not granted in time".into()),
            Err(error) => Err(error.to_string().into()),
        }
    }
}

struct Guard(Lock);

#[async_trait]
impl Held for Guard {
    async fn release(self: Box<Self>) -> Outcome<()> {
        // Its errors reach no caller: the crate drops them.
        Ok(spawn_blocking(move || drop(self.0)).await?)
    }
}
