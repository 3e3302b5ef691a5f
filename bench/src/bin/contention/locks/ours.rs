//! `distlock-mongo` as applications hold it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{LeaseOptions, LockGuard, LockProvider, LockProviderExt, Mode};
use distlock_mongo::{HandOff, MongoProvider};
use mongodb::Client;

use super::{Held, Locks, Settings};
use crate::Outcome;

struct Ours {
    provider: Arc<dyn LockProvider>,
    mode: Mode,
}

pub(super) async fn connect(client: &Client, database: &str, settings: Settings) -> Outcome<Arc<dyn Locks>> {
    Ok(locks(Arc::new(provider(client, database, settings).await?), settings))
}

/// The locks of a provider of ours, whatever its backend.
pub(super) fn locks(provider: Arc<dyn LockProvider>, settings: Settings) -> Arc<dyn Locks> {
    Arc::new(Ours { provider, mode: settings.mode.into() })
}

/// The only place that configures ours.
pub async fn provider(client: &Client, database: &str, settings: Settings) -> Outcome<MongoProvider> {
    let lease = LeaseOptions::new().ttl(settings.ttl());
    let builder = MongoProvider::builder_from_client(client).database(database).lease(lease);
    let limits = HandOff::new().linger(Duration::from_millis(settings.linger_ms));
    let builder = if settings.hand_off { builder.hand_off(limits) } else { builder.without_hand_off() };
    let provider = if settings.queue { builder } else { builder.without_queue() }.build()?;
    provider.prepare().await?;
    Ok(provider)
}

#[async_trait]
impl Locks for Ours {
    async fn acquire(&self, key: &str) -> Outcome<Box<dyn Held>> {
        Ok(Box::new(Guard(self.provider.acquire(key).mode(self.mode).await?)))
    }
}

struct Guard(LockGuard);

#[async_trait]
impl Held for Guard {
    fn token(&self) -> Option<u64> {
        Some(self.0.fencing_token().get())
    }

    fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    async fn release(self: Box<Self>) -> Outcome<()> {
        let outcome = self.0.release().await?;
        if outcome.is_released() { Ok(()) } else { Err("the lease was lost before it was released".into()) }
    }
}
