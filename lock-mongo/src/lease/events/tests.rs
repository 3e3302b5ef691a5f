//! What changes mean, in the shapes in which servers tell them.

use mongodb::bson::{from_document, to_bson};

use super::*;

struct Heard(Watcher);

impl Heard {
    fn new(prefix: &'static str) -> Self {
        Self(Watcher::new(Layout::new(prefix)))
    }

    fn change(&mut self, kind: &str, id: impl Into<Bson>, more: Document) -> Vec<String> {
        let mut change = doc! { "_id": { "_data": "00" }, "operationType": kind, "documentKey": { "_id": id.into() } };
        change.extend(more);
        let change: ChangeStreamEvent<Document> = from_document(change).unwrap();
        let word = |event: LockEvent| match event {
            LockEvent::Granted { id, token, owner, .. } => format!("granted {id} {token} {owner:?}"),
            event => event.id().map_or("gap".into(), |id| format!("{} {id}", event.as_str())),
        };
        self.0.events(&change).into_iter().map(word).collect()
    }

    fn update(&mut self, updated: Document, removed: &[&str]) -> Vec<String> {
        let update = doc! { "updatedFields": updated, "removedFields": to_bson(removed).unwrap() };
        self.change("update", "k", doc! { "updateDescription": update })
    }

    fn replace(&mut self, full: Document) -> Vec<String> {
        self.change("replace", "k", doc! { "fullDocument": full })
    }
}

#[test]
fn the_life_of_a_lease_told_by_updates() {
    let mut heard = Heard::new("");
    let first = doc! { "_id": "k", "lockId": "a", "fencingToken": 7_i64, "owner": "o" };
    assert_eq!(heard.change("insert", "k", doc! { "fullDocument": first }), ["granted a 7 Some(\"o\")"]);
    let taken_over = doc! { "lockId": "b", "fencingToken": 8_i64, "expired": "a" };
    assert_eq!(heard.update(taken_over, &[]), ["expired a", "granted b 8 Some(\"o\")"]);
    assert_eq!(heard.update(doc! { "lastReleased": "b" }, &["lockId", "owner", "expired"]), ["released b"]);
    assert_eq!(heard.update(doc! { "lockId": "c", "fencingToken": 9_i64 }, &[]), ["granted c 9 None"]);
    let forced = doc! { "revoked": "c", "fencingToken": 10_i64, "audit.0.lockId": "c" };
    assert_eq!(heard.update(forced, &["lockId"]), ["force_released c"]);
}

#[test]
fn a_release_that_hands_the_lock_on_is_both() {
    let mut heard = Heard::new("");
    let handed = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "a" };
    assert_eq!(heard.update(handed.clone(), &[]), ["released a", "granted b 8 None"]);
    let mut heard = Heard::new("");
    assert_eq!(heard.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(heard.replace(handed.clone()), ["released a", "granted b 8 None"]);
    // Not seen before: `passed` tells a grant by a releaser from one after a release.
    assert_eq!(Heard::new("").replace(handed.clone()), ["granted b 8 None"]);
    let mut passed = handed;
    passed.insert("passed", 8_i64);
    assert_eq!(Heard::new("").replace(passed), ["released a", "granted b 8 None"]);
}

#[test]
fn a_replaced_record_is_read_by_what_it_was_before() {
    let mut heard = Heard::new("");
    let held = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "z", "revoked": "y", "expired": "a" };
    assert_eq!(heard.replace(held.clone()), ["expired a", "granted b 8 None"]);
    assert!(heard.replace(held).is_empty(), "nothing that concerns the lease");
    let forced = doc! { "fencingToken": 9_i64, "lastReleased": "z", "revoked": "b", "audit": [{ "token": 8_i64 }] };
    assert_eq!(heard.replace(forced.clone()), ["force_released b"]);
    // Not seen before: the token tells a release by force from one before it.
    assert_eq!(Heard::new("").replace(forced.clone()), ["force_released b"]);
    let mut released = forced;
    released.insert("fencingToken", 11_i64);
    released.insert("lastReleased", "c");
    assert_eq!(Heard::new("").replace(released), ["released c"]);
}

#[test]
fn a_sub_document_is_told_by_path_or_whole() {
    let mut heard = Heard::new("lock.");
    let by_path = doc! { "lock.lockId": "a", "lock.fencingToken": 7_i64, "lock.owner": "o", "n": 1 };
    assert_eq!(heard.update(by_path, &[]), ["granted a 7 Some(\"o\")"]);
    let whole = doc! { "lock": { "fencingToken": 7_i64, "lastReleased": "a" } };
    assert_eq!(heard.update(whole, &[]), ["released a"]);
    let inside = doc! { "lock": { "lockId": "b", "fencingToken": 8_i64 }, "lockId": "of the application" };
    assert_eq!(heard.replace(inside), ["granted b 8 None"]);
    assert!(Heard::new("lock.").replace(doc! { "lock": "of the application" }).is_empty());
}

#[test]
fn what_cannot_be_explained_is_a_gap_and_what_is_foreign_is_nothing() {
    let mut heard = Heard::new("");
    assert_eq!(heard.update(doc! { "note": "by hand" }, &["lockId"]), ["gap"]);
    assert_eq!(heard.change("drop", "k", doc! {}), ["gap"]);
    assert_eq!(heard.change("invalidate", "k", doc! {}), ["gap"]);
    assert!(heard.change("insert", 7, doc! { "fullDocument": { "_id": 7, "lockId": "a" } }).is_empty());
    assert!(heard.change("delete", "k", doc! {}).is_empty());
    assert_eq!(heard.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(heard.change("delete", "k", doc! {}), ["expired a"]);
    assert!(heard.change("delete", "k", doc! {}).is_empty());
}
