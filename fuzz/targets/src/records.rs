//! Records as values, which a store loads as it finds them.

use std::time::{Duration, UNIX_EPOCH};

use distlock_api::{AcquisitionId, FencingToken, LockKey, Mode};
use distlock_engine::record::{ForceRelease, Record};
use distlock_engine::store::{Attempt, Claim, Release, Renewal, Reply, Ticket};

/// Reads bytes as a record, and carries out each request on it: none is granted a key that the
/// record says is held.
///
/// # Panics
/// If that is not so.
pub fn records(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return };
    let (key, now, ttl) = (LockKey::new("k").expect("a key"), Duration::from_secs(3600), Duration::from_secs(30));
    let info = record.describe(&key, now);
    let is_closed = info.is_some_and(|info| info.holders.is_empty() || info.id.is_none());
    let (_, _, _) = (record.token(), record.history().count(), record.waiting(now).count());
    let ids = ["a", "b"].map(AcquisitionId::new).into_iter().chain(record.lease_ids().cloned());
    for id in ids.collect::<Vec<_>>() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { take: 1, of: 2 }] {
            let claim = Claim::new(key.clone(), id.clone()).with_mode(mode);
            let attempt = Attempt::new(claim.clone(), ttl);
            let token = FencingToken::new(record.token());
            let mut changed = record.clone();
            let reply = changed.step(&attempt, now);
            let is_other = !record.lease_ids().any(|own| *own == id);
            if let Reply::Granted(_) = reply {
                assert!(!(is_closed && is_other), "{record:?} was granted to {claim:?}");
            }
            changed.step(&Renewal::lease(claim.clone(), token, ttl), now);
            changed.step(&Release::new(claim.clone()), now);
            let queued = attempt.clone().with_ticket(Ticket::new(ttl, ttl, 8));
            changed.step(&queued, now);
            changed.step(&ForceRelease::new(key.clone(), UNIX_EPOCH, "why"), now);
            changed.step(&queued, now + ttl);
            let _ = changed.release_to_none(&Release::new(claim), now);
            changed.expire(now);
        }
    }
}
