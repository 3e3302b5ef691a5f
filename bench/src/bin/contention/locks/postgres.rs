//! The engine over `PostgresStore` of `examples/postgres`, as applications would hold it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use distlock_api::{LeaseOptions, ReleaseOutcome, Result};
use distlock_engine::store::{
    Attempt, BatchRenewStore, Claim, QueueStore, Release, Renewal, Reply, Standing, StoreCapabilities, StoreExtras,
};
use distlock_engine::{LeaseProvider, LeaseStore};
use distlock_example_postgres::PostgresStore;

use super::{Locks, Settings, ours};
use crate::Outcome;
use crate::commands::Monitor;

pub(super) fn connect(
    uri: &str,
    schema: &str,
    settings: Settings,
    monitor: Option<&Arc<Monitor>>,
) -> Outcome<Arc<dyn Locks>> {
    let store = PostgresStore::parse(uri)?.schema(schema).build()?;
    let store: Arc<dyn LeaseStore> = match monitor {
        Some(monitor) => Arc::new(Counted { store, monitor: Arc::clone(monitor) }),
        None => Arc::new(store),
    };
    let builder = LeaseProvider::builder(store).lease(LeaseOptions::new().ttl(settings.ttl()));
    let builder = if settings.hand_off { builder } else { builder.without_hand_off() };
    let provider = if settings.queue { builder } else { builder.without_queue() }.build()?;
    Ok(ours::locks(Arc::new(provider), settings))
}

/// Counts the requests of the engine, each of which the store sends as one statement. The driver
/// has no command monitoring.
#[derive(Debug)]
struct Counted {
    store: PostgresStore,
    monitor: Arc<Monitor>,
}

#[async_trait]
impl LeaseStore for Counted {
    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    fn name(&self) -> &str {
        self.store.name()
    }

    async fn try_acquire(&self, attempt: &Attempt) -> Result<Reply> {
        self.monitor.sent("acquire");
        self.store.try_acquire(attempt).await
    }

    async fn renew(&self, renewal: &Renewal) -> Result<Standing> {
        self.monitor.sent("renew");
        self.store.renew(renewal).await
    }

    async fn release(&self, release: &Release) -> Result<ReleaseOutcome> {
        self.monitor.sent("release");
        self.store.release(release).await
    }

    async fn withdraw(&self, claim: &Claim, timeout: Duration) -> Result<()> {
        self.monitor.sent("release");
        self.store.withdraw(claim, timeout).await
    }

    fn extras(&self) -> StoreExtras<'_> {
        let mut extras = self.store.extras();
        extras.queue = Some(self);
        extras.batch_renew = Some(self);
        extras
    }
}

#[async_trait]
impl QueueStore for Counted {
    async fn waiters(&self, claim: &Claim, timeout: Duration) -> Result<u32> {
        self.monitor.sent("waiters");
        self.store.waiters(claim, timeout).await
    }
}

#[async_trait]
impl BatchRenewStore for Counted {
    async fn renew_many(&self, renewals: &[Renewal]) -> Vec<Result<Standing>> {
        self.monitor.sent("renew");
        self.store.renew_many(renewals).await
    }
}
