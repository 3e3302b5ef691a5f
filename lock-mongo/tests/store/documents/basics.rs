//! Locking, committing, saving, releasing.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Phase, ReleaseOutcome};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Change, Locked};

use super::{Account, Bank};
use crate::Checks;
use crate::world::{Sent, World};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_one_command_each);
    check!(checks, documents_busy_and_missing);
    check!(checks, documents_plain_face);
    check!(checks, C21 documents_several);
}

async fn documents_one_command_each(world: World) {
    let sent = Sent::default();
    let (client, _) = world.connect(|options| options.command_event_handler = Some(sent.handler())).await;
    let bank = Bank::on(&client, &super::random_name("accounts"));
    let locks = bank.locks();
    let (a, b, c) = (bank.open().await, bank.open().await, bank.open().await);
    let _ = locks.lock(a.as_str()).await.unwrap().release().await.unwrap();
    sent.take();

    // Without the change stream, which is one per provider.
    let names = || {
        let names = sent.take().into_iter().map(|command| command.keys().next().unwrap().clone());
        names.filter(|name| name != "getMore" && name != "aggregate").collect::<Vec<_>>()
    };
    let mut guard = locks.lock(a.as_str()).await.unwrap();
    assert_eq!(names(), ["findAndModify"], "lock");
    assert_eq!(*guard, super::account(&a));
    guard.save(Change::new().set("balance", 11_i64)).await.unwrap();
    assert_eq!(names(), ["findAndModify"], "save");
    assert_eq!(guard.balance, 11);
    guard.balance += 1;
    guard.commit_document().await.unwrap();
    assert_eq!(names(), ["findAndModify"], "commit");
    assert_eq!(bank.read(&a).await.balance, 12);
    sent.take();

    let guard = locks.try_lock(b.as_str()).await.unwrap().held().expect("free");
    assert_eq!(names(), ["findAndModify"], "try");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(names(), ["findAndModify"], "release");
    assert!(locks.try_lock("nobody").await.unwrap().is_missing());
    assert_eq!(names(), ["findAndModify"], "missing");
    let _held = locks.lock(c.as_str()).await.unwrap();
    names();
    let other = bank.locks();
    assert!(matches!(other.try_lock(c.as_str()).await.unwrap(), Locked::Busy(_)));
    assert!(names().iter().all(|name| name == "findAndModify" || name == "hello"));
}

async fn documents_busy_and_missing(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let id = bank.open().await;
    let guard = locks.lock(id.as_str()).await.unwrap();
    for other in [&locks, &others] {
        assert!(matches!(other.try_lock(id.as_str()).await.unwrap(), Locked::Busy(_)));
        let error = other.lock(id.as_str()).timeout(Duration::from_millis(700)).await.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)));
        assert_eq!(error.key().unwrap().as_str(), id);
    }
    let error = locks.lock("nobody").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.key().is_some());
    assert_eq!(locks.lock(7).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    assert_eq!(bank.raw.count_documents(doc! {}).await.unwrap(), 1, "nothing was made");
    let waits = {
        let others = others.clone();
        let id = id.clone();
        tokio::spawn(async move { others.lock(id).await })
    };
    while others.provider().accounting().waiting == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let first = guard.fencing_token();
    guard.commit(doc! { "owner": "$grace" }).await.unwrap();
    let next = waits.await.unwrap().unwrap();
    assert_eq!(next.owner, "$grace", "the document as it was when the lock was granted");
    assert!(next.fencing_token() > first);
    let _ = next.release().await.unwrap();
    for locks in [locks, others] {
        let provider = locks.provider();
        provider.close().await.unwrap();
        assert!(provider.accounting().balances() && provider.accounting().lost == 0, "{:?}", provider.accounting());
    }
}

/// Readers, and the plain provider.
async fn documents_plain_face(world: World) {
    let bank = Bank::of(&world);
    let locks = bank.locks();
    let (id, other) = (bank.open().await, bank.open().await);
    let guard = locks.lock(id.as_str()).owner("ada").await.unwrap();
    let provider = locks.provider();
    assert!(provider.try_acquire(&id).await.unwrap().is_none(), "one lock");
    let info = provider.admin().unwrap().inspect(&locks.key(id.as_str()).unwrap()).await.unwrap().unwrap();
    assert_eq!((info.owner.as_deref(), info.token), (Some("ada"), guard.fencing_token()));
    let _ = guard.release().await.unwrap();

    let token = info.token;
    let plain = provider.acquire(&id).await.unwrap();
    assert!(plain.fencing_token() > token);
    assert!(matches!(locks.try_lock(id.as_str()).await.unwrap(), Locked::Busy(_)));
    let error = provider.acquire("nobody").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let _ = plain.release().await.unwrap();
    let both = provider.acquire_all([&id, &other]).await.unwrap();
    assert!(matches!(locks.try_lock(other.as_str()).await.unwrap(), Locked::Busy(_)));
    let _ = both.release().await.unwrap();
    assert_eq!(bank.read(&id).await, Account { _id: id.clone(), ..super::account(&id) });
}

async fn documents_several(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let (a, b, c) = (bank.open().await, bank.open().await, bank.open().await);
    let ids = |ids: [&String; 3]| ids.map(Clone::clone);
    let guards = locks.lock_all(ids([&c, &a, &c])).await.unwrap().expect("free");
    let mut sorted = [&*a, &*c];
    sorted.sort_unstable();
    assert_eq!(guards.iter().map(|guard| guard.key().as_str()).collect::<Vec<_>>(), sorted);
    // Not all: nothing.
    let answer = others.lock_all(ids([&a, &b, &c])).timeout(Duration::from_millis(700)).await.unwrap();
    assert!(answer.is_none());
    drop(others.lock(b.as_str()).timeout(Duration::from_secs(20)).await.unwrap());
    for guard in guards {
        let new = guard.balance + 1;
        guard.commit(doc! { "balance": new }).await.unwrap();
    }
    let error = others.lock_all([a.as_str(), "nobody"]).await.unwrap_err();
    assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::NotFound, "nobody"));
    assert_eq!(locks.lock_all([1, 2]).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    assert!(locks.lock_all([""; 0]).await.unwrap().expect("nothing is free").is_empty());
    // In opposite orders, and one of them by the plain provider.
    let transfers = (0..12).map(|n| {
        let (locks, a, b) = (if n % 2 == 0 { locks.clone() } else { others.clone() }, a.clone(), b.clone());
        tokio::spawn(async move {
            if n % 3 == 0 {
                let both = locks.provider().acquire_all([&b, &a]).await.unwrap();
                return both.release().await.unwrap().is_released();
            }
            let ids = if n % 4 == 1 { [a, b] } else { [b, a] };
            for guard in locks.lock_all(ids).await.unwrap().expect("for ever") {
                let new = guard.balance + 1;
                guard.commit(doc! { "balance": new }).await.unwrap();
            }
            true
        })
    });
    for transfer in futures_util::future::join_all(transfers).await {
        assert!(transfer.unwrap());
    }
    assert_eq!((bank.read(&a).await.balance, bank.read(&b).await.balance), (19, 18));
}
