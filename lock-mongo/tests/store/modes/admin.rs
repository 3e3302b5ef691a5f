//! Administration of keys with several holders.

use distlock_api::{AcquireOptions, ListOptions, LockFilter, LockKey, Loss, Mode};
use distlock_engine::store::{Attempt, Claim, Grant, LeaseStore, Reply, Standing};
use distlock_mongo::MongoStore;
use distlock_mongo::mongodb::bson::{Document, doc};
use futures_util::TryStreamExt;

use super::{claim_in, holders, permits, reader};
use crate::Checks;
use crate::world::{LONG, World, admin, busy, claim, granted, key, queued, renew};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C22 one_of_several_holders_is_released_by_force);
    check!(checks, C22 all_holders_are_released_by_force);
    check!(checks, holders_are_inspected_and_listed);
    check!(checks, holders_of_an_owner_are_released);
    check!(checks, owners_of_holders_are_found_by_an_index);
    check!(checks, raised_tokens_end_shared_leases);
}

const FORCED: Standing = Standing::Gone(Loss::ForceReleased);
const HELD: Standing = Standing::Held { remaining: LONG };

async fn granted_to(store: &MongoStore, claim: &Claim, owner: &str) -> Grant {
    let said = AcquireOptions::new().with_owner(owner).with_metadata("$of", owner);
    match store.try_acquire(&Attempt::new(claim.clone(), LONG).with_holder(said.holder().clone())).await.unwrap() {
        Reply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn one_of_several_holders_is_released_by_force(world: World) {
    let store = world.store();
    let key = key();
    let (a, b, writer) = (reader(&key), reader(&key), claim(&key));
    let first = granted_to(&store, &a, "a").await.token;
    let second = granted_to(&store, &b, "b").await.token;
    queued(&store, &writer).await;
    assert!(admin(&store).force_release_holder(&key, reader(&key).id(), "no").await.unwrap().is_none());
    let before = admin(&store).force_release_holder(&key, a.id(), "$why").await.unwrap().unwrap();
    assert_eq!((before.holders.len(), before.id.as_ref()), (2, Some(a.id())));
    let after = admin(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!((after.token.get(), after.waiting), (second.get() + 1, Some(1)));
    assert_eq!(after.holders.iter().map(|holder| &holder.id).collect::<Vec<_>>(), [b.id()]);
    let [entry] = &*admin(&store).history(&key).await.unwrap() else { panic!("not one entry") };
    assert_eq!((entry.id.as_ref(), entry.owner.as_deref()), (Some(a.id()), Some("a")));
    assert_eq!((entry.token, &*entry.reason), (second, "$why"));
    assert_eq!(renew(&store, &a, first, LONG).await, FORCED);
    assert_eq!(renew(&store, &b, second, LONG).await, HELD);
    assert!(!crate::world::release(&store, &a).await.is_released());
    assert!(admin(&store).force_release_holder(&key, b.id(), "$why").await.unwrap().is_some());
    assert!(admin(&store).inspect(&key).await.unwrap().is_none(), "nothing is granted");
    assert_eq!(renew(&store, &b, second, LONG).await, FORCED);
    let alone = granted(&store, &writer, LONG).await.token;
    assert!(alone.get() > second.get() + 2);
    assert!(admin(&store).force_release_holder(&key, b.id(), "no").await.unwrap().is_none());
    assert_eq!(renew(&store, &writer, alone, LONG).await, HELD);
    let before = admin(&store).force_release_holder(&key, writer.id(), "exclusive").await.unwrap().unwrap();
    assert!(before.id.as_ref() == Some(writer.id()) && before.holders.is_empty());
    assert_eq!(renew(&store, &writer, alone, LONG).await, FORCED);
}

async fn all_holders_are_released_by_force(world: World) {
    let store = world.store();
    let key = key();
    let claims = [(); 3].map(|()| claim_in(permits(1, 4), &key));
    let mut tokens = Vec::new();
    for (claim, owner) in claims.iter().zip(["a", "b", "c"]) {
        tokens.push(granted_to(&store, claim, owner).await.token);
    }
    let before = admin(&store).force_release(&key, "why").await.unwrap().unwrap();
    assert_eq!(before.holders.len(), 3);
    assert!(admin(&store).inspect(&key).await.unwrap().is_none());
    let history = admin(&store).history(&key).await.unwrap();
    let owners: Vec<_> = history.iter().map(|entry| entry.owner.as_deref().unwrap()).collect();
    assert_eq!(owners, ["a", "b", "c"], "one entry for each");
    for (claim, token) in claims.iter().zip(tokens) {
        assert_eq!(renew(&store, claim, token, LONG).await, FORCED);
    }
    assert!(granted(&store, &claim(&key), LONG).await.token.get() > before.token.get() + 1);
}

async fn holders_are_inspected_and_listed(world: World) {
    let store = world.store();
    let shared = key();
    let (a, b) = (reader(&shared), reader(&shared));
    let first = granted_to(&store, &a, "a").await.token;
    let second = granted_to(&store, &b, "b").await.token;
    let other = claim_in(permits(2, 5), &key());
    granted_to(&store, &other, "c").await;
    let info = admin(&store).inspect(&shared).await.unwrap().unwrap();
    assert_eq!((info.id.as_ref(), info.owner.as_deref(), info.token), (Some(a.id()), Some("a"), second));
    assert_eq!((info.mode(), &*info.metadata["$of"]), (Mode::Shared, "a"));
    let [one, two] = &*info.holders else { panic!("{info:?}") };
    assert_eq!((&one.id, one.token, one.owner.as_deref()), (a.id(), first, Some("a")));
    assert_eq!((&two.id, two.token, two.owner.as_deref()), (b.id(), second, Some("b")));
    assert_eq!((two.mode, &*two.metadata["$of"]), (Mode::Shared, "b"));
    assert!(one.remaining > LONG / 2 && info.remaining >= two.remaining);

    let list: Vec<_> = admin(&store).list(ListOptions::new()).try_collect().await.unwrap();
    assert_eq!(list.len(), 2);
    assert!(list.iter().all(|info| info.unreadable.is_none()), "{list:?}");
    let of_permits = list.iter().find(|info| info.key == *other.key()).unwrap();
    assert_eq!(of_permits.mode(), permits(2, 5));
    let of_owner = async |owner: &str| -> Vec<LockKey> {
        let options = ListOptions::new().owner(owner);
        let list: Vec<_> = admin(&store).list(options).try_collect().await.unwrap();
        list.into_iter().map(|info| info.key).collect()
    };
    for (owner, expected) in [("a", Some(&shared)), ("b", Some(&shared)), ("c", Some(other.key())), ("d", None)] {
        assert_eq!(of_owner(owner).await, expected.cloned().into_iter().collect::<Vec<_>>(), "{owner}");
    }
    assert!(crate::world::release(&store, &a).await.is_released());
    assert!(of_owner("a").await.is_empty());
    assert_eq!(of_owner("b").await, [shared]);
}

async fn holders_of_an_owner_are_released(world: World) {
    let store = world.store();
    let key = key();
    let mine = [(); 2].map(|()| reader(&key));
    let other = reader(&key);
    let mut tokens = Vec::new();
    for (claim, owner) in [(&mine[0], "$me"), (&other, "$mee"), (&mine[1], "$me")] {
        tokens.push(granted_to(&store, claim, owner).await.token);
    }
    let alone = claim(&self::key());
    granted_to(&store, &alone, "$me").await;
    assert_eq!(admin(&store).release_owner("$me", "ended").await.unwrap(), 2, "keys");
    assert_eq!(holders(&store, &key).await, [other.id().clone()]);
    assert_eq!(renew(&store, &mine[0], tokens[0], LONG).await, FORCED);
    assert_eq!(renew(&store, &mine[1], tokens[2], LONG).await, FORCED);
    assert_eq!(renew(&store, &other, tokens[1], LONG).await, HELD);
    busy(&store, &claim(&key)).await;
    assert_eq!(admin(&store).release_owner("$me", "ended").await.unwrap(), 0);
    assert_eq!(admin(&store).release_owner("$mee", "ended").await.unwrap(), 1);
    granted(&store, &claim(&key), LONG).await;
    let prefix = LockFilter::new().prefix("key");
    assert_eq!(admin(&store).release_matching(&prefix, "all").await.unwrap(), 1);
}

/// The stages of the plan that the server chose.
fn plan(explained: &Document) -> String {
    explained.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap().to_string()
}

async fn owners_of_holders_are_found_by_an_index(world: World) {
    let (store, name) = world.named_store();
    store.prepare().await.unwrap();
    for _ in 0..20 {
        granted_to(&store, &claim(&key()), "other").await;
        granted_to(&store, &reader(&key()), "other").await;
    }
    let filter = doc! { "$and": [{ "$or": [
        { "owner": { "$eq": "me" } },
        { "lockId": "shared", "holders.owner": { "$eq": "me" } },
    ] }] };
    let find = doc! { "find": &name, "filter": filter, "sort": { "_id": 1 }, "limit": 360 };
    let database = world.client.database("distlock_test");
    let plan = plan(&database.run_command(doc! { "explain": find }).await.unwrap());
    assert!(plan.contains("distlock_owner\"") && plan.contains("distlock_owners\""), "{plan}");
    assert!(!plan.contains("COLLSCAN"), "{plan}");
}

async fn raised_tokens_end_shared_leases(world: World) {
    let store = world.store();
    let key = key();
    let (a, b) = (reader(&key), reader(&key));
    let token = granted(&store, &a, LONG).await.token;
    let last = granted(&store, &b, LONG).await.token;
    let floor = distlock_api::FencingToken::new(last.get() + 1000);
    assert_eq!(store.raise_tokens(floor).await.unwrap(), 1);
    assert_eq!(renew(&store, &a, token, LONG).await, FORCED);
    assert_eq!(renew(&store, &b, last, LONG).await, FORCED);
    assert!(granted(&store, &reader(&key), LONG).await.token > floor);
    assert_eq!(holders(&store, &key).await.len(), 1);
}
