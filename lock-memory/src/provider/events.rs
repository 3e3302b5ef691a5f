//! The events that watchers of a provider receive.

use distlock_api::style::contained;
use distlock_api::{AcquisitionId, FencingToken, Holder, LockEvent, LockKey, Mode};
use distlock_engine::store::ProviderId;
use tokio::sync::broadcast::Sender;

/// Sends the events of one provider. Used under the lock of the shard, so that the events of a key
/// keep their order: the tasks of watchers are woken there.
#[derive(Clone)]
pub(super) struct EventSender {
    pub(super) provider: ProviderId,
    pub(super) defaults: Holder,
    pub(super) events: Sender<LockEvent>,
}

impl EventSender {
    pub(super) fn granted(&self, key: &LockKey, token: u64, mode: Mode, holder: Option<&Holder>) {
        let owner = holder.and_then(|holder| holder.owner.as_deref()).or(self.defaults.owner.as_deref());
        self.send(LockEvent::Granted {
            key: key.clone(),
            id: acquisition_id(self.provider, token, key),
            token: FencingToken::new(token),
            owner: owner.map(str::to_owned),
            mode,
        });
    }

    pub(super) fn released(&self, key: &LockKey, token: u64) {
        self.send(LockEvent::Released { key: key.clone(), id: acquisition_id(self.provider, token, key) });
    }

    pub(super) fn force_released(&self, key: &LockKey, token: u64) {
        self.send(LockEvent::ForceReleased { key: key.clone(), id: acquisition_id(self.provider, token, key) });
    }

    fn send(&self, event: LockEvent) {
        // A waker that panics must not leave the state half changed. An error means that no watcher
        // is left.
        contained(|| drop(self.events.send(event)));
    }
}

/// Returns the id of one acquisition: a key's tokens never repeat within a provider.
pub(super) fn acquisition_id(provider: ProviderId, token: u64, key: &LockKey) -> AcquisitionId {
    AcquisitionId::new(format!("{provider}-{token}-{}", key.as_str()))
}
