//! Documents that other programs write without locks.

use std::time::Duration;

use distlock_api::{ErrorKind, LockFilter, LockProvider, LockProviderExt, ReleaseOutcome};
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::{Change, DocumentLocks};
use serde::Deserialize;

use super::Bank;
use crate::Checks;
use crate::world::{World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_field_of_another_kind);
    check!(checks, documents_field_overwritten_while_held);
    check!(checks, documents_plain_writers);
    check!(checks, documents_readers);
    check!(checks, documents_of_another_type);
}

fn others() -> Vec<Bson> {
    vec![
        "closed".into(),
        7.into(),
        Bson::Null,
        Bson::Boolean(true),
        Bson::Array(vec![]),
        vec![doc! { "fencingToken": 7_i64 }].into(),
        doc! {}.into(),
        doc! { "door": 3 }.into(),
        doc! { "fencingToken": "$seven" }.into(),
        doc! { "fencingToken": [7_i64] }.into(),
    ]
}

async fn documents_field_of_another_kind(world: World) {
    let documents = world.raw(&random_name("documents"));
    let locks = DocumentLocks::builder(&documents).build().unwrap();
    let with_default = DocumentLocks::builder(&documents).default_document(&doc! { "a": 1 }).build().unwrap();
    for (n, other) in others().into_iter().enumerate() {
        let id = format!("{n}");
        let stored = doc! { "_id": &id, "lock": other.clone(), "z": 1 };
        documents.insert_one(stored.clone()).await.unwrap();
        for locks in [&locks, &with_default] {
            for error in [
                locks.lock(id.as_str()).await.unwrap_err(),
                locks.try_lock(id.as_str()).await.unwrap_err(),
                locks.provider().acquire(&id).await.unwrap_err(),
            ] {
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Corrupt, false), "{other}: {error:?}");
                crate::guide::lists(&error);
            }
            let provider = locks.provider();
            let admin = provider.admin().unwrap();
            let key = locks.key(id.as_str()).unwrap();
            assert_eq!(admin.inspect(&key).await.unwrap(), None);
            assert_eq!(admin.force_release(&key, "why").await.unwrap(), None);
        }
        assert_eq!(documents.find_one(doc! { "_id": &id }).await.unwrap().unwrap(), stored);
        // With another field they can be locked.
        let elsewhere = DocumentLocks::builder(&documents).field("_lease").build().unwrap();
        elsewhere.lock(id.as_str()).await.unwrap().commit(Change::new().set("z", 2)).await.unwrap();
        let mut after = documents.find_one(doc! { "_id": &id }).await.unwrap().unwrap();
        assert!(after.remove("_lease").is_some());
        assert_eq!(after, doc! { "_id": &id, "lock": other, "z": 2 });
    }
    let provider = locks.provider();
    let filter = LockFilter::new();
    let page = provider.admin().unwrap().page(&filter, None, 100.try_into().unwrap()).await.unwrap();
    assert!(page.is_empty(), "{page:?}");
}

/// After any call of the holder, the field has the value of the other program.
async fn documents_field_overwritten_while_held(world: World) {
    for other in others() {
        let bank = Bank::of(&world);
        let id = bank.open().await;
        let change = |other: &Bson| doc! { "$set": { "lock": other.clone() } };
        let locks = bank.locks();

        let guard = locks.lock(id.as_str()).await.unwrap();
        bank.raw.update_one(doc! { "_id": &id }, change(&other)).await.unwrap();
        let stored = bank.raw(id.as_str()).await;
        assert!(guard.commit(doc! { "balance": 99_i64 }).await.unwrap_err().is_already_lost(), "{other}");
        assert_eq!(bank.raw(id.as_str()).await, stored);
        bank.raw.update_one(doc! { "_id": &id }, doc! { "$unset": { "lock": "" } }).await.unwrap();

        let guard = locks.lock(id.as_str()).await.unwrap();
        bank.raw.update_one(doc! { "_id": &id }, change(&other)).await.unwrap();
        let stored = bank.raw(id.as_str()).await;
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
        assert_eq!(bank.raw(id.as_str()).await, stored);
        bank.raw.update_one(doc! { "_id": &id }, doc! { "$unset": { "lock": "" } }).await.unwrap();

        // Renewals of other locks are not affected.
        let second = bank.open().await;
        let ttl = Duration::from_secs(6);
        let doomed = locks.lock(id.as_str()).ttl(ttl).await.unwrap();
        let healthy = locks.lock(second.as_str()).ttl(ttl).await.unwrap();
        bank.raw.update_one(doc! { "_id": &id }, change(&other)).await.unwrap();
        doomed.lost().await;
        assert!(!healthy.is_lost());
        assert_eq!(bank.raw(id.as_str()).await.get("lock"), Some(&other));
    }
}

async fn documents_plain_writers(world: World) {
    let bank = Bank::of(&world);
    let (locks, id) = (bank.locks(), bank.open().await);
    // An update of single fields does not affect the lock, and a commit of other fields keeps them.
    let guard = locks.lock(id.as_str()).await.unwrap();
    bank.raw.update_one(doc! { "_id": &id }, doc! { "$set": { "owner": "plain" } }).await.unwrap();
    guard.commit(doc! { "balance": 11_i64 }).await.unwrap();
    let account = bank.read(&id).await;
    assert_eq!((&*account.owner, account.balance), ("plain", 11));
    // A replacement removes the lock, and the holder cannot write.
    let mut guard = locks.lock(id.as_str()).await.unwrap();
    bank.accounts.replace_one(doc! { "_id": &id }, &account).await.unwrap();
    assert_eq!(guard.save(doc! { "balance": 99_i64 }).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.is_lost());
    assert!(guard.commit_document().await.unwrap_err().is_already_lost());
    assert_eq!(bank.accounts.find_one(doc! { "_id": &id }).await.unwrap(), Some(account));
    let again = locks.lock(id.as_str()).await.unwrap();
    // A deletion removes the lock with the document.
    bank.raw.delete_one(doc! { "_id": &id }).await.unwrap();
    assert!(again.commit_document().await.unwrap_err().is_already_lost());
    assert_eq!(bank.raw.count_documents(doc! {}).await.unwrap(), 0, "and is not made again");
}

/// Readers that ignore locks find the document unchanged.
async fn documents_readers(world: World) {
    #[derive(Deserialize)]
    struct Reader {
        owner: String,
    }
    let bank = Bank::of(&world);
    let id = bank.open().await;
    let _guard = bank.locks().lock(id.as_str()).await.unwrap();
    let reader = bank.raw.clone_with_type::<Reader>().find_one(doc! { "_id": &id }).await.unwrap().unwrap();
    assert_eq!(reader.owner, "$ada");
    let document: Document = bank.raw(id).await;
    assert_eq!(document.keys().collect::<Vec<_>>(), ["_id", "owner", "balance", "lock"]);
}

async fn documents_of_another_type(world: World) {
    let bank = Bank::of(&world);
    let locks = bank.locks();
    bank.raw.insert_one(doc! { "_id": "odd", "balance": "much" }).await.unwrap();
    let error = locks.lock("odd").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Corrupt, false), "{error:?}");
    assert_eq!(error.key().unwrap().as_str(), "odd");
    let mut document = bank.freed("odd").await;
    document.remove("lock");
    assert_eq!(document, doc! { "_id": "odd", "balance": "much" });
    // A save after which the document is no `T` reports that. It was carried out.
    let id = bank.open().await;
    let mut guard = locks.lock(id.as_str()).await.unwrap();
    let error = guard.save(doc! { "balance": "much" }).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.is_outcome_unknown(), "{error:?}");
    assert_eq!(guard.balance, 10, "what is here stays");
    guard.commit_document().await.unwrap();
    assert_eq!(bank.read(&id).await.balance, 10);
}
