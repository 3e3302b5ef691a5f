//! Values of callers are returned unchanged (C20).

use distlock_api::{AcquireOptions, AcquisitionId, LockKey, Loss};
use distlock_engine::store::{Attempt, Claim, LeaseStore, Reply, Standing};

use super::Checks;
use super::world::{LONG, World, admin, busy, claim, granted, release, renew};

const ODD: [&str; 14] =
    ["$expiresAt", "$$NOW", "$$ROOT", "a.b", "a.0.b", "\0", "a\0b", "$", ".", "{}", "🔒", "e\u{301}", "é", "É"];

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C20 odd_values_come_back);
    check!(checks, C20 keys_are_independent);
    check!(checks, C20 longest_key);
}

async fn odd_values_come_back(world: World) {
    let store = world.store();
    for text in ODD {
        let key = LockKey::new(text).unwrap();
        let a = Claim::new(key.clone(), AcquisitionId::new(text));
        let said = AcquireOptions::new().with_owner(text).with_metadata(text, text).with_metadata("", "");
        let attempt = Attempt::new(a.clone(), LONG).with_holder(said.holder().clone());
        let Reply::Granted(grant) = store.try_acquire(&attempt).await.unwrap() else { panic!("{text:?} is busy") };
        busy(&store, &claim(&key)).await;
        let info = admin(&store).inspect(&key).await.unwrap().unwrap();
        assert_eq!((info.key.as_str(), info.id.as_ref().unwrap().as_str()), (text, text));
        assert_eq!(info.owner.as_deref(), Some(text));
        assert_eq!(info.metadata.get(text).map(String::as_str), Some(text));
        assert_eq!(info.metadata.len(), 2);
        assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Held { remaining: LONG });
        let taken = admin(&store).force_release(&key, text).await.unwrap().unwrap();
        assert_eq!(taken.owner.as_deref(), Some(text));
        assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Gone(Loss::ForceReleased));
        granted(&store, &a, LONG).await;
        assert!(release(&store, &a).await.is_released());
        let plain = claim(&key);
        granted(&store, &plain, LONG).await;
        let info = admin(&store).inspect(&key).await.unwrap().unwrap();
        assert_eq!((info.owner, info.metadata.len()), (None, 0), "of an earlier holder");
    }
}

async fn keys_are_independent(world: World) {
    let store = world.store();
    for text in ODD {
        granted(&store, &claim(&LockKey::new(text).unwrap()), LONG).await;
    }
}

async fn longest_key(world: World) {
    let store = world.store();
    for text in ["k".repeat(LockKey::MAX_LEN), "\0".repeat(LockKey::MAX_LEN), "🔒".repeat(LockKey::MAX_LEN / 4)] {
        let a = claim(&LockKey::new(text).unwrap());
        let grant = granted(&store, &a, LONG).await;
        assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Held { remaining: LONG });
        assert!(release(&store, &a).await.is_released());
    }
}
