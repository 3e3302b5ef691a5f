//! The events of an operator, from changes in the forms of different servers.

use mongodb::bson::{from_document, to_bson};

use super::*;

struct Events(Watcher);

impl Events {
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
fn updates_report_the_life_of_a_lease() {
    let mut watcher = Events::new("");
    // A batch makes the records of new keys before it takes them (R24).
    let unused = doc! { "_id": "k", "fencingToken": 0_i64, "tokens": 1 };
    assert!(watcher.change("insert", "k", doc! { "fullDocument": unused }).is_empty());
    let first = doc! { "_id": "k", "lockId": "a", "fencingToken": 7_i64, "owner": "o" };
    assert_eq!(watcher.change("insert", "k", doc! { "fullDocument": first }), ["granted a 7 Some(\"o\")"]);
    let taken_over = doc! { "lockId": "b", "fencingToken": 8_i64, "expired": "a" };
    assert_eq!(watcher.update(taken_over, &[]), ["expired a", "granted b 8 Some(\"o\")"]);
    assert_eq!(watcher.update(doc! { "lastReleased": "b" }, &["lockId", "owner", "expired"]), ["released b"]);
    assert_eq!(watcher.update(doc! { "lockId": "c", "fencingToken": 9_i64 }, &[]), ["granted c 9 None"]);
    let forced = doc! { "revoked": "c", "fencingToken": 10_i64, "audit.0.lockId": "c" };
    assert_eq!(watcher.update(forced, &["lockId"]), ["force_released c"]);
}

#[test]
fn a_hand_over_is_a_release_and_a_grant() {
    let mut watcher = Events::new("");
    let handed = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "a" };
    assert_eq!(watcher.update(handed.clone(), &[]), ["released a", "granted b 8 None"]);
    let mut watcher = Events::new("");
    assert_eq!(watcher.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(watcher.replace(handed.clone()), ["released a", "granted b 8 None"]);
    // Without an earlier change: `passed` distinguishes a grant by a release from one after it.
    assert_eq!(Events::new("").replace(handed.clone()), ["granted b 8 None"]);
    let mut passed = handed;
    passed.insert("passed", 8_i64);
    assert_eq!(Events::new("").replace(passed), ["released a", "granted b 8 None"]);
}

#[test]
fn a_replaced_record_is_read_by_its_previous_state() {
    let mut watcher = Events::new("");
    let held = doc! { "lockId": "b", "fencingToken": 8_i64, "lastReleased": "z", "revoked": "y", "expired": "a" };
    assert_eq!(watcher.replace(held.clone()), ["expired a", "granted b 8 None"]);
    assert!(watcher.replace(held).is_empty(), "the lease has not changed");
    let forced = doc! { "fencingToken": 9_i64, "lastReleased": "z", "revoked": "b", "audit": [{ "token": 8_i64 }] };
    assert_eq!(watcher.replace(forced.clone()), ["force_released b"]);
    // Without an earlier change: the token distinguishes a forced release from an earlier one.
    assert_eq!(Events::new("").replace(forced.clone()), ["force_released b"]);
    let mut released = forced;
    released.insert("fencingToken", 11_i64);
    released.insert("lastReleased", "c");
    assert_eq!(Events::new("").replace(released), ["released c"]);
}

#[test]
fn a_sub_document_is_reported_by_path_or_whole() {
    let mut watcher = Events::new("lock.");
    let by_path = doc! { "lock.lockId": "a", "lock.fencingToken": 7_i64, "lock.owner": "o", "n": 1 };
    assert_eq!(watcher.update(by_path, &[]), ["granted a 7 Some(\"o\")"]);
    let whole = doc! { "lock": { "fencingToken": 7_i64, "lastReleased": "a" } };
    assert_eq!(watcher.update(whole, &[]), ["released a"]);
    let inside = doc! { "lock": { "lockId": "b", "fencingToken": 8_i64 }, "lockId": "of the application" };
    assert_eq!(watcher.replace(inside), ["granted b 8 None"]);
    assert!(Events::new("lock.").replace(doc! { "lock": "of the application" }).is_empty());
}

#[test]
fn an_unexplained_change_is_a_gap_and_a_foreign_one_is_ignored() {
    let mut watcher = Events::new("");
    assert_eq!(watcher.update(doc! { "note": "by hand" }, &["lockId"]), ["gap"]);
    assert_eq!(watcher.change("drop", "k", doc! {}), ["gap"]);
    assert_eq!(watcher.change("invalidate", "k", doc! {}), ["gap"]);
    assert!(watcher.change("insert", 7, doc! { "fullDocument": { "_id": 7, "lockId": "a" } }).is_empty());
    assert!(watcher.change("delete", "k", doc! {}).is_empty());
    assert_eq!(watcher.update(doc! { "lockId": "a", "fencingToken": 7_i64 }, &[]).len(), 1);
    assert_eq!(watcher.change("delete", "k", doc! {}), ["expired a"]);
    assert!(watcher.change("delete", "k", doc! {}).is_empty());
}
