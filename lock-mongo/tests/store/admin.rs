//! Administration, except the forced release of one key: owners, lists, indexes, events.

use std::time::{Duration, SystemTime};

use distlock_api::{
    AcquireOptions, ErrorKind, Holder, ListOptions, LockAdmin, LockEvent, LockEvents, LockFilter, LockProvider,
    LockProviderExt, Loss, Mode,
};
use distlock_engine::store::{Attempt, Claim, LeaseStore, Reply, Standing};
use distlock_mongo::mongodb::IndexModel;
use distlock_mongo::mongodb::bson::oid::ObjectId;
use distlock_mongo::mongodb::bson::{Bson, DateTime, Document, doc};
use distlock_mongo::mongodb::options::{Hint, IndexOptions};
use distlock_mongo::{MongoProvider, MongoStore};
use futures_util::{StreamExt, TryStreamExt};

use super::Checks;
use super::world::{LONG, SHORT, World, admin, claim, granted, key, opened, random_name, release, renew};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, release_owner_counts_the_held);
    check!(checks, release_owner_releases_many_in_batches);
    check!(checks, alone release_owner_continues_after_an_error);
    check!(checks, owner_index_is_used);
    check!(checks, owner_index_can_be_left_out);
    check!(checks, owner_index_conflict_is_not_fatal);
    check!(checks, defaults_describe_the_process);
    check!(checks, list_skips_foreign_documents);
    check!(checks, a_list_goes_on_after_documents_without_a_key);
    check!(checks, a_page_after_another_reads_no_record_before_it);
    if checks.is_replica_set() {
        check!(checks, events_of_any_shape);
        check!(checks, events_of_an_expiry);
        check!(checks, events_of_many_locks_at_once);
        check!(checks, events_end_with_the_collection);
        check!(checks, events_are_not_renewals);
    } else {
        check!(checks, events_are_unsupported);
    }
}

async fn granted_to(store: &MongoStore, claim: &Claim, owner: &str, ttl: Duration) -> distlock_engine::store::Grant {
    let said = AcquireOptions::new().with_owner(owner);
    match store.try_acquire(&Attempt::new(claim.clone(), ttl).with_holder(said.holder().clone())).await.unwrap() {
        Reply::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn release_owner_counts_the_held(world: World) {
    let store = world.store();
    let [held, expired, freed, other] = [(); 4].map(|()| claim(&key()));
    let grant = granted_to(&store, &held, "$me", LONG).await;
    granted_to(&store, &expired, "$me", SHORT).await;
    granted_to(&store, &freed, "$me", LONG).await;
    assert!(release(&store, &freed).await.is_released());
    let others = granted_to(&store, &other, "$mee", LONG).await;
    opened(&store, expired.key()).await;

    assert_eq!(
        admin(&store).release_owner("$me", "$why").await.unwrap(),
        1,
        "the expired and the released do not count"
    );
    assert_eq!(renew(&store, &held, grant.token, LONG).await, Standing::Gone(Loss::ForceReleased));
    assert_eq!(renew(&store, &other, others.token, LONG).await, Standing::Held { remaining: LONG });
    let history = admin(&store).history(held.key()).await.unwrap();
    let [entry] = &*history else { panic!("{history:?}") };
    assert_eq!((entry.id.as_ref(), entry.owner.as_deref()), (Some(held.id()), Some("$me")));
    assert_eq!((entry.token, &*entry.reason), (grant.token, "$why"));
    assert!(entry.at.elapsed().unwrap_or_default() < Duration::from_secs(3600), "{entry:?}");
    for free in [&expired, &freed] {
        assert!(admin(&store).history(free.key()).await.unwrap().is_empty());
    }
    let next = granted(&store, &claim(held.key()), LONG).await;
    assert!(next.token.get() > grant.token.get() + 1, "the token advances by the force-release itself");
}

/// Returns the record of a lock that is held for an hour.
fn held_record(n: usize, owner: &str) -> Document {
    let expires_at = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    doc! {
        "_id": format!("key {n:06}"), "lockId": format!("lock {n}"), "owner": owner,
        "fencingToken": 1_i64, "tokens": 1, "expiresAt": expires_at, "ttl": 3_600_000,
    }
}

/// More locks than one request can list or release in its time.
async fn release_owner_releases_many_in_batches(world: World) {
    const MANY: usize = 20_000;

    let name = random_name("locks");
    let builder = || MongoProvider::builder_from_client(&world.client).database("distlock_test").collection(&name);
    let patient = builder().build().unwrap();
    patient.prepare().await.unwrap();
    let provider = builder().request_timeout(Duration::from_millis(500)).build().unwrap();
    let records = (0..MANY).map(|n| held_record(n, if n == 7 { "other" } else { "me" }));
    world.raw(&name).insert_many(records).await.unwrap();
    let admin = provider.admin().unwrap();
    // A server that pauses answers a request too late. The next call releases what is left. Without
    // batches eight calls would be needed.
    let mut failed = 0;
    let released = loop {
        match admin.release_owner("me", "test").await {
            Ok(released) => break released,
            Err(error) => {
                assert!(error.is_retryable() || error.is_outcome_unknown(), "{error}");
                failed += 1;
                assert!(failed <= 4, "{error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    };
    if failed == 0 {
        assert_eq!(released, MANY as u64 - 1);
    }
    let free = world.raw(&name).count_documents(doc! { "lockId": { "$exists": false } }).await.unwrap();
    assert_eq!(free, MANY as u64 - 1);
    let admin = patient.admin().unwrap();
    assert_eq!(admin.release_owner("me", "test").await.unwrap(), 0);
    assert_eq!(admin.release_matching(&LockFilter::new().prefix("key"), "test").await.unwrap(), 1);
}

/// The second of three batches fails. The error says how many locks the first one released, and the
/// next call releases the others.
async fn release_owner_continues_after_an_error(world: World) {
    const MANY: usize = 800;
    const BATCH: u64 = 360;

    let (store, app, name) = world.store_of_app().await;
    store.prepare().await.unwrap();
    world.raw(&name).insert_many((0..MANY).map(|n| held_record(n, "me"))).await.unwrap();
    let data = doc! { "failCommands": ["update"], "appName": &app, "errorCode": 112 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "skip": 1 }, "data": data }).await;
    let error = admin(&store).release_owner("me", "test").await.unwrap_err();
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    assert!(error.is_retryable() && error.to_string().contains("; 360 locks were changed before it"), "{error}");
    crate::guide::lists(&error);
    assert_eq!(admin(&store).release_owner("me", "test").await.unwrap(), MANY as u64 - BATCH);
    assert_eq!(admin(&store).release_owner("me", "test").await.unwrap(), 0);
}

/// The stages of the plan that the server chose.
fn plan(explained: &Document) -> String {
    explained.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap().to_string()
}

async fn owner_index_is_used(world: World) {
    let (store, name) = world.named_store();
    store.prepare().await.unwrap();
    let a = claim(&key());
    granted_to(&store, &a, "me", LONG).await;
    let database = world.client.database("distlock_test");
    let find = doc! { "find": &name, "filter": { "owner": { "$eq": "me" } }, "sort": { "_id": 1 } };
    let plan = plan(&database.run_command(doc! { "explain": find }).await.unwrap());
    assert!(plan.contains("distlock_owner") && !plan.contains("\"SORT\""), "{plan}");
    // The index contains only records that name an owner.
    assert!(release(&store, &a).await.is_released());
    let records = world.raw(&name);
    let named = records.find(doc! { "owner": { "$exists": true } }).hint(Hint::Name("distlock_owner".into()));
    assert_eq!(named.await.unwrap().count().await, 0);
}

async fn owner_index_can_be_left_out(world: World) {
    let name = random_name("locks");
    let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(&*name);
    let store = builder.without_owner_index().build_store().unwrap();
    store.prepare().await.unwrap();
    let names = world.raw(&name).list_index_names().await.unwrap();
    assert_eq!(names, ["_id_", "distlock_purge"]);
    granted_to(&store, &claim(&key()), "me", LONG).await;
    assert_eq!(admin(&store).release_owner("me", "test").await.unwrap(), 1);
}

async fn owner_index_conflict_is_not_fatal(world: World) {
    let name = random_name("locks");
    let options = IndexOptions::builder().name("distlock_owner".to_owned()).build();
    let other = IndexModel::builder().keys(doc! { "somethingElse": 1 }).options(options).build();
    world.raw(&name).create_index(other).await.unwrap();
    let store = world.store_on(&world.client, &name);
    store.prepare().await.unwrap();
    assert_eq!(
        world.raw(&name).list_index_names().await.unwrap(),
        ["_id_", "distlock_owner", "distlock_purge", "distlock_owners"]
    );
    granted_to(&store, &claim(&key()), "me", LONG).await;
    assert_eq!(admin(&store).release_owner("me", "test").await.unwrap(), 1);
}

async fn defaults_describe_the_process(world: World) {
    let builder = || MongoProvider::builder(world.client.database("distlock_test")).collection(random_name("locks"));
    let locks = builder().metadata("version", "$1").build().unwrap();
    let guard = locks.acquire(key()).metadata("job", "nightly").await.unwrap();
    let info = locks.admin().unwrap().inspect(guard.key()).await.unwrap().unwrap();
    assert_eq!(info.owner.as_deref(), Holder::this_process().owner.as_deref());
    assert_eq!((&*info.metadata["version"], &*info.metadata["job"]), ("$1", "nightly"));
    assert!(info.metadata["program"].starts_with("store"));
    let error = builder().metadata("n", "v".repeat(5000)).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
}

async fn list_skips_foreign_documents(world: World) {
    let (store, name) = world.named_store();
    let own = claim(&key());
    granted_to(&store, &own, "me", LONG).await;
    world.raw(&name).insert_many([doc! { "_id": 7 }, doc! { "_id": "free" }, doc! { "a": 1 }]).await.unwrap();
    let list: Vec<_> = admin(&store).list(ListOptions::new()).try_collect().await.unwrap();
    assert_eq!(list.iter().map(|info| &info.key).collect::<Vec<_>>(), [own.key()]);
    assert_eq!(admin(&store).release_matching(&LockFilter::new().prefix("key"), "test").await.unwrap(), 1);
}

/// Documents that no key names lie among the locks: more than a page of them, held by another
/// program, with identities of types that sort before and after texts.
async fn a_list_goes_on_after_documents_without_a_key(world: World) {
    let (store, name) = world.named_store();
    let mut own = [(); 5].map(|()| key());
    for key in &own {
        granted_to(&store, &claim(key), "me", LONG).await;
    }
    let until = DateTime::from_system_time(SystemTime::now() + LONG);
    let identities =
        [Bson::Int64(1), 2.5.into(), Bson::Null, "".into(), ObjectId::new().into(), ObjectId::new().into()];
    let foreign = identities.map(|id| doc! { "_id": id, "owner": "other", "expiresAt": until });
    world.raw(&name).insert_many(foreign).await.unwrap();
    own.sort();
    for size in [1, 2, 3, 100] {
        let pages = ListOptions::new().page_size(size);
        let list: Vec<_> = admin(&store).list(pages).try_collect().await.unwrap();
        assert_eq!(list.into_iter().map(|info| info.key).collect::<Vec<_>>(), own, "pages of {size}");
    }
}

/// The continuation of a page uses the index of the identities.
async fn a_page_after_another_reads_no_record_before_it(world: World) {
    let name = random_name("locks");
    let records = world.raw(&name);
    records.insert_many((0..1_000).map(|n| doc! { "_id": format!("{n:03}") })).await.unwrap();
    let after = doc! { "$and": [{}, { "$expr": { "$gt": ["$_id", { "$literal": "989" }] } }] };
    let find = doc! { "find": &name, "filter": after, "sort": { "_id": 1 } };
    let explain = doc! { "explain": find, "verbosity": "executionStats" };
    let explained = world.client.database("distlock_test").run_command(explain).await.unwrap();
    let examined = explained.get_document("executionStats").unwrap().get_i32("totalKeysExamined").unwrap();
    assert!((10..=11).contains(&examined), "{examined}: {explained}");
}

async fn next(events: &mut LockEvents) -> LockEvent {
    let event = tokio::time::timeout(Duration::from_secs(20), events.try_next()).await.expect("an event");
    event.unwrap().expect("the stream goes on")
}

/// The server replaces small records and updates large ones. Both forms give the same events.
async fn events_of_any_shape(world: World) {
    for meta in [0, 40] {
        let store = world.store();
        let mut events = LockAdmin::watch(&store).await.unwrap();
        let key = key();
        for round in 0..6 {
            let a = claim(&key);
            let mut said = AcquireOptions::new().with_owner("$me");
            for n in 0..meta {
                said = said.with_metadata(format!("{n}"), "something that makes the record big");
            }
            let attempt = Attempt::new(a.clone(), LONG).with_holder(said.holder().clone());
            let Reply::Granted(grant) = store.try_acquire(&attempt).await.unwrap() else { panic!("busy") };
            // A repeated attempt, as after a lost reply, is one grant.
            store.try_acquire(&attempt).await.unwrap();
            let (id, token, owner) = (a.id().clone(), grant.token, Some("$me".to_owned()));
            let expected = LockEvent::Granted { key: key.clone(), id: id.clone(), token, owner, mode: Mode::Exclusive };
            assert_eq!(next(&mut events).await, expected, "round {round}, {meta} remarks");
            let expected = if round % 3 == 1 {
                admin(&store).force_release(&key, "$why").await.unwrap().unwrap();
                LockEvent::ForceReleased { key: key.clone(), id }
            } else {
                assert!(release(&store, &a).await.is_released());
                LockEvent::Released { key: key.clone(), id }
            };
            assert!(!matches!(release(&store, &claim(&key)).await, distlock_api::ReleaseOutcome::Released));
            assert_eq!(next(&mut events).await, expected, "round {round}, {meta} remarks");
        }
    }
}

async fn events_of_an_expiry(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let unseen = claim(&key);
    granted_to(&store, &unseen, "one", SHORT).await;
    let mut events = LockAdmin::watch(&store).await.unwrap();
    opened(&store, &key).await;
    let mut before = unseen;
    for _ in 0..2 {
        let a = claim(&key);
        let token = granted_to(&store, &a, "same owner", SHORT).await.token;
        let expected = LockEvent::Expired { key: key.clone(), id: before.id().clone() };
        assert_eq!(next(&mut events).await, expected);
        let owner = Some("same owner".to_owned());
        let expected = LockEvent::Granted { key: key.clone(), id: a.id().clone(), token, owner, mode: Mode::Exclusive };
        assert_eq!(next(&mut events).await, expected);
        opened(&store, &key).await;
        before = a;
    }
    // As the TTL index does.
    world.raw(&name).delete_one(doc! { "_id": key.as_str() }).await.unwrap();
    assert_eq!(next(&mut events).await, LockEvent::Expired { key: key.clone(), id: before.id().clone() });
    // A grant after a release does not report an expiry.
    let [a, b] = [(); 2].map(|()| claim(&key));
    granted(&store, &a, LONG).await;
    assert!(release(&store, &a).await.is_released());
    granted(&store, &b, LONG).await;
    for expected in ["granted", "released", "granted"] {
        assert_eq!(next(&mut events).await.as_str(), expected);
    }
}

async fn events_of_many_locks_at_once(world: World) {
    let store = world.store();
    let claims = [(); 20].map(|()| claim(&key()));
    for claim in &claims {
        granted_to(&store, claim, "session", LONG).await;
    }
    let mut events = LockAdmin::watch(&store).await.unwrap();
    assert_eq!(admin(&store).release_owner("session", "ended").await.unwrap(), 20);
    let mut reported = Vec::new();
    for _ in &claims {
        match next(&mut events).await {
            LockEvent::ForceReleased { id, .. } => reported.push(id),
            other => panic!("{other:?}"),
        }
    }
    let mut expected: Vec<_> = claims.iter().map(|claim| claim.id().clone()).collect();
    expected.sort();
    reported.sort();
    assert_eq!(reported, expected);
}

async fn events_end_with_the_collection(world: World) {
    let (store, name) = world.named_store();
    granted(&store, &claim(&key()), LONG).await;
    let events = LockAdmin::watch(&store).await.unwrap();
    world.raw(&name).drop().await.unwrap();
    let reported: Vec<LockEvent> =
        tokio::time::timeout(Duration::from_secs(20), events.try_collect()).await.expect("an end").unwrap();
    assert!(!reported.is_empty() && reported.iter().all(|event| *event == LockEvent::Gap), "{reported:?}");
}

async fn events_are_not_renewals(world: World) {
    let store = world.store();
    let a = claim(&key());
    let token = granted(&store, &a, LONG).await.token;
    let mut events = LockAdmin::watch(&store).await.unwrap();
    for extra in 1..4 {
        renew(&store, &a, token, LONG * extra).await;
    }
    assert!(release(&store, &a).await.is_released());
    assert_eq!(next(&mut events).await.as_str(), "released");
}

async fn events_are_unsupported(world: World) {
    let error = LockAdmin::watch(&world.store()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("standalone"), "{error}");
}
