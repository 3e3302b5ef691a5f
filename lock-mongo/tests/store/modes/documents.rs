//! Modes in the locks of documents.

use distlock_api::{ErrorKind, LockProvider, LockProviderExt, Mode};
use distlock_engine::store::{Attempt, LeaseStore, Reply};
use distlock_mongo::mongodb::bson::{Document, doc};
use distlock_mongo::{Change, CommitError, DocumentLocks};

use super::{permits, reader};
use crate::world::{LONG, World, admin, claim, granted, random_name, release};
use crate::{Checks, guide};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, C26 documents_have_holders);
    check!(checks, C26 documents_are_read_together);
    check!(checks, C30 documents_are_not_changed_beside_others);
}

fn locks(world: &World, collection: &str) -> DocumentLocks<Document> {
    let documents = world.client.database("distlock_test").collection(collection);
    DocumentLocks::builder(&documents).build().expect("valid options")
}

/// The same rules in the lock's field: the store alone.
async fn documents_have_holders(world: World) {
    let name = random_name("documents");
    let locks = locks(&world, &name);
    world.raw(&name).insert_one(doc! { "_id": "a", "n": 7 }).await.unwrap();
    let documents = world.client.database("distlock_test").collection::<Document>(&name);
    let store = DocumentLocks::builder(&documents).build_store().unwrap();
    let key = locks.key("a").unwrap();
    let (a, b, writer, c) = (reader(&key), reader(&key), claim(&key), reader(&key));
    granted(&store, &a, LONG).await;
    granted(&store, &b, LONG).await;
    let ticket = crate::world::ticket();
    for waiter in [&writer, &c] {
        let reply = store.try_acquire(&Attempt::new(waiter.clone(), LONG).with_ticket(ticket)).await.unwrap();
        assert!(matches!(reply, Reply::Busy(_)), "{reply:?}");
    }
    let info = admin(&store).inspect(&key).await.unwrap().unwrap();
    assert_eq!((info.mode(), info.holders.len()), (Mode::Shared, 2));
    for reader in [&a, &b] {
        assert!(release(&store, reader).await.is_released());
    }
    assert_eq!(admin(&store).inspect(&key).await.unwrap().unwrap().id.as_ref(), Some(writer.id()));
    assert!(release(&store, &writer).await.is_released());
    admin(&store).force_release_holder(&key, c.id(), "test").await.unwrap().unwrap();
    let document = world.raw(&name).find_one(doc! { "_id": "a" }).await.unwrap().unwrap();
    assert_eq!(document.get_i32("n").unwrap(), 7);
    let lock = document.get_document("lock").unwrap();
    assert!(["holders", "lockId", "step", "queue"].iter().all(|field| !lock.contains_key(field)), "{lock}");
}

async fn documents_are_read_together(world: World) {
    let name = random_name("documents");
    let (one, other) = (locks(&world, &name), locks(&world, &name));
    world.raw(&name).insert_one(doc! { "_id": "a", "n": 7 }).await.unwrap();
    let first = one.lock("a").shared().await.unwrap();
    let second = other.try_lock("a").shared().await.unwrap().expect("beside the first");
    assert_eq!((first.get_i32("n").unwrap(), second.get_i32("n").unwrap()), (7, 7));
    assert!(first.get("lock").is_none());
    assert!(other.try_lock("a").await.unwrap().is_none());
    assert!(other.try_lock("a").permits(1, 2).await.unwrap().is_none());
    assert!(other.try_lock_all(["a"]).shared().await.unwrap().is_some());
    assert!(first.release().await.unwrap().is_released());
    assert!(second.release().await.unwrap().is_released());
    let alone = one.lock("a").await.unwrap();
    alone.commit(Change::new().set("n", 8)).await.unwrap();
    let all = one.lock_all(["a"]).permits(1, 2).await.unwrap();
    assert_eq!(all[0].get_i32("n").unwrap(), 8);
    drop(all);
    // The plain face of the same locks.
    let reading = one.provider().acquire(one.key("a").unwrap()).shared().await.unwrap();
    assert!(reading.release().await.unwrap().is_released());
    one.provider().close().await.unwrap();
    other.provider().close().await.unwrap();
}

async fn documents_are_not_changed_beside_others(world: World) {
    let name = random_name("documents");
    let locks = locks(&world, &name);
    world.raw(&name).insert_one(doc! { "_id": "a", "n": 7 }).await.unwrap();
    for mode in [Mode::Shared, permits(1, 2)] {
        let mut guard = locks.lock("a").mode(mode).await.unwrap();
        let error = guard.save(Change::new().set("n", 8)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        guide::lists(&error);
        let not = guard.commit_or_keep(Change::new().set("n", 8)).await.unwrap_err();
        let CommitError::Rejected { error, code: None } = &not.error else { panic!("{:?}", not.error) };
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        guide::lists(error);
        let guard = not.guard.expect("it is held");
        assert!(!guard.is_lost());
        assert!(guard.release().await.unwrap().is_released());
    }
    assert_eq!(world.raw(&name).find_one(doc! { "_id": "a" }).await.unwrap().unwrap().get_i32("n").unwrap(), 7);
    locks.provider().close().await.unwrap();
}
