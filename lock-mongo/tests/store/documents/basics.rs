//! Locks, commits, saves and releases.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Phase, ReleaseOutcome};
use distlock_mongo::mongodb::bson::doc;
use distlock_mongo::{Change, CommitError, DocumentGuard};

use super::{Account, Bank, close};
use crate::Checks;
use crate::world::World;

/// A wait that does not end before the first answer, which would be another error.
const ANSWERED: Duration = Duration::from_secs(5);

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_one_command_each);
    check!(checks, documents_busy_and_missing);
    check!(checks, documents_plain_face);
    check!(checks, C21 documents_several);
    check!(checks, documents_run);
    check!(checks, C21 documents_run_several);
}

async fn documents_one_command_each(world: World) {
    let (client, sent) = world.recorded_client().await;
    let bank = Bank::on(&client, &super::random_name("accounts"));
    let locks = bank.locks();
    let (a, b, c) = (bank.open().await, bank.open().await, bank.open().await);
    locks.lock(a.as_str()).await.unwrap().release().await.unwrap();
    sent.take();

    // Without the change stream, of which a provider has one.
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

    let guard = locks.try_lock(b.as_str()).await.unwrap().expect("free");
    assert_eq!(names(), ["findAndModify"], "try");
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(names(), ["findAndModify"], "release");
    assert_eq!(locks.try_lock("missing").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(), ["findAndModify"], "missing");
    let _held = locks.lock(c.as_str()).await.unwrap();
    names();
    let other = bank.locks();
    assert!(other.try_lock(c.as_str()).await.unwrap().is_none());
    assert!(names().iter().all(|name| name == "findAndModify" || name == "hello"));
}

async fn documents_busy_and_missing(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let id = bank.open().await;
    let guard = locks.lock(id.as_str()).await.unwrap();
    for other in [&locks, &others] {
        assert!(other.try_lock(id.as_str()).await.unwrap().is_none());
    }
    let waits = [&locks, &others].map(|other| other.lock(id.as_str()).timeout(ANSWERED).into_future());
    for waited in futures_util::future::join_all(waits).await {
        let error = waited.unwrap_err();
        assert_eq!((error.kind(), error.phase()), (ErrorKind::Timeout, Some(Phase::Wait)));
        assert_eq!(error.key().unwrap().as_str(), id);
    }
    let error = locks.lock("missing").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.key().is_some());
    crate::guide::lists(&error);
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
    next.release().await.unwrap();
    close(locks).await;
    close(others).await;
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
    guard.release().await.unwrap();

    let token = info.token;
    let plain = provider.acquire(&id).await.unwrap();
    assert!(plain.fencing_token() > token);
    assert!(locks.try_lock(id.as_str()).await.unwrap().is_none());
    let error = provider.acquire("missing").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    plain.release().await.unwrap();
    let both = provider.acquire_all([&id, &other]).await.unwrap();
    assert!(locks.try_lock(other.as_str()).await.unwrap().is_none());
    both.release().await.unwrap();
    assert_eq!(bank.read(&id).await, Account { _id: id.clone(), ..super::account(&id) });
}

async fn documents_several(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let (a, b, c) = (bank.open().await, bank.open().await, bank.open().await);
    let ids = |ids: [&String; 3]| ids.map(Clone::clone);
    let guards = locks.lock_all(ids([&c, &a, &c])).await.unwrap();
    let mut sorted = [&*a, &*c];
    sorted.sort_unstable();
    assert_eq!(guards.iter().map(|guard| guard.key().as_str()).collect::<Vec<_>>(), sorted);
    // If one is not granted, none is held.
    let error = others.lock_all(ids([&a, &b, &c])).timeout(ANSWERED).await.unwrap_err();
    assert!(error.is_not_granted() && [&a, &c].iter().any(|busy| error.key().unwrap().as_str() == *busy), "{error}");
    assert!(others.try_lock_all(ids([&a, &b, &c])).await.unwrap().is_none());
    drop(others.lock(b.as_str()).timeout(Duration::from_secs(20)).await.unwrap());
    for guard in guards {
        let new = guard.balance + 1;
        guard.commit(doc! { "balance": new }).await.unwrap();
    }
    let error = others.lock_all([a.as_str(), "missing"]).await.unwrap_err();
    assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::NotFound, "missing"));
    assert_eq!(locks.lock_all([1, 2]).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    assert!(locks.lock_all([""; 0]).await.unwrap().is_empty());
    // Two callers in opposite orders, one of them by the plain provider.
    let transfers = (0..12).map(|n| {
        let (locks, a, b) = (if n % 2 == 0 { locks.clone() } else { others.clone() }, a.clone(), b.clone());
        tokio::spawn(async move {
            if n % 3 == 0 {
                let both = locks.provider().acquire_all([&b, &a]).await.unwrap();
                return both.release().await.unwrap().is_released();
            }
            let ids = if n % 4 == 1 { [a, b] } else { [b, a] };
            for guard in locks.lock_all(ids).await.unwrap() {
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

async fn documents_run(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let id = bank.open().await;
    let run = locks.lock(id.as_str()).timeout(Duration::from_secs(20)).run(async |account| {
        let new = account.balance + 1;
        account.commit(doc! { "balance": new }).await.map(|()| new)
    });
    assert_eq!(run.await.unwrap().unwrap(), 11);
    assert_eq!(bank.read(&id).await.balance, 11);

    // A guard that is dropped unlocks, and changes nothing.
    let run = locks.lock(id.as_str()).run(async |mut account| account.balance = 99);
    run.await.unwrap();
    bank.freed(&id).await;
    assert_eq!(bank.read(&id).await.balance, 11);

    let guard = locks.lock(id.as_str()).await.unwrap();
    assert!(others.try_lock(id.as_str()).run(async |_| panic!("busy")).await.unwrap().is_none());
    let brief = others.lock(id.as_str()).timeout(ANSWERED);
    assert!(brief.run(async |_| panic!("busy")).await.unwrap_err().is_not_granted());
    let error = others.try_lock("missing").run(async |_| panic!("missing")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    guard.release().await.unwrap();

    // The work is dropped as soon as the lock is lost.
    let provider = others.provider();
    let lost = locks.lock(id.as_str()).ttl(Duration::from_secs(6)).run(async |account| {
        let admin = provider.admin().expect("administration");
        admin.force_release(account.key(), "a test").await.unwrap().expect("held");
        std::future::pending::<()>().await;
    });
    let error = tokio::time::timeout(Duration::from_secs(20), lost).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key().unwrap().as_str()), (ErrorKind::Lost, &*id));
}

async fn documents_run_several(world: World) {
    let bank = Bank::of(&world);
    let (locks, others) = (bank.locks(), bank.locks());
    let (a, b) = (bank.open().await, bank.open().await);
    let ids = || [a.clone(), b.clone()];
    let transfer = async |guards: Vec<DocumentGuard<Account>>| {
        for (mut account, change) in guards.into_iter().zip([-3, 3]) {
            account.balance += change;
            account.commit_document().await?;
        }
        Ok::<_, CommitError>(())
    };
    locks.lock_all(ids()).run(transfer).await.unwrap().unwrap();
    assert!(locks.try_lock_all(ids()).run(transfer).await.unwrap().expect("free").is_ok());
    assert_eq!(bank.read(&a).await.balance + bank.read(&b).await.balance, 20);
    assert_eq!((bank.read(&a).await.balance - bank.read(&b).await.balance).abs(), 12);
    // Without any document the work runs, too.
    assert_eq!(locks.lock_all([""; 0]).run(async |guards| guards.len()).await.unwrap(), 0);

    let guard = others.lock(b.as_str()).await.unwrap();
    assert!(locks.try_lock_all(ids()).run(transfer).await.unwrap().is_none());
    let brief = locks.lock_all(ids()).timeout(ANSWERED);
    assert!(brief.run(transfer).await.unwrap_err().is_not_granted());
    guard.release().await.unwrap();

    // The work is dropped as soon as one of the locks is lost.
    let provider = others.provider();
    let lost = locks.lock_all(ids()).ttl(Duration::from_secs(6)).run(async |guards| {
        let admin = provider.admin().expect("administration");
        admin.force_release(guards[1].key(), "a test").await.unwrap().expect("held");
        std::future::pending::<()>().await;
    });
    let error = tokio::time::timeout(Duration::from_secs(20), lost).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}
