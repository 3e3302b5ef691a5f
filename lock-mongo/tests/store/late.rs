//! Commands that reach the server after their bound (R31). Those that arrive late are those that
//! were sent: the server gets them again.

use std::time::Duration;

use distlock_api::{FencingToken, Holder, LockAdmin, LockFilter, LockKey, Mode};
use distlock_engine::store::{Attempt, BatchRenewStore, Claim, LeaseStore, Renewal, Reply, Standing};
use distlock_mongo::mongodb::bson::{DateTime, Document, doc};
use distlock_mongo::{DocumentLocks, MongoOnce, MongoProvider, MongoStore};

use distlock_recipes::once::OnceProviderExt;

use super::Checks;
use super::world::{LONG, Sent, World, age_ticket, claim, granted, id, key, queued, random_name, release, ticket};

/// How long an operation may take.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R31 late_attempts_take_nothing);
    check!(checks, R31 a_late_attempt_adopts_nothing);
    check!(checks, R31 a_late_document_is_not_locked);
    check!(checks, R31 a_late_run_is_not_begun);
    check!(checks, R31 late_refreshes_and_renewals_extend_nothing);
    check!(checks, R31 a_late_forced_release_takes_nothing_from_the_next_holder);
}

async fn store(world: &World) -> (MongoStore, Sent, String) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let store = world.store_on(&client, &name);
    granted(&store, &claim(&key()), LONG).await;
    sent.take();
    (store, sent, name)
}

/// The writes that were sent, as they can be sent again.
fn writes(sent: &Sent) -> Vec<Document> {
    const FIELDS: [&str; 11] = [
        "findAndModify",
        "query",
        "update",
        "arrayFilters",
        "fields",
        "new",
        "upsert",
        "writeConcern",
        "updates",
        "ordered",
        "maxTimeMS",
    ];
    let is_write = |command: &Document| {
        let name = command.keys().next().map(String::as_str);
        matches!(name, Some("findAndModify" | "update")) && !command.contains_key("remove")
    };
    let again = |command: Document| command.into_iter().filter(|(field, _)| FIELDS.contains(&field.as_str())).collect();
    sent.take().into_iter().filter(is_write).map(again).collect()
}

/// Sends the commands again, after their bounds. Returns how many the server refused.
async fn arrive_late(world: &World, commands: &[Document]) -> usize {
    tokio::time::sleep(LIMIT + Duration::from_secs(1)).await;
    let mut refused = 0;
    for command in commands {
        if let Err(error) = world.client.database("distlock_test").run_command(command.clone()).await {
            assert!(error.to_string().contains("distlock: late"), "{error}");
            refused += 1;
        }
    }
    refused
}

async fn record(world: &World, name: &str, key: &LockKey) -> Option<Document> {
    world.raw(name).find_one(doc! { "_id": key.as_str() }).await.unwrap()
}

fn attempt(claim: &Claim) -> Attempt {
    Attempt::new(claim.clone(), LONG).with_timeout(LIMIT)
}

/// By each way, with a record and without: exclusive and shared, for the lease and for a ticket.
async fn late_attempts_take_nothing(world: World) {
    let (store, sent, name) = store(&world).await;
    let mut commands = Vec::new();
    let mut undone = Vec::new();
    for mode in [Mode::Exclusive, Mode::Shared] {
        for waits in [false, true] {
            for is_new in [false, true] {
                let key = key();
                if !is_new {
                    let before = claim(&key);
                    granted(&store, &before, LONG).await;
                    assert!(release(&store, &before).await.is_released());
                }
                let claim = Claim::new(key.clone(), id()).with_mode(mode);
                let attempt = attempt(&claim);
                let before = record(&world, &name, &key).await;
                sent.take();
                let attempt = if waits { attempt.with_ticket(ticket()) } else { attempt };
                let reply = store.try_acquire(&attempt).await.unwrap();
                assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
                let mut sent = writes(&sent);
                assert_eq!(sent.len(), 1, "{sent:?}");
                commands.append(&mut sent);
                undone.push((key, before));
            }
        }
    }
    // Tickets, for a key that is held.
    for mode in [Mode::Exclusive, Mode::Shared] {
        let key = key();
        granted(&store, &claim(&key), LONG).await;
        let before = record(&world, &name, &key).await;
        let claim = Claim::new(key.clone(), id()).with_mode(mode);
        sent.take();
        let reply = store.try_acquire(&attempt(&claim).with_ticket(ticket())).await.unwrap();
        assert!(matches!(reply, Reply::Busy(_)), "{reply:?}");
        commands.append(&mut writes(&sent));
        undone.push((key, before));
    }
    for (key, before) in &undone {
        let filter = doc! { "_id": key.as_str() };
        match before {
            Some(before) => drop(world.raw(&name).replace_one(filter, before.clone()).await.unwrap()),
            None => drop(world.raw(&name).delete_one(filter).await.unwrap()),
        }
    }
    let refused = arrive_late(&world, &commands).await;
    for (key, before) in &undone {
        assert_eq!(record(&world, &name, key).await, *before, "{key}");
    }
    assert_eq!(refused, commands.len());
}

async fn a_late_attempt_adopts_nothing(world: World) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("locks");
    let builder = MongoProvider::builder_from_client(&client).database("distlock_test").collection(&name);
    let store = builder.adopt_foreign_locks().build_store().unwrap();
    let key = key();
    let foreign = doc! { "_id": key.as_str(), "expiresAt": DateTime::from_millis(1_000) };
    world.raw(&name).insert_one(foreign.clone()).await.unwrap();
    let reply = store.try_acquire(&attempt(&claim(&key))).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
    let commands = writes(&sent);
    world.raw(&name).replace_one(doc! { "_id": key.as_str() }, foreign.clone()).await.unwrap();
    assert_eq!(arrive_late(&world, &commands).await, commands.len());
    assert_eq!(record(&world, &name, &key).await, Some(foreign));
}

/// With a default, which is inserted, and without one.
async fn a_late_document_is_not_locked(world: World) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("accounts");
    let accounts = client.database("distlock_test").collection::<Document>(&name);
    let locks = DocumentLocks::builder(&accounts).request_timeout(LIMIT).build().unwrap();
    let known = doc! { "_id": "known", "lock_": [], "balance": 1 };
    world.raw(&name).insert_one(known.clone()).await.unwrap();
    let held = (
        locks.lock("known").await.unwrap(),
        locks.lock("new").or_insert(&doc! { "_id": "new", "balance": 2 }).await.unwrap(),
    );
    let commands = writes(&sent);
    assert!(commands.len() >= 2, "{commands:?}");
    world.raw(&name).replace_one(doc! { "_id": "known" }, known.clone()).await.unwrap();
    world.raw(&name).delete_one(doc! { "_id": "new" }).await.unwrap();
    assert!(arrive_late(&world, &commands).await >= 2);
    assert_eq!(world.raw(&name).find_one(doc! { "_id": "known" }).await.unwrap(), Some(known));
    assert_eq!(world.raw(&name).find_one(doc! { "_id": "new" }).await.unwrap(), None);
    drop(held);
}

async fn a_late_run_is_not_begun(world: World) {
    let (client, sent) = world.recorded_client().await;
    let name = random_name("once");
    let once = MongoOnce::builder(client.database("distlock_test")).collection(&name).request_timeout(LIMIT);
    let once = once.build().unwrap();
    let work = once.once("payment").await.unwrap().begun().expect("new work");
    // The lease, and the mark.
    let commands = writes(&sent);
    assert_eq!(commands.len(), 2, "{commands:?}");
    world.raw(&name).delete_many(doc! {}).await.unwrap();
    assert_eq!(arrive_late(&world, &commands).await, 1);
    assert_eq!(world.raw(&name).find_one(doc! {}).await.unwrap(), None);
    drop(work);
}

/// A ticket that has died, and a lease with little time left.
async fn late_refreshes_and_renewals_extend_nothing(world: World) {
    let (store, sent, name) = store(&world).await;
    let mut commands = Vec::new();
    // One ticket goes by another command than several.
    let mut waiters = Vec::new();
    for _ in 0..3 {
        let key = key();
        granted(&store, &claim(&key), LONG).await;
        let waiter = claim(&key);
        queued(&store, &waiter).await;
        waiters.push(waiter);
    }
    sent.take();
    let refresh = |waiter: &Claim| Renewal::ticket(waiter.clone(), ticket()).with_timeout(LIMIT);
    assert!(matches!(store.renew(&refresh(&waiters[0])).await.unwrap(), Standing::Waiting(_)));
    store.renew_many(&waiters[1..].iter().map(refresh).collect::<Vec<_>>()).await.into_iter().for_each(|answer| {
        assert!(matches!(answer.unwrap(), Standing::Waiting(_)));
    });
    commands.append(&mut writes(&sent));
    assert_eq!(commands.len(), 2, "{commands:?}");
    let mut leases = Vec::new();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let holder = Claim::new(key(), id()).with_mode(mode);
        let grant = granted(&store, &holder, LONG / 2).await;
        sent.take();
        let renewal = Renewal::lease(holder.clone(), grant.token, LONG).with_timeout(LIMIT);
        assert_eq!(store.renew(&renewal).await.unwrap(), Standing::Held { remaining: LONG });
        commands.append(&mut writes(&sent));
        leases.push(holder);
    }
    assert_eq!(commands.len(), 4, "{commands:?}");
    for waiter in &waiters {
        age_ticket(&world, &name, waiter, 2 * LONG).await;
    }
    let mut before = Vec::new();
    for claim in waiters.iter().chain(&leases) {
        before.push(record(&world, &name, claim.key()).await);
    }
    arrive_late(&world, &commands).await;
    for (claim, before) in waiters.iter().chain(&leases).zip(before) {
        assert_eq!(record(&world, &name, claim.key()).await, before);
    }
}

/// Each takes a lease away; the holder that comes after it keeps its own.
async fn a_late_forced_release_takes_nothing_from_the_next_holder(world: World) {
    let (store, sent, name) = store(&world).await;
    let (one, holder, owners, floor) = (key(), key(), key(), key());
    let keys = [&one, &holder, &owners, &floor];
    let mut first = Vec::new();
    for key in keys {
        let claim = claim(key);
        granted_to(&store, &claim, "first").await;
        first.push(claim);
    }
    sent.take();
    assert!(store.force_release(&one, "late").await.unwrap().is_some());
    assert!(store.force_release_holder(&holder, first[1].id(), "late").await.unwrap().is_some());
    assert!(store.release_matching(&LockFilter::new().owner("first"), "late").await.unwrap() >= 2);
    let token = record(&world, &name, &floor).await.unwrap().get_i64("fencingToken").unwrap();
    let token = u64::try_from(token).unwrap() + (60 << 21);
    assert!(store.raise_tokens(FencingToken::new(token)).await.unwrap() >= 4);
    let commands = writes(&sent);
    assert_eq!(commands.len(), 4, "{commands:?}");
    // As they were before, under other holders.
    world.raw(&name).delete_many(doc! {}).await.unwrap();
    for key in keys {
        granted_to(&store, &claim(key), "first").await;
    }
    let before = record_of_each(&world, &name, &keys).await;
    // That of one holder matches no record now.
    assert!(arrive_late(&world, &commands).await >= 1);
    assert_eq!(record_of_each(&world, &name, &keys).await, before);
}

async fn granted_to(store: &MongoStore, claim: &Claim, owner: &str) {
    let reply = store.try_acquire(&attempt(claim).with_holder(Holder::new().with_owner(owner))).await.unwrap();
    assert!(matches!(reply, Reply::Granted(_)), "{reply:?}");
}

async fn record_of_each(world: &World, name: &str, keys: &[&LockKey]) -> Vec<Option<Document>> {
    let mut records = Vec::new();
    for key in keys {
        records.push(record(world, name, key).await);
    }
    records
}
