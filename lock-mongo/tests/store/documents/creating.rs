//! Documents that are inserted by their acquisition.

use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Change, DocumentLocks};
use tokio::task::JoinSet;

use super::{Account, Bank, account};
use crate::Checks;
use crate::world::{World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_creators_race);
    check!(checks, documents_created_once);
    check!(checks, documents_defaults);
    check!(checks, documents_no_index);
    check!(checks, documents_minimum_hold);
}

async fn documents_creators_race(world: World) {
    let bank = Bank::of(&world);
    bank.raw.insert_one(doc! { "_id": "warm" }).await.unwrap();
    for _ in 0..20 {
        let id = random_name("new");
        let mut creators = JoinSet::new();
        for n in 0..8 {
            let (locks, id) = (bank.locks(), id.clone());
            let mine = Account { balance: n, ..account("ignored") };
            creators.spawn(async move { locks.try_lock(id).or_insert(&mine).await.map(|locked| (n, locked)) });
        }
        let (mut held, mut busy) = (None, 0);
        while let Some(answer) = creators.join_next().await {
            match answer.unwrap().expect("never an error") {
                (n, Some(guard)) => assert!(held.replace((n, guard)).is_none(), "two of them"),
                (_, None) => busy += 1,
            }
        }
        let (n, guard) = held.expect("one of them");
        assert_eq!(busy, 7);
        assert_eq!(*guard, Account { balance: n, ..account(&id) });
    }
}

/// The losers of the race wait, and get the winner's document.
async fn documents_created_once(world: World) {
    let bank = Bank::of(&world);
    let id = random_name("new");
    let mut creators = JoinSet::new();
    for _ in 0..6 {
        let locks = bank.builder().default_document(&account("ignored")).build().unwrap();
        let id = id.clone();
        creators.spawn(async move {
            let mut guard = locks.lock(id).timeout(Duration::from_secs(20)).await.unwrap();
            guard.balance += 1;
            guard.commit_document().await.unwrap();
        });
    }
    creators.join_all().await;
    assert_eq!(bank.read(&id).await, Account { balance: 16, ..account(&id) });
}

async fn documents_defaults(world: World) {
    let bank = Bank::of(&world);
    let locks = bank.builder().default_document(&account("ignored")).build().unwrap();
    // A document with nothing but an `_id` counts as missing. Any other is not changed.
    bank.raw
        .insert_many([doc! { "_id": "bare" }, doc! { "_id": "other", "owner": "x", "balance": 1_i64 }])
        .await
        .unwrap();
    assert_eq!(*locks.lock("bare").await.unwrap(), account("bare"));
    assert_eq!(locks.lock("other").await.unwrap().owner, "x");
    let guard = locks.lock("made").or_insert(&Account { balance: 3, ..account("z") }).await.unwrap();
    assert_eq!(guard.balance, 3, "the acquisition's own counts first");
    let before = bank.raw("made").await;
    assert!(bank.locks().try_lock("made").await.unwrap().is_none());
    assert_eq!(bank.raw("made").await, before, "a busy answer writes nothing");

    let documents = world.raw(&random_name("documents"));
    let default = doc! { "lock": 1 };
    let error = DocumentLocks::builder(&documents).default_document(&default).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let locks = DocumentLocks::builder(&documents).build().unwrap();
    let error = locks.lock("a").or_insert(&default).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    assert_eq!(documents.count_documents(doc! {}).await.unwrap(), 0);
    documents.insert_one(doc! { "_id": "b", "x": 1 }).await.unwrap();
    let guard = locks.lock("b").or_insert(&doc! { "a": 1, "x": 2 }).await.unwrap();
    assert_eq!(*guard, doc! { "_id": "b", "x": 1 }, "what is there is not filled up");
}

/// Nothing is ever removed from an application's collection.
async fn documents_no_index(world: World) {
    for by_owner in [false, true] {
        let bank = Bank::of(&world);
        let builder = bank.builder();
        let locks = if by_owner { builder.owner_index() } else { builder }.build().unwrap();
        let id = bank.open().await;
        locks.provider().prepare().await.unwrap();
        locks.lock(id).await.unwrap().commit(Change::new()).await.unwrap();
        let names = bank.raw.list_index_names().await.unwrap();
        assert_eq!(names.len(), 1 + 2 * usize::from(by_owner), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("purge")));
    }
}

async fn documents_minimum_hold(world: World) {
    let bank = Bank::of(&world);
    let hold = Duration::from_secs(5);
    let locks = bank.builder().lease(LeaseOptions::new().hold_at_least(hold)).build().unwrap();
    let id = bank.open().await;
    let start = std::time::Instant::now();
    locks.lock(id.as_str()).await.unwrap().commit(doc! { "balance": 1_i64 }).await.unwrap();
    assert!(locks.try_lock(id.as_str()).await.unwrap().is_none(), "C25");
    let guard = locks.lock(id.as_str()).await.unwrap();
    assert!(start.elapsed() >= hold, "{:?}", start.elapsed());
    assert_eq!(guard.balance, 1);
}
