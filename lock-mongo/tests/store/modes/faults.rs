//! Lost replies, stragglers and stalls in a mode that is not exclusive.

use std::time::Duration;

use distlock_api::ReleaseOutcome::Released;
use distlock_engine::store::{Attempt, LeaseStore, QueueStore, Release, Renewal, Standing};
use distlock_mongo::mongodb::bson::doc;

use super::{claim_in, holders, permits, reader};
use crate::Checks;
use crate::faults::withdrawn_while_it_hangs;
use crate::world::{LONG, World, claim, granted, key, queued, random_name, release, renew};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, alone C10 a_write_concern_error_beside_holders);
    if checks.is_replica_set() {
        check!(checks, alone C10 lost_replies_beside_holders);
        check!(checks, alone R11 a_straggler_does_not_join);
        check!(checks, R2 a_release_that_stalls_leaves_the_others);
        check!(checks, R2 a_renewal_that_stalls_extends_its_own_holder);
    }
}

async fn a_write_concern_error_beside_holders(world: World) {
    let (store, app, _) = world.store_of_app().await;
    let failure = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    let key = key();
    granted(&store, &reader(&key), LONG).await;
    let a = reader(&key);
    world.fail(&app, "findAndModify", failure.clone()).await;
    assert!(store.try_acquire(&Attempt::new(a.clone(), LONG)).await.unwrap_err().is_outcome_unknown());
    assert_eq!(holders(&store, &key).await.len(), 2);
    granted(&store, &a, LONG).await;
    assert_eq!(holders(&store, &key).await.len(), 2);
    world.fail(&app, "findAndModify", failure).await;
    assert!(store.release(&Release::new(a.clone())).await.unwrap_err().is_outcome_unknown());
    assert_eq!(release(&store, &a).await, Released, "repeated");
    assert_eq!(holders(&store, &key).await.len(), 1);
}

async fn lost_replies_beside_holders(world: World) {
    let store = world.store();
    let key = key();
    let lose_reply =
        || world.admin(doc! { "configureFailPoint": "onPrimaryTransactionalWrite", "mode": { "times": 1 } });
    let [a, b] = [(); 2].map(|()| claim_in(permits(1, 2), &key));
    granted(&store, &a, LONG).await;
    lose_reply().await;
    assert!(store.try_acquire(&Attempt::new(b.clone(), LONG)).await.unwrap_err().is_outcome_unknown());
    let before = holders(&store, &key).await;
    assert_eq!(before, [a.id().clone(), b.id().clone()], "it was applied");
    granted(&store, &b, LONG).await;
    assert_eq!(holders(&store, &key).await, before, "once");
    // A release whose reply was lost grants once.
    let waiting = [(); 2].map(|()| claim_in(permits(1, 2), &key));
    for claim in &waiting {
        queued(&store, claim).await;
    }
    lose_reply().await;
    assert!(store.release(&Release::new(a.clone())).await.unwrap_err().is_outcome_unknown());
    assert_eq!(release(&store, &a).await, Released, "repeated");
    assert_eq!(holders(&store, &key).await, [b.id().clone(), waiting[0].id().clone()]);
    assert_eq!(store.waiters(&b, LONG).await.unwrap(), 1);
}

async fn a_straggler_does_not_join(world: World) {
    let (client, app, sent) = world.recorded_client_of_app().await;
    let store = world.store_on(&client, &random_name("locks"));
    let key = key();
    granted(&store, &reader(&key), LONG).await;
    let a = reader(&key);
    withdrawn_while_it_hangs(&world, (&*app, &sent), &store, &a).await;
    assert_eq!(holders(&store, &key).await.len(), 1, "the straggler joined");
}

/// Behind another transaction, beyond the end of the lease that it releases.
async fn a_release_that_stalls_leaves_the_others(world: World) {
    let (store, name) = world.named_store();
    store.prepare().await.unwrap();
    let key = key();
    let ttl = Duration::from_secs(5);
    let (brief, long, writer, behind) = (reader(&key), reader(&key), claim(&key), reader(&key));
    granted(&store, &brief, ttl).await;
    let token = granted(&store, &long, LONG).await.token;
    queued(&store, &writer).await;
    queued(&store, &behind).await;
    let mut other = world.client.start_session().await.unwrap();
    other.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "touched": true } };
    world.raw(&name).update_one(doc! { "_id": key.as_str() }, touch).session(&mut other).await.unwrap();
    let request = Release::new(brief.clone()).with_timeout(LONG);
    let (released, ()) = tokio::join!(store.release(&request), async {
        tokio::time::sleep(ttl + Duration::from_secs(1)).await;
        other.abort_transaction().await.unwrap();
    });
    // By the clock of its start it was in time.
    assert_eq!(released.unwrap(), Released);
    assert_eq!(holders(&store, &key).await, [long.id().clone()]);
    assert_eq!(store.waiters(&long, LONG).await.unwrap(), 2, "nothing is granted beside a reader");
    assert_eq!(renew(&store, &long, token, LONG).await, Standing::Held { remaining: LONG });
    assert_eq!(release(&store, &long).await, Released);
    assert_eq!(release(&store, &writer).await, Released);
    assert_eq!(holders(&store, &key).await, [behind.id().clone()]);
}

async fn a_renewal_that_stalls_extends_its_own_holder(world: World) {
    let (store, name) = world.named_store();
    store.prepare().await.unwrap();
    let key = key();
    let ttl = Duration::from_secs(5);
    let (brief, other) = (reader(&key), reader(&key));
    let token = granted(&store, &brief, ttl).await.token;
    granted(&store, &other, ttl).await;
    let mut transaction = world.client.start_session().await.unwrap();
    transaction.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "touched": true } };
    world.raw(&name).update_one(doc! { "_id": key.as_str() }, touch).session(&mut transaction).await.unwrap();
    let request = Renewal::lease(brief.clone(), token, LONG).with_timeout(LONG);
    let (renewed, ()) = tokio::join!(store.renew(&request), async {
        tokio::time::sleep(ttl + Duration::from_secs(1)).await;
        transaction.abort_transaction().await.unwrap();
    });
    assert_eq!(renewed.unwrap(), Standing::Held { remaining: LONG }, "no one has taken the key meanwhile");
    assert_eq!(holders(&store, &key).await, [brief.id().clone()], "the other one has expired");
    assert_eq!(release(&store, &brief).await, Released);
    assert!(crate::world::admin(&store).inspect(&key).await.unwrap().is_none());
}
