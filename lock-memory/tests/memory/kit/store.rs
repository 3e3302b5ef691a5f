//! Helpers of the tests of `MemoryStore`.

use distlock_api::LockKey;
use distlock_engine::store::{Claim, ProviderId};

pub(crate) fn claim_of(provider: ProviderId, key: &str) -> Claim {
    Claim::new(LockKey::new(key).unwrap(), provider.acquisition_id())
}

pub(crate) fn claim(key: &str) -> Claim {
    claim_of(ProviderId::random(), key)
}
