//! The commands: their number, their concerns, and their sessions.

use distlock_api::LockKey;
use distlock_engine::store::{Attempt, BatchRenewStore, LeaseStore, QueueStore, Release, Renewal, Reply, Ticket};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::mongodb::options::{
    Acknowledgment, ClientOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};
use distlock_mongo::{MongoProvider, MongoStore};

use super::Checks;
use super::world::{LONG, Sent, World, admin, busy, claim, granted, key, queued, random_name, release, renew, ticket};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, R17 majority_regardless_of_the_client);
    check!(checks, R23 only_plain_releases_wait_for_the_primary_alone);
    check!(checks, one_command_per_operation);
    check!(checks, R11 one_session_per_claim);
    check!(checks, R11 claims_have_no_order_without_retryable_writes);
    check!(checks, renewal_scans_no_collection);
    check!(checks, commands_of_the_queue);
    check!(checks, refreshing_scans_no_collection);
    if checks.is_replica_set() {
        check!(checks, a_command_without_a_change_writes_nothing);
    }
}

async fn store_with(world: &World, change: impl FnOnce(&mut ClientOptions)) -> (MongoStore, Sent, String) {
    let sent = Sent::default();
    let (client, _) = world
        .connect(|options| {
            options.command_event_handler = Some(sent.handler());
            change(options);
        })
        .await;
    let name = random_name("locks");
    (world.store_on(&client, &name), sent, name)
}

async fn majority_regardless_of_the_client(world: World) {
    let settings: [fn(&mut ClientOptions); 4] = [
        |options| options.write_concern = Some(WriteConcern::from(Acknowledgment::Nodes(0))),
        |options| {
            options.write_concern = Some(WriteConcern::builder().w(Acknowledgment::Nodes(1)).journal(false).build());
        },
        |options| {
            let secondary = ReadPreference::Secondary { options: None };
            options.selection_criteria = Some(SelectionCriteria::ReadPreference(secondary));
        },
        |options| options.read_concern = Some(ReadConcern::linearizable()),
    ];
    for change in settings {
        let (store, sent, _) = store_with(&world, change).await;
        let a = claim(&key());
        let token = granted(&store, &a, LONG).await.token;
        renew(&store, &a, token, LONG).await;
        renew(&store, &claim(a.key()), token, LONG).await;
        admin(&store).inspect(a.key()).await.unwrap().unwrap();
        admin(&store).force_release(a.key(), "test").await.unwrap().unwrap();
        let mut commands = sent.take();
        assert!(!release(&store, &a).await.is_released());
        let after = sent.take();
        assert!(!after.is_empty(), "a release that matches nothing is sent again, with the majority");
        commands.extend(after.into_iter().next_back());
        for command in commands {
            if command.contains_key("findAndModify") || command.contains_key("update") {
                assert_eq!(command.get_document("writeConcern").unwrap(), &doc! { "w": "majority" }, "{command}");
            } else if command.contains_key("find") {
                assert_eq!(command.get_document("readConcern").unwrap(), &doc! { "level": "local" }, "{command}");
                let mode =
                    command.get_document("$readPreference").ok().and_then(|preference| preference.get_str("mode").ok());
                assert!(matches!(mode, None | Some("primary" | "primaryPreferred")), "{command}");
            } else {
                assert!(command.contains_key("hello"), "{command}");
            }
        }
        store.prepare().await.unwrap();
    }
}

async fn only_plain_releases_wait_for_the_primary_alone(world: World) {
    let (store, sent, _) = store_with(&world, |_| ()).await;
    let concern = || {
        let commands = sent.take();
        let [command] = &*commands else { panic!("{commands:?}") };
        command.get_document("writeConcern").unwrap().clone()
    };
    let held = async || {
        let a = claim(&key());
        granted(&store, &a, LONG).await;
        sent.take();
        a
    };
    let (primary, majority) = (doc! { "w": 1 }, doc! { "w": "majority" });

    let a = held().await;
    assert!(release(&store, &a).await.is_released());
    assert_eq!(concern(), primary);

    // The waiter hears of its grant when the majority has it.
    let wanted = held().await;
    queued(&store, &claim(wanted.key())).await;
    sent.take();
    assert!(release(&store, &wanted).await.is_released());
    let commands = sent.take();
    assert_eq!(commands.last().unwrap().get_document("writeConcern").unwrap(), &majority, "{commands:?}");

    let mut closing = Release::new(held().await);
    closing.hold_at_least = Some(LONG);
    assert!(store.release(&closing).await.unwrap().is_released());
    assert_eq!(concern(), majority, "R13");

    let left = held().await;
    store.withdraw(&left, LONG).await.unwrap();
    assert_eq!(concern(), majority, "R11");
}

async fn one_command_per_operation(world: World) {
    let (store, sent, _) = store_with(&world, |_| ()).await;
    let a = claim(&key());
    granted(&store, &a, LONG).await;
    sent.take();
    let a = claim(&key());
    let token = granted(&store, &a, LONG).await.token;
    let only = |what: &str| {
        let commands = sent.take();
        assert_eq!(commands.len(), 1, "{what}: {commands:?}");
        commands.into_iter().next().unwrap()
    };
    let acquire = only("acquire");
    assert!(acquire.contains_key("findAndModify"));
    let bound = acquire.get("maxTimeMS").and_then(|bound| bound.as_i64().or(bound.as_i32().map(i64::from))).unwrap();
    assert!((1..=5000).contains(&bound), "{bound}");
    busy(&store, &claim(a.key())).await;
    only("busy");
    renew(&store, &a, token, LONG).await;
    assert!(only("renewal").contains_key("update"));
    let batch = [Renewal::lease(a.clone(), token, LONG), Renewal::lease(a.clone(), token, LONG * 2)];
    assert!(store.renew_many(&batch).await.iter().all(Result::is_ok));
    only("batch");
    assert!(release(&store, &a).await.is_released());
    assert!(only("release").contains_key("findAndModify"));
}

async fn one_session_per_claim(world: World) {
    let (store, sent, _) = store_with(&world, |_| ()).await;
    let (a, b) = (claim(&key()), claim(&key()));
    for claim in [&a, &b, &a] {
        granted(&store, claim, LONG).await;
    }
    assert!(release(&store, &a).await.is_released());
    assert!(release(&store, &b).await.is_released());
    let commands: Vec<Document> =
        sent.take().into_iter().filter(|command| command.contains_key("findAndModify")).collect();
    let session = |at: usize| commands[at].get_document("lsid").unwrap();
    let number = |at: usize| commands[at].get_i64("txnNumber");
    assert_eq!(store.capabilities().ordered_claims, world.topology == distlock_conformance_mongo::Topology::ReplicaSet);
    if store.capabilities().ordered_claims {
        assert_eq!((session(0), session(0)), (session(2), session(3)));
        assert_eq!(session(1), session(4));
        assert_ne!(session(0), session(1));
        assert!(number(0).unwrap() < number(2).unwrap() && number(2).unwrap() < number(3).unwrap());
        assert!(commands[0].get_document("readConcern").is_err(), "{:?}", commands[0]);
    } else {
        assert!((0..commands.len()).all(|at| number(at).is_err()));
    }
}

/// Without numbered writes the server refuses no late call, and the store does not declare that it
/// does.
async fn claims_have_no_order_without_retryable_writes(world: World) {
    let sent = Sent::default();
    let change = |options: &mut ClientOptions| {
        options.retry_writes = Some(false);
        options.command_event_handler = Some(sent.handler());
    };
    let (client, _) = world.connect(change).await;
    let builder =
        MongoProvider::builder_from_client(&client).database("distlock_test").collection(random_name("locks"));
    let store = builder.without_retryable_writes().build_store().unwrap();
    let a = claim(&key());
    let token = granted(&store, &a, LONG).await.token;
    renew(&store, &a, token, LONG).await;
    assert!(release(&store, &a).await.is_released());
    assert!(!store.capabilities().ordered_claims);
    let writes: Vec<_> = sent.take().into_iter().filter(|command| command.contains_key("findAndModify")).collect();
    assert!(writes.len() == 2 && writes.iter().all(|command| !command.contains_key("txnNumber")), "{writes:?}");
}

async fn renewal_scans_no_collection(world: World) {
    let (store, sent, name) = store_with(&world, |_| ()).await;
    let mut batch = Vec::new();
    for _ in 0..20 {
        let a = claim(&key());
        let token = granted(&store, &a, LONG).await.token;
        batch.push(Renewal::lease(a, token, LONG));
    }
    store.prepare().await.unwrap();
    sent.take();
    assert!(store.renew_many(&batch[..3]).await.iter().all(Result::is_ok));
    let update = sent.take().into_iter().next().unwrap();
    assert_eq!(update.get_array("updates").unwrap().len(), 1);
    let update = doc! { "update": name, "updates": update.get_array("updates").unwrap().clone() };
    let database = world.client.database("distlock_test");
    let plan = database.run_command(doc! { "explain": update, "verbosity": "executionStats" }).await.unwrap();
    let rejected = plan.get_document("queryPlanner").unwrap().get_array("rejectedPlans").unwrap();
    assert!(rejected.is_empty(), "{rejected:?}");
    let text = plan.get_document("queryPlanner").unwrap().get_document("winningPlan").unwrap().to_string();
    assert!(text.contains("IXSCAN") && !text.contains("COLLSCAN"), "{text}");
    let examined = plan.get_document("executionStats").unwrap().get("totalDocsExamined").cloned().unwrap();
    let examined = examined.as_i32().map(i64::from).or(examined.as_i64()).unwrap();
    assert!(examined <= 3, "{examined} documents examined, {text}");
}

async fn commands_of_the_queue(world: World) {
    let (store, sent, _) = store_with(&world, |_| ()).await;
    let key = key();
    let [a, b, c] = [(); 3].map(|()| claim(&key));
    granted(&store, &a, LONG).await;
    sent.take();
    let names = |expected: &[&str], what: &str| {
        let commands = sent.take();
        let names: Vec<_> = commands.iter().map(|command| command.keys().next().unwrap().as_str()).collect();
        assert_eq!(names, expected, "{what}");
    };
    queued(&store, &b).await;
    names(&["findAndModify"], "queueing up");
    queued(&store, &c).await;
    sent.take();
    assert_eq!(store.waiters(&a, LONG).await.unwrap(), 2);
    names(&["find"], "counting the waiters");
    let tickets = [Renewal::ticket(b.clone(), ticket()), Renewal::ticket(c.clone(), ticket())];
    assert!(store.renew_many(&tickets).await.iter().all(Result::is_ok));
    names(&["update", "find"], "refreshing tickets");
    assert!(release(&store, &a).await.is_released());
    names(&["findAndModify"], "handing over");
    store.withdraw(&c, LONG).await.unwrap();
    names(&["findAndModify"], "leaving");
    store.withdraw(&b, LONG).await.unwrap();
    names(&["findAndModify"], "leaving with a grant");
}

async fn refreshing_scans_no_collection(world: World) {
    let (store, sent, name) = store_with(&world, |_| ()).await;
    let mut batch = Vec::new();
    for _ in 0..20 {
        let a = claim(&key());
        granted(&store, &claim(a.key()), LONG).await;
        queued(&store, &a).await;
        batch.push(Renewal::ticket(a, ticket()));
    }
    store.prepare().await.unwrap();
    sent.take();
    assert!(store.renew_many(&batch[..3]).await.iter().all(Result::is_ok));
    let update = sent.take().into_iter().next().unwrap();
    let update = doc! { "update": name, "updates": update.get_array("updates").unwrap().clone() };
    let database = world.client.database("distlock_test");
    let plan = database.run_command(doc! { "explain": update, "verbosity": "executionStats" }).await.unwrap();
    let examined = plan.get_document("executionStats").unwrap().get("totalDocsExamined").cloned().unwrap();
    let examined = examined.as_i32().map(i64::from).or(examined.as_i64()).unwrap();
    assert!(examined <= 3, "{examined} documents examined, {plan}");
}

/// Returns the entries of the oplog that concern a collection.
async fn written(world: &World, name: &str) -> u64 {
    let oplog = world.client.database("local").collection::<Document>("oplog.rs");
    oplog.count_documents(doc! { "ns": format!("distlock_test.{name}") }).await.unwrap()
}

async fn a_command_without_a_change_writes_nothing(world: World) {
    let (store, name) = world.named_store();
    let key = key();
    let [a, b] = [(); 2].map(|()| claim(&key));
    let grant = granted(&store, &a, LONG).await;
    queued(&store, &b).await;
    let before = written(&world, &name).await;
    assert_eq!(before, 2);
    for _ in 0..3 {
        busy(&store, &claim(&key)).await;
        busy(&store, &b).await;
        let full = Attempt::new(claim(&key), LONG).with_ticket(Ticket::new(LONG, LONG, 1));
        assert!(matches!(store.try_acquire(&full).await.unwrap(), Reply::Busy(_)));
        assert!(!release(&store, &claim(&key)).await.is_released());
        store.renew(&Renewal::ticket(claim(&key), ticket())).await.unwrap();
        renew(&store, &claim(&key), grant.token, LONG).await;
        admin(&store).force_release(&LockKey::new("other").unwrap(), "test").await.unwrap();
        store.waiters(&a, LONG).await.unwrap();
    }
    assert_eq!(written(&world, &name).await, before);
    // A hand-over is still one write.
    assert!(release(&store, &a).await.is_released());
    assert!(release(&store, &a).await.is_released(), "repeated");
    assert_eq!(written(&world, &name).await, before + 1);
}
