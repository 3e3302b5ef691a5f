//! The effect of changes on a document, and the parts that they leave alone.

use std::fmt::Debug;
use std::str::FromStr;

use distlock_api::{ErrorKind, ReleaseOutcome};
use distlock_mongo::mongodb::Collection;
use distlock_mongo::mongodb::bson::oid::ObjectId;
use distlock_mongo::mongodb::bson::{
    Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, doc, spec::BinarySubtype,
};
use distlock_mongo::{Change, CommitError, DocumentGuard, DocumentLocks};

use crate::Checks;
use crate::world::{LONG, World, random_name};

pub(super) fn add(checks: &mut Checks<'_>) {
    check!(checks, documents_values_are_data);
    check!(checks, documents_odd_names);
    check!(checks, documents_paths);
    check!(checks, documents_replaced);
    check!(checks, documents_pipelines);
    check!(checks, documents_refused_before_io);
}

struct Shelf {
    raw: Collection<Document>,
    locks: DocumentLocks<Document>,
}

impl Shelf {
    fn of(world: &World) -> Self {
        let raw = world.raw(&random_name("documents"));
        let locks = DocumentLocks::builder(&raw).lease(super::lasting()).request_timeout(LONG).build().unwrap();
        Self { raw, locks }
    }

    async fn with(&self, document: Document) -> DocumentGuard<Document> {
        let id = random_name("document");
        let mut stored = doc! { "_id": &id };
        stored.extend(document);
        self.raw.insert_one(stored).await.unwrap();
        self.locks.lock(id).await.unwrap()
    }

    /// Returns the document under a guard after a commit, without its identity.
    async fn committed(&self, guard: DocumentGuard<Document>, change: impl Into<Change>) -> Document {
        let id = guard.key().as_str().to_owned();
        guard.commit(change).await.unwrap();
        self.rest(&id).await
    }

    async fn rest(&self, id: &str) -> Document {
        let mut document = self.raw.find_one(doc! { "_id": id }).await.unwrap().unwrap();
        assert_eq!(document.keys().next().unwrap(), "_id", "the identity is first: {document}");
        document.remove("_id");
        let lock = document.remove("lock").expect("the lease survives");
        let lock = lock.as_document().unwrap();
        assert!(
            lock.contains_key("fencingToken") && !lock.contains_key("lockId") && !lock.contains_key("step"),
            "{lock}"
        );
        document
    }
}

/// Makes a text of a regular expression, whose type depends on the version of `bson`.
fn text<T: TryFrom<String, Error: Debug>>(text: &str) -> T {
    text.to_owned().try_into().expect("a text without NUL")
}

/// Every type, and every string that could be misread.
fn everything() -> Document {
    doc! {
        "text": "$text", "root": "$$ROOT", "remove": "$$REMOVE", "literal": { "$literal": 1 }, "nested": { "$add": ["$a", 1] },
        "array": ["$a", ["$$NOW"], { "$b": "$c" }], "empty": {}, "none": [], "null": Bson::Null,
        "int": 1_i32, "long": 1_i64, "double": 1.0, "decimal": Decimal128::from_str("1.10").unwrap(), "bool": true,
        "date": DateTime::from_millis(-1), "id": ObjectId::from_bytes([7; 12]), "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 36] },
        "regex": Regex { pattern: text("^$"), options: text("i") }, "timestamp": Timestamp { time: 7, increment: 9 },
        "min": Bson::MinKey, "max": Bson::MaxKey, "nul": "a\0b",
    }
}

async fn documents_values_are_data(world: World) {
    let shelf = Shelf::of(&world);
    let guard = shelf.with(doc! { "nested": { "kept": 1 }, "text": "old" }).await;
    let change = everything().into_iter().fold(Change::new(), |change, (name, value)| change.set(&name, value));
    let mut expected = doc! { "nested": Bson::Null, "text": Bson::Null };
    expected.extend(everything());
    assert_eq!(shelf.committed(guard, change).await, expected, "set: what was there is replaced, not merged");

    let guard = shelf.with(doc! { "old": 1 }).await;
    assert_eq!(shelf.committed(guard, Change::replace(&everything())).await, everything());
    let guard = shelf.with(doc! {}).await;
    let nested = shelf.committed(guard, Change::new().set("a.b", everything())).await;
    assert_eq!(nested, doc! { "a": { "b": everything() } });

    let mut guard = shelf.with(everything()).await;
    let mut brought = guard.document().clone();
    brought.remove("_id");
    assert_eq!(brought, everything());
    guard.save(doc! { "text": "$$CLUSTER_TIME" }).await.unwrap();
    assert_eq!(guard.get_str("text").unwrap(), "$$CLUSTER_TIME");
    assert!(!guard.contains_key("lock"));
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);

    // The same in a default document, and in remarks for people.
    let id = random_name("$id");
    let guard =
        shelf.locks.lock(id.as_str()).or_insert(&everything()).owner("$$ROOT").metadata("$k", "$v").await.unwrap();
    let stored = shelf.raw.find_one(doc! { "_id": &id }).await.unwrap().unwrap();
    assert_eq!(stored.get_document("lock").unwrap().get_str("owner").unwrap(), "$$ROOT");
    let mut brought = guard.document().clone();
    assert_eq!(brought.remove("_id"), Some(id.as_str().into()));
    assert_eq!(brought, everything());
    guard.commit(Change::new()).await.unwrap();
    assert_eq!(shelf.rest(&id).await, everything());
}

async fn documents_odd_names(world: World) {
    let shelf = Shelf::of(&world);
    let guard = shelf.with(doc! { "a": 1, "b": { "c": 1 } }).await;
    let change = Change::new()
        .set("0", 0)
        .set("a b", 1)
        .set("é", 2)
        .set("lock2", 3)
        .set("locks.lock._id", 4)
        .set_at(["a.b"], 5)
        .set_at(["$price"], 6)
        .set_at(["b", "$x.y", "0", "_id"], 7)
        .set_at(["step"], 8)
        .set("a b", 9);
    let expected = doc! {
        "a": 1, "b": { "c": 1, "$x.y": { "0": { "_id": 7 } } }, "0": 0, "a b": 9, "é": 2, "lock2": 3,
        "locks": { "lock": { "_id": 4 } }, "a.b": 5, "$price": 6, "step": 8,
    };
    assert_eq!(shelf.committed(guard, change).await, expected);

    let guard = shelf.with(expected).await;
    let change = Change::new()
        .unset("a")
        .unset("b.c")
        .unset("nothing.here")
        .unset("a b.deeper")
        .unset_at(["a.b"])
        .unset_at(["$price"])
        .unset_at(["b", "$x.y", "0", "_id"]);
    let left = doc! {
        "b": { "$x.y": { "0": {} } }, "0": 0, "a b": 9, "é": 2, "lock2": 3, "locks": { "lock": { "_id": 4 } }, "step": 8,
    };
    assert_eq!(shelf.committed(guard, change).await, left);
}

/// A path through a value that is no sub-document would overwrite it, or write into each element.
async fn documents_paths(world: World) {
    let shelf = Shelf::of(&world);
    let content = doc! { "list": [{ "b": 1 }, { "b": 2 }], "none": [], "text": "$t", "null": Bson::Null, "deep": { "list": [1] } };
    let mut guard = shelf.with(content.clone()).await;
    for path in ["list.b", "none.b", "text.b", "null.b", "deep.list.b.c"] {
        let change = Change::new().set("other", 1).set(path, 2);
        let not = guard.commit_or_keep(change.clone()).await.unwrap_err();
        assert_eq!(not.error.error().kind(), ErrorKind::Rejected, "{path}");
        assert!(not.error.to_string().contains("sub-document"), "{}", not.error);
        guard = not.guard.expect("still held");
        assert_eq!(guard.save(change).await.unwrap_err().kind(), ErrorKind::Rejected);
    }
    assert!(!guard.is_lost());
    let change =
        Change::new().set("deep.new.one", 1).set("fresh.a.b", 2).set("fresh.a.c", 3).unset("list.b").unset("text.b");
    let mut expected = content;
    expected.insert("deep", doc! { "list": [1], "new": { "one": 1 } });
    expected.insert("fresh", doc! { "a": { "b": 2, "c": 3 } });
    assert_eq!(shelf.committed(guard, change).await, expected);
}

async fn documents_replaced(world: World) {
    let shelf = Shelf::of(&world);
    let mut guard = shelf.with(doc! { "a": 1, "b": 2 }).await;
    let id = guard.key().as_str().to_owned();
    *guard = doc! { "c": 3, "_id": &id };
    guard.save_document().await.unwrap();
    assert_eq!(*guard, doc! { "_id": &id, "c": 3 }, "the identity goes first");
    for document in [doc! { "_id": "another" }, doc! { "_id": 7 }, doc! { "lock": 1 }] {
        let error = guard.save(Change::replace(&document)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{document}");
        let not = guard.commit_or_keep(Change::replace(&document)).await.unwrap_err();
        assert!(matches!(not.error, CommitError::Rejected { code: None, .. }), "{not:?}");
        guard = not.guard.expect("still held");
    }
    assert_eq!(shelf.committed(guard, Change::replace(&doc! {})).await, doc! {});
}

async fn documents_pipelines(world: World) {
    let shelf = Shelf::of(&world);
    let content = doc! { "a": 1, "b": { "c": 2 }, "items": [1, 2] };
    let cases = [
        (vec![doc! { "$set": { "a": { "$add": ["$a", 1] } } }, doc! { "$unset": ["b", "items"] }], doc! { "a": 2 }),
        (vec![doc! { "$project": { "a": 1, "sum": { "$sum": "$items" } } }], doc! { "a": 1, "sum": 3 }),
        (vec![doc! { "$project": { "a": 0, "b.c": 0 } }], doc! { "b": {}, "items": [1, 2] }),
        (vec![doc! { "$replaceWith": "$b" }], doc! { "c": 2 }),
        (vec![doc! { "$replaceRoot": { "newRoot": { "x": "$a", "_id": "no", "lock": "no" } } }], doc! { "x": 1 }),
        (vec![doc! { "$replaceWith": {} }, doc! { "$set": { "a": "$$NOW" } }, doc! { "$unset": "a" }], doc! {}),
        (vec![], content.clone()),
    ];
    for (stages, expected) in cases {
        let guard = shelf.with(content.clone()).await;
        assert_eq!(shelf.committed(guard, Change::pipeline(stages.clone())).await, expected, "{stages:?}");
        let mut guard = shelf.with(content.clone()).await;
        guard.save(Change::pipeline(stages)).await.unwrap();
        let mut saved = guard.document().clone();
        saved.remove("_id");
        assert_eq!(saved, expected);
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released, "the lease survives");
    }
    let mut guard = shelf.with(content.clone()).await;
    for stages in [
        vec![doc! { "$set": { "a": { "$divide": [1, { "$subtract": ["$a", 1] }] } } }],
        vec![doc! { "$set": { "a": { "$add": ["$a", "$b"] } } }],
        vec![doc! { "$replaceWith": "$a" }],
        vec![doc! { "$replaceWith": "$missing" }],
        vec![doc! { "$set": { "a": { "$nonsense": 1 } } }],
        vec![doc! { "$set": { "": 1 } }],
    ] {
        let not = guard.commit_or_keep(Change::pipeline(stages.clone())).await.unwrap_err();
        assert_eq!(not.error.error().kind(), ErrorKind::Rejected, "{stages:?} {:?}", not.error);
        assert!(matches!(not.error, CommitError::Rejected { code: Some(_), .. }), "{stages:?}");
        guard = not.guard.expect("still held");
    }
    assert_eq!(shelf.committed(guard, Change::new()).await, content);
}

async fn documents_refused_before_io(world: World) {
    let shelf = Shelf::of(&world);
    let mut guard = shelf.with(doc! { "a": 1 }).await;
    let before = shelf.raw.find_one(doc! {}).await.unwrap();
    for change in [
        Change::from(doc! { "$set": { "a": 2 } }),
        Change::new().set("lock", 1),
        Change::new().set("lock.lockId", "mine"),
        Change::new().unset("lock"),
        Change::new().set("_id", 1),
        Change::new().set("a.0", 1),
        Change::pipeline([doc! { "$set": { "lock.expiresAt": "$$NOW" } }]),
        Change::pipeline([doc! { "$unset": "lock" }]),
        Change::pipeline([doc! { "$lookup": {} }]),
    ] {
        assert_eq!(guard.save(change.clone()).await.unwrap_err().kind(), ErrorKind::InvalidOptions, "{change:?}");
        guard = guard.commit_or_keep(change).await.unwrap_err().guard.expect("still held");
    }
    assert_eq!(shelf.raw.find_one(doc! {}).await.unwrap(), before);
}
