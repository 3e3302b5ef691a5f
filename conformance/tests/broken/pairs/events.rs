//! What these stores push to providers.

use std::time::Duration;

use distlock_api::{FencingToken, Result, async_trait};
use distlock_engine::store::{EventStore, EventStream, StoreEvent, StoreTime, Watch};
use futures_util::StreamExt;

use super::{PairStore, Pairs};

/// By how much [`Pairs::PushesALateExpiry`] is late.
const LATE: Duration = Duration::from_secs(1);

impl PairStore {
    /// Returns an event as it is pushed, or `None`.
    fn pushed(&self, event: StoreEvent) -> Option<StoreEvent> {
        match (self.broken, event) {
            (Pairs::HoldIsNotPushed, StoreEvent::Freed { key }) if self.is_closed_by_a_hold(&key) => None,
            (Pairs::OwnerReleasesAreSilent, StoreEvent::Gone { .. }) if self.seen().is_silent => None,
            (Pairs::BatchPushesNothing, StoreEvent::Granted { key, .. }) if self.seen().batched.contains(&key) => None,
            (Pairs::PushesALateExpiry, StoreEvent::Granted { key, id, grant, expires_at }) => {
                let elapsed = expires_at.saturating_since(StoreTime::since_origin(Duration::ZERO));
                let expires_at = StoreTime::since_origin(elapsed + LATE);
                Some(StoreEvent::Granted { key, id, grant, expires_at })
            }
            (Pairs::PushesATokenTooHigh, StoreEvent::Gone { key, id, token, loss }) => {
                Some(StoreEvent::Gone { key, id, token: FencingToken::new(token.get() + 100), loss })
            }
            (_, event) => Some(event),
        }
    }
}

#[async_trait]
impl EventStore for PairStore {
    async fn subscribe(&self, watch: &Watch) -> Result<EventStream> {
        let store = self.clone();
        let pushed = move |event: Result<StoreEvent>| match event {
            Ok(event) => store.pushed(event).map(Ok),
            error => Some(error),
        };
        Ok(self.memory.subscribe(watch).await?.filter_map(move |event| std::future::ready(pushed(event))).boxed())
    }
}
