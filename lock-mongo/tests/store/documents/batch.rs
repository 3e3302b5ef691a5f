//! Several documents by one command and a query (R24).

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt};
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::{DocumentGuard, DocumentLocks};
use futures_util::future::join_all;

use super::super::Checks;
use super::super::world::{Sent, World, random_name};
use super::{Account, Bank, close};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_are_locked_by_one_command);
    check!(checks, C26 documents_are_read_by_one_command);
    check!(checks, a_batch_leaves_the_lock_of_a_single_attempt);
    check!(checks, C1 a_batch_locks_no_document_in_use);
    check!(checks, C5 a_batch_of_documents_has_greater_tokens);
    check!(checks, R22 a_batch_leaves_a_field_that_is_no_lock);
    check!(checks, new_documents_go_in_no_batch);
    check!(checks, documents_without_fields_get_the_default);
    check!(checks, long_documents_go_in_no_batch);
    check!(checks, alone a_batch_that_is_not_permitted_is_made_one_by_one);
    check!(checks, documents_of_several_tasks_go_together);
}

/// Locks that know their server and its clock, and the commands that they send.
async fn bank(world: &World) -> (Bank, DocumentLocks<Account>, Sent) {
    let (client, sent) = world.recorded_client().await;
    let bank = Bank::on(&client, &random_name("accounts"));
    let locks = bank.locks();
    meet(&bank, &locks).await;
    sent.take();
    (bank, locks, sent)
}

async fn meet(bank: &Bank, locks: &DocumentLocks<Account>) {
    let id = bank.open().await;
    assert!(locks.lock(id).await.unwrap().release().await.unwrap().is_released());
}

async fn open(bank: &Bank, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(bank.open().await);
    }
    ids.sort_unstable();
    ids
}

async fn release(guards: Vec<DocumentGuard<Account>>) {
    let released = join_all(guards.into_iter().map(|guard| guard.release())).await;
    assert!(released.into_iter().all(|outcome| outcome.unwrap().is_released()));
}

/// The commands that were sent, but for those of a change stream.
fn names(sent: &Sent) -> Vec<String> {
    let names = sent.take().into_iter().map(|command| command.keys().next().unwrap().clone());
    names.filter(|name| ["update", "find", "findAndModify"].contains(&&**name)).collect()
}

async fn documents_are_locked_by_one_command(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let ids = open(&bank, 5).await;
    sent.take();
    for round in 0..3 {
        let guards = locks.lock_all(ids.iter().map(String::as_str)).await.unwrap();
        assert_eq!(names(&sent), ["update", "find"], "round {round}: never locked, released, committed");
        for (guard, id) in guards.iter().zip(&ids) {
            let expected = Account { balance: 10 + i64::from(round == 2), ..super::account(id) };
            assert_eq!((guard.key().as_str(), &**guard), (&**id, &expected));
        }
        if round == 1 {
            for guard in guards {
                let new = guard.balance + 1;
                guard.commit(doc! { "balance": new }).await.unwrap();
            }
            assert_eq!(names(&sent), ["findAndModify"; 5]);
        } else {
            release(guards).await;
            assert_eq!(names(&sent), ["update"]);
        }
    }
    // Without the documents, and on the same locks.
    let all = locks.provider().acquire_all(ids.iter().map(String::as_str)).await.unwrap();
    assert_eq!(names(&sent), ["update", "find"]);
    all.release().await.unwrap();
    close(locks).await;
}

async fn documents_are_read_by_one_command(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let elsewhere = bank.locks();
    let ids = open(&bank, 5).await;
    sent.take();
    for round in 0..2 {
        let guards = locks.lock_all(ids.iter().map(String::as_str)).shared().await.unwrap();
        assert_eq!(names(&sent), ["update", "find"], "round {round}: never locked, released");
        for (guard, id) in guards.iter().zip(&ids) {
            assert_eq!((guard.key().as_str(), &**guard), (&**id, &super::account(id)));
            let beside = elsewhere.try_lock(&**id).shared().await.unwrap().expect("beside the other");
            assert!(beside.fencing_token() > guard.fencing_token(), "C5");
            assert!(elsewhere.try_lock(&**id).await.unwrap().is_none(), "a writer");
            assert!(beside.release().await.unwrap().is_released());
        }
        release(guards).await;
        for id in &ids {
            let guard = elsewhere.try_lock(&**id).await.unwrap().expect("all readers have left");
            assert!(guard.release().await.unwrap().is_released());
        }
        sent.take();
    }
}

/// The document without what differs between two for other reasons.
fn comparable(mut document: Document) -> Document {
    document.remove("_id");
    let lock = document.get_document_mut("lock").unwrap();
    *lock = super::super::batch::comparable(std::mem::take(lock));
    document
}

async fn a_batch_leaves_the_lock_of_a_single_attempt(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let single = bank.open().await;
    let ids = open(&bank, 2).await;
    for _ in 0..2 {
        let one = locks.lock(single.as_str()).owner("me").metadata("why", "$test").await.unwrap();
        sent.take();
        let all = locks.lock_all(ids.iter().map(String::as_str)).owner("me").metadata("why", "$test").await.unwrap();
        assert_eq!(names(&sent), ["update", "find"]);
        let expected = comparable(bank.raw(single.as_str()).await);
        for id in &ids {
            assert_eq!(comparable(bank.raw(id.as_str()).await), expected);
        }
        one.release().await.unwrap();
        sent.take();
        release(all).await;
        assert_eq!(names(&sent), ["update"]);
        let expected = comparable(bank.raw(single.as_str()).await);
        for id in &ids {
            assert_eq!(comparable(bank.raw(id.as_str()).await), expected);
        }
    }
    close(locks).await;
}

async fn a_batch_locks_no_document_in_use(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let elsewhere = bank.locks();
    let ids = open(&bank, 4).await;
    let held = elsewhere.lock(ids[2].as_str()).await.unwrap();
    sent.take();
    assert!(locks.try_lock_all(ids.iter().map(String::as_str)).await.unwrap().is_none());
    assert_eq!(names(&sent)[..2], ["update", "find"]);
    for id in [&ids[0], &ids[1], &ids[3]] {
        bank.freed(id).await;
    }
    assert_eq!(held.loss(), None);
    // From the one that is in use it waits.
    let waiting = tokio::spawn({
        let (locks, ids) = (locks.clone(), ids.clone());
        async move { locks.lock_all(ids).timeout(Duration::from_secs(20)).await }
    });
    let provider = locks.provider();
    while provider.accounting().waiting == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let last = held.fencing_token();
    held.commit(doc! { "balance": 17 }).await.unwrap();
    let guards = waiting.await.unwrap().unwrap();
    assert_eq!(guards.iter().map(|guard| guard.balance).collect::<Vec<_>>(), [10, 10, 17, 10]);
    assert!(guards[2].fencing_token() > last);
    release(guards).await;
    close(locks).await;
    close(elsewhere).await;
}

async fn a_batch_of_documents_has_greater_tokens(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let ids = open(&bank, 2).await;
    let lock_all = async || locks.lock_all(ids.iter().map(String::as_str)).await.unwrap();
    let mut last = [0, 0];
    for round in 0..4 {
        if round == 2 {
            // Ahead of every clock.
            last[0] = 1 << 52;
            let of_first = doc! { "_id": &ids[0] };
            bank.raw.update_one(of_first, doc! { "$set": { "lock.fencingToken": 1_i64 << 52 } }).await.unwrap();
        }
        sent.take();
        let guards = lock_all().await;
        assert_eq!(names(&sent), ["update", "find"]);
        for (guard, last) in guards.iter().zip(&mut last) {
            let token = guard.fencing_token().get();
            assert!(token > *last, "round {round}: {token} after {last}");
            *last = token;
        }
        release(guards).await;
    }
    close(locks).await;
}

async fn a_batch_leaves_a_field_that_is_no_lock(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let foreign = [
        Bson::Null,
        "locked".into(),
        doc! {}.into(),
        doc! { "fencingToken": "7" }.into(),
        vec![doc! { "fencingToken": 7_i64 }].into(),
    ];
    for field in foreign {
        let ids = open(&bank, 3).await;
        bank.raw.update_one(doc! { "_id": &ids[1] }, doc! { "$set": { "lock": &field } }).await.unwrap();
        sent.take();
        let error = locks.lock_all(ids.iter().map(String::as_str)).await.unwrap_err();
        assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::Corrupt, &*ids[1]), "{field}");
        assert_eq!(names(&sent)[..2], ["update", "find"]);
        assert_eq!(bank.raw(ids[1].as_str()).await.get("lock"), Some(&field));
        for id in [&ids[0], &ids[2]] {
            bank.freed(id).await;
        }
    }
    close(locks).await;
}

/// An upsert inserts the default, and a batch would only look for it before.
async fn new_documents_go_in_no_batch(world: World) {
    let (bank, _, sent) = bank(&world).await;
    let locks = bank.builder().default_document(&super::account("new")).build().unwrap();
    meet(&bank, &locks).await;
    let ids: Vec<String> = (0..3).map(|_| random_name("account")).collect();
    for round in 0..2 {
        sent.take();
        let guards = locks.lock_all(ids.iter().map(String::as_str)).await.unwrap();
        let expected: &[&str] = if round == 0 { &["findAndModify"; 3] } else { &["update", "find"] };
        assert_eq!(names(&sent), expected, "round {round}");
        assert!(guards.iter().all(|guard| guard.balance == 10));
        release(guards).await;
    }
    close(locks).await;
}

/// One with nothing but its `_id` counts as missing, also if it was known before.
async fn documents_without_fields_get_the_default(world: World) {
    let (bank, _, sent) = bank(&world).await;
    let locks = bank.builder().default_document(&super::account("new")).build().unwrap();
    meet(&bank, &locks).await;
    let ids = open(&bank, 2).await;
    let lock_all = async || locks.lock_all(ids.iter().map(String::as_str)).await.unwrap();
    release(lock_all().await).await;
    bank.raw.replace_one(doc! { "_id": &ids[0] }, doc! { "_id": &ids[0] }).await.unwrap();
    sent.take();
    let guards = lock_all().await;
    assert_eq!(names(&sent), ["update", "find", "findAndModify"]);
    assert!(guards.iter().all(|guard| guard.balance == 10));
    release(guards).await;
    close(locks).await;
}

/// All callers would wait for the longest.
async fn long_documents_go_in_no_batch(world: World) {
    let (bank, locks, sent) = bank(&world).await;
    let ids = open(&bank, 3).await;
    let long = doc! { "$set": { "owner": "a".repeat(20_000) } };
    bank.raw.update_many(doc! {}, long).await.unwrap();
    for round in 0..2 {
        sent.take();
        let guards = locks.lock_all(ids.iter().map(String::as_str)).await.unwrap();
        let expected: &[&str] = if round == 0 { &["update", "find"] } else { &["findAndModify"; 3] };
        assert_eq!(names(&sent), expected, "round {round}");
        assert!(guards.iter().all(|guard| guard.owner.len() == 20_000));
        release(guards).await;
    }
    close(locks).await;
}

/// A single attempt names the missing privilege.
async fn a_batch_that_is_not_permitted_is_made_one_by_one(world: World) {
    let (app, sent) = (random_name("app"), Sent::default());
    let connecting = world.connect(|options| {
        options.app_name = Some(app.clone());
        options.command_event_handler = Some(sent.handler());
    });
    let bank = Bank::on(&connecting.await.0, &random_name("accounts"));
    let locks = bank.locks();
    meet(&bank, &locks).await;
    let ids = open(&bank, 2).await;
    let data = doc! { "failCommands": ["update"], "appName": &app, "errorCode": 13 };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data }).await;
    sent.take();
    let guards = locks.try_lock_all(ids.iter().map(String::as_str)).await.unwrap().expect("free");
    assert_eq!(names(&sent), ["update", "findAndModify", "findAndModify"]);
    release(guards).await;
    close(locks).await;
}

/// Each brings its own document.
async fn documents_of_several_tasks_go_together(world: World) {
    const TASKS: usize = 64;
    const TURNS: usize = 10;
    let (bank, locks, sent) = bank(&world).await;
    let ids = open(&bank, TASKS).await;
    sent.take();
    join_all(ids.iter().map(async |id| {
        for turn in 0..TURNS as i64 {
            let account = locks.lock(id.as_str()).await.unwrap();
            assert_eq!((&*account._id, account.balance), (&**id, 10 + turn));
            account.commit(doc! { "balance": 11 + turn }).await.unwrap();
        }
    }))
    .await;
    let commands = names(&sent);
    let commits = commands.iter().filter(|name| *name == "findAndModify").count();
    println!("{} commands for {TASKS} tasks with {TURNS} turns each, {commits} findAndModify", commands.len());
    assert!(commits < TASKS * TURNS * 3 / 2, "{commits}");
    for id in &ids {
        assert_eq!(bank.read(id).await.balance, 10 + TURNS as i64);
    }
    close(locks).await;
}
