//! The application's own transactions and the locks of the documents that they change.

use std::time::Duration;

use distlock_api::{ErrorKind, LeaseOptions, LockProvider, LockProviderExt};
use distlock_engine::store::{LeaseStore, Renewal};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Fence, Fenced, MongoProvider};

use super::Bank;
use crate::Checks;
use crate::world::{LONG, World, claim, granted, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    // A standalone server has no transactions.
    if checks.is_replica_set() {
        check!(checks, documents_renewal_waits_for_an_open_transaction);
        check!(checks, documents_in_a_transaction_under_a_lock_beside_them);
    }
}

/// The error of the renewal names the cause. The lease is extended as soon as the transaction ends.
async fn documents_renewal_waits_for_an_open_transaction(world: World) {
    let bank = Bank::of(&world);
    let (id, locks) = (bank.open().await, bank.locks().provider());
    let holder = claim(&bank.locks().key(id.as_str()).unwrap());
    let store = locks.store();
    let token = granted(store, &holder, LONG).await.token;
    let mut session = world.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let change = doc! { "$set": { "balance": 11_i64 } };
    bank.raw.update_one(doc! { "_id": &id }, change).session(&mut session).await.unwrap();
    let renewal = Renewal::lease(holder, token, LONG).with_timeout(Duration::from_secs(1));
    let error = store.renew(&renewal).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
    assert!(error.to_string().contains("an open transaction has changed the same document"), "{error}");
    crate::guide::lists(&error);
    session.commit_transaction().await.unwrap();
    store.renew(&renewal.with_timeout(LONG)).await.unwrap();
    assert_eq!(bank.raw(id.as_str()).await.get_i64("balance").unwrap(), 11);
}

/// What the documentation recommends: the lease is renewed during the transaction, and only the
/// present holder commits.
async fn documents_in_a_transaction_under_a_lock_beside_them(world: World) {
    let bank = Bank::of(&world);
    let ids = [bank.open().await, bank.open().await];
    // Renewed although the machine is busy.
    let ttl = Duration::from_secs(4);
    let builder = MongoProvider::builder(world.client.database("distlock_test")).collection(random_name("locks"));
    let locks = builder.lease(LeaseOptions::new().ttl(ttl)).build().unwrap();
    let guard = locks.acquire(ids[0].as_str()).await.unwrap();
    let transaction = Fence::of(&guard).unwrap().transaction(&world.raw(&random_name("fences")), ids[0].as_str());
    let moved = transaction.run(|session| {
        let (accounts, ids) = (bank.raw.clone(), ids.clone());
        Box::pin(async move {
            for (id, amount) in ids.into_iter().zip([-1_i64, 1]) {
                let change = doc! { "$inc": { "balance": amount } };
                accounts.update_one(doc! { "_id": id }, change).session(&mut *session).await?;
            }
            // Longer than a lease without renewals.
            tokio::time::sleep(ttl + Duration::from_secs(1)).await;
            Ok(())
        })
    });
    assert_eq!(moved.await.unwrap(), Fenced::Accepted(()));
    assert!(guard.release().await.unwrap().is_released());
    for (id, balance) in ids.iter().zip([9, 11]) {
        assert_eq!(bank.raw(id.as_str()).await.get_i64("balance").unwrap(), balance);
    }
    assert_eq!(locks.accounting().lost, 0);
    locks.close().await.unwrap();
}
