//! Changes that MongoDB refuses: the document is unchanged, and the lock is still held.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, ReleaseOutcome, RenewalPolicy};
use distlock_mongo::mongodb::IndexModel;
use distlock_mongo::mongodb::bson::{Bson, doc};
use distlock_mongo::mongodb::options::IndexOptions;
use distlock_mongo::{Change, CommitError};

use super::{Account, Bank, account};
use crate::Checks;
use crate::world::{LONG, World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_validator);
    check!(checks, documents_strict_validator);
    check!(checks, documents_unique_index);
    check!(checks, documents_too_large);
}

async fn documents_validator(world: World) {
    let bank = Bank::of(&world);
    let id = bank.open().await;
    let rule = doc! { "collMod": bank.raw.name(), "validator": { "balance": { "$gte": 0 } } };
    world.client.database("distlock_test").run_command(rule).await.unwrap();
    let (locks, others) = (bank.locks(), bank.locks());
    let mut guard = locks.lock(id.as_str()).await.unwrap();
    let before = bank.raw(id.as_str()).await;

    let overdrawn = || Change::new().set("balance", -1_i64);
    let error = guard.save(overdrawn()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Rejected, false), "{error:?}");
    assert_eq!(guard.balance, 10);
    let not = guard.commit_or_keep(overdrawn()).await.unwrap_err();
    assert!(is_rejected(&not.error, 121) && not.error.to_string().contains("validator"), "{not:?}");
    assert_eq!(bank.raw(id.as_str()).await, before, "neither document nor lease");
    let guard = not.guard.expect("still held");
    assert!(!guard.is_lost() && others.try_lock(id.as_str()).await.unwrap().is_none(), "still held");
    guard.commit(doc! { "balance": 0_i64 }).await.unwrap();
    assert_eq!(bank.read(&id).await.balance, 0);

    let guard = locks.lock(id.as_str()).await.unwrap();
    let kept: Box<dyn std::error::Error + Send + Sync> = guard.commit(overdrawn()).await.unwrap_err().into();
    others.lock(id.as_str()).timeout(Duration::from_secs(20)).await.unwrap().release().await.unwrap();
    assert!(kept.downcast_ref().is_some_and(CommitError::is_rejected), "an error that is kept locks nothing");
    // The guard that a rejected commit returns is renewed.
    let every = RenewalPolicy::Every(Duration::from_secs(1));
    let guard = locks.lock(id.as_str()).ttl(Duration::from_secs(10)).renewal(every).await.unwrap();
    let guard = guard.commit_or_keep(overdrawn()).await.unwrap_err().guard.unwrap();
    let until = guard.valid_until();
    while guard.valid_until() == until && !guard.is_lost() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let provider = locks.provider();
    provider.close().await.unwrap();
    assert!(provider.accounting().balances() && provider.accounting().lost == 0, "{:?}", provider.accounting());
}

fn is_rejected(error: &CommitError, by: i32) -> bool {
    matches!(error, CommitError::Rejected { error, code: Some(code) } if error.kind() == ErrorKind::Rejected && *code == by)
}

/// A validator that does not allow the field refuses the lock, and the error names it.
async fn documents_strict_validator(world: World) {
    let name = random_name("accounts");
    let schema = doc! { "$jsonSchema": {
        "bsonType": "object",
        "properties": { "_id": {}, "owner": { "bsonType": "string" }, "balance": { "bsonType": "long" } },
        "additionalProperties": false,
    } };
    world.client.database("distlock_test").create_collection(&name).validator(schema).await.unwrap();
    let bank = Bank::on(&world.client, &name);
    let id = bank.open().await;
    let error = bank.locks().lock(id.as_str()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Rejected, false), "{error:?}");
    assert_eq!(bank.raw(id.as_str()).await.len(), 3);
}

async fn documents_unique_index(world: World) {
    let bank = Bank::of(&world);
    let (a, b) = (bank.open().await, bank.open().await);
    bank.raw.update_one(doc! { "_id": &a }, doc! { "$set": { "owner": "taken" } }).await.unwrap();
    let unique = IndexOptions::builder().unique(true).build();
    bank.raw.create_index(IndexModel::builder().keys(doc! { "owner": 1 }).options(unique).build()).await.unwrap();
    let locks = bank.locks();
    let guard = locks.lock(b.as_str()).await.unwrap();
    let not = guard.commit_or_keep(doc! { "owner": "taken" }).await.unwrap_err();
    assert!(is_rejected(&not.error, 11000) && not.error.to_string().contains("unique"), "{not:?}");
    not.guard.unwrap().commit(doc! { "owner": "free" }).await.unwrap();
    assert_eq!(bank.read(&b).await.owner, "free");
    // So does a default that violates an index. That is no lost race.
    let default = Account { owner: "taken".into(), ..account("x") };
    let error = locks.lock("new").or_insert(&default).timeout(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Rejected, false), "{error:?}");
}

async fn documents_too_large(world: World) {
    let bank = Bank::of(&world);
    let documents = bank.raw.clone();
    let locks = distlock_mongo::DocumentLocks::builder(&documents).request_timeout(LONG).build().unwrap();
    let id = bank.open().await;
    let mut guard = locks.lock(id.as_str()).await.unwrap();
    let big = Bson::from("x".repeat(9_000_000));
    guard.save(Change::new().set("a", big.clone())).await.unwrap();
    let not = guard.commit_or_keep(Change::new().set("b", big)).await.unwrap_err();
    assert_eq!(not.error.error().kind(), ErrorKind::Rejected, "{:?}", not.error.error().kind());
    not.guard.unwrap().commit(Change::new().unset("a")).await.unwrap();
    assert!(!bank.raw(id).await.contains_key("a"));
}
