//! Writes to the application's own documents, guarded by fencing tokens.

use distlock_api::{ErrorKind, FencingToken, LockProvider, LockProviderExt};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::IndexModel;
use distlock_mongo::mongodb::bson::{Bson, Document, doc};
use distlock_mongo::mongodb::options::{IndexOptions, WriteConcern};
use distlock_mongo::{Fence, Fenced, MongoProvider};
use serde::{Deserialize, Serialize};

use super::Checks;
use super::world::{Sent, World, key, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, fenced_late_holder_is_refused);
    check!(checks, fenced_missing_document_is_its_own_answer);
    check!(checks, fenced_values_are_data);
    check!(checks, fenced_pipeline);
    check!(checks, fenced_upsert);
    check!(checks, fenced_upsert_race);
    check!(checks, fenced_upsert_other_unique_index);
    check!(checks, fenced_typed_documents_and_claim);
    check!(checks, fenced_field_of_another_kind);
    check!(checks, fenced_race_ends_with_the_newest);
    check!(checks, fenced_writes_wait_for_a_majority);
}

fn fence(token: u64) -> Fence {
    Fence::new(FencingToken::new(token)).unwrap()
}

fn newest(token: u64) -> FencingToken {
    FencingToken::new(token)
}

fn documents(world: &World) -> Collection<Document> {
    world.raw(&random_name("documents"))
}

async fn fenced_late_holder_is_refused(world: World) {
    let locks = MongoProvider::builder(world.client.database("distlock_test"))
        .collection(random_name("locks"))
        .build()
        .unwrap();
    let documents = documents(&world);
    documents.insert_one(doc! { "_id": 7, "by": "none" }).await.unwrap();
    let key = key();
    let slow = locks.acquire(&key).await.unwrap();
    locks.admin().unwrap().force_release(&key, "test").await.unwrap().unwrap();
    let quick = locks.acquire(&key).await.unwrap();
    let (slow_fence, quick_fence) = (Fence::of(&slow).unwrap(), Fence::of(&quick).unwrap());

    // The earlier holder is not stopped until the later one has written.
    let by = |who: &str| doc! { "$set": { "by": who } };
    let written = slow_fence.update_one(&documents, doc! { "_id": 7 }, by("slow")).await.unwrap();
    assert_eq!(written, Fenced::Accepted(()));
    for _ in 0..2 {
        let written = quick_fence.update_one(&documents, doc! { "_id": 7 }, by("quick")).await.unwrap();
        assert_eq!(written, Fenced::Accepted(()), "the same token may write again");
    }
    let refused = slow_fence.update_one(&documents, doc! { "_id": 7 }, by("slow")).await.unwrap();
    assert_eq!(refused, Fenced::FencedOff { newest: quick.fencing_token() });
    let found = documents.find_one(doc! { "_id": 7 }).await.unwrap().unwrap();
    assert_eq!(found.get_str("by").unwrap(), "quick");
    assert_eq!(found.get_i64("_fence").unwrap().unsigned_abs(), quick.fencing_token().get());
}

async fn fenced_missing_document_is_its_own_answer(world: World) {
    let documents = documents(&world);
    let set = || doc! { "$set": { "a": 1 } };
    assert_eq!(fence(1).update_one(&documents, doc! { "_id": 1 }, set()).await.unwrap(), Fenced::NoDocument);
    documents.insert_one(doc! { "_id": 1, "state": "closed" }).await.unwrap();
    let filter = || doc! { "_id": 1, "state": "open" };
    assert_eq!(fence(1).update_one(&documents, filter(), set()).await.unwrap(), Fenced::NoDocument);
    assert!(fence(5).update_one(&documents, doc! { "_id": 1 }, set()).await.unwrap().is_accepted());
    // A document that does not match is missing for the late holder, too.
    assert_eq!(fence(1).update_one(&documents, filter(), set()).await.unwrap(), Fenced::NoDocument);
    assert_eq!(documents.count_documents(doc! {}).await.unwrap(), 1);
}

async fn fenced_values_are_data(world: World) {
    let documents = documents(&world);
    documents.insert_one(doc! { "_id": "$id" }).await.unwrap();
    let fence = fence(3).field("lock token").unwrap();
    let values = doc! { "a": "$b", "c": { "$literal": "$$ROOT" }, "d": ["$e"] };
    let written = fence.update_one(&documents, doc! { "_id": "$id" }, doc! { "$set": values.clone() }).await.unwrap();
    assert!(written.is_accepted());
    let mut found = documents.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!(found.remove("lock token"), Some(Bson::Int64(3)));
    found.remove("_id");
    assert_eq!(found, values);
}

async fn fenced_pipeline(world: World) {
    let documents = documents(&world);
    documents.insert_one(doc! { "_id": 1, "n": 2, "_fence": 4_i64 }).await.unwrap();
    let double =
        || vec![doc! { "$set": { "n": { "$multiply": ["$n", 2] }, "was": "$_fence", "said": { "$literal": "$n" } } }];
    let written = fence(5).find_one_and_update(&documents, doc! { "_id": 1 }, double()).await.unwrap();
    let expected = doc! { "_id": 1, "n": 4, "_fence": 5_i64, "was": 4_i64, "said": "$n" };
    let written = written.accepted().unwrap();
    assert_eq!(expected.iter().filter(|(name, value)| written.get(name) == Some(value)).count(), 5, "{written}");
    // A stage that replaces the whole document cannot remove the fence.
    let replace = vec![doc! { "$replaceWith": { "_id": 1, "_fence": 1 } }];
    assert!(fence(6).update_one(&documents, doc! { "_id": 1 }, replace).await.unwrap().is_accepted());
    assert_eq!(
        fence(5).update_one(&documents, doc! { "_id": 1 }, double()).await.unwrap(),
        Fenced::FencedOff { newest: newest(6) }
    );
}

async fn fenced_upsert(world: World) {
    let documents = documents(&world);
    let by = |who: &str| doc! { "$set": { "by": who }, "$setOnInsert": { "first": who } };
    assert_eq!(fence(5).upsert_one(&documents, "$id", by("five")).await.unwrap(), Fenced::Accepted(()));
    assert_eq!(fence(6).upsert_one(&documents, "$id", by("six")).await.unwrap(), Fenced::Accepted(()));
    assert_eq!(
        fence(5).upsert_one(&documents, "$id", by("late")).await.unwrap(),
        Fenced::FencedOff { newest: newest(6) }
    );
    let found = documents.find_one(doc! {}).await.unwrap().unwrap();
    assert_eq!((found.get_str("by").unwrap(), found.get_str("first").unwrap()), ("six", "five"));
    assert_eq!(documents.count_documents(doc! {}).await.unwrap(), 1);
    let pipeline = vec![doc! { "$set": { "by": { "$literal": "$pipe" } } }];
    assert!(fence(1).upsert_one(&documents, 2, pipeline).await.unwrap().is_accepted());
    let found = documents.find_one(doc! { "_id": 2 }).await.unwrap().unwrap();
    assert_eq!((found.get_str("by").unwrap(), found.get_i64("_fence").unwrap()), ("$pipe", 1));
}

/// Sixteen callers insert the same document at once. None gets an error of a duplicate key, and the
/// newest token remains.
async fn fenced_upsert_race(world: World) {
    let documents = documents(&world);
    for round in 0..10 {
        let writers = (1..=16_u64).map(|token| {
            let documents = documents.clone();
            tokio::spawn(async move {
                let set = doc! { "$set": { "by": i64::try_from(token).unwrap() } };
                (token, fence(token).upsert_one(&documents, round, set).await.unwrap())
            })
        });
        let writers: Vec<_> = writers.collect();
        for writer in writers {
            match writer.await.unwrap() {
                (token, Fenced::FencedOff { newest }) => assert!(newest.get() > token),
                (_, Fenced::Accepted(())) => {}
                (token, Fenced::NoDocument) => panic!("token {token}: an upsert found no document"),
            }
        }
        let found = documents.find_one(doc! { "_id": round }).await.unwrap().unwrap();
        assert_eq!((found.get_i64("by").unwrap(), found.get_i64("_fence").unwrap()), (16, 16));
    }
}

async fn fenced_upsert_other_unique_index(world: World) {
    let documents = documents(&world);
    let unique = IndexOptions::builder().unique(true).build();
    documents.create_index(IndexModel::builder().keys(doc! { "n": 1 }).options(unique).build()).await.unwrap();
    let set = || doc! { "$set": { "n": 1 } };
    assert!(fence(1).upsert_one(&documents, 1, set()).await.unwrap().is_accepted());
    let error = fence(1).upsert_one(&documents, 2, set()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_outcome_unknown()), (ErrorKind::Other, false), "{error}");
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Invoice {
    #[serde(rename = "_id")]
    id: i32,
    paid: bool,
}

async fn fenced_typed_documents_and_claim(world: World) {
    let documents = documents(&world);
    let invoices = documents.clone_with_type::<Invoice>();
    invoices.insert_one(Invoice { id: 7, paid: false }).await.unwrap();
    let claimed = fence(9).claim(&invoices, doc! { "_id": 7 }).await.unwrap();
    assert_eq!(claimed, Fenced::Accepted(Invoice { id: 7, paid: false }));
    let pay = doc! { "$set": { "paid": true } };
    let late = fence(8).find_one_and_update(&invoices, doc! { "_id": 7 }, pay.clone()).await.unwrap();
    assert_eq!(late, Fenced::FencedOff { newest: newest(9) }, "a claim is enough to stop earlier holders");
    let paid = fence(9).find_one_and_update(&invoices, doc! { "_id": 7 }, pay).await.unwrap();
    assert_eq!(paid, Fenced::Accepted(Invoice { id: 7, paid: true }));
    // Readers without a fence are not affected.
    assert_eq!(invoices.find_one(doc! { "_id": 7 }).await.unwrap(), Some(Invoice { id: 7, paid: true }));
}

async fn fenced_field_of_another_kind(world: World) {
    let documents = documents(&world);
    let set = || doc! { "$set": { "a": 1 } };
    let odd = [Bson::from("7"), Bson::from(vec![1, 2]), Bson::from(vec![Bson::Null]), Bson::from(doc! { "a": 1 })];
    for (id, value) in (0..).zip(odd) {
        documents.insert_one(doc! { "_id": id, "_fence": &value }).await.unwrap();
        let error = fence(9).update_one(&documents, doc! { "_id": id }, set()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{value}: {error}");
    }
    documents.insert_one(doc! { "_id": "null", "_fence": null }).await.unwrap();
    assert!(fence(9).update_one(&documents, doc! { "_id": "null" }, set()).await.unwrap().is_accepted());
    documents.insert_one(doc! { "_id": "double", "_fence": 10.0 }).await.unwrap();
    let refused = fence(9).update_one(&documents, doc! { "_id": "double" }, set()).await.unwrap();
    assert_eq!(refused, Fenced::FencedOff { newest: newest(10) });
    let highest = i64::MAX.unsigned_abs();
    assert!(fence(highest).update_one(&documents, doc! { "_id": "double" }, set()).await.unwrap().is_accepted());
    let refused = fence(highest - 1).update_one(&documents, doc! { "_id": "double" }, set()).await.unwrap();
    assert_eq!(refused, Fenced::FencedOff { newest: newest(highest) });
}

async fn fenced_race_ends_with_the_newest(world: World) {
    let documents = documents(&world);
    documents.insert_one(doc! { "_id": 1, "seen": [] }).await.unwrap();
    let writers: Vec<_> = (1..=32_i64)
        .map(|token| {
            let documents = documents.clone();
            tokio::spawn(async move {
                let push = doc! { "$push": { "seen": token } };
                fence(token.unsigned_abs()).update_one(&documents, doc! { "_id": 1 }, push).await.unwrap()
            })
        })
        .collect();
    let mut accepted = 0;
    for writer in writers {
        accepted += usize::from(writer.await.unwrap().is_accepted());
    }
    let found = documents.find_one(doc! {}).await.unwrap().unwrap();
    let seen: Vec<i64> = found.get_array("seen").unwrap().iter().map(|token| token.as_i64().unwrap()).collect();
    assert_eq!((seen.len(), seen.last()), (accepted, Some(&32)));
    assert!(seen.is_sorted(), "a smaller token wrote after a greater one: {seen:?}");
}

async fn fenced_writes_wait_for_a_majority(world: World) {
    let sent = Sent::default();
    let (client, _) = world
        .connect(|options| {
            options.command_event_handler = Some(sent.handler());
            options.write_concern = Some(WriteConcern::nodes(1));
        })
        .await;
    let documents = client.database("distlock_test").collection::<Document>(&random_name("documents"));
    let write = async || {
        assert!(fence(1).upsert_one(&documents, 1, doc! { "$set": { "a": 1 } }).await.unwrap().is_accepted());
        let mut commands = sent.take();
        commands.retain(|command| !command.contains_key("find"));
        for command in &commands {
            assert_eq!(command.get_document("writeConcern").unwrap(), &doc! { "w": "majority" });
        }
        commands.len()
    };
    assert_eq!(write().await, 2, "a document is inserted after it was not found");
    assert_eq!(write().await, 1, "an accepted write is one command");
}
