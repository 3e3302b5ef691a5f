//! The events of a provider (R18, R20).

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_api::ReleaseOutcome::Released;
use distlock_api::{AcquireOptions, ErrorKind, FencingToken, LockKey, Loss};
use distlock_engine::store::{
    Attempt, Claim, EventStore, EventStream, LeaseStore, ProviderId, Release, Renewal, StoreEvent, Watch,
};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{MongoProvider, MongoStore};
use futures_util::{StreamExt, TryStreamExt};

use super::Checks;
use super::world::{
    LONG, SHORT, World, admin, claim, granted, key, opened, queue_up, queued, random_name, release, renew, ticket, twin,
};

pub(super) fn add(checks: &mut Checks<'_>) {
    if checks.is_replica_set() {
        check!(checks, R18 grants_by_releases_are_reported);
        check!(checks, losses_are_reported);
        check!(checks, other_changes_are_not_reported);
        check!(checks, events_that_waiters_cannot_foresee_are_reported);
        check!(checks, R20 hints_end_with_the_collection);
        check!(checks, hints_end_with_their_cursor);
        check!(checks, alone hints_without_the_privilege);
        check!(checks, alone R20 silent_connection_ends_the_hints);
    } else {
        check!(checks, hints_are_unsupported);
    }
}

pub(crate) async fn listen(store: &MongoStore, provider: ProviderId) -> EventStream {
    EventStore::subscribe(store, &Watch::provider(provider)).await.expect("a stream")
}

pub(crate) async fn next(events: &mut EventStream) -> StoreEvent {
    let event = tokio::time::timeout(Duration::from_secs(20), events.try_next()).await.expect("an event");
    event.unwrap().expect("the stream goes on")
}

/// An acquisition of the provider.
fn own(key: &LockKey, provider: ProviderId) -> Claim {
    Claim::new(key.clone(), provider.acquisition_id())
}

/// The holders of small and of large records: the server reports their changes in different forms.
pub(crate) const REMARKS: [usize; 2] = [0, 40];

/// Makes an attempt whose record has this many remarks, so that events report it in another form.
pub(crate) fn attempt(claim: &Claim, remarks: usize) -> Attempt {
    let mut said = AcquireOptions::new().with_owner("$me");
    for n in 0..remarks {
        said = said.with_metadata(format!("{n}"), "something that makes the record big");
    }
    Attempt::new(claim.clone(), LONG).with_holder(said.holder().clone())
}

/// The lease passes through a chain of waiters, foreign and own. Each own grant is reported with
/// all that its deadline needs.
async fn grants_by_releases_are_reported(world: World) {
    for remarks in REMARKS {
        let ([store, releaser], _) = world.two_stores().await;
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let mut holder = claim(&key);
        granted(&releaser, &holder, LONG).await;
        for round in 0..6_u32 {
            // Blocks of equal length are tested, too: an unchanged field is not reported.
            let tokens = NonZeroU32::new(1 + round / 3 * 7).unwrap();
            let foreign = claim(&key);
            if round % 2 == 0 {
                queue_up(&releaser, &attempt(&foreign, remarks).with_ticket(ticket())).await;
            }
            let waiter = own(&key, me);
            let attempt = attempt(&waiter, remarks).with_ticket(ticket()).with_tokens(tokens);
            let busy = queue_up(&store, &attempt).await;
            assert_eq!(release(&releaser, &twin(&holder)).await, Released);
            if round % 2 == 0 {
                assert_eq!(release(&releaser, &foreign).await, Released);
            }
            let StoreEvent::Granted { key: reported, id, grant, expires_at } = next(&mut events).await else {
                panic!("no grant in round {round}, {remarks} remarks")
            };
            assert_eq!((&reported, &id), (&key, waiter.id()));
            assert!(grant.token > busy.token.unwrap());
            // R18: a difference of two readings of the server's clock.
            let span = expires_at.saturating_since(busy.now.unwrap());
            assert!(span >= LONG && span < LONG + Duration::from_secs(20), "{span:?}");
            let repeated = granted(&store, &waiter, Duration::from_secs(1)).await;
            assert_eq!((repeated.token, repeated.tokens), (grant.token, tokens));
            assert_eq!(grant.tokens, tokens);
            holder = waiter;
        }
    }
}

async fn losses_are_reported(world: World) {
    for remarks in REMARKS {
        let store = world.store();
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let [a, b] = [(); 2].map(|()| own(&key, me));
        store.try_acquire(&attempt(&a, remarks)).await.unwrap();
        let token = async || admin(&store).inspect(&key).await.unwrap().unwrap().token.get();
        let gone = |claim: &Claim, token, loss| {
            let (key, id) = (key.clone(), claim.id().clone());
            StoreEvent::Gone { key, id, token: FencingToken::new(token), loss }
        };
        let last = token().await;
        admin(&store).force_release(&key, "test").await.unwrap().unwrap();
        assert_eq!(next(&mut events).await, gone(&a, last + 1, Loss::ForceReleased));
        assert_eq!(next(&mut events).await, StoreEvent::Freed { key: key.clone() });
        // A lease of another provider: only the key is reported as free.
        store.try_acquire(&attempt(&claim(&key), remarks)).await.unwrap();
        admin(&store).force_release(&key, "test").await.unwrap().unwrap();
        assert_eq!(next(&mut events).await, StoreEvent::Freed { key: key.clone() });
        // An expired lease that was taken over.
        let mut brief = attempt(&b, remarks);
        brief.ttl = SHORT;
        store.try_acquire(&brief).await.unwrap();
        opened(&store, &key).await;
        let thief = claim(&key);
        store.try_acquire(&attempt(&thief, remarks)).await.unwrap();
        assert_eq!(next(&mut events).await, gone(&b, token().await, Loss::Gone));
        // The fields stay in the record, and are no longer reported.
        assert_eq!(release(&store, &thief).await, Released);
        store.try_acquire(&attempt(&claim(&key), remarks)).await.unwrap();
        let marker = self::key();
        granted(&store, &own(&marker, me), LONG).await;
        admin(&store).force_release(&marker, "test").await.unwrap().unwrap();
        let StoreEvent::Gone { key: reported, .. } = next(&mut events).await else {
            panic!("another event was reported")
        };
        assert_eq!(reported, marker, "{remarks} remarks");
    }
}

async fn other_changes_are_not_reported(world: World) {
    for remarks in REMARKS {
        let store = world.store();
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let [a, b] = [(); 2].map(|()| own(&key, me));
        // Others hand it over. After that, too, a grant is not reported to the caller that took it.
        let [first, second] = [(); 2].map(|()| claim(&key));
        granted(&store, &first, LONG).await;
        queued(&store, &second).await;
        assert_eq!(release(&store, &first).await, Released);
        assert_eq!(release(&store, &second).await, Released);
        for _ in 0..3 {
            // Without contention: the caller that took it has the answer, and there is no waiter.
            let c = own(&key, me);
            store.try_acquire(&attempt(&c, remarks)).await.unwrap();
            assert_eq!(release(&store, &c).await, Released);
            let foreign = claim(&key);
            store.try_acquire(&attempt(&foreign, remarks)).await.unwrap();
            assert_eq!(release(&store, &foreign).await, Released);
        }
        let grant = granted(&store, &a, LONG).await;
        for ttl in 1..4 {
            renew(&store, &a, grant.token, LONG * ttl).await;
            granted(&store, &a, LONG * ttl).await;
            queue_up(&store, &attempt(&b, remarks).with_ticket(ticket())).await;
            store.renew(&Renewal::ticket(b.clone(), ticket())).await.unwrap();
            let foreign = claim(&key);
            queued(&store, &foreign).await;
            let _ = release(&store, &foreign).await;
        }
        assert_eq!(release(&store, &b).await, distlock_api::ReleaseOutcome::AlreadyLost);
        // Handed over to another provider.
        let foreign = claim(&key);
        queue_up(&store, &attempt(&foreign, remarks).with_ticket(ticket())).await;
        assert_eq!(release(&store, &a).await, Released);
        let marker = own(&key, me);
        queue_up(&store, &attempt(&marker, remarks).with_ticket(ticket())).await;
        assert_eq!(release(&store, &foreign).await, Released);
        match next(&mut events).await {
            StoreEvent::Granted { id, .. } => assert_eq!(&id, marker.id()),
            other => panic!("{other:?}, {remarks} remarks"),
        }
    }
}

async fn events_that_waiters_cannot_foresee_are_reported(world: World) {
    for remarks in REMARKS {
        let (store, name) = world.named_store();
        let (me, key) = (ProviderId::random(), key());
        let mut events = listen(&store, me).await;
        let freed = StoreEvent::Freed { key: key.clone() };
        let a = claim(&key);
        store.try_acquire(&attempt(&a, remarks)).await.unwrap();
        let quick = Release::new(a).with_hold_at_least(LONG);
        assert_eq!(store.release(&quick).await.unwrap(), Released);
        assert_eq!(next(&mut events).await, freed);
        let records = world.raw(&name);
        let by_key = || doc! { "_id": key.as_str() };
        records.delete_one(by_key()).await.unwrap();
        assert_eq!(next(&mut events).await, freed);
        store.try_acquire(&attempt(&claim(&key), remarks)).await.unwrap();
        records.update_one(by_key(), doc! { "$unset": { "lockId": 1 } }).await.unwrap();
        assert_eq!(next(&mut events).await, freed, "by hand");
        records.replace_one(by_key(), doc! { "something": "else" }).await.unwrap();
        assert_eq!(next(&mut events).await, freed);
        records.replace_one(by_key(), doc! { "fencingToken": "seven" }).await.unwrap();
        assert_eq!(next(&mut events).await, StoreEvent::Gap);
        // Documents that are no records.
        records.insert_one(doc! { "_id": 7 }).await.unwrap();
        records.delete_one(doc! { "_id": 7 }).await.unwrap();
        records.delete_one(by_key()).await.unwrap();
        assert_eq!(next(&mut events).await, freed);
    }
}

async fn hints_end_with_the_collection(world: World) {
    let (store, name) = world.named_store();
    granted(&store, &claim(&key()), LONG).await;
    let events = listen(&store, ProviderId::random()).await;
    world.raw(&name).drop().await.unwrap();
    let reported: Vec<StoreEvent> =
        tokio::time::timeout(Duration::from_secs(20), events.try_collect()).await.expect("an end").unwrap();
    assert!(!reported.is_empty() && reported.iter().all(|event| *event == StoreEvent::Gap), "{reported:?}");
    // The stream can also be opened without a collection.
    let (me, key) = (ProviderId::random(), key());
    let mut events = listen(&store, me).await;
    granted(&store, &own(&key, me), LONG).await;
    admin(&store).force_release(&key, "test").await.unwrap().unwrap();
    assert!(matches!(next(&mut events).await, StoreEvent::Gone { .. }));
}

/// The cursors on the database, idle or active.
async fn cursors(world: &World, name: &str) -> usize {
    let pipeline = vec![
        doc! { "$currentOp": { "allUsers": true, "idleCursors": true } },
        doc! { "$match": { "ns": { "$regex": format!(r"^{name}\.") }, "cursor": { "$exists": true } } },
    ];
    let found: Vec<Document> =
        world.operator.database("admin").aggregate(pipeline).await.unwrap().try_collect().await.unwrap();
    found.len()
}

async fn hints_end_with_their_cursor(world: World) {
    // A database of its own: all collections of one share a stream.
    let name = random_name("distlock_test");
    let store = MongoProvider::builder(world.client.database(&name)).build_store().unwrap();
    for polled in [false, true] {
        let mut events = listen(&store, ProviderId::random()).await;
        // A task of the store reads the stream: wait until the server lists its cursor.
        let open = async {
            while cursors(&world, &name).await != 1 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), open).await.expect("an open cursor");
        if polled {
            // During a request for changes.
            let wait = tokio::time::timeout(Duration::from_millis(300), events.next()).await;
            assert!(wait.is_err());
        }
        drop(events);
        let gone = async {
            while cursors(&world, &name).await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("a closed cursor");
    }
}

async fn hints_without_the_privilege(world: World) {
    let (store, app, _) = world.store_of_app().await;
    let watch = Watch::provider(ProviderId::random());
    for (code, kind) in [(13, ErrorKind::Unsupported), (40573, ErrorKind::Unsupported), (11601, ErrorKind::Other)] {
        // Both tries of the driver fail.
        let data = doc! { "failCommands": ["aggregate"], "appName": &app, "errorCode": code };
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 2 }, "data": data }).await;
        let error = EventStore::subscribe(&store, &watch).await.err().expect("refused");
        assert_eq!(error.kind(), kind, "{error:?}");
        world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    }
    let _events = listen(&store, watch.provider).await;
}

async fn silent_connection_ends_the_hints(world: World) {
    let app = random_name("app");
    let (client, _) = world.connect(|options| options.app_name = Some(app.clone())).await;
    let builder = MongoProvider::builder(client.database("distlock_test")).collection(random_name("locks"));
    let store = builder.request_timeout(Duration::from_secs(3)).build_store().unwrap();
    let mut events = listen(&store, ProviderId::random()).await;
    // Longer than the stream waits for an answer: 5 s, and the request timeout.
    world.fail(&app, "getMore", doc! { "blockConnection": true, "blockTimeMS": 20_000 }).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), events.next()).await.expect("an end");
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    assert!(events.next().await.is_none());
}

async fn hints_are_unsupported(world: World) {
    let store = world.store();
    assert!(store.extras().events.is_none(), "not known yet");
    let error = EventStore::subscribe(&store, &Watch::provider(ProviderId::random())).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("standalone"), "{error}");
    assert!(store.extras().events.is_none() && store.extras().queue.is_some() && store.capabilities().token_blocks);
}
