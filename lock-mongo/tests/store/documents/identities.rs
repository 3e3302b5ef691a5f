//! Identities of every kind, and lock fields with unusual names: locks, renewals, queues, events
//! and administration.

use std::time::Duration;

use distlock_api::{
    ErrorKind, ListOptions, LockEvent, LockFilter, LockKey, LockProvider, LockProviderExt, RenewalPolicy, Result,
};
use distlock_mongo::mongodb::bson::oid::ObjectId;
use distlock_mongo::mongodb::bson::{Bson, Document, Uuid, doc};
use distlock_mongo::{Change, DocumentLocks, DocumentLocksBuilder, KeyMap};
use futures_util::{StreamExt, TryStreamExt};

use crate::Checks;
use crate::world::{World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_text_ids);
    check!(checks, documents_object_ids);
    check!(checks, documents_uuid_ids);
    check!(checks, documents_integer_ids);
    check!(checks, documents_own_ids);
    check!(checks, documents_of_two_types_are_listed_in_pages);
    check!(checks, documents_odd_fields);
    check!(checks, documents_keys_that_are_no_ids);
}

type Builder = DocumentLocksBuilder<Document>;

/// All operations that find a document, with two processes.
async fn whole_life(world: &World, id: Bson, stored: Bson, configure: fn(Builder) -> Builder) {
    let documents = world.raw(&random_name("documents"));
    let locks = || configure(DocumentLocks::builder(&documents)).build().unwrap();
    let (here, there) = (locks(), locks());
    documents
        .insert_many([doc! { "_id": stored.clone(), "n": 0 }, doc! { "_id": "another kind", "x": [] }])
        .await
        .unwrap();
    let key = here.key(id.clone()).unwrap();
    assert_eq!(here.key(stored.clone()).unwrap(), key);

    // The lease is renewed, which tests the renewals of this record alone.
    let every = RenewalPolicy::Every(Duration::from_secs(1));
    let guard = here.lock(id.clone()).ttl(Duration::from_secs(10)).renewal(every).await.unwrap();
    let expiry = async || {
        let document = documents.find_one(doc! { "_id": stored.clone() }).await.unwrap().unwrap();
        let lease =
            document.iter().find_map(|(_, value)| value.as_document().filter(|lock| lock.contains_key("lockId")));
        *lease.expect("locked").get_datetime("expiresAt").unwrap()
    };
    let first = expiry().await;
    while expiry().await == first {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!guard.is_lost());

    // The other process takes a ticket, keeps it, and is granted by the commit.
    let waits = {
        let (there, id) = (there.clone(), id.clone());
        tokio::spawn(async move { there.lock(id).await })
    };
    let provider = here.provider();
    let admin = provider.admin().unwrap();
    while admin.inspect(&key).await.unwrap().expect("held").waiting != Some(1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let page = admin.page(&LockFilter::new(), None, 10.try_into().unwrap()).await.unwrap();
    assert_eq!(page.iter().map(|info| &info.key).collect::<Vec<_>>(), [&key]);
    let token = guard.fencing_token();
    guard.commit(Change::new().set("n", 1)).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(20), waits).await.unwrap().unwrap().unwrap();
    assert!(next.get_i32("n").unwrap() == 1 && next.fencing_token() > token);
    assert_eq!(next.get("_id"), Some(&stored), "as it was stored");

    // The lock is released by force, and the holder gets the event.
    let forced = admin.force_release(&key, "why").await.unwrap().expect("held");
    assert_eq!((forced.key, forced.token), (key.clone(), next.fencing_token()));
    if world.topology == distlock_conformance_mongo::Topology::ReplicaSet {
        tokio::time::timeout(Duration::from_secs(10), next.lost()).await.expect("pushed, not found out by a renewal");
    }
    assert!(next.commit(Change::new().set("n", 2)).await.unwrap_err().is_already_lost());
    assert_eq!(admin.history(&key).await.unwrap().len(), 1);
    let plain = there.provider().acquire(&key).owner("$o").await.unwrap();
    assert_eq!(admin.release_owner("$o", "gone").await.unwrap(), 1);
    drop(plain);
    let document = here.lock(id).await.unwrap();
    assert_eq!(document.get_i32("n").unwrap(), 1);
}

async fn documents_text_ids(world: World) {
    whole_life(&world, "$$ROOT.\0".into(), "$$ROOT.\0".into(), |builder| builder).await;
}

async fn documents_object_ids(world: World) {
    let id = ObjectId::new();
    whole_life(&world, id.into(), id.into(), DocumentLocksBuilder::object_ids).await;
}

async fn documents_uuid_ids(world: World) {
    let id = Uuid::new();
    whole_life(&world, id.into(), id.into(), DocumentLocksBuilder::uuid_ids).await;
}

async fn documents_integer_ids(world: World) {
    for stored in [Bson::Int32(7), Bson::Int64(7), Bson::Double(7.0)] {
        whole_life(&world, 7.into(), stored, DocumentLocksBuilder::integer_ids).await;
    }
    whole_life(&world, i64::MIN.into(), i64::MIN.into(), DocumentLocksBuilder::integer_ids).await;
    // The documents are found by the prefix of their keys.
    let documents = world.raw(&random_name("documents"));
    let locks = DocumentLocks::builder(&documents).integer_ids().default_document(&doc! { "a": 1 }).build().unwrap();
    let mut guards = Vec::new();
    for id in [1_i64, 12, 13, 120, 1_234_567, -1, -12, 2] {
        guards.push(locks.lock(id).await.unwrap());
    }
    let provider = locks.provider();
    let admin = provider.admin().unwrap();
    for (prefix, expected) in
        [("12", &["12", "120", "1234567"][..]), ("-", &["-12", "-1"]), ("-1", &["-12", "-1"]), ("0", &[])]
    {
        let filter = LockFilter::new().prefix(prefix);
        let page = admin.page(&filter, None, 10.try_into().unwrap()).await.unwrap();
        assert_eq!(page.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), expected, "{prefix}");
    }
    let listed: Vec<_> = {
        let mut last = None;
        let mut keys = Vec::new();
        loop {
            let page = admin.page(&LockFilter::new(), last.as_ref(), 3.try_into().unwrap()).await.unwrap();
            keys.extend(page.iter().map(|info| info.key.as_str().parse::<i64>().unwrap()));
            if page.len() < 3 {
                break keys;
            }
            last = page.last().map(|info| info.key.clone());
        }
    };
    assert_eq!(listed, [-12, -1, 1, 2, 12, 13, 120, 1_234_567], "in the order of the numbers");
    assert_eq!(admin.release_matching(&LockFilter::new().prefix("1"), "why").await.unwrap(), 5);
    assert!(guards[0].commit_later_is_lost().await);
}

trait Lost {
    async fn commit_later_is_lost(&mut self) -> bool;
}

impl Lost for distlock_mongo::DocumentGuard<Document> {
    async fn commit_later_is_lost(&mut self) -> bool {
        self.save(Change::new().set("a", 2)).await.is_err_and(|error| error.kind() == ErrorKind::Lost)
    }
}

/// A compound identity: tenant and number.
#[derive(Debug)]
struct Tenants;

impl KeyMap for Tenants {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        let refused = || distlock_api::LockError::invalid_key("not tenant/number");
        let (tenant, number) = key.as_str().split_once('/').ok_or_else(refused)?;
        let number: i32 = number.parse().map_err(|_| refused())?;
        Ok(doc! { "tenant": tenant, "number": number }.into())
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        let id = id.as_document()?;
        LockKey::new(format!("{}/{}", id.get_str("tenant").ok()?, id.get_i32("number").ok()?)).ok()
    }
}

async fn documents_own_ids(world: World) {
    let id: Bson = doc! { "tenant": "$t", "number": 7 }.into();
    whole_life(&world, id.clone(), id, |builder| builder.ids(Tenants)).await;
    let documents = world.raw(&random_name("documents"));
    let locks = DocumentLocks::builder(&documents).ids(Tenants).build().unwrap();
    let provider = locks.provider();
    let filter = LockFilter::new().prefix("t");
    let error = provider.admin().unwrap().page(&filter, None, 1.try_into().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// Numbers are whole numbers in the collection, and other names text.
#[derive(Debug)]
struct Mixed;

impl KeyMap for Mixed {
    fn id(&self, key: &LockKey) -> Result<Bson> {
        Ok(key.as_str().parse().map_or_else(|_| key.as_str().into(), |number: i64| number.into()))
    }

    fn key(&self, id: &Bson) -> Option<LockKey> {
        LockKey::new(id.as_i64().map(|number| number.to_string()).or_else(|| id.as_str().map(Into::into))?).ok()
    }
}

async fn documents_of_two_types_are_listed_in_pages(world: World) {
    let documents = world.raw(&random_name("documents"));
    let keys = ["1", "2", "a", "b", "c"];
    let of_key = |key| doc! { "_id": Mixed.id(&LockKey::new(key).unwrap()).unwrap() };
    documents.insert_many(keys.map(of_key)).await.unwrap();
    let locks = DocumentLocks::builder(&documents).ids(Mixed).build().unwrap();
    let provider = locks.provider();
    let guards = provider.acquire_all(keys).await.unwrap();
    for size in 1..=5 {
        let pages = ListOptions::new().page_size(size);
        let list: Vec<_> = provider.admin().unwrap().list(pages).try_collect().await.unwrap();
        let listed: Vec<_> = list.iter().map(|info| info.key.as_str()).collect();
        assert_eq!(listed, keys, "pages of {size}");
    }
    drop(guards);
}

async fn documents_odd_fields(world: World) {
    fn field(builder: Builder, name: &str) -> Builder {
        builder.field(name)
    }
    whole_life(&world, "a".into(), "a".into(), |builder| field(builder, "lo$ck")).await;
    whole_life(&world, "a".into(), "a".into(), |builder| field(builder, "my lock")).await;
    whole_life(&world, "a".into(), "a".into(), |builder| field(builder, "7")).await;
    whole_life(&world, "a".into(), "a".into(), |builder| field(builder, "Schloß")).await;
    whole_life(&world, "a".into(), "a".into(), |builder| field(builder, "step")).await;
}

/// Two keys are never one lock (C20).
async fn documents_keys_that_are_no_ids(world: World) {
    let documents = world.raw(&random_name("documents"));
    let hex = "0123456789abcdef01234567";
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    let builder = || DocumentLocks::builder(&documents).default_document(&doc! { "a": 1 });
    for (locks, bad) in [
        (builder().object_ids().build().unwrap(), vec!["x", &hex[1..], "0123456789ABCDEF01234567"]),
        (
            builder().uuid_ids().build().unwrap(),
            vec!["x", "00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-AABBCCDDEEFF"],
        ),
        (builder().integer_ids().build().unwrap(), vec!["x", "007", "+7", "7.0", "9223372036854775808", "-0"]),
    ] {
        for key in bad {
            let error = locks.provider().try_acquire(key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey, "{key}");
        }
        assert_eq!(locks.try_lock(Bson::Null).await.unwrap_err().kind(), ErrorKind::InvalidKey);
    }
    assert_eq!(documents.count_documents(doc! {}).await.unwrap(), 0, "before any I/O");
    let locks = builder().uuid_ids().build().unwrap();
    let _guard = locks.provider().acquire(uuid).await.unwrap();
    let id = Uuid::parse_str(uuid).unwrap();
    assert!(locks.try_lock(id).await.unwrap().is_none());

    if world.topology == distlock_conformance_mongo::Topology::ReplicaSet {
        // A watcher gets events of documents by their keys, and of nothing else in the collection.
        let provider = locks.provider();
        let mut events = provider.admin().unwrap().watch().await.unwrap();
        documents.insert_one(doc! { "_id": "plain" }).await.unwrap();
        documents.update_one(doc! { "_id": "plain" }, doc! { "$set": { "a": 1 } }).await.unwrap();
        documents.replace_one(doc! { "_id": "plain" }, doc! { "b": 1 }).await.unwrap();
        documents.delete_one(doc! { "_id": "plain" }).await.unwrap();
        let other = Uuid::new();
        locks.lock(other).await.unwrap().commit(Change::replace(&doc! { "big": "x".repeat(2000) })).await.unwrap();
        let mut reported = Vec::new();
        for _ in 0..2 {
            reported
                .push(tokio::time::timeout(Duration::from_secs(10), events.next()).await.unwrap().unwrap().unwrap());
        }
        let key = locks.key(other).unwrap();
        assert!(matches!(&reported[0], LockEvent::Granted { key: granted, .. } if *granted == key), "{reported:?}");
        assert!(matches!(&reported[1], LockEvent::Released { key: released, .. } if *released == key), "{reported:?}");
    }
}
