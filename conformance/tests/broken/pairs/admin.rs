//! The administration of these stores.

use std::num::NonZeroUsize;
use std::time::Duration;

use distlock_api::{
    AcquisitionId, ForcedRelease, LockAdmin, LockEvent, LockEvents, LockFilter, LockInfo, LockKey, Result, async_trait,
};
use distlock_engine::LeaseStore;
use distlock_engine::store::Attempt;
use futures_util::{StreamExt, stream};

use super::{PairStore, Pairs};

impl PairStore {
    fn sound(&self) -> &dyn LockAdmin {
        self.memory.extras().admin.expect("the memory store has administration")
    }

    /// Grants the key to its first waiter, as its attempt requested.
    async fn grant_to_the_first(&self, key: &LockKey) -> Result<()> {
        let first = self.memory.waiting(key).first().cloned();
        let attempt: Option<Attempt> = first.and_then(|first| self.seen().attempts.get(&first).cloned());
        if let Some(attempt) = attempt {
            self.memory.try_acquire(&attempt).await?;
        }
        Ok(())
    }

    fn is_reported_again(&self, id: &AcquisitionId) -> bool {
        self.broken == Pairs::RepeatIsReportedAgain && self.seen().repeated.contains(id)
    }

    /// Returns an event as it is reported.
    fn reported(&self, event: LockEvent) -> LockEvent {
        match (self.broken, event) {
            (Pairs::HandOverIsReportedWithoutOwner, LockEvent::Granted { key, id, token, owner, mode }) => {
                let owner = owner.filter(|_| !self.seen().tickets.contains(&id));
                LockEvent::Granted { key, id, token, owner, mode }
            }
            (Pairs::BatchEventsHaveOneId, LockEvent::Granted { key, id, token, owner, mode }) => {
                let is_batched = self.seen().granted_by_batch.contains(&id);
                let id = if is_batched { AcquisitionId::new("batch".to_owned()) } else { id };
                LockEvent::Granted { key, id, token, owner, mode }
            }
            (Pairs::SharedReleaseIsAnExpiry, LockEvent::Released { key, id })
                if self.memory.peek(&key).is_some_and(|info| !info.holders.is_empty()) =>
            {
                LockEvent::Expired { key, id }
            }
            (Pairs::HoldIsAnExpiry, LockEvent::Released { key, id }) if self.is_closed_by_a_hold(&key) => {
                LockEvent::Expired { key, id }
            }
            (_, event) => event,
        }
    }
}

#[async_trait]
impl LockAdmin for PairStore {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let info = self.sound().inspect(key).await?;
        Ok(info.map(|mut info| {
            if self.broken == Pairs::InspectionOverstates {
                info.remaining += Duration::from_secs(1);
            }
            info
        }))
    }

    async fn force_release(&self, key: &LockKey, reason: &str) -> Result<Option<LockInfo>> {
        let taken = self.sound().force_release(key, reason).await?;
        match self.broken {
            Pairs::ForceDropsTheQueue => drop(self.memory.drop_tickets(key)),
            Pairs::ForceGrantsTheFirst => self.grant_to_the_first(key).await?,
            _ => {}
        }
        Ok(taken)
    }

    async fn force_release_holder(&self, key: &LockKey, id: &AcquisitionId, reason: &str) -> Result<Option<LockInfo>> {
        self.sound().force_release_holder(key, id, reason).await
    }

    async fn page(&self, filter: &LockFilter, after: Option<&LockKey>, limit: NonZeroUsize) -> Result<Vec<LockInfo>> {
        let mut page = self.sound().page(filter, after, limit).await?;
        if self.broken == Pairs::RepeatIsListedTwice {
            let seen = self.seen();
            let is_repeated = |info: &&LockInfo| info.id.as_ref().is_some_and(|id| seen.repeated.contains(id));
            let again: Vec<LockInfo> = page.iter().filter(is_repeated).cloned().collect();
            page.extend(again);
        }
        Ok(page)
    }

    async fn watch(&self) -> Result<LockEvents> {
        let store = self.clone();
        let events = self.sound().watch().await?;
        let reported = move |event: Result<LockEvent>| {
            let event = event.map(|event| store.reported(event));
            let again = match &event {
                Ok(granted @ LockEvent::Granted { id, .. }) if store.is_reported_again(id) => Some(Ok(granted.clone())),
                _ => None,
            };
            stream::iter([event].into_iter().chain(again))
        };
        Ok(events.flat_map(reported).boxed())
    }

    async fn release_matching(&self, filter: &LockFilter, reason: &str) -> Result<u64> {
        self.seen().is_silent = self.broken == Pairs::OwnerReleasesAreSilent;
        self.sound().release_matching(filter, reason).await
    }

    async fn history(&self, key: &LockKey) -> Result<Vec<ForcedRelease>> {
        self.sound().history(key).await
    }
}
