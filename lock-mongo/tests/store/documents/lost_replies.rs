//! Writes whose reply was lost are repeated, carried out once, and recognised.

use std::time::Duration;

use distlock_api::{ErrorKind, LockProvider, LockProviderExt};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{Change, CommitError, DocumentLocks};

use super::{Account, Bank, close};
use crate::Checks;
use crate::world::{World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, alone C10 documents_lost_reply);
    check!(checks, alone C18 documents_hung_server);
    if checks.is_replica_set() {
        check!(checks, alone C10 documents_replayed);
        check!(checks, alone C10 documents_after_other_holders);
    }
}

/// Adds one: a second execution would show.
fn one_more() -> Change {
    Change::pipeline([doc! { "$set": { "balance": { "$add": ["$balance", 1_i64] } } }])
}

async fn bank_of_app(world: &World) -> (Bank, String) {
    let app = random_name("app");
    let (client, _) = world.connect(|options| options.app_name = Some(app.clone())).await;
    let bank = Bank::on(&client, &random_name("accounts"));
    let id = bank.open().await;
    bank.locks().lock(id).await.unwrap().release().await.unwrap();
    (bank, app)
}

/// The write is carried out, and its outcome stays unknown.
fn open() -> Document {
    doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } }
}

async fn documents_lost_reply(world: World) {
    let (bank, app) = bank_of_app(&world).await;
    let locks = bank.locks();
    let id = bank.open().await;
    let mut guard = locks.lock(id.as_str()).await.unwrap();
    for n in 0..3 {
        world.fail(&app, "findAndModify", open()).await;
        guard.save(one_more()).await.unwrap();
        assert_eq!((guard.balance, bank.read(&id).await.balance), (11 + n, 11 + n), "once");
    }
    world.fail(&app, "findAndModify", open()).await;
    guard.commit(one_more()).await.unwrap();
    assert_eq!(bank.read(&id).await.balance, 14);
    // If the reply to an acquisition is lost, the next attempt returns the document.
    world.fail(&app, "findAndModify", open()).await;
    let guard = locks.lock(id.as_str()).await.unwrap();
    assert_eq!(guard.balance, 14);
    drop(guard);
    close(locks).await;
}

/// The server repeats its stored answer, without the projection (R9).
async fn documents_replayed(world: World) {
    let bank = Bank::of(&world);
    let locks = bank.locks();
    let id = bank.open().await;
    let lose_reply =
        || world.admin(doc! { "configureFailPoint": "onPrimaryTransactionalWrite", "mode": { "times": 1 } });
    for n in 0..3 {
        lose_reply().await;
        let mut guard = locks.lock(id.as_str()).await.unwrap();
        assert_eq!(guard.balance, 10 + 2 * n);
        lose_reply().await;
        guard.save(one_more()).await.unwrap();
        lose_reply().await;
        guard.commit(one_more()).await.unwrap();
        assert_eq!(bank.read(&id).await.balance, 12 + 2 * n);
    }
}

/// Before the commit is repeated, others have held the lock, and changed the document, too.
async fn documents_after_other_holders(world: World) {
    let (bank, app) = bank_of_app(&world).await;
    let other = Bank {
        raw: world.raw(bank.raw.name()),
        accounts: world.client.database("distlock_test").collection(bank.raw.name()),
    };
    let locks: DocumentLocks<Account> = bank.locks();
    let id = bank.open().await;
    let guard = locks.lock(id.as_str()).await.unwrap();
    let others = (0..5).map(|_| {
        let (locks, id) = (other.locks(), id.clone());
        tokio::spawn(async move { locks.lock(id).await.unwrap().commit(one_more()).await.unwrap() })
    });
    let others: Vec<_> = others.collect();
    let key = locks.key(id.as_str()).unwrap();
    let provider = locks.provider();
    while provider.admin().unwrap().inspect(&key).await.unwrap().unwrap().waiting != Some(5) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Two unknown outcomes: the second try follows after a pause, and by then all others have held
    // the lock.
    let data = doc! { "failCommands": ["findAndModify"], "appName": &app, "writeConcernError": { "code": 64, "errmsg": "open" } };
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": { "times": 4 }, "data": data }).await;
    guard.commit(one_more()).await.unwrap();
    for other in others {
        other.await.unwrap();
    }
    world.admin(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    assert_eq!(bank.read(&id).await.balance, 16, "each once");
}

async fn documents_hung_server(world: World) {
    let (bank, app) = bank_of_app(&world).await;
    let limit = Duration::from_millis(300);
    let locks = bank.builder().request_timeout(limit).build().unwrap();
    let id = bank.open().await;
    let guard = locks.lock(id.as_str()).await.unwrap();
    world.fail(&app, "findAndModify", doc! { "blockConnection": true, "blockTimeMS": 6000 }).await;
    let started = std::time::Instant::now();
    let committed = guard.commit(one_more()).await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    match &committed {
        // The server ends the first try a little before its limit (R2), and the rest of the time
        // may suffice for a second one.
        Ok(()) => {}
        Err(error) => assert!(matches!(error, CommitError::Unknown(error) if error.is_outcome_unknown()), "{error:?}"),
    }
    let other = Bank {
        raw: world.raw(bank.raw.name()),
        accounts: world.client.database("distlock_test").collection(bank.raw.name()),
    };
    let guard = other.locks().lock(id.as_str()).timeout(Duration::from_secs(20)).await.unwrap();
    let balance = guard.balance;
    if committed.is_ok() {
        assert_eq!(balance, 11, "what was committed is there");
    }
    assert!([10, 11].contains(&balance));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(bank.read(&id).await.balance, balance, "nothing of it comes later");
    // A server that pauses answers too late for the time limit.
    let provider = locks.provider();
    let answered = async {
        loop {
            match provider.try_acquire(&id).await {
                Err(error) if error.kind() == ErrorKind::Timeout => {}
                plain => break plain,
            }
        }
    };
    let plain = tokio::time::timeout(Duration::from_secs(30), answered).await.expect("an answer");
    assert!(matches!(plain, Ok(None)), "{plain:?}");
}
