//! A holder that has lost its lock cannot write, no matter how late it comes.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, ReleaseOutcome, RenewalPolicy};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Change, CommitError};

use super::Bank;
use crate::Checks;
use crate::world::World;

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C8 documents_stale_commit);
    check!(checks, C8 documents_after_the_next_holder);
    check!(checks, documents_commit_races_expiry);
    check!(checks, C11 documents_dropped_commit);
    check!(checks, documents_parts);
}

/// The lease ends by the server's clock, and the holder gets no event.
const END: &str = "lock.expiresAt";

async fn documents_stale_commit(world: World) {
    let bank = Bank::of(&world);
    // A renewal would report the loss.
    let locks = bank.builder().renewal(RenewalPolicy::Never).build().unwrap();
    for form in 0..3 {
        let id = bank.open().await;
        let mut guard = locks.lock(id.as_str()).await.unwrap();
        bank.raw.update_one(doc! { "_id": &id }, vec![doc! { "$set": { END: "$$NOW" } }]).await.unwrap();
        // Its withdrawal clears the expired lock (R12).
        let data = async || {
            let mut document = bank.raw(id.as_str()).await;
            document.remove("lock").unwrap();
            document
        };
        let before = data().await;
        assert!(!guard.is_lost(), "it does not know");
        let lost = guard.lost();
        if form == 0 {
            let error = guard.save(doc! { "balance": 99_i64 }).await.unwrap_err();
            assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::Lost, &*id));
            assert!(guard.is_lost());
            assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::AlreadyLost);
        } else {
            let change = match form {
                1 => Change::replace(&super::account(&id)),
                _ => Change::pipeline([doc! { "$set": { "balance": { "$add": ["$balance", 1] } } }]),
            };
            let CommitError::AlreadyLost(error) = guard.commit(change).await.unwrap_err() else { panic!("{form}") };
            assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::Lost, &*id));
        }
        lost.await;
        assert_eq!(data().await, before, "untouched");
    }
    let provider = locks.provider();
    provider.close().await.unwrap();
    assert!(provider.accounting().balances() && provider.accounting().lost == 3);
}

async fn documents_after_the_next_holder(world: World) {
    let bank = Bank::of(&world);
    let (late, next) = (bank.locks(), bank.locks());
    for is_gone in [false, true] {
        let id = bank.open().await;
        let guard = late.lock(id.as_str()).await.unwrap();
        bank.raw.update_one(doc! { "_id": &id }, vec![doc! { "$set": { END: "$$NOW" } }]).await.unwrap();
        let new = next.lock(id.as_str()).await.unwrap();
        assert!(new.fencing_token() > guard.fencing_token());
        let new = if is_gone {
            None.or_else(|| {
                drop(new);
                None
            })
        } else {
            Some(new)
        };
        assert!(guard.commit(doc! { "balance": 99_i64 }).await.unwrap_err().is_already_lost());
        assert_eq!(bank.read(&id).await.balance, 10);
        if let Some(new) = new {
            new.commit(doc! { "balance": 11_i64 }).await.unwrap();
            assert_eq!(bank.read(&id).await.balance, 11);
        }
    }
}

/// A caller whose commit succeeded has changed the document. A caller whose lock was lost has not.
async fn documents_commit_races_expiry(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let (mut made, mut lost) = (0, 0);
    // Milliseconds from the update to the end. Adjusted a little after each round, so that it stays
    // where the race is on this machine.
    let mut left = 3_i64;
    for round in 0.. {
        let id = bank.open().await;
        let guard = locks.lock(id.as_str()).await.unwrap();
        let ends =
            bank.raw.update_one(doc! { "_id": &id }, vec![doc! { "$set": { END: { "$add": ["$$NOW", left] } } }]);
        let ((), committed) = tokio::join!(async { ends.await.map(|_| ()).unwrap() }, async {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(..6000))).await;
            guard.commit(doc! { "balance": 99_i64 }).await
        });
        let next = others.lock(id.as_str()).timeout(Duration::from_secs(20)).await.unwrap();
        match committed {
            Ok(()) => {
                made += 1;
                left -= 1;
                assert_eq!(next.balance, 99);
            }
            Err(error) => {
                assert!(error.is_already_lost(), "{error:?}");
                lost += 1;
                left += 1;
                assert_eq!(next.balance, 10);
            }
        }
        drop(next);
        if (made >= 5 && lost >= 5 && round >= 60) || round == 600 {
            break;
        }
    }
    assert!(made > 0 && lost > 0, "{made} {lost}: no race");
}

async fn documents_dropped_commit(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let id = bank.open().await;
    for polls in 0..30 {
        let mut guard = locks.lock(id.as_str()).timeout(Duration::from_secs(20)).await.unwrap();
        let balance = guard.balance;
        guard.balance += 1;
        let mut commit = Box::pin(guard.commit_document());
        let wait = Duration::from_micros(polls * 100);
        let done = tokio::time::timeout(wait, &mut commit).await;
        drop(commit);
        let next = others.lock(id.as_str()).timeout(Duration::from_secs(20)).await.unwrap();
        match done {
            Ok(done) => {
                done.unwrap();
                assert_eq!(next.balance, balance + 1);
            }
            Err(_) => assert!([balance, balance + 1].contains(&next.balance), "at most once"),
        }
        // No change of it follows later.
        let now = next.balance;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(bank.read(&id).await.balance, now);
        assert_eq!(next.release().await.unwrap(), ReleaseOutcome::Released);
    }
    let provider = locks.provider();
    provider.close().await.unwrap();
    let books = provider.accounting();
    assert!(books.balances() && (books.held, books.lost) == (0, 0), "{books:?}");
}

async fn documents_parts(world: World) {
    let bank = Bank::of(&world);
    let (locks, id) = (bank.locks(), bank.open().await);
    let guard = locks.lock(id.as_str()).await.unwrap();
    assert!(guard.remaining().unwrap() > Duration::from_secs(20));
    assert!(guard.valid_until().unwrap() > tokio::time::Instant::now());
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);
    let (guard, account) = guard.into_parts();
    assert_eq!((guard.key().as_str(), account), (&*id, super::account(&id)));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    let guard = locks.lock(id.as_str()).await.unwrap();
    assert_eq!(guard.discard().await.unwrap(), ReleaseOutcome::Released);
    drop(locks.lock(id.as_str()).await.unwrap());
    bank.freed(&id).await;
    let shown = format!("{locks:?} {locks} {:?}", locks.lock(id.as_str()).await.unwrap());
    assert!(!shown.contains("$ada"), "{shown}");
}
