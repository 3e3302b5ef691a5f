//! Administration (C22).

use distlock_api::{AcquireOptions, Loss, ReleaseOutcome};
use distlock_engine::store::{LeaseStore, Release, Standing};
use distlock_mongo::mongodb::bson::doc;

use super::Checks;
use super::world::{LONG, World, admin, busy, claim, granted, key, release, renew};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C22 force_release);
    check!(checks, C22 force_release_opens_a_minimum_hold);
    check!(checks, C22 audit_is_bounded);
    check!(checks, inspect_returns_the_state);
}

async fn force_release(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    assert_eq!(admin(&store).force_release(&key, "no record").await.unwrap(), None);
    let grant = granted(&store, &a, LONG).await;
    let info = admin(&store).force_release(&key, "stuck").await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.token), (Some(a.id()), grant.token));
    assert_eq!(admin(&store).force_release(&key, "twice").await.unwrap(), None);

    let next = granted(&store, &b, LONG).await;
    assert!(next.token.get() > grant.token.get() + 1, "the token advances by the force-release itself");
    assert_eq!(renew(&store, &a, grant.token, LONG).await, Standing::Gone(Loss::ForceReleased));
    assert_eq!(release(&store, &a).await, ReleaseOutcome::AlreadyLost);
    busy(&store, &a).await;
    assert_eq!(renew(&store, &b, next.token, LONG).await, Standing::Held { remaining: LONG });
}

/// A key that is closed only by a minimum hold has no holder. The operator opens it, too.
async fn force_release_opens_a_minimum_hold(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (claim(&key), claim(&key));
    let grant = granted(&store, &a, LONG).await;
    let quick = Release::new(a.clone()).with_hold_at_least(LONG);
    assert_eq!(store.release(&quick).await.unwrap(), ReleaseOutcome::Released);
    busy(&store, &b).await;
    let info = admin(&store).force_release(&key, "closed").await.unwrap().expect("it was closed");
    assert_eq!((info.id, info.token), (None, grant.token));
    assert!(!info.remaining.is_zero());
    assert_eq!(admin(&store).force_release(&key, "twice").await.unwrap(), None);
    assert_eq!(admin(&store).inspect(&key).await.unwrap(), None);
    let history = admin(&store).history(&key).await.unwrap();
    let entries: Vec<_> = history.iter().map(|entry| (entry.id.as_ref(), &*entry.reason)).collect();
    assert_eq!(entries, [(None, "closed")]);
    let next = granted(&store, &b, LONG).await;
    assert!(next.token.get() > grant.token.get() + 1, "the token advances by the force-release itself");
}

async fn audit_is_bounded(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let mut ids = Vec::new();
    for round in 0..7 {
        let a = claim(&key);
        granted(&store, &a, LONG).await;
        let reason = if round == 6 { "é".repeat(5000) } else { format!("$reason {round}") };
        admin(&store).force_release(&key, &reason).await.unwrap().unwrap();
        ids.push(a.id().as_str().to_owned());
    }
    let record = world.raw(&name).find_one(doc! { "_id": key.as_str() }).await.unwrap().unwrap();
    let audit = record.get_array("audit").unwrap();
    let entries: Vec<_> = audit.iter().map(|entry| entry.as_document().unwrap()).collect();
    assert_eq!(entries.iter().map(|entry| entry.get_str("lockId").unwrap()).collect::<Vec<_>>(), ids[2..]);
    assert_eq!(entries[0].get_str("why").unwrap(), "$reason 2");
    assert_eq!(entries[4].get_str("why").unwrap().len(), 1024);
    assert!(entries[4].get_datetime("at").is_ok() && entries[4].get_i64("token").is_ok());
}

async fn inspect_returns_the_state(world: World) {
    use distlock_engine::store::{Attempt, LeaseStore};
    let store = world.store();
    let key = key();
    assert_eq!(admin(&store).inspect(&key).await.unwrap(), None);
    let a = claim(&key);
    let said = AcquireOptions::new().with_owner("host-7").with_metadata("job", "nightly");
    store.try_acquire(&Attempt::new(a.clone(), LONG).with_holder(said.holder().clone())).await.unwrap();
    let info = admin(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!(info.id.as_ref(), Some(a.id()));
    assert_eq!(info.owner.as_deref(), Some("host-7"));
    assert_eq!(info.metadata["job"], "nightly");
    assert!(info.remaining > LONG / 2 && info.remaining <= LONG);
    assert!(release(&store, &a).await.is_released());
    assert_eq!(admin(&store).inspect(&key).await.unwrap(), None);
}
